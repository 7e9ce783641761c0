use super::*;
use forebay_node::outlook::{Drain, HotFile, Oldest, Outlook, ProcessStatus, Rates};
use forebay_node::status::TierStatus;
use forebay_pool::moves::Flow;
use look::{Pool, Process};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

const MIB: u64 = 1 << 20;

fn tier(name: &str, capacity: u64, used: u64, dirty: u64) -> TierStatus {
    TierStatus {
        name: name.into(),
        capacity,
        configured: capacity,
        backed: capacity,
        used,
        dirty,
        scratch: 0,
        reserved: 0,
        pinned: 0,
        failed: None,
    }
}

fn process(pid: u32, name: &str, writes: u64, reads: u64, written: u64) -> Process {
    let status = ProcessStatus { pid, start: 1, name: name.into(), job: 3, written, read: 0 };
    Process { status, writes, reads }
}

fn file(path: &str, accesses: f32, size: u64, dirty: u64) -> HotFile {
    HotFile { path: path.into(), accesses, size, dirty }
}

fn pool() -> Pool {
    let flow = |into, out| Flow { into: into * MIB, out: out * MIB };
    Pool {
        instance: "0123456789abcdef".into(),
        state: ("node manager 4242".into(), true),
        stores: vec!["/scratch/me".into()],
        tiers: vec![
            tier("ram", 64 * MIB, 32 * MIB, 16 * MIB),
            tier("nvme", 256 * MIB, 256 * MIB, 0),
        ],
        rates: Some(Rates {
            over: Duration::from_secs(1),
            tiers: vec![flow(900, 100), flow(90, 10)],
            store: flow(70, 0),
        }),
        dirty: 16 * MIB,
        cap: Some(40 * MIB),
        capped: vec![(3, 5 * MIB, 8 * MIB)],
        ahead: 12,
        drain: Drain { refused: 0, time: Some(Duration::from_millis(1400)) },
        oldest: Some(Oldest {
            path: "/scratch/me/checkpoint.0001".into(),
            range: 0..1,
            age: Duration::from_millis(3200),
            outlook: Outlook::Within(Duration::from_millis(800)),
        }),
        errors: vec!["cannot be written (No space left on device): /scratch/me/large".into()],
        processes: vec![
            process(11, "reader", 0, 5 * MIB, 2 * MIB),
            process(12, "writer", 7 * MIB, 0, MIB),
        ],
        files: vec![
            file("/scratch/me/hot", 90.5, MIB, 0),
            file("/scratch/me/unsafe", 0.5, 2 * MIB, 2 * MIB),
            file(
                "/scratch/me/a/long/path/that/ends/in/the/name/of/a/very/large/file",
                1.0,
                9 * MIB,
                MIB,
            ),
        ],
    }
}

fn drawn(pools: &[Pool], view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let frame = |frame: &mut Frame<'_>| {
        let area = frame.area();
        render(pools, view, "12:34:56 UTC", area, frame.buffer_mut());
    };
    terminal.draw(frame).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
}

fn usual() -> View {
    View::new(Duration::from_secs(1))
}

#[test]
fn a_usual_screen_shows_all_of_it() {
    let screen = drawn(&[pool()], &usual(), 80, 24);
    let wanted = "\
forebay top 12:34:56 UTC, every 1.0 s; h: keys, q: end
node manager 4242: 2 processes, instance 0123456789abcdef
store /scratch/me
";
    // The first lines as they are; of the others what has to be there.
    for (line, wanted) in screen.lines().zip(wanted.lines()) {
        assert_eq!(line, wanted, "{screen}");
    }
    for wanted in [
        "ram   [####===.......]  50 %   64.00 MiB   16.00 MiB  900.00 MiB/s  100.00 MiB/s",
        "nvme  [==============] 100 %",
        "70.00 MiB/s",
        "unsafe 16.00 MiB of 12 files, which the store takes in 1.4 s; 40.00 MiB at most",
        "run 3  5.00 MiB unsafe, 8.00 MiB at most",
        "oldest 3.2 s ago, safe within about 0.8 s: /scratch/me/checkpoint.0001",
        "ERROR cannot be written (No space left on device): /scratch/me/large",
        "writer (job 3)",
        "90.5         0 B    1.00 MiB /scratch/me/hot",
        "~",
        "very/large/file",
    ] {
        assert!(screen.contains(wanted), "no {wanted:?} in\n{screen}");
    }
    assert!(screen.find("writer") < screen.find("reader"), "{screen}");
}

