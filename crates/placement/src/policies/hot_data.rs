//! HotData, equation 3 of Hermes' appendix: what is used often lies high, and what is large lies
//! low.

use super::max_bandwidth::{moving, places, writing};
use super::{Policy, Worth};
use crate::cost::{Model, Pace, Speeds};
use crate::solve::{Rate, solve};
use crate::{Hierarchy, Plan, Request};

/// Bytes in the megabyte in which the appendix gives capacities.
const MB: f64 = 1e6;

/// A fast cache for files that are used often.
pub(super) struct HotData;

impl Policy for HotData {
    fn name(&self) -> &'static str {
        "hot-data"
    }

    fn plan(&self, hierarchy: &Hierarchy, request: &Request) -> Plan {
        let speeds = Speeds::of(hierarchy);
        let (model, tiers) = (hierarchy.costs.model, hierarchy.len());
        let hotness = f64::from(request.file_hotness.max(0.0));
        let size = request.file_bytes.saturating_add(request.bytes) as f64;
        let mut places = places(hierarchy, |place| {
            let pace = &speeds.paces()[place];
            let tier = hierarchy.tiers().get(place);
            match model {
                Model::Physical => {
                    let scarce = tier.map_or(0.0, |tier| scarce(size, tier.capacity));
                    using(pace, hotness).times(1.0 + scarce)
                }
                Model::Paper => {
                    let free = tier.map_or(MB, |tier| tier.free.max(1) as f64);
                    Rate { fixed: 0.0, byte: pace.write_ns * MB / free }
                }
            }
        });
        let exposed = hierarchy.costs.exposed();
        for (place, tier) in places.iter_mut().zip(hierarchy.tiers()) {
            // Evict, only for something that is hotter.
            if request.file_hotness < tier.coldest || request.file_hotness.is_nan() {
                place.movable = 0;
            }
        }
        solve(request.bytes, &places[..=tiers], |from, to| match model {
            Model::Physical => {
                let (here, there) = (&speeds.paces()[from], &speeds.paces()[to]);
                let coldest = f64::from(hierarchy.tiers()[from].coldest.max(0.0));
                let mut rate = moving(model, &speeds, from, to).times(exposed);
                rate.byte += coldest * (there.read_ns - here.read_ns).max(0.0);
                rate
            }
            Model::Paper => places[to].rate.times(exposed),
        })
    }

    /// By score and size, weighted as in the plan: what is used often stays, and of files that are
    /// used alike the small ones.
    fn worth(&self, hotness: f32, file_bytes: u64, capacity: u64) -> Worth {
        Worth::of(hotness.max(0.0) / (1.0 + scarce(file_bytes as f64, capacity) as f32))
    }

    fn class(&self, request: &Request) -> Request {
        Request {
            bytes: request.bytes,
            file_bytes: request.file_bytes,
            file_hotness: request.file_hotness,
            ..Request::default()
        }
    }
}

/// How much of a tier a file takes: what large files pay for small ones.
fn scarce(file_bytes: f64, capacity: u64) -> f64 {
    file_bytes / capacity.max(1) as f64
}

/// Writing once, and reading as often as the file was lately used.
fn using(pace: &Pace, hotness: f64) -> Rate {
    let write = writing(Model::Physical, pace);
    Rate {
        fixed: write.fixed + hotness * pace.latency_ns,
        byte: write.byte + hotness * pace.read_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_and_small_is_worth_more() {
        const GB: u64 = 1_000_000_000;
        let worth = |hotness, bytes| HotData.worth(hotness, bytes, GB);
        assert_eq!(worth(1.0, 0), Worth::USUAL);
        assert!(worth(60.0, 1_000_000) > worth(1.0, 1_000_000), "used more often");
        assert!(worth(1.0, 1_000_000) > worth(1.0, 5 * GB), "smaller");
        assert!(worth(60.0, 5 * GB) > worth(1.0, 1_000_000), "so hot that size matters less");
        assert_eq!(worth(1.0, 1_000_000), worth(1.1, 2_000_000), "about alike");
        let order = [0.0, 1e-30, 0.01, 1.0, 1e9, f32::INFINITY].map(|hotness| worth(hotness, 0));
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(worth(f32::NAN, 0), worth(0.0, 0));
    }
}
