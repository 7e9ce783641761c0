//! Where the bytes of datasets lie, as their library says: to be asked only between its calls.

use crate::known::{Layout, Open, RANK_MAX};
use crate::library::{Id, Library};
use crate::selection::Slab;
use crate::session::{FileIdentity, ManagedFile};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use forebay_client::services::ByteRange;

/// Longest name of a dataset that is told, in bytes: what a rule can ask for.
const NAME_MAX: usize = 191;
/// Longest path of a file.
const PATH_MAX: usize = 4096;
/// Chunks of a dataset of which it is known where they lie.
const CHUNKS_MAX: usize = 4096;
/// Chunks that a library may go past where they are looked for one by one: it looks for one
/// through all of them, at some 75 ns each. For what is noted at a close or flush, and for a
/// prediction.
const STEPS_NOTED: u64 = 16384;
const STEPS_AHEAD: u64 = 4096;
/// Chunks, or runs of bytes, of one prediction.
const AHEAD_MAX: usize = 64;

/// `H5I_DATASET`.
const DATASET: c_int = 5;
/// `H5D_CONTIGUOUS`, `H5D_CHUNKED`.
const CONTIGUOUS: c_int = 1;
const CHUNKED: c_int = 2;
/// `H5F_ACC_RDWR`.
const READ_WRITE: u32 = 1;
/// `H5F_CLOSE_STRONG`.
const CLOSES_ALL: c_int = 3;
/// `H5S_SEL_HYPERSLABS`.
const HYPERSLABS: c_int = 2;
/// `HADDR_UNDEF`.
const NOWHERE: u64 = u64::MAX;

/// Keeps a library from printing what fails of our own calls.
struct Quiet<'a> {
    library: &'a Library,
    handler: (*mut c_void, *mut c_void),
}

impl<'a> Quiet<'a> {
    fn now(library: &'a Library) -> Option<Quiet<'a>> {
        let mut handler = (null_mut(), null_mut());
        // SAFETY: both words are written to; 0 is the default stack, null no handler.
        let done = unsafe {
            library.H5Eget_auto2?(0, &mut handler.0, &mut handler.1) >= 0
                && library.H5Eset_auto2?(0, null_mut(), null_mut()) >= 0
        };
        done.then_some(Quiet { library, handler })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if let Some(set) = self.library.H5Eset_auto2 {
            // SAFETY: what the program had set; the call empties the stack of errors as well.
            unsafe { set(0, self.handler.0, self.handler.1) };
        }
    }
}

/// An identifier that ends with this.
struct Held<'a> {
    library: &'a Library,
    id: Id,
}

impl Held<'_> {
    fn of(library: &Library, id: Id) -> Option<Held<'_>> {
        (id >= 0).then_some(Held { library, id })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(give_up) = self.library.H5Idec_ref {
            // SAFETY: an identifier of our own.
            unsafe { give_up(self.id) };
        }
    }
}

/// The extent of a dataset, of up to [`RANK_MAX`] dimensions.
fn extent(library: &Library, id: Id) -> Option<([u64; RANK_MAX], usize)> {
    let mut dims = [0; RANK_MAX];
    // SAFETY: a dataset; and `dims` has room for as many as there are.
    unsafe {
        let space = Held::of(library, library.H5Dget_space?(id))?;
        let rank = usize::try_from(library.H5Sget_simple_extent_ndims?(space.id)).ok()?;
        if !(1..=RANK_MAX).contains(&rank) {
            return None;
        }
        let got = library.H5Sget_simple_extent_dims?(space.id, dims.as_mut_ptr(), null_mut());
        (got >= 0).then_some((dims, rank))
    }
}

/// The file that an object is in.
///
/// # Safety
/// `id` is one of the library's.
unsafe fn file_of(library: &Library, id: Id) -> Option<FileIdentity> {
    let mut path = [0_u8; PATH_MAX];
    // SAFETY: the buffer has the length that is given.
    let length = unsafe { library.H5Fget_name?(id, path.as_mut_ptr().cast::<c_char>(), PATH_MAX) };
    let is_whole = (1..PATH_MAX as isize).contains(&length);
    FileIdentity::at(CStr::from_bytes_until_nul(&path).ok().filter(|_| is_whole)?)
}

