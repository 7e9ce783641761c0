//! Real programs and their own test suites do the same with and without Forebay.

#[path = "../harness/mod.rs"]
mod harness;

mod capacity;
mod databases;
mod datasets;
mod fio;
mod mpi_io;
mod python;
mod science;
mod tools;
