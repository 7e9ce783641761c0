//! Tests of the client slots on plain memory.

use crate::Identity;
use crate::clients::Clients;
use crate::layout::{ClientSlot, UNRECORDED, slot_state};
use crate::liveness;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::plain::zeroed;
use crate::slot_bits::SlotBits;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A number that no process has.
const DEAD_PID: u32 = u32::MAX - 7;

struct Plain {
    slots: Box<[ClientSlot]>,
    taken: [AtomicU64; 1],
    high: AtomicU32,
    manager: (AtomicU32, AtomicU64, AtomicU32),
    unrecorded: [AtomicU32; UNRECORDED],
}

impl Plain {
    /// Of `count` slots, that of a manager that is not there included.
    fn new(count: usize) -> Plain {
        Plain {
            slots: zeroed(count),
            taken: [AtomicU64::new(0)],
            high: AtomicU32::new(0),
            manager: (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(0)),
            unrecorded: [const { AtomicU32::new(0) }; UNRECORDED],
        }
    }

    fn view(&self) -> Clients<'_> {
        let (pid, start, epoch) = &self.manager;
        Clients {
            slots: &self.slots,
            taken: SlotBits {
                words: &self.taken,
                high: &self.high,
                count: self.slots.len() as u32,
            },
            manager: (pid, start),
            manager_epoch: epoch,
            unrecorded: &self.unrecorded,
        }
    }
}

/// This process.
fn me() -> (u32, u64) {
    let pid = std::process::id();
    (pid, liveness::start_time(pid).unwrap())
}

#[test]
fn a_child_is_named_for_one_reservation_only() {
    let plain = Plain::new(2);
    let clients = plain.view();
    let slot = clients.reserve(7, 1).unwrap();
    let client = clients.get(slot);
    let generation = client.generation.load(Ordering::Relaxed);
    assert_eq!(client.child(), None);
    client.note_child(generation, 4_194_303);
    assert_eq!(client.child(), Some(4_194_303));
    clients.vacate(slot);
    assert_eq!(client.child(), None);
    // A parent that comes late.
    client.note_child(generation, 9);
    assert_eq!(client.child(), None);
    assert_eq!(clients.reserve(8, 1), Some(slot));
    assert_eq!(client.child(), None);
    client.note_child(generation, 9);
    assert_eq!(client.child(), None);
    assert!(!client.confirm(generation, 9, 1), "a child that comes late");
    assert!(client.take_unconfirmed() && !client.take_unconfirmed());
}

#[test]
fn slots_are_taken_until_all_are_in_use_and_again_when_one_is_free() {
    let plain = Plain::new(4);
    let clients = plain.view();
    let (pid, start) = me();
    let taken: Vec<_> = (0..4).map(|_| clients.claim(pid, start)).collect();
    assert_eq!(taken, [Some(1), Some(2), Some(3), None]);
    assert!(clients.used().map(|(slot, _)| slot).eq(1..4));
    assert_eq!(clients.slot_of(pid, start), Some(1));
    clients.vacate(1);
    assert!(clients.used().map(|(slot, _)| slot).eq(2..4));
    assert_eq!(clients.slot_of(pid, start), Some(2));
    assert_eq!(clients.claim(pid, start), Some(1));
}

#[test]
fn an_owner_is_dead_when_its_process_is_and_no_manager_reaps_it() {
    let plain = Plain::new(4);
    let clients = plain.view();
    let (pid, start) = me();
    let living = Owner::new(clients.claim(pid, start).unwrap(), 0);
    let dead = Owner::new(clients.claim(DEAD_PID, 1).unwrap(), 0);
    let child = Owner::new(clients.reserve(DEAD_PID, 1).unwrap(), 0);
    let manager = Owner::new(MANAGER_SLOT, 0);
    let beyond = Owner::new(4, 0);
    let all = [living, dead, child, manager, beyond];
    assert_eq!(all.map(|owner| clients.is_dead(owner)), [false, true, false, true, true]);
    assert!(clients.any_lives());
    plain.manager.0.store(pid, Ordering::Relaxed);
    plain.manager.1.store(start, Ordering::Relaxed);
    assert!(!clients.is_dead(manager));
    assert!(clients.get(child.slot()).take_unconfirmed());
    assert!(!clients.is_dead(child) && clients.is_being_reaped(child));
    assert!(!clients.is_being_reaped(dead) && !clients.is_being_reaped(manager));
}

#[test]
fn openers_and_jobs_are_those_of_slots_in_use() {
    let plain = Plain::new(4);
    let clients = plain.view();
    let slots = [7, 8, 9].map(|pid| clients.claim(pid, 1).unwrap());
    for slot in [slots[0], slots[2]] {
        clients.get(slot).begin_open();
        clients.get(slot).job.store(5, Ordering::Relaxed);
    }
    assert!(clients.openers().eq([7, 9]) && clients.has_of_job(5));
    clients.vacate(slots[0]);
    clients.get(slots[2]).end_open();
    assert_eq!(clients.openers().count(), 0);
    assert!(clients.has_of_job(5));
    clients.vacate(slots[2]);
    assert!(!clients.has_of_job(5));
}

#[test]
fn files_without_a_record_are_forgotten_with_the_last_process_that_may_use_them() {
    let plain = Plain::new(4);
    let clients = plain.view();
    let (pid, start) = me();
    let parent = clients.claim(pid, start).unwrap();
    let (one, other) = (Identity { device: 7, inode: 1 }, Identity { device: 7, inode: 2 });
    clients.note_unrecorded(one, Owner::new(parent, 1));
    let child = clients.reserve(pid, start).unwrap();
    clients.inherit(parent, child);
    // Noted by another thread between that and the fork.
    clients.note_unrecorded(other, Owner::new(parent, 2));
    clients.forget_unrecorded();
    assert!(clients.is_unrecorded(one) && clients.is_unrecorded(other));
    clients.vacate(parent);
    clients.forget_unrecorded();
    assert!(clients.is_unrecorded(one) && clients.is_unrecorded(other));
    clients.vacate(child);
    assert!(clients.is_unrecorded(one));
    clients.forget_unrecorded();
    assert!(!clients.is_unrecorded(one) && !clients.is_unrecorded(other));
}

#[test]
fn slots_beyond_those_that_there_are_are_never_used() {
    let plain = Plain::new(4);
    plain.taken[0].store(u64::MAX, Ordering::Relaxed);
    plain.high.store(u32::MAX, Ordering::Relaxed);
    assert!(plain.view().used().map(|(slot, _)| slot).eq(1..4));
}

/// Killed between two steps of taking a slot, or of freeing it.
#[test]
fn a_slot_that_is_taken_without_its_bit_gets_it() {
    let plain = Plain::new(4);
    plain.slots[2].state.store(slot_state::RESERVED, Ordering::Relaxed);
    plain.slots[3].state.store(slot_state::REAPING, Ordering::Relaxed);
    let clients = plain.view();
    assert_eq!(clients.used().count(), 0);
    clients.note_taken();
    assert!(clients.used().map(|(slot, _)| slot).eq(2..4));
}
