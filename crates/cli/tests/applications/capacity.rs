//! Data larger than all tiers together.

use crate::harness::{Setup, Site, TINY, USUAL};

const SLOW_NVME: Setup = Setup {
    nvme_emulate: Some("{ bandwidth = \"300MB/s\", latency = \"100us\" }"),
    store_emulate: Some("{ bandwidth = \"60MB/s\", latency = \"1ms\" }"),
    ..TINY
};

/// Pseudo-random bytes without a file to read them from.
const SOURCE: &str =
    "source() { head -c $1 /dev/zero | openssl enc -aes-128-ctr -K 00 -iv 00 2> /dev/null; }";

#[test]
fn a_hundred_megabytes_pass_through_tiny_tiers() {
    let site = Site::new(&TINY);
    let status = site.same(&format!(
        "{SOURCE}; source 100M > big; sha256sum big; dd if=big of=copy bs=333333 status=none; cmp big copy && echo same; dd if=big of=one bs=60M count=1 iflag=fullblock status=none; sha256sum one"
    ));
    assert!(status.count("write_bytes") >= 200 << 20, "{}", status.text);
}

#[test]
fn slow_lower_tiers_hold_the_writer_back() {
    let site = Site::new(&SLOW_NVME);
    site.same(&format!("{SOURCE}; source 60M > a & source 60M > b & wait; sha256sum a b"));
}

#[test]
fn overfull_tiers_with_a_lazy_flush() {
    let site = Site::new(&Setup { flush: "trigger = \"on-exit\"", ..TINY });
    site.same(&format!(
        "{SOURCE}; source 40M > big; for i in $(seq 40); do source 700K > small-$i; done; cat small-* | sha256sum; dd if=/dev/zero of=big bs=100K seek=5 count=20 conv=notrunc status=none; sha256sum big"
    ));
}

#[test]
#[ignore = "takes a minute and 9 GB of disk"]
fn four_gigabytes_pass_through_the_usual_tiers() {
    let site = Site::new(&USUAL);
    site.same(&format!(
        "{SOURCE}; source 4G > big; sha256sum big; cp big copy; cmp big copy && echo same; rm copy"
    ));
}
