//! Configuration files: what they may say, and the message for everything they may not.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::MpiIo;
use forebay_node::config::{
    Backing, Config, Emulate, Flush, Group, Hosts, MessageSpeed, Messages, Metrics, Mode, Movers,
    Placement, RunLimits, SmallFiles, Speed, Tier, TierKind, Trigger, Ways,
};
use forebay_placement::evict::Eviction;
use forebay_placement::exposure::Exposed;
use forebay_placement::schema::Durability;
use forebay_placement::{Model, PolicyId, Watermarks};

const RAM: &str = "[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n";

/// A directory with what the files under test name: `pfs`, `nvme`, `bb` and more.
struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().unwrap());
        for directory in ["pfs/deep", "nvme", "bb"] {
            fs::create_dir_all(site.path(directory)).unwrap();
        }
        fs::write(site.path("plain"), "").unwrap();
        symlink(site.path("nvme"), site.path("link")).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn load_with(&self, text: &str, backing: &[PathBuf]) -> Result<Config, String> {
        let file = self.path("site.toml");
        fs::write(&file, text).unwrap();
        let folder = format!("{}/", self.path("").display());
        Config::load(&file, backing).map_err(|e| {
            e.to_string().replace(folder.trim_end_matches('/'), "").replace("/site", "site")
        })
    }

    fn load(&self, text: &str) -> Result<Config, String> {
        self.load_with(text, &[])
    }

    /// Asserts that the file is refused with this message among others.
    #[track_caller]
    fn refuses_among_others(&self, text: &str, message: &str) {
        let said = self.load(text).unwrap_err();
        assert!(said.lines().any(|line| line == message), "{message}: not in\n{said}\nof\n{text}");
    }

    /// Asserts that the file is refused with exactly this message.
    #[track_caller]
    fn refuses(&self, text: &str, message: &str) {
        assert_eq!(self.load(text).unwrap_err(), message, "in\n{text}");
    }
}

/// A file with `pfs` behind a RAM tier, of which `lines` come first.
fn with(lines: &str) -> String {
    format!("{lines}\n[[backing]]\npath = \"pfs\"\n{RAM}")
}

/// The same file followed by these lines, which begin on line 7.
fn then(lines: &str) -> String {
    format!("[[backing]]\npath = \"pfs\"\n{RAM}{lines}")
}

/// A file whose second tier has these lines, from line 8.
fn file_tier(lines: &str) -> String {
    then(&format!("[[tier]]\n{lines}"))
}

#[test]
fn everything_can_be_said() {
    let site = Site::new();
    let text = r#"
page_size = "16KiB"
[flush]
trigger = "per-file"
period = "1.5min"
max_age = "2min"
max_unsafe = "25%"
bandwidth = "500MB/s"
durability = "nonvolatile"
journal = "5MB"
[placement]
policy = "hot-data"
granularity = "4MiB"
eviction = "lfu"
costs = "paper"
exposed = "12.5%"
low_watermark = "5%"
high_watermark = "12.5%"
half_life = "10min"
prefetch = false
give_back = "1min"
pin_limit = "37.5%"
[run]
keep = "10m"
max_unsafe = "100MiB"
max_age = "1.5min"
[node]
cores = "0"
nice = 7
[mpi]
between = { latency = "5.39ms", bandwidth = "29.85MB/s" }
within = { latency = "400ns", bandwidth = "8GB/s" }
[[backing]]
path = "pfs"
mode = "bypass"
latency = "5ms"
seek = "8ms"
stripe = "1MiB"
stripe_count = 8
small_files = "write-through"
emulate = { bandwidth = "23MB/s", latency = "4.16ms", shared = "device" }
[[tier]]
name = "ram"
kind = "ram"
capacity = 67_200_000
bandwidth = { read = "12GB/s", write = "9GB/s" }
latency = "90ns"
seek = { write = "20ns" }
[[tier]]
name = "nvme"
kind = "file"
path = "nvme/../link"
capacity = "0.25GiB"
[tier.emulate]
bandwidth = { read = "1.2GB/s", write = 0x100000 }
[[tier]]
name = "bb-2"
kind = "file"
path = "bb"
capacity = "100MB"
quota = "50%"
emulate = { latency = "60us" }
"#;
    let bucket = 1 << 20;
    let file = |name: &str, path: &str, capacity, emulate| Tier {
        name: name.into(),
        kind: TierKind::File { path: site.path(path) },
        capacity,
        emulate: Some(emulate),
        speed: Speed::default(),
        quota: 0,
    };
    let expected = Config {
        page_size: 16 << 10,
        flush: Flush {
            trigger: Trigger::PerFile,
            period: Duration::from_secs(90),
            max_age: Duration::from_secs(120),
            bandwidth: 500_000_000,
            durability: Durability::NonVolatile,
            journal: 5_001_216,
            // Of 64, 256 and 95 buckets.
            max_unsafe: 103 * bucket,
        },
        placement: Placement {
            policy: PolicyId::named("hot-data").unwrap(),
            granularity: 4 << 20,
            eviction: Eviction::Lfu,
            costs: Model::Paper,
            exposed: Exposed::Fixed(125),
            watermarks: Watermarks { low: 0.05, high: 0.125 },
            half_life: Duration::from_secs(600),
            prefetch: false,
            give_back: Duration::from_secs(60),
            pin_permille: 375,
        },
        backing: vec![Backing {
            path: site.path("pfs"),
            mode: Mode::Bypass,
            emulate: Some(Emulate {
                read_bandwidth: 23_000_000,
                write_bandwidth: 23_000_000,
                latency_ns: 4_160_000,
            }),
            shared: Some(site.path("device")),
            speed: Speed {
                latency_ns: 5_000_000,
                read_seek_ns: 8_000_000,
                write_seek_ns: 8_000_000,
                ..Speed::default()
            },
            stripe: 1 << 20,
            stripe_count: 8,
            small_files: SmallFiles::WriteThrough,
        }],
        tiers: vec![
            Tier {
                name: "ram".into(),
                kind: TierKind::Ram,
                capacity: 64 * bucket,
                emulate: None,
                speed: Speed {
                    read_bandwidth: 12_000_000_000,
                    write_bandwidth: 9_000_000_000,
                    latency_ns: 90,
                    read_seek_ns: 0,
                    write_seek_ns: 20,
                },
                quota: 0,
            },
            file(
                "nvme",
                "nvme",
                256 << 20,
                Emulate { read_bandwidth: 1_200_000_000, write_bandwidth: 1 << 20, latency_ns: 0 },
            ),
            Tier {
                quota: 47 * bucket,
                ..file(
                    "bb-2",
                    "bb",
                    95 * bucket,
                    Emulate { read_bandwidth: 0, write_bandwidth: 0, latency_ns: 60_000 },
                )
            },
        ],
        rules: Vec::new(),
        group: Group::default(),
        movers: Movers { cores: vec![0], nice: 7 },
        messages: Messages {
            between: MessageSpeed { latency_ns: 5_390_000, bandwidth: 29_850_000 },
            within: MessageSpeed { latency_ns: 400, bandwidth: 8_000_000_000 },
        },
        ways: Ways { mpiio: MpiIo::Auto, ..Ways::default() },
        keep: Duration::from_secs(600),
        run: RunLimits { max_unsafe: 100 << 20, max_age: Duration::from_secs(90) },
        metrics: Metrics::default(),
        analyses: Vec::new(),
        active: Vec::new(),
        automatic: false,
    };
    assert_eq!(site.load(text).unwrap(), expected);
}

