//! Which blocks go up, and which must not go down: Hermes section 3.2.2 C, "demotes or promotes
//! data based on the hotness score".
//!
//! **No ping-pong.** To displace another, a block must be clearly hotter (half as hot again, and
//! two uses), and each promotion in its past doubles what is asked of it. A block's count of uses
//! ends at 7, so after three promotions it stays until one is forgiven, which
//! [`AccessStats::cooled`] does once in [`FORGIVE_PASSES`](crate::hotness::FORGIVE_PASSES)
//! half-lives: in that time at most one move up for each block, and so at most one move down,
//! whatever the program does. Under steady use blocks come to rest: counts of blocks that are used
//! equally often differ by one at any moment.
//!
//! ```
//! use forebay_placement::promote::{Block, Level, promotes};
//!
//! let full = Level { is_roomy: false, wants_room: false, coldest: 1 };
//! let block = Block { uses: 4, moves: 0, pinned: false };
//! // Asked for: 1.5 times the coldest, and two uses more.
//! assert!(promotes(&block, &full));
//! assert!(!promotes(&Block { uses: 3, ..block }, &full));
//! // It went up before: twice as many are asked for.
//! assert!(!promotes(&Block { moves: 1, ..block }, &full));
//! ```

use crate::hotness::AccessStats;
use crate::leave::BATCH_BYTES;
use crate::{TierSnapshot, Watermarks};

/// How many times hotter than its rival a block has to be.
const MARGIN: f32 = 1.5;
/// How many uses it has to have besides.
const USES: f32 = 2.0;
/// A tier exchanges at most one part in so many of itself at a time.
const PARTS: u64 = 4;

/// A tier, as the decision to move one block sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Level {
    /// There is so much room that a newcomer displaces nothing.
    pub is_roomy: bool,
    /// So little is free that blocks have to leave.
    pub wants_room: bool,
    /// Uses of the coldest block that may leave.
    pub coldest: u32,
}

impl Level {
    /// The level of a tier whose coldest block that may leave has so many uses.
    pub fn of(tier: &TierSnapshot, marks: Watermarks, coldest: u32) -> Self {
        let share = |fraction: f64| (tier.capacity as f64 * fraction.clamp(0.0, 1.0)) as u64;
        let low = share(marks.low).min(share(marks.high));
        Self {
            is_roomy: tier.free.saturating_sub(tier.kept) > share(marks.high).max(low),
            wants_room: tier.free < low || tier.free == 0,
            coldest,
        }
    }

    /// The same level with the coldest of blocks that may leave it; where it is roomy none has to.
    pub fn with_coldest(self, uses: impl Iterator<Item = u32>) -> Self {
        match self.is_roomy {
            true => self,
            false => Self { coldest: uses.min().unwrap_or(u32::MAX), ..self },
        }
    }
}

/// A block that could move.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Block {
    /// How often it was used lately: [`AccessStats::count`].
    pub uses: u32,
    /// Its promotions that are not forgiven: [`AccessStats::moves`].
    pub moves: u32,
    /// It must stay where it is.
    pub pinned: bool,
}

impl Block {
    /// The block with this access_stats.
    pub fn of(access_stats: AccessStats, pinned: bool) -> Self {
        Self { uses: access_stats.count(), moves: access_stats.moves(), pinned }
    }
}

/// Whether a block goes up to the tier `above` it. Where there is room, one use is enough.
pub fn promotes(block: &Block, above: &Level) -> bool {
    !block.pinned && !above.wants_room && is_asked_for(block, asked(above))
}

/// Uses of a block from which on it goes up to the tier `above` it, if it was not promoted lately
/// and that has room.
pub fn asked(above: &Level) -> u32 {
    if above.is_roomy { 1 } else { (above.coldest as f32 * MARGIN + USES).ceil() as u32 }
}

/// Whether a block has the uses that are asked for, or more, as it was promoted lately: an access
/// that makes it so is the event that wakes the promoter. At least one use is asked for.
pub fn is_asked_for(block: &Block, asked: u32) -> bool {
    u64::from(block.uses) >= u64::from(asked.max(1)) << block.moves.min(7)
}

/// Whether a block goes up to the tier `above` it although blocks have to leave there: in exchange
/// for the coldest, which the demoter then takes down. Hermes' equation 3 calls that Evict. It is
/// for policies that compare hotness: while a program writes, a tier always wants room, and what is
/// read again and again would stay below.
///
/// ```
/// use forebay_placement::promote::{Block, Level, exchanges, promotes};
///
/// let busy = Level { is_roomy: false, wants_room: true, coldest: 0 };
/// let block = Block { uses: 2, moves: 0, pinned: false };
/// assert!(!promotes(&block, &busy));
/// assert!(exchanges(&block, &busy));
/// assert!(!exchanges(&Block { uses: 1, ..block }, &busy), "no hotter than what would leave");
/// ```
pub fn exchanges(block: &Block, above: &Level) -> bool {
    promotes(block, &Level { wants_room: false, is_roomy: false, ..*above })
}

