//! The LD_PRELOAD library: it exports the C library's I/O symbols, asks the client whether a
//! descriptor is managed, and calls the client or the real function. It decides nothing itself.
//!
//! What every start writes lies in `.data`, in pages that the loader has written anyway.
//!
//! One file for each family of calls. `docs/posix.md` lists every symbol.
//!
//! # Safety
//! Each exported symbol, and each callback of glibc's, is `unsafe` on the conditions of the C
//! function's manual page. A program's memory is looked at before it is used where the real
//! function would answer `EFAULT`.

// `real!` is used inside and outside of unsafe blocks.
#![allow(non_snake_case, unused_unsafe)]
#![cfg(target_os = "linux")]

mod aio;
mod child;
mod copies;
mod descriptors;
mod errno;
mod exec;
mod files;
mod loading;
mod memory;
mod process;
mod real;
mod rw;
mod services;
mod session;
mod signals;
mod sockets;
mod spawn_actions;
mod stat;
mod stdio;
mod syscall;
mod threads;
mod variadic;
mod vfork;
mod watches;

use forebay_client::{Carried, Front, Told, Variables};
use libc::{c_char, c_int};
use session::Joining;

/// The number of this process, as the C library has it; that of the process from which it was
/// cloned, where the C library has had no part in that.
fn number() -> Option<u32> {
    // A mutex that is checked names its owner, whose number the loader has: struct
    // __pthread_mutex_s in <bits/struct_mutex.h>.
    const OWNER: usize = 2;
    let mut mutex = libc::PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    // SAFETY: a mutex of this function's alone, which is larger than the words read of it.
    unsafe {
        let locked = libc::pthread_mutex_lock(&mut mutex) == 0;
        let owner = (&raw const mutex).cast::<u32>().add(OWNER).read();
        locked.then(|| {
            libc::pthread_mutex_unlock(&mut mutex);
            owner
        })
    }
}

/// Attaches the process. Runs before the constructors of every other library, the C library's
/// included: `environ` is not set yet, so the variables come from the arguments.
unsafe extern "C" fn start(_: c_int, _: *const *const c_char, variables: *const *const c_char) {
    // SAFETY: the process's environment, as the loader gives it to each constructor: the first is
    // this one.
    let (told, adapters) = unsafe {
        let list = variables.cast_mut();
        (Told::take(list), forebay_client::take_adapters(list))
    };
    loading::are_loaded(adapters);
    // SAFETY: the same.
    let given = unsafe { Variables::given(variables) };
    let carried = Carried::of(given);
    // A linker leaves out what nothing refers to.
    core::hint::black_box(&LAYOUT);
    if carried.has_pool() {
        let front = Front { unlock: descriptors::unlock, binds: stdio::standard::binds };
        let joining = Joining { carried, told, front };
        let is_of_pool = match told {
            Some(told) if told.may_join_later() => {
                session::put_off(joining);
                true
            }
            _ => session::join(joining, number()),
        };
        if is_of_pool {
            stdio::standard::start();
        }
    }
}

/// Which layout of shared memory this library is made for: `forebay run` reads it from the file.
#[used]
#[unsafe(link_section = ".forebay.layout")]
static LAYOUT: [u8; 4] = forebay_client::LAYOUT_VERSION.to_le_bytes();

#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;
