//! Helpers: the threads of a container that read ahead, leave to the store what is beyond its
//! limits, and take part in large copies. They belong to the container: opening it starts them, and
//! closing it waits for them.

use super::copy;
use super::store::{Located, State, Store, get, locate};
use crate::report::failed;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::collections::HashSet;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Records ahead that are looked at: with small ones the window need not be full.
const AHEAD: usize = 256;

/// Records that are read next: where they are is looked at again after each read.
const NEAR: usize = 2;

/// The level to which a record is brought before it leaves the tiers: `FOREBAY_STORE`.
const STORE: c_int = 3;

/// What a helper is to do.
enum Work {
    /// Read a version ahead.
    Load(Located, Vec<u8>),
    /// Leave these to the store.
    Spill(Vec<Located>),
}

/// Starts the helpers of a container. The program's signal handlers do not run on them.
fn start(store: &Arc<Store>) -> Result<Vec<JoinHandle<()>>, c_int> {
    let mut helpers = Vec::new();
    let before = block_signals();
    for _ in 0..store.options().helpers {
        let own = Arc::clone(store);
        let builder = thread::Builder::new().name("forebay-records".to_owned());
        match builder.spawn(move || run(&own)) {
            Ok(helper) => helpers.push(helper),
            Err(error) => {
                restore_signals(&before);
                stop(store, helpers);
                let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
                let text = format_args!("starting the threads of a container");
                return Err(failed(-errno, text));
            }
        }
    }
    restore_signals(&before);
    Ok(helpers)
}

/// Ends them, and waits for what they are doing.
pub(crate) fn stop(store: &Store, helpers: Vec<JoinHandle<()>>) {
    store.begin_close();
    for helper in helpers {
        // A helper returns nothing.
        let _ = helper.join();
    }
}

/// Starts the helpers of a container that was just opened, or gives up what it has made.
pub(crate) fn begin(store: Store) -> Result<(Arc<Store>, Vec<JoinHandle<()>>), c_int> {
    let store = Arc::new(store);
    match start(&store) {
        Ok(helpers) => Ok((store, helpers)),
        Err(code) => {
            abandon(store);
            Err(code)
        }
    }
}

/// Gives up what a container has made that is not opened after all. Its helpers have ended.
pub(crate) fn abandon(store: Arc<Store>) {
    if let Some(store) = Arc::into_inner(store) {
        store.abandon();
    }
}

/// Ends a container that no call uses any more: its helpers, and then its files. False in a child
/// of `fork`, which has none of its threads and may not remove its files: nothing is done there.
pub(crate) fn finish(store: Arc<Store>, helpers: Vec<JoinHandle<()>>) -> bool {
    if store.check_process().is_err() {
        std::mem::forget((store, helpers));
        return false;
    }
    stop(&store, helpers);
    // The helpers had the others.
    if let Some(store) = Arc::into_inner(store) {
        store.finish();
    }
    true
}

fn block_signals() -> MaybeUninit<libc::sigset_t> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both are written to.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    before
}

fn restore_signals(before: &MaybeUninit<libc::sigset_t>) {
    // SAFETY: what `block_signals` has filled in.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
}