/// What a look at the blocks of a tier has left there that is hot enough to go up, to any tier
/// above: the most of these.
///
/// ```
/// use forebay_placement::promote::Left;
///
/// assert!(Left::of(3, 3) == Left::Nothing && Left::of(0, 2) == Left::Stuck);
/// assert_eq!(Left::of(0, 2).max(Left::of(1, 2)), Left::More);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// All of it has moved.
    Nothing,
    /// What found no room, and nothing that it could be exchanged for. No use of it may tell of it
    /// again: see [`promoter_patience_ms`](crate::rounds::promoter_patience_ms).
    Stuck,
    /// More than one look moves.
    More,
}

impl Left {
    /// What is left of so many blocks that were `wanted` above, of which so many have `moved`.
    pub fn of(moved: usize, wanted: usize) -> Self {
        match moved {
            moved if moved >= wanted => Left::Nothing,
            0 => Left::Stuck,
            _ => Left::More,
        }
    }
}

/// What goes up to one tier, of the blocks of a lower one.
#[derive(Clone, Debug)]
pub struct Rise<T> {
    /// Into the room that there is to spare.
    pub comes: Vec<T>,
    /// In exchange, hottest first, if there are colder blocks to exchange them for.
    pub exchanged: Vec<(Block, T)>,
    /// To no tier as fast as this one.
    pub rest: Vec<(Block, T)>,
}

/// Chooses what goes up from `hot`, hottest first, to the tier `above` at the level `to`. Half of
/// the low watermark is left to writers: where the tier falls below that mark, its demoter makes
/// room. `compares`: the policy of a block's file compares hotness.
pub fn rise<T>(
    hot: Vec<(Block, T)>,
    above: &TierSnapshot,
    to: &Level,
    (marks, unit): (Watermarks, u64),
    compares: impl Fn(&T) -> bool,
) -> Rise<T> {
    let low = (above.capacity as f64 * marks.low.clamp(0.0, 1.0)) as u64;
    let room = above.free.saturating_sub(low / 2).min(BATCH_BYTES) / unit.max(1);
    let (mut up, rest): (Vec<_>, Vec<_>) = hot
        .into_iter()
        .partition(|(block, id)| promotes(block, to) || exchanges(block, to) && compares(id));
    let mut exchanged = up.split_off(up.len().min(room as usize));
    exchanged.retain(|(_, id)| compares(id));
    Rise { comes: up.into_iter().map(|(_, id)| id).collect(), exchanged, rest }
}

/// Blocks that a tier exchanges at once besides `came` that have come to it.
pub fn exchanges_at_once(above: &TierSnapshot, unit: u64, came: u64) -> u64 {
    ((above.capacity / PARTS).min(BATCH_BYTES) / unit.max(1)).saturating_sub(came)
}

/// Pairs hot blocks, hottest first, with the cold ones that they are exchanged for: `rank` says by
/// what blocks leave the tier `above` first, those of lower rank before others. What would be taken
/// down again at once does not come up.
///
/// ```
/// use forebay_placement::promote::{Block, Level, pairs};
///
/// let busy = Level { is_roomy: false, wants_room: true, coldest: 0 };
/// let hot = [4, 3].map(|uses| (Block { uses, ..Block::default() }, 1, 'h'));
/// // Ranks, uses and names.
/// assert_eq!(pairs(hot, vec![(1, 2, 'b'), (0, 0, 'a')], &busy), [('h', 'a')]);
/// assert_eq!(pairs(hot, vec![(2, 0, 'c')], &busy), [], "what is worth less stays below");
/// ```
pub fn pairs<T: Ord, R: Ord>(
    hot: impl IntoIterator<Item = (Block, R, T)>,
    mut cold: Vec<(R, u32, T)>,
    above: &Level,
) -> Vec<(T, T)> {
    cold.sort_unstable();
    let both = hot.into_iter().zip(cold).map_while(|((block, rank, come), (rival, uses, gone))| {
        let goes = exchanges(&block, &Level { coldest: uses, ..*above }) && rank >= rival;
        goes.then_some((come, gone))
    });
    both.collect()
}

/// Whether a block may go down to make room on the tier `here`, with this tier above it. Never true
/// of a block that [`promotes`].
pub fn demotes(block: &Block, here: &Level, above: Option<&Level>) -> bool {
    here.wants_room && !block.pinned && !above.is_some_and(|above| promotes(block, above))
}

