//! The data organizer's decisions (Hermes section 3.1.2: "an event-based component"): an event and
//! a snapshot in, tasks out. The caller may run all tasks at the same time.
//!
//! ```
//! use forebay_placement::organizer::{Event, Settings, Task, organize};
//! use forebay_placement::{Destination, Hierarchy, TierSnapshot, Watermarks};
//!
//! let tier = |free| TierSnapshot { capacity: 100, free, ..TierSnapshot::default() };
//! let tiers = Hierarchy::new(&[tier(5), tier(90)]).unwrap();
//! let settings = Settings { marks: Watermarks::default(), unit: 1, moves_down: true };
//! // Below the low watermark of 10 %: room is made up to the high one, 25 %.
//! let tasks = organize(&Event::Space { tier: 0, wanted: 0 }, &tiers, &settings);
//! let down = Task::Demote { from: 0, to: Destination::Tier(1), bytes: 20 };
//! assert_eq!(tasks.iter().collect::<Vec<_>>(), [down]);
//! ```

use crate::{Destination, Hierarchy, Plan, TIERS_MAX, Watermarks, destination, room_needed};

/// The most tasks of one event: a flush and a demotion for each tier.
const TASKS_MAX: usize = 2 * TIERS_MAX;

/// What the organizer goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// When room is made on a tier, and how much.
    pub marks: Watermarks,
    /// Bytes of a bucket: room is made in whole ones.
    pub unit: u64,
    /// Whether room is made by moving to a lower tier, if one has room: what
    /// [`crate::Policy::moves_down`] says.
    pub moves_down: bool,
}

/// Something that makes the organizer act.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// Time has passed: dirty bytes are flushed, and watermarks looked at.
    Periodic,
    /// A tier's free space has changed, or so many bytes of writers wait for it.
    Space {
        /// The tier.
        tier: usize,
        /// Bytes that writers wait for.
        wanted: u64,
    },
    /// The placement engine wants Move, ReOrganize or Evict.
    Placed(&'a Plan),
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Copy dirty bytes to the store, up to so many.
    Flush {
        /// The tier they lie in.
        tier: usize,
        /// How many.
        bytes: u64,
    },
    /// Move bytes down. Which of them, [`crate::evict::choose`] says.
    Demote {
        /// The tier they lie in.
        from: usize,
        /// Where they go: a lower tier, or the store, that is flush and drop.
        to: Destination,
        /// How many.
        bytes: u64,
    },
}

/// What is to be done about one event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tasks {
    tasks: [Option<Task>; TASKS_MAX],
    len: usize,
}

impl Tasks {
    /// The tasks. None needs another to be done first.
    pub fn iter(&self) -> impl Iterator<Item = Task> + '_ {
        self.tasks.iter().flatten().copied()
    }

    fn push(&mut self, task: Task) {
        self.tasks[self.len] = Some(task);
        self.len += 1;
    }
}

/// What is to be done about an event.
///
/// Tasks of one answer never count on the same free space, nor on space that another is still to
/// make.
pub fn organize(event: &Event<'_>, hierarchy: &Hierarchy, settings: &Settings) -> Tasks {
    let mut tasks = Tasks { tasks: [None; TASKS_MAX], len: 0 };
    let mut space = *hierarchy;
    match *event {
        Event::Periodic => {
            flush(hierarchy, &mut tasks);
            for tier in 0..hierarchy.len() {
                make_room(&mut space, tier, 0, settings, &mut tasks);
            }
        }
        Event::Space { tier, wanted } => {
            make_room(&mut space, tier, wanted, settings, &mut tasks);
        }
        Event::Placed(plan) => {
            for piece in plan.pieces() {
                let Destination::Tier(from) = piece.to else { continue };
                let Some(tier) = space.tier(from) else { continue };
                let unit = settings.unit.max(1);
                let wanted = piece.room.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
                let bytes = wanted.min(tier.movable());
                demote(&mut space, from, Some(piece.room_to), bytes, &mut tasks);
            }
        }
    }
    tasks
}

/// Flushes all tiers at the same time.
fn flush(hierarchy: &Hierarchy, tasks: &mut Tasks) {
    for (index, tier) in hierarchy.tiers().iter().enumerate().filter(|(_, tier)| tier.dirty > 0) {
        tasks.push(Task::Flush { tier: index, bytes: tier.dirty });
    }
}

fn make_room(
    space: &mut Hierarchy,
    index: usize,
    wanted: u64,
    settings: &Settings,
    tasks: &mut Tasks,
) {
    let Some(tier) = space.tier(index) else { return };
    let needed = room_needed(tier, settings.marks, wanted, settings.unit);
    let to = if settings.moves_down { None } else { Some(Destination::Store) };
    demote(space, index, to, needed.min(tier.movable()), tasks);
}

