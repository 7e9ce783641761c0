//! What the probes have found out about a place.

use super::mounts::Place;
use crate::config::Speed;
use forebay_device::Direction;
use forebay_placement::collective::Device;
use forebay_tiers::measure::{Order, Probe, Sample};

/// One probe's runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was measured.
    pub probe: Probe,
    /// What each run found.
    pub runs: Vec<Sample>,
}

impl Row {
    /// Least, median and largest bandwidth in bytes per second.
    pub fn bandwidths(&self) -> [f64; 3] {
        let mut found: Vec<f64> = self.runs.iter().map(|run| run.bandwidth).collect();
        found.sort_by(f64::total_cmp);
        spread(&found).unwrap_or_default()
    }

    /// Least, median and largest time of a round in nanoseconds.
    pub fn rounds_ns(&self) -> [u64; 3] {
        let mut found: Vec<u64> = self.runs.iter().map(|run| run.round_ns).collect();
        found.sort_unstable();
        spread(&found).unwrap_or_default()
    }
}

fn spread<T: Copy>(sorted: &[T]) -> Option<[T; 3]> {
    Some([*sorted.first()?, sorted[sorted.len() / 2], *sorted.last()?])
}

/// What was found out about a place.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Where.
    pub place: Place,
    /// Every probe.
    pub rows: Vec<Row>,
    /// The page cache was not in between.
    pub direct: bool,
}

impl Measured {
    /// What the cost model computes with: the best sequential bandwidth each way, and the time of
    /// one small request, the mean of both ways.
    pub fn speed(&self) -> Speed {
        let best = |direction| {
            let rows = self.rows.iter().filter(|row| {
                row.probe.direction == direction && row.probe.order == Order::Sequential
            });
            rows.map(|row| row.bandwidths()[1] as u64).max().unwrap_or(0)
        };
        let seek_ns = |direction| self.seek_s(direction).map_or(0, |time_s| (time_s * 1e9) as u64);
        let small = self.rows.iter().filter(|row| row.probe.order == Order::Random);
        let least = small.clone().map(|row| row.probe.bytes).min();
        let alone: Vec<u64> = small
            .filter(|row| row.probe.at_once == 1 && Some(row.probe.bytes) == least)
            .map(|row| row.rounds_ns()[1])
            .collect();
        Speed {
            read_bandwidth: best(Direction::Read),
            write_bandwidth: best(Direction::Write),
            latency_ns: alone.iter().sum::<u64>() / alone.len().max(1) as u64,
            read_seek_ns: seek_ns(Direction::Read),
            write_seek_ns: seek_ns(Direction::Write),
        }
    }

    /// Seconds that a request elsewhere takes of the device's time before bytes move: what the
    /// largest random requests take longer than as many bytes in order.
    fn seek_s(&self, direction: Direction) -> Option<f64> {
        let of = |order: Order| {
            self.rows
                .iter()
                .filter(move |row| row.probe.direction == direction && row.probe.order == order)
        };
        let best = |rows: &mut dyn Iterator<Item = &Row>| {
            rows.map(|row| row.bandwidths()[1]).max_by(f64::total_cmp)
        };
        let bytes = of(Order::Random).map(|row| row.probe.bytes).max()?;
        let random = best(&mut of(Order::Random).filter(|row| row.probe.bytes == bytes))?;
        let sequential = best(&mut of(Order::Sequential))?;
        Some(Device::measured(sequential, random, bytes as f64, 0.0)?.seek_s)
    }
}
