//! A manager's first steps with a pool: it takes back what a dead predecessor and its dead clients
//! held, and then says that it is alive.

use crate::manager::housekeeping::{finish_truncate, mark_pending_files};
use crate::manager::jobs;
use crate::node::Node;
use crate::usage::{sparse_of, whole_buckets_of};
use forebay_placement::TierId;
use forebay_pool::BucketId;
use forebay_pool::backoff::Backoff;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::layout::FileFlags;
use forebay_pool::lease::Lease;
use forebay_pool::slot_record::RECORD_BYTES;
use forebay_pool::{SlotRecord, crash, liveness};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Clients must not take the manager for alive before it has counted what its predecessor was
/// writing as dirty again.
pub(crate) fn register_manager(node: &Node) {
    let pid = std::process::id();
    let header = node.header();
    header.now_ms.store(node.now(), Ordering::Relaxed);
    header.namespace.store(liveness::namespace(), Ordering::Relaxed);
    header.manager_start.store(liveness::start_time(pid).unwrap_or(0), Ordering::Release);
    // A process that sees that it is alive sees that it is another one.
    header.manager_epoch.fetch_add(1, Ordering::AcqRel);
    header.manager_pid.store(pid, Ordering::Release);
}

/// Takes back what a dead predecessor and its dead clients held. Before any worker runs.
pub(crate) fn take_over(node: &Node) {
    let mut unfinished = Vec::new();
    let header = node.header();
    // No manager serves it yet, whatever the predecessor left there.
    header.manager_pid.store(0, Ordering::Release);
    header.retired.store(0, Ordering::Release);
    let devices = header.tier.iter().map(|tier| &tier.emulation);
    for device in devices.chain(header.store.iter().map(|store| &store.emulation)) {
        device.next_free_ns.store(0, Ordering::Relaxed);
    }
    crash::point("takeover.begin");
    let found = node.segment.recover(|file, owner| unfinished.push((file, owner)));
    crash::point("takeover.recovered");
    for file in node.segment.files().live() {
        let record = node.segment.file(file);
        // The descriptors died with the manager; the process that writes next sends its own again.
        let told = FileFlags::REGISTERED | FileFlags::TO_FIND;
        // What it was syncing may not be durable.
        record.clear(told | FileFlags::HELD | FileFlags::FAILING | FileFlags::SYNCED);
        node.retry_now(file);
        if !node.config.shares_files() {
            // No other node is asked for anything: what a group of earlier has left counts no more.
            if record.is_borrowed() {
                // The store may never get what these were copies of.
                node.segment.drop_clean_blocks(file, Node::new_owner());
            }
            record.lease.begin(Lease::Whole);
            record.settle_lease();
        }
        if record.awaits_sync() {
            // What waiting processes were promised the predecessor knew: it took the flags.
            record.set(FileFlags::DURABLE);
        }
        if record.is_tracked() {
            // What was done without a manager the journal does not know.
            record.set(FileFlags::LOGGED);
            node.segment.request_sync(file, None, true);
        }
    }
    // From here on it owns what it takes.
    register_manager(node);
    for (file, owner) in unfinished {
        crash::point("takeover.unfinished");
        finish_truncate(node, file, owner);
    }
    crash::point("takeover.completed");
    mark_pending_files(node);
    jobs::take_over(node);
    for tier in node.file_tiers() {
        if let Err(errno) = repair_table(node, tier) {
            let _ = node.note_device(tier, Err(errno));
            eprintln!("tier {}: the table of its slots: {errno}", node.tier_name(tier));
        }
    }
    info!(
        "took over a pool with {} KiB to drain, {} live clients, {} unnamed buckets",
        node.dirty_bytes_total() / 1024,
        found.clients,
        found.orphans
    );
}

/// Writes the records of slots anew that do not say what the segment says: the process that changed
/// the slot was killed before it came to that, or the record is damaged.
fn repair_table(node: &Node, tier: TierId) -> Result<(), Errno> {
    /// Records that are read at a time: 1 MiB.
    const PIECE: usize = 1024;
    let segment = &node.segment;
    let Some(index) = node.indexes[tier].as_ref() else { return Ok(()) };
    let owner = Node::new_owner();
    let mut backoff = Backoff::default();
    let mut piece = vec![0; PIECE * RECORD_BYTES];
    // In two runs of numbers without gaps.
    let whole: Vec<BucketId> = whole_buckets_of(segment, tier).collect();
    let sparse: Vec<BucketId> = sparse_of(segment, tier).collect();
    for slots in whole.chunks(PIECE).chain(sparse.chunks(PIECE)) {
        piece.fill(0);
        let mut got = 0;
        let start = segment.record_offset(slots[0]);
        loop {
            match rustix::io::pread(index, &mut piece[got..], start + got as u64)? {
                0 => break,
                count => got += count,
            }
        }
        for (&slot, bytes) in slots.iter().zip(piece.chunks(RECORD_BYTES)) {
            let written = SlotRecord::decode(bytes);
            let agrees = |now: &SlotRecord| match &written {
                Ok(Some(old)) => now.agrees_with(old),
                Ok(None) => now.dirty == 0,
                Err(_) => false,
            };
            let Some(meta) = segment.bucket(slot) else { continue };
            let now = || match segment.is_indexed(slot) {
                true => segment.slot_record(slot),
                false => SlotRecord::void(segment.next_sequence()),
            };
            if agrees(&now()) {
                continue;
            }
            // Its holder writes the record itself, or has not begun to change what it is about.
            let Ok(_lock) = segment.lock_bucket_within(meta, owner, &mut backoff) else {
                continue;
            };
            if segment.is_indexed(slot) {
                segment.sum_unfinished(node, slot);
            }
            let now = now();
            if !agrees(&now) {
                crash::point("table.repairing");
                node.write_record(slot, &now.encode())?;
            }
        }
    }
    Ok(())
}
