//! What ranks do together, where all of them have the adapter: hints at open, and collective calls
//! that each makes by itself where the model says that this is faster and the views are proved to
//! be disjoint. See docs/design/adapters.md.

use crate::abi::{Abi, abi};
use crate::agreement::{self, Ranks};
use crate::disjoint::{PIECES, ROWS, Tile, are_disjoint};
use crate::hints::{self, BUFFER};
use crate::library::{Word, ask, is_open_mpi};
use crate::pieces::all_rows;
use crate::seen::size_of_type;
use crate::services::services;
use core::ffi::{CStr, c_int};
use core::ops::Range;
use forebay_client::services::counted;
use forebay_placement::collective::{Call, Correction, Mode, decide};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The first calls of a direction all say how long they took, later ones each so-manyth.
const FIRST: u64 = 4;
const EACH: u64 = 8;

/// Whether the views of the ranks are disjoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Views {
    /// Not asked yet.
    NotAsked,
    /// For all offsets.
    Disjoint,
    /// Not proved, or one of them has no holes, with which the library itself does what is faster.
    NotProved,
}

/// The view of this rank.
#[derive(Clone, Copy, Debug)]
struct View {
    /// Bytes of a unit, units of a tile, and bytes from one tile to the next; 0 is not known.
    unit: u64,
    units: u64,
    extent: u64,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    calls: u64,
    /// How the next calls are to be made, on all ranks alike.
    wish: Option<Mode>,
    /// The next call says how long it takes, whichever it is: the first one in a mode is often a
    /// try, which would go on until one is asked.
    is_new: bool,
    /// Of the rank that decides.
    correction: Correction,
}

impl Side {
    /// Whether the next call says how long it took: of each direction alone, as a program may read
    /// and write in turns.
    fn next_is_sampled(&mut self) -> bool {
        self.calls += 1;
        core::mem::take(&mut self.is_new) || self.calls <= FIRST || self.calls.is_multiple_of(EACH)
    }
}

#[derive(Debug)]
struct State {
    /// To the library, for good.
    is_left: bool,
    views: Views,
    view: View,
    /// Where that began when it was proved to be disjoint.
    first: u64,
    /// Reads, writes.
    sides: [Side; 2],
}

/// A file that all ranks have open with the adapter.
#[derive(Debug)]
pub(crate) struct Together {
    abi: &'static Abi,
    handle: u64,
    /// A communicator of the adapter's own, with the ranks of the file's.
    communicator: Word,
    ranks: Ranks,
    nodes: u32,
    aggregators: u32,
    buffer: u64,
    /// Of reads, of writes.
    ways: [Way; 2],
    /// Where Forebay has the file, on the rank that decides.
    fd: c_int,
    state: Mutex<State>,
    /// Held while the pointer of this rank is looked at and moved, never while others are waited
    /// for.
    pointer: Mutex<()>,
}

static FILES: Mutex<Vec<Arc<Together>>> = Mutex::new(Vec::new());

fn files() -> MutexGuard<'static, Vec<Arc<Together>>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there are such files.
pub(crate) fn has_any() -> bool {
    !files().is_empty()
}

/// The file of this handle, if all ranks have it open with the adapter.
pub(crate) fn of(handle: u64) -> Option<Arc<Together>> {
    files().iter().find(|file| file.handle == handle).cloned()
}

/// An open that is under way on all ranks.
pub(crate) struct Opening {
    abi: &'static Abi,
    ranks: Ranks,
    nodes: u32,
    /// The program's: no other collective call of it can be under way.
    communicator: Word,
    /// Made for this open.
    info: Option<Word>,
}

