//! From measurements to a configuration.

use super::measured::Measured;
use super::mounts::{Kind, Skipped};

use crate::config::units::{round_down, size};
use crate::config::{BUFFER_TIERS_MAX, Speed, machine_ram};
use std::fmt::Write as _;
use std::path::Path;

/// Part of a file system's free space that a tier may take.
const SHARE: u64 = 4;
/// Tiers are whole numbers of these.
const TIER_UNIT: u64 = 64 << 20;
/// File tiers that a configuration may have: the first tier is RAM.
const FILE_TIERS_MAX: usize = BUFFER_TIERS_MAX - 1;

/// A configuration for the places that were measured: RAM, then those that are faster than the
/// backing store, fastest first. Says which were left out, and why.
pub fn configuration(
    ram: &Measured,
    places: &[Measured],
    store: &Measured,
) -> (String, Vec<Skipped>) {
    let mut left_out = Vec::new();
    let mut tiers: Vec<&Measured> = Vec::new();
    for found in places {
        let why = if found.place.path == store.place.path {
            continue;
        } else if is_inside(&found.place.path, &store.place.path) {
            "lies in the backing store's directory, or contains it"
        } else if found.speed().write_bandwidth <= store.speed().write_bandwidth {
            "is not faster than the backing store"
        } else if found.place.free / SHARE < TIER_UNIT {
            "has too little free space for a tier"
        } else {
            tiers.push(found);
            continue;
        };
        left_out.push(Skipped { path: found.place.path.clone(), why: why.to_owned() });
    }
    tiers.sort_by_key(|tier| std::cmp::Reverse(tier.speed().write_bandwidth));
    for surplus in tiers.drain(FILE_TIERS_MAX.min(tiers.len())..) {
        let why =
            format!("is slower than {FILE_TIERS_MAX} others; a hierarchy has no more file tiers");
        left_out.push(Skipped { path: surplus.place.path.clone(), why });
    }
    let mut text = String::from("# Measured by `forebay profile`.\n");
    let _ = write!(text, "\n# {}\n[[backing]]\n", store.place.device);
    let _ = writeln!(text, "path = {}", quoted(&store.place.path));
    write_speed(&mut text, store.speed());
    let _ = write!(text, "\n[[tier]]\nname = \"ram\"\nkind = \"ram\"\n");
    let _ = writeln!(text, "capacity = \"{}\"", size(machine_ram().max(TIER_UNIT)));
    write_speed(&mut text, ram.speed());
    for (index, tier) in tiers.iter().enumerate() {
        let same = |kind: Kind| tiers[..index].iter().filter(|t| t.place.kind == kind).count();
        let name = match same(tier.place.kind) {
            0 => tier.place.kind.tier_name().to_owned(),
            others => format!("{}-{}", tier.place.kind.tier_name(), others + 1),
        };
        let _ = write!(text, "\n# {}, {}\n", tier.place.kind.describe(), tier.place.device);
        let _ = write!(text, "[[tier]]\nname = \"{name}\"\nkind = \"file\"\n");
        let _ = writeln!(text, "path = {}", quoted(&tier.place.path));
        let capacity = round_down(tier.place.free / SHARE, TIER_UNIT);
        let _ = writeln!(text, "capacity = \"{}\"", size(capacity));
        write_speed(&mut text, tier.speed());
    }
    (text, left_out)
}

/// Whether one directory lies in the other.
fn is_inside(one: &Path, two: &Path) -> bool {
    one.starts_with(two) || two.starts_with(one)
}

fn quoted(path: &Path) -> String {
    toml::Value::from(path.to_string_lossy().into_owned()).to_string()
}

fn write_speed(text: &mut String, speed: Speed) {
    let (read, write) = (bandwidth(speed.read_bandwidth), bandwidth(speed.write_bandwidth));
    let _ = writeln!(text, "bandwidth = {{ read = \"{read}\", write = \"{write}\" }}");
    let _ = writeln!(text, "latency = \"{}\"", latency(speed.latency_ns));
    let seeks = [("read", speed.read_seek_ns), ("write", speed.write_seek_ns)];
    let seeks = seeks.iter().filter(|(_, ns)| *ns > 0);
    let seeks: Vec<_> = seeks.map(|(way, ns)| format!("{way} = \"{}\"", latency(*ns))).collect();
    if !seeks.is_empty() {
        let _ = writeln!(text, "seek = {{ {} }}", seeks.join(", "));
    }
}

