//! Node managers of several nodes: how a group is named, begun, shown and left, on one machine.

use crate::harness::{LONG, Site, Steps, USUAL, is_alive, kill, wait_for};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What this host calls itself.
fn own() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

/// This host and one that never comes: no name of this form is resolved.
fn two() -> String {
    format!("{},nowhere.invalid", own())
}

/// Appends lines to the site's configuration.
fn add(site: &Site, lines: &str) {
    let text = fs::read_to_string(&site.config).unwrap();
    fs::write(&site.config, format!("{text}{lines}")).unwrap();
}

/// The folders of groups in the site's store.
fn folders(site: &Site) -> Vec<PathBuf> {
    let entries = fs::read_dir(&site.store).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| name(path).starts_with(".forebay-group-")).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The lines of `forebay status`, once they say this.
fn status_with(site: &Site, wanted: &str) -> String {
    wait_for(wanted, LONG, || Some(site.status().text).filter(|text| text.contains(wanted)))
}

/// Threads of a node manager that have to do with groups.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let names = names.map(|name| name.trim().to_owned());
    names.filter(|name| name.starts_with("group")).collect()
}

/// The folder goes with the last node manager, which ends a moment after its run.
fn await_no_folder(site: &Site) {
    wait_for("the end of the group's folder", LONG, || folders(site).is_empty().then_some(()));
}

#[test]
fn a_group_of_one_costs_nothing() {
    let site = Site::new(&USUAL);
    for hosts in ["localhost".to_owned(), own()] {
        let script = "seq 1000 > file; step written; cat file | wc -l";
        let steps = Steps::with(&site, &["--hosts", &hosts], script);
        steps.at("written");
        let status = site.status();
        let wanted = format!("  group    node 0 of 1 ({hosts}): no other host is in the list\n");
        assert!(status.text.contains(&wanted), "{}", status.text);
        assert!(threads(status.manager).is_empty() && folders(&site).is_empty());
        steps.past("written");
        let ran = steps.end();
        assert_eq!((&*ran.stdout, &*ran.stderr), ("1000\n", ""));
        wait_for("its manager's end", LONG, || (!is_alive(status.manager)).then_some(()));
        let _ = fs::remove_file(site.out.join("at-written"));
        let _ = fs::remove_file(site.out.join("past-written"));
    }
}

#[test]
fn hosts_that_cannot_be_end_the_run_before_its_command() {
    let site = Site::new(&USUAL);
    let own = own();
    let list = site.out.join("list");
    fs::write(&list, "a\nb c\n").unwrap();
    let list = list.to_str().unwrap();
    for (hosts, said) in [
        ("a,b,a", "--hosts: column 5: a is host 1 already".to_owned()),
        ("n[1-", "--hosts: column 2: [ is not closed".to_owned()),
        (
            "a,b",
            format!("--hosts: this host is {own}, which is not among the hosts of the group (a,b)"),
        ),
        ("/no/such/file", "--hosts: /no/such/file: No such file or directory".to_owned()),
        (list, format!("--hosts: {list}: line 2, column 3: ")),
        ("", "--hosts: there is no host in the list: name one at least".to_owned()),
    ] {
        for words in [&["run"][..], &["node"]] {
            let config = site.config.to_str().unwrap();
            let mut words = [words, &["--config", config, "--hosts", hosts]].concat();
            if words[0] == "run" {
                words.extend(["--", "touch", "begun"]);
            }
            let ran = site.end(site.forebay(&words));
            assert!(ran.stderr.contains(&said), "{hosts}: {}", ran.stderr);
            ran.expect(125);
        }
    }
    assert!(!site.store.join("begun").exists());
    // In the configuration, too; commands that begin no group do without.
    add(&site, "[group]\nhosts = \"a,b\"\n");
    let ran = site.end(site.buffered(&["touch", "begun"]));
    let said = format!("group.hosts: this host is {own}, which is not among the hosts");
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    ran.expect(125);
    let config = site.config.to_str().unwrap();
    let stopped = site.end(site.forebay(&["stop", "--config", config]));
    assert!(stopped.stderr.contains("no node manager serves"), "{}", stopped.stderr);
}

#[test]
fn a_folder_that_is_refused_leaves_the_node_alone() {
    let site = Site::new(&USUAL);
    let folder = site.out.join("group");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    add(&site, &format!("[group]\nhosts = \"{}\"\nfolder = \"out/group\"\n", two()));
    let steps = Steps::of(&site, "seq 1000 > file; step written; cat file | wc -l");
    steps.at("written");
    let why = format!("{}: has mode 0777: others may write it; chmod 700", folder.display());
    let status = status_with(&site, &format!("({}): NONE, the node is alone: {why}\n", own()));
    assert!(status.contains("count opens        1"), "{status}");
    steps.past("written");
    let ran = steps.end();
    assert_eq!(ran.stdout, "1000\n");
    assert_eq!(ran.stderr, format!("forebay: no group: {why}; this node goes on alone\n"));
    // Also a run that ends at once says so.
    let (ran, _) = site.run_buffered("seq 2000 > file");
    let ran = ran.expect(0);
    assert_eq!(ran.stderr.matches("no group: ").count(), 1, "{}", ran.stderr);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 2000);
    assert!(site.log().contains(&format!("no group: {why}; this node goes on alone")));
    assert!(folder.exists());
}

