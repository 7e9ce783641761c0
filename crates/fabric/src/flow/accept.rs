//! What a frame that came leads to. A peer may send anything: what is wrong costs its link.

use super::{Core, FRAME_BULK, Flow, LAST, Roll, Transfer, Turn};
use crate::header::HEADER_BYTES;
use crate::regions::Use;
use crate::{Down, Event, Header, Kind, Outcome, Refusal, Region, TRANSFERS_MAX};
use std::time::Duration;

/// Where the stream of bytes from the peer is.
pub(super) struct Reading {
    head: [u8; HEADER_BYTES],
    /// Bytes of the header that are there.
    have: usize,
    body: Vec<u8>,
    /// Bytes of the body that are to come.
    body_left: usize,
    bulk: Option<Bulk>,
}

impl Default for Reading {
    fn default() -> Self {
        Self { head: [0; HEADER_BYTES], have: 0, body: Vec::new(), body_left: 0, bulk: None }
    }
}

/// Bytes behind a header.
#[derive(Clone, Copy)]
struct Bulk {
    request: u64,
    left: u64,
    goes: Goes,
}

/// Where bulk goes.
#[derive(Clone, Copy)]
enum Goes {
    /// To what this side wants, as long as it does.
    Pulled,
    /// To a region of this side.
    Pushed { region: Region, at: u64, last: bool },
    /// Nowhere: the transfer has ended.
    Nowhere,
    /// Nowhere: the region is gone, and the peer has to be told.
    Refused,
}

impl Flow {
    /// Takes the next bytes from the peer.
    ///
    /// # Errors
    /// The link has to go down; what is to be sent before that is queued.
    pub(crate) fn accept(
        &mut self,
        core: &mut Core,
        mut bytes: &[u8],
        now: Duration,
    ) -> Result<(), Down> {
        self.traffic.bytes_in += bytes.len() as u64;
        while !bytes.is_empty() {
            let taken = if let Some(bulk) = self.reading.bulk {
                let taken = bulk.left.min(bytes.len() as u64) as usize;
                self.accept_bulk(core, bulk, &bytes[..taken])?;
                taken
            } else if self.reading.have < HEADER_BYTES {
                let at = self.reading.have;
                let taken = (HEADER_BYTES - at).min(bytes.len());
                self.reading.head[at..at + taken].copy_from_slice(&bytes[..taken]);
                self.reading.have += taken;
                if self.reading.have == HEADER_BYTES {
                    self.reading.body_left =
                        Header::body_bytes(&self.reading.head).map_err(Down::Refused)?;
                }
                taken
            } else {
                let taken = self.reading.body_left.min(bytes.len());
                self.reading.body.extend_from_slice(&bytes[..taken]);
                self.reading.body_left -= taken;
                taken
            };
            bytes = &bytes[taken..];
            let reading = &mut self.reading;
            let whole = reading.have == HEADER_BYTES && reading.body_left == 0;
            if reading.bulk.is_none() && whole {
                let body = std::mem::take(&mut reading.body);
                reading.have = 0;
                let header = Header::read(&reading.head, &body).map_err(Down::Refused)?;
                self.accept_frame(core, header, body, now)?;
            }
        }
        Ok(())
    }

    fn accept_frame(
        &mut self,
        core: &mut Core,
        header: Header,
        body: Vec<u8>,
        now: Duration,
    ) -> Result<(), Down> {
        if header.sender != self.peer {
            return Err(Down::Refused(Refusal::Sender));
        }
        if !header.kind.is_own() {
            core.events.push_back(Event::Message { link: self.link, header, body });
            self.note_use(core.me, now);
            return Ok(());
        }
        if header.kind == Kind::ROLL {
            // One that is older than another tells nothing.
            let _ = core.peers.hear(self.peer, Roll::read(&body)?);
            return Ok(());
        }
        if !body.is_empty() {
            return Err(Down::Refused(Refusal::Length));
        }
        let request = header.request;
        match header.kind {
            Kind::PULL => self.accept_pull(core, &header)?,
            Kind::PULL_DATA => self.accept_pull_data(core, &header)?,
            Kind::PUSH_DATA => self.accept_push_data(core, &header)?,
            Kind::PUSH_DONE => {
                self.check_was_sent(request)?;
                if let Some(ours) = self.ours.get(&request)
                    && !matches!(ours.what, Transfer::Push(from, _) if ours.moved == from.bytes)
                {
                    return Err(Down::Refused(Refusal::Order));
                }
                self.end(core, request, Outcome::Ok);
            }
            Kind::REFUSAL if request == 0 => return Err(Down::RefusedByPeer),
            Kind::REFUSAL => {
                self.check_was_sent(request)?;
                self.abandoned.remove(&request);
                self.end(core, request, Outcome::Refused);
                self.give_room(core);
            }
            Kind::PING => self.answer(core.me, Kind::PONG, request)?,
            Kind::PONG => {
                if let Some((at, answered @ false)) = &mut self.pinged {
                    *answered = true;
                    self.traffic.round_trips.note(now.saturating_sub(*at));
                }
            }
            _ => return Err(Down::Refused(Refusal::Order)),
        }
        Ok(())
    }

    /// Whether this side has ever sent such a request: it may have ended since.
    fn check_was_sent(&self, request: u64) -> Result<(), Down> {
        let sent = request > 0 && request < self.next_request;
        if sent { Ok(()) } else { Err(Down::Refused(Refusal::Order)) }
    }

