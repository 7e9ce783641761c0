//! The adapter for MPI-IO: it stands before `MPI_File_*` of MPICH, Open MPI and the standard ABI,
//! passes each call on as it is, and tells Forebay what it has seen: which files are MPI's, how
//! much is read and written, and, by the view of a rank, what that will read next. It is loaded
//! with programs that have an MPI library, see docs/design/adapters.md, and docs/mpi-io.md for
//! users.
//!
//! There is no `mpi.h` here: all that is passed on is machine words. Handles are 32-bit numbers in
//! MPICH and pointers elsewhere, and both come and go in a register; the upper half of a number is
//! not looked at by the library, and not by the adapter. The few constants that it needs, which
//! differ between the three, are in `abi.rs`.
//!
//! # Safety
//! Each exported symbol is `unsafe` on the conditions of the MPI function of its name. What a
//! program passes is read only as far as the function reads it, too.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

mod abi;
mod agreement;
mod calls;
mod disjoint;
mod files;
mod fortran;
mod hints;
mod library;
mod pieces;
mod seen;
mod services;
mod together;
