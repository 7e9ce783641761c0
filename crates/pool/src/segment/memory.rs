//! The memory behind the buckets of RAM: made when they are wanted, given back when they are idle.
//!
//! A bucket has memory unless its state is [`UNBACKED`], or it lies behind `ram_ready`. One process
//! alone, the node manager, changes that, in one thread at a time. Buckets get and lose memory in
//! pieces, those of a huge page. A piece of which some are [`UNBACKED`] and others are not has all
//! of its memory: that is made before the first bucket of it is free, and given back after the last
//! was taken out of the free map.

use super::Segment;
use crate::backoff::Backoff;
use crate::free_map::{FREE, UNBACKED};
use crate::layout::TierId;
use crate::owner::Owner;
use crate::sync::{Ordering, fence};
use crate::{BucketId, crash, futex};
use core::ops::Range;
use rustix::fd::BorrowedFd;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;

/// Linux 6.1; rustix has no name for it yet.
const MADV_COLLAPSE: i32 = 25;
const HUGE_PAGE: usize = 2 << 20;
pub(super) const SMALL_PAGE: usize = 4096;

/// With fewer bytes of free buckets more memory is asked for: what a writer fills at memory speed
/// in two milliseconds, in which a thread is woken and makes some huge pages.
const SPARE_LOW: usize = 16 << 20;

unsafe extern "C" {
    fn madvise(at: *mut core::ffi::c_void, bytes: usize, advice: i32) -> i32;
}

impl Segment {
    /// Buckets that get and lose their memory together: those of a huge page, or a larger one.
    pub fn piece_buckets(&self) -> u32 {
        (HUGE_PAGE / self.bucket_bytes).max(1) as u32
    }

    /// The piece that `bucket` is in; the last of the tier may be shorter.
    pub fn piece_of(&self, bucket: BucketId) -> Range<u32> {
        let first = bucket.raw() / self.piece_buckets() * self.piece_buckets();
        first..(first + self.piece_buckets()).min(self.ram_buckets)
    }

    /// Buckets of RAM that have memory, in use or not.
    pub fn backed(&self) -> u32 {
        let header = self.header();
        let ready = header.ram_ready.load(Ordering::Acquire);
        ready.saturating_sub(header.ram_unbacked.load(Ordering::Acquire))
    }

    /// Buckets that RAM can have: all, or those that it has when there is memory for no more.
    pub fn ram_capacity(&self) -> u32 {
        let limit = self.header().ram_limit.load(Ordering::Acquire);
        limit.min(self.ram_buckets - self.lent().min(self.ram_buckets)).max(self.backed())
    }

    /// Buckets of RAM that are free but for the memory, which can be had.
    pub fn growable(&self) -> u32 {
        self.ram_capacity().saturating_sub(self.backed())
    }

    /// How many free buckets with memory there are at least, while memory can be had, and how many
    /// there are again once it was asked for.
    pub fn spare_marks(&self) -> Range<u32> {
        let low = (SPARE_LOW / self.bucket_bytes).max(crate::blocks::REFILL as usize) as u32;
        // Of a small tier a small part.
        let low = low.min((self.ram_buckets / 16).max(self.piece_buckets()));
        low..2 * low
    }