fn run(store: &Store) {
    let mut state = store.lock();
    while !store.is_closing() {
        if let Some(copying) = state.copying.clone().filter(|copying| copying.has_more()) {
            drop(state);
            copying.work();
            state = store.lock();
            // The reader waits for the parts of others.
            store.tell();
            continue;
        }
        let Some(work) = next(store, &mut state) else {
            if copy::is_unknown(state.largest) {
                // Now, or the first read of one waits for it.
                drop(state);
                copy::limits();
                state = store.lock();
                continue;
            }
            state = store.wait(state);
            continue;
        };
        match work {
            Work::Load(found, buffer) => {
                let file = store.file_of(&mut state, &found);
                state.hold(&found);
                let after = following(&state, &found);
                drop(state);
                let (mut buffer, mut is_read) = (buffer, false);
                let entry = found.version.entry;
                buffer.clear();
                // What lies in RAM is copied from there by the reader itself.
                if let Ok(file) = file
                    && !file.is_in_memory(entry.offset, entry.bytes)
                {
                    // What a lower tier has is as fast from there, and its device has this
                    // record to read first.
                    if let Some((offset, bytes)) = after
                        && !file.is_in_tiers(offset, bytes)
                    {
                        file.announce(offset, bytes);
                    }
                    // SAFETY: the buffer has room for all of the record.
                    unsafe {
                        let is_good = get(&file, &found.version, buffer.as_mut_ptr());
                        is_read = is_good == Ok(true);
                        buffer.set_len(if is_read { entry.bytes as usize } else { 0 });
                    }
                }
                state = store.lock();
                state.release(&found, store.folder());
                state.counts.loaded += u64::from(is_read);
                let reads = state.counts.reads;
                state.window.end(entry.id, entry.version, buffer, is_read, reads);
            }
            Work::Spill(records) => {
                let files: Vec<_> =
                    records.iter().map(|found| (store.file_of(&mut state, found), found)).collect();
                records.iter().for_each(|found| state.hold(found));
                drop(state);
                let (mut done, mut has_failed) = (0, false);
                for (file, found) in files {
                    let Ok(file) = file else { continue };
                    // The second one of a file finds nothing left to be flushed.
                    if file.sync(STORE, -1).is_err() {
                        has_failed = true;
                        break;
                    }
                    file.leave(found.version.entry.offset, found.version.entry.bytes);
                    done += 1;
                }
                state = store.lock();
                records.iter().for_each(|found| state.release(found, store.folder()));
                state.counts.spilled += done;
                state.cannot_spill |= has_failed;
            }
        }
        // A reader may wait for it, or another helper for room.
        store.tell();
    }
}

/// What comes first: a record that is read soon; else what is beyond the limit.
fn next(store: &Store, state: &mut State) -> Option<Work> {
    if let Some(work) = load(state) {
        return Some(work);
    }
    let fast = store.options().fast?;
    let limit = fast.saturating_add(store.options().memory);
    let beyond = state.beyond(limit);
    (!beyond.is_empty()).then_some(Work::Spill(beyond))
}

/// The first record in the order of reads that is not there yet, and a buffer for it.
fn load(state: &mut State) -> Option<Work> {
    let limit = state.window.limit();
    let reads = state.counts.reads;
    let mut ahead = 0u64;
    let mut wanted = HashSet::new();
    let mut first = None;
    let ids: Vec<_> = state.order.ahead().take(AHEAD).collect();
    for (at, id) in ids.into_iter().enumerate() {
        let Some(found) = locate(state, id) else { continue };
        let entry = found.version.entry;
        // A record that the window cannot hold is read by the reader.
        if entry.bytes > limit || entry.bytes == 0 {
            continue;
        }
        ahead += entry.bytes;
        if ahead > limit {
            break;
        }
        wanted.insert(id);
        if first.is_none() && !state.window.has(id, entry.version, at < NEAR, reads) {
            first = Some(found);
        }
    }
    let found = first?;
    let entry = found.version.entry;
    let is_wanted = |id| wanted.contains(&id);
    let buffer = state.window.begin(entry.id, entry.version, entry.bytes, is_wanted)?;
    Some(Work::Load(found, buffer))
}

/// The record after one that is loaded, if it is in the same file: it may come from
/// the store meanwhile.
fn following(state: &State, found: &Located) -> Option<(u64, u64)> {
    let entry = found.version.entry;
    let mut ids = state.order.ahead().skip_while(|&id| id != entry.id).skip(1);
    let next = locate(state, ids.next()?)?;
    let is_same = next.writer == found.writer && entry.file == 0 && next.version.entry.file == 0;
    is_same.then_some((next.version.entry.offset, next.version.entry.bytes))
}
