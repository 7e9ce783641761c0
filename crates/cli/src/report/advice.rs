//! What to change, by what a run has counted. Each advice has a code, which stays, and a text.

use super::page::{fraction, list, number, words};
use crate::text::{bytes, counted};
use serde_json::{Value, json};

/// Less was written or read than is worth advice, in bytes.
const LITTLE: u64 = 16 << 20;
/// A store is waited for if such a share of what is read comes from there.
const MISSED: f64 = 0.25;
/// Guesses are bad if fewer of them hit, and more than so many were made.
const GOOD_GUESSES: f64 = 0.5;
const MANY_GUESSES: u64 = 64;
/// A drain is long if it takes such a part of the command's time, and at least so many seconds.
const LONG_DRAIN: f64 = 0.25;
const LONG_DRAIN_SECONDS: f64 = 5.0;
/// Writes are small below so many bytes, if there are many.
const SMALL_WRITE: u64 = 1024;
const MANY_WRITES: u64 = 10_000;
/// A tier of at least this size is larger than was needed if so much of it was never used.
const LARGE_TIER: u64 = 1 << 30;
const UNUSED: u64 = 10;

/// A tier was full if it was so at a look: there is one now and then.
const FULL: f64 = 0.9;

/// The name of a tier, if there is any.
fn name(tier: Option<&Value>) -> &str {
    tier.map_or("the tiers", |tier| words(tier, "/name"))
}