impl Opening {
    /// Before a file is opened: what all ranks of the communicator add to its hints. `None` where
    /// they do not agree.
    pub(crate) fn begin(communicator: Word, name: &CStr, info: Word) -> Option<Opening> {
        // With several aggregators a rank of Open MPI's own part reads what others have not yet
        // written of its own writes; and no call of it may be changed.
        if is_open_mpi() {
            return None;
        }
        let abi = abi()?;
        let ranks = agreement::ranks(communicator)?;
        let mut opening = Opening { abi, ranks, nodes: 1, communicator, info: None };
        let mut is_ours = u64::from(ranks.me == 0 && is_covered(name));
        opening.tell(&mut is_ours);
        if is_ours == 0 {
            return None;
        }
        let said = opening.gather(&[hints::set_by_others(abi, info), agreement::node()])?;
        let set = said.iter().fold(0, |all, said| all | said[0]);
        let mut nodes: Vec<u64> = said.iter().map(|said| said[1]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        opening.nodes = nodes.len() as u32;
        let mut chosen = hints::chosen(set, ranks.count, opening.nodes);
        opening.tell(&mut chosen);
        opening.info = hints::with(abi, info, chosen);
        Some(opening)
    }

    /// The hints to open with.
    pub(crate) fn info(&self) -> Option<Word> {
        self.info
    }

    /// What each rank says, in the order of ranks.
    fn gather(&self, own: &[u64; 2]) -> Option<Vec<[u64; 2]>> {
        if self.ranks.count == 1 {
            return Some(vec![*own]);
        }
        gather(self.abi, self.communicator, self.ranks, own)
    }

    fn tell<T>(&self, what: &mut T) {
        if self.ranks.count > 1 {
            broadcast(self.abi, self.communicator, what);
        }
    }

    /// After the file was opened as `handle`, or was not; `fd` is where Forebay has it.
    pub(crate) fn end(self, handle: Option<u64>, fd: Option<c_int>) {
        if let Some(info) = self.info {
            hints::free(info);
            if fd.is_some()
                && let Some(services) = services()
            {
                (services.count)(counted::MPI_HINTED, 1);
            }
        }
        let used = handle.map(Used::of).unwrap_or_default();
        let said = self.gather(&[used.bits(), u64::from(fd.is_some())]).unwrap_or_default();
        let all = said.iter().fold(u64::MAX, |all, said| all & said[0]);
        // The rank that decides has to know what holds the file.
        let is_ours = said.first().is_some_and(|said| said[1] == 1) && all != 0;
        let Some(handle) = handle.filter(|_| is_ours && self.ranks.count > 1) else { return };
        // Calls of other threads are under way on the program's later. A duplicate would call what
        // it has attached to its own.
        let mut own: Word = 0;
        let (me, address) = (self.ranks.me as Word, (&raw mut own) as Word);
        if !ask!("PMPI_Comm_split", self.communicator, 0, me, address) {
            return;
        }
        files().push(Arc::new(Together {
            abi: self.abi,
            handle,
            communicator: own,
            ranks: self.ranks,
            nodes: self.nodes,
            aggregators: used.aggregators.clamp(1, self.ranks.count),
            buffer: used.buffer,
            ways: Way::of_bits(all),
            fd: fd.unwrap_or(-1),
            state: Mutex::new(State {
                is_left: false,
                views: Views::NotAsked,
                first: 0,
                view: View { unit: 1, units: 0, extent: 0 },
                sides: [Side::default(); 2],
            }),
            pointer: Mutex::new(()),
        }));
    }
}

/// Whether Forebay manages files of this name, with or without a driver of the library's before it.
fn is_covered(name: &CStr) -> bool {
    let Some(services) = services() else { return false };
    let (all, behind) = crate::seen::paths_of(name);
    // SAFETY: names.
    [Some(all), behind]
        .into_iter()
        .flatten()
        .any(|path| unsafe { (services.covers)(path.as_ptr()) } == 0)
}

/// How one direction of a file's collective calls may be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Way {
    /// Each rank by itself: all have the file open, and none reads first what others may be
    /// writing.
    is_open: bool,
    /// The library does so itself where the ranges of the ranks do not interleave. Otherwise it
    /// exchanges always.
    looks_at_ranges: bool,
}