#[test]
fn screens_of_all_sizes_have_the_important_lines() {
    for (width, height) in [(80, 24), (40, 10), (200, 60), (20, 5), (10, 3), (1, 1), (300, 2)] {
        let mut pools = vec![pool()];
        let screen = drawn(&pools, &usual(), width, height);
        assert_eq!(screen.lines().count(), usize::from(height));
        for y in 0..pools[0].processes.len() {
            pools[0].processes.push(process(100 + y as u32, "more", 0, 0, 0));
        }
        drawn(&pools, &usual(), width, height);
        drawn(&[], &usual(), width, height);
        drawn(&pools, &View { has_help: true, ..usual() }, width, height);
    }
    let small = drawn(&[pool()], &usual(), 40, 10);
    for wanted in ["node manager 4242", "ram ", "50 %", "unsafe 16.00 MiB", "ERROR"] {
        assert!(small.contains(wanted), "no {wanted:?} in\n{small}");
    }
    let large = drawn(&[pool()], &usual(), 200, 60);
    let path = "/scratch/me/a/long/path/that/ends/in/the/name/of/a/very/large/file";
    assert!(large.contains(path), "{large}");
}

#[test]
fn every_number_has_a_unit() {
    let screen = drawn(&[pool()], &usual(), 80, 24);
    for word in ["900.00", "100.00", "16.00", "64.00"] {
        let at = screen.find(word).unwrap_or_else(|| panic!("no {word} in\n{screen}"));
        assert!(screen[at + word.len()..].starts_with(" MiB"), "{word} in\n{screen}");
    }
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

#[test]
fn keys_sort_pause_and_end() {
    let mut top =
        Top { eyes: Eyes::default(), pools: vec![pool()], view: usual(), looks_left: None };
    let mut first = |keys: &str| {
        for one in keys.chars() {
            assert_eq!(top.take(key(KeyCode::Char(one))), Asked::Nothing, "{one}");
        }
        let screen = drawn(&top.pools, &top.view, 80, 24);
        let behind = |head: &str| {
            let mut lines = screen.lines().skip_while(|line| !line.contains(head)).skip(1);
            lines.next().unwrap_or_default().to_owned()
        };
        (behind("PROCESS"), behind(" FILE"))
    };
    assert!(first("w").0.contains("writer"));
    assert!(first("r").0.contains("reader"));
    assert!(first("t").0.contains("reader"));
    assert!(first("a").1.contains("/hot"));
    assert!(first("u").1.contains("/unsafe"));
    assert!(first("z").1.contains("large/file"));
    assert_eq!(top.take(key(KeyCode::Char('p'))), Asked::Nothing);
    assert!(drawn(&top.pools, &top.view, 80, 24).contains(", paused"));
    assert_eq!(top.take(key(KeyCode::Char(' '))), Asked::Look);
    top.take(key(KeyCode::Char('?')));
    assert!(drawn(&top.pools, &top.view, 80, 24).contains("files by size"));
    for _ in 0..30 {
        top.take(key(KeyCode::Char('-')));
    }
    assert_eq!(top.view.every, Duration::from_millis(100));
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert_eq!(top.take(key(code)), Asked::End);
    }
    let control = |one| KeyEvent::new(KeyCode::Char(one), KeyModifiers::CONTROL);
    assert_eq!(top.take(control('c')), Asked::End);
    assert_eq!(top.take(control('z')), Asked::Suspend);
}

#[test]
fn tab_goes_from_instance_to_instance() {
    let other = Pool { instance: "fedcba9876543210".into(), ..pool() };
    let pools = [pool(), other];
    let mut top = Top { eyes: Eyes::default(), pools: Vec::new(), view: usual(), looks_left: None };
    assert!(drawn(&pools, &top.view, 80, 24).contains("instance 1 of 2"));
    top.take(key(KeyCode::Tab));
    assert!(drawn(&pools, &top.view, 80, 24).contains("fedcba9876543210"));
    top.take(key(KeyCode::Tab));
    assert!(drawn(&pools, &top.view, 80, 24).contains("0123456789abcdef"));
}

#[test]
fn names_of_files_and_processes_do_nothing_to_the_terminal() {
    let mut evil = pool();
    evil.files[0].path = "/a/\u{1b}[2Jb\nc".into();
    evil.processes[0].status.name = "\u{1b}]0;x\u{7}".into();
    let screen = drawn(&[evil.clone()], &usual(), 80, 24);
    assert!(screen.contains("\\u{1b}[2Jb\\nc"), "{screen}");
    let lines = view::lines(&[evil], &usual(), LOG_COLUMNS, None, "");
    let text: String = lines.iter().map(|line| text_of(line) + "\n").collect();
    assert!(!text.chars().any(|one| one.is_control() && one != '\n'), "{text:?}");
}
