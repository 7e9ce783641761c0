//! The list `pairs`: every ordered pair of operations on one file, by two programs or by two
//! threads with descriptors of their own, with a kill or a pause within the first.

use super::model::World;
use super::script::{Files, How, Script, Step};
use forebay_placement::Random;

/// What is done to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Write,
    Append,
    WritePastTheEnd,
    SeekAndWrite,
    Read,
    Stat,
    TruncateDown,
    TruncateUp,
    Punch,
    Allocate,
    MapAndWrite,
    CopyFileRange,
    Sendfile,
    Rename,
    RenameOver,
    Link,
    Unlink,
    UnlinkAndUse,
    Fsync,
    CloseAndOpen,
    DupAndWrite,
    OpenEmpty,
    CreateAndWrite,
    ForkAndWrite,
    ExecAndWrite,
}

use Operation::{
    Allocate, Append, CloseAndOpen, CopyFileRange, CreateAndWrite, DupAndWrite, ExecAndWrite,
    ForkAndWrite, Fsync, Link, MapAndWrite, OpenEmpty, Punch, Read, Rename, RenameOver,
    SeekAndWrite, Sendfile, Stat, TruncateDown, TruncateUp, Unlink, UnlinkAndUse, Write,
    WritePastTheEnd,
};

/// All of them.
pub const ALL: [Operation; 25] = [
    Write,
    Append,
    WritePastTheEnd,
    SeekAndWrite,
    Read,
    Stat,
    TruncateDown,
    TruncateUp,
    Punch,
    Allocate,
    MapAndWrite,
    CopyFileRange,
    Sendfile,
    Rename,
    RenameOver,
    Link,
    Unlink,
    UnlinkAndUse,
    Fsync,
    CloseAndOpen,
    DupAndWrite,
    OpenEmpty,
    CreateAndWrite,
    ForkAndWrite,
    ExecAndWrite,
];

/// What happens within the first operation, and when the second one is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The first program is killed; then the second one does its operation.
    KillThen,
    /// The first program pauses, the second one does its operation or waits, then the first is
    /// killed.
    KillMeanwhile,
    /// The first program pauses, for longer than every timer, and goes on.
    Pause,
    /// The same with two threads of one program, and all of it is killed.
    KillThreads,
    /// The same with two threads of one program, and goes on.
    PauseThreads,
}

const FORMS: [Form; 5] =
    [Form::KillThen, Form::KillMeanwhile, Form::Pause, Form::KillThreads, Form::PauseThreads];

impl Form {
    /// Whether the first program is to die.
    pub fn kills(self) -> bool {
        matches!(self, Form::KillThen | Form::KillMeanwhile | Form::KillThreads)
    }

    /// Whether one program does both, in two threads.
    pub fn has_threads(self) -> bool {
        matches!(self, Form::KillThreads | Form::PauseThreads)
    }
}

/// Where the first operation is interrupted: behind it, or in one of three parts of the points that
/// it passes.
const PLACES: u64 = 4;

/// Number of cases; they are numbered from 1.
pub const CASES: u64 = (ALL.len() * ALL.len() * FORMS.len()) as u64 * PLACES;

/// What the file was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Just written, nothing of it on the store.
    Dirty,
    /// Written and synced.
    Synced,
    /// On the store alone.
    Stored,
}

/// Bytes of the file before: a whole block and a part of another.
const BYTES: u64 = 270_000;
const SOURCE: u64 = 9_000;
const REPLACEMENT: u64 = 5_000;

/// Tags of what is there before.
const BEFORE: u64 = 10;

/// A case of the list.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub number: u64,
    pub first: Operation,
    pub second: Operation,
    pub form: Form,
    /// 0 behind the first operation, or which third of its points.
    pub place: u64,
    pub before: Before,
    pub is_nonvolatile: bool,
    /// Whether the second program has the file open from before.
    pub is_early: bool,
    /// Whether the node manager is killed, too.
    pub kills_manager: bool,
    /// Chooses among the points.
    pub draw: u64,
}