/// The access statistics of a block that was just promoted.
pub fn promoted(access_stats: AccessStats, now_ms: u32) -> AccessStats {
    access_stats.with_moves(access_stats.moves() + 1).in_main(true).stamped(now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotness::FORGIVE_PASSES;

    const USES: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    fn levels() -> impl Iterator<Item = Level> {
        let kinds = [(false, false), (false, true), (true, false)];
        kinds.into_iter().flat_map(|(is_roomy, wants_room)| {
            USES.map(|coldest| Level { is_roomy, wants_room, coldest })
        })
    }

    fn blocks() -> impl Iterator<Item = Block> {
        USES.into_iter().flat_map(|uses| {
            (0..9).flat_map(move |moves| [false, true].map(|pinned| Block { uses, moves, pinned }))
        })
    }

    #[test]
    fn no_block_goes_up_and_down() {
        let (mut up, mut down) = (0, 0);
        for block in blocks() {
            for (here, above) in levels().flat_map(|here| levels().map(move |above| (here, above)))
            {
                let promotes = promotes(&block, &above);
                let demotes = demotes(&block, &here, Some(&above));
                assert!(!(promotes && demotes), "{block:?} {here:?} {above:?}");
                assert!(!block.pinned || !promotes && !demotes);
                up += u32::from(promotes);
                down += u32::from(demotes);
            }
        }
        assert!(up > 100 && down > 100, "{up} {down}");
    }

    #[test]
    fn what_was_displaced_does_not_come_straight_back() {
        for (block, above) in blocks().flat_map(|block| levels().map(move |above| (block, above))) {
            if above.is_roomy || !promotes(&block, &above) {
                continue;
            }
            let displaced = Block { uses: above.coldest, moves: 0, pinned: false };
            // Now it is one of the others, or the newcomer itself, that is the coldest there.
            for coldest in USES.into_iter().filter(|&uses| uses >= above.coldest) {
                assert!(!promotes(&displaced, &Level { coldest, ..above }), "{block:?} {above:?}");
            }
        }
    }

    #[test]
    fn an_exchange_is_for_what_is_clearly_hotter() {
        let mut exchanged = 0;
        for (block, above) in blocks().flat_map(|block| levels().map(move |above| (block, above))) {
            if !exchanges(&block, &above) {
                continue;
            }
            exchanged += 1;
            assert!(!block.pinned && block.uses >= above.coldest + 2, "{block:?} {above:?}");
            // What leaves in exchange does not come back in the same way.
            let displaced = Block { uses: above.coldest, moves: 0, pinned: false };
            assert!(!exchanges(&displaced, &above), "{block:?} {above:?}");
        }
        assert!(exchanged > 50, "{exchanged}");
    }

    #[test]
    fn what_finds_no_room_is_exchanged_where_hotness_is_compared() {
        let above = TierSnapshot { capacity: 100, free: 7, ..TierSnapshot::default() };
        let to = Level::of(&above, Watermarks::default(), 0);
        let hot = |uses| (0..4).map(|id| (Block { uses, ..Block::default() }, id)).collect();
        let goes = |uses, compares: fn(&i32) -> bool| {
            let Rise { comes, exchanged, rest } =
                rise(hot(uses), &above, &to, (Watermarks::default(), 1), compares);
            (comes, exchanged.into_iter().map(|(_, id)| id).collect::<Vec<_>>(), rest.len())
        };
        assert_eq!(goes(5, |_| true), (vec![0, 1], vec![2, 3], 0));
        assert_eq!(goes(5, |id| id % 2 == 1), (vec![1, 3], vec![], 2));
        assert_eq!(goes(1, |_| true), (vec![], vec![], 4));
        assert_eq!([0, 20, 30].map(|came| exchanges_at_once(&above, 1, came)), [25, 5, 0]);
    }

    #[test]
    fn three_promotions_are_the_most_without_forgiveness() {
        let mut access_stats = AccessStats::arriving(0, false).with_count(7);
        let roomy = Level { is_roomy: true, ..Level::default() };
        let mut promotions = 0;
        while promotes(&Block::of(access_stats, false), &roomy) {
            access_stats = promoted(access_stats, 0);
            promotions += 1;
        }
        assert_eq!(promotions, 3);
        let forgiven = access_stats.cooled(FORGIVE_PASSES).with_count(7);
        assert!(promotes(&Block::of(forgiven, false), &roomy));
    }

    #[test]
    fn levels_follow_the_watermarks() {
        let at = |free| {
            let tier = TierSnapshot { capacity: 100, free, ..TierSnapshot::default() };
            let level = Level::of(&tier, Watermarks::default(), 0);
            (level.is_roomy, level.wants_room)
        };
        assert_eq!(at(9), (false, true));
        assert_eq!(at(10), (false, false));
        assert_eq!(at(25), (false, false));
        assert_eq!(at(26), (true, false));
        let none = Level::of(&TierSnapshot::default(), Watermarks::default(), 0);
        assert!(none.wants_room && !none.is_roomy, "a tier that failed takes nothing");
    }
}
