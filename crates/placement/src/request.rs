//! What is to be placed, and where.

use crate::cost::PLACES_MAX;
use crate::policies::PolicyId;
use crate::room::Destination;

/// What a policy may know of a write.
///
/// Its *unit* is the data dispersion unit of Hermes section 3.2.2: the file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Request {
    /// Bytes to place.
    pub bytes: u64,
    /// Bytes of the file that are placed already.
    pub file_bytes: u64,
    /// The file's decayed accesses per byte, see [`crate::hotness`].
    pub file_hotness: f32,
    /// Which tiers hold some of the file: bit n for tier n. The number of bits is the degree of
    /// dispersion.
    pub dispersion: u8,
    /// Priority of the process's group: 0 is usual, 255 before all others.
    pub priority: u8,
    /// Where the schema wants it.
    pub pinned: Option<Destination>,
    /// The policy that decides what the schema leaves open.
    pub fallback: PolicyId,
    /// A number that differs from request to request, for policies that draw lots.
    pub seed: u64,
}

/// A part of a request, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it goes.
    pub to: Destination,
    /// How long it is.
    pub bytes: u64,
    /// Bytes that the data organizer has to move out of this tier first: Move, ReOrganize or Evict
    /// of the appendix. As much as there is, if it is less.
    pub room: u64,
    /// Where it moves them: the appendix's `dest`. Without meaning when `room` is 0.
    pub room_to: Destination,
}

impl Piece {
    /// A piece for which nothing has to be moved.
    pub fn in_room(to: Destination, bytes: u64) -> Self {
        Self { to, bytes, room: 0, room_to: Destination::Store }
    }
}

/// The placement of one request: its pieces in the order of their bytes, at most one for each
/// place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pieces: [Piece; PLACES_MAX],
    len: usize,
    /// What the policy minimized: nanoseconds, weighted as the policy says. Comparable only among
    /// plans of one policy and one cost model.
    pub cost_ns: f64,
}

impl Plan {
    /// A plan without pieces.
    pub(crate) fn new(cost_ns: f64) -> Self {
        Self { pieces: [Piece::in_room(Destination::Store, 0); PLACES_MAX], len: 0, cost_ns }
    }

    /// A plan that puts everything in one place that has the room.
    pub(crate) fn whole(to: Destination, bytes: u64, cost_ns: f64) -> Self {
        let mut plan = Self::new(cost_ns);
        plan.push(Piece::in_room(to, bytes));
        plan
    }

    /// Adds a piece, unless it is empty. There is at most one for each place.
    pub(crate) fn push(&mut self, piece: Piece) {
        if piece.bytes > 0 {
            self.pieces[self.len] = piece;
            self.len += 1;
        }
    }

    /// The pieces: they follow each other, and cover the request exactly.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.len]
    }

    /// Where the request's first byte goes.
    pub fn first(&self) -> Destination {
        self.first_piece().to
    }

    /// The first piece; of a plan for nothing an empty one.
    pub fn first_piece(&self) -> Piece {
        self.pieces().first().copied().unwrap_or(Piece::in_room(Destination::Store, 0))
    }
}