impl Way {
    /// Those of reads and of writes, by [`Used::bits`] of all ranks.
    fn of_bits(bits: u64) -> [Way; 2] {
        let is = |bit: u32| bits >> bit & 1 == 1;
        [0, 2].map(|first| Way { is_open: is(first), looks_at_ranges: !is(first + 1) })
    }
}

/// What the library uses for a file that is open.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Of reads, of writes.
    ways: [Way; 2],
    aggregators: u32,
    buffer: u64,
}

impl Used {
    fn of(handle: u64) -> Used {
        let mut info: Word = 0;
        if !ask!("PMPI_File_get_info", handle as Word, (&raw mut info) as Word) {
            return Used::default();
        }
        let number = |name| {
            let text = hints::value(info, name)?;
            core::str::from_utf8(&text).ok()?.trim().parse::<u64>().ok()
        };
        let is = |name, wanted: &[u8]| hints::value(info, name).is_some_and(|text| text == wanted);
        let is_romio = hints::value(info, c"romio_ds_write").is_some();
        // Its persistent file realms go another way, with another end.
        let may = is_romio && is(c"romio_no_indep_rw", b"false") && !is(c"romio_cb_pfr", b"enable");
        let way = |name, may: bool| Way {
            is_open: may && !is(name, b"disable"),
            looks_at_ranges: !is(name, b"enable"),
        };
        let used = Used {
            ways: [
                way(c"romio_cb_read", may),
                way(c"romio_cb_write", may && is(c"romio_ds_write", b"disable")),
            ],
            aggregators: number(c"cb_nodes").unwrap_or(1) as u32,
            buffer: number(c"cb_buffer_size").unwrap_or(BUFFER).max(1),
        };
        hints::free(info);
        used
    }

    /// For [`Way::of_bits`]; of several ranks, the bits that all of them have.
    fn bits(&self) -> u64 {
        let [reads, writes] = self.ways.map(|way| {
            u64::from(way.is_open) | u64::from(way.is_open && !way.looks_at_ranges) << 1
        });
        reads | writes << 2
    }
}

/// Words of all ranks, in their order.
fn gather<const N: usize>(
    abi: &Abi,
    communicator: Word,
    ranks: Ranks,
    own: &[u64; N],
) -> Option<Vec<[u64; N]>> {
    let mut all = vec![[0u64; N]; ranks.count as usize];
    let bytes = size_of::<[u64; N]>();
    let is_done = ask!(
        "PMPI_Allgather",
        own.as_ptr() as Word,
        bytes,
        abi.byte,
        all.as_mut_ptr() as Word,
        bytes,
        abi.byte,
        communicator
    );
    is_done.then_some(all)
}

/// Values of all ranks, in their order, on the rank that decides.
fn collect<T: Copy>(abi: &Abi, communicator: Word, ranks: Ranks, own: &T) -> Option<Vec<T>> {
    let mut all = if ranks.me == 0 { vec![*own; ranks.count as usize] } else { Vec::new() };
    let bytes = size_of::<T>();
    let is_done = ask!(
        "PMPI_Gather",
        core::ptr::from_ref(own) as Word,
        bytes,
        abi.byte,
        all.as_mut_ptr() as Word,
        bytes,
        abi.byte,
        0,
        communicator
    );
    (is_done && ranks.me == 0).then_some(all)
}

/// The class of a call's error; 0 if it has none.
fn class_of(result: c_int) -> u64 {
    if result == 0 {
        return 0;
    }
    let mut class: c_int = 0;
    ask!("PMPI_Error_class", result as Word, (&raw mut class) as Word);
    class.max(1) as u64
}

/// The value of the rank that decides, on all.
fn broadcast<T>(abi: &Abi, communicator: Word, what: &mut T) {
    let (address, bytes) = (core::ptr::from_mut(what) as Word, size_of::<T>());
    ask!("PMPI_Bcast", address, bytes, abi.byte, 0, communicator);
}

