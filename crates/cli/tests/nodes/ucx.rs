//! Node managers whose links are UCX over TCP. In builds with the feature `ucx`.

use crate::groups::{LAZY, WITHOUT, agree, begin, end, linked, unlinked};
use crate::harness::{self, LONG, wait_for};
use crate::namespaces::Nodes;
use std::time::Instant;

const UCX: &str = "fabric = \"ucx\"\ntrusted_network = true";

/// Nodes, if there is UCX.
fn nodes(count: usize) -> Option<Nodes> {
    if !cfg!(feature = "ucx") {
        harness::skip("this build has no ucx: cargo test --features ucx");
        return None;
    }
    Nodes::new(count)
}

/// A configuration whose `[group]` says this.
fn configure(nodes: &Nodes, name: &str, group: &str) -> String {
    let config = nodes.configure(name, LAZY, "");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}[group]\n{group}\n")).unwrap();
    config
}

#[test]
fn members_notice_by_ucx_who_is_gone() {
    let Some(nodes) = nodes(2) else { return };
    let config = configure(&nodes, "ucx.toml", UCX);
    let hosts = ["--hosts", "n[0-1]"];
    let mut runs: Vec<_> = (0..2).map(|n| (n, begin(&nodes, n, &config, &hosts))).collect();
    let formed = agree(&nodes, &[0, 1], LONG);
    linked(&nodes, &formed);

    let since = Instant::now();
    nodes[1].kill_all();
    unlinked(&nodes[0], formed.members[1]);
    println!("a killed member has no link after {:?}", since.elapsed());
    assert_eq!(runs.remove(1).1.end().code, 128 + 9);
    agree(&nodes, &[0], WITHOUT);
    runs.push((1, begin(&nodes, 1, &config, &hosts)));
    let whole = agree(&nodes, &[0, 1], LONG);
    linked(&nodes, &whole);

    let since = Instant::now();
    nodes.set_link(1, false);
    unlinked(&nodes[0], whole.members[1]);
    println!("a member that is cut off has no link after {:?}", since.elapsed());
    unlinked(&nodes[1], whole.members[0]);
    nodes.set_link(1, true);
    linked(&nodes, &agree(&nodes, &[0, 1], WITHOUT));
    end(&nodes, runs);
}

#[test]
fn a_member_with_another_fabric_is_named() {
    let Some(nodes) = nodes(2) else { return };
    let configs = [configure(&nodes, "ucx.toml", UCX), configure(&nodes, "tls.toml", "")];
    let hosts = ["--hosts", "n[0-1]"];
    let runs = (0..2).map(|n| (n, begin(&nodes, n, &configs[n], &hosts))).collect();
    for (number, other, theirs, ours) in [(0, "n1", "tls", "ucx"), (1, "n0", "ucx", "tls")] {
        let wanted = format!("host {other} has links by {theirs}, this one by {ours}: give all");
        wait_for("the name of the other host", LONG, || {
            nodes[number].log().contains(&wanted).then_some(())
        });
    }
    end(&nodes, runs);
}

#[test]
fn without_a_device_or_trust_the_node_is_alone_and_says_why() {
    let Some(nodes) = nodes(1) else { return };
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut found| found.next().is_some()) {
        harness::skip("this machine has an RDMA device");
        return;
    }
    let config = configure(&nodes, "ucx.toml", "fabric = \"ucx\"");
    let run = begin(&nodes, 0, &config, &["--hosts", "n[0-1]"]);
    wait_for("the reason", LONG, || {
        nodes[0].log().contains("it takes trusted_network = true in [group]").then_some(())
    });
    end(&nodes, vec![(0, run)]);
}
