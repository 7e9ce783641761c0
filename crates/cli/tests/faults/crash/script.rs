//! Scripts for `programs/scripted.c`: all short ones, and random ones.

use super::model::{Contents, Line, Model, Step, content};
use forebay_placement::Random;

/// Bytes of a page and of a bucket.
const PAGE: usize = 4096;
const BUCKET: usize = 64 * PAGE;

/// What short scripts are made of: file 0 is there before, with a page and a half; file 1 is not.
pub fn short_steps() -> Vec<Step> {
    let write = |file, at, bytes, seed| Step::Write { file, at, bytes, seed, pieces: false };
    vec![
        write(0, 0, PAGE, 1),
        write(0, 1000, 5000, 2),
        write(0, BUCKET - 100, 300, 3),
        write(1, 10, 20, 4),
        Step::Append { file: 0, bytes: 700, seed: 5 },
        Step::Truncate { file: 0, size: 1234 },
        Step::Truncate { file: 0, size: 3 * PAGE + 5 },
        Step::Empty { file: 0 },
        Step::Punch { file: 0, at: 100, bytes: PAGE },
        Step::Rename { file: 0, to: 1 },
        Step::Unlink { file: 0 },
        Step::Sync { file: 0, data_only: false },
        Step::Close { file: 0 },
        Step::Read { file: 0 },
    ]
}

/// The files of short scripts.
pub fn short_contents() -> Contents {
    Contents::from([(0, content(99, PAGE + PAGE / 2))])
}

/// All scripts of one and of two steps, with reads that see what the steps did.
pub fn short_scripts() -> Vec<Vec<Step>> {
    let steps = short_steps();
    let single = steps.iter().map(|&step| vec![step]);
    let pair = |&first: &Step| steps.iter().map(move |&second| vec![first, second]);
    single.chain(steps.iter().flat_map(pair)).collect()
}

/// A random script and the files it begins with.
pub fn random(rng: &mut Random, processes: usize, length: usize) -> (Contents, Vec<Line>) {
    let mut contents = Contents::new();
    for file in 0..4 {
        if rng.one_in(2) {
            let bytes = size(rng);
            contents.insert(file, content(rng.next_u64() >> 32, bytes));
        }
    }
    let mut model = Model::with(&contents);
    let lines = (0..length)
        .map(|_| {
            let step = random_step(rng, &model);
            model.apply(step);
            Line { process: rng.index(processes) as u8, step }
        })
        .collect();
    (contents, lines)
}

/// Mostly a few pages, at times a few buckets.
fn size(rng: &mut Random) -> usize {
    let most = if rng.one_in(6) { 3 * BUCKET } else { 6 * PAGE };
    let size = rng.index(most);
    if rng.one_in(3) { size / PAGE * PAGE } else { size }
}

fn random_step(rng: &mut Random, model: &Model) -> Step {
    let file = rng.index(4) as u8;
    let end = model.size(file);
    let near = |rng: &mut Random| {
        // In the file, at its end, or a little behind it.
        let at = rng.index(end + PAGE);
        if rng.one_in(3) { at / PAGE * PAGE } else { at }
    };
    let at = near(rng);
    let seed = rng.next_u64() >> 40;
    match rng.index(20) {
        0..=5 => {
            let bytes = 1 + size(rng);
            Step::Write { file, at, bytes, seed, pieces: rng.one_in(3) }
        }
        6..=8 => Step::Append { file, bytes: 1 + size(rng), seed },
        9..=10 => Step::Truncate { file, size: at },
        11 => Step::Empty { file },
        12 => Step::Punch { file, at, bytes: 1 + size(rng) },
        13 => Step::Rename { file, to: rng.index(4) as u8 },
        14 => Step::Unlink { file },
        15 => Step::Sync { file, data_only: false },
        16 => Step::Sync { file, data_only: true },
        17 => Step::Close { file },
        _ => Step::Read { file },
    }
}
