//! The C library's `syscall`: the numbers that concern managed descriptors are sent to the
//! functions of the same name, which check again.

use crate::memory::{remapped, remapping};
use crate::real::{real, without_cancellation};
use crate::session::session;
use forebay_client::OpenFlags;
use forebay_client::user_memory::memory_changed;
use libc::{c_int, c_long, c_uint, c_void};

/// The same on all architectures; not all versions of the C library have it.
const SYS_FCHMODAT2: c_long = 452;

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // What some of them change could not be seen later.
    crate::session::settle();
    // Unlike the functions that it goes to, it is no cancellation point.
    // SAFETY: the program's call.
    without_cancellation(|| unsafe { dispatch(number, a, b, c, d, e, f) })
}

/// Makes a system call by the function that it belongs to.
///
/// # Safety
/// As of the system call `number` with these arguments.
unsafe fn dispatch(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    let [pa, pb, pc] = [a, b, c].map(|address| address as *mut c_void);
    // SAFETY: the function behind each number takes its arguments as the system call does.
    unsafe {
        match number {
            libc::SYS_read => libc::read(fd, pb, c as usize) as c_long,
            libc::SYS_write => libc::write(fd, pb, c as usize) as c_long,
            libc::SYS_pread64 => libc::pread64(fd, pb, c as usize, d) as c_long,
            libc::SYS_pwrite64 => libc::pwrite64(fd, pb, c as usize, d) as c_long,
            libc::SYS_readv => libc::readv(fd, pb.cast(), c as c_int) as c_long,
            libc::SYS_writev => libc::writev(fd, pb.cast(), c as c_int) as c_long,
            libc::SYS_lseek => libc::lseek64(fd, b, c as c_int),
            libc::SYS_close_range => {
                c_long::from(libc::close_range(a as c_uint, b as c_uint, c as c_int))
            }
            libc::SYS_close => c_long::from(libc::close(fd)),
            libc::SYS_fsync => c_long::from(libc::fsync(fd)),
            libc::SYS_fdatasync => c_long::from(libc::fdatasync(fd)),
            libc::SYS_ftruncate => c_long::from(libc::ftruncate64(fd, b)),
            libc::SYS_fallocate => c_long::from(libc::fallocate64(fd, b as c_int, c, d)),
            libc::SYS_fadvise64 => match crate::files::posix_fadvise64(fd, b, c, d as c_int) {
                0 => 0,
                error => {
                    crate::errno::status(Err(rustix::io::Errno::from_raw_os_error(error))).into()
                }
            },
            libc::SYS_readahead => crate::files::readahead(fd, b, c as usize) as c_long,
            libc::SYS_splice => {
                libc::splice(fd, pb.cast(), c as c_int, d as *mut i64, e as usize, f as c_uint)
                    as c_long
            }
            libc::SYS_dup => c_long::from(libc::dup(fd)),
            libc::SYS_dup3 => c_long::from(libc::dup3(fd, b as c_int, c as c_int)),
            libc::SYS_fcntl => c_long::from(libc::fcntl(fd, b as c_int, pc)),
            libc::SYS_openat => {
                c_long::from(libc::openat64(fd, pb.cast(), c as c_int, d as c_uint))
            }
            libc::SYS_openat2 => {
                let call = || real!(c"syscall"(number => c_long, a => c_long, b => c_long, c => c_long, d => c_long) -> c_long);
                let Some(session) = session() else { return call() };
                session.opening(|| {
                    let opened = call();
                    if opened >= 0 {
                        // struct open_how begins with the flags.
                        let flags = OpenFlags::from_bits_retain(*pc.cast::<u64>() as u32);
                        if let Err(errno) = session.opened_surely(opened as c_int, flags) {
                            libc::close(opened as c_int);
                            return c_long::from(crate::errno::status(Err(errno)));
                        }
                    }
                    opened
                })
            }
            libc::SYS_copy_file_range => libc::copy_file_range(
                fd,
                pb.cast(),
                c as c_int,
                d as *mut i64,
                e as usize,
                f as c_uint,
            ) as c_long,
            libc::SYS_sendfile => libc::sendfile64(fd, b as c_int, pc.cast(), d as usize) as c_long,
            libc::SYS_statx => {
                c_long::from(libc::statx(fd, pb.cast(), c as c_int, d as c_uint, e as *mut _))
            }
            libc::SYS_fstat => c_long::from(libc::fstat64(fd, pb.cast())),
            libc::SYS_newfstatat => {
                c_long::from(libc::fstatat64(fd, pb.cast(), pc.cast(), d as c_int))
            }
            // Calls on memory do not go to the C library's functions: a library that replaces
            // those (UCX does) comes back here for the call itself.
            libc::SYS_mmap => {
                crate::memory::map((pa, b as usize), c as c_int, d as c_int, e as c_int, || {
                    real!(c"syscall"(number => c_long, a => c_long, b => c_long, c => c_long, d => c_long, e => c_long, f => c_long) -> c_long)
                        as *mut c_void
                }) as c_long
            }
            libc::SYS_munmap => {
                let call =
                    || real!(c"syscall"(number => c_long, a => c_long, b => c_long) -> c_long);
                let result =
                    crate::memory::unmapping((pa, b as usize), call, |&result| result == 0);
                memory_changed(pa, b as usize);
                result
            }
            libc::SYS_mprotect => {
                let result = real!(c"syscall"(number => c_long, a => c_long, b => c_long, c => c_long) -> c_long);
                memory_changed(pa, b as usize);
                result
            }
            libc::SYS_mremap => {
                let (old, new) = ((pa, b as usize), (e as *mut c_void, c as usize));
                remapping(old, new, d as c_int);
                let result = real!(c"syscall"(number => c_long, a => c_long, b => c_long, c => c_long, d => c_long, e => c_long) -> c_long);
                remapped(old, new, d as c_int, result as *mut c_void);
                result
            }
            libc::SYS_preadv => libc::preadv64(fd, pb.cast(), c as c_int, d) as c_long,
            libc::SYS_pwritev => libc::pwritev64(fd, pb.cast(), c as c_int, d) as c_long,
            // The offset is in two halves, of which the first is all on 64 bits.
            libc::SYS_preadv2 => {
                libc::preadv64v2(fd, pb.cast(), c as c_int, d, f as c_int) as c_long
            }
            libc::SYS_pwritev2 => {
                libc::pwritev64v2(fd, pb.cast(), c as c_int, d, f as c_int) as c_long
            }
            libc::SYS_prlimit64 => {
                c_long::from(libc::prlimit64(a as libc::pid_t, b as _, pc.cast(), d as *mut _))
            }
            libc::SYS_setrlimit => c_long::from(libc::setrlimit64(a as _, pb.cast())),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_symlink => c_long::from(libc::symlink(pa.cast(), pb.cast())),
            libc::SYS_symlinkat => c_long::from(libc::symlinkat(pa.cast(), b as c_int, pc.cast())),
            libc::SYS_truncate => c_long::from(libc::truncate64(a as *const _, b)),
            libc::SYS_sync_file_range => c_long::from(libc::sync_file_range(fd, b, c, d as c_uint)),
            libc::SYS_syncfs => c_long::from(libc::syncfs(fd)),
            libc::SYS_sync => {
                libc::sync();
                0
            }
            libc::SYS_flock => c_long::from(libc::flock(fd, b as c_int)),
            libc::SYS_unlinkat => c_long::from(libc::unlinkat(fd, pb.cast(), c as c_int)),
            libc::SYS_renameat => {
                c_long::from(libc::renameat(fd, pb.cast(), c as c_int, d as *const _))
            }
            libc::SYS_renameat2 => {
                c_long::from(libc::renameat2(fd, pb.cast(), c as c_int, d as *const _, e as c_uint))
            }
            // The C library's function refuses what the system call takes for the descriptor, and
            // the kernel all else without a path.
            libc::SYS_utimensat if pb.is_null() && d as c_int == 0 && fd != libc::AT_FDCWD => {
                c_long::from(libc::futimens(fd, pc.cast::<libc::timespec>()))
            }
            libc::SYS_utimensat if !pb.is_null() => {
                c_long::from(libc::utimensat(fd, pb.cast(), pc.cast(), d as c_int))
            }
            libc::SYS_linkat => {
                c_long::from(libc::linkat(fd, pb.cast(), c as c_int, d as *const _, e as c_int))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_link => c_long::from(libc::link(pa.cast(), pb.cast())),
            SYS_FCHMODAT2 => crate::files::change_mode_at((fd, pb.cast()), c as libc::mode_t, d as c_int, || {
                real!(c"syscall"(number => c_long, a => c_long, b => c_long, c => c_long, d => c_long) -> c_long)
                    as c_int
            })
            .into(),
            libc::SYS_fchmod => c_long::from(libc::fchmod(fd, b as libc::mode_t)),
            libc::SYS_fchmodat => c_long::from(libc::fchmodat(fd, pb.cast(), c as libc::mode_t, 0)),
            libc::SYS_sendmsg => libc::sendmsg(fd, pb.cast(), c as c_int) as c_long,
            libc::SYS_recvmsg => libc::recvmsg(fd, pb.cast(), c as c_int) as c_long,
            libc::SYS_sendmmsg => c_long::from(libc::sendmmsg(fd, pb.cast(), c as c_uint, d as _)),
            libc::SYS_recvmmsg => {
                c_long::from(libc::recvmmsg(fd, pb.cast(), c as c_uint, d as _, e as *mut _))
            }
            libc::SYS_pidfd_getfd => {
                let call = || real!(c"syscall"(number => c_long, a => c_long, b => c_long, c => c_long) -> c_long);
                c_long::from(crate::sockets::copied(call() as c_int))
            }
            libc::SYS_execve => c_long::from(libc::execve(a as *const _, pb.cast(), pc.cast())),
            libc::SYS_chroot => c_long::from(libc::chroot(a as *const _)),
            // Where its requests go cannot be seen later.
            libc::SYS_io_uring_setup => {
                if let Some(session) = session()
                    && let Err(errno) = session.use_kernel_only()
                {
                    return c_long::from(crate::errno::status(Err(errno)));
                }
                real!(c"syscall"(number => c_long, a => c_long, b => c_long) -> c_long)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => c_long::from(libc::creat64(a as *const _, b as libc::mode_t)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => c_long::from(libc::stat64(a as *const _, pb.cast())),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => c_long::from(libc::lstat64(a as *const _, pb.cast())),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => c_long::from(libc::rename(a as *const _, pb.cast())),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink => c_long::from(libc::unlink(a as *const _)),
            libc::SYS_inotify_add_watch => {
                c_long::from(libc::inotify_add_watch(fd, b as *const _, c as u32))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod => c_long::from(libc::chmod(a as *const _, b as libc::mode_t)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => c_long::from(libc::fork()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => c_long::from(libc::open64(a as *const _, b as c_int, c as c_uint)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => c_long::from(libc::dup2(fd, b as c_int)),
            _ => {
                crate::signals::is_called(number);
                real!(c"syscall"(number => c_long, a => c_long, b => c_long, c => c_long, d => c_long, e => c_long, f => c_long) -> c_long)
            }
        }
    }
}
