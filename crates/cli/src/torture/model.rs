//! What files can be after scripts of two programs, of which each may have died: all orders of
//! their steps, and what each order leaves.

use super::script::{Files, How, SLOTS, Script, Step, Told};
use std::collections::BTreeMap;

const EBADF: i32 = 9;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

/// Files as two programs see them.
#[derive(Clone, Debug, Default)]
pub struct World {
    files: Vec<Vec<u8>>,
    names: BTreeMap<char, usize>,
    slots: [[Option<usize>; SLOTS]; 2],
    /// Where the appends of the programs have begun that are not over, until the file's size is
    /// set.
    ends: [Option<usize>; 2],
}

impl World {
    /// Has a file of this name.
    pub fn with(mut self, name: char, bytes: Vec<u8>) -> World {
        self.names.insert(name, self.files.len());
        self.files.push(bytes);
        self
    }

    /// The file of a name.
    pub fn file(&self, name: char) -> Option<&[u8]> {
        self.names.get(&name).map(|&file| &self.files[file][..])
    }

    fn open(&mut self, program: usize, slot: usize, name: char, how: How) -> Told {
        if how == How::Create && !self.names.contains_key(&name) {
            self.names.insert(name, self.files.len());
            self.files.push(Vec::new());
        }
        let Some(&file) = self.names.get(&name) else { return Told::Failed(ENOENT) };
        if how == How::Empty {
            self.files[file].clear();
        }
        self.slots[program][slot] = Some(file);
        Told::Done
    }

    /// The file of a descriptor.
    fn at(&mut self, program: usize, slot: usize) -> Result<&mut Vec<u8>, Told> {
        let file = self.slots[program][slot].ok_or(Told::Failed(EBADF))?;
        Ok(&mut self.files[file])
    }

    /// A program begins to append: what others write from now on does not move it.
    fn begin_append(&mut self, program: usize, slot: usize) {
        self.ends[program] = self.at(program, slot).ok().map(|file| file.len());
    }

    /// Does a step of a program.
    pub fn apply(&mut self, program: usize, step: Step, of: &Files) -> Told {
        self.try_apply(program, step, of).unwrap_or_else(|told| told)
    }

    fn try_apply(&mut self, program: usize, step: Step, of: &Files) -> Result<Told, Told> {
        match step {
            Step::Open { slot, name, how } => return Ok(self.open(program, slot, name, how)),
            Step::Close { slot } => {
                self.at(program, slot)?;
                self.slots[program][slot] = None;
            }
            Step::Write { slot, at, length, tag }
            | Step::WriteHere { slot, at, length, tag }
            | Step::Fork { slot, at, length, tag } => {
                put(self.at(program, slot)?, at, &of.bytes(tag, at, length));
            }
            Step::Append { slot, length, tag } => {
                let end = self.ends[program].take();
                let file = self.at(program, slot)?;
                let end = end.unwrap_or(file.len()) as u64;
                put(file, end, &of.bytes(tag, 0, length));
            }
            Step::Read { slot } => return Ok(Told::Bytes(self.at(program, slot)?.clone())),
            Step::Size { slot } => return Ok(Told::Size(self.at(program, slot)?.len() as u64)),
            Step::Truncate { slot, size } => {
                self.at(program, slot)?.resize(size as usize, 0);
                self.ends = [None; 2];
            }
            Step::Punch { slot, at, length } => {
                let file = self.at(program, slot)?;
                let end = file.len().min((at + length) as usize);
                let start = end.min(at as usize);
                file[start..end].fill(0);
            }
            Step::Allocate { slot, size } => {
                let file = self.at(program, slot)?;
                file.resize(file.len().max(size as usize), 0);
                self.ends = [None; 2];
            }
            Step::Map { slot, at, length, tag } => {
                let file = self.at(program, slot)?;
                let mut bytes = of.bytes(tag, at, length);
                bytes.truncate(file.len().saturating_sub(at as usize));
                put(file, at, &bytes);
            }
            Step::Copy { from, to, at, length } | Step::Send { from, to, at, length } => {
                let source = self.at(program, from)?;
                let bytes = source[..source.len().min(length as usize)].to_vec();
                put(self.at(program, to)?, at, &bytes);
            }
            Step::Rename { from, to } => {
                let file = *self.names.get(&from).ok_or(Told::Failed(ENOENT))?;
                // Two names of one file: nothing happens.
                if self.names.insert(to, file) != Some(file) {
                    self.names.remove(&from);
                }
            }
            Step::Link { from, to } => {
                let file = *self.names.get(&from).ok_or(Told::Failed(ENOENT))?;
                if self.names.contains_key(&to) {
                    return Err(Told::Failed(EEXIST));
                }
                self.names.insert(to, file);
            }
            Step::Unlink { name } => {
                self.names.remove(&name).ok_or(Told::Failed(ENOENT))?;
            }
            Step::Sync { slot } => {
                self.at(program, slot)?;
            }
            Step::Dup { slot, to } => {
                self.at(program, slot)?;
                self.slots[program][to] = self.slots[program][slot];
            }
            Step::Exec => {}
        }
        Ok(Told::Done)
    }
}