/// The same, of any identifier.
pub fn file(library: &Library, id: Id) -> Option<FileIdentity> {
    let _quiet = Quiet::now(library)?;
    // SAFETY: the library looks up what it is.
    unsafe { file_of(library, id) }
}

/// The file that a call is about to close with all that is open of it.
pub fn file_closing(library: &Library, id: Id) -> Option<FileIdentity> {
    let _quiet = Quiet::now(library)?;
    let mut degree = 0;
    // SAFETY: the library looks up what `id` is; a word is written to.
    unsafe {
        if library.H5Iget_ref?(id) != 1 {
            return None;
        }
        let list = Held::of(library, library.H5Fget_access_plist?(id))?;
        let found = library.H5Pget_fclose_degree?(list.id, &mut degree);
        (found >= 0 && degree == CLOSES_ALL).then(|| file_of(library, id))?
    }
}

/// The name of a dataset; `None` where it has none yet, or one that is too long for a rule.
fn name_of(library: &Library, id: Id, buffer: &mut [u8; NAME_MAX + 1]) -> Option<usize> {
    // SAFETY: a dataset, and a buffer of the length that is given.
    let length =
        unsafe { library.H5Iget_name?(id, buffer.as_mut_ptr().cast::<c_char>(), buffer.len()) };
    usize::try_from(length).ok().filter(|length| (1..=NAME_MAX).contains(length))
}

/// What `id` is, if it is a dataset in a file that the session of the process buffers.
pub fn look(library: &Library, id: Id) -> Option<Open> {
    let _quiet = Quiet::now(library)?;
    // SAFETY: the library looks up what `id` is; the buffers have the lengths that are given.
    let (file, is_writable, layout) = unsafe {
        if library.H5Iget_type?(id) != DATASET {
            return None;
        }
        let mut intent = 0;
        let file = {
            let file = Held::of(library, library.H5Iget_file_id?(id))?;
            library.H5Fget_intent?(file.id, &mut intent);
            file_of(library, file.id)?
        };
        let list = Held::of(library, library.H5Dget_create_plist?(id))?;
        let layout = match library.H5Pget_layout?(list.id) {
            CONTIGUOUS if library.H5Pget_external_count?(list.id) == 0 => Layout::Contiguous,
            CHUNKED => {
                let mut sides = [0; RANK_MAX];
                let rank = library.H5Pget_chunk?(list.id, RANK_MAX as c_int, sides.as_mut_ptr());
                let is_known = (1..=RANK_MAX as c_int).contains(&rank)
                    && sides[..rank as usize].iter().all(|&side| side > 0);
                if !is_known {
                    crate::files::miss(file);
                    return None;
                }
                Layout::Chunked(sides)
            }
            _ => return None,
        };
        (file, intent & READ_WRITE != 0, layout)
    };
    ManagedFile::of(file)?;
    let mut buffer = [0; NAME_MAX + 1];
    let length = name_of(library, id, &mut buffer).unwrap_or(0);
    let (extent, rank) = extent(library, id).unwrap_or(([0; RANK_MAX], 0));
    Some(Open {
        at: crate::known::key(library, id),
        file,
        name: hash(&buffer[..length]),
        layout,
        rank,
        extent,
        is_writable,
        is_settled: false,
        selections: Default::default(),
    })
}