/// Moves bytes out of a tier, to the place given if it has room, and takes that room.
fn demote(
    space: &mut Hierarchy,
    from: usize,
    to: Option<Destination>,
    bytes: u64,
    tasks: &mut Tasks,
) {
    if bytes == 0 {
        return;
    }
    let has_room = |to: &Destination| match *to {
        Destination::Tier(to) => to > from && space.tier(to).is_some_and(|to| to.free >= bytes),
        Destination::Store => true,
    };
    let to = to.filter(has_room).unwrap_or_else(|| destination(space, from, bytes));
    if let Destination::Tier(below) = to {
        // What is on its way to a tier does not leave it in the same turn.
        let below = &mut space.tiers_mut()[below];
        below.free -= bytes;
        below.pinned += bytes;
    }
    tasks.push(Task::Demote { from, to, bytes });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Piece, Request, TierSnapshot, policy};

    const MIB: u64 = 1 << 20;

    fn settings() -> Settings {
        Settings { marks: Watermarks::default(), unit: MIB, moves_down: true }
    }

    fn tier(capacity: u64, free: u64, dirty: u64) -> TierSnapshot {
        TierSnapshot {
            capacity: capacity * MIB,
            free: free * MIB,
            dirty: dirty * MIB,
            ..TierSnapshot::default()
        }
    }

    fn tasks(event: Event<'_>, tiers: &[TierSnapshot], settings: &Settings) -> Vec<Task> {
        organize(&event, &Hierarchy::new(tiers).unwrap(), settings).iter().collect()
    }

    #[test]
    fn all_tiers_flush_at_once() {
        let tiers = [tier(100, 50, 30), tier(100, 50, 0), tier(100, 40, 60)];
        let flush = |tier, mib: u64| Task::Flush { tier, bytes: mib * MIB };
        assert_eq!(tasks(Event::Periodic, &tiers, &settings()), [flush(0, 30), flush(2, 60)]);
    }

    #[test]
    fn full_tiers_do_not_count_on_the_same_room() {
        let tiers = [tier(100, 0, 0), tier(100, 0, 0), tier(100, 30, 0)];
        let demote = |from, to| Task::Demote { from, to, bytes: 25 * MIB };
        let expected = [demote(0, Destination::Tier(2)), demote(1, Destination::Store)];
        assert_eq!(tasks(Event::Periodic, &tiers, &settings())[..2], expected);
        let space = Event::Space { tier: 1, wanted: 0 };
        assert_eq!(tasks(space, &tiers, &settings()), [demote(1, Destination::Tier(2))]);
        let wanted = Event::Space { tier: 2, wanted: 40 * MIB };
        let expected = Task::Demote { from: 2, to: Destination::Store, bytes: 10 * MIB };
        assert_eq!(tasks(wanted, &tiers, &settings()), [expected]);
        assert_eq!(tasks(Event::Space { tier: 9, wanted: 1 }, &tiers, &settings()), []);
    }

    #[test]
    fn a_policy_may_leave_data_where_it_is_until_it_is_flushed() {
        let stays = Settings { moves_down: false, ..settings() };
        let tiers = [tier(100, 0, 0), tier(100, 90, 0)];
        let expected = Task::Demote { from: 0, to: Destination::Store, bytes: 25 * MIB };
        assert_eq!(tasks(Event::Periodic, &tiers, &stays), [expected]);
    }

    #[test]
    fn a_plans_move_is_carried_out_as_planned() {
        let hierarchy = Hierarchy::new(&[tier(10, 2, 0), tier(100, 50, 0)]).unwrap();
        let request = Request {
            bytes: 5 * MIB - 7,
            pinned: Some(Destination::Tier(0)),
            ..Request::default()
        };
        let plan = policy("user-defined").unwrap().plan(&hierarchy, &request);
        let piece: Piece = plan.pieces()[0];
        assert_eq!((piece.room, piece.room_to), (3 * MIB - 7, Destination::Tier(1)));
        let expected = Task::Demote { from: 0, to: Destination::Tier(1), bytes: 3 * MIB };
        let done: Vec<_> =
            organize(&Event::Placed(&plan), &hierarchy, &settings()).iter().collect();
        assert_eq!(done, [expected]);
        // Meanwhile the tier below has filled up.
        let full = Hierarchy::new(&[tier(10, 2, 0), tier(100, 1, 0)]).unwrap();
        let done: Vec<_> = organize(&Event::Placed(&plan), &full, &settings()).iter().collect();
        let expected = Task::Demote { from: 0, to: Destination::Store, bytes: 3 * MIB };
        assert_eq!(done, [expected]);
    }

    /// Every hierarchy of up to three tiers of 4 MiB, at every level of use and dirt.
    #[test]
    fn no_answer_moves_more_than_there_is_or_fits() {
        let states: Vec<_> = (0..=4)
            .flat_map(|free| (0..=4 - free).map(move |pinned| (free, pinned)))
            .flat_map(|(free, pinned)| [0, 4 - free].map(|dirty| (free, pinned, dirty)))
            .map(|(free, pinned, dirty)| TierSnapshot {
                pinned: pinned * MIB,
                ..tier(4, free, dirty)
            })
            .collect();
        for code in 0..states.len().pow(3) {
            let n = states.len();
            let tiers = [states[code % n], states[code / n % n], states[code / n / n]];
            for event in [Event::Periodic, Event::Space { tier: 0, wanted: 3 * MIB }] {
                let (mut taken, mut left) = ([0; 3], [0; 3]);
                for task in tasks(event, &tiers, &settings()) {
                    match task {
                        Task::Flush { tier, bytes } => assert!(bytes <= tiers[tier].dirty),
                        Task::Demote { from, to, bytes } => {
                            left[from] += bytes;
                            if let Destination::Tier(to) = to {
                                assert!(to > from);
                                taken[to] += bytes;
                            }
                        }
                    }
                }
                for index in 0..3 {
                    assert!(taken[index] <= tiers[index].free, "{event:?} {tiers:?}");
                    assert!(left[index] <= tiers[index].movable(), "{event:?} {tiers:?}");
                }
            }
        }
    }
}