fn put(file: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let at = at as usize;
    if !bytes.is_empty() {
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// What became of a program.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// What it was told, step by step.
    pub told: Vec<Told>,
    /// It died in the step after these.
    pub died: bool,
    /// Steps of its setup that it had not done when the other one began.
    pub late: usize,
}

/// Two programs and what became of them.
pub struct Story<'a> {
    /// What was there before.
    pub start: World,
    /// Their files.
    pub files: &'a Files,
    /// What they do.
    pub scripts: [&'a Script; 2],
    /// What became of them.
    pub courses: [Course; 2],
    /// The second did its steps when the first had ended.
    pub in_order: bool,
    /// Errors that a step may tell without reason: it was done, or not, or a part of it.
    pub excused: &'a [i32],
}

/// A step, or a part of one, in an order of all.
#[derive(Clone, Copy)]
struct Move {
    step: Step,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It was done, and told something.
    Tells,
    /// It was done behind one that told something.
    IsSilent,
    /// Its program died in it.
    MayBe,
    /// It told an error that is excused.
    Fails,
    /// An append begins that was done.
    Begins,
    /// An append begins in which its program died.
    MayBegin,
}

/// One order of steps, and what it leaves and tells.
#[derive(Clone)]
struct End {
    world: World,
    told: [Vec<Told>; 2],
}

impl Story<'_> {
    /// What is wrong with what was `found`, by name; nothing if some order of the steps explains
    /// it.
    pub fn judge(&self, found: &BTreeMap<char, Vec<u8>>) -> Option<String> {
        let mut ends = self.ends();
        ends.retain(|end| self.is_told(end));
        if ends.is_empty() {
            return Some("no order of the steps explains what they told".into());
        }
        ends.retain(|end| end.world.names.keys().eq(found.keys()));
        if ends.is_empty() {
            let names: String = found.keys().collect();
            return Some(format!(
                "no order of the steps explains that there are the files {names}"
            ));
        }
        for (name, bytes) in found {
            let all: Vec<_> = ends.iter().filter_map(|end| end.world.file(*name)).collect();
            if let Some(what) = unexplained(bytes, &all, self.may_be_between()) {
                return Some(format!("file {name}: {what}"));
            }
        }
        (0..2).find_map(|program| self.misread(program, &ends))
    }

    /// Whether files may have sizes between those that whole steps leave.
    fn may_be_between(&self) -> bool {
        (0..2).any(|program| {
            let told = self.courses[program].told.iter();
            let mut failed =
                self.scripts[program].all().zip(told).filter(|(_, told)| self.excuses(told));
            failed.any(|(step, _)| step.writes())
                || self.in_flight(program).is_some_and(Step::writes)
        })
    }

    fn excuses(&self, told: &Told) -> bool {
        matches!(told, Told::Failed(errno) if self.excused.contains(errno))
    }

    /// The step in which a program died.
    fn in_flight(&self, program: usize) -> Option<Step> {
        let course = &self.courses[program];
        if course.died { self.scripts[program].all().nth(course.told.len()) } else { None }
    }

    /// Whether an order tells what was told, but for the bytes that were read.
    fn is_told(&self, end: &End) -> bool {
        (0..2).all(|program| {
            let pairs = end.told[program].iter().zip(&self.courses[program].told);
            pairs.into_iter().all(|pair| match pair {
                (Told::Bytes(_), Told::Bytes(_)) => true,
                (one, other) => one == other,
            })
        })
    }

    /// What is wrong with what a program has read.
    fn misread(&self, program: usize, ends: &[End]) -> Option<String> {
        for (index, told) in self.courses[program].told.iter().enumerate() {
            let Told::Bytes(read) = told else { continue };
            let of_end = |end: &End| match end.told[program].get(index) {
                Some(Told::Bytes(bytes)) => Some(bytes.clone()),
                _ => None,
            };
            let all: Vec<_> = ends.iter().filter_map(of_end).collect();
            let all: Vec<_> = all.iter().map(|bytes| &bytes[..]).collect();
            if let Some(what) = unexplained(read, &all, self.may_be_between()) {
                return Some(format!("step {index} of {} has read {what}", ["X", "Y"][program]));
            }
        }
        None
    }

    /// The ends of all orders.
    fn ends(&self) -> Vec<End> {
        let mut end = End { world: self.start.clone(), told: [Vec::new(), Vec::new()] };
        let mut moves = [0, 1].map(|program| self.moves(program));
        for program in [1, 0] {
            // One in which it died may be done, or not, as any other step.
            let course = &self.courses[program];
            let early = self.scripts[program].setup.len() - course.late;
            for _ in 0..early.min(course.told.len()) {
                let told = end.world.apply(program, moves[program].remove(0).step, self.files);
                end.told[program].push(told);
            }
        }
        let mut all = Vec::new();
        self.go_on(end, &moves, [0; 2], &mut all);
        all
    }

    /// What a program did, and what it may have done before it died.
    fn moves(&self, program: usize) -> Vec<Move> {
        let course = &self.courses[program];
        let mut moves = Vec::new();
        for (index, step) in self.scripts[program].all().enumerate() {
            let is_done = index < course.told.len();
            if !is_done && self.in_flight(program).is_none() || index > course.told.len() {
                break;
            }
            let has_failed = course.told.get(index).is_some_and(|told| self.excuses(told));
            let kind = match is_done {
                true if has_failed => Kind::Fails,
                true => Kind::Tells,
                false => Kind::MayBe,
            };
            match step {
                // As in the kernel, first the one, then the other.
                Step::Open { slot, name, how: How::Empty } if !has_failed => {
                    let open = Step::Open { slot, name, how: How::Plain };
                    moves.push(Move { step: open, kind });
                    let kind = if is_done { Kind::IsSilent } else { Kind::MayBe };
                    moves.push(Move { step: Step::Truncate { slot, size: 0 }, kind });
                }
                // Others may write between the two, but not set the size.
                Step::Append { .. } => {
                    let begins = if is_done { Kind::Begins } else { Kind::MayBegin };
                    moves.extend([Move { step, kind: begins }, Move { step, kind }]);
                }
                step => moves.push(Move { step, kind }),
            }
        }
        moves
    }

    fn go_on(&self, end: End, moves: &[Vec<Move>; 2], at: [usize; 2], all: &mut Vec<End>) {
        let is_left = |program: usize| at[program] < moves[program].len();
        if !is_left(0) && !is_left(1) {
            all.push(end);
            return;
        }
        for program in (0..2).filter(|&program| is_left(program)) {
            let Move { step, kind } = moves[program][at[program]];
            let may_be = |kind| matches!(kind, Kind::MayBe | Kind::MayBegin);
            let is_behind = || moves[0][at[0]..].iter().any(|it| !may_be(it.kind));
            if self.in_order && program == 1 && is_behind() {
                continue;
            }
            let mut next = at;
            next[program] += 1;
            if kind == Kind::MayBe {
                self.go_on(end.clone(), moves, next, all);
                let others = &moves[1][..at[1]];
                let is_late = self.in_order && program == 0 && !others.is_empty();
                let only_look = others.iter().all(|other| other.step.only_looks());
                if is_late && !(step.is_completed_by_others() && only_look) {
                    continue;
                }
            }
            if kind == Kind::Fails {
                let told = self.courses[program].told[end.told[program].len()].clone();
                let mut without = end.clone();
                without.told[program].push(told.clone());
                self.go_on(without, moves, next, all);
                if !step.only_tells() {
                    let mut with = end.clone();
                    with.world.apply(program, step, self.files);
                    if let Step::Open { slot, .. } = step {
                        with.world.slots[program][slot] = None;
                    }
                    with.told[program].push(told);
                    self.go_on(with, moves, next, all);
                }
                continue;
            }
            let mut end = end.clone();
            if let (Kind::Begins | Kind::MayBegin, Step::Append { slot, .. }) = (kind, step) {
                end.world.begin_append(program, slot);
                self.go_on(end, moves, next, all);
                continue;
            }
            let told = end.world.apply(program, step, self.files);
            if kind == Kind::Tells {
                end.told[program].push(told);
            }
            self.go_on(end, moves, next, all);
        }
    }
}

