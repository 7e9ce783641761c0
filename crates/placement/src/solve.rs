//! Algorithm 1 of the paper: place, skip, split or flush, by recursion over the places.
//!
//! A policy turns its equation into a [`Place`] for each tier and the store; what is common to all
//! policies is here. The recursion visits the places by what a byte costs there, which in a
//! hierarchy that is fastest first is the hierarchy's own order, and at each either takes as much
//! as fits (*place*, or *split* if something is left) or nothing (*skip*). *Flush* is one more
//! place: room that the data organizer makes in tier i by moving data to j. Each plan has at most
//! one.
//!
//! The result is the cheapest of all splits: costs are a fixed part for each place that is used
//! and a part for each byte, so for a given set of places it is best to fill them in order of the
//! cost of a byte, and the recursion tries every set. It cuts off what cannot be cheaper than the
//! best plan so far, judged by a bound that spreads each fixed cost evenly over the bytes that a
//! place can take.

use crate::cost::PLACES_MAX;
use crate::request::{Piece, Plan};
use crate::room::Destination;

/// Cost of bytes that are placed or moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    /// Cost of the first byte.
    pub fixed: f64,
    /// Cost of each byte.
    pub byte: f64,
}

impl Rate {
    /// The same, so many times as high.
    pub fn times(self, factor: f64) -> Self {
        Self { fixed: self.fixed * factor, byte: self.byte * factor }
    }
}

/// What one tier, or the store, offers to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Place {
    /// Bytes it takes without further ado.
    pub room: u64,
    /// Bytes that could be moved out of it, if the policy allows that.
    pub movable: u64,
    /// What placing costs.
    pub rate: Rate,
}

/// Tiers and store as a policy sees them, the store last.
pub(crate) type Places = [Place; PLACES_MAX];

/// Something that takes bytes: a place, or room made by a flush.
#[derive(Clone, Copy, Default)]
struct Item {
    rate: Rate,
    /// Bytes it takes at most.
    most: u64,
    /// At least what a byte costs, its part of the fixed cost included.
    least: f64,
    /// The place the bytes go to.
    place: usize,
    is_flush: bool,
}

/// Data of `from` moves to `to`.
#[derive(Clone, Copy, Default)]
struct Flush {
    from: usize,
    to: usize,
}

const ITEMS_MAX: usize = PLACES_MAX + 1;

struct Search<'a> {
    places: &'a [Place],
    bytes: u64,
    /// By the cost of a byte.
    items: [Item; ITEMS_MAX],
    /// Positions of the items, by [`Item::least`].
    by_least: [usize; ITEMS_MAX],
    len: usize,
    flush: Option<Flush>,
    /// Bytes taken from each place's own room.
    placed: [u64; PLACES_MAX],
    flushed: u64,
    best: Best,
}

#[derive(Clone, Copy)]
struct Best {
    cost: f64,
    placed: [u64; PLACES_MAX],
    flushed: u64,
    flush: Option<Flush>,
}

/// The cheapest plan for `bytes`. `moving(i, j)` is what it costs to move data from tier i to
/// place j, a lower one. The last place takes everything.
pub(crate) fn solve(bytes: u64, places: &[Place], moving: impl Fn(usize, usize) -> Rate) -> Plan {
    let best = Best { cost: f64::INFINITY, placed: [0; PLACES_MAX], flushed: 0, flush: None };
    let mut search = Search {
        places,
        bytes,
        items: [Item::default(); ITEMS_MAX],
        by_least: [0; ITEMS_MAX],
        len: 0,
        flush: None,
        placed: [0; PLACES_MAX],
        flushed: 0,
        best,
    };
    for (place, offer) in places.iter().enumerate() {
        search.insert(offer.rate, offer.room, place, false);
    }
    search.run();
    let store = places.len() - 1;
    for from in 0..store {
        if places[from].movable == 0 || places[from].room >= bytes {
            continue;
        }
        let placing = places[from].rate;
        for to in from + 1..=store {
            let rate = moving(from, to);
            // The first bytes of the tier have paid for its latency, if there is room for any.
            let first = if places[from].room > 0 { 0.0 } else { placing.fixed };
            let rate = Rate { fixed: rate.fixed + first, byte: rate.byte + placing.byte };
            search.flush = Some(Flush { from, to });
            let (items, len) = (search.items, search.len);
            search.insert(rate, places[to].room.min(places[from].movable), from, true);
            search.run();
            (search.items, search.len) = (items, len);
        }
    }
    search.best.plan(places.len())
}