#[test]
fn defaults_and_one_line() {
    let site = Site::new();
    let config = site.load(&with("")).unwrap();
    assert_eq!(config.page_size, 4096);
    assert_eq!(config.bucket_size(), 256 << 10);
    assert_eq!(config.flush, Flush::default());
    assert_eq!((config.flush.period.as_secs(), config.flush.max_age.as_secs()), (1, 30));
    assert_eq!(config.placement, Placement::default());
    assert_eq!(config.granularity(), 256 << 10);
    assert_eq!(config.backing[0].mode, Mode::Buffered);
    let pfs = site.path("pfs");
    let nvme = site.path("nvme");
    assert_eq!(config.describe(), format!("ram 64.0 MiB -> {}, flush periodic 1s", pfs.display()));

    let text = with("[flush]\ntrigger = 'on-exit'")
        + "[[tier]]\nname='nvme'\nkind='file'\npath='nvme'\ncapacity='5.9GiB'\nemulate={latency='1us'}\n"
        + "[[backing]]\npath='bb'\nmode='bypass'\nemulate={bandwidth='1MB/s',shared='device'}";
    assert_eq!(
        site.load(&text).unwrap().describe(),
        format!(
            "ram 64.0 MiB -> nvme 5.9 GiB ({}, emulated) -> {} + {} (bypass, emulated, shared), flush on-exit",
            nvme.display(),
            pfs.display(),
            site.path("bb").display()
        )
    );
}

#[test]
fn a_shared_device_has_a_short_path_and_is_no_tier() {
    let site = Site::new();
    let shared = |path: &str| {
        let emulate = format!("\"pfs\"\nemulate = {{ latency = \"4ms\", shared = \"{path}\" }}");
        with("").replace("\"pfs\"", &emulate)
    };
    let config = site.load(&shared("d\\\"ü")).unwrap();
    assert_eq!(config.backing[0].shared, Some(site.path("d\"ü")));
    let canonical = config.canonical();
    assert_eq!(Config::parse(&canonical).unwrap(), config);
    // Another device is another instance.
    assert_ne!(site.load(&shared("other")).unwrap().instance_id(), config.instance_id());
    let long = format!("/{}", "x".repeat(255));
    site.refuses(
        &shared(&long),
        &format!(
            "site.toml:4: backing[0].emulate.shared: {long} is longer than 255 bytes; give a \
             shorter path"
        ),
    );
    assert!(site.load(&shared(&long[..255])).is_ok());
    let tier = "name='nvme'\nkind='file'\npath='nvme'\ncapacity='64MiB'\n";
    let said = site
        .load(&file_tier(&format!("{tier}emulate = {{ latency = '1us', shared = 'x' }}")))
        .unwrap_err();
    assert!(said.starts_with("site.toml:12: tier[1].emulate.shared: "), "{said}");
    assert!(said.ends_with("bandwidth, latency"), "{said}");
}

#[test]
fn canonical_text_round_trips() {
    let site = Site::new();
    let odd = site.path("a \"b\" \\ ü");
    fs::create_dir(&odd).unwrap();
    let text = file_tier(
        "name='nvme'\nkind='file'\npath='nvme'\ncapacity='8MiB'\nemulate={bandwidth={read='1MB/s'}}\n",
    );
    let config = site.load_with(&text, &[odd]).unwrap();
    let canonical = config.canonical();
    assert_eq!(Config::parse(&canonical).unwrap(), config);
    assert_eq!(Config::parse(&canonical).unwrap().canonical(), canonical);

    let automatic = Config::automatic(&[site.path("pfs")]).unwrap();
    assert_eq!(Config::parse(&automatic.canonical()).unwrap(), automatic);
}

#[test]
fn a_canonical_text_is_checked_too() {
    let error = |text: &str| Config::parse(text).unwrap_err().to_string();
    assert!(error("x = 1").starts_with("configuration: x: unknown key"));
    assert!(error(RAM).starts_with("configuration: backing: no backing directory"));
    let mut gone = Config::parse(&format!("[[backing]]\npath = '/no/such'\n{RAM}")).unwrap();
    assert_eq!(
        gone.check_directories().unwrap_err().to_string(),
        "backing[0].path: /no/such: no such directory; create it, or give another"
    );
}

#[test]
fn identity_follows_the_meaning() {
    let site = Site::new();
    let id = |text: &str| site.load(text).unwrap().instance_id();
    let plain = id(&with(""));
    assert!(plain.len() == 16 && plain.bytes().all(|b| b.is_ascii_hexdigit()), "{plain}");
    assert_eq!(plain, id(&with("# a comment\n[flush]\nperiod = '1000ms'")));
    assert_eq!(plain, id(&with("").replace("\"pfs\"", "\"pfs/deep/..\"")));
    assert_ne!(plain, id(&with("").replace("64MiB", "32MiB")));
    assert_ne!(plain, id(&with("page_size = 65536")));
    assert_ne!(plain, id(&with("").replace("\"pfs\"", "\"bb\"")));
}

#[test]
fn free_memory_does_not_change_the_identity() {
    let site = Site::new();
    let now = Config::automatic(&[site.path("pfs")]).unwrap();
    assert!(now.tiers[0].kind == TierKind::Ram && now.tiers[0].capacity.is_multiple_of(2 << 20));
    let mut later = now.clone();
    later.tiers[0].capacity /= 2;
    later.tiers.truncate(1);
    assert_eq!(now.instance_id(), later.instance_id());
    let elsewhere = Config::automatic(&[site.path("bb")]).unwrap();
    assert_ne!(now.instance_id(), elsewhere.instance_id());
}

#[test]
fn unreadable_files() {
    let site = Site::new();
    let missing = Config::load(Path::new("/no/such.toml"), &[]).unwrap_err().to_string();
    assert!(missing.starts_with("/no/such.toml: cannot be read: No such file"), "{missing}");
    let file = site.path("binary.toml");
    fs::write(&file, b"# ok\n\xff\xfe").unwrap();
    let binary = Config::load(&file, &[]).unwrap_err().to_string();
    assert!(binary.ends_with("binary.toml:2: not UTF-8; save the file as UTF-8"), "{binary}");
    let endless = site.path("endless.toml");
    fs::File::create(&endless).unwrap().set_len(1 << 30).unwrap();
    let endless = Config::load(&endless, &[]).unwrap_err().to_string();
    assert!(endless.contains("endless.toml: cannot be read: larger than 4MiB"), "{endless}");
    let line = site.load(&then(&"k".repeat(1 << 20))).unwrap_err();
    assert!(line.len() < 1000 && line.contains("site.toml:7: kkkk"), "{line}");
    let broken = site.load(&then("period 5\n")).unwrap_err();
    assert!(broken.starts_with("site.toml:7: period 5: not valid TOML: "), "{broken}");
    let twice = site.load(&then("capacity = 1\n")).unwrap_err();
    assert!(
        twice.starts_with("site.toml:7: capacity = 1: not valid TOML: duplicate key"),
        "{twice}"
    );
}

#[test]
fn unknown_keys() {
    let site = Site::new();
    let tail = "unknown key; known here:";
    site.refuses(
        &with("\nzeta = 1\nalpha = 2"),
        &format!(
            "site.toml:2: zeta: {tail} page_size, flush, placement, backing, tier, group, node, mpi, metrics, run, analysis, active, rule, schema\n\
             site.toml:3: alpha: {tail} page_size, flush, placement, backing, tier, group, node, mpi, metrics, run, analysis, active, rule, schema"
        ),
    );
    site.refuses(
        &with("automatic = true"),
        &format!("site.toml:1: automatic: {tail} page_size, flush, placement, backing, tier, group, node, mpi, metrics, run, analysis, active, rule, schema"),
    );
    site.refuses(
        &with("[flush]\ninterval = \"1s\""),
        &format!("site.toml:2: flush.interval: {tail} trigger, period, max_age, max_unsafe, bandwidth, durability, journal"),
    );
    site.refuses(
        &then("[[backing]]\npath = \"bb\"\nmod = \"bypass\""),
        &format!(
            "site.toml:9: backing[1].mod: {tail} path, mode, bandwidth, latency, seek, emulate, stripe, stripe_count, small_files"
        ),
    );
    site.refuses_among_others(
        &file_tier("name = \"nvme\"\nsize = 1"),
        &format!(
            "site.toml:9: tier[1].size: {tail} name, kind, path, capacity, quota, bandwidth, latency, seek, emulate"
        ),
    );
    let tier = "name='nvme'\nkind='file'\npath='nvme'\ncapacity='64MiB'\n";
    site.refuses(
        &file_tier(&format!("{tier}[tier.emulate]\nspeed = 1")),
        &format!("site.toml:13: tier[1].emulate.speed: {tail} bandwidth, latency"),
    );
    site.refuses(
        &file_tier(&format!("{tier}emulate = {{ bandwidth = {{ both = 1 }} }}")),
        &format!("site.toml:12: tier[1].emulate.bandwidth.both: {tail} read, write"),
    );
}

