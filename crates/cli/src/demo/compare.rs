//! The two runs side by side: a table, checksums, a picture.

use super::TIERS;
use super::Workload;
use super::run::{Run, seconds};
use super::site::Site;
use super::site::failed;
use crate::timeline;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Digits of a checksum that a terminal of 80 columns has room for.
const SHOWN: usize = 40;

/// Hermes (HPDC'18), section 4.2.1 and Figure 8: "8x higher write performance" than no buffering.
/// The paper's word for what a program waits for its writes; flushing is a time of its own there.
pub(super) const PAPER_SPEEDUP: &str = "8x";

pub(super) fn table(direct: &Run, buffered: &Run) -> String {
    let row = |name: &str, measure: fn(&Run) -> u64, paper: &str| {
        let (before, after) = (measure(direct), measure(buffered));
        let speedup = before as f64 / after.max(1) as f64;
        let (before, after) = (seconds(before), seconds(after));
        format!("   {name:<36}{before:>11}{after:>11}{:>10}{paper:>8}\n", format!("{speedup:.1}x"))
    };
    let mut text = format!(
        "   {:<36}{:>11}{:>11}{:>10}{:>8}\n",
        "", "directly", "Forebay", "speed-up", "paper"
    );
    text += &row("I/O time the program saw", Run::io_us, "-");
    text += &row("of which writing", Run::write_us, PAPER_SPEEDUP);
    text += &row("time writing + flushing not hidden", Run::write_and_drain_us, "-");
    text += &row("time until all was safe on the store", Run::safe_us, "-");
    text += "\n   paper: Hermes (HPDC'18), section 4.2.1 and Figure 8, alternating compute and\n   \
             I/O against no buffering: the time that the program waits for its writes.\n";
    text
}

/// Compares the checksums of all files of both runs; says whether everything is there and equal.
pub(super) fn compare(site: &Site, workload: &Workload) -> Result<(String, bool), String> {
    let direct = checksums(&site.path("pfs-direct"))?;
    let buffered = checksums(&site.path("pfs-forebay"))?;
    let line = |name: &str, (bytes, sum): &(u64, String), remark: &str| {
        format!("   {name:<12}{bytes:>10}  {sum:<SHOWN$.SHOWN$}  {remark}\n")
    };
    let missing = (0, "missing".to_owned());

    let mut text = format!("   {:<12}{:>10}  SHA-256, {SHOWN} digits\n", "file", "bytes");
    for name in direct.keys().chain(buffered.keys().filter(|name| !direct.contains_key(*name))) {
        let before = direct.get(name).unwrap_or(&missing);
        let after = buffered.get(name).unwrap_or(&missing);
        if before == after {
            text += &line(name, before, "same");
        } else {
            text += &line(name, before, "direct");
            text += &line(name, after, "Forebay");
        }
    }
    // Two runs that both lost the same file are equal, and wrong.
    let bytes: u64 = direct.values().map(|(bytes, _)| bytes).sum();
    let expected = workload.total_bytes();
    let equal = direct == buffered;
    text += &match (equal, bytes == expected) {
        (false, _) => "   FAILED: the two runs left different files.\n".to_owned(),
        (_, false) => format!("   FAILED: both runs left {bytes} bytes instead of {expected}.\n"),
        _ => format!("   All {} files are the same, {bytes} bytes.\n", direct.len()),
    };
    Ok((text, equal && bytes == expected))
}

/// Size and SHA-256 of each file of a directory.
pub(super) fn checksums(directory: &Path) -> Result<BTreeMap<String, (u64, String)>, String> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(|e| failed(directory, &e))? {
        let file = entry.map_err(|e| failed(directory, &e))?.path();
        let mut hash = Sha256::new();
        let bytes = File::open(&file)
            .and_then(|mut content| io::copy(&mut content, &mut hash))
            .map_err(|e| failed(&file, &e))?;
        let sum = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sums.insert(name, (bytes, sum));
    }
    Ok(sums)
}

/// Draws both runs on one time axis.
pub(super) fn draw(
    picture: &Path,
    direct: &Run,
    buffered: &Run,
    trace: &Path,
) -> Result<(), String> {
    let lines = fs::read_to_string(trace).map_err(|e| failed(trace, &e))?;
    let movements =
        timeline::movements(&lines, &TIERS).map_err(|e| format!("{}: {e}", trace.display()))?;
    let panels = [
        // It goes around the tiers.
        direct.panel("directly on the store", Vec::new(), Vec::new()),
        buffered.panel("under forebay run", movements, buffered.levels.clone()),
    ];
    timeline::draw(picture, "The same program, without and with Forebay", &panels)
}
