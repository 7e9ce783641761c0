//! What is left after a crash, a loss of power or damage, and what brings it back.

#[path = "../harness/mod.rs"]
mod harness;

mod corruption;
mod durability;
mod found_pools;
mod recovery_tools;
mod versions;
