//! The paper's testbed and its Tables IV, V and VI, in its units: MB, seconds, MB/s.
//!
//! The printed parameters do not give the printed tables, so there are two readings of them, see
//! [`Reading`]. Table III says of T_w that it is independent of a message's size, and of T_s that
//! it is in proportion to it; text and equation (2) say the reverse, and are right.
//!
//! ```
//! use forebay_placement::collective::paper::{DEVICES, Reading, TABLES};
//!
//! assert_eq!(format!("{:.1}", Reading::Text.exchange_s(&TABLES[0])), "417.2");
//! assert_eq!(format!("{:.1}", Reading::Tables.exchange_s(&TABLES[0])), "138.6");
//! assert_eq!(format!("{:.2}", DEVICES[0].independent_s()), "613.17");
//! ```

use super::{Link, collective_s, exchange_s, independent_s, io_s, tau};

/// All data: with blocks of 512 MB. Section IV.D says 64 MB, which would be 2 GB in all.
pub const TOTAL_MB: f64 = 16384.0;
/// The collective buffer, and so a message.
pub const BUFFER_MB: f64 = 16.0;
/// T_s, and T_w for a MB.
pub const LINK: Link = Link { start_s: 5.39e-3, byte_s: 3.35e-2 };
/// The mean of the errors of Tables V and VI as the text has it, and the largest, in percent.
pub const MEAN_ERROR: f64 = 4.93;
/// See [`MEAN_ERROR`].
pub const LARGEST_ERROR: f64 = 14.4;

/// A column of Table IV.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidths {
    /// The device's name.
    pub name: &'static str,
    /// bdw_seq, in MB/s.
    pub sequential: f64,
    /// bdw_ran, in MB/s.
    pub random: f64,
}

/// Table IV.
pub const DEVICES: [Bandwidths; 3] = [
    Bandwidths { name: "HDD", sequential: 58.11, random: 26.72 },
    Bandwidths { name: "SSD", sequential: 110.98, random: 101.86 },
    Bandwidths { name: "NVM", sequential: 112.31, random: 110.51 },
];

impl Bandwidths {
    /// Equations (4) and (5).
    pub fn independent_s(&self) -> f64 {
        independent_s(io_s(TOTAL_MB, self.random), 0.0)
    }

    /// Equations (1) and (3), with this exchange.
    pub fn collective_s(&self, exchange_s: f64) -> f64 {
        collective_s(exchange_s, io_s(TOTAL_MB, self.sequential), 0.0)
    }
}

/// What a table prints of a mode on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Estimated, in seconds.
    pub estimated_s: f64,
    /// Measured, in seconds.
    pub measured_s: f64,
    /// The error that is printed in brackets, in percent.
    pub error: f64,
}

impl Cell {
    /// The error that the two times give, in percent.
    pub fn error_of_times(&self) -> f64 {
        error(self.estimated_s, self.measured_s)
    }
}

/// How far an estimate is off a measured time, in percent of that.
pub fn error(estimated_s: f64, measured_s: f64) -> f64 {
    (estimated_s / measured_s - 1.0).abs() * 100.0
}

/// Table V or VI: with one aggregator on each node, devices as of [`DEVICES`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// Its number.
    pub name: &'static str,
    /// Compute nodes.
    pub nodes: u32,
    /// Processes on each.
    pub ranks_per_node: u32,
    /// Collective I/O.
    pub collective: [Cell; 3],
    /// Independent I/O, which the paper calls individual.
    pub independent: [Cell; 3],
}

const fn cell(estimated_s: f64, error: f64, measured_s: f64) -> Cell {
    Cell { estimated_s, measured_s, error }
}

/// Tables V and VI.
pub const TABLES: [Table; 2] = [
    Table {
        name: "V",
        nodes: 4,
        ranks_per_node: 4,
        collective: [
            cell(411.78, 6.7, 385.86),
            cell(286.21, 3.2, 277.46),
            cell(284.46, 14.4, 242.54),
        ],
        independent: [
            cell(613.17, 3.4, 593.04),
            cell(160.84, 9.8, 146.50),
            cell(145.88, 3.2, 146.35),
        ],
    },
    Table {
        name: "VI",
        nodes: 2,
        ranks_per_node: 8,
        collective: [
            cell(350.90, 1.04, 354.59),
            cell(216.58, 0.53, 217.74),
            cell(214.83, 0.85, 213.01),
        ],
        independent: [
            cell(613.17, 5.66, 580.32),
            cell(160.84, 9.86, 146.40),
            cell(145.88, 0.46, 146.55),
        ],
    },
];

impl Table {
    /// Processes of all nodes.
    pub fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    /// The exchange that an estimate of collective I/O was made with: without its I/O.
    pub fn printed_exchange_s(&self, device: usize) -> f64 {
        self.collective[device].estimated_s - io_s(TOTAL_MB, DEVICES[device].sequential)
    }
}

/// What the parameters of equation (2) are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As section IV.C says: all data over the buffer's size are the iterations, and tau is the
    /// share of the processes that are no aggregators.
    Text,
    /// What the estimates in the tables were made with, found by trying: each process of a node
    /// takes a part of the iterations, and tau is 1.
    Tables,
}

impl Reading {
    /// iter.
    pub fn iterations(self, table: &Table) -> f64 {
        let all = TOTAL_MB / BUFFER_MB;
        match self {
            Reading::Text => all,
            Reading::Tables => all / f64::from(table.ranks_per_node),
        }
    }

    /// tau.
    pub fn tau(self, table: &Table) -> f64 {
        match self {
            Reading::Text => tau(table.ranks(), table.nodes),
            Reading::Tables => 1.0,
        }
    }

    /// Equation (2).
    pub fn exchange_s(self, table: &Table) -> f64 {
        exchange_s(LINK, self.iterations(table), BUFFER_MB, self.tau(table))
    }
}

/// Figure 11: one iteration with a message of so many MB on 4 nodes with 4 processes each: the cost
/// of the exchange, and what collective I/O gains over independent I/O, both in seconds.
pub fn tradeoff_s(device: &Bandwidths, message_mb: f64) -> (f64, f64) {
    let cost_s = exchange_s(LINK, 1.0, message_mb, Reading::Text.tau(&TABLES[0]));
    let collective_s = collective_s(cost_s, io_s(message_mb, device.sequential), 0.0);
    (cost_s, independent_s(io_s(message_mb, device.random), 0.0) - collective_s)
}
