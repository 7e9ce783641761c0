//! Links leave no descriptor behind. Alone in its process, for others would change the count.

mod support;

use forebay_fabric::Down;
use support::{Subject, numbered};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_links_leave_nothing() {
    const FAULTS: Option<&str> = Some("send delay 10us every 3");
    let subjects =
        [Subject::tls(None), Subject::memory(None), Subject::tls(FAULTS), Subject::memory(FAULTS)];
    #[cfg(feature = "ucx")]
    let subjects = subjects.into_iter().chain([Subject::ucx(None)]);
    for mut subject in subjects {
        subject.pair();
        let before = open_descriptors();
        for number in 0..1000 {
            let (ours, theirs) = subject.link(0, 1);
            subject.send(0, ours, &numbered(number), &[]);
            if number % 2 == 0 {
                assert_eq!(subject.message(1).0.request, number);
            }
            let (closes, other, link) = if number % 4 < 2 { (0, 1, ours) } else { (1, 0, theirs) };
            let at_other = if closes == 0 { theirs } else { ours };
            subject.nodes[closes].close(link);
            assert_eq!(subject.down(other), (at_other, Down::Closed));
            subject.events[1].clear();
        }
        let links = [0, 1].map(|node| subject.nodes[node].counters().links);
        assert_eq!(links, [1, 1]);
        assert_eq!(open_descriptors(), before, "{}", subject.nodes[0].name());
    }
}