fn hash(name: &[u8]) -> u64 {
    let add = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Tells the session where a dataset lies; returns whether that is so for good.
pub fn note(library: &Library, open: &Open) -> bool {
    let Some(managed) = ManagedFile::of(open.file) else { return false };
    let Some(_quiet) = Quiet::now(library) else { return false };
    let id = open.at.1;
    let mut buffer = [0; NAME_MAX + 1];
    let name = name_of(library, id, &mut buffer).map(|length| &buffer[..length]);
    let tell = |ranges: &[ByteRange], is_whole| {
        // First, so that a block that has both is where a rule for metadata says, if that is the
        // one that holds.
        crate::files::add(open.file, ranges, is_whole);
        note_rest(library, id, open.file, managed, true);
        if let Some(name) = name {
            managed.note(name, ranges);
        }
        name.is_some()
    };
    match open.layout {
        Layout::Contiguous => {
            let Some(range) = contiguous(library, id) else { return false };
            tell(&[range], true)
        }
        Layout::Chunked(sides) => {
            let (chunks, is_whole) = chunks(library, id, &sides);
            // Others may come.
            tell(&chunks, is_whole) && !open.is_writable
        }
    }
}

/// The same after the extent of a dataset may have changed that the process cannot write: another
/// one has.
pub fn refresh(library: &Library, open: &Open) {
    let now = Quiet::now(library).and_then(|_quiet| extent(library, open.at.1));
    if let Some((now, _)) = now.filter(|(now, _)| *now != open.extent) {
        note(library, open);
        crate::known::change(open.at, |open| open.extent = now);
    }
}

/// Bytes of a file that are in use.
fn bytes_in_use(library: &Library, id: Id) -> Option<u64> {
    let mut end = 0;
    // SAFETY: the library looks up what `id` is; a word is written to.
    unsafe {
        let file = Held::of(library, library.H5Iget_file_id?(id))?;
        // The first one is only for files of some drivers, of which MPI's is none.
        let is_known = library.H5Fget_eoa?(file.id, &mut end) >= 0
            || library.H5Fget_filesize?(file.id, &mut end) >= 0;
        (is_known && end != NOWHERE).then_some(end)
    }
}

/// Tells the session what of a file is metadata, as far as that is known. `goes_on`: what comes
/// next in the block where the file ends now may be metadata as well.
fn note_rest(library: &Library, id: Id, file: FileIdentity, managed: ManagedFile, goes_on: bool) {
    if crate::files::is_any()
        && let Some(bytes) = bytes_in_use(library, id)
        && let Some((from, mut ranges)) = crate::files::rest(file, bytes)
    {
        if goes_on {
            ranges.push(ByteRange { start: bytes, end: bytes.saturating_add(1) });
        }
        managed.note_metadata(from, &ranges);
    }
}

/// The same, of the file that any identifier is in; returns it.
pub fn note_metadata(library: &Library, id: Id, goes_on: bool) -> Option<FileIdentity> {
    let file = file(library, id)?;
    let managed = ManagedFile::of(file)?;
    let _quiet = Quiet::now(library)?;
    note_rest(library, id, file, managed, goes_on);
    Some(file)
}

/// A file was opened for writing, or made.
pub fn file_opened(library: &Library, id: Id, is_new: bool) {
    let Some(file) = file(library, id) else { return };
    let Some(managed) = ManagedFile::of(file).filter(|file| file.tells_metadata_apart()) else {
        return;
    };
    let Some(_quiet) = Quiet::now(library) else { return };
    if let Some(bytes) = bytes_in_use(library, id) {
        crate::files::opened(file, bytes, is_new);
        note_rest(library, id, file, managed, true);
    }
}

/// Whether an object is the library's own, and of no connector that does its work later: to ask
/// such a one would wait for it.
pub fn is_native(library: &Library, id: Id) -> bool {
    let Some(_quiet) = Quiet::now(library) else { return false };
    let mut is_native = false;
    // SAFETY: the library looks up what `id` is; a truth value is written to.
    let asked = library.H5VLobject_is_native.map(|ask| unsafe { ask(id, &mut is_native) });
    asked.is_some_and(|result| result >= 0) && is_native
}

/// A link of a file: from which object it goes, and by which path.
pub type Link = (Id, *const c_char);

/// Tells the session that what was behind a link is behind another one now, or behind none.
pub fn moved(library: &Library, from: Link, to: Option<Link>) {
    let Some(managed) = file(library, from.0).and_then(ManagedFile::of) else { return };
    let Some(_quiet) = Quiet::now(library) else { return };
    let path = |link: Link| path_of(library, link);
    match (path(from), to.map(path)) {
        (Some(from), None) => managed.rename(&from, None),
        // A path that is too long for a rule is none.
        (Some(from), Some(to)) => managed.rename(&from, to.as_deref()),
        (None, _) => {}
    }
}

/// The path of a link from the root of its file on.
fn path_of(library: &Library, (place, path): Link) -> Option<Vec<u8>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program's path, which the library has read in the same call.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.first() == Some(&b'/') {
        return Some(joined(b"", path));
    }
    let mut buffer = [0; NAME_MAX + 1];
    let length = name_of(library, place, &mut buffer)?;
    Some(joined(&buffer[..length], path))
}

