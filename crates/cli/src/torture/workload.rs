//! The lists `allocations` and `backend-calls`: one short program that uses everything that it can
//! run short of, and everything on which a device can fail, again and again while one thing fails
//! once, or for ever.

use super::model::World;
use super::pairs::Before;
use super::scenario::Scenario;
use super::script::{Files, How, Script, Step};
use forebay_placement::Random;

/// What allocations are called, as the sources have it.
pub const REFUSABLE: &[&str] = include!(concat!(env!("OUT_DIR"), "/refusals.rs"));

/// Each of the first so many allocations of a name is refused once.
const ONCE: u64 = 8;
/// From one of these on all are refused.
const FOR_EVER: [u64; 4] = [1, 2, 3, 5];
/// Ways in which the allocations of a name are refused.
const WAYS: u64 = ONCE + FOR_EVER.len() as u64;

/// Errors of a program that gets no share of what all have: EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC.
const SHORT: [i32; 5] = [11, 12, 23, 24, 28];

/// Number of cases of `allocations`: each name, and all at once.
pub const ALLOCATIONS: u64 = (REFUSABLE.len() as u64 + 1) * WAYS;

/// Transfers of each device and operation that fail: more than the program causes.
const TRANSFERS: u64 = 12;
/// What transfers are, in the words of scripts of faults.
const CALLS: [&str; 6] =
    ["store read", "store write", "store sync", "nvme read", "nvme write", "nvme sync"];
const ERRORS: [(&str, i32); 2] = [("EIO", 5), ("ENOSPC", 28)];

/// Number of cases of `backend-calls`: each transfer fails once, or it and all that follow, with
/// each error.
pub const BACKEND_CALLS: u64 = CALLS.len() as u64 * TRANSFERS * 2 * ERRORS.len() as u64;

/// A case of either list.
#[derive(Clone, Debug)]
pub struct Case {
    pub number: u64,
    /// What `FOREBAY_REFUSE` is for the program.
    pub refuse: Option<String>,
    /// The script of faults.
    pub fault: Option<String>,
    /// Errors that the program may be told.
    pub excused: Vec<i32>,
    pub before: Before,
    pub is_nonvolatile: bool,
}

impl Case {
    /// Case `number` of a list under a seed.
    pub fn new(list: Scenario, number: u64, seed: u64) -> Case {
        let mut random = Random::new(seed ^ Random::new(number).next_u64());
        let before = [Before::Dirty, Before::Synced, Before::Stored][random.below(3) as usize];
        let is_nonvolatile = random.one_in(2);
        let mut rest = number - 1;
        let mut take = |limit| {
            let taken = rest % limit;
            rest /= limit;
            taken
        };
        let case = |refuse, fault, excused| Case {
            number,
            refuse,
            fault,
            excused,
            before,
            is_nonvolatile,
        };
        if list == Scenario::BackendCalls {
            let what = CALLS[take(CALLS.len() as u64) as usize];
            let (transfer, is_for_ever) = (1 + take(TRANSFERS), take(2) == 1);
            let (error, errno) = ERRORS[take(ERRORS.len() as u64) as usize];
            let when = if is_for_ever { "from" } else { "at" };
            let fault = format!("{what} fail {error} {when} {transfer}\n");
            // A checkpoint that its device did not take is EIO, whatever that said.
            let mut case = case(None, Some(fault), vec![errno, ERRORS[0].1]);
            // The journal is asked for files that are nonvolatile alone.
            case.is_nonvolatile |= what.starts_with("nvme");
            return case;
        }
        let (way, name) = (take(WAYS), take(REFUSABLE.len() as u64 + 1) as usize);
        let when = match way.checked_sub(ONCE) {
            None => format!("{}", way + 1),
            Some(way) => format!("{}..", FOR_EVER[way as usize]),
        };
        let names = match REFUSABLE.get(name) {
            Some(name) => vec![*name],
            None => REFUSABLE.to_vec(),
        };
        // A program that never gets a client slot does not start: it is made to wait for one, no
        // more.
        let part = |name: &&str| match *name {
            "client" => format!("client:{}", when.trim_end_matches('.')),
            name => format!("{name}:{when}"),
        };
        let parts: Vec<_> = names.iter().map(part).collect();
        case(Some(parts.join(",")), None, SHORT.to_vec())
    }