/// All that follows from a report's counters.
pub fn of(document: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    let mut advise = |code: &str, text: String| all.push(json!({ "code": code, "text": text }));
    let count = |name: &str| number(document, &format!("/counters/{name}"));
    let (written, read) = (number(document, "/bytes/written"), number(document, "/bytes/read"));
    let (around, waits) = (count("write_around"), count("backpressure"));
    let quota_waits = count("quota_waits");
    if quota_waits > 0 {
        advise(
            "quota",
            format!(
                "writers waited {} for room in the quota of the run: raise --quota, or `quota` of the tier",
                counted(quota_waits, "time", "times")
            ),
        );
    }
    let cap_waits = count("cap_waits");
    if cap_waits > 0 {
        advise(
            "cap",
            format!(
                "writers waited {} at the limit of unsafe bytes: the store is slower than the \
                 program; raise --max-unsafe, `run.max_unsafe` or `flush.max_unsafe` if more may be \
                 lost",
                counted(cap_waits, "time", "times")
            ),
        );
    }
    let quota_waits = quota_waits + cap_waits;
    // At a limit of unsafe bytes that cannot be kept, too, writes go past the tiers.
    if around > 0 && cap_waits == 0 || waits > quota_waits {
        let went = match around {
            0 => String::new(),
            around => format!(", and {} past them", counted(around, "block went", "blocks went")),
        };
        let waited = counted(waits - quota_waits.min(waits), "time", "times");
        let tiers = list(document, "/tiers");
        let share =
            |tier: &Value| number(tier, "/peak") as f64 / number(tier, "/capacity").max(1) as f64;
        let fullest = tiers.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
        advise(
            "capacity",
            match fullest.is_none_or(|tier| share(tier) >= FULL) {
                true => format!(
                    "the tiers were full: writers waited {waited}{went}: give {} more capacity, add a file tier on \
                     local NVMe ([[tier]] with kind = \"file\"), or write bursts further apart",
                    name(fullest)
                ),
                false => format!(
                    "blocks left {first} more slowly than the program wrote: writers waited {waited}{went}: give \
                     {first} more capacity, or write bursts further apart",
                    first = name(tiers.first())
                ),
            },
        );
    }
    let from_store = number(document, "/bytes/from_store");
    let missed = fraction(document, "/hits/read_share").map_or(0.0, |share| 1.0 - share);
    if from_store >= LITTLE && missed > MISSED {
        advise(
            "stage_in",
            format!(
                "{} were waited for at the store, and {} read through the tiers: bring the files to a tier before, \
                 with `forebay up` and `forebay stage-in PATH`; or, if each run reads in the same order, record it \
                 once with --record and give --follow",
                bytes(from_store),
                bytes(read)
            ),
        );
    }
    let (guessed, misses) = (count("guessed"), count("guess_misses"));
    if guessed >= MANY_GUESSES && misses as f64 > guessed as f64 * GOOD_GUESSES {
        advise(
            "prefetch",
            format!(
                "{misses} of {guessed} blocks that were read ahead were dropped unread: a predictor in a rule \
                 (docs/predictors.md), --follow, or placement.prefetch = false"
            ),
        );
    }
    let of = |at: &str| fraction(document, at).unwrap_or(0.0);
    let (took, drain) = (of("/command_seconds"), of("/drain_seconds"));
    if drain >= LONG_DRAIN_SECONDS && drain > took * LONG_DRAIN {
        advise(
            "drain",
            format!(
                "the drain took {} behind the command's end: with `forebay up` before the job it goes on while \
                 the next command runs, and `forebay wait` waits for it",
                super::page::seconds(drain)
            ),
        );
    }
    let writes = count("writes");
    if writes >= MANY_WRITES && written / writes < SMALL_WRITE {
        advise(
            "small_writes",
            format!(
                "writes had {} on average: larger ones cost less in the program, whatever is below it",
                bytes(written / writes)
            ),
        );
    }
    let refused = number(document, "/refused");
    if refused > 0 {
        advise(
            "tables",
            format!(
                "{} not buffered, as the tables of files were full: more capacity of the RAM tier makes them larger",
                counted(refused, "open was", "opens were")
            ),
        );
    }
    if document["nothing"].is_string() {
        advise("nothing", words(document, "/nothing").to_owned());
    } else if around == 0 && waits == 0 {
        for tier in list(document, "/tiers") {
            let (peak, capacity) = (number(tier, "/peak"), number(tier, "/capacity"));
            if capacity >= LARGE_TIER && peak < capacity / UNUSED {
                advise(
                    "unused",
                    format!(
                        "{} had at most {} of {} in use: it can be smaller, and leave the memory or disk to others",
                        words(tier, "/name"),
                        bytes(peak),
                        bytes(capacity)
                    ),
                );
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(document: &Value) -> Vec<String> {
        of(document).iter().map(|advice| words(advice, "/code").to_owned()).collect()
    }

    #[test]
    fn what_went_well_needs_no_change() {
        let well = json!({
            "command_seconds": 100.0, "drain_seconds": 1.0,
            "bytes": { "written": 1u64 << 30, "read": 1u64 << 30, "from_store": 0 },
            "hits": { "read_share": 1.0 },
            "counters": { "writes": 1000, "guessed": 100, "guess_misses": 1 },
            "tiers": [{ "name": "ram", "peak": 1u64 << 30, "capacity": 2u64 << 30 }],
        });
        assert_eq!(codes(&well), [""; 0]);
    }

    #[test]
    fn each_trouble_has_its_advice() {
        let trouble = json!({
            "command_seconds": 10.0, "drain_seconds": 9.0, "refused": 3,
            "bytes": { "written": 1 << 20, "read": 1u64 << 30, "from_store": 1u64 << 29 },
            "hits": { "read_share": 0.5 },
            "counters": {
                "writes": 1 << 20, "write_around": 7, "backpressure": 6, "quota_waits": 2,
                "cap_waits": 1,
                "guessed": 100, "guess_misses": 80,
            },
            "tiers": [{ "name": "ram", "peak": 10, "capacity": 2u64 << 30 }],
        });
        let wanted =
            ["quota", "cap", "capacity", "stage_in", "prefetch", "drain", "small_writes", "tables"];
        assert_eq!(codes(&trouble), wanted);
        let said = &of(&trouble)[2]["text"];
        assert!(
            said.as_str().unwrap().contains("waited 3 times, and 7 blocks went past"),
            "{said}"
        );
    }

    #[test]
    fn tiers_are_said_to_be_full_that_were() {
        let said = |ram: u64, nvme: u64| {
            let tier = |name, peak| json!({ "name": name, "peak": peak, "capacity": 100 });
            let waited = json!({
                "counters": { "backpressure": 2 },
                "tiers": [tier("ram", ram), tier("nvme", nvme)],
            });
            of(&waited)[0]["text"].as_str().unwrap().to_owned()
        };
        let (wanted, full) = ("give nvme more capacity, add", said(96, 97));
        assert!(full.starts_with("the tiers were full") && full.contains(wanted), "{full}");
        let (wanted, busy) = ("give ram more capacity, or", said(75, 19));
        assert!(busy.starts_with("blocks left ram more slowly") && busy.contains(wanted), "{busy}");
    }

    #[test]
    fn a_tier_that_was_hardly_used_is_said() {
        let roomy = json!({ "tiers": [{ "name": "ram", "peak": 10, "capacity": 2u64 << 30 }] });
        assert_eq!(codes(&roomy), ["unused"]);
        let nothing = json!({ "nothing": "nothing was buffered", "tiers": roomy["tiers"] });
        assert_eq!(codes(&nothing), ["nothing"]);
    }
}