    /// Whether the peer may use these bytes; false if the region is gone, which is not its fault.
    fn check_use(&mut self, core: &Core, header: &Header, what: Use) -> Result<bool, Down> {
        let (region, bytes) = (Region(header.file), u64::from(header.count));
        match core.regions.check(region, header.first_block, bytes, what) {
            Ok(()) => Ok(true),
            Err(Refusal::Region) => Ok(false),
            Err(why) => {
                // Its token ends with that, and the link then.
                self.answer(core.me, Kind::REFUSAL, header.request)?;
                Err(Down::Refused(why))
            }
        }
    }

    fn accept_pull(&mut self, core: &mut Core, header: &Header) -> Result<(), Down> {
        if self.theirs >= TRANSFERS_MAX {
            return Err(Down::Refused(Refusal::Flood));
        }
        if header.request == 0 {
            return Err(Down::Refused(Refusal::Order));
        }
        if !self.check_use(core, header, Use::Pull)? {
            core.refuse(Refusal::Region);
            return self.answer(core.me, Kind::REFUSAL, header.request);
        }
        self.theirs += 1;
        self.turns.push_back(Turn::Serve {
            request: header.request,
            region: Region(header.file),
            offset: header.first_block,
            sent: 0,
            bytes: header.count.into(),
        });
        Ok(())
    }

    fn accept_pull_data(&mut self, core: &mut Core, header: &Header) -> Result<(), Down> {
        let count = u64::from(header.count);
        self.check_was_sent(header.request)?;
        if count > FRAME_BULK {
            return Err(Down::Refused(Refusal::Length));
        }
        let goes = match self.ours.get(&header.request) {
            None => Goes::Nowhere,
            Some(ours) => match ours.what {
                Transfer::Pull(into)
                    if header.first_block == ours.moved
                        && count <= into.bytes - ours.moved
                        && (count > 0 || into.bytes == 0) =>
                {
                    Goes::Pulled
                }
                _ => return Err(Down::Refused(Refusal::Order)),
            },
        };
        self.begin_bulk(core, Bulk { request: header.request, left: count, goes })
    }

    fn accept_push_data(&mut self, core: &mut Core, header: &Header) -> Result<(), Down> {
        let (count, last) = (u64::from(header.count), header.flags == LAST);
        if count > FRAME_BULK {
            return Err(Down::Refused(Refusal::Length));
        }
        if header.request == 0 || (count == 0 && !last) {
            return Err(Down::Refused(Refusal::Order));
        }
        let goes = if self.check_use(core, header, Use::Push)? {
            Goes::Pushed { region: Region(header.file), at: header.first_block, last }
        } else {
            Goes::Refused
        };
        self.begin_bulk(core, Bulk { request: header.request, left: count, goes })
    }

    fn begin_bulk(&mut self, core: &mut Core, bulk: Bulk) -> Result<(), Down> {
        self.reading.bulk = Some(bulk);
        if bulk.left == 0 { self.end_bulk(core, bulk) } else { Ok(()) }
    }

    /// Takes the next bytes of a frame, straight to where they go.
    fn accept_bulk(&mut self, core: &mut Core, mut bulk: Bulk, bytes: &[u8]) -> Result<(), Down> {
        let moved = bytes.len() as u64;
        bulk.left -= moved;
        match bulk.goes {
            Goes::Pulled => {
                if let Some(ours) = self.ours.get_mut(&bulk.request) {
                    let into = ours.local();
                    let at = into.offset + ours.moved;
                    // A region that was withdrawn has ended the transfer.
                    core.regions.write(into.region, at, bytes, Use::Own).map_err(Down::Refused)?;
                    ours.moved += moved;
                } else {
                    self.abandon(bulk.request, moved);
                }
            }
            Goes::Pushed { region, at, last } => {
                bulk.goes = match core.regions.write(region, at, bytes, Use::Push) {
                    Ok(()) => Goes::Pushed { region, at: at + moved, last },
                    Err(_) => Goes::Refused,
                };
            }
            Goes::Nowhere => self.abandon(bulk.request, moved),
            Goes::Refused => {}
        }
        self.reading.bulk = Some(bulk);
        if bulk.left == 0 { self.end_bulk(core, bulk) } else { Ok(()) }
    }

    /// Counts bytes of a pull that this side has ended.
    fn abandon(&mut self, request: u64, moved: u64) {
        if let Some(left) = self.abandoned.get_mut(&request) {
            *left = left.saturating_sub(moved);
        }
    }

    fn end_bulk(&mut self, core: &mut Core, bulk: Bulk) -> Result<(), Down> {
        self.reading.bulk = None;
        if self.abandoned.get(&bulk.request) == Some(&0) {
            self.abandoned.remove(&bulk.request);
            self.give_room(core);
        }
        match bulk.goes {
            Goes::Pulled => {
                let whole = |ours: &super::Ours| ours.moved == ours.local().bytes;
                if self.ours.get(&bulk.request).is_some_and(whole) {
                    self.end(core, bulk.request, Outcome::Ok);
                }
            }
            Goes::Pushed { last: true, .. } => {
                self.answer(core.me, Kind::PUSH_DONE, bulk.request)?;
            }
            Goes::Refused => {
                core.refuse(Refusal::Region);
                self.answer(core.me, Kind::REFUSAL, bulk.request)?;
            }
            Goes::Pushed { .. } | Goes::Nowhere => {}
        }
        Ok(())
    }
}