/// Two paths as one, as the library says it.
fn joined(place: &[u8], path: &[u8]) -> Vec<u8> {
    let names = place.split(|&byte| byte == b'/').chain(path.split(|&byte| byte == b'/'));
    let names = names.filter(|name| !name.is_empty() && *name != b".");
    names.flat_map(|name| [&b"/"[..], name]).flatten().copied().collect()
}

/// The bytes of a dataset in one piece, once it has any.
fn contiguous(library: &Library, id: Id) -> Option<ByteRange> {
    // SAFETY: a dataset.
    let (start, bytes) = unsafe { (library.H5Dget_offset?(id), library.H5Dget_storage_size?(id)) };
    let end = start.checked_add(bytes)?;
    (start != NOWHERE && bytes > 0).then_some(ByteRange { start, end })
}

/// The bytes of the chunk that has an element, if it is in the file. A chunk that the library has
/// in memory goes there first.
fn chunk(library: &Library, id: Id, element: &[u64; RANK_MAX]) -> Option<ByteRange> {
    let (mut filters, mut start, mut bytes) = (0, 0, 0);
    // SAFETY: a dataset of no more dimensions than `element` has, and three words.
    let found = unsafe {
        library.H5Dget_chunk_info_by_coord?(
            id,
            element.as_ptr(),
            &mut filters,
            &mut start,
            &mut bytes,
        )
    };
    let end = start.checked_add(bytes)?;
    (found >= 0 && start != NOWHERE && bytes > 0).then_some(ByteRange { start, end })
}

/// The first elements of chunks, in the order of the file's dimensions: all that have elements of a
/// box.
struct Grid<'a> {
    sides: &'a [u64; RANK_MAX],
    rank: usize,
    first: [u64; RANK_MAX],
    last: [u64; RANK_MAX],
    next: Option<[u64; RANK_MAX]>,
}

impl<'a> Grid<'a> {
    fn of(slab: &Slab, sides: &'a [u64; RANK_MAX], rank: usize) -> Grid<'a> {
        let begin = |d: usize, index: u64| if d < rank { index - index % sides[d] } else { 0 };
        let first = core::array::from_fn(|d| begin(d, slab.start[d]));
        let last = core::array::from_fn(|d| begin(d, slab.end[d]));
        Grid { sides, rank, first, last, next: Some(first) }
    }
}

impl Iterator for Grid<'_> {
    type Item = [u64; RANK_MAX];

    fn next(&mut self) -> Option<[u64; RANK_MAX]> {
        let now = self.next?;
        let mut next = now;
        self.next = None;
        for d in (0..self.rank).rev() {
            if next[d] < self.last[d] {
                next[d] += self.sides[d];
                self.next = Some(next);
                break;
            }
            next[d] = self.first[d];
        }
        Some(now)
    }
}

/// How many chunks a dataset of this extent has, at most.
fn count_chunks(dims: &[u64], sides: &[u64; RANK_MAX]) -> u64 {
    let count = |(dim, side): (&u64, &u64)| dim.div_ceil(*side);
    dims.iter().zip(sides).map(count).fold(1, u64::saturating_mul)
}

/// How many of so many chunks may be looked for one by one in so many steps.
fn looked_for(chunks: u64, steps: u64) -> usize {
    (steps / chunks.max(1)) as usize
}

/// The bytes of all chunks that a dataset has, or of the first of them, and whether it is all.
/// Libraries from 1.14 on tell of all in one pass; others are asked only for few.
fn chunks(library: &Library, id: Id, sides: &[u64; RANK_MAX]) -> (Vec<ByteRange>, bool) {
    let Some((dims, rank)) = extent(library, id) else { return (Vec::new(), false) };
    if dims[..rank].contains(&0) {
        return (Vec::new(), true);
    }
    // Of 1.12 and 1.13 it calls with other arguments.
    if let Some(visit_all) = library.H5Dchunk_iter.filter(|_| library.H5Dwrite_multi.is_some()) {
        let mut found: Vec<ByteRange> = Vec::new();
        // SAFETY: a dataset, the default transfer, and what `visit` takes, which lives as long.
        let result = unsafe { visit_all(id, 0, visit, (&raw mut found).cast()) };
        let is_whole = result == 0;
        return (found, is_whole);
    }
    let count = count_chunks(&dims[..rank], sides);
    let end = core::array::from_fn(|d| dims[d].saturating_sub(1));
    let all = Slab { start: [0; RANK_MAX], end };
    let most = looked_for(count, STEPS_NOTED);
    let elements = Grid::of(&all, sides, rank).take(most);
    let found = elements.filter_map(|element| chunk(library, id, &element)).collect();
    (found, count <= most as u64)
}

