//! Locks that belong to open file descriptions end with the program's last descriptor of them,
//! whatever the node manager has, has on its way, or does.

use crate::harness::{self, LAZY, NOBODY, Ran, SMALL, Setup, Site, as_user};
use std::process::Command;

/// As which user, and beside which node manager, a program runs.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Scene {
    /// Not as root.
    nobody: bool,
    /// The node manager is stopped as long as locks are taken and given up.
    stopped: bool,
}

const SCENES: [Scene; 4] = [
    Scene { nobody: false, stopped: false },
    Scene { nobody: false, stopped: true },
    Scene { nobody: true, stopped: false },
    Scene { nobody: true, stopped: true },
];

fn end(site: &Site, mut command: Command, scene: Scene) -> Ran {
    if scene.nobody {
        as_user(&mut command, NOBODY);
    }
    site.end(command)
}

/// Runs `held WORDS` plainly and under Forebay, and compares what it says.
fn same_locks(setup: &Setup, scene: Scene, words: &str) {
    let site = Site::new(setup);
    if !site.compile("held.c", &[]) {
        return;
    }
    if scene.nobody {
        if !site.share() {
            return;
        }
        let owner = format!("{NOBODY}:{NOBODY}");
        let chown = Command::new("chown").args(["-R", &owner]).arg(site.root()).status();
        assert!(chown.unwrap().success());
    }
    let mut plainly = site.command(&site.plain, "bash");
    plainly.args(["-c", &format!("$BIN/held {words}")]);
    let wanted = end(&site, plainly, scene).expect(0);
    let manager = match scene.stopped {
        true => {
            "export MANAGER=$($FOREBAY status | sed -n 's/.*node manager //p'); [ $MANAGER ] || exit 3; "
        }
        false => "",
    };
    let script = format!("{manager}$BIN/held {words}; $FOREBAY status > $OUT/status");
    let got = end(&site, site.buffered(&["bash", "-c", &script]), scene).expect(0);
    harness::assert_same_lines(&format!("{scene:?} {words}"), &got.stdout, &wanted.stdout);
    let status = harness::sees(&site.out.join("status"));
    let writes = status.lines().find_map(|line| line.trim().strip_prefix("count writes "));
    let count = writes.and_then(|line| line.split_whitespace().next());
    assert!(count.is_some_and(|count| count != "0"), "nothing was buffered: {status}");
}

#[test]
fn a_lock_ends_with_the_last_descriptor_of_the_program() {
    for scene in SCENES {
        // Where no other description can be had, the manager ends the locks of processes that have
        // ended.
        let timeout = match scene {
            Scene { nobody: false, .. } => 0,
            Scene { stopped: false, .. } => 5000,
            Scene { stopped: true, .. } => -1,
        };
        same_locks(&LAZY, scene, &format!("ways file {timeout}"));
    }
}

#[test]
fn a_file_is_locked_again_and_again() {
    for scene in SCENES {
        same_locks(&LAZY, scene, "turns file");
    }
    let through = Setup { flush: "trigger = \"per-operation\"", ..SMALL };
    same_locks(&through, SCENES[0], "turns file");
}

#[test]
fn shared_locks_become_exclusive_ones_and_back() {
    for scene in SCENES {
        same_locks(&LAZY, scene, "conversions file");
    }
}
