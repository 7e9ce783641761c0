//! The page of `forebay status --web` and `forebay up --web`, in a browser without a screen.

use crate::harness::{LAZY, LONG, Running, Site, Steps, kill, skip, wait_for, works};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

const BROWSER: &str = "chromium-headless-shell";

/// Starts the page: its process, and its address.
fn page(site: &Site) -> (Running, String) {
    let running = site.start(site.forebay(&["status", "--web"]));
    let address = wait_for("the address", LONG, || {
        let said = running.stdout();
        said.ends_with('\n').then(|| said.trim_end().to_owned())
    });
    (running, address)
}

/// What is answered to a request.
fn ask(host: &str, first: &str, named: &str) -> String {
    let mut server = TcpStream::connect(host).unwrap();
    server.write_all(format!("{first} HTTP/1.1\r\nHost: {named}\r\n\r\n").as_bytes()).unwrap();
    let mut said = String::new();
    server.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn the_page_is_for_those_with_its_address_and_ends_with_the_manager() {
    let site = Site::new(&LAZY);
    let steps = Steps::of(&site, "head -c 3M /dev/zero > file; step 1");
    steps.at("1");
    let (running, address) = page(&site);
    let (host, token) = address.strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
    assert!(host.starts_with("127.0.0.1:"), "{address}");
    assert!(token.len() == 32 && token.bytes().all(|c| c.is_ascii_hexdigit()), "{address}");
    let right = format!("/api/status?token={token}");
    let status = ask(host, &format!("GET {right}"), host);
    assert!(status.starts_with("HTTP/1.1 200 ") && status.contains("\"tiers\": ["), "{status}");
    assert!(status.contains("\r\nCache-Control: no-store\r\n"), "{status}");
    let whole = ask(host, &format!("GET /?token={token}"), host);
    assert!(whole.contains("\r\nContent-Security-Policy: default-src 'none'; "), "{whole}");
    let elsewhere = ask(host, &format!("GET /api/explain?token={token}&path=/etc/passwd"), host);
    assert!(elsewhere.starts_with("HTTP/1.1 404 "), "{elsewhere}");
    assert!(elsewhere.contains("in no directory that a node manager"), "{elsewhere}");
    for (code, first, named) in [
        ("403", "GET /api/status".to_owned(), host),
        ("403", format!("GET {right}0"), host),
        ("405", format!("POST {right}"), host),
        ("421", format!("GET {right}"), "evil.example"),
    ] {
        let said = ask(host, &first, named);
        assert!(said.starts_with(&format!("HTTP/1.1 {code} ")), "{first}: {said}");
        assert!(!said.contains("tiers"), "{said}");
    }
    steps.past("1");
    steps.end().expect(0);
    // It goes on for managers of other tests, which it shows, too.
    if status.matches("\"orphaned\": false").count() == 1 {
        let ended = running.end().expect(0);
        assert!(ended.stderr.contains("the node manager is gone"), "{ended:?}");
    } else {
        kill(running.pid(), Signal::INT);
        running.end().expect(130);
    }
}

#[test]
fn a_browser_shows_tiers_and_the_blocks_of_a_file() {
    if !works(&[BROWSER, "--version"]) {
        return skip("chromium-headless-shell is not installed");
    }
    let site = Site::new(&LAZY);
    // A name that is markup where it is not escaped.
    let script = "head -c 3M /dev/zero > '<b id=x>&file'; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    let (running, address) = page(&site);
    let profile = site.out.join("browser");
    fs::create_dir(&profile).unwrap();
    let file = site.store.canonicalize().unwrap().join("%3Cb%20id=x%3E%26file");
    let address = format!("{address}&file={}", file.display());
    for width in ["1280", "400"] {
        let mut browser = Command::new(BROWSER);
        browser.args(["--no-sandbox", "--disable-gpu", "--virtual-time-budget=3500", "--dump-dom"]);
        browser.arg(format!("--user-data-dir={}", profile.display()));
        browser.arg(format!("--window-size={width},900")).arg(&address);
        let ran = site.end(browser).expect(0);
        let dom = ran.stdout;
        for wanted in [
            &format!("data-width=\"{width}\""),
            "data-fits=\"true\"",
            "data-tier=\"ram\" data-used=\"3145728\"",
            "data-unsafe=\"3145728\"",
            "class=\"extent\" data-tier=\"ram\"",
            "/&lt;b id=x&gt;&amp;file: 3.00 MiB",
            "found: ",
        ] {
            assert!(dom.contains(wanted), "no {wanted} at {width} in\n{dom}");
        }
        assert!(!dom.contains("<b id"), "{dom}");
        let parts = dom.split("class=\"extent\"").skip(1);
        let sizes = parts.filter_map(|part| part.split_once("data-bytes=\"")?.1.split_once('"'));
        let all: u64 = sizes.map(|(size, _)| size.parse::<u64>().unwrap()).sum();
        assert_eq!(all, 3 << 20, "{dom}");
    }
    kill(running.pid(), Signal::INT);
    running.end().expect(130);
    steps.past("1");
    steps.end().expect(0);
}

/// `forebay up --web` of the site: the node manager, and the address of the page.
fn up(site: &Site) -> (i32, String) {
    let config = site.config.to_str().unwrap();
    let said = site.end(site.forebay(&["up", "--config", config, "--web"])).expect(0).stdout;
    let (first, address) = said.trim_end().split_once('\n').unwrap();
    assert!(!address.contains('\n'), "{said}");
    let manager = first.strip_prefix("node manager ").unwrap().split(' ').next().unwrap();
    (manager.parse().unwrap(), address.to_owned())
}

/// The process that serves the page for this node manager.
fn server(manager: i32) -> Option<i32> {
    let wanted = format!("\0--of-manager\0{manager}\0");
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    })
}