#[test]
fn placement_is_checked() {
    let site = Site::new();
    let refuses = |line: &str, message: &str| {
        site.refuses(&with(&format!("[placement]\n{line}")), &format!("site.toml:2: {message}"));
    };
    refuses(
        "policy = \"fastest\"",
        "placement.policy: \"fastest\" is unknown; give one of \"max-bandwidth\", \
         \"max-locality\", \"hot-data\", \"user-defined\", \"noop\", \"random\"",
    );
    for (line, what) in [
        ("pin_limit = \"75.1%\"", "\"75.1%\" is too much"),
        ("pin_limit = \"-1%\"", "\"-1%\" is no share"),
        ("pin_limit = \"2GiB\"", "\"2GiB\" is no share"),
    ] {
        let remedy =
            "give a share from \"0%\" to \"75%\": the rest of a tier is for what is written";
        refuses(line, &format!("placement.pin_limit: {what}; {remedy}"));
    }
    for (line, low, high) in
        [("low_watermark = \"30%\"", "30.0", "25.0"), ("high_watermark = \"5%\"", "10.0", "5.0")]
    {
        let key = line.split(' ').next().unwrap();
        refuses(
            line,
            &format!(
                "placement.{key}: a low watermark of {low}% is above the high one, {high}%; give \
                 both, the high one not below"
            ),
        );
    }
    refuses(
        "half_life = \"10ms\"",
        "placement.half_life: \"10ms\" is out of range; give a time from 1s to 1440min",
    );
    refuses(
        "exposed = \"1e1%\"",
        "placement.exposed: \"1e1%\" is no share; give \"measured\", or a share from \"0%\" to \"100%\"",
    );
    refuses(
        "exposed = \"130%\"",
        "placement.exposed: \"130%\" is no share; give \"measured\", or a share from \"0%\" to \"100%\"",
    );
    refuses(
        "costs = 1",
        "placement.costs: is of type integer; give one of \"physical\", \"paper\"",
    );
}

#[test]
fn wrong_types() {
    let site = Site::new();
    let size = "give a size such as";
    for (line, message) in [
        ("page_size = true", format!("page_size: is of type boolean; {size} \"4KiB\"")),
        ("page_size = 4096.0", format!("page_size: is of type float; {size} \"4KiB\"")),
        ("flush = \"periodic\"", "flush: is of type string; give a table: [flush]".into()),
        (
            "flush = { period = 1 }",
            "flush.period: is of type integer; give a time such as \"1s\"".into(),
        ),
        (
            "flush = { trigger = [] }",
            "flush.trigger: is of type array; give one of \"per-operation\", \"per-file\", \
             \"on-exit\", \"periodic\""
                .into(),
        ),
        ("tier = 3", "tier: must be a list of tables; write [[tier]]".into()),
        ("tier = [3]", "tier: must be a list of tables; write [[tier]]".into()),
        ("[tier]", "tier: must be a list of tables; write [[tier]]".into()),
        ("backing = \"/x\"", "backing: must be a list of tables; write [[backing]]".into()),
    ] {
        let rest = "[[backing]]\npath = \"pfs\"\n";
        let rest = if line.starts_with("backing") { "" } else { rest };
        let tier = if line.contains("tier") { "" } else { RAM };
        site.refuses(&format!("{line}\n{rest}{tier}"), &format!("site.toml:1: {message}"));
    }
    site.refuses(
        &file_tier("name = \"nvme\"\nkind = \"file\"\npath = 7\ncapacity = \"64MiB\""),
        "site.toml:10: tier[1].path: is of type integer; give a directory such as \"/scratch/me\"",
    );
    site.refuses(
        &file_tier("name = \"nvme\"\nkind = \"file\"\npath = \"\"\ncapacity = \"64MiB\""),
        "site.toml:10: tier[1].path: is empty; give a directory such as \"/scratch/me\"",
    );
}

#[test]
fn impossible_sizes() {
    let site = Site::new();
    let units = "give a size such as \"64MiB\", in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB";
    for (capacity, message) in [
        ("\"1KiB\"", "\"1KiB\" is less than one bucket (256KiB); give at least 4MiB"),
        ("1000000", "1000000 is less than 16 buckets (4MiB); give at least 4MiB"),
        ("0", "0 is zero; give a size such as \"64MiB\""),
        ("\"0.0GiB\"", "\"0.0GiB\" is zero; give a size such as \"64MiB\""),
        ("-5", &format!("-5 cannot be read; {units}")),
        ("\"64 megs\"", &format!("\"64 megs\" cannot be read; {units}")),
        ("\"99999999TiB\"", &format!("\"99999999TiB\" cannot be read; {units}")),
    ] {
        let text = with("").replace("\"64MiB\"", capacity);
        site.refuses(&text, &format!("site.toml:7: tier[0].capacity: {message}"));
    }
    let there = "does not exist, or may not be used here; there are ";
    for (node, message) in [
        ("cores = \"1000-1001\"", format!("core 1000 {there}")),
        ("cores = \"2-1\"", "the range \"2-1\" ends before it begins".to_owned()),
        ("cores = \"all\"", "\"all\" is no core; give numbers and ranges".to_owned()),
        ("nice = -1", "give a number from 0 to 10".to_owned()),
        ("nice = 11", "give a number from 0 to 10".to_owned()),
        ("nice = \"low\"", "give a number from 0 to 10".to_owned()),
    ] {
        let said = site.load(&format!("{}\n[node]\n{node}\n", with(""))).unwrap_err().to_string();
        let key = node.split(' ').next().unwrap();
        assert!(said.contains(&format!("node.{key}: {message}")), "{said}");
    }
    for (mpi, message) in [
        ("within = \"fast\"", "within: is of type string; give a table such as { latency"),
        ("within = { latency = \"1us\" }", "within.bandwidth: missing; add bandwidth = ..."),
        ("between = { bandwidth = \"1GB/s\" }", "between.latency: missing; add latency = ..."),
        (
            "between = { bandwidth = 0, latency = \"1us\" }",
            "between.bandwidth: 0 is zero; give a bandwidth such as \"10GB/s\"",
        ),
        ("among = 1", "among: unknown key; known here: between, within"),
    ] {
        let said = site.load(&format!("{}\n[mpi]\n{mpi}\n", with(""))).unwrap_err().to_string();
        assert!(said.contains(&format!("mpi.{message}")), "{said}");
    }
    let read = "cannot be read; give a size such as \"2GiB\", or a share such as \"50%\"";
    for (quota, message) in [
        ("\"1%\"", "\"1%\": less than 16 buckets (4MiB); give at least 4MiB, or no quota"),
        ("1000000", "1000000: less than 16 buckets (4MiB); give at least 4MiB, or no quota"),
        ("\"101%\"", &format!("\"101%\": {read}")),
        ("\"NaN%\"", &format!("\"NaN%\": {read}")),
        ("\"half\"", &format!("\"half\": {read}")),
    ] {
        let text = with("").replacen("\"64MiB\"", &format!("\"64MiB\"\nquota = {quota}"), 1);
        site.refuses(&text, &format!("site.toml:8: tier[0].quota: {message}"));
    }
    for (key, value, message) in [
        (
            "max_unsafe",
            "\"1%\"",
            "\"1%\": less than 16 buckets (4MiB); give at least 4MiB, or no limit",
        ),
        ("max_unsafe", "0", "0 is zero; give a size such as \"2GiB\""),
        ("max_unsafe", "\"101%\"", &format!("\"101%\": {read}")),
        (
            "max_age",
            "\"60\"",
            "\"60\" cannot be read; give a time such as \"60s\", in ns, us, ms, s or min",
        ),
        ("max_age", "\"50ms\"", "\"50ms\" is out of range; give a time from 100ms to 1440min"),
        ("max_age", "60", "is of type integer; give a time such as \"60s\""),
    ] {
        let text = with(&format!("[run]\n{key} = {value}"));
        site.refuses(&text, &format!("site.toml:2: run.{key}: {message}"));
    }
    let said = site.load(&with("[flush]\nmax_unsafe = \"3MiB\"")).unwrap_err();
    assert!(
        said.contains("site.toml:2: flush.max_unsafe: ") && said.contains("16 buckets"),
        "{said}"
    );
    let limits = |text: &str| {
        let config = site.load(&with(text)).unwrap();
        assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
        (config.flush.max_unsafe, config.run, config.instance_id())
    };
    // As much as there is is no limit, and those of runs are none of the instance's.
    let plain = limits("");
    assert_eq!(limits("[flush]\nmax_unsafe = \"64MiB\"\n[run]\nmax_unsafe = \"100%\""), plain);
    let (all, run, instance) = limits("[run]\nmax_unsafe = \"50%\"\nmax_age = \"5s\"");
    assert_eq!((all, run.max_unsafe, run.max_age.as_secs()), (0, 32 << 20, 5));
    assert_eq!(instance, plain.2);
    assert_ne!(limits("[flush]\nmax_unsafe = \"50%\"").2, plain.2);
    let page = with("page_size = \"64KiB\"").replace("64MiB", "32MiB");
    site.refuses(
        &page.replace("32MiB", "63MiB"),
        "site.toml:7: tier[0].capacity: \"63MiB\" is less than 16 buckets (64MiB); give at least 64MiB",
    );
    let huge = site.load(&with("").replace("64MiB", "1000TiB")).unwrap_err();
    assert!(
        huge.starts_with(
            "site.toml:7: tier[0].capacity: 1000TiB is more than this machine's memory ("
        ) && huge.ends_with("); give less"),
        "{huge}"
    );
    let tier = "name='nvme'\nkind='file'\npath='nvme'\ncapacity='1000000TiB'";
    let huge = site.load(&file_tier(tier)).unwrap_err();
    assert!(
        huge.starts_with(
            "site.toml:11: tier[1].capacity: 1000000TiB is more than its file system ("
        ),
        "{huge}"
    );
    for page_size in ["\"2KiB\"", "\"128KiB\"", "5000", "\"12KiB\""] {
        site.refuses(
            &with(&format!("page_size = {page_size}")),
            &format!(
                "site.toml:1: page_size: {page_size} is no page size; give 4KiB, 8KiB, 16KiB, 32KiB or 64KiB"
            ),
        );
    }
}

