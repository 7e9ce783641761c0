//! Several nodes on one machine: each is made of namespaces, see [`namespaces`].

#[path = "../harness/mod.rs"]
mod harness;

mod commit;
mod demo;
mod failures;
mod give_up;
mod groups;
mod ior;
mod lent;
mod mpi;
mod namespaces;
mod remote;
mod shared_device;
mod store;
mod strict;
mod ucx;