/// What a rank says of a call that has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    /// The class of its error.
    class: u64,
    bytes: u64,
    /// Pieces of the file that they are.
    pieces: u64,
    /// The part of the file that has them.
    first: u64,
    end: u64,
    took_s: f64,
}

/// What the rank that decides makes of that.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    class: u64,
    /// 1: collective, 2: independent.
    wish: u64,
}

/// A collective call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub is_read: bool,
    /// In units of the view; `None` is where the pointer of the rank is.
    pub offset: Option<i64>,
    pub count: i64,
    pub datatype: Word,
}

/// Whether the ranges of the ranks interleave, as ROMIO tells it: only then it exchanges data, if
/// it is left to it. First and last byte of each rank, in their order.
fn do_interleave(ranges: impl Iterator<Item = (u64, u64)>) -> bool {
    let mut last_before = 0;
    ranges.enumerate().any(|(rank, (first, last))| {
        let is_inside = rank > 0 && first < last_before && first <= last;
        last_before = last;
        is_inside
    })
}

impl Together {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file has got another view, or one rank of it, of which this is known.
    pub(crate) fn viewed(&self, known: Option<(u64, u64, u64)>) {
        let (unit, size, extent) = known.unwrap_or_default();
        let is_whole = unit > 0 && size.is_multiple_of(unit);
        let units = if is_whole { size / unit } else { 0 };
        let mut state = self.state();
        state.views = Views::NotAsked;
        state.view = View { unit: unit.max(1), units, extent };
    }

    /// A split collective call was begun: those behind it are left to the library, which knows
    /// whether they may be made before it is ended.
    pub(crate) fn has_split(&self) {
        let mut state = self.state();
        // What is not asked for before the next view is not proved for this one.
        state.views = Views::NotProved;
        state.sides = [Side::default(); 2];
        state.is_left = true;
    }

    /// Makes a collective call by one of both functions.
    pub(crate) fn call(
        &self,
        asked: Asked,
        together: impl FnOnce() -> c_int,
        alone: impl FnOnce(i64) -> c_int,
        look: impl FnOnce(),
    ) -> c_int {
        let mut state = self.state();
        if state.is_left {
            drop(state);
            let result = together();
            if result == 0 {
                look();
            }
            return result;
        }
        let direction = usize::from(!asked.is_read);
        let side = &mut state.sides[direction];
        let is_sampled = side.next_is_sampled();
        let wants = side.wish == Some(Mode::Independent) && self.ways[direction].is_open;
        let units =
            if wants && self.are_disjoint(&mut state) { self.all_may(&state, asked) } else { None };
        let is_alone = units.is_some();
        if is_sampled && !is_alone {
            // What a rank waits for the others is no part of what a call takes.
            ask!("PMPI_Barrier", self.communicator);
        }
        let start = Instant::now();
        let result = match &units {
            Some(units) => alone(self.leaves(asked, units)),
            None => together(),
        };
        let took_s = start.elapsed().as_secs_f64();
        if result == 0 {
            look();
        }
        if !is_alone && !is_sampled {
            return result;
        }
        if is_alone && let Some(services) = services() {
            (services.count)(counted::MPI_INDEPENDENT, 1);
        }
        let class = if is_sampled {
            let report = self.report(&state, asked, units, result, took_s);
            let mode = if is_alone { Mode::Independent } else { Mode::Collective };
            self.exchange(&mut state, asked.is_read, mode, &report).class
        } else {
            let said = gather(self.abi, self.communicator, self.ranks, &[class_of(result)]);
            said.into_iter().flatten().map(|[class]| class).max().unwrap_or(0)
        };
        drop(state);
        if !is_alone || result != 0 || class == 0 {
            return result;
        }
        // As with the collective call, an error of one is one of all.
        let class = class as Word;
        ask!("PMPI_File_call_errhandler", self.handle as Word, class);
        class as c_int
    }

