//! Directories that only others may write, such as shared data sets.

use crate::harness::{NOBODY, SLOW_STORE, Site, as_user, sees};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

#[test]
fn a_data_set_of_another_user_is_read_from_the_tiers() {
    let site = Site::new(&SLOW_STORE);
    if !site.share() {
        return;
    }
    for folder in [&site.nvme, &site.out, &site.runtime()] {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let (data, open, secret) =
        (site.store.join("data"), site.store.join("open"), site.store.join("secret"));
    fs::write(&data, "sample\n".repeat(200_000)).unwrap();
    fs::write(&open, "first\n").unwrap();
    fs::write(&secret, "not for all\n").unwrap();
    mode(&data, 0o644);
    mode(&open, 0o666);
    mode(&secret, 0o600);
    mode(&site.store, 0o755);
    let script = "for epoch in 1 2 3 4; do cmp data - < $OUT/copy || exit 1; done
        ! echo more >> data || exit 2
        ! : > new || exit 3
        ! rm -f data || exit 4
        ! cat secret || exit 5
        echo second >> open; cat open > $OUT/open
        $FOREBAY status";
    fs::copy(&data, site.out.join("copy")).unwrap();
    let mut command = site.buffered(&["bash", "-c", script]);
    as_user(&mut command, NOBODY);
    let ran = site.end(command).expect(0);
    assert_eq!(sees(&site.out.join("open")), "first\nsecond\n");
    assert_eq!(sees(&open), "first\nsecond\n");
    assert_eq!(fs::read(&data).unwrap(), fs::read(site.out.join("copy")).unwrap());
    let of = |name: &str| -> u64 {
        let mut lines = ran.stdout.lines().map(|line| line.split_whitespace());
        let count = lines.find_map(|mut words| {
            (words.next() == Some("count") && words.next() == Some(name)).then(|| words.next())
        });
        count.flatten().unwrap().parse().unwrap()
    };
    // Of four times its size, the store was read twice at most.
    assert!(of("read_bytes") >= 2 * 1_400_000, "{}", ran.stdout);
}
