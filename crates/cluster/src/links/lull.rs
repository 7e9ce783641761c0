//! How the thread of links waits. To be woken takes a thread tens of microseconds, several times
//! what a message takes: where the next one has mostly come sooner than that, it looks for it some
//! time before it sleeps.

use std::time::{Duration, Instant};

/// The thread looks for so long, and a lull that is no longer is a short one: an answer of another
/// node whose thread sleeps takes no longer.
pub(super) const SHORT: Duration = Duration::from_micros(100);

/// Of so many lulls it is remembered at most that they were short.
const CREDIT_MAX: u8 = 3;
/// With so much credit the next one is expected to be.
const CREDIT: u8 = 2;

/// What a lull comes after: after a question an answer is soon there, after an answer not always
/// the next question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Something was sent, and nothing had come.
    Sent,
    /// Something has come.
    Came,
}

/// Lulls between the rounds in which something was sent or came.
pub(super) struct Lulls {
    since: Instant,
    after: After,
    credits: [u8; 2],
}

impl Lulls {
    /// At the beginning.
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, after: After::Came, credits: [0; 2] }
    }

    /// A lull ends with this, and another one begins.
    pub(super) fn note(&mut self, now: Instant, what: After) {
        let credit = &mut self.credits[self.after as usize];
        *credit = match now.saturating_duration_since(self.since) <= SHORT {
            true => (*credit + 1).min(CREDIT_MAX),
            false => credit.saturating_sub(1),
        };
        (self.since, self.after) = (now, what);
    }

    /// Until when it is worth while to look for the next thing.
    pub(super) fn looks_until(&self) -> Option<Instant> {
        (self.credits[self.after as usize] >= CREDIT).then(|| self.since + SHORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_what_has_come_soon_before() {
        let mut now = Instant::now();
        let mut lulls = Lulls::new(now);
        let mut pass = |lulls: &mut Lulls, micros: u64, what: After| {
            now += Duration::from_micros(micros);
            lulls.note(now, what);
            lulls.looks_until().map(|until| until - now)
        };
        // Questions now and then, each with an answer that comes soon.
        for round in 0..5 {
            let looks = pass(&mut lulls, 5_000, After::Sent);
            assert_eq!(looks, (round >= 2).then_some(SHORT), "{round}");
            assert_eq!(pass(&mut lulls, 80, After::Came), None);
        }
        // One after the other.
        for round in 0..4 {
            let looks = pass(&mut lulls, 20, After::Sent);
            assert_eq!(looks, Some(SHORT));
            let looks = pass(&mut lulls, 80, After::Came);
            assert_eq!(looks, (round >= 1).then_some(SHORT), "{round}");
        }
        // Answers that take longer than is looked for them, twice.
        for _ in 0..2 {
            assert!(pass(&mut lulls, 20, After::Sent).is_some());
            assert!(pass(&mut lulls, 101, After::Came).is_some());
        }
        assert_eq!(pass(&mut lulls, 20, After::Sent), None);
    }
}