/// A bandwidth to three digits, as configurations have it.
pub fn bandwidth(bytes_per_second: u64) -> String {
    let units = [("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)];
    let value = bytes_per_second.max(1) as f64;
    let found = units.iter().find(|(_, scale)| value >= *scale);
    found.map_or_else(|| format!("{value:.0}B/s"), |(unit, scale)| three(value / scale) + unit)
}

/// A time to three digits, as configurations have it.
pub fn latency(ns: u64) -> String {
    let value = ns.max(1) as f64;
    let units = [("s", 1e9), ("ms", 1e6), ("us", 1e3)];
    let found = units.iter().find(|(_, scale)| value >= *scale);
    found.map_or_else(|| format!("{value:.0}ns"), |(unit, scale)| three(value / scale) + unit)
}

fn three(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measured::Row;
    use super::super::mounts::Place;
    use super::*;
    use crate::config::Config;
    use forebay_device::Direction;
    use forebay_tiers::measure::{Order, Probe, Sample};
    use std::fs;

    /// Random requests have half of the bandwidth.
    fn measured(path: &Path, kind: Kind, bandwidth: f64) -> Measured {
        let place =
            Place { path: path.to_owned(), kind, device: "ext4 on \"x\"".into(), free: 1 << 30 };
        let row = |order, direction, bytes, round_ns| Row {
            probe: Probe { order, direction, bytes, at_once: 1 },
            runs: vec![Sample {
                bandwidth: if order == Order::Random { bandwidth / 2.0 } else { bandwidth },
                round_ns,
                bytes: 1,
            }],
        };
        let rows = vec![
            row(Order::Sequential, Direction::Write, 1 << 20, 0),
            row(Order::Sequential, Direction::Read, 1 << 20, 0),
            row(Order::Random, Direction::Write, 4096, 40_000),
            row(Order::Random, Direction::Read, 4096, 60_000),
        ];
        Measured { place, rows, direct: true }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let site = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            fs::create_dir(site.path().join(name)).unwrap();
            site.path().canonicalize().unwrap().join(name)
        };
        let ram = measured(Path::new("memory"), Kind::Memory, 9.87e9);
        let store = measured(&folder("a \"store\""), Kind::Network, 1.234e8);
        let places = [
            measured(&folder("slow"), Kind::Disk, 1e8),
            measured(&folder("ssd"), Kind::Ssd, 5e8),
            measured(&folder("nvme"), Kind::Nvme, 2.34567e9),
            measured(&folder("nvme-2"), Kind::Nvme, 1e9),
            measured(&store.place.path.join("below"), Kind::Nvme, 1e10),
            store.clone(),
        ];
        let (text, left_out) = configuration(&ram, &places, &store);
        let file = site.path().join("forebay.toml");
        fs::write(&file, &text).unwrap();
        let config = Config::load(&file, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let names: Vec<_> = config.tiers.iter().map(|tier| tier.name.as_str()).collect();
        assert_eq!(names, ["ram", "nvme", "nvme-2", "ssd"], "fastest first");
        assert_eq!(config.backing[0].path, store.place.path);
        let speed = |read_bandwidth, latency_ns, seek_ns| Speed {
            read_bandwidth,
            write_bandwidth: read_bandwidth,
            latency_ns,
            read_seek_ns: seek_ns,
            write_seek_ns: seek_ns,
        };
        assert_eq!(config.tiers[1].speed, speed(2_350_000_000, 50_000, 1_750));
        assert_eq!(config.backing[0].speed, speed(123_000_000, 50_000, 33_200));
        assert_eq!(config.tiers[1].capacity, 256 << 20);
        let reasons: Vec<_> = left_out.iter().map(|left_out| left_out.why.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "is not faster than the backing store",
                "lies in the backing store's directory, or contains it"
            ]
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [1, 999, 1000, 12_340, 999_999_999, 9_876_543_210].map(bandwidth);
        assert_eq!(shown, ["1B/s", "999B/s", "1.00KB/s", "12.3KB/s", "1000MB/s", "9.88GB/s"]);
        assert_eq!([0, 95, 4_160_000].map(latency), ["1ns", "95ns", "4.16ms"]);
    }
}
