//! The functions of HDF5 1.14 and later, as `hdf5` has those of 1.10: several datasets at once, and
//! asynchronous calls. They are in a library of their own: a program that finds them, as it may by
//! a weak symbol, believes that its HDF5 has them, so it is loaded only with one that has. It keeps
//! nothing itself: each function jumps to its like in `hdf5`, which is loaded before it, with the
//! address that it returns to as it was.
//!
//! # Safety
//! Each exported symbol is `unsafe` on the conditions of HDF5's manual.

#![allow(non_upper_case_globals)]
#![cfg(target_os = "linux")]

use core::arch::naked_asm;

/// Exports a public name that jumps to a function of the adapter.
macro_rules! interposed {
    ($($name:ident -> $target:ident;)*) => { $(
        unsafe extern "C" { fn $target(); }
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!("jmp {}@PLT", sym $target);
            #[cfg(target_arch = "aarch64")]
            naked_asm!("b {}", sym $target);
        }
    )* };
}

/// What the adapter knows this library by.
#[unsafe(no_mangle)]
static forebay_hdf5_later: u8 = 0;

interposed! {
    H5Dclose_async -> forebay_before_H5Dclose_async;
    H5Dcreate_async -> forebay_before_H5Dcreate_async;
    H5Dopen_async -> forebay_before_H5Dopen_async;
    H5Dread_async -> forebay_before_H5Dread_async;
    H5Dread_chunk1 -> forebay_before_H5Dread_chunk1;
    H5Dread_chunk2 -> forebay_before_H5Dread_chunk2;
    H5Dread_multi -> forebay_before_H5Dread_multi;
    H5Dread_multi_async -> forebay_before_H5Dread_multi_async;
    H5Dwrite_async -> forebay_before_H5Dwrite_async;
    H5Dwrite_multi -> forebay_before_H5Dwrite_multi;
    H5Dwrite_multi_async -> forebay_before_H5Dwrite_multi_async;
    H5Fclose_async -> forebay_before_H5Fclose_async;
    H5Fcreate_async -> forebay_before_H5Fcreate_async;
    H5Fflush_async -> forebay_before_H5Fflush_async;
    H5Fopen_async -> forebay_before_H5Fopen_async;
    H5Oclose_async -> forebay_before_H5Oclose_async;
    H5Oopen_async -> forebay_before_H5Oopen_async;
    H5Oopen_by_idx_async -> forebay_before_H5Oopen_by_idx_async;
}
