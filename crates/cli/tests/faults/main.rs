//! Processes that are killed, paused or stopped, stores that fail, tables that are full, and
//! hostile neighbours.

#[path = "../harness/mod.rs"]
mod harness;

mod crash;
mod faulty_store;
mod full_tables;
mod hostile;
mod hostile_files;
mod messages;
mod other_users;
mod pauses;
mod process_kill;
mod short_of_descriptors;
mod stopped;
