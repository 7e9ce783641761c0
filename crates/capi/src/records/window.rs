//! The buffers that helpers read ahead into: the first layer of Algorithm 1's second phase. As soon
//! as a record was read, the next ones take its room.

use std::collections::HashMap;

/// Buffers that are kept to be filled again, so that the kernel need not give new pages.
const SPARE: usize = 2;

/// A record that comes up, or has.
#[derive(Debug)]
enum Slot {
    Loading { version: u64 },
    Ready { version: u64, bytes: Vec<u8>, at: u64 },
}

impl Slot {
    fn version(&self) -> u64 {
        match self {
            Slot::Loading { version } | Slot::Ready { version, .. } => *version,
        }
    }
}

/// What the window has of a record.
#[derive(Debug)]
pub(crate) enum Ahead {
    Nothing,
    /// A helper is reading it.
    Loading,
    /// All of it, and whether it is likely to be in a cache still.
    Ready(Vec<u8>, bool),
}

/// The buffers of one container.
#[derive(Debug)]
pub(crate) struct Window {
    limit: u64,
    /// Bytes of the buffers that are in use; spare ones count, too.
    used: u64,
    slots: HashMap<u64, Slot>,
    spare: Vec<Vec<u8>>,
    /// Versions that are in the RAM tier already, or that could not be read, and after how many
    /// reads of the program that was seen.
    settled: HashMap<u64, (u64, u64)>,
    /// Bytes that were brought up so far.
    loaded: u64,
    /// Bytes that the processor's last cache holds.
    cache: u64,
    /// Records that were brought up and not read.
    pub wasted: u64,
}

impl Window {
    pub fn new(limit: u64, cache: u64) -> Window {
        Window {
            limit,
            used: 0,
            slots: HashMap::new(),
            spare: Vec::new(),
            settled: HashMap::new(),
            loaded: 0,
            cache,
            wasted: 0,
        }
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether a helper has nothing to do about this version. `is_near`: it is among those that
    /// are read next, so that what was seen before the last read is looked at again.
    pub fn has(&self, id: u64, version: u64, is_near: bool, reads: u64) -> bool {
        let is_slot = self.slots.get(&id).is_some_and(|slot| slot.version() == version);
        let is_settled = |&(of, seen): &(u64, u64)| of == version && (!is_near || seen == reads);
        is_slot || self.settled.get(&id).is_some_and(is_settled)
    }

    /// Takes room for a version, at the cost of records that are not `wanted`. A buffer of enough
    /// capacity; `None` if there is no room now.
    pub fn begin(
        &mut self,
        id: u64,
        version: u64,
        bytes: u64,
        wanted: impl Fn(u64) -> bool,
    ) -> Option<Vec<u8>> {
        let spare = self.spare.iter().position(|spare| spare.capacity() as u64 >= bytes);
        let mut buffer = match spare {
            Some(at) => self.spare.swap_remove(at),
            None => {
                while self.used + bytes > self.limit {
                    self.give_room(&wanted)?;
                }
                let mut buffer = Vec::new();
                buffer.try_reserve_exact(bytes as usize).ok()?;
                self.used += buffer.capacity() as u64;
                buffer
            }
        };
        buffer.clear();
        self.slots.insert(id, Slot::Loading { version });
        Some(buffer)
    }

    /// Frees a spare buffer, or that of a record that is not wanted. `None` if there is neither.
    fn give_room(&mut self, wanted: impl Fn(u64) -> bool) -> Option<()> {
        if let Some(spare) = self.spare.pop() {
            self.used -= spare.capacity() as u64;
            return Some(());
        }
        let is_idle =
            |&(&id, slot): &(&u64, &Slot)| matches!(slot, Slot::Ready { .. }) && !wanted(id);
        let id = self.slots.iter().find(is_idle).map(|(&id, _)| id)?;
        self.forget(id);
        Some(())
    }

    /// A helper is done with a version: its bytes, or `None` of one that is to be read directly.
    /// Whether they are kept: the record may have been written or dropped meanwhile.
    pub fn end(&mut self, id: u64, version: u64, buffer: Vec<u8>, is_read: bool, reads: u64) {
        let is_current =
            matches!(self.slots.get(&id), Some(Slot::Loading { version: of }) if *of == version);
        if is_current {
            self.slots.remove(&id);
        }
        if is_current && is_read {
            self.loaded += buffer.len() as u64;
            self.slots.insert(id, Slot::Ready { version, bytes: buffer, at: self.loaded });
            return;
        }
        if is_current {
            self.settled.insert(id, (version, reads));
        }
        self.give_back(buffer);
    }

    /// What there is of a version, which is the program's then.
    pub fn take(&mut self, id: u64, version: u64) -> Ahead {
        match self.slots.get(&id) {
            Some(Slot::Loading { version: of }) if *of == version => Ahead::Loading,
            Some(Slot::Ready { version: of, .. }) if *of == version => {
                match self.slots.remove(&id) {
                    Some(Slot::Ready { bytes, at, .. }) => {
                        let since = self.loaded - at + bytes.len() as u64;
                        Ahead::Ready(bytes, 2 * since <= self.cache)
                    }
                    _ => Ahead::Nothing,
                }
            }
            _ => Ahead::Nothing,
        }
    }

    /// A buffer is not needed any more.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity() as u64;
        if self.spare.len() < SPARE && bytes > 0 {
            self.spare.push(buffer);
        } else {
            self.used -= bytes;
        }
    }

