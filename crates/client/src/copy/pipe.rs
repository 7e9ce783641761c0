//! Copies between a file and a pipe.

use super::end::KnownEnd;
use super::{buffer, straight_from_ram};
use crate::fd::borrow;
use rustix::event::PollFlags;
use rustix::io::Errno;

/// What a pipe that says it can be written takes without waiting.
const PIPE_PAGE: usize = 4096;

/// Fills a pipe from a file, up to `length` bytes: waits for room only while nothing has moved, and
/// never for a reader to make more.
pub(super) fn fill_pipe(
    from: KnownEnd<'_>,
    at: i64,
    pipe: KnownEnd<'_>,
    length: usize,
    waits: bool,
) -> Result<usize, Errno> {
    let length = length.min(from.remaining(at));
    let mut buffer = buffer(length)?;
    let fd = borrow(pipe.fd);
    let mut done = 0;
    // How much the pipe takes for certain: all that it holds if it is empty, else a page.
    let mut room = match rustix::io::ioctl_fionread(fd)? {
        0 => rustix::pipe::fcntl_getpipe_size(fd)?,
        _ => 0,
    };
    while done < length {
        if let Some(put) = straight_from_ram(from, at, pipe, done, length - done)? {
            (done, room) = (done + put, 0);
            continue;
        }
        if room == 0 {
            if !pipe.is_ready(PollFlags::OUT, waits && done == 0)? {
                if done == 0 {
                    return Err(Errno::AGAIN);
                }
                break;
            }
            room = PIPE_PAGE;
        }
        let got = match from.read(&mut buffer, room.min(length - done), Some(at + done as i64)) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        let (put, error) = pipe.write(&buffer, None);
        done += put;
        room = room.saturating_sub(put);
        match error {
            Some(errno) if done == 0 => return Err(errno),
            None if put == got => {}
            _ => break,
        }
    }
    Ok(done)
}

/// Empties a pipe to a file, up to `length` bytes: waits for bytes only while nothing has moved.
pub(super) fn empty_pipe(
    pipe: KnownEnd<'_>,
    to: KnownEnd<'_>,
    at: i64,
    length: usize,
    waits: bool,
) -> Result<usize, Errno> {
    let mut buffer = buffer(length)?;
    let fd = borrow(pipe.fd);
    let mut done = 0;
    while done < length {
        if done > 0 && rustix::io::ioctl_fionread(fd)? == 0 {
            break;
        }
        if !waits && !pipe.is_ready(PollFlags::IN, false)? {
            return if done == 0 { Err(Errno::AGAIN) } else { Ok(done) };
        }
        let got = match pipe.read(&mut buffer, length - done, None) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        let (put, error) = to.write(&buffer, Some(at + done as i64));
        done += put;
        match error {
            Some(errno) if done == 0 => return Err(errno),
            None if put == got => {}
            _ => break,
        }
    }
    Ok(done)
}
