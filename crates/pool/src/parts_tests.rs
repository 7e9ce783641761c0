//! The table of leases of parts, in a pool.

use crate::FileId;
use crate::layout::{Geometry, PART_LEASES};
use crate::parts::{Part, PartLevel, PartWord};
use crate::segment::anonymous;
use rustix::io::Errno;

#[test]
fn what_is_granted_is_found_until_it_is_removed() {
    let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20])).unwrap();
    let leases = segment.part_leases();
    let (file, other) = (FileId::from_raw(0), FileId::from_raw(1));
    let parts = [Part::from_raw(0), Part::from_raw(1), Part::SIZE];
    for part in parts {
        assert_eq!(leases.load(file, part), PartWord::default());
        leases.insert(file, part).unwrap().grant(PartLevel::Write);
    }
    let word = leases.load(file, Part::SIZE);
    assert_eq!((word.level(), word.is_taken()), (PartLevel::Write, false));
    leases.find(file, Part::SIZE).unwrap().take_up();
    assert!(leases.load(file, Part::SIZE).is_taken());
    leases.find(file, Part::SIZE).unwrap().reduce(PartLevel::Read);
    assert_eq!(leases.load(file, Part::SIZE).level(), PartLevel::Read);
    leases.find(file, Part::SIZE).unwrap().grant(PartLevel::Write);
    assert!(!leases.load(file, Part::SIZE).is_taken(), "it is another grant");
    assert_eq!(leases.load(other, Part::SIZE), PartWord::default());
    leases.insert(other, Part::SIZE).unwrap();
    leases.remove(file, parts[1]);
    assert!(leases.find(file, parts[1]).is_none() && leases.find(file, parts[0]).is_some());
    leases.remove_all(file);
    assert_eq!(leases.all().collect::<Vec<_>>(), [(other, Part::SIZE)]);
}

#[test]
fn a_full_table_has_no_place_and_says_what_is_in_the_way() {
    let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20])).unwrap();
    let (leases, file) = (segment.part_leases(), FileId::from_raw(7));
    // Long runs of several files, one after the other, and next to each other.
    let run = (PART_LEASES / 8) as u32;
    let parts = |file, from| {
        (from..from + run).map(move |part| (FileId::from_raw(file), Part::from_raw(part)))
    };
    let others = [parts(1, 0), parts(2, 0), parts(1 << 19, 70_000), parts(3, run)];
    assert!(others.into_iter().flatten().all(|(file, part)| leases.insert(file, part).is_some()));
    let fits = (0..).take_while(|&part| leases.insert(file, Part::from_raw(part)).is_some());
    let next = Part::from_raw(fits.count() as u32);
    assert!(next.raw() > run / 2, "{next:?}");
    let (other, taken) = leases.in_the_way(file, next).next().unwrap();
    assert_ne!((other, taken), (file, next));
    leases.remove(other, taken);
    assert!(leases.insert(file, next).is_some());
}

#[test]
fn a_refusal_is_counted_and_is_no_lease() {
    let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20])).unwrap();
    let lease = segment.part_leases().insert(FileId::from_raw(7), Part::SIZE).unwrap();
    lease.grant(PartLevel::Read);
    for _ in 0..1 << 16 {
        let before = lease.load().refusals();
        lease.refuse(Errno::STALE);
        let word = lease.load();
        assert!(word.refusals() != before && word.refusals() != 0);
        assert_eq!((word.refused(), word.level()), (Errno::STALE, PartLevel::Read));
    }
}