/// Takes in a chunk; 1, which ends the pass, where there is no room for more.
///
/// # Safety
/// `found` is the vector that [`chunks`] gave.
unsafe extern "C" fn visit(
    _element: *const u64,
    _filters: core::ffi::c_uint,
    start: u64,
    bytes: u64,
    found: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    let found = unsafe { &mut *found.cast::<Vec<ByteRange>>() };
    if found.len() == CHUNKS_MAX {
        return 1;
    }
    if let Some(end) = start.checked_add(bytes).filter(|_| start != NOWHERE && bytes > 0) {
        found.push(ByteRange { start, end });
    }
    0
}

/// Takes in that a part of a dataset is read now, and has brought what is read next, if that can be
/// told.
pub fn read(library: &Library, open: &Open, space: Id) {
    if open.rank == 0 || !open.selections.may_go_on() {
        return;
    }
    let Some(_quiet) = Quiet::now(library) else { return };
    if let Some((now, dims)) = selected(library, open, space) {
        read_slab(library, open, now, dims);
    }
}

/// The same of a chunk that is read as it lies in the file.
///
/// # Safety
/// `offset` is null, or has as many words as the dataset has dimensions.
pub unsafe fn read_chunk(library: &Library, open: &Open, offset: *const u64) {
    let Layout::Chunked(sides) = open.layout else { return };
    if open.rank == 0 || offset.is_null() || !open.selections.may_go_on() {
        return;
    }
    let Some(_quiet) = Quiet::now(library) else { return };
    let Some((dims, rank)) = extent(library, open.at.1).filter(|(_, rank)| *rank == open.rank)
    else {
        return;
    };
    let mut slab = Slab::default();
    for (d, side) in sides.iter().enumerate().take(rank) {
        // SAFETY: as the caller says.
        slab.start[d] = unsafe { *offset.add(d) };
        slab.end[d] = slab.start[d].saturating_add(side - 1);
    }
    read_slab(library, open, slab, dims);
}

fn read_slab(library: &Library, open: &Open, now: Slab, dims: [u64; RANK_MAX]) {
    let mut next = None;
    crate::known::change(open.at, |open| next = open.selections.next(now, &dims[..open.rank]));
    if let (Some(next), Some(managed)) = (next, ManagedFile::of(open.file)) {
        match open.layout {
            Layout::Chunked(sides) => {
                let most = looked_for(count_chunks(&dims[..open.rank], &sides), STEPS_AHEAD);
                let elements = Grid::of(&next, &sides, open.rank).take(AHEAD_MAX.min(most));
                let chunks = elements.filter_map(|element| chunk(library, open.at.1, &element));
                chunks.for_each(|range| managed.will_need(range));
            }
            Layout::Contiguous => {
                let whole = contiguous(library, open.at.1);
                let runs = whole.map(|whole| runs(&next, &dims[..open.rank], whole));
                runs.into_iter().flatten().for_each(|range| managed.will_need(range));
            }
        }
    }
}

/// The box around what a space selects, and the extent of that.
fn selected(library: &Library, open: &Open, space: Id) -> Option<(Slab, [u64; RANK_MAX])> {
    let (mut slab, mut dims) = (Slab::default(), [0; RANK_MAX]);
    // SAFETY: a space of as many dimensions as there are words, as was looked at.
    unsafe {
        let rank = library.H5Sget_simple_extent_ndims?(space);
        if library.H5Sget_select_type?(space) != HYPERSLABS || rank != open.rank as c_int {
            return None;
        }
        let (start, end) = (slab.start.as_mut_ptr(), slab.end.as_mut_ptr());
        let found = library.H5Sget_select_bounds?(space, start, end) >= 0
            && library.H5Sget_simple_extent_dims?(space, dims.as_mut_ptr(), null_mut()) >= 0;
        found.then_some((slab, dims))
    }
}