#[test]
fn impossible_flushes_and_modes() {
    let site = Site::new();
    for (line, message) in [
        (
            "trigger = \"hourly\"",
            "flush.trigger: \"hourly\" is unknown; give one of \"per-operation\", \"per-file\", \
             \"on-exit\", \"periodic\"",
        ),
        ("period = \"0s\"", "flush.period: \"0s\" is too short; give at least 1ms"),
        (
            "period = \"soon\"",
            "flush.period: \"soon\" cannot be read; give a time such as \"1s\", in ns, us, ms, s, min or h",
        ),
        (
            "period = \"5\"",
            "flush.period: \"5\" cannot be read; give a time such as \"1s\", in ns, us, ms, s, min or h",
        ),
    ] {
        site.refuses(&with(&format!("[flush]\n{line}")), &format!("site.toml:2: {message}"));
    }
    site.refuses(
        &with("").replace("\"pfs\"", "\"pfs\"\nmode = \"fast\""),
        "site.toml:4: backing[0].mode: \"fast\" is unknown; give one of \"buffered\", \"bypass\", \
         \"sync\", \"scratch\"",
    );
}

#[test]
fn impossible_emulations() {
    let site = Site::new();
    let table = "a table such as { bandwidth = \"23MB/s\", latency = \"4ms\" }";
    let key = "site.toml:4: backing[0].emulate";
    for (emulate, message) in [
        ("\"slow\"", format!("{key}: is of type string; give {table}")),
        ("{}", format!("{key}: is empty; give {table}, or remove it")),
        (
            "{ bandwidth = \"23MB\" }",
            format!(
                "{key}.bandwidth: \"23MB\" cannot be read; give a bandwidth such as \"23MB/s\", \
                 in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB/s"
            ),
        ),
        (
            "{ bandwidth = { read = \"0B/s\" } }",
            format!("{key}.bandwidth.read: \"0B/s\" is zero; give a bandwidth such as \"23MB/s\""),
        ),
        ("{ shared = \"device\" }", format!("{key}: is empty; give {table}, or remove it")),
        (
            "{ latency = \"4ms\", shared = 4 }",
            format!("{key}.shared: is of type integer; give a file such as \"/dev/shm/me/slow\""),
        ),
        (
            "{ latency = \"4\" }",
            format!(
                "{key}.latency: \"4\" cannot be read; give a time such as \"4ms\", in ns, us, ms, s, min or h"
            ),
        ),
    ] {
        let text = with("").replace("\"pfs\"", &format!("\"pfs\"\nemulate = {emulate}"));
        site.refuses(&text, &message);
    }
    site.refuses(
        &with("").replace("kind", "emulate = { latency = \"1us\" }\nkind"),
        "site.toml:6: tier[0].emulate: memory is not emulated; remove emulate",
    );
}

#[test]
fn impossible_tiers() {
    let site = Site::new();
    let backing = "[[backing]]\npath = \"pfs\"\n";
    site.refuses(
        backing,
        "site.toml:1: tier: no tier; add [[tier]] with name = \"ram\", kind = \"ram\" and a capacity",
    );
    for (tier, message) in [
        (
            "kind = 'file'\npath = 'nvme'\ncapacity = '64MiB'",
            "7: tier[1].name: missing; add name = ... (what status and traces call it)",
        ),
        (
            "name = 'a'\ncapacity = '64MiB'",
            "7: tier[1].kind: missing; add kind = ... (\"ram\" or \"file\")",
        ),
        (
            "name = 'a'\nkind = 'file'\npath = 'nvme'",
            "7: tier[1].capacity: missing; add capacity = ... (a size such as \"64MiB\")",
        ),
        (
            "name = 'a'\nkind = 'file'\ncapacity = '1GiB'",
            "7: tier[1].path: missing; a file tier needs a directory",
        ),
        (
            "name = 'a'\nkind = 'tape'\ncapacity = '1GiB'",
            "9: tier[1].kind: \"tape\" is unknown; give one of \"ram\", \"file\"",
        ),
        (
            "name = 'a'\nkind = 'ram'\ncapacity = '1GiB'",
            "9: tier[1].kind: only the first tier may be ram; keep one ram tier, at the top",
        ),
        (
            "name = 'ram'\nkind = 'file'\npath = 'bb'\ncapacity = '1GiB'",
            "8: tier[1].name: \"ram\" is already the name of tier[0]; give another name",
        ),
        ("name = 'store'", "8: tier[1].name: \"store\" means the backing store; give another name"),
        (
            "name = 'a,b'",
            "8: tier[1].name: \"a,b\" is no name; give 1 to 31 letters, digits, '-' or '_'",
        ),
    ] {
        site.refuses_among_others(&file_tier(tier), &format!("site.toml:{message}"));
    }
    site.refuses(
        &format!("{backing}[[tier]]\nname='a'\nkind='file'\npath='bb'\ncapacity='1GiB'"),
        "site.toml:5: tier[0].kind: the first tier must be ram; put a [[tier]] of kind ram before it",
    );
    site.refuses(
        &with("").replace("kind", "path = \"bb\"\nkind"),
        "site.toml:6: tier[0].path: a ram tier has no directory; remove path",
    );
    let many: String = (1..8)
        .map(|i| {
            let name = format!("t{i}");
            fs::create_dir(site.path(&name)).unwrap();
            format!("[[tier]]\nname='{name}'\nkind='file'\npath='{name}'\ncapacity='4MiB'\n")
        })
        .collect();
    site.refuses(&then(&many), "site.toml:37: tier[7]: too many tiers; give at most 7");
    let seven = &many[..many.rfind("[[tier]]").unwrap()];
    assert_eq!(site.load(&then(seven)).unwrap().tiers.len(), 7);
}

