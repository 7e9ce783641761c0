//! What guessing may cost.

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Bytes that may be guessed in vain before anything is known: 4 MiB.
pub const GRACE: i64 = 4 << 20;
/// Of so many bytes that are read one may be fetched in vain: a twentieth.
const READ_FOR_ONE: i64 = 20;
/// The most that is saved up: a program that was right for hours may be wrong for 256 MiB.
const SAVED_MAX: i64 = 256 << 20;

/// How many bytes more the reads of a process allow to be guessed.
///
/// With R bytes read, G bytes guessed and U of those read after that, the balance is at most
/// `GRACE + R / 20 - (G - U)`, and a guess takes no more than the balance. So at any moment, with
/// all that was ever guessed in vain and all that is still to be read,
///
/// ```text
/// G - U <= GRACE + R / 20
/// ```
///
/// whatever the program reads: wrong guesses cost a twentieth of the bytes that are read, and 4 MiB
/// once for each process. One word, which any thread changes; zeros are a new account.
///
/// ```
/// use forebay_placement::prefetch::{Account, GRACE};
///
/// let account = Account::default();
/// assert_eq!(account.take(1 << 30), GRACE as u64);
/// assert_eq!(account.take(1), 0, "nothing of that was read yet");
/// account.was_used(1 << 20);
/// account.was_read(20 << 20);
/// assert_eq!(account.balance(), 2 << 20);
/// ```
#[derive(Debug, Default)]
pub struct Account(AtomicI64);

impl Clone for Account {
    fn clone(&self) -> Account {
        Account(AtomicI64::new(self.0.load(Relaxed)))
    }
}

impl Account {
    /// Bytes that may be guessed now.
    pub fn balance(&self) -> u64 {
        self.0.load(Relaxed).saturating_add(GRACE).max(0) as u64
    }

    /// Takes up to `bytes` for a guess; returns how many.
    pub fn take(&self, bytes: u64) -> u64 {
        let mut seen = self.0.load(Relaxed);
        loop {
            let taken =
                seen.saturating_add(GRACE).max(0).min(i64::try_from(bytes).unwrap_or(i64::MAX));
            match self.0.compare_exchange_weak(seen, seen - taken, Relaxed, Relaxed) {
                Ok(_) => return taken as u64,
                Err(now) => seen = now,
            }
        }
    }

    /// Bytes were read, guessed or not.
    pub fn was_read(&self, bytes: u64) {
        let more = i64::try_from(bytes).unwrap_or(i64::MAX) / READ_FOR_ONE;
        let save = |saved: i64| Some(saved.max(saved.saturating_add(more).min(SAVED_MAX)));
        let _ = self.0.fetch_update(Relaxed, Relaxed, save);
    }

    /// Forgets what is saved up, and not what was in vain: of a process that is another's copy.
    pub fn begin_anew(&self) {
        self.0.fetch_min(0, Relaxed);
    }

    /// Bytes were read from where [`Account::take`] had let them be brought: at most those. What
    /// the reader had to fetch itself, as it was not there, is none of them.
    pub fn was_used(&self, bytes: u64) {
        self.0.fetch_add(i64::try_from(bytes).unwrap_or(0), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    #[test]
    fn guesses_in_vain_are_a_twentieth_of_what_is_read() {
        for seed in 0..200 {
            let account = Account::default();
            let (mut read, mut guessed, mut used) = (0_u64, 0_u64, 0_u64);
            for n in 0..2_000 {
                let number = mix(seed * 10_000 + n);
                let bytes = number >> 8 & 0xff_ffff;
                match number % 3 {
                    0 => {
                        account.was_read(bytes);
                        read += bytes;
                    }
                    1 => guessed += account.take(bytes * (seed % 7)),
                    _ => {
                        let bytes = bytes.min(guessed - used);
                        account.was_used(bytes);
                        used += bytes;
                    }
                }
                assert!(guessed - used <= GRACE as u64 + read / 20, "seed {seed}, step {n}");
            }
        }
    }

    #[test]
    fn what_is_saved_up_has_a_limit_and_comes_back_in_full() {
        let account = Account::default();
        account.was_read(u64::MAX);
        account.was_read(u64::MAX);
        let all = account.take(u64::MAX);
        assert_eq!(all, (SAVED_MAX + GRACE) as u64);
        account.was_used(all);
        assert_eq!(account.balance(), all);
    }
}
