//! Whether a file was opened since a thread looked which processes have it open.
//!
//! A process that opens a file, or takes part in a description of it, holds the stripe of the
//! file's record from before it counts its open until its description names the file and is live.
//! So a thread that looks has seen every description of a file, or can tell that it has not: it
//! counts the opens while no thread holds the stripe, then looks at all descriptions, and then
//! finds the count unchanged. Between the two counts no opener was at work: one that counted before
//! had finished, and is seen by its description; one that comes later changes the count. How long a
//! thread stops at any step of an open does not matter, and no clock decides anything.
//!
//! ```
//! use forebay_pool::Owner;
//! use forebay_pool::opens::Opens;
//! use forebay_pool::seq_lock::RobustSeqLock;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! let (opens, stripe) = (AtomicU32::new(0), RobustSeqLock::unheld());
//! let counted = Opens::counted(&opens, &stripe).unwrap();
//! assert!(counted.are_still(&opens));
//! // A process opens the file.
//! opens.fetch_add(1, Ordering::SeqCst);
//! assert!(!counted.are_still(&opens));
//! ```

use crate::ranks::Stripe;
use crate::seq_lock::RobustSeqLock;
use crate::sync::{AtomicU32, Ordering};

/// How often a file had been opened at a moment at which all its openers had finished. To be taken
/// before the descriptions are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Opens(u32);

impl Opens {
    /// `None` if some thread holds `stripe`: it may be opening the file, which then counts as open.
    pub fn counted(opens: &AtomicU32, stripe: &RobustSeqLock<Stripe>) -> Option<Opens> {
        // In this order: an opener that is seen to have counted is also seen to hold the stripe, or
        // to have finished.
        let count = opens.load(Ordering::SeqCst);
        stripe.read_begin().map(|_| Opens(count))
    }

    /// Whether no thread has begun to open the file since. Only under the stripe does it stay so.
    pub fn are_still(self, opens: &AtomicU32) -> bool {
        opens.load(Ordering::SeqCst) == self.0
    }
}
