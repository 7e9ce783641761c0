//! The forms of calls that the C library's headers choose do what the plain ones do.

use crate::harness::{LAZY, SLOW_STORE, Site};

#[test]
fn every_form_of_a_call_does_the_same() {
    for setup in [&LAZY, &SLOW_STORE] {
        let site = Site::new(setup);
        if site.compile("aliases.c", &["-ldl", "-lutil"]) {
            site.same("$BIN/aliases");
        }
    }
}