    /// Whether all views are proved to be disjoint, and have holes. All ranks ask at the same call.
    fn are_disjoint(&self, state: &mut State) -> bool {
        if state.views == Views::NotAsked {
            let own = self.tile(&state.view);
            state.first = own.rows[0].offset;
            let tiles = collect(self.abi, self.communicator, self.ranks, &own);
            let mut answer = u64::from(tiles.is_some_and(|tiles| are_disjoint(&tiles)));
            broadcast(self.abi, self.communicator, &mut answer);
            state.views = if answer == 1 { Views::Disjoint } else { Views::NotProved };
        }
        state.views == Views::Disjoint
    }

    /// What this rank knows of its view; not known where that has no holes.
    fn tile(&self, view: &View) -> Tile {
        let View { unit, units, extent } = *view;
        if units == 0 || units.saturating_mul(unit) >= extent {
            return Tile::UNKNOWN;
        }
        let place = |at: i64| self.place_of(at);
        match all_rows::<ROWS>(units as i64, unit, PIECES, place) {
            Some((rows, count)) => Tile { extent, count: count as u64, rows },
            None => Tile::UNKNOWN,
        }
    }

    /// Where a unit of the view lies in the file.
    fn place_of(&self, unit: i64) -> Option<u64> {
        let (handle, mut found) = (self.handle as Word, -1i64);
        let is_known =
            ask!("PMPI_File_get_byte_offset", handle, unit as Word, (&raw mut found) as Word);
        if is_known { u64::try_from(found).ok() } else { None }
    }

    /// Where the pointer of this rank is.
    fn position(&self) -> Option<i64> {
        let mut at = -1i64;
        let is_known = ask!("PMPI_File_get_position", self.handle as Word, (&raw mut at) as Word);
        Some(at).filter(|&at| is_known && at >= 0)
    }

    /// Runs a call that moves the pointer of this rank, or reads or writes there.
    pub(crate) fn hold_pointer(&self, call: impl FnOnce() -> c_int) -> c_int {
        let _held = self.pointer.lock().unwrap_or_else(PoisonError::into_inner);
        call()
    }

    /// Where a call begins that is made alone. The pointer is moved behind it first, as the library
    /// does in a collective call: also where it fails.
    fn leaves(&self, asked: Asked, units: &Range<i64>) -> i64 {
        if asked.offset.is_some() {
            return units.start;
        }
        let _held = self.pointer.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have moved it: then its call comes first.
        let start = self.position().unwrap_or(units.start);
        let end = start.saturating_add(units.end - units.start);
        if end > start {
            ask!("PMPI_File_seek", self.handle as Word, end as Word, self.abi.seek_set);
        }
        start
    }

    /// How many units a call reads or writes; `None` where its arguments are wrong, or the type is
    /// none.
    fn length(&self, view: &View, asked: Asked) -> Option<i64> {
        let count = u64::try_from(asked.count).ok()?;
        if asked.datatype == 0 || asked.datatype as u32 == self.abi.no_type as u32 {
            return None;
        }
        let bytes = size_of_type(asked.datatype).checked_mul(count)?;
        let is_whole = bytes.is_multiple_of(view.unit);
        i64::try_from(bytes / view.unit).ok().filter(|_| is_whole)
    }

    /// The units of a call that has not been made.
    fn units(&self, view: &View, asked: Asked) -> Option<Range<i64>> {
        let length = self.length(view, asked)?;
        let start = match asked.offset {
            Some(offset) => offset,
            None => self.position()?,
        };
        let end = start.checked_add(length)?;
        (start >= 0).then_some(start..end)
    }

    /// First and last byte of units in the file; `None` of no units.
    fn range(&self, view: &View, units: &Range<i64>) -> Option<(u64, u64)> {
        if units.is_empty() {
            return None;
        }
        let (first, last) = self.place_of(units.start).zip(self.place_of(units.end - 1))?;
        Some((first, last + view.unit - 1))
    }

