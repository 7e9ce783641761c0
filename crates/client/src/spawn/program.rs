//! What kind of program a file is.

use super::Needs;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, Stat};

/// Whether the kernel will start the program through a dynamic loader that honours LD_PRELOAD, and
/// what that then needs, of which `needs` is asked: of a script the interpreter counts. `stat` is
/// what was seen of the file.
pub(super) fn loads_libraries(
    file: &OwnedFd,
    stat: Option<&Stat>,
    depth: u32,
    needs: &impl Fn(&OwnedFd, Option<&Stat>) -> Needs,
) -> Option<Needs> {
    let mut head = [0u8; 512];
    let got = rustix::io::pread(file, &mut head[..], 0).ok()?;
    let head = &head[..got];
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line);
        let name = line
            .split(|byte| byte.is_ascii_whitespace())
            .find(|word| !word.is_empty())
            .unwrap_or(b"");
        if depth >= 4 {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let interpreter = rustix::fs::openat(rustix::fs::CWD, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&interpreter).ok();
        return loads_libraries(&interpreter, stat.as_ref(), depth + 1, needs);
    }
    let joins = !stat.is_some_and(is_privileged) && has_interpreter(head, file).unwrap_or(false);
    joins.then(|| needs(file, stat))
}

/// Whether a program is another user's, or group's, than this process: the loader preloads nothing
/// for it.
pub(super) fn is_privileged(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    let set_user = mode.contains(Mode::SUID) && stat.st_uid != rustix::process::geteuid().as_raw();
    let set_group = mode.contains(Mode::SGID) && stat.st_gid != rustix::process::getegid().as_raw();
    set_user || set_group
}

/// Whether a 64-bit ELF file has a PT_INTERP program header.
fn has_interpreter(head: &[u8], file: &OwnedFd) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let offset = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?);
    let size = u16::from_le_bytes(head.get(54..56)?.try_into().ok()?);
    let number = u16::from_le_bytes(head.get(56..58)?.try_into().ok()?);
    Some((0..number.min(128)).any(|index| {
        let at = offset.saturating_add(u64::from(index) * u64::from(size));
        let place = usize::try_from(at).ok().and_then(|at| head.get(at..at.checked_add(4)?));
        let mut kind = [0u8; 4];
        let known = match place {
            Some(found) => {
                kind.copy_from_slice(found);
                true
            }
            None => rustix::io::pread(file, &mut kind[..], at) == Ok(4),
        };
        known && u32::from_le_bytes(kind) == PT_INTERP
    }))
}
