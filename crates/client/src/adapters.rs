//! What adapters give a session: what a library that they stand before will read next, and what is
//! counted of it.

use crate::open::lies_under;
use crate::open_file::OpenFile;
use crate::placement::{device_of, network_of};
use crate::services::{DeviceNow, NetworkNow};
use crate::session::Session;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_device::Direction;
use forebay_placement::collective::{Device, Network};
use forebay_placement::prefetch::{Ahead, DEPTH_MAX};
use forebay_pool::layout::*;
use forebay_pool::message::{EXPECT_UNIT, Message};
use forebay_pool::segment::text;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What adapters count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// [`Counters::mpi_files`].
    MpiFiles,
    /// [`Counters::mpi_calls`].
    MpiCalls,
    /// [`Counters::mpi_bytes`].
    MpiBytes,
    /// [`Counters::mpi_independent`].
    MpiIndependent,
    /// [`Counters::mpi_hinted`].
    MpiHinted,
    /// [`Counters::mpi_unadapted`].
    MpiUnadapted,
}

impl Counted {
    fn of(self, counters: &Counters) -> &AtomicU64 {
        match self {
            Counted::MpiFiles => &counters.mpi_files,
            Counted::MpiCalls => &counters.mpi_calls,
            Counted::MpiBytes => &counters.mpi_bytes,
            Counted::MpiIndependent => &counters.mpi_independent,
            Counted::MpiHinted => &counters.mpi_hinted,
            Counted::MpiUnadapted => &counters.mpi_unadapted,
        }
    }
}

impl Session {
    /// Counts `more`.
    pub fn count(&self, what: Counted, more: u64) {
        self.count_up(what.of(self.counters()), more);
    }

    /// Notes that this process is a rank of the job of MPI that `job` stands for, and has the
    /// adapter: so its ranks can know that all have it, before they depend on each other.
    pub fn join_mpi_job(&self, job: u64) {
        self.segment.client(self.slot()).mpi_job.store(job, Ordering::SeqCst);
    }

    /// The processes of this node that have noted that, and live.
    pub fn ranks_of_mpi_job(&self, job: u64) -> usize {
        let clients = self.segment.clients().used();
        let is_rank = |client: &ClientSlot| {
            client.state.load(Ordering::SeqCst) == slot_state::LIVE
                && client.mpi_job.load(Ordering::SeqCst) == job
        };
        clients.filter(|(_, client)| is_rank(client)).count()
    }

    /// Whether a file of this name lies beneath a managed directory, or would if it were made. Asks
    /// the kernel, and allocates.
    pub fn covers(&self, path: &CStr) -> bool {
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // A link is where it leads to.
        let found = path.canonicalize().or_else(|_| folder.canonicalize());
        let header = self.segment.header();
        let stores = &header.store[..(header.stores as usize).min(STORES_MAX)];
        let lies_in = |folder: &[u8]| {
            stores.iter().any(|store| lies_under(folder, text(&store.path).to_bytes()))
        };
        found.is_ok_and(|found| lies_in(found.as_os_str().as_bytes()))
    }

    /// How fast the fastest tier is, as far as it is known.
    pub fn fastest_device(&self, is_write: bool) -> Option<DeviceNow> {
        let header = self.segment.header();
        let first = header.tiers_in_use().next()?;
        device_of(&header.tier[first].speed, direction(is_write)).map(DeviceNow::from)
    }

    /// How fast messages between ranks are, as far as the configuration says.
    pub fn network_now(&self) -> NetworkNow {
        let Network { between, within } = network_of(&self.segment);
        NetworkNow {
            between_start_s: between.start_s,
            between_byte_s: between.byte_s,
            within_start_s: within.start_s,
            within_byte_s: within.byte_s,
        }
    }
}

fn direction(is_write: bool) -> Direction {
    if is_write { Direction::Write } else { Direction::Read }
}

impl From<Device> for DeviceNow {
    fn from(found: Device) -> DeviceNow {
        let Device { bandwidth, seek_s, latency_s } = found;
        DeviceNow { bandwidth, seek_s, latency_s }
    }
}

impl OpenFile<'_> {
    /// How fast what holds these bytes is, as a mean over tiers and the store; `None` if one of
    /// them is not known.
    ///
    /// # Errors
    /// As of [`OpenFile::placement`].
    pub fn device_beneath(
        &self,
        bytes: Range<u64>,
        is_write: bool,
    ) -> Result<Option<DeviceNow>, Errno> {
        let header = self.session.segment.header();
        // The last place is the store.
        let mut shares = [0.0; TIERS_MAX + 1];
        self.placement(bytes, |extent| {
            shares[extent.tier.map_or(TIERS_MAX, TierId::index)] += extent.bytes as f64;
            true
        })?;
        let store = self.record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        let speeds = (0..TIERS_MAX)
            .map(|tier| &header.tier[TierId::new(tier)].speed)
            .chain([&header.store[store].speed]);
        let mut parts =
            [(Device { bandwidth: 0.0, seek_s: 0.0, latency_s: 0.0 }, 0.0); TIERS_MAX + 1];
        let mut count = 0;
        for (speed, share) in speeds.zip(shares).filter(|(_, share)| *share > 0.0) {
            let Some(device) = device_of(speed, direction(is_write)) else { return Ok(None) };
            parts[count] = (device, share);
            count += 1;
        }
        Ok(Device::of_parts(&parts[..count]).map(DeviceNow::from))
    }

    /// Asks the node manager to bring to RAM what the caller knows that it will read: pieces of
    /// `bytes`, from each to the next `stride` further on. It does so while there is room, and not
    /// where reading ahead is switched off. At most [`DEPTH_MAX`] pieces count, and of each what a
    /// message can say. Returns whether it was asked.
    pub fn will_read(&self, offset: u64, bytes: u64, stride: i64, pieces: u64) -> bool {
        if self.session.segment.header().prefetch.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let pieces = pieces.min(DEPTH_MAX);
        let ahead = Ahead { offset, bytes, stride, count: pieces };
        // What cannot be entered is not read ahead: it is advice.
        let lacks = self.enter(self.session.owner()).is_ok_and(|inside| inside.lacking(&ahead) > 0);
        if !lacks {
            return false;
        }
        let few = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
        self.ask_to_stage(|file, generation| Message::Expect {
            file,
            generation,
            offset,
            stride,
            units: few(bytes.div_ceil(EXPECT_UNIT)),
            pieces: few(pieces),
        });
        self.session.count_up(&self.session.counters().mpi_ahead, pieces);
        true
    }
}