    /// The units of the call, if each rank may make it alone: its arguments are sound, the file is
    /// not atomic, what it reads is there, as a library may count bytes behind the end in another
    /// way, and the library itself would exchange data. Returns when all ranks have come here, as
    /// collective calls do.
    fn all_may(&self, state: &State, asked: Asked) -> Option<Range<i64>> {
        let handle = self.handle as Word;
        let view = &state.view;
        let may = || {
            let mut is_atomic: c_int = 1;
            let is_known = ask!("PMPI_File_get_atomicity", handle, (&raw mut is_atomic) as Word);
            if !is_known || is_atomic != 0 {
                return None;
            }
            let units = self.units(view, asked)?;
            // The view may have been changed by a function that is not seen.
            let (first, next) = self.place_of(0).zip(self.place_of(view.units as i64))?;
            if first != state.first || next != first + view.extent {
                return None;
            }
            let Some((first, last)) = self.range(view, &units) else {
                // Between no others.
                return units.is_empty().then_some((units, [1, u64::MAX, 0]));
            };
            let mut size = -1i64;
            let is_there = !asked.is_read
                || ask!("PMPI_File_get_size", handle, (&raw mut size) as Word)
                    && i64::try_from(last).is_ok_and(|last| last < size);
            is_there.then_some((units, [1, first, last]))
        };
        let may = may();
        let own = may.as_ref().map_or([0; 3], |(_, said)| *said);
        let said = gather(self.abi, self.communicator, self.ranks, &own)?;
        let way = self.ways[usize::from(!asked.is_read)];
        let exchanges = !way.looks_at_ranges
            || do_interleave(said.iter().map(|[_, first, last]| (*first, *last)));
        let all = said.iter().all(|said| said[0] == 1);
        may.filter(|_| all && exchanges).map(|(units, _)| units)
    }

    /// What this rank says of a call that has returned `result`, and of its units, where they are
    /// known.
    fn report(
        &self,
        state: &State,
        asked: Asked,
        units: Option<Range<i64>>,
        result: c_int,
        took_s: f64,
    ) -> Report {
        if result != 0 {
            return Report { class: class_of(result), took_s, ..Report::default() };
        }
        let nothing = Report { took_s, ..Report::default() };
        let view = &state.view;
        // Behind a call the pointer has moved.
        let start_of = |length| match asked.offset {
            Some(offset) => Some(offset),
            None => self.position().and_then(|end| end.checked_sub(length)),
        };
        let units = units.or_else(|| {
            let length = self.length(view, asked)?;
            let start = start_of(length).filter(|&start| start >= 0)?;
            Some(start..start.checked_add(length)?)
        });
        let Some(units) = units else { return nothing };
        let Some((first, last)) = self.range(view, &units) else { return nothing };
        let bytes = (units.end - units.start) as u64 * view.unit;
        let (found, rows) =
            crate::pieces::rows::<8>(units.start, units.end, view.unit, |at| self.place_of(at));
        // Of a part that was looked at, as if the rest were alike.
        let seen = found[..rows].iter().fold((0, 0), |(bytes, pieces), row| {
            (bytes + row.bytes * row.count, pieces + row.count)
        });
        let pieces = (seen.1 as f64 * bytes as f64 / seen.0.max(1) as f64) as u64;
        Report { class: 0, bytes, pieces: pieces.max(1), first, end: last + 1, took_s }
    }

    /// Tells the rank that decides what the call was, and hears how the next ones are to be made.
    fn exchange(&self, state: &mut State, is_read: bool, mode: Mode, own: &Report) -> Verdict {
        let reports = collect(self.abi, self.communicator, self.ranks, own);
        let side = &mut state.sides[usize::from(!is_read)];
        let mut verdict = Verdict::default();
        if let Some(reports) = reports {
            verdict.class = reports.iter().map(|report| report.class).max().unwrap_or(0);
            verdict.wish = match self.decide(side, is_read, mode, &reports) {
                Some(Mode::Independent) => 2,
                Some(Mode::Collective) => 1,
                None => 0,
            };
        }
        broadcast(self.abi, self.communicator, &mut verdict);
        let wish = match verdict.wish {
            2 => Some(Mode::Independent),
            1 => Some(Mode::Collective),
            _ => None,
        };
        side.is_new = wish != side.wish;
        side.wish = wish;
        verdict
    }

