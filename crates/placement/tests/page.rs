//! The worked examples of docs/design/placement.md, computed again: by hand from the equations, and
//! by the policies. The page has to show the same numbers.

use forebay_placement::{
    Costs, Destination, Hierarchy, Model, PolicyId, Request, TierSnapshot, names, policy,
};

const GB: f64 = 1e9;
const MB: f64 = 1e6;

/// Devices of the paper's Figure 7, capacities of its example in section 3.2.2 B.
const NAMES: [&str; 4] = ["RAM", "NVMe", "burst buffer", "store"];
const WRITE_MB_S: [f64; 4] = [10_000.0, 1_900.0, 500.0, 95.0];
const READ_MB_S: [f64; 4] = [13_000.0, 2_800.0, 550.0, 115.0];
const LATENCY_MS: [f64; 4] = [0.000_014, 0.02, 0.06, 4.16];
const CAPACITY_GB: [f64; 3] = [32.0, 512.0, 2048.0];

fn hierarchy(free_gb: [f64; 3], model: Model) -> Hierarchy {
    let place = |index: usize| TierSnapshot {
        read_bandwidth: (READ_MB_S[index] * MB) as u64,
        write_bandwidth: (WRITE_MB_S[index] * MB) as u64,
        latency_ns: (LATENCY_MS[index] * 1e6).round() as u64,
        ..TierSnapshot::default()
    };
    let tier = |index: usize| TierSnapshot {
        capacity: (CAPACITY_GB[index] * GB) as u64,
        free: (free_gb[index] * GB) as u64,
        ..place(index)
    };
    let costs = Costs { model, ..Costs::default() };
    let tiers = Hierarchy::new(&[tier(0), tier(1), tier(2)]).unwrap();
    tiers.with_store(place(3)).with_costs(costs)
}

/// The share of a move that counts, see the page.
const EXPOSED: f64 = 0.98;

/// The page's lines on one example.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, line: String) {
        self.0.push(line);
    }

    /// Compares with the plan that a policy makes, shows it, and looks for all lines on the page.
    fn end(mut self, name: &str, hierarchy: &Hierarchy, request: &Request, cheapest_ms: f64) {
        let plan = policy(name).unwrap().plan(hierarchy, request);
        let cost_ms = plan.cost_ns / 1e6;
        assert!((cost_ms - cheapest_ms).abs() < 1e-6 * cheapest_ms, "{cost_ms}, not {cheapest_ms}");
        let pieces: Vec<_> = plan
            .pieces()
            .iter()
            .map(|piece| {
                let place = |place| match place {
                    Destination::Tier(tier) => NAMES[tier],
                    Destination::Store => NAMES[3],
                };
                let mb = |bytes: u64| bytes as f64 / MB;
                let room = match piece.room {
                    0 => String::new(),
                    room => format!(" after {:.0} MB went to {}", mb(room), place(piece.room_to)),
                };
                format!("{:.0} MB to {}{room}", mb(piece.bytes), place(piece.to))
            })
            .collect();
        self.add(format!("plan:      {}", pieces.join(", ")));
        let block = self.0.join("\n");
        let page = include_str!("../../../docs/design/placement.md");
        assert!(page.contains(&block), "docs/design/placement.md lacks\n{block}");
    }
}

fn write_ms(place: usize, mb: f64) -> f64 {
    LATENCY_MS[place] + mb / WRITE_MB_S[place] * 1e3
}

fn move_ms(from: usize, to: usize, mb: f64) -> f64 {
    LATENCY_MS[to] + mb / READ_MB_S[from].min(WRITE_MB_S[to]) * 1e3
}

#[test]
fn max_bandwidth() {
    let hierarchy = hierarchy([1.0, 100.0, 1000.0], Model::Physical);
    let request = Request { bytes: 3_000_000_000, ..Request::default() };
    let skip = write_ms(1, 3000.0);
    let split = write_ms(0, 1000.0) + write_ms(1, 2000.0);
    let flush = EXPOSED * move_ms(0, 1, 2000.0) + write_ms(0, 3000.0);
    let mut lines = Lines::default();
    lines.add(format!("skip RAM:  0.020 + 3000/1.9 = {skip:.3} ms"));
    lines.add(format!("split:     0.000 + 1000/10 + 0.020 + 2000/1.9 = {split:.3} ms"));
    lines.add(format!("flush:     0.98 x (0.020 + 2000/1.9) + 0.000 + 3000/10 = {flush:.3} ms"));
    lines.end("max-bandwidth", &hierarchy, &request, skip.min(split).min(flush));
}

#[test]
fn max_bandwidth_as_printed() {
    let hierarchy = hierarchy([1.0, 100.0, 1000.0], Model::Paper);
    let request = Request { bytes: 3_000_000_000, ..Request::default() };
    let of = |place: usize, mb: f64| mb / WRITE_MB_S[place] * 1e3 * LATENCY_MS[place];
    let skip = of(1, 3000.0);
    let split = of(0, 1000.0) + of(1, 2000.0);
    let flush = EXPOSED * of(1, 2000.0) + of(0, 3000.0);
    let mut lines = Lines::default();
    lines.add(format!("skip RAM:  (3000/1.9) x 0.020 = {skip:.4} ms²"));
    lines.add(format!("split:     (1000/10) x 0.000014 + (2000/1.9) x 0.020 = {split:.4} ms²"));
    lines.add(format!(
        "flush:     0.98 x (2000/1.9) x 0.020 + (3000/10) x 0.000014 = {flush:.4} ms²"
    ));
    lines.end("max-bandwidth", &hierarchy, &request, skip.min(split).min(flush));
}