#[test]
fn impossible_directories() {
    let site = Site::new();
    site.refuses(
        &with("").replace("\"pfs\"", "\"gone\""),
        "site.toml:3: backing[0].path: /gone: no such directory; create it, or give another",
    );
    site.refuses(
        &with("").replace("\"pfs\"", "\"plain\""),
        "site.toml:3: backing[0].path: /plain: not a directory; give a directory",
    );
    site.refuses(
        &with("").replace("path = \"pfs\"", "mode = \"bypass\""),
        "site.toml:2: backing[0].path: missing; add path = ... (the directory to buffer)",
    );
    site.refuses(
        RAM,
        "site.toml:1: backing: no backing directory; add [[backing]] with a path to the \
         configuration file or give --backing DIR",
    );
    let tier = |name: &str, path: &str| {
        format!(
            "[[tier]]\nname = \"{name}\"\nkind = \"file\"\ncapacity = \"4MiB\"\npath = \"{path}\"\n"
        )
    };
    site.refuses(
        &then(&tier("a", "gone")),
        "site.toml:11: tier[1].path: /gone: no such directory; create it, or give another",
    );
    site.refuses(
        &then(&(tier("a", "nvme") + &tier("b", "link"))),
        "site.toml:16: tier[2].path: /nvme is the same directory as /nvme (site.toml:11: \
         tier[1].path); give each tier its own directory",
    );
    let outside = "give the tier a directory outside the backing store";
    site.refuses(
        &then(&tier("a", "pfs/deep")),
        &format!(
            "site.toml:11: tier[1].path: /pfs/deep lies in /pfs (site.toml:2: backing[0].path); {outside}"
        ),
    );
    site.refuses(
        &then(&tier("a", "pfs")).replacen("pfs", "pfs/deep", 1),
        &format!(
            "site.toml:11: tier[1].path: /pfs contains /pfs/deep (site.toml:2: backing[0].path); {outside}"
        ),
    );
    site.refuses(
        &then("[[backing]]\npath = \"pfs/deep\""),
        "site.toml:8: backing[1].path: /pfs/deep lies in /pfs (site.toml:2: backing[0].path); \
         give each backing directory once, and none in another",
    );
}

#[test]
fn directories_that_may_not_be_written() {
    let site = Site::new();
    let locked = site.path("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    // Data sets that others have made are read.
    let readable = with("").replace("\"pfs\"", "\"locked\"");
    assert_eq!(site.load(&readable).unwrap().backing[0].path, locked);
    if fs::write(locked.join("probe"), "").is_ok() {
        return; // The superuser may write anywhere.
    }
    site.refuses(
        &with("").replace("\"bb\"", "\"locked\""),
        "site.toml:8: tier[1].path: /locked: not writable (Permission denied (os error 13)); \
         allow it with chmod, or give another directory",
    );
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o311)).unwrap();
    site.refuses(
        &readable,
        "site.toml:3: backing[0].path: /locked: not readable (Permission denied (os error 13)); \
         allow it with chmod, or give another directory",
    );
}

#[test]
fn directories_of_the_command_line() {
    let site = Site::new();
    let config = site.load_with(&with(""), &[site.path("bb")]).unwrap();
    assert_eq!(config.backing[1].path, site.path("bb"));
    assert_eq!(site.load_with(RAM, &[site.path("bb")]).unwrap().backing.len(), 1);

    let refused = |path: PathBuf| site.load_with(&with(""), &[path]).unwrap_err();
    assert_eq!(
        refused(site.path("gone")),
        "--backing: /gone: no such directory; create it, or give another"
    );
    assert_eq!(refused(site.path("plain")), "--backing: /plain: not a directory; give a directory");
    assert_eq!(
        refused(site.path("pfs")),
        "--backing: /pfs is the same directory as /pfs (site.toml:3: backing[0].path); give each \
         backing directory once, and none in another"
    );
    for (path, said) in
        [("/proc", "pseudo file system (proc)"), ("/dev/shm", "may lie in /dev/shm")]
    {
        let why = Config::automatic(&[PathBuf::from(path)]).unwrap_err().to_string();
        assert!(
            why.starts_with(&format!("--backing: {path}: it is ")) && why.contains(said),
            "{why}"
        );
    }
    let none = Config::automatic(&[]).unwrap_err().to_string();
    assert!(none.starts_with("--backing: no backing directory"), "{none}");
    let many: Vec<PathBuf> = (0..9).map(|i| site.path(&format!("b{i}"))).collect();
    many.iter().for_each(|path| fs::create_dir(path).unwrap());
    let many = Config::automatic(&many).unwrap_err().to_string();
    assert_eq!(many, "--backing: 9 backing directories; give at most 8");
}

/// A file with a second tier and these lines of a rule, from line 13.
fn rule(lines: &str) -> String {
    file_tier(&format!(
        "name='nvme'\nkind='file'\npath='nvme'\ncapacity='64MiB'\n[[rule]]\n{lines}"
    ))
}

#[test]
fn rules_are_the_same_in_both_syntaxes() {
    let site = Site::new();
    let toml = rule(
        "name='big'\npath='**/*.h5'\nsize_min='1MiB'\nsize_max=4_294_967_296\nuser=0\n\
         process='lmp*'\nranks='0-63:8'\ntier='nvme'\npin=true\nmode='async'\n\
         trigger='per-file'\npriority=7\ndurability='store'\n[[rule]]\nmode='bypass'",
    );
    let xml = "<buffering-schema version='1'><rule name='big'><match path='**/*.h5' size-min='1MiB' \
               size-max='4294967296' user='root' process='lmp*' ranks='0-63:8'/><set tier='nvme' \
               pin='true' mode='async' trigger='per-file' priority='7' durability='store'/></rule>\
               <rule><set mode='bypass'/></rule></buffering-schema>";
    fs::write(site.path("site.xml"), xml).unwrap();
    let of_toml = site.load(&toml).unwrap();
    let plain = &toml[..toml.find("[[rule]]").unwrap()];
    let of_xml = site.load(&format!("schema = 'site.xml'\n{plain}")).unwrap();
    assert_eq!(of_toml.rules.len(), 2);
    assert!(
        of_toml.rules.iter().map(|r| r.compiled()).eq(of_xml.rules.iter().map(|r| r.compiled()))
    );
    assert!(of_toml.rules[0].source.ends_with("site.toml:12"), "{}", of_toml.rules[0].source);
    assert!(of_xml.rules[0].source.ends_with("site.xml:1"));
    assert_eq!(of_toml.instance_id(), of_xml.instance_id(), "where a rule stands does not matter");
    assert_ne!(of_toml.instance_id(), site.load(plain).unwrap().instance_id());
    for config in [&of_toml, &of_xml] {
        assert_eq!(Config::parse(&config.canonical()).unwrap(), *config);
    }

    let mut both = of_toml.clone();
    fs::write(site.path("first.xml"), xml.replace("big", "first")).unwrap();
    both.add_schema(&site.path("first.xml"), forebay_node::config::Predictors::Needed).unwrap();
    let names: Vec<_> = both.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["first", "", "big", ""]);
}

