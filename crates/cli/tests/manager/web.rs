//! The page of `forebay status --web`, in a browser without a screen.

use crate::harness::{LAZY, LONG, Running, Site, Steps, kill, skip, wait_for, works};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
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
