//! On which cores the node manager moves data, and how it yields to programs.

use crate::harness::{LAZY, LONG, Site, Steps, wait_for};
use std::fs;

/// Cores and nice value of each thread of a process that goes on, by its name.
fn threads(pid: u32) -> Vec<(String, String, i32)> {
    let of_thread = |entry: std::io::Result<fs::DirEntry>| {
        let folder = entry.unwrap().path();
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let status = text("status")?;
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let stat = text("stat")?;
        let nice = stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap();
        let cores = cores.unwrap().trim().to_owned();
        Some((text("comm")?.trim().to_owned(), cores, nice.parse().unwrap()))
    };
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(of_thread).collect()
}

/// The last core that this process may use.
fn last_core() -> String {
    let own = threads(std::process::id());
    own[0].1.rsplit([',', '-']).next().unwrap().to_owned()
}

#[test]
fn threads_that_move_data_run_on_their_cores_and_others_where_they_may() {
    let site = Site::new(&LAZY);
    let usual = threads(std::process::id())[0].clone();
    let before = fs::read_to_string(&site.config).unwrap();
    for (text, core, nice) in [
        (String::new(), usual.1.clone(), 0),
        (format!("[node]\ncores = \"{0}\"\nnice = 5\n", last_core()), last_core(), 5),
    ] {
        // A run would join the node manager that is there, on its cores.
        wait_for("quiet", LONG, || site.processes().is_empty().then_some(()));
        fs::write(&site.config, format!("{before}{text}")).unwrap();
        let script =
            "dd if=/dev/zero of=big bs=1M count=80 2>/dev/null; step 1; rm $OUT/at-1 $OUT/past-1";
        let steps = Steps::of(&site, script);
        steps.at("1");
        let found = threads(site.status().manager);
        let mut moving = 0;
        for (name, cores, has) in &found {
            let is_mover = ["flush ", "demote ", "place ", "promote", "stage in"]
                .iter()
                .any(|start| name.starts_with(start));
            // A worker of the kernel's for a ring of some mover: as nice as that one.
            if name.starts_with("iou-wrk-") {
                assert_eq!(*cores, core, "{name} of {found:?}");
                continue;
            }
            let serves = ["sync", "caps"].contains(&name.as_str())
                || (name.starts_with("stage ") || name.starts_with("exchange ")) && !is_mover;
            let wanted = match (is_mover, serves) {
                (true, _) => (&core, usual.2 + nice),
                (_, true) => (&core, usual.2),
                _ => (&usual.1, usual.2),
            };
            assert_eq!((cores, *has), wanted, "{name} of {found:?}");
            moving += u32::from(is_mover);
        }
        assert!(moving > 8, "{found:?}");
        steps.past("1");
        steps.end().expect(0);
    }
}

#[test]
fn cores_that_are_not_there_are_named_before_anything_starts() {
    let site = Site::new(&LAZY);
    let before = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, format!("{before}[node]\ncores = \"1023\"\n")).unwrap();
    let words = ["run", "--config", site.config.to_str().unwrap(), "--", "touch", "begun"];
    let said = site.end(site.forebay(&words)).expect(125).stderr;
    assert!(said.contains("node.cores: core 1023 does not exist"), "{said}");
    assert!(said.contains(&last_core()) && !site.store.join("begun").exists(), "{said}");
}