#[test]
fn max_locality() {
    let hierarchy = hierarchy([0.0, 100.0, 1000.0], Model::Physical);
    let threshold = 32_000.0 * 32.0 / 2592.0;
    let of_file = |mb: f64| Request {
        bytes: 64_000_000,
        file_bytes: (mb * MB).round() as u64,
        dispersion: 0b001,
        ..Request::default()
    };
    let skip = 2.0 * write_ms(1, 64.0);
    let reorganize = move_ms(0, 1, 64.0) + write_ms(0, 64.0);
    let mut lines = Lines::default();
    lines.add(format!("R of RAM:  32000 x 32/2592 = {threshold:.0} MB"));
    lines.add(format!("skip RAM:  2 x (0.020 + 64/1.9) = {skip:.3} ms"));
    lines.add(format!(
        "reorganize: move 0.020 + 64/1.9, then 1 x (0.000 + 64/10) = {reorganize:.3} ms"
    ));
    lines.end("max-locality", &hierarchy, &of_file(200.0), skip.min(reorganize));

    let mut lines = Lines::default();
    lines.add(format!("skip RAM:  2 x (0.020 + 64/1.9) = {skip:.3} ms"));
    lines.end("max-locality", &hierarchy, &of_file(threshold), skip);
}

#[test]
fn hot_data() {
    let mut hierarchy = hierarchy([0.0, 100.0, 1000.0], Model::Physical);
    hierarchy.tiers_mut()[0].coldest = 1.0;
    let hot = Request { bytes: 1_000_000_000, file_hotness: 8.0, ..Request::default() };
    let using = |place: usize, hotness: f64| {
        let scarce = CAPACITY_GB.get(place).map_or(0.0, |capacity| 1.0 / capacity);
        let read_ms = LATENCY_MS[place] + 1000.0 / READ_MB_S[place] * 1e3;
        (1.0 + scarce) * (write_ms(place, 1000.0) + hotness * read_ms)
    };
    let skip = using(1, 8.0);
    let regret = 1000.0 / READ_MB_S[1] * 1e3 - 1000.0 / READ_MB_S[0] * 1e3;
    let evict = EXPOSED * move_ms(0, 1, 1000.0) + regret + using(0, 8.0);
    let mut lines = Lines::default();
    lines.add(format!(
        "skip RAM:  (1 + 1/512) x (0.020 + 1000/1.9 + 8 x (0.020 + 1000/2.8)) = {skip:.1} ms"
    ));
    lines.add(format!(
        "evict:     0.98 x (0.020 + 1000/1.9) + 1 x (1000/2.8 - 1000/13)\n           \
         + (1 + 1/32) x (0.000 + 1000/10 + 8 x (0.000 + 1000/13)) = {evict:.1} ms"
    ));
    lines.end("hot-data", &hierarchy, &hot, skip.min(evict));

    let cold = Request { file_hotness: 0.5, ..hot };
    let mut lines = Lines::default();
    let skip = using(1, 0.5);
    lines.add(format!(
        "skip RAM:  (1 + 1/512) x (0.020 + 1000/1.9 + 0.5 x (0.020 + 1000/2.8)) = {skip:.1} ms"
    ));
    lines.end("hot-data", &hierarchy, &cold, skip);
}

#[test]
fn hot_data_as_printed() {
    let hierarchy = hierarchy([10.0, 100.0, 1000.0], Model::Paper);
    let request = Request { bytes: 1_000_000_000, file_hotness: 8.0, ..Request::default() };
    let free_mb = [10_000.0, 100_000.0, 1_000_000.0, 1.0];
    let of = |place: usize| 1000.0 / free_mb[place] / WRITE_MB_S[place] * 1e3;
    let mut lines = Lines::default();
    lines.add(format!("RAM:          (1000/10000)/10 = {:.6} ms/MB", of(0)));
    lines.add(format!("NVMe:         (1000/100000)/1.9 = {:.6} ms/MB", of(1)));
    lines.add(format!("burst buffer: (1000/1000000)/0.5 = {:.6} ms/MB", of(2)));
    lines.end("hot-data", &hierarchy, &request, of(0).min(of(1)).min(of(2)));
}

#[test]
fn user_defined() {
    let hierarchy = hierarchy([1.0, 100.0, 1000.0], Model::Physical);
    let request = Request {
        bytes: 3_000_000_000,
        pinned: Some(Destination::Tier(0)),
        fallback: PolicyId::named("max-bandwidth").unwrap(),
        ..Request::default()
    };
    let cost = write_ms(0, 3000.0);
    let mut lines = Lines::default();
    lines.add(format!("RAM:       0.000 + 3000/10 = {cost:.3} ms"));
    lines.end("user-defined", &hierarchy, &request, cost);
}

#[test]
fn the_page_names_every_policy() {
    let page = include_str!("../../../docs/placement.md");
    for name in names() {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}