#[test]
fn a_job_of_slurm_forms_a_group_although_the_other_node_never_comes() {
    let site = Site::new(&USUAL);
    let mut command = Steps::command(&site, &[], "seq 1000 > file; step written; cat file | wc -l");
    command.env("SLURM_JOB_ID", "17").env("SLURM_JOB_NODELIST", two()).env("SLURM_NODEID", "0");
    let steps = Steps::start(&site, command);
    steps.at("written");
    let own = own();
    let status = status_with(&site, &format!("  group    node 0 of 2 ({own}), life 1: in view 1 "));
    let manager = site.status().manager;
    let folder = folders(&site).remove(0);
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o700);
    for wanted in [
        &format!("    folder   {}\n", folder.display())[..],
        &format!("    address  udp/{own}:"),
        &format!("    node   0  {own}, life 1: this node, member since view 1\n"),
        "    node   1  nowhere.invalid: never heard: no run there has begun, or it sees another folder\n",
    ] {
        assert!(status.contains(wanted), "{wanted}: {status}");
    }
    let json = site.end(site.forebay(&["status", "--json"])).expect(0).stdout;
    assert!(
        json.contains("\"group\": {\"state\": \"member\", \"hosts\": 2, \"node\": 0, "),
        "{json}"
    );
    assert!(json.contains("\"standing\": \"never heard\", \"seat\": null}"), "{json}");
    let mut named = threads(manager);
    named.sort();
    // The one that has begun the group looks whether this node is in it; and one, where that has
    // no view to look at any more, whether it was given up.
    let all = ["group", "group-begin", "group-leases", "group-links", "group-store", "group-watch"];
    assert_eq!(named, all);

    // A run that asks for other hosts goes on with what there is, and one that asks for none does
    // so without a word.
    let config = site.config.to_str().unwrap();
    let run = ["run", "--config", config, "--hosts", "localhost", "--", "bash", "-c", "seq 9 > g"];
    let other = site.end(site.forebay(&run)).expect(0);
    assert!(
        other.stderr.contains("asks for the group of localhost, and the node manager that runs here is in the group of "),
        "{}",
        other.stderr
    );
    assert_eq!(site.end(site.buffered(&["bash", "-c", "seq 9 > h"])).expect(0).stderr, "");

    // Another node manager is another life.
    kill(manager, Signal::KILL);
    status_with(&site, &format!("  group    node 0 of 2 ({own}), life 2: in view "));
    steps.past("written");
    let ran = steps.end();
    assert_eq!(ran.stdout, "1000\n");
    let others = ran.stderr.lines().filter(|line| !line.contains("the node manager is gone"));
    assert_eq!(others.count(), 0, "{}", ran.stderr);
    await_no_folder(&site);
}

#[test]
fn variables_of_a_batch_system_that_name_other_hosts_are_told_and_form_no_group() {
    let site = Site::new(&USUAL);
    let mut command = site.buffered(&["bash", "-c", "seq 9 > file"]);
    command.env("SLURM_JOB_ID", "17").env("SLURM_JOB_NODELIST", "n[1-2]");
    let ran = site.end(command).expect(0);
    let said = format!(
        "forebay: no group: SLURM_JOB_NODELIST: this host is {}, which is not among the hosts of the \
         group (n1,n2): name it there as it names itself; this node goes on alone\n",
        own()
    );
    assert_eq!(ran.stderr, said);
    // One host is no group.
    let mut command = site.buffered(&["bash", "-c", "seq 9 > file"]);
    command.env("SLURM_JOB_ID", "17").env("SLURM_JOB_NODELIST", own());
    assert_eq!(site.end(command).expect(0).stderr, "");
    assert!(folders(&site).is_empty());
}

#[test]
fn a_service_has_a_group_until_it_is_stopped() {
    let site = Site::new(&USUAL);
    let list = site.out.join("hosts");
    fs::write(&list, two().replace(',', "\n")).unwrap();
    let config = site.config.to_str().unwrap();
    let list = list.to_str().unwrap();
    let service = site.start(site.forebay(&["node", "--config", config, "--hosts", list]));
    status_with(&site, "life 1: in view 1 ");
    // Its runs are told nothing: they ask for no group.
    assert_eq!(site.end(site.buffered(&["bash", "-c", "seq 9 > f"])).expect(0).stderr, "");
    site.end(site.forebay(&["stop", "--config", config])).expect(0);
    service.end().expect(0);
    assert!(folders(&site).is_empty());
}

#[test]
fn what_up_has_started_goes_on_until_down() {
    let site = Site::new(&USUAL);
    let config = site.config.to_str().unwrap();
    let up = || site.end(site.forebay(&["up", "--config", config, "--hosts", &two()]));
    let ran = up().expect(0);
    let manager = site.status().manager;
    let wanted = format!("node manager {manager} serves ");
    assert!(ran.stdout.starts_with(&wanted), "{ran:?}");
    assert!(
        ran.stdout.contains(&format!("group: node 0 of 2 ({}), life 1: in view ", own())),
        "{ran:?}"
    );
    // Runs come and go, and so do other commands that want it.
    assert_eq!(site.end(site.buffered(&["bash", "-c", "seq 9 > f"])).expect(0).stderr, "");
    let ran = up().expect(0);
    assert!(ran.stdout.contains(&format!("node manager {manager} serves already")), "{ran:?}");
    assert_eq!(site.status().manager, manager);
    site.end(site.forebay(&["down", "--config", config])).expect(0);
    wait_for("its end", LONG, || (!is_alive(manager)).then_some(()));
    assert!(folders(&site).is_empty());
    assert_eq!(fs::read_to_string(site.store.join("f")).unwrap().lines().count(), 9);

    for words in [&["up", "--launcher", "ssh"][..], &["down", "--launcher", "ssh"]] {
        let ran = site.end(site.forebay(words));
        assert!(ran.stderr.contains("--hosts <HOSTS>"), "{ran:?}");
    }
}