impl Search<'_> {
    /// Adds an item behind those that cost no more for each byte, if it can take any.
    fn insert(&mut self, rate: Rate, room: u64, place: usize, is_flush: bool) {
        let most = room.min(self.bytes);
        if most == 0 {
            return;
        }
        let least = rate.byte + rate.fixed / most as f64;
        let mut at = self.len;
        while at > 0 && self.items[at - 1].rate.byte > rate.byte {
            self.items[at] = self.items[at - 1];
            at -= 1;
        }
        self.items[at] = Item { rate, most, least, place, is_flush };
        self.len += 1;
    }

    /// Tries all sets of the items; with a flush, those that need it.
    fn run(&mut self) {
        for item in 0..self.len {
            let mut at = item;
            while at > 0 && self.items[self.by_least[at - 1]].least > self.items[item].least {
                self.by_least[at] = self.by_least[at - 1];
                at -= 1;
            }
            self.by_least[at] = item;
        }
        self.descend(0, self.bytes, 0.0);
    }

    /// At least what it costs to place `left` bytes in items from `at` on; infinite if they do not
    /// take as much.
    fn bound(&self, at: usize, mut left: u64) -> f64 {
        let mut cost = 0.0;
        for &index in self.by_least[..self.len].iter().filter(|&&index| index >= at) {
            let item = &self.items[index];
            let take = left.min(item.most);
            cost += take as f64 * item.least;
            left -= take;
            if left == 0 {
                return cost;
            }
        }
        f64::INFINITY
    }

    /// Bytes that the item can take now.
    fn room(&self, item: &Item) -> u64 {
        let own = self.places[item.place].room - self.placed[item.place];
        match self.flush {
            // Only what does not fit is a reason to move something.
            Some(flush) if item.is_flush => {
                let below = self.places[flush.to].room - self.placed[flush.to];
                if own == 0 { below.min(self.places[flush.from].movable) } else { 0 }
            }
            Some(flush) if item.place == flush.to => own - self.flushed,
            _ => own,
        }
    }

    /// Distributes `left` bytes over the items from `at` on.
    fn descend(&mut self, at: usize, left: u64, cost: f64) {
        if left == 0 {
            if cost < self.best.cost {
                self.best =
                    Best { cost, placed: self.placed, flushed: self.flushed, flush: self.flush };
            }
            return;
        }
        if cost + self.bound(at, left) >= self.best.cost {
            return;
        }
        let item = self.items[at];
        let take = self.room(&item).min(left);
        if take > 0 {
            let taken = |search: &mut Self, bytes: u64| match item.is_flush {
                true => search.flushed = bytes,
                false => search.placed[item.place] = bytes,
            };
            taken(self, take);
            let rate = item.rate;
            self.descend(at + 1, left - take, cost + rate.fixed + take as f64 * rate.byte);
            taken(self, 0);
        }
        // Plans without the flush were tried before, and it needs the tier's own room to be used
        // up.
        if self.flush.is_none_or(|flush| item.place != flush.from) {
            self.descend(at + 1, left, cost);
        }
    }
}

impl Best {
    fn plan(&self, places: usize) -> Plan {
        let named = |place: usize| match place + 1 == places {
            true => Destination::Store,
            false => Destination::Tier(place),
        };
        let mut plan = Plan::new(self.cost);
        for place in 0..places {
            let mut piece = Piece::in_room(named(place), self.placed[place]);
            if let Some(flush) = self.flush
                && flush.from == place
            {
                piece.bytes += self.flushed;
                (piece.room, piece.room_to) = (self.flushed, named(flush.to));
            }
            plan.push(piece);
        }
        plan
    }
}