/// Where the elements of a box lie in a dataset in one piece: one range for each row of them, or,
/// where whole rows follow each other, for more.
fn runs(slab: &Slab, dims: &[u64], whole: ByteRange) -> impl Iterator<Item = ByteRange> {
    let elements = dims.iter().product::<u64>().max(1);
    let element_bytes = (whole.end - whole.start) / elements;
    // The innermost dimensions that the box has all of are in one run with the one above.
    let is_whole = |d: &usize| slab.start[*d] == 0 && slab.end[*d] + 1 == dims[*d];
    let inner = (1..dims.len()).rev().take_while(is_whole).count();
    let outer = dims.len() - 1 - inner;
    let linear = move |index: &[u64; RANK_MAX], dims: &[u64]| {
        dims.iter().zip(index).fold(0, |sum, (dim, index)| sum * dim + index)
    };
    let (mut begins, mut ends) = (slab.start, slab.start);
    ends[outer..].copy_from_slice(&slab.end[outer..]);
    let length = linear(&ends, dims) - linear(&begins, dims) + 1;
    let (slab, dims_kept) = (*slab, {
        let mut kept = [1; RANK_MAX];
        kept[..dims.len()].copy_from_slice(dims);
        kept
    });
    let rank = dims.len();
    let mut is_over = false;
    core::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let start = whole.start + linear(&begins, &dims_kept[..rank]) * element_bytes;
        is_over = true;
        for d in (0..outer).rev() {
            if begins[d] < slab.end[d] {
                begins[d] += 1;
                is_over = false;
                break;
            }
            begins[d] = slab.start[d];
        }
        Some(ByteRange { start, end: (start + length * element_bytes).min(whole.end) })
    })
    .take(AHEAD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slab(start: &[u64], end: &[u64]) -> Slab {
        let mut slab = Slab::default();
        slab.start[..start.len()].copy_from_slice(start);
        slab.end[..end.len()].copy_from_slice(end);
        slab
    }

    #[test]
    fn paths_are_as_the_library_says_them() {
        assert_eq!(joined(b"/", b"a"), b"/a");
        assert_eq!(joined(b"/g/h", b"./a//b/"), b"/g/h/a/b");
        assert_eq!(joined(b"", b"/a/./b"), b"/a/b");
        assert_eq!(joined(b"/", b"."), b"");
    }

    #[test]
    fn chunks_of_a_box_are_those_that_it_touches() {
        let mut sides = [0; RANK_MAX];
        sides[..2].copy_from_slice(&[10, 4]);
        let found: Vec<_> = Grid::of(&slab(&[9, 5], &[10, 8]), &sides, 2)
            .map(|element| (element[0], element[1]))
            .collect();
        assert_eq!(found, [(0, 4), (0, 8), (10, 4), (10, 8)]);
    }

    #[test]
    fn rows_that_follow_each_other_are_one_run() {
        let whole = ByteRange { start: 1000, end: 1000 + 8 * 6 * 5 * 4 };
        let all = |slab: Slab| runs(&slab, &[6, 5, 4], whole).collect::<Vec<_>>();
        let range = |first: u64, count: u64| {
            let start = 1000 + 8 * first;
            ByteRange { start, end: start + 8 * count }
        };
        assert_eq!(all(slab(&[2, 0, 0], &[3, 4, 3])), [range(40, 40)]);
        assert_eq!(all(slab(&[2, 1, 0], &[3, 2, 3])), [range(44, 8), range(64, 8)]);
        let rows = [range(1, 2), range(5, 2), range(21, 2), range(25, 2)];
        assert_eq!(all(slab(&[0, 0, 1], &[1, 1, 2])), rows);
        let one = ByteRange { start: 0, end: 80 };
        let found: Vec<_> = runs(&slab(&[3], &[4]), &[10], one).collect();
        assert_eq!(found, [ByteRange { start: 24, end: 40 }]);
    }
}