    /// Whether the image after an exec may have to end: it has inherited a file that others may
    /// buffer, and gets no description.
    pub fn may_not_go_on(&self) -> bool {
        let mut refused = self.refuse.iter().flat_map(|parts| parts.split(','));
        refused.any(|part| part.starts_with("description:") && part.ends_with(".."))
    }

    /// What is there before, by `files`.
    pub fn world(&self, files: &Files) -> World {
        World::default().with('a', files.bytes(7, 0, BYTES))
    }

    /// For people.
    pub fn text(&self) -> String {
        let what = match (&self.refuse, &self.fault) {
            (Some(refuse), _) => format!("refused: {refuse}"),
            (None, fault) => fault.as_deref().unwrap_or_default().trim().to_owned(),
        };
        let file = if self.is_nonvolatile { "nonvolatile" } else { "durable on the store" };
        format!("case {}: {what}; file {:?}, {file}", self.number, self.before)
    }
}

const BYTES: u64 = 270_000;

/// Bytes of a file that is written beside the program, so that RAM is full and the file tier at
/// work.
pub const BALLAST: u64 = 12 << 20;
/// What it has.
pub const BALLAST_TAG: u64 = 9;

/// What the program does.
pub fn script() -> Script {
    let open = |slot, name, how| Step::Open { slot, name, how };
    let write = |slot, at, length, tag| Step::Write { slot, at, length, tag };
    let steps = vec![
        open(0, 'a', How::Plain),
        write(0, 259_000, 6_000, 1),
        Step::Read { slot: 0 },
        open(1, 'c', How::Create),
        write(1, 0, 300_000, 2),
        Step::Sync { slot: 1 },
        Step::Dup { slot: 1, to: 2 },
        Step::WriteHere { slot: 2, at: 290_000, length: 20_000, tag: 3 },
        Step::Truncate { slot: 0, size: 200_001 },
        write(0, 600_000, 4_000, 4),
        Step::Sync { slot: 0 },
        Step::Punch { slot: 1, at: 50_000, length: 100_000 },
        Step::Fork { slot: 1, at: 10_000, length: 5_000, tag: 5 },
        Step::Rename { from: 'c', to: 'b' },
        Step::Close { slot: 2 },
        open(2, 'b', How::Append),
        Step::Append { slot: 2, length: 5_000, tag: 6 },
        Step::Read { slot: 0 },
        Step::Exec,
        Step::Read { slot: 1 },
        Step::Size { slot: 0 },
        write(0, 100, 9_000, 1),
        Step::Sync { slot: 0 },
        Step::Sync { slot: 2 },
    ];
    Script { setup: Vec::new(), steps }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_allocation_is_refused_and_every_transfer_fails() {
        let all = |list, count| -> BTreeSet<_> {
            let cases = (1..=count).map(|number| Case::new(list, number, 5));
            cases.map(|case| (case.refuse, case.fault)).collect()
        };
        let refused = all(Scenario::Allocations, ALLOCATIONS);
        // Those for ever of a client slot are those that are once.
        assert_eq!(refused.len() as u64, ALLOCATIONS - FOR_EVER.len() as u64);
        for name in ["bucket", "client", "description", "file", "fork", "node", "place", "slot"] {
            assert!(REFUSABLE.contains(&name), "{name}");
            let for_ever = refused.contains(&(Some(format!("{name}:1..")), None));
            assert!(for_ever || name == "client", "{name}");
            assert!(refused.contains(&(Some(format!("{name}:3")), None)), "{name}");
        }
        let failed = all(Scenario::BackendCalls, BACKEND_CALLS);
        assert_eq!(failed.len() as u64, BACKEND_CALLS);
        for what in CALLS {
            let line = format!("{what} fail EIO at 2\n");
            assert!(failed.contains(&(None, Some(line))), "{what}");
        }
    }
}