    /// Whether the thread that gets memory is to be woken: few free buckets have it, and more can
    /// be had.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        let growable = self.growable();
        growable > 0
            && self.free_in(TierId::RAM).saturating_sub(growable) < self.spare_marks().start
            && self.header().memory_wanted.load(Ordering::Relaxed) == 0
    }

    /// Wakes the thread that gets memory for buckets.
    pub fn want_memory(&self) {
        let wanted = &self.header().memory_wanted;
        wanted.store(1, Ordering::SeqCst);
        futex::wake_all(wanted);
    }

    /// Says for how many buckets of RAM there is memory, and corrects how many are free.
    pub fn set_ram_limit(&self, buckets: u32) {
        self.header().ram_limit.store(buckets, Ordering::SeqCst);
        self.correct_free();
    }

    /// Gives `start .. end`, of which nothing is reserved yet, huge pages where the kernel can: a
    /// process that maps the pool then takes one page fault instead of 512. A huge page that has
    /// one small page when it is asked for is made at once; one that has all of them is a copy, for
    /// ten times the work, and the kernel refuses one that has none. It makes all with one call, so
    /// that it stops at the first for which it has no memory, rather than search for each.
    ///
    /// # Safety
    /// Inside the mapping.
    unsafe fn make_huge(&self, start: usize, end: usize) {
        let first = start.next_multiple_of(HUGE_PAGE);
        let last = end / HUGE_PAGE * HUGE_PAGE;
        let mut populated = first;
        while populated < last {
            // SAFETY: inside the mapping, by the caller; it only changes how a page is backed.
            let done = unsafe {
                let at = self.base.add(populated).as_ptr().cast();
                rustix::mm::madvise(at, SMALL_PAGE, Advice::LinuxPopulateWrite)
            };
            // /dev/shm is full.
            if done.is_err() {
                break;
            }
            populated += HUGE_PAGE;
        }
        if populated > first {
            // SAFETY: inside the mapping, by the caller; it only changes how pages are backed.
            unsafe {
                let at = self.base.add(first).as_ptr().cast();
                let _ = madvise(at, populated - first, MADV_COLLAPSE);
            }
        }
    }

    /// The bytes of buckets of RAM, in the pool's file.
    fn bytes_of(&self, buckets: &Range<u32>) -> Range<usize> {
        let at = |bucket: u32| self.offsets.data + bucket as usize * self.bucket_bytes;
        at(buckets.start)..at(buckets.end)
    }

    /// Reserves memory for `buckets`, which have none, and makes it resident.
    ///
    /// # Errors
    /// `NOSPC` or `NOMEM` when /dev/shm is full: none of them has memory then.
    pub fn back(&self, file: BorrowedFd<'_>, buckets: &Range<u32>) -> Result<(), Errno> {
        let Range { start, end } = self.bytes_of(buckets);
        // SAFETY: inside the mapping.
        unsafe { self.make_huge(start, end) };
        let (at, bytes) = (start as u64, (end - start) as u64);
        // The kernel takes back what it has reserved itself, but not the pages that `make_huge`
        // made.
        rustix::fs::fallocate(file, FallocateFlags::empty(), at, bytes).inspect_err(|_| {
            let _ = self.unback(file, buckets);
        })?;
        // SAFETY: inside the mapping; it only changes how the pages are backed.
        unsafe {
            let at = self.base.add(start).as_ptr().cast();
            let _ = rustix::mm::madvise(at, end - start, Advice::LinuxPopulateWrite);
        }
        Ok(())
    }

    /// Gives the memory of `buckets` back, which no thread looks at: they were [retired](
    /// Segment::retire), and since then [all readers have left](Segment::await_readers).
    ///
    /// # Errors
    /// The kernel's; the memory is still there.
    pub fn unback(&self, file: BorrowedFd<'_>, buckets: &Range<u32>) -> Result<(), Errno> {
        let Range { start, end } = self.bytes_of(buckets);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, hole, start as u64, (end - start) as u64)
    }

    /// Gets memory for the next buckets of RAM, `bytes` in whole pieces, and adds them to the free
    /// map. Returns how many it added: 0 when all have memory.
    ///
    /// # Errors
    /// `NOSPC` or `NOMEM` when /dev/shm is full.
    pub fn grow(&self, file: BorrowedFd<'_>, bytes: u64) -> Result<u32, Errno> {
        let wanted = (bytes as usize / self.bucket_bytes).max(1) as u32;
        // What is lent has its memory elsewhere.
        let most = self.ram_buckets.saturating_sub(self.lent()).saturating_sub(self.backed());
        let wanted = wanted.next_multiple_of(self.piece_buckets()).min(most);
        let mut grown = 0;
        while grown < wanted
            && let Some(buckets) = self.next_unbacked(wanted - grown)
        {
            match self.back(file, &buckets) {
                Ok(()) => {}
                Err(_) if grown > 0 => break,
                Err(errno) => return Err(errno),
            }
            crash::point("memory.backed");
            grown += buckets.len() as u32;
            self.restore(&buckets);
        }
        Ok(grown)
    }

    /// Neighbouring buckets without memory, at most so many: first those that have given it back.
    fn next_unbacked(&self, most: u32) -> Option<Range<u32>> {
        let header = self.header();
        let ready = header.ram_ready.load(Ordering::Acquire).min(self.ram_buckets);
        if header.ram_unbacked.load(Ordering::Acquire) > 0 {
            let from = header.memory_cursor.load(Ordering::Relaxed).min(ready);
            let found = (from..ready).chain(0..from).find(|&bucket| self.is_unbacked(bucket));
            if let Some(first) = found {
                let end = (first..ready.min(first + most))
                    .find(|&bucket| !self.is_unbacked(bucket))
                    .unwrap_or(ready.min(first + most));
                header.memory_cursor.store(end, Ordering::Relaxed);
                return Some(first..end);
            }
        }
        let end = ready.saturating_add(most).next_multiple_of(self.piece_buckets());
        (ready < self.ram_buckets).then(|| ready..end.min(self.ram_buckets))
    }

    fn is_unbacked(&self, bucket: u32) -> bool {
        let meta = self.bucket(BucketId::from_raw(bucket));
        meta.is_some_and(|meta| meta.state.load(Ordering::Acquire) == UNBACKED)
    }

    /// Adds buckets to the free map that have memory: they got it, or were [retired](
    /// Segment::retire) and keep it.
    pub fn restore(&self, buckets: &Range<u32>) {
        let header = self.header();
        header.ram_ready.fetch_max(buckets.end, Ordering::AcqRel);
        let map = self.free_buckets(TierId::RAM);
        for bucket in buckets.clone() {
            let Some(meta) = self.bucket(BucketId::from_raw(bucket)) else { continue };
            let exchange =
                meta.state.compare_exchange(UNBACKED, FREE, Ordering::AcqRel, Ordering::Acquire);
            match exchange {
                Ok(_) => self.count_unbacked(-1),
                Err(FREE) => {}
                Err(_) => continue,
            }
            crash::point("memory.restored");
            map.offer(bucket);
        }
    }

    fn count_unbacked(&self, by: i32) {
        let count = &self.header().ram_unbacked;
        let _ = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            Some(count.saturating_add_signed(by))
        });
    }

    /// Takes up to `most` buckets of pieces that are all free out of the free map, the last of the
    /// tier first. They keep their memory until it is [given back](Segment::unback).
    pub fn retire(&self, most: u32) -> Vec<Range<u32>> {
        let piece = self.piece_buckets();
        let ready = self.header().ram_ready.load(Ordering::Acquire).min(self.ram_buckets);
        let map = self.free_buckets(TierId::RAM);
        let mut retired: Vec<Range<u32>> = Vec::new();
        let mut count = 0;
        for number in (0..ready / piece).rev() {
            if count + piece > most {
                break;
            }
            let first = number * piece;
            if !map.take_all(first, piece, UNBACKED) {
                continue;
            }
            self.count_unbacked(piece as i32);
            crash::point("memory.retired");
            count += piece;
            match retired.last_mut() {
                Some(last) if last.start == first + piece => last.start = first,
                _ => retired.push(first..first + piece),
            }
        }
        retired
    }

    /// Pieces that were retired; their memory may be there, if a node manager has died over that.
    pub fn retired(&self) -> Vec<Range<u32>> {
        let ready = self.header().ram_ready.load(Ordering::Acquire).min(self.ram_buckets);
        let mut retired: Vec<Range<u32>> = Vec::new();
        for bucket in (0..ready).filter(|&bucket| self.is_unbacked(bucket)) {
            match retired.last_mut() {
                Some(last) if last.end == bucket => last.end += 1,
                _ => retired.push(bucket..bucket + 1),
            }
        }
        retired
    }

    /// Waits until each thread has left what it was inside when this was called: none of them reads
    /// a bucket that was retired before. False where one stays for more than a moment.
    ///
    /// A read takes no lock of a bucket, and a page that is read after it was given back would come
    /// back, or raise SIGBUS when /dev/shm is full.
    pub fn await_readers(&self) -> bool {
        fence(Ordering::SeqCst);
        let mut backoff = Backoff::default();
        for (number, client) in self.clients().all_used() {
            for place in &client.shared_locks {
                let seen = place.load(Ordering::SeqCst);
                while seen != 0 && place.load(Ordering::SeqCst) == seen {
                    if backoff.is_spent() {
                        if self.clients().is_dead(Owner::new(number, 0)) {
                            break;
                        }
                        return false;
                    }
                    backoff.wait();
                }
            }
        }
        true
    }

    /// Makes states of pieces and their counts agree, after a node manager that may have died in
    /// between: a piece that is retired in part has its memory.
    pub(crate) fn recover_memory(&self) {
        let header = self.header();
        let ready = header.ram_ready.load(Ordering::Acquire).min(self.ram_buckets);
        let mut unbacked = 0;
        let mut first = 0;
        while first < ready {
            let piece = self.piece_of(BucketId::from_raw(first));
            let piece = piece.start..piece.end.min(ready);
            first = piece.end;
            if piece.clone().all(|bucket| self.is_unbacked(bucket)) {
                unbacked += piece.len() as u32;
                continue;
            }
            crash::point("recover.memory");
            self.restore(&piece);
        }
        header.ram_unbacked.store(unbacked, Ordering::Release);
        header.ram_limit.store(self.ram_buckets, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::segment::anonymous;
    use rustix::fd::{AsFd, OwnedFd};

    const MIB: u64 = 1 << 20;

    fn resident(file: &OwnedFd) -> u64 {
        rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512
    }

    /// A tier of 16 MiB, all of it with memory, and a client of it.
    fn tier() -> (Segment, OwnedFd, Owner) {
        let (segment, file) = anonymous(&Geometry::for_tiers(4096, &[16 * MIB])).unwrap();
        let pid = std::process::id();
        let start = crate::liveness::start_time(pid).unwrap();
        let slot = segment.clients().claim(pid, start).unwrap();
        (segment, file, Owner::new(slot, 1))
    }

    fn give_back(segment: &Segment, file: &OwnedFd, most: u32) -> u32 {
        let retired = segment.retire(most);
        assert!(segment.await_readers());
        retired.iter().for_each(|buckets| segment.unback(file.as_fd(), buckets).unwrap());
        retired.iter().map(|buckets| buckets.len() as u32).sum()
    }

    #[test]
    fn free_pieces_lose_their_memory_and_get_it_again() {
        let (segment, file, me) = tier();
        let before = resident(&file);
        assert_eq!(
            (segment.backed(), segment.growable(), segment.free_in(TierId::RAM)),
            (64, 0, 64)
        );
        // One bucket of the last piece is in use, so that the piece stays.
        let mut taken = Vec::new();
        segment.free_buckets(TierId::RAM).take(me, 0, 64, |bucket| taken.push(bucket));
        for &bucket in taken.iter().filter(|&&bucket| bucket != 63) {
            segment.free_bucket(BucketId::from_raw(bucket));
        }
        // SAFETY: the bucket is this thread's.
        unsafe { segment.bucket_data(BucketId::from_raw(63)).write(7) };
        assert_eq!(give_back(&segment, &file, 30), 24, "whole pieces");
        assert_eq!(before - resident(&file), 6 * MIB);
        assert_eq!((segment.backed(), segment.growable()), (40, 24));
        assert_eq!(segment.retired().first(), Some(&(32..56)));
        assert_eq!(give_back(&segment, &file, 64), 32);
        assert_eq!((segment.backed(), segment.growable()), (8, 56));
        assert_eq!(segment.free_buckets(TierId::RAM).available(), 7);
        assert_eq!(before - resident(&file), 14 * MIB);
        // SAFETY: as above.
        assert_eq!(unsafe { segment.bucket_data(BucketId::from_raw(63)).read() }, 7);
        assert_eq!(segment.grow(file.as_fd(), 3 * MIB), Ok(16), "whole pieces");
        assert_eq!((segment.backed(), segment.free_buckets(TierId::RAM).available()), (24, 23));
        while segment.grow(file.as_fd(), MIB).unwrap() > 0 {}
        assert_eq!((segment.backed(), segment.growable(), resident(&file)), (64, 0, before));
        assert_eq!(segment.free_buckets(TierId::RAM).available(), 63);
    }

    #[test]
    fn nothing_is_given_back_that_a_thread_may_read() {
        let (segment, _file, me) = tier();
        let inside = segment.enter_table(me);
        assert!(!segment.await_readers());
        drop(inside);
        assert!(segment.await_readers());
        // What was retired meanwhile is free again.
        let retired = segment.retire(64);
        assert_eq!((retired.first(), segment.backed()), (Some(&(0..64)), 0));
        retired.iter().for_each(|buckets| segment.restore(buckets));
        assert_eq!((segment.backed(), segment.free_buckets(TierId::RAM).available()), (64, 64));
    }

    /// A node manager died while it retired the buckets of a piece, or gave them memory.
    #[test]
    fn a_piece_that_is_retired_in_part_is_taken_back_whole() {
        let (segment, file, _) = tier();
        give_back(&segment, &file, 16);
        for bucket in 0..5 {
            let meta = segment.bucket(BucketId::from_raw(bucket)).unwrap();
            meta.state.store(UNBACKED, Ordering::Relaxed);
        }
        segment.buckets().bits[0].fetch_and(!0xff, Ordering::Relaxed);
        segment.header().ram_unbacked.store(3, Ordering::Relaxed);
        segment.recover(|_, _| {});
        assert_eq!(
            (segment.backed(), segment.growable(), segment.free_in(TierId::RAM)),
            (48, 16, 64)
        );
        assert_eq!(segment.free_buckets(TierId::RAM).available(), 48);
        assert_eq!(segment.retired().first(), Some(&(48..64)));
    }

    #[test]
    fn a_tier_without_memory_is_as_large_as_what_it_has() {
        let (segment, file, me) = tier();
        give_back(&segment, &file, 32);
        segment.set_ram_limit(segment.backed());
        let sizes = || (segment.ram_capacity(), segment.growable(), segment.free_in(TierId::RAM));
        assert_eq!(sizes(), (32, 0, 32));
        let wanted = || segment.header().memory_wanted.load(Ordering::Relaxed);
        while segment.take_bucket(me).is_some() {}
        assert_eq!(wanted(), 0, "there is none");
        segment.set_ram_limit(64);
        assert_eq!(sizes(), (64, 32, 32));
        assert_eq!((segment.take_bucket(me), wanted()), (None, 1));
    }
}
