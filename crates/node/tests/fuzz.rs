//! Configurations and schemas that are cut, mixed and spoilt at random: a message with file and
//! line, never a panic. The seed is printed; FOREBAY_SEED repeats it, FOREBAY_FUZZ_MINUTES goes on.

use forebay_node::Config;
use forebay_node::config::Predictors;
use forebay_placement::Random;
use std::fs;
use std::time::{Duration, Instant};

const TOML: &str = "page_size = '4KiB'\n[flush]\ntrigger = 'periodic'\nperiod = '2s'\nmax_age = '1min'\n\
    [placement]\npolicy = 'max-bandwidth'\n[[backing]]\npath = 'pfs'\n\
    emulate = { bandwidth = '100MB/s', latency = '1ms' }\n[[tier]]\nname = 'ram'\nkind = 'ram'\n\
    capacity = '64MiB'\n[[tier]]\nname = 'nvme'\nkind = 'file'\npath = 'nvme'\ncapacity = '1GiB'\n\
    [[rule]]\nname = 'big'\npath = '**/*.h5'\nsize_min = '1MiB'\ntier = 'nvme'\npin = true\n";
const XML: &str = "<?xml version='1.0'?>\n<buffering-schema version='1'>\n<rule name='big'>\n\
    <match path='**/*.{h5,nc}' size-min='1MiB' user='root' process='lmp*' ranks='0-63:8'/>\n\
    <set tier='nvme' pin='true' mode='async' trigger='per-file' priority='7'/>\n</rule>\n\
    <rule><match path='**/[b-d]?/**'/><set mode='bypass'/></rule>\n</buffering-schema>\n";
/// Pieces that parsers may stumble over.
const PIECES: [&str; 16] = [
    "'",
    "\"",
    "[[",
    "]]",
    "=",
    "\n",
    "<",
    "/>",
    "&lt;",
    "&#0;",
    "**",
    "{",
    "\u{0}",
    "99999999999999999999",
    "-1",
    "é",
];

/// `text` with some changes.
fn spoil(random: &mut Random, text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.index(chars.len());
        let upto = (at + random.index(30)).min(chars.len());
        match random.below(5) {
            0 => drop(chars.drain(at..upto)),
            1 => chars.truncate(at),
            2 => {
                let piece = chars[at..upto].to_vec();
                let to = random.index(chars.len() + 1);
                drop(chars.splice(to..to, piece));
            }
            3 => drop(chars.splice(at..at, random.pick(&PIECES).chars())),
            _ => {
                if let Some(place) = chars.get_mut(at) {
                    *place = char::from(random.below(128) as u8);
                }
            }
        }
    }
    chars.into_iter().collect()
}

#[test]
fn spoilt_configurations_and_schemas_are_refused_with_their_line() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("FOREBAY_SEED={seed}");
    let minutes = std::env::var("FOREBAY_FUZZ_MINUTES").ok().and_then(|text| text.parse().ok());
    let time = minutes.map_or(3.0, |minutes: f64| minutes * 60.0);
    let end = Instant::now() + Duration::from_secs_f64(time);
    let site = tempfile::tempdir().unwrap();
    for folder in ["pfs", "nvme"] {
        fs::create_dir(site.path().join(folder)).unwrap();
    }
    let (toml, xml) = (site.path().join("site.toml"), site.path().join("site.xml"));
    fs::write(&toml, TOML).unwrap();
    fs::write(&xml, XML).unwrap();
    let good = Config::load(&toml, &[]).unwrap();
    good.clone().add_schema(&xml, Predictors::Needed).unwrap();
    let mut random = Random::new(seed);
    let (mut refused, mut taken) = (0, 0);
    while Instant::now() < end {
        let is_toml = random.below(2) == 0;
        let (file, whole) = if is_toml { (&toml, TOML) } else { (&xml, XML) };
        let text = spoil(&mut random, whole);
        fs::write(file, &text).unwrap();
        let result = match is_toml {
            true => Config::load(file, &[]).map(drop),
            false => good.clone().add_schema(file, Predictors::Needed),
        };
        let Err(error) = result else {
            taken += 1;
            continue;
        };
        refused += 1;
        let message = error.to_string();
        let name = format!("{}:", file.display());
        let after = message.split(&name).nth(1).unwrap_or_else(|| panic!("{message}\nin\n{text}"));
        // What is wrong with the whole, as a missing tier, has no line.
        let line = after.split(':').next().unwrap().parse::<usize>();
        let lines = text.lines().count() + 1;
        assert!(line.is_err() || (1..=lines).contains(&line.unwrap()), "{message}\nin\n{text}");
    }
    assert!(refused > 100 && taken > 0, "{refused} refused, {taken} taken");
}