    /// On the rank that decides: the mode of the next calls, by what this one was.
    fn decide(
        &self,
        side: &mut Side,
        is_read: bool,
        mode: Mode,
        reports: &[Report],
    ) -> Option<Mode> {
        let sum = |of: fn(&Report) -> u64| reports.iter().map(of).fold(0u64, u64::saturating_add);
        let (bytes, pieces) = (sum(|report| report.bytes), sum(|report| report.pieces));
        if bytes == 0 || reports.iter().any(|report| report.class != 0) {
            return side.wish;
        }
        let used = || reports.iter().filter(|report| report.bytes > 0);
        let first = used().map(|report| report.first).min()?;
        let end = used().map(|report| report.end).max()?;
        let device = hints::device(self.fd, first..end, !is_read)?;
        let call = Call {
            ranks: self.ranks.count,
            nodes: self.nodes,
            aggregators: self.aggregators,
            buffer: self.buffer,
            bytes,
            largest_domain: 0,
            piece: (bytes / pieces.max(1)).max(1),
            is_contiguous: false,
        };
        let network = hints::network();
        let found = decide(&call, &network, &device, &side.correction, side.wish)?;
        let took_s = reports.iter().map(|report| report.took_s).fold(0.0, f64::max);
        side.correction.observe(mode, found.times.of(mode), took_s);
        let next = decide(&call, &network, &device, &side.correction, Some(mode))?;
        Some(next.mode)
    }
}

/// The file was closed on all ranks, or is about to be.
pub(crate) fn closed(handle: u64) {
    let mut files = files();
    if let Some(at) = files.iter().position(|file| file.handle == handle) {
        let file = files.swap_remove(at);
        drop(files);
        let mut communicator = file.communicator;
        ask!("PMPI_Comm_free", (&raw mut communicator) as Word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_each_eighth_call_and_the_first_in_a_new_mode_are_sampled() {
        let mut side = Side::default();
        let sampled: Vec<u64> = (1..=32)
            .filter(|&call| {
                side.is_new = call == 21;
                side.next_is_sampled()
            })
            .collect();
        assert_eq!(sampled, [1, 2, 3, 4, 8, 16, 21, 24, 32]);
    }

    #[test]
    fn ranges_interleave_as_the_library_sees_it() {
        let is = |ranges: &[(u64, u64)]| do_interleave(ranges.iter().copied());
        assert!(!is(&[]) && !is(&[(0, 99)]));
        assert!(!is(&[(0, 99), (100, 199), (200, 299)]));
        assert!(is(&[(0, 190), (10, 199)]));
        // A rank without bytes is between no others.
        assert!(!is(&[(0, 190), (u64::MAX, 0), (10, 199)]));
        assert!(is(&[(0, 190), (u64::MAX, 0), (10, 199), (20, 209)]));
        // Backwards counts, too.
        assert!(is(&[(100, 199), (0, 99)]));
    }

    #[test]
    fn ranks_do_what_all_of_them_can() {
        let way = |is_open, looks_at_ranges| Way { is_open, looks_at_ranges };
        let used = |ways| Used { ways, ..Used::default() };
        let all = used([way(true, true), way(true, false)]);
        assert_eq!(Way::of_bits(all.bits()), all.ways);
        let other = used([way(true, false), way(false, false)]);
        let both = Way::of_bits(all.bits() & other.bits());
        assert_eq!(both, [way(true, true), way(false, true)]);
        // A rank that says nothing closes both.
        assert!(Way::of_bits(0).iter().all(|way| !way.is_open));
    }
}