fn await_no_server(manager: i32, address: &str) {
    wait_for("the end of the page", LONG, || server(manager).is_none().then_some(()));
    let host = address.strip_prefix("http://").unwrap().split_once('/').unwrap().0;
    assert!(TcpStream::connect(host).is_err(), "{address} is still served");
}

#[test]
fn the_page_of_up_lives_as_long_as_its_node_manager() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let (manager, address) = up(&site);
    let (host, token) = address.strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
    let status =
        |host: &str, token: &str| ask(host, &format!("GET /api/status?token={token}"), host);
    assert!(status(host, token).contains(&format!("\"manager\": {manager},")), "{address}");
    let refused = status(host, &token.replace(&token[..1], "g"));
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    assert!(host.starts_with("127.0.0.1:"), "{address}");
    if works(&[BROWSER, "--version"]) {
        let profile = site.out.join("browser");
        let mut browser = Command::new(BROWSER);
        browser.args(["--no-sandbox", "--disable-gpu", "--virtual-time-budget=3500", "--dump-dom"]);
        browser.arg(format!("--user-data-dir={}", profile.display())).arg(&address);
        let dom = site.end(browser).expect(0).stdout;
        assert!(dom.contains("data-tier=\"ram\""), "{dom}");
    } else {
        skip("chromium-headless-shell is not installed");
    }
    site.end(site.forebay(&["down", "--config", config])).expect(0);
    await_no_server(manager, &address);
}

#[test]
fn killed_managers_and_pages_leave_nothing() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let (manager, address) = up(&site);
    kill(server(manager).unwrap() as u32, Signal::KILL);
    await_no_server(manager, &address);
    let process = |pid: i32| Path::new(&format!("/proc/{pid}")).exists();
    assert!(process(manager), "the manager has ended with its page");
    // Others are as they were: the page can be had again, from both commands.
    let (by_hand, other) = page(&site);
    assert_ne!(other, address);
    kill(by_hand.pid(), Signal::INT);
    by_hand.end().expect(130);
    let (same, address) = up(&site);
    assert_eq!(same, manager);
    kill(manager as u32, Signal::KILL);
    await_no_server(manager, &address);
    site.end(site.forebay(&["recover", "--config", config])).expect(0);
}

#[test]
fn a_page_of_up_is_on_loopback_and_a_taken_port_is_told() {
    let site = Site::new(&LAZY);
    let config = site.config.to_str().unwrap();
    let up = |web: &str| site.end(site.forebay(&["up", "--config", config, web]));
    let refused = up("--web=0.0.0.0:8080").expect(2);
    assert!(refused.stderr.contains("on 127.0.0.1 alone"), "{refused:?}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = up(&format!("--web={}", taken.local_addr().unwrap())).expect(125);
    assert!(refused.stderr.contains("give another port"), "{refused:?}");
    assert!(!refused.stdout.contains("http://"), "{refused:?}");
    site.end(site.forebay(&["down", "--config", config])).expect(0);
}