#[test]
fn impossible_rules() {
    let site = Site::new();
    for (lines, message) in [
        ("tier = 'tape'", "13: rule[0].tier: \"tape\" is unknown; give one of \"ram\", \"nvme\""),
        (
            "mode = 'slow'",
            "13: rule[0].mode: \"slow\" is unknown; give one of \"async\", \"sync\", \"scratch\", \
             \"bypass\", \"staged\"",
        ),
        (
            "mode = 'staged'",
            "13: rule[0].mode: staged needs the tier on which the files lie; add a file tier",
        ),
        (
            "mode = 'staged'\ntier = 'ram'",
            "14: rule[0].tier: staged needs a file tier, which keeps files over a reboot; name \
             another tier",
        ),
        ("pin = 1", "13: rule[0].pin: \"1\" is unknown; give one of \"true\", \"false\""),
        (
            "path = ['a']",
            "13: rule[0].path: is of type array; give a string, a number, true or false",
        ),
        (
            "pth = 'a'",
            "13: rule[0].pth: unknown key; known here: name, path, size_min, size_max, dataset, \
             user, process, ranks, policy, tier, pin, mode, trigger, priority, keep_versions, \
             overwrite_when_read, expires, durability, reserve, consistency, predictor",
        ),
        (
            "path = 'a'\nconsistency = 'open'",
            "14: rule[0].consistency: \"open\" is unknown; give one of \"strict\", \"commit\"",
        ),
        (
            "size_min = 1\npath = 'a'\nconsistency = 'commit'",
            "15: rule[0].consistency: goes with path alone, as all nodes have to find the same for a \
             file; remove it, or site.toml:13: rule[0].size_min",
        ),
        (
            "mode = 'bypass'\nconsistency = 'commit'",
            "14: rule[0].consistency: has no meaning with mode bypass; remove one",
        ),
        (
            "path = '/elsewhere/*'",
            "13: rule[0].path: /elsewhere/* can match no buffered file; the backing directories are \
             /pfs",
        ),
        (
            "mode = 'scratch'\ndurability = 'store'",
            "14: rule[0].durability: has no meaning with mode scratch; remove one",
        ),
        (
            "size_min = 1\nmode = 'scratch'",
            "13: rule[0].size_min: has no meaning with mode scratch; remove one",
        ),
        (
            "reserve = '4 apples'",
            "13: rule[0].reserve: \"4 apples\" cannot be read; give a size such as \"64MiB\", in B, \
             KB, MB, GB, TB, KiB, MiB, GiB or TiB",
        ),
    ] {
        site.refuses(&rule(lines), &format!("site.toml:{message}"));
    }
    site.refuses(
        &then("[[rule]]\ndurability = 'nonvolatile'\n"),
        "site.toml:8: rule[0].durability: \"nonvolatile\" needs a file tier; add one, or give \"store\"",
    );
    let many = rule(&"mode = 'async'\n[[rule]]\n".repeat(128));
    site.refuses(&many, "site.toml:268: rule[128]: 129 rules; give at most 128");
    let missing = site.load(&with("schema = 'gone.xml'")).unwrap_err();
    assert!(missing.starts_with("site.toml:1: schema: /gone.xml: No such file"), "{missing}");
    fs::write(site.path("site.xml"), "<buffering-schema version='1'><rule/></buffering-schema>")
        .unwrap();
    let of_xml = site.load(&with("schema = 'site.xml'")).unwrap_err();
    assert!(of_xml.starts_with("site.xml:1:31: rule[0]/set: missing"), "{of_xml}");
}

#[test]
fn absolute_patterns_follow_links_as_the_kernel_does() {
    let site = Site::new();
    symlink(site.path("pfs"), site.path("alias")).unwrap();
    let path_of = |pattern: &str| {
        let text =
            rule(&format!("path = '{}/{pattern}'\nmode = 'bypass'", site.path("").display()));
        site.load(&text.replace("//", "/")).unwrap().rules[0].path.clone()
    };
    let pfs = site.path("pfs").display().to_string();
    assert_eq!(path_of("alias/**"), format!("{pfs}/**"));
    assert_eq!(path_of("alias/not/there/a*"), format!("{pfs}/not/there/a*"));
    assert_eq!(path_of("*/x"), format!("{}/x", site.path("*").display()));
}

#[test]
fn speeds_are_said_or_emulated_or_as_usual() {
    let site = Site::new();
    let text = file_tier(
        "name='nvme'\nkind='file'\npath='nvme'\ncapacity='8MiB'\nlatency='7us'\n\
         emulate={bandwidth={read='1MB/s'},latency='3us'}\n",
    );
    let config = site.load(&text).unwrap();
    let speed = |read_bandwidth, write_bandwidth, latency_ns| Speed {
        read_bandwidth,
        write_bandwidth,
        latency_ns,
        ..Speed::default()
    };
    assert_eq!(config.tiers[0].known_speed(), speed(10_000_000_000, 10_000_000_000, 100));
    assert_eq!(config.tiers[1].known_speed(), speed(1_000_000, 2_000_000_000, 7_000));
    assert_eq!(config.backing[0].known_speed(), speed(500_000_000, 500_000_000, 5_000_000));
    assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
}

/// Whatever is done to a configuration, it is read or refused with a place; nothing panics.
#[test]
fn mutations_are_read_or_refused() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| std::process::id().into());
    println!("FOREBAY_SEED={seed}");
    let mut state = seed;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % limit
    };
    let example = rule(
        "name='big'\npath='/pfs/**/{a,[b-d]}*.h5'\nsize_min='1MiB'\nsize_max=4_294_967_296\n\
         user=0\nprocess='lmp*'\nranks='0-63:8,7'\ntier='nvme'\npin=true\nmode='async'\n\
         trigger='per-file'\npriority=7\ndurability='store'\n",
    );
    let example = example.replace("'pfs'", "'/pfs'");
    assert!(Config::parse(&example).is_ok(), "{:?}", Config::parse(&example));
    let (mut good, mut bad) = (0, 0);
    for _ in 0..10_000 {
        let mut text = example.clone().into_bytes();
        for _ in 0..=below(4) {
            let at = below(text.len());
            let end = (at + below(20)).min(text.len());
            match below(3) {
                0 => text[at] = below(256) as u8,
                1 => drop(text.drain(at..end)),
                _ => {
                    let copy = text[at..end].to_vec();
                    let to = below(text.len());
                    text.splice(to..to, copy);
                }
            }
        }
        match Config::parse(&String::from_utf8_lossy(&text)) {
            Ok(config) => {
                good += 1;
                assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
            }
            Err(error) => {
                bad += 1;
                assert!(error.to_string().starts_with("configuration"), "{error}");
            }
        }
    }
    assert!(good > 100 && bad > 100, "{good} read, {bad} refused");
    for deep in
        ["[".repeat(100_000), "a=".to_owned() + &"{a=".repeat(100_000), "a.".repeat(100_000)]
    {
        assert!(Config::parse(&format!("x = {deep}")).is_err());
        assert!(Config::parse(&deep).is_err());
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let site = Site::new();
    let text = "page_size = 5\nsomething = 1\n[flush]\nperiod = \"x\"\nother = 1\njournal = \"1KiB\"\n\
        [[backing]]\npath = \"none\"\nmode = \"odd\"\n\
        [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"lots\"\n\
        [[tier]]\nname = \"nvme\"\nkind = \"file\"\npath = \"missing\"\ncapacity = \"64MiB\"\n";
    let said = site.load(text).unwrap_err();
    let starts = [
        "site.toml:2: something: unknown key",
        "site.toml:1: page_size: 5 is no page size",
        "site.toml:5: flush.other: unknown key",
        "site.toml:4: flush.period: \"x\" cannot be read",
        "site.toml:6: flush.journal: \"1KiB\" is too small",
        "site.toml:9: backing[0].mode: \"odd\" is unknown",
        "site.toml:13: tier[0].capacity: \"lots\" cannot be read",
        "site.toml:8: backing[0].path: /none: no such directory",
        "site.toml:17: tier[1].path: /missing: no such directory",
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{said}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{start} in\n{said}");
    }
    let rules = "[[rule]]\nmode = \"odd\"\n[[rule]]\npin = 3\n";
    let said = site.load(&then(rules)).unwrap_err();
    assert_eq!(said.lines().count(), 2, "{said}");
    // A tier that is wrong hides none of a rule, and is none that a rule could not name.
    let wrong = then("[[rule]]\ntier = \"ram\"\n[[rule]]\ntier = \"rum\"\nmode = \"odd\"\n");
    let said = site.load(&wrong.replace("64MiB", "lots")).unwrap_err();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains("tier[0].capacity: \"lots\" cannot be read"), "{said}");
    for (line, key) in lines[1..].iter().zip(["mode", "tier"]) {
        assert!(
            line.contains(&format!("rule[1].{key}: ")) && line.contains("is unknown"),
            "{said}"
        );
    }
    // Keys of one rule, and of `[run]`.
    for (text, keys) in [
        (
            "[[rule]]\nmode = \"odd\"\npriority = 999\nuser = \"\"\n",
            &["mode", "priority", "user"][..],
        ),
        (
            "[run]\nmpiio = \"a\"\nadapters = \"b\"\ndeepbind = 1\nkeep = 5\n",
            &["mpiio", "adapters", "deepbind", "keep"],
        ),
    ] {
        let said = site.load(&then(text)).unwrap_err();
        assert_eq!(said.lines().count(), keys.len(), "{said}");
        assert!(keys.iter().all(|key| said.contains(&format!(".{key}: "))), "{said}");
    }
    // What is no list is not said to be missing, too.
    let said = site.load("backing = \"pfs\"\ntier = 5\n").unwrap_err();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines.iter().all(|line| line.contains(": must be a list of tables; ")), "{said}");
    let said = site.load("backing = \"pfs\"\n[[tier]]\nnom = 1\n").unwrap_err();
    assert!(said.contains("tier[0].nom: unknown key"), "{said}");
    assert!(said.ends_with("backing: must be a list of tables; write [[backing]]"), "{said}");
}