/// What is wrong with `found` if each of its bytes is to be that of one of these files, and its
/// size one of theirs, or one between.
fn unexplained(found: &[u8], all: &[&[u8]], between: bool) -> Option<String> {
    let sizes = || all.iter().map(|file| file.len());
    let range = sizes().min().unwrap_or(0)..=sizes().max().unwrap_or(0);
    let is_possible = |size| sizes().any(|of| of == size) || between && range.contains(&size);
    if !is_possible(found.len()) {
        let mut sizes: Vec<_> = sizes().collect();
        sizes.sort_unstable();
        sizes.dedup();
        return Some(format!("{} bytes; {sizes:?} would be right", found.len()));
    }
    let is_wrong = |at: usize| {
        let byte = found[at];
        all.iter().all(|file| file.get(at).copied().unwrap_or(0) != byte)
    };
    let mut wrong = (0..found.len()).filter(|&at| is_wrong(at));
    let first = wrong.next()?;
    let (count, last) = wrong.fold((1, first), |(count, _), at| (count + 1, at));
    let zeros = if found[first..=last].iter().all(|&byte| byte == 0) { ", all zero" } else { "" };
    Some(format!("{count} of {} bytes are wrong, from {first} to {last}{zeros}", found.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const OPEN: Step = Step::Open { slot: 0, name: 'a', how: How::Plain };

    fn files() -> Files {
        Files::new(Path::new("/s"), "t", 1, 1, false)
    }

    fn judge(story: &Story, name: char, bytes: &[u8]) -> Option<String> {
        story.judge(&BTreeMap::from([(name, bytes.to_vec())]))
    }

    #[test]
    fn all_orders_of_what_was_told_are_right_and_nothing_else() {
        let files = files();
        let x = Script {
            setup: vec![OPEN],
            steps: vec![Step::Write { slot: 0, at: 2, length: 4, tag: 1 }],
        };
        let y = Script { setup: vec![OPEN], steps: vec![Step::Truncate { slot: 0, size: 3 }] };
        let start = World::default().with('a', vec![1; 8]);
        let course = Course { told: vec![Told::Done; 2], ..Course::default() };
        let story = |in_order, died| Story {
            start: start.clone(),
            files: &files,
            scripts: [&x, &y],
            courses: [
                Course { told: course.told[usize::from(died)..].to_vec(), died, late: 0 },
                course.clone(),
            ],
            in_order,
            excused: &[],
        };
        let written = files.bytes(1, 2, 4);
        let cut = [1, 1, written[0]];
        let longer = [&[1, 1][..], &written[..]].concat();
        assert_eq!(judge(&story(true, false), 'a', &cut), None);
        assert!(judge(&story(true, false), 'a', &longer).unwrap().contains("6 bytes"));
        assert_eq!(judge(&story(false, false), 'a', &longer), None);
        assert!(judge(&story(false, false), 'a', &[1, 1, 0]).is_some());
        assert!(judge(&story(false, false), 'b', &cut).unwrap().contains("files b"));
        // A program that died in the write may have written nothing, or a part of it.
        assert_eq!(judge(&story(true, true), 'a', &[1, 1, 1]), None);
        assert_eq!(judge(&story(true, true), 'a', &cut), None);
        assert!(judge(&story(true, true), 'a', &longer).is_some());
        assert_eq!(judge(&story(false, true), 'a', &longer[..5]), None);
    }

    #[test]
    fn a_truncate_may_be_completed_behind_a_look_but_not_behind_a_change() {
        let files = files();
        let x = Script { setup: vec![OPEN], steps: vec![Step::Truncate { slot: 0, size: 3 }] };
        let course = |told: Vec<Told>, died| Course { told, died, late: 0 };
        let judged = |steps: Vec<Step>, told: Vec<Told>, found: &[u8]| {
            let y = Script { setup: vec![OPEN], steps };
            let story = Story {
                start: World::default().with('a', vec![1; 8]),
                files: &files,
                scripts: [&x, &y],
                courses: [course(vec![Told::Done], true), course(told, false)],
                in_order: true,
                excused: &[],
            };
            judge(&story, 'a', found)
        };
        let looked = vec![Told::Done, Told::Size(8)];
        assert_eq!(judged(vec![Step::Size { slot: 0 }], looked.clone(), &[1; 3]), None);
        assert_eq!(judged(vec![Step::Size { slot: 0 }], looked, &[1; 8]), None);
        let write = Step::Write { slot: 0, at: 4, length: 2, tag: 2 };
        let written = files.bytes(2, 4, 2);
        let both = [&[1, 1, 1, 0][..], &written].concat();
        assert_eq!(judged(vec![write], vec![Told::Done; 2], &both), None);
        assert!(judged(vec![write], vec![Told::Done; 2], &[1; 3]).is_some());
    }

    #[test]
    fn a_process_that_died_before_its_steps_has_done_what_it_was_told() {
        let files = files();
        let write = Step::Write { slot: 0, at: 0, length: 4, tag: 1 };
        let x = Script { setup: vec![OPEN, write], steps: vec![Step::Sync { slot: 0 }] };
        let story = Story {
            start: World::default().with('a', vec![1; 8]),
            files: &files,
            scripts: [&x, &Script::default()],
            courses: [Course { told: vec![Told::Done], died: true, late: 0 }, Course::default()],
            in_order: false,
            excused: &[],
        };
        assert_eq!(judge(&story, 'a', &[1; 8]), None);
        assert_eq!(judge(&story, 'a', &[&files.bytes(1, 0, 4)[..], &[1; 4]].concat()), None);
        assert!(judge(&story, 'a', &[0; 8]).is_some());
    }

    #[test]
    fn what_was_late_in_the_setup_may_come_behind_the_other_program() {
        let files = files();
        let write = |tag| Step::Write { slot: 0, at: 0, length: 4, tag };
        let x = Script { setup: vec![OPEN, write(1)], steps: vec![Step::Sync { slot: 0 }] };
        let y = Script { setup: Vec::new(), steps: vec![OPEN, write(2)] };
        let judged = |late| {
            let told = |steps| vec![Told::Done; steps];
            let story = Story {
                start: World::default().with('a', vec![1; 4]),
                files: &files,
                scripts: [&x, &y],
                courses: [
                    Course { told: told(3), late, ..Course::default() },
                    Course { told: told(2), ..Course::default() },
                ],
                in_order: false,
                excused: &[],
            };
            [1, 2].map(|tag| judge(&story, 'a', &files.bytes(tag, 0, 4)).is_none())
        };
        assert_eq!((judged(0), judged(1)), ([false, true], [true, true]));
    }

    #[test]
    fn what_was_told_and_read_must_fit_together() {
        let files = files();
        let x = Script { setup: Vec::new(), steps: vec![Step::Rename { from: 'a', to: 'b' }] };
        let y = Script { setup: Vec::new(), steps: vec![OPEN, Step::Read { slot: 0 }] };
        let done = Course { told: vec![Told::Done], ..Course::default() };
        let story = |told: Vec<Told>, in_order| Story {
            start: World::default().with('a', vec![7; 3]),
            files: &files,
            scripts: [&x, &y],
            courses: [done.clone(), Course { told, ..Course::default() }],
            in_order,
            excused: &[],
        };
        let gone = vec![Told::Failed(ENOENT), Told::Failed(EBADF)];
        assert_eq!(judge(&story(gone.clone(), true), 'b', &[7; 3]), None);
        let read = |byte| vec![Told::Done, Told::Bytes(vec![byte; 3])];
        assert_eq!(judge(&story(read(7), false), 'b', &[7; 3]), None);
        assert!(judge(&story(read(7), true), 'b', &[7; 3]).unwrap().contains("no order"));
        assert!(judge(&story(read(8), false), 'b', &[7; 3]).unwrap().contains("has read"));
    }
}
