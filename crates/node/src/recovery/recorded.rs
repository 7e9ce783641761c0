//! What an earlier manager has recorded of itself, in the pool's header and beside the slots: a
//! pool that is found stands for itself. Its tiers and directories are where its data is, whatever
//! a configuration says today; that may have chosen other sizes, as there is more memory free or
//! less.

use crate::config::{
    Backing, Config, Emulate, Flush, Group, Messages, Metrics, Mode, Movers, Placement, RunLimits,
    SmallFiles, Speed, Tier, TierKind, Ways,
};
use crate::instance::runtime::Runtime;
use crate::observe::status::Observer;
use crate::usage::path_of;
use forebay_placement::evict::Eviction;
use forebay_placement::{PolicyId, schema};
use forebay_pool::Segment;
use forebay_pool::layout::{DeviceSpeed, Emulation, Geometry, Header, StoreHeader, TierHeader};
use forebay_pool::segment::text;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Runtime {
    /// The configuration with which what the instance has left goes on: that of its pool, or the
    /// one that an earlier manager has left in the folder. `None` where there is neither.
    pub fn recorded(&self) -> Option<Config> {
        let kept = self.read_config();
        let Ok(observer) = Observer::of(&self.pool) else { return kept };
        let segment = observer.segment();
        let alone = of_pool_alone(segment);
        let kept = kept.or_else(|| self.kept_beside(&alone));
        Some(kept.map_or(alone, |kept| of_pool(segment, None, &kept)))
    }

    /// The configuration of what an instance without pool has left on file tiers; `None` if there
    /// is nothing. `today` says where to look if nothing else does.
    pub fn left_on_tiers(&self, today: &Config) -> Option<Config> {
        let kept = self.read_config().into_iter().chain(self.kept_beside(today));
        kept.chain([today.clone()]).find(|config| self.has_slots(config))
    }
}

/// The configuration with which the pool `segment` goes on: `kept`, which an earlier manager has
/// left, or `today`, if it is of these tiers and directories. Else one with the pool's tiers and
/// directories, and the policies of that.
pub(crate) fn of_pool(segment: &Segment, kept: Option<&Config>, today: &Config) -> Config {
    let header = segment.header();
    if let Some(same) = kept.into_iter().chain([today]).find(|config| is_of(header, config)) {
        return same.clone();
    }
    let known = kept.unwrap_or(today);
    let mut config = Config { page_size: header.page_size, ..known.clone() };
    config.tiers = tiers_of(header);
    for (tier, known) in config.tiers.iter_mut().zip(&known.tiers) {
        if tier.name == known.name {
            tier.speed = known.speed;
        }
    }
    let stores = config.backing.iter().map(|backing| &*backing.path);
    if !stores.eq(stores_of(header).iter().map(|backing| &*backing.path)) {
        config.backing = stores_of(header);
    }
    config
}

/// The same, of a pool whose configuration is gone. Rules stay compiled in the pool.
pub(crate) fn of_pool_alone(segment: &Segment) -> Config {
    let header = segment.header();
    let eviction = header.eviction.load(Ordering::Relaxed) as usize;
    let policy = u8::try_from(header.policy.load(Ordering::Relaxed)).ok();
    Config {
        page_size: header.page_size,
        flush: Flush {
            trigger: header.flush_trigger(),
            durability: header.fsync_durability(),
            ..Flush::default()
        },
        placement: Placement {
            policy: policy.and_then(PolicyId::numbered).unwrap_or_default(),
            granularity: header.granularity.load(Ordering::Relaxed),
            eviction: Eviction::ALL.get(eviction).copied().unwrap_or_default(),
            costs: header.costs().model,
            exposed: header.exposed(),
            prefetch: header.prefetch.load(Ordering::Relaxed) != 0,
            half_life: Duration::from_millis(header.half_life_ms().into()),
            pin_permille: header.pin_permille.load(Ordering::Relaxed).min(750) as u16,
            ..Placement::default()
        },
        backing: stores_of(header),
        tiers: tiers_of(header),
        rules: Vec::new(),
        group: Group::default(),
        movers: Movers::default(),
        messages: Messages::default(),
        metrics: Metrics::default(),
        ways: Ways::default(),
        keep: Duration::ZERO,
        run: RunLimits::default(),
        analyses: Vec::new(),
        active: Vec::new(),
        automatic: false,
    }
}