#[test]
fn what_the_machine_has_not_is_told_with_its_line() {
    let site = Site::new();
    let lines = "[node]\nnice = 3\ncores = \"1023\"\n[metrics]\ninterval = \"9s\"\n\
        textfile = \"none/a.prom\"\nlisten = \"gone/a.sock\"\n";
    let said = site.load(&then(lines)).unwrap_err();
    let starts = [
        "site.toml:9: node.cores: core 1023 does not exist",
        "site.toml:12: metrics.textfile: /none is no directory",
        "site.toml:13: metrics.listen: /gone is no directory",
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{said}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{start} in\n{said}");
    }
}

#[test]
fn shares_and_short_units_are_capacities() {
    let site = Site::new();
    assert_eq!(site.load(&with("").replace("64MiB", "64M")).unwrap().tiers[0].capacity, 64 << 20);
    let whole = site.load(&with("").replace("64MiB", "100%")).unwrap();
    let half = site.load(&with("").replace("64MiB", "50%")).unwrap();
    let (half, whole) = (half.tiers[0].capacity, whole.tiers[0].capacity);
    assert!(whole > 256 << 20 && half.abs_diff(whole / 2) <= 1 << 18, "{half} of {whole}");
    let disk = |share: &str| {
        let tier = format!("name='nvme'\nkind='file'\npath='nvme'\ncapacity='{share}'");
        site.load(&file_tier(&tier)).unwrap().tiers[1].capacity
    };
    assert!(disk("20%").abs_diff(disk("10%") * 2) <= 1 << 19);
    // The same each time: a run finds the manager of the last one.
    assert_eq!(disk("12.5%"), disk("12.5%"));
    site.refuses(
        &with("").replace("64MiB", "150%"),
        "site.toml:7: tier[0].capacity: \"150%\" is no share; give a share from \"0%\" to \"100%\"",
    );
}

#[test]
fn paths_may_name_the_home_folder_and_variables() {
    let site = Site::new();
    let name = std::env::var("CARGO_PKG_NAME").unwrap();
    let folder = site.path(&name);
    fs::create_dir(&folder).unwrap();
    let config = |path: &str| site.load(&with("").replace("\"pfs\"", &format!("\"{path}\"")));
    let loaded = config("${CARGO_PKG_NAME}").unwrap();
    assert_eq!(loaded.backing[0].path, folder);
    let home = std::env::var("HOME").unwrap();
    let home = Path::new(&home).canonicalize().unwrap();
    assert_eq!(config("~").unwrap().backing[0].path, home);
    let other = config("~root/data").unwrap_err();
    assert!(
        other.starts_with("site.toml:3: backing[0].path: \"~root/data\": ~root is not"),
        "{other}"
    );
    fs::create_dir(site.path("~root")).unwrap();
    assert_eq!(config("./~root").unwrap().backing[0].path, site.path("~root"));
    let unset = config("$FOREBAY_IS_NOT_SET").unwrap_err();
    assert_eq!(
        unset,
        "site.toml:3: backing[0].path: \"$FOREBAY_IS_NOT_SET\": FOREBAY_IS_NOT_SET is not set; set it, or write $$ for a dollar"
    );
    // What was resolved is not resolved again.
    fs::create_dir(site.path("$USER")).unwrap();
    let loaded = config("$$USER").unwrap();
    assert_eq!(loaded.backing[0].path, site.path("$USER"));
    assert_eq!(Config::parse(&loaded.canonical()).unwrap(), loaded);
}

/// What this host calls itself.
fn own_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn a_group_is_read_and_travels_in_the_canonical_text() {
    let site = Site::new();
    let own = own_name();
    let plain = site.load(&with("")).unwrap();
    assert_eq!(plain.group, Group::default());
    assert_eq!(plain.group_folder(), None);
    let text = format!(
        "[group]\nhosts = \"other,{own}\"\nfolder = \"bb/g\"\nbind = \"127.0.0.1\"\nconsistency = \"strict\""
    );
    let config = site.load(&with(&text)).unwrap();
    let hosts = config.group.hosts.clone().unwrap();
    assert_eq!((hosts.list.names(), hosts.node.0), (&["other".to_owned(), own.clone()][..], 1));
    assert_eq!((hosts.own_name(), hosts.is_alone()), (&own[..], false));
    assert_eq!(config.group_folder(), Some(site.path("bb/g")));
    assert_eq!(config.group.bind, Some("127.0.0.1".parse().unwrap()));
    assert!(config.shares_files() && !plain.shares_files());
    assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
    // A later job with other hosts finds what this one has left.
    assert_eq!(config.instance_id(), plain.instance_id());
}

#[test]
fn hosts_come_from_a_file_an_option_or_the_batch_system() {
    let site = Site::new();
    let own = own_name();
    let names = |config: &Config| config.group.hosts.clone().unwrap().list.names().to_vec();
    fs::write(site.path("hosts"), format!("n1 slots=4\n# none\n{own}\nn1\n")).unwrap();
    let mut config = site.load(&with("[group]\nhosts = \"hosts\"")).unwrap();
    assert_eq!(names(&config), ["n1".to_owned(), own.clone()]);
    // The option counts for more.
    config.set_hosts(&format!("{own},n[7-8]"), "--hosts").unwrap();
    assert_eq!(names(&config), [own.clone(), "n7".to_owned(), "n8".to_owned()]);
    config.set_hosts(site.path("hosts").to_str().unwrap(), "--hosts").unwrap();
    assert_eq!(config.group.hosts.as_ref().unwrap().node.0, 1);
    config.set_hosts("localhost", "--hosts").unwrap();
    assert!(config.group.hosts.as_ref().unwrap().is_alone());
    // An address that this host has.
    config.set_hosts("127.0.0.1,192.0.2.1", "--hosts").unwrap();
    assert_eq!(config.group.hosts.as_ref().unwrap().own_name(), "127.0.0.1");
    let twice = format!("127.0.0.1,{own}");
    assert_eq!(
        config.set_hosts(&twice, "--hosts").unwrap_err().to_string(),
        format!(
            "--hosts: this host is {own}, and both {own} and 127.0.0.1 of the hosts of the group \
             ({twice}): name each once"
        )
    );

    let of = |config: &Config, variables: &[(&str, &str)]| {
        let mut config = config.clone();
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let taken = config.take_hosts_of_environment(value);
        taken.map(|()| config.group.hosts).map_err(|error| error.to_string())
    };
    let plain = site.load(&with("")).unwrap();
    let slurm = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_NODEID", "1")];
    let hosts = of(&plain, &slurm).unwrap().unwrap();
    assert_eq!((hosts.own_name(), hosts.job.as_deref()), ("n2", Some("17")));
    assert_eq!(of(&plain, &[]), Ok(None));
    // A group of one is none, and what was said counts for more.
    let one = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", &own[..])];
    assert_eq!(of(&plain, &one), Ok(None));
    assert_eq!(of(&config, &slurm), Ok(config.group.hosts.clone()));
    let away = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "n[1-2]")];
    let said = of(&plain, &away).unwrap_err();
    assert!(said.starts_with(&format!("SLURM_JOB_NODELIST: this host is {own}, ")), "{said}");
    let file = site.path("hosts");
    let pbs = [("PBS_NODEFILE", file.to_str().unwrap()), ("PBS_JOBID", "3.server")];
    let hosts = of(&plain, &pbs).unwrap().unwrap();
    assert_eq!((hosts.node.0, hosts.job.as_deref()), (1, Some("3.server")));
    let said = of(&plain, &[("PBS_NODEFILE", "/no/such")]).unwrap_err();
    assert!(said.starts_with("PBS_NODEFILE: /no/such: No such file"), "{said}");
    // No other node sees a store that is emulated.
    let emulated = with("").replace("\"pfs\"", "\"pfs\"\nemulate = { latency = \"1ms\" }");
    assert_eq!(of(&site.load(&emulated).unwrap(), &slurm), Ok(None));
}

