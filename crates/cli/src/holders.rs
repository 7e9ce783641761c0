//! Naming the processes that a command waits for: those that hold something and do not go on.

use forebay_node::holders::Holder;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often it is looked for them.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After this a process is named again.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Which processes the waiting user was told of.
#[derive(Default)]
pub struct Holders {
    looked: Option<Instant>,
    said: HashMap<u32, Instant>,
}

impl Holders {
    /// Names those on standard error that `look` finds, each when it is found and then now and
    /// then. To be called often.
    pub fn tell(&mut self, look: impl FnOnce() -> Vec<Holder>) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        // Not at the first look: what is short is no reason to say anything.
        if self.looked.replace(Instant::now()).is_none() {
            return;
        }
        for holder in look() {
            let again = self.said.get(&holder.pid).is_none_or(|at| at.elapsed() >= SAY_EVERY);
            if again {
                self.said.insert(holder.pid, Instant::now());
                eprintln!("forebay: waiting: {holder}; continue it, or end it");
            }
        }
    }
}
