//! How `status` and `top` write how full, how fast and how old something is: every number with its
//! unit.

use crate::text::bytes;
use forebay_node::outlook::{Drain, Outlook};
use forebay_node::runtime::Runtime;
use forebay_node::status::TierStatus;
use forebay_placement::rounds::Ages;
use forebay_pool::moves::Flow;
use forebay_pool::stay::Stay;
use std::io;
use std::time::Duration;

/// What the letters of a bar mean.
pub const LEGEND: &str = "# unsafe, = safe (on the store, too), . free";

/// How full a tier is, in so many letters: see [`LEGEND`]. What is in use has one at least.
pub fn bar(tier: &TierStatus, width: usize) -> String {
    let [dirty, used] = parts(tier, width);
    format!("{}{}{}", "#".repeat(dirty), "=".repeat(used - dirty), ".".repeat(width - used))
}

/// Of so many letters: those for what is not yet on the store, or never will be, and those for all
/// that is in use.
pub fn parts(tier: &TierStatus, width: usize) -> [usize; 2] {
    let all = tier.capacity.max(1) as f64;
    let letters = |bytes: u64| match bytes {
        0 => 0,
        _ => ((bytes as f64 / all * width as f64).round() as usize).clamp(1.min(width), width),
    };
    let used = letters(tier.used);
    [letters(tier.dirty.saturating_add(tier.scratch)).min(used), used]
}

/// How much of a tier is in use, in per cent; of what is in use at least one.
pub fn percent(tier: &TierStatus) -> u64 {
    let share = tier.used as f64 / tier.capacity.max(1) as f64 * 100.0;
    if tier.used > 0 { (share.round() as u64).max(1) } else { 0 }
}

/// Bytes a second.
pub fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", bytes(bytes_per_second))
}

/// Both rates of a place.
pub fn rates(flow: Flow) -> String {
    format!("in {}, out {}", rate(flow.into), rate(flow.out))
}

/// A time for people, in its unit.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// What follows a number of unsafe bytes: when the store has them, or that they wait for it.
pub fn drain(drain: &Drain) -> String {
    match (drain.refused, drain.time) {
        (0, left) => format!(", which the store takes in {}", time(left.unwrap_or_default())),
        (_, None) => ", which wait for the store: it refuses them".to_owned(),
        (refused, Some(left)) => {
            format!(
                ", of which {} wait for the store, which refuses them, and takes the others in {}",
                bytes(refused),
                time(left)
            )
        }
    }
}

/// For how long a node manager stays.
pub fn stay(stay: Stay) -> String {
    match stay {
        Stay::Not => "until its last run has ended".to_owned(),
        Stay::For(left) => format!("for {} unless a run comes", time(left)),
        Stay::UntilTold => "until `forebay down`".to_owned(),
    }
}

/// When something will be on the store.
pub fn outlook(outlook: &Outlook) -> String {
    match outlook {
        Outlook::Within(left) => format!("safe within about {}", time(*left)),
        Outlook::AtClose => "safe after its file is closed".to_owned(),
        Outlook::AtEnd => "safe after the end of its run".to_owned(),
        Outlook::Fails(errno, retry) => {
            let error = io::Error::from(*errno);
            format!("refused by its store ({error}), tried again in {}", time(*retry))
        }
        Outlook::Stopped => "safe after its node manager goes on, which is stopped".to_owned(),
        Outlook::Unserved => "safe after `forebay recover`".to_owned(),
        Outlook::GivenUp => "not flushed from here: the node was given up".to_owned(),
    }
}

/// When an instance's flushes are due, as its configuration says, or as usual.
pub fn ages(runtime: &Runtime) -> Ages {
    runtime.read_config().map(|config| config.flush).unwrap_or_default().ages()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(capacity: u64, used: u64, dirty: u64) -> TierStatus {
        TierStatus {
            name: "ram".into(),
            capacity,
            configured: capacity,
            backed: capacity,
            used,
            dirty,
            scratch: 0,
            reserved: 0,
            pinned: 0,
            failed: None,
        }
    }

    #[test]
    fn bars_show_the_least_and_hold_the_most() {
        for (capacity, used, dirty, wanted) in [
            (100, 0, 0, ".........."),
            (100, 50, 20, "##===....."),
            (100, 100, 100, "##########"),
            (1000, 1, 1, "#........."),
            // Sizes are not of one moment.
            (100, 30, 80, "###......."),
            (0, 0, 0, ".........."),
            (10, 70, 0, "=========="),
        ] {
            assert_eq!(bar(&tier(capacity, used, dirty), 10), wanted, "{used} of {capacity}");
        }
        assert_eq!(bar(&tier(100, 50, 20), 0), "");
        assert_eq!(
            [tier(1000, 1, 0), tier(0, 0, 0), tier(8, 8, 0)].map(|t| percent(&t)),
            [1, 0, 100]
        );
    }

    #[test]
    fn times_have_units() {
        let said = |seconds| time(Duration::from_secs(seconds));
        assert_eq!(
            [3, 59, 300, 8000, 200_000].map(said),
            ["3.0 s", "59 s", "5 min", "2 h", "2 days"]
        );
        assert_eq!(
            outlook(&Outlook::Within(Duration::from_millis(1250))),
            "safe within about 1.2 s"
        );
    }

    #[test]
    fn what_the_store_refuses_has_no_estimate() {
        let said = |refused, ms: Option<u64>| {
            drain(&Drain { refused, time: ms.map(Duration::from_millis) })
        };
        assert_eq!(said(0, Some(1250)), ", which the store takes in 1.2 s");
        assert_eq!(said(4096, None), ", which wait for the store: it refuses them");
        assert_eq!(
            said(4096, Some(2000)),
            ", of which 4.00 KiB wait for the store, which refuses them, and takes the others in 2.0 s"
        );
    }
}