#[test]
fn the_folder_of_a_group_follows_from_hosts_and_job() {
    let site = Site::new();
    let own = own_name();
    let mut config = site.load(&with("")).unwrap();
    let mut folder = |hosts: &str, job: Option<&str>| {
        config.set_hosts(hosts, "--hosts").unwrap();
        let hosts = config.group.hosts.clone().unwrap();
        config.group.hosts = Some(Hosts { job: job.map(str::to_owned), ..hosts });
        config.group_folder().unwrap()
    };
    let first = folder(&format!("{own},b"), None);
    assert_eq!(first.parent(), Some(&*site.path("pfs")));
    let name = first.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(".forebay-group-") && name.len() == 31, "{name}");
    assert_eq!(folder(&format!("{own},b"), None), first);
    // Nodes that are told of other orders meet there, and are told that they differ.
    assert_eq!(folder(&format!("b,{own}"), None), first);
    let others = [
        folder(&format!("{own},c"), None),
        folder(&format!("{own},b"), Some("1")),
        folder(&format!("{own},b"), Some("2")),
    ];
    for (at, other) in others.iter().enumerate() {
        assert!(*other != first && !others[..at].contains(other), "{others:?}");
    }
    // The first store that is not emulated.
    let text = with("").replace("\"pfs\"", "\"pfs\"\nemulate = { latency = \"1ms\" }")
        + "[[backing]]\npath = \"bb\"";
    let mut config = site.load(&text).unwrap();
    config.set_hosts(&format!("{own},b"), "--hosts").unwrap();
    assert_eq!(config.group_folder().unwrap().parent(), Some(&*site.path("bb")));
}

#[test]
fn groups_that_cannot_be() {
    let site = Site::new();
    let own = own_name();
    let refuses =
        |group: &str, message: &str| site.refuses(&with(&format!("[group]\n{group}")), message);
    refuses(
        "host = \"a\"",
        "site.toml:2: group.host: unknown key; known here: hosts, folder, bind, consistency, \
         fabric, trusted_network",
    );
    refuses(
        "consistency = \"close\"",
        "site.toml:2: group.consistency: \"close\" is no consistency; give \"auto\", \
         \"strict\" or \"open\"",
    );
    refuses(
        "fabric = \"quic\"",
        "site.toml:2: group.fabric: \"quic\" is no fabric; give \"tls\" or \"ucx\"",
    );
    #[cfg(not(feature = "ucx"))]
    refuses(
        "fabric = \"ucx\"\ntrusted_network = true",
        "site.toml:2: group.fabric: this build has no ucx: build with --features ucx",
    );
    #[cfg(feature = "ucx")]
    for trusted_network in [false, true] {
        let text = format!("[group]\nfabric = \"ucx\"\ntrusted_network = {trusted_network}");
        let config = site.load(&with(&text)).unwrap();
        assert_eq!(config.group.fabric, forebay_cluster::Transport::Ucx { trusted_network });
        assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
    }
    refuses("hosts = 2", "site.toml:2: group.hosts: is of type integer; give a text in quotes");
    refuses(
        "bind = \"here\"",
        "site.toml:2: group.bind: \"here\" is no address; give one such as 10.0.0.1",
    );
    refuses(
        "hosts = \"a,b,a\"",
        "site.toml:2: group.hosts: column 5: a is host 1 already: name each once; give hosts such as \
         \"n[1-4]\", or a file",
    );
    // That this host is none of them is for those to say that begin a group.
    for (hosts, more) in [("a,b", ""), ("a.txt", ", or give a file that exists")] {
        let mut config = site.load(&with(&format!("[group]\nhosts = \"{hosts}\""))).unwrap();
        assert_eq!((&config.group.hosts, config.group_folder()), (&None, None));
        let said = config.check_own_host().unwrap_err().to_string();
        let wanted = format!(
            "site.toml:2: group.hosts: this host is {own}, which is not among the hosts of the \
             group ({hosts}): name it there as it names itself{more}"
        );
        assert!(said.ends_with(&wanted), "{said}");
        config.set_hosts(&format!("{own},b"), "--hosts").unwrap();
        assert_eq!(config.check_own_host(), Ok(()));
    }
    refuses(
        "hosts = \"no/file\"",
        "site.toml:2: group.hosts: /no/file: No such file or directory (os error 2); give a file of \
         hosts",
    );
    fs::write(site.path("hosts"), "a b c\n").unwrap();
    let said = site.load(&with("[group]\nhosts = \"hosts\"")).unwrap_err();
    assert!(said.starts_with("site.toml:2: group.hosts: /hosts: line 1, column 3: "), "{said}");
    let text = format!("[group]\nhosts = \"{own},b\"");
    let text = with(&text).replace("\"pfs\"", "\"pfs\"\nemulate = { latency = \"1ms\" }");
    let said = site.load(&text).unwrap_err();
    assert!(said.starts_with("site.toml:1: group: all backing directories are emulated"), "{said}");
    // A canonical text is not believed either.
    let config = |group: &str| {
        Config::parse(&format!("[group]\n{group}\n[[backing]]\npath = '/no'\n{RAM}"))
            .unwrap_err()
            .to_string()
    };
    assert!(config("hosts = 'a,b'\nnode = 2").contains("group.node: 2 is out of range"));
    assert!(config("hosts = 'a,b'").contains("group.node: missing"));
}

#[test]
fn a_predictor_belongs_to_the_identity_and_stays_in_the_text() {
    let with = |rule: &str| {
        let text = format!(
            "[[backing]]\npath = \"/tmp\"\n[[tier]]\nname = \"ram\"\nkind = \"ram\"\n\
             capacity = \"64MiB\"\n[[rule]]\npath = \"a*\"\n{rule}"
        );
        Config::parse(&text)
    };
    let config = with("predictor = \"/home/a b/order.wasm\"").unwrap();
    assert_eq!(config.rules[0].predictor, "/home/a b/order.wasm");
    assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
    let without = with("priority = 1").unwrap();
    assert!(without.rules[0].predictor.is_empty());
    assert_ne!(without.instance_id(), config.instance_id());
    for (wrong, said) in [
        ("predictor = \"\"", "is empty; give the path of a WebAssembly module"),
        ("mode = \"bypass\"\npredictor = \"/a\"", "has no meaning with mode bypass"),
    ] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("predictor") && error.contains(said), "{error}");
    }
}