/// Whether the pool has the tiers and directories of `config`.
fn is_of(header: &Header, config: &Config) -> bool {
    let bytes: Vec<u64> = config.tiers.iter().map(|tier| tier.capacity).collect();
    let geometry = Geometry::for_tiers(config.page_size, &bytes);
    let same_place = |(tier, known): (&TierHeader, &Tier)| {
        let slots = path_of(&tier.path);
        text(&tier.name).to_bytes() == known.name.as_bytes()
            && match &known.kind {
                TierKind::Ram => slots.as_os_str().is_empty(),
                TierKind::File { path } => slots.parent() == Some(path.as_path()),
            }
    };
    let tiers = &header.tier[..header.tiers as usize];
    let stores = header.store[..header.stores as usize].iter();
    header.page_size == config.page_size
        && tiers.iter().map(|tier| tier.buckets).eq(geometry.tier_buckets.iter().copied())
        && tiers.iter().zip(&config.tiers).all(same_place)
        && stores.map(|store| path_of(&store.path)).eq(config.backing.iter().map(|b| &*b.path))
}

fn tiers_of(header: &Header) -> Vec<Tier> {
    let bucket = u64::from(header.page_size) * u64::from(forebay_pool::layout::PAGES_PER_BUCKET);
    let of = |tier: &TierHeader| Tier {
        name: text(&tier.name).to_string_lossy().into_owned(),
        kind: match path_of(&tier.path).parent() {
            Some(folder) if !folder.as_os_str().is_empty() => {
                TierKind::File { path: folder.to_owned() }
            }
            _ => TierKind::Ram,
        },
        capacity: u64::from(tier.buckets) * bucket,
        emulate: emulated(&tier.emulation),
        speed: speed(&tier.speed),
        quota: 0,
    };
    header.tier[..header.tiers as usize].iter().map(of).collect()
}

fn stores_of(header: &Header) -> Vec<Backing> {
    let mode = |store: &StoreHeader| match (store.bypass, store.mode) {
        (0, mode) if mode == schema::Mode::Sync as u32 => Mode::Sync,
        (0, mode) if mode == schema::Mode::Scratch as u32 => Mode::Scratch,
        (0, _) => Mode::Buffered,
        _ => Mode::Bypass,
    };
    let of = |store: &StoreHeader| Backing {
        path: path_of(&store.path).to_owned(),
        mode: mode(store),
        emulate: emulated(&store.emulation),
        shared: Some(path_of(&store.shared).to_owned()).filter(|path| !path.as_os_str().is_empty()),
        speed: speed(&store.speed),
        stripe: 0,
        stripe_count: 0,
        small_files: SmallFiles::default(),
    };
    header.store[..header.stores as usize].iter().map(of).collect()
}

fn emulated(device: &Emulation) -> Option<Emulate> {
    let Emulation { read_bandwidth, write_bandwidth, latency_ns, .. } = *device;
    let is_emulated = [read_bandwidth, write_bandwidth, latency_ns].iter().any(|&value| value > 0);
    is_emulated.then_some(Emulate { read_bandwidth, write_bandwidth, latency_ns })
}

fn speed(device: &DeviceSpeed) -> Speed {
    Speed {
        read_bandwidth: device.read_bandwidth.load(Ordering::Relaxed),
        write_bandwidth: device.write_bandwidth.load(Ordering::Relaxed),
        latency_ns: device.latency_ns.load(Ordering::Relaxed),
        read_seek_ns: device.read_seek_ns.load(Ordering::Relaxed),
        write_seek_ns: device.write_seek_ns.load(Ordering::Relaxed),
    }
}