impl Case {
    /// Case `number` under a seed.
    pub fn new(number: u64, seed: u64) -> Case {
        let count = ALL.len() as u64;
        let mut rest = (number - 1) % CASES;
        let mut take = |limit| {
            let taken = rest % limit;
            rest /= limit;
            taken
        };
        let (second, first) = (take(count), take(count));
        let (form, place) = (take(FORMS.len() as u64), take(PLACES));
        let (first, second) = (ALL[first as usize], ALL[second as usize]);
        let form = match FORMS[form as usize] {
            // The other thread would end with it.
            Form::KillThreads if [first, second].contains(&ExecAndWrite) => Form::KillMeanwhile,
            Form::PauseThreads if [first, second].contains(&ExecAndWrite) => Form::Pause,
            form => form,
        };
        let mut random = Random::new(seed ^ Random::new(number).next_u64());
        let before = [Before::Dirty, Before::Synced, Before::Stored];
        Case {
            number,
            first,
            second,
            form,
            place,
            before: before[random.below(3) as usize],
            is_nonvolatile: random.one_in(2),
            is_early: random.one_in(2),
            kills_manager: random.one_in(8),
            draw: random.next_u64(),
        }
    }

    /// What both do.
    pub fn scripts(&self) -> [Script; 2] {
        let (first, mut second) = (script(self.first, 0), script(self.second, 1));
        if !self.is_early {
            let mut steps = std::mem::take(&mut second.setup);
            steps.append(&mut second.steps);
            second.steps = steps;
        }
        [first, second]
    }

    /// What is there before, by `files`.
    pub fn world(&self, files: &Files) -> World {
        let mut world = World::default();
        for (name, length) in self.sizes() {
            world = world.with(name, files.bytes(BEFORE + u64::from(name as u32), 0, length));
        }
        world
    }

    /// Names and sizes of what is there before.
    pub fn sizes(&self) -> Vec<(char, u64)> {
        let mut sizes = vec![('a', BYTES)];
        let both = [self.first, self.second];
        if both.contains(&CopyFileRange) || both.contains(&Sendfile) {
            sizes.push(('s', SOURCE));
        }
        if self.first == RenameOver {
            sizes.push(('m', REPLACEMENT));
        }
        if self.second == RenameOver {
            sizes.push(('n', REPLACEMENT));
        }
        sizes
    }

    /// For people.
    pub fn text(&self) -> String {
        let Case { number, first, second, form, before, .. } = self;
        let place = match self.place {
            0 => "behind the first",
            _ => "within the first",
        };
        let file = if self.is_nonvolatile { "nonvolatile" } else { "durable on the store" };
        format!("case {number}: {first:?}, {second:?}; {form:?}, {place}; file {before:?}, {file}")
    }
}

/// All names that files of a case may have.
pub const NAMES: [char; 8] = ['a', 'b', 'l', 'k', 'm', 'n', 's', 'c'];

