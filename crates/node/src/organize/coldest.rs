//! The lowest hotness of what may leave a tier, kept fresh for the programs' placement engines:
//! H of Hermes' appendix, equation 3.

use crate::node::Node;
use crate::usage::whole_buckets_of;
use forebay_client::{hotness_of, policy_of};
use forebay_placement::schema::Settings;
use forebay_pool::clock::Timer;
use forebay_pool::datasets::RuledBlocks;
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How old it may be where a policy compares it, and where it is only shown.
const FRESH: Timer = Timer::ms(100);
const SHOWN: Timer = Timer::seconds(2);
/// The share of a thread's time that looking for it may take: a part in so many.
const SHARE: u32 = 50;

/// When it was looked for last, and how long that took.
#[derive(Default)]
pub(crate) struct Coldest {
    looked: Option<(Instant, Duration)>,
}

impl Coldest {
    /// Looks for it anew unless it is fresh.
    pub fn refresh(&mut self, node: &Node, tier: TierId) {
        let fresh = |took: Duration| match compares_hotness(node) {
            true => FRESH.as_duration().max(took.saturating_mul(SHARE)),
            false => SHOWN.as_duration().max(took.saturating_mul(SHARE)),
        };
        if self.looked.is_some_and(|(at, took)| at.elapsed() < fresh(took)) {
            return;
        }
        let began = Instant::now();
        let coldest = of_tier(node, tier).unwrap_or(0.0).to_bits();
        node.header().tier[tier].coldest.store(coldest, Ordering::Relaxed);
        self.looked = Some((began, began.elapsed()));
    }
}

/// The lowest hotness of the files that have blocks in a tier which may leave it.
fn of_tier(node: &Node, tier: TierId) -> Option<f32> {
    let segment = &node.segment;
    let mut ruled = RuledBlocks::default();
    ruled.look(segment);
    whole_buckets_of(segment, tier)
        .filter_map(|bucket| segment.bucket(bucket))
        .filter(|meta| {
            meta.state.load(Ordering::Acquire) == USED && meta.reserved.load(Ordering::Relaxed) == 0
        })
        .map(|meta| (meta.file.load(Ordering::Relaxed), meta.block.load(Ordering::Relaxed)))
        .filter(|&(file, _)| segment.header().has_file(file))
        .filter(|&(file, block)| !ruled.settings(segment, file, block).pin)
        .map(|(file, _)| hotness_of(segment, segment.file(file)))
        .reduce(f32::min)
}

/// Whether a policy that compares hotness places any file. A rule that names a tier compares none.
fn compares_hotness(node: &Node) -> bool {
    let rules = node.segment.rules().iter().map(RuleRecord::settings);
    let mut all = rules.filter(|rule| rule.tier.is_none()).chain([Settings::default()]);
    all.any(|settings| policy_of(&node.segment, &settings).policy().compares_hotness())
}
