//! TLS records of one connection, by rustls' interface without buffers of its own.

use super::keys::GroupKey;
use crate::Down;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

/// What a TLS record adds to what it carries, and more: header, tag and the type of its content.
const RECORD_EXTRA: usize = 64;

/// What a record carries at most.
const RECORD_MAX: usize = 16 << 10;

/// Room for what TLS itself wants to say next to what is encrypted.
const TLS_EXTRA: usize = 4096;

/// Bytes on their way to a socket.
pub(super) struct Out {
    bytes: Box<[u8]>,
    /// Where those that are there end.
    end: usize,
}

impl Out {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), end: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.end
    }

    /// Takes them out.
    pub(super) fn take(&mut self) -> &mut [u8] {
        let end = std::mem::take(&mut self.end);
        &mut self.bytes[..end]
    }

    /// Whether so many more are sure to find room, once encrypted.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let records = bytes / RECORD_MAX + 2;
        self.bytes.len() - self.end >= bytes + records * RECORD_EXTRA + TLS_EXTRA
    }
}

/// TLS of one connection.
pub(super) struct Session {
    side: Side,
    /// It found something wrong, and must not look at it again.
    has_failed: bool,
}

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// Works through `$buffer` until there is nothing more in it, from which `$used` are taken. The
/// two sides have types of their own, and no trait in common.
macro_rules! work_through {
    ($tls:expr, $buffer:expr, $used:expr, $out:expr, $plain:expr, $may_write:expr) => {{
        let mut has_failed = false;
        loop {
            // Alerts for the peer come before another look at what is wrong.
            if has_failed && !$tls.wants_write() {
                break Err(Down::Tls);
            }
            let status = $tls.process_tls_records(&mut $buffer[*$used..]);
            let UnbufferedStatus { mut discard, state, .. } = status;
            let end = match state {
                Err(_) => {
                    has_failed = true;
                    None
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    match data.encode(&mut $out.bytes[$out.end..]) {
                        Ok(len) => {
                            $out.end += len;
                            None
                        }
                        Err(_) => Some(Err(Down::Tls)),
                    }
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    let mut result = None;
                    while let Some(record) = traffic.next_record() {
                        let Ok(record) = record else {
                            result = Some(Err(Down::Tls));
                            break;
                        };
                        discard += record.discard;
                        if let Err(why) = $plain(record.payload) {
                            result = Some(Err(why));
                            break;
                        }
                    }
                    result
                }
                Ok(ConnectionState::WriteTraffic(traffic)) => Some($may_write(traffic, &mut *$out)),
                Ok(ConnectionState::BlockedHandshake) => Some(Ok(())),
                // There is no early data, and a peer that closes has nothing more to say.
                Ok(_) => Some(Err(Down::Closed)),
            };
            *$used += discard;
            if let Some(end) = end {
                break end;
            }
        }
    }};
}

/// Encrypts, where TLS has got as far.
macro_rules! encrypt {
    ($bytes:expr) => {
        |mut traffic: rustls::unbuffered::WriteTraffic<'_, _>, out: &mut Out| match traffic
            .encrypt($bytes, &mut out.bytes[out.end..])
        {
            Ok(len) => {
                out.end += len;
                Ok(())
            }
            Err(_) => Err(Down::Tls),
        }
    };
}

impl Session {
    /// The side that connects.
    pub(super) fn client(key: &GroupKey) -> Result<Self, Down> {
        let (config, name) = key.client();
        let made = UnbufferedClientConnection::new(config, name).map_err(|_| Down::Tls)?;
        Ok(Self { side: Side::Client(Box::new(made)), has_failed: false })
    }

    /// The side that listens.
    pub(super) fn server(key: &GroupKey) -> Result<Self, Down> {
        let made = UnbufferedServerConnection::new(key.server()).map_err(|_| Down::Tls)?;
        Ok(Self { side: Side::Server(Box::new(made)), has_failed: false })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(tls) => tls.is_handshaking(),
            Side::Server(tls) => tls.is_handshaking(),
        }
    }

    /// Takes all whole records from the front of `buffer`, `used` bytes, and gives what they
    /// carry to `plain`. What TLS wants to say goes to `out`, also when it fails.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        used: &mut usize,
        out: &mut Out,
        mut plain: impl FnMut(&[u8]) -> Result<(), Down>,
    ) -> Result<(), Down> {
        if self.has_failed {
            return Err(Down::Tls);
        }
        let result = match &mut self.side {
            Side::Client(tls) => work_through!(tls, buffer, used, out, plain, |_, _| Ok(())),
            Side::Server(tls) => work_through!(tls, buffer, used, out, plain, |_, _| Ok(())),
        };
        self.note(result)
    }

    /// Encrypts to `out`, which has room. `rest` is what was read and not used: TLS may have parts
    /// of a message of its own in it.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        rest: &mut Vec<u8>,
        out: &mut Out,
    ) -> Result<(), Down> {
        if self.has_failed {
            return Err(Down::Tls);
        }
        let mut used = 0;
        // A record is whole in what a read has left only where that failed: the link ends.
        let plain = |_: &[u8]| Ok(());
        let result = match &mut self.side {
            Side::Client(tls) => work_through!(tls, rest, &mut used, out, plain, encrypt!(bytes)),
            Side::Server(tls) => work_through!(tls, rest, &mut used, out, plain, encrypt!(bytes)),
        };
        rest.drain(..used);
        self.note(result)
    }

    fn note(&mut self, result: Result<(), Down>) -> Result<(), Down> {
        self.has_failed |= result == Err(Down::Tls);
        result
    }
}
