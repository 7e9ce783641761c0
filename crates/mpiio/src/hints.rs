//! Hints that are given to `MPI_File_open` where the program has not set them. Which ones, one rank
//! says for all: an MPI library may compare what ranks give.

use crate::abi::Abi;
use crate::library::{Word, ask};
use crate::services::services;
use core::ffi::{CStr, c_char, c_int};
use forebay_client::services::{DeviceNow, NetworkNow};
use forebay_placement::collective::{Call, Device, Link, Network, aggregators};

/// Hints, as bits of what a program has set.
const AGGREGATORS: u64 = 1;
/// None may be added.
const ALL: u64 = u64::MAX;

/// Names of hints, and the bit that each closes.
const NAMES: [(&CStr, u64); 4] = [
    (c"cb_nodes", AGGREGATORS),
    (c"cb_config_list", AGGREGATORS),
    (c"romio_no_indep_rw", ALL),
    (c"romio_aggregator_list", AGGREGATORS),
];

/// Hints that all programs of a user or of a machine have: a file of ROMIO's.
const ROMIO_HINTS: &CStr = c"ROMIO_HINTS";
const SYSTEM_HINTS: &CStr = c"/etc/romio-hints";

/// What a rank adds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    /// `cb_nodes`; 0 leaves it.
    pub aggregators: u32,
    /// Of them on each node, `cb_config_list`; 0 leaves it.
    pub each: u32,
}

/// The hints that this rank's program, user or machine has set.
pub(crate) fn set_by_others(abi: &Abi, info: Word) -> u64 {
    // SAFETY: looks at the environment and at a name.
    let has_file = unsafe {
        !libc::getenv(ROMIO_HINTS.as_ptr()).is_null()
            || libc::access(SYSTEM_HINTS.as_ptr(), libc::F_OK) == 0
    };
    if has_file {
        return ALL;
    }
    if info == abi.no_info || info == 0 {
        return 0;
    }
    let is_set = |name: &CStr| value_bytes(info, name).is_some();
    NAMES.iter().filter(|(name, _)| is_set(name)).fold(0, |set, (_, bit)| set | bit)
}

/// Bytes of the value of a hint, if it is there.
fn value_bytes(info: Word, name: &CStr) -> Option<usize> {
    let (mut bytes, mut is_there): (c_int, c_int) = (0, 0);
    let is_known = ask!(
        "PMPI_Info_get_valuelen",
        info,
        name.as_ptr() as Word,
        (&raw mut bytes) as Word,
        (&raw mut is_there) as Word
    );
    (is_known && is_there != 0).then_some(bytes.max(0) as usize)
}

/// The value of a hint.
pub(crate) fn value(info: Word, name: &CStr) -> Option<Vec<u8>> {
    let bytes = value_bytes(info, name)?;
    let mut text: Vec<u8> = vec![0; bytes + 1];
    let mut is_there: c_int = 0;
    let is_known = ask!(
        "PMPI_Info_get",
        info,
        name.as_ptr() as Word,
        bytes as Word,
        text.as_mut_ptr() as Word,
        (&raw mut is_there) as Word
    );
    text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(bytes));
    (is_known && is_there != 0).then_some(text)
}

/// ROMIO's buffer of an aggregator, where nothing is said.
pub(crate) const BUFFER: u64 = 16 << 20;
/// Bytes of a piece of a call that is not known yet: with smaller ones the number of aggregators
/// that is best hardly changes.
const PIECE: u64 = 64 << 10;

/// What is to be added for so many ranks on so many nodes, where `set` was set by one of them.
pub(crate) fn chosen(set: u64, ranks: u32, nodes: u32) -> Hints {
    let mut hints = Hints::default();
    if set & AGGREGATORS == 0
        && ranks > 1
        && let Some(device) = device(-1, 0..0, true)
    {
        let call = Call {
            ranks,
            nodes,
            aggregators: 1,
            buffer: BUFFER,
            bytes: BUFFER * u64::from(ranks),
            largest_domain: 0,
            piece: PIECE,
            is_contiguous: false,
        };
        let found = aggregators(&call, &network(), &device).unwrap_or(0);
        // As many as the library takes by itself: one on each node.
        if found != nodes && found > 0 {
            hints.aggregators = found;
            hints.each = if found > nodes { found.div_ceil(nodes) } else { 0 };
        }
    }
    hints
}

/// How fast what holds these bytes is, as far as it is known; of descriptor -1 the fastest tier.
pub(crate) fn device(fd: c_int, bytes: core::ops::Range<u64>, is_write: bool) -> Option<Device> {
    let mut now = DeviceNow::default();
    let length = bytes.end - bytes.start;
    // SAFETY: a place for what is found.
    let found =
        unsafe { (services()?.device)(fd, bytes.start, length, u32::from(is_write), &raw mut now) };
    let DeviceNow { bandwidth, seek_s, latency_s } = now;
    Device { bandwidth, seek_s, latency_s }.known().filter(|_| found == 0)
}

/// How fast messages are, as far as it is known.
pub(crate) fn network() -> Network {
    let mut now = NetworkNow::default();
    if let Some(services) = services() {
        // SAFETY: a place for what is found.
        unsafe { (services.network)(&raw mut now) };
    }
    Network {
        between: Link { start_s: now.between_start_s, byte_s: now.between_byte_s },
        within: Link { start_s: now.within_start_s, byte_s: now.within_byte_s },
    }
}

/// The program's hints and these; `None` where nothing is to be added, or it cannot be. To be freed
/// by [`free`].
pub(crate) fn with(abi: &Abi, info: Word, hints: Hints) -> Option<Word> {
    if hints == Hints::default() {
        return None;
    }
    let mut made: Word = 0;
    let address = (&raw mut made) as Word;
    let is_made = match info == abi.no_info || info == 0 {
        true => ask!("PMPI_Info_create", address),
        false => ask!("PMPI_Info_dup", info, address),
    };
    if !is_made {
        return None;
    }
    if hints.aggregators > 0 {
        set(made, c"cb_nodes", &format!("{}\0", hints.aggregators));
    }
    if hints.each > 0 {
        set(made, c"cb_config_list", &format!("*:{}\0", hints.each));
    }
    Some(made)
}

/// The value ends with a zero.
fn set(info: Word, name: &CStr, value: &str) {
    ask!("PMPI_Info_set", info, name.as_ptr() as Word, value.as_ptr().cast::<c_char>() as Word);
}

/// Gives up what [`with`] has made, or the library has.
pub(crate) fn free(mut info: Word) {
    ask!("PMPI_Info_free", (&raw mut info) as Word);
}
