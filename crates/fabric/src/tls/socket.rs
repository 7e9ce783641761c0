//! Sockets that never wait.

use crate::Down;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect, recv, send,
    shutdown, socket_with, sockopt,
};
use std::net::SocketAddr;
use std::time::Duration;

/// Unanswered bytes end a connection after this time, in milliseconds.
const USER_TIMEOUT_MS: u32 = 3000;

/// An idle connection is probed this often, and ends after so many probes without an answer.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;

/// What a call moved.
pub(super) enum Moved {
    /// So many bytes.
    Bytes(usize),
    /// None; the epoll set tells when.
    NotNow,
}

/// Begins to connect.
pub(super) fn begin(to: SocketAddr) -> Result<OwnedFd, Down> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(family, SocketType::STREAM, flags, None);
    let made = made.map_err(|_| Down::Unreachable)?;
    match connect(&made, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(_) => return Err(Down::Unreachable),
    }
    prepare(&made)?;
    Ok(made)
}

/// Sets how long a peer may be silent, and that small messages are not held back.
pub(super) fn prepare(socket: impl AsFd) -> Result<(), Down> {
    let all = || {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, USER_TIMEOUT_MS)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&socket, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)
    };
    all().map_err(why)
}

/// Whether the connection is made.
pub(super) fn check_connected(socket: impl AsFd) -> Result<(), Down> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => Ok(()),
        _ => Err(Down::Unreachable),
    }
}

/// Reads; the end of the stream is [`Down::Closed`].
pub(super) fn read(socket: impl AsFd, into: &mut [u8]) -> Result<Moved, Down> {
    match retry_on_intr(|| recv(&socket, &mut *into, RecvFlags::empty())) {
        Ok((0, _)) => Err(Down::Closed),
        Ok((len, _)) => Ok(Moved::Bytes(len)),
        Err(Errno::AGAIN) => Ok(Moved::NotNow),
        Err(errno) => Err(why(errno)),
    }
}

/// Writes, without a signal if the peer is gone.
pub(super) fn write(socket: impl AsFd, bytes: &[u8]) -> Result<Moved, Down> {
    match retry_on_intr(|| send(&socket, bytes, SendFlags::NOSIGNAL)) {
        Ok(len) => Ok(Moved::Bytes(len)),
        Err(Errno::AGAIN) => Ok(Moved::NotNow),
        Err(errno) => Err(why(errno)),
    }
}

/// Tells the peer that nothing more comes.
pub(super) fn end_writing(socket: impl AsFd) {
    // It fails where the peer is gone, which the next read tells of.
    let _ = shutdown(socket, Shutdown::Write);
}

fn why(errno: Errno) -> Down {
    match errno {
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN => Down::Silent,
        _ => Down::Closed,
    }
}
