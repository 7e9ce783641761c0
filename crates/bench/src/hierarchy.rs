//! The emulated devices: Figure 7 of the Hermes paper, as one of its 32 client nodes sees them.
//!
//! Figure 7 measures each device with all client nodes at once; a node's share is 1/32 of that
//! (MB/s):
//!
//! | device          |         write |            read | latency  |
//! |-----------------|---------------|-----------------|----------|
//! | RAM             | 86496 -> 2703 | 92647 -> 2895   | 14 ns    |
//! | NVMe            | 33103 -> 1034 | 38674 -> 1208   | 20 us    |
//! | 8 burst buffers |  2762 -> 86.3 |  3326 -> 104    | 55-66 us |
//! | 16 PFS servers  |   735 -> 23   |   883 -> 27.6   | 4.16 ms  |
//!
//! RAM is this machine's own. Capacities are not in the paper; `docs/simulator.md` derives 8 GiB of
//! RAM and 8 GiB of NVMe for a node. The burst buffers hold all.

use crate::Scale;

/// An emulated device: MB/s and microseconds.
struct Device {
    read: f64,
    write: f64,
    latency_us: u32,
}

const NVME: Device = Device { read: 1208.6, write: 1034.5, latency_us: 20 };
const BURST_BUFFER: Device = Device { read: 103.9, write: 86.3, latency_us: 60 };
const STORE: Device = Device { read: 27.6, write: 23.0, latency_us: 4160 };

/// Least that a tier takes: 16 buckets of 256 KiB.
const CAPACITY_MIN: u64 = 4 << 20;

/// RAM, and NVMe, of a node of the paper.
const PAPER_CAPACITY_GIB: u64 = 8;

/// At small scale, devices are so much faster.
const SMALL_SPEEDUP: f64 = 16.0;

/// The devices below one program, as parts of configuration files. The directories `pfs`, `bb` and
/// `nvme` are beside the file.
#[derive(Clone, Copy, Debug)]
pub struct Hierarchy {
    /// Bytes that the program writes altogether.
    pub bytes: u64,
    /// Of RAM and of NVMe, each.
    capacity: u64,
    /// How much faster than the paper's all devices but RAM are.
    speedup: f64,
}

impl Hierarchy {
    /// For a program that writes so many bytes, where a node of the paper wrote `paper_gib` GiB.
    pub fn new(bytes: u64, paper_gib: u64, scale: Scale) -> Self {
        let capacity = (bytes / paper_gib * PAPER_CAPACITY_GIB).max(CAPACITY_MIN);
        Self { bytes, capacity, speedup: scale.of(1.0, SMALL_SPEEDUP) }
    }

    /// Seconds that the device of a directory needs at least for all bytes.
    pub fn least_s(&self, directory: &str) -> f64 {
        let device = if directory == "pfs" { STORE } else { BURST_BUFFER };
        self.bytes as f64 / (device.write * self.speedup * 1e6)
    }

    fn emulation(&self, device: &Device) -> String {
        let mb_per_s = |speed: f64| format!("\"{:.1}MB/s\"", speed * self.speedup);
        let latency_us = (f64::from(device.latency_us) / self.speedup).max(1.0);
        format!(
            "emulate = {{ bandwidth = {{ read = {}, write = {} }}, latency = \"{latency_us:.0}us\" }}\n",
            mb_per_s(device.read),
            mb_per_s(device.write)
        )
    }

    /// The store, its files buffered or not.
    pub fn store(&self, mode: &str) -> String {
        format!("[[backing]]\npath = \"pfs\"\nmode = \"{mode}\"\n{}", self.emulation(&STORE))
    }

    /// The burst buffer's device as a directory that programs write to.
    pub fn burst_buffer_directory(&self) -> String {
        format!("[[backing]]\npath = \"bb\"\nmode = \"bypass\"\n{}", self.emulation(&BURST_BUFFER))
    }

    /// A RAM tier that nothing uses; every configuration has one.
    pub fn no_tiers(&self) -> String {
        tier("ram", "ram", CAPACITY_MIN)
    }

    /// RAM, NVMe and burst buffer as tiers of Forebay.
    pub fn tiers(&self) -> String {
        let file = |name: &str, capacity: u64, device: &Device| {
            let emulation = self.emulation(device);
            tier(name, "file", capacity) + &format!("path = \"{name}\"\n{emulation}")
        };
        tier("ram", "ram", self.capacity)
            + &file("nvme", self.capacity, &NVME)
            + &file("bb", self.bytes.max(CAPACITY_MIN), &BURST_BUFFER)
    }
}

fn tier(name: &str, kind: &str, capacity: u64) -> String {
    format!("[[tier]]\nname = \"{name}\"\nkind = \"{kind}\"\ncapacity = {capacity}\n")
}