    /// A record was written, or dropped.
    pub fn forget(&mut self, id: u64) {
        self.settled.remove(&id);
        match self.slots.remove(&id) {
            Some(Slot::Ready { bytes, .. }) => {
                self.wasted += 1;
                self.used -= bytes.capacity() as u64;
            }
            // Its helper gives the buffer back.
            Some(Slot::Loading { .. }) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(window: &mut Window, id: u64, bytes: usize) -> bool {
        let Some(mut buffer) = window.begin(id, 1, bytes as u64, |wanted| wanted < 10) else {
            return false;
        };
        buffer.clear();
        buffer.resize(bytes, id as u8);
        window.end(id, 1, buffer, true, 0);
        true
    }

    #[test]
    fn no_more_is_used_than_the_limit_and_what_is_wanted_stays() {
        let mut window = Window::new(300, 0);
        assert!(load(&mut window, 1, 100) && load(&mut window, 20, 100));
        assert!(load(&mut window, 2, 100) && window.used() == 300);
        assert!(load(&mut window, 3, 100), "20 is not wanted");
        assert_eq!(window.wasted, 1);
        assert!(!load(&mut window, 4, 100));
        assert!(matches!(window.take(1, 2), Ahead::Nothing), "another version");
        let Ahead::Ready(bytes, _) = window.take(1, 1) else { panic!() };
        assert_eq!(bytes, [1; 100]);
        assert!(!load(&mut window, 4, 100), "the program copies it still");
        window.give_back(bytes);
        assert!(load(&mut window, 4, 100));
        assert_eq!(window.used(), 300);
    }

    #[test]
    fn a_record_that_is_written_meanwhile_is_not_given_out() {
        let mut window = Window::new(300, 0);
        let buffer = window.begin(7, 1, 100, |_| true).unwrap();
        assert!(matches!(window.take(7, 1), Ahead::Loading));
        window.forget(7);
        window.end(7, 1, buffer, true, 0);
        assert!(matches!(window.take(7, 1), Ahead::Nothing));
        assert!(!window.has(7, 1, false, 0));
        let buffer = window.begin(7, 2, 100, |_| true).unwrap();
        window.end(7, 2, buffer, false, 5);
        assert!(window.has(7, 2, false, 9) && window.has(7, 2, true, 5));
        assert!(!window.has(7, 2, true, 6), "it is looked at again before it is read");
    }
}