/// What the first or second program (0, 1) does for an operation. Both touch the same bytes, pages
/// and blocks.
fn script(operation: Operation, program: usize) -> Script {
    let pick = |one: u64, other: u64| [one, other][program];
    let tag = 1 + program as u64;
    let open = Step::Open { slot: 0, name: 'a', how: How::Plain };
    let (at, length) = (pick(259_000, 261_500), 6_000);
    let mut setup = vec![open];
    let steps = match operation {
        Write => vec![Step::Write { slot: 0, at, length, tag }],
        Append => {
            setup = vec![Step::Open { slot: 0, name: 'a', how: How::Append }];
            vec![Step::Append { slot: 0, length: pick(5_000, 3_000), tag }]
        }
        WritePastTheEnd => {
            vec![Step::Write { slot: 0, at: pick(300_000, 530_000), length: 4_000, tag }]
        }
        SeekAndWrite => vec![Step::WriteHere { slot: 0, at: at + 1_000, length, tag }],
        Read => vec![Step::Read { slot: 0 }],
        Stat => vec![Step::Size { slot: 0 }],
        TruncateDown => vec![Step::Truncate { slot: 0, size: pick(263_000, 100_001) }],
        TruncateUp => vec![Step::Truncate { slot: 0, size: pick(280_001, 540_000) }],
        Punch => {
            let (at, length) = (pick(258_000, 100_000), pick(8_192, 170_000));
            vec![Step::Punch { slot: 0, at, length }]
        }
        Allocate => vec![Step::Allocate { slot: 0, size: pick(275_000, 320_000) }],
        MapAndWrite => vec![Step::Map { slot: 0, at, length, tag }],
        CopyFileRange | Sendfile => {
            setup.push(Step::Open { slot: 1, name: 's', how: How::Plain });
            let (from, to, length) = (1, 0, SOURCE);
            match operation {
                CopyFileRange => vec![Step::Copy { from, to, at, length }],
                _ => vec![Step::Send { from, to, at, length }],
            }
        }
        Rename => vec![Step::Rename { from: 'a', to: 'b' }],
        RenameOver => vec![Step::Rename { from: ['m', 'n'][program], to: 'a' }],
        Link => vec![Step::Link { from: 'a', to: ['l', 'k'][program] }],
        Unlink => vec![Step::Unlink { name: 'a' }],
        UnlinkAndUse => vec![
            Step::Unlink { name: 'a' },
            Step::Write { slot: 0, at, length, tag },
            Step::Read { slot: 0 },
        ],
        Fsync => {
            setup.push(Step::Write { slot: 0, at, length, tag });
            vec![Step::Sync { slot: 0 }]
        }
        CloseAndOpen => vec![Step::Close { slot: 0 }, open],
        DupAndWrite => {
            vec![Step::Dup { slot: 0, to: 1 }, Step::WriteHere { slot: 1, at, length, tag }]
        }
        OpenEmpty => vec![Step::Open { slot: 1, name: 'a', how: How::Empty }],
        CreateAndWrite => vec![
            Step::Open { slot: 1, name: 'c', how: How::Create },
            Step::Write { slot: 1, at: 0, length, tag },
        ],
        ForkAndWrite => vec![Step::Fork { slot: 0, at, length, tag }],
        ExecAndWrite => vec![Step::Exec, Step::Write { slot: 0, at, length, tag }],
    };
    Script { setup, steps }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_has_each_form_at_each_place() {
        let all: BTreeSet<_> = (1..=CASES)
            .map(|number| Case::new(number, 7))
            .map(|case| (case.first as u8, case.second as u8, case.form as u8, case.place))
            .collect();
        let count = ALL.len() as u64;
        let with_exec = 2 * count - 1;
        // Where one of both is exec, threads are programs.
        let forms = count * count * 5 - with_exec * 2;
        assert_eq!(all.len() as u64, forms * PLACES);
        assert!(ALL.iter().enumerate().all(|(index, operation)| *operation as usize == index));
        for first in 0..ALL.len() as u8 {
            for second in 0..ALL.len() as u8 {
                let cases = all.iter().filter(|case| (case.0, case.1) == (first, second));
                let kills = cases.clone().filter(|case| FORMS[case.2 as usize].kills());
                assert!(kills.count() >= 4 && cases.count() >= 8, "{first} {second}");
            }
        }
    }

    #[test]
    fn a_slice_has_all_operations_and_forms() {
        let slice = (1..=CASES).step_by(97).map(|number| Case::new(number, 7));
        let slice: Vec<_> = slice.collect();
        for operation in ALL {
            assert!(slice.iter().any(|case| case.first == operation), "{operation:?}");
            assert!(slice.iter().any(|case| case.second == operation), "{operation:?}");
        }
        for form in FORMS {
            assert!(slice.iter().filter(|case| case.form == form).count() > 5, "{form:?}");
        }
    }

    #[test]
    fn all_that_a_script_names_is_there() {
        for number in 1..=(ALL.len() * ALL.len()) as u64 {
            let case = Case::new(number, 3);
            let files = Files::new(std::path::Path::new("/s"), "t", 3, number, false);
            let mut world = case.world(&files);
            for step in case.scripts()[0].all() {
                let told = world.apply(0, step, &files);
                assert!(
                    !matches!(told, super::super::script::Told::Failed(_)),
                    "{step:?} {told:?}"
                );
            }
        }
    }
}
