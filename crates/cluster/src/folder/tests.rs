use super::life::Proposed;
use super::*;
use forebay_membership::{Found, Incarnation, NodeId, Seat};
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// No test here takes that long.
const VALID: Duration = Duration::from_secs(3600);

struct Store {
    _store: TempDir,
    path: PathBuf,
}

impl Store {
    fn new() -> Self {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join("group");
        Self { _store: store, path }
    }

    fn open(&self) -> GroupFolder {
        GroupFolder::open(&self.path).unwrap()
    }

    fn begin(&self, node: u16) -> Life {
        let host = format!("n{node}");
        self.open().begin(NodeId(node), &host, ("udp/n:1", ""), VALID).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.path).unwrap();
        let mut names: Vec<_> =
            names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn set_mode(&self, name: &str, mode: u32) {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path.join(name), mode).unwrap();
    }
}

fn view(number: u32, members: &[Member]) -> View {
    let seats = members.iter().map(|member| Seat { member: *member, since: 1 });
    View { number, seats: seats.collect(), ..View::default() }
}

fn said<T>(refused: Result<T, GroupError>) -> String {
    refused.err().expect("it is refused").to_string()
}

#[test]
fn a_folder_is_this_users_alone() {
    let store = Store::new();
    drop(store.open());
    let mode = std::fs::metadata(&store.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    for mode in [0o770, 0o702] {
        store.set_mode("", mode);
        let why = said(GroupFolder::open(&store.path));
        assert!(why.contains("others may write") && why.contains("/group"), "{why}");
    }
    store.set_mode("", 0o755);
    drop(store.open());

    let beside = store.path.with_file_name("beside");
    symlink(&store.path, &beside).unwrap();
    assert!(said(GroupFolder::open(&beside)).contains("symbolic link"));
    let file = store.path.with_file_name("file");
    std::fs::write(&file, "").unwrap();
    assert!(said(GroupFolder::open(&file)).contains("no folder"));
    assert!(said(GroupFolder::open(&file.join("group"))).contains("/file/group: making"));
}

#[test]
fn what_belongs_to_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED what_belongs_to_another_user_is_refused: only root gives files away");
        return;
    }
    let store = Store::new();
    store.open().secret().unwrap();
    std::os::unix::fs::chown(store.path.join("secret"), Some(1), None).unwrap();
    let why = said(store.open().secret());
    assert!(why.contains("secret: belongs to user 1"), "{why}");
    std::os::unix::fs::chown(&store.path, Some(1), None).unwrap();
    let why = said(GroupFolder::open(&store.path));
    assert!(why.contains("group: belongs to user 1"), "{why}");
}

#[test]
fn all_that_begin_at_once_have_one_secret_and_lives_of_their_own() {
    let store = Store::new();
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let path = store.path.clone();
            std::thread::spawn(move || {
                let folder = GroupFolder::open(&path).unwrap();
                let secret = folder.secret().unwrap();
                let life = folder.begin(NodeId(3), "n3", ("udp/n3:1", ""), VALID);
                (secret, life.map(|life| life.me()))
            })
        })
        .collect();
    let begun: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    assert!(begun.iter().all(|(secret, _)| *secret == begun[0].0));
    assert_ne!(begun[0].0, [0; 32]);
    let mut lives: Vec<_> = begun.into_iter().map(|(_, life)| life.unwrap().incarnation).collect();
    lives.sort();
    lives.dedup();
    assert_eq!(lives.len(), 8, "{lives:?}");
    let newest = format!("member.3.{}.0", lives[7].0);
    assert!(store.names().contains(&newest), "{:?}", store.names());
    assert!(!store.names().iter().any(|name| name.starts_with("tmp.secret.")));
}

#[test]
fn a_secret_of_another_mode_or_length_is_refused() {
    let store = Store::new();
    let secret = store.open().secret().unwrap();
    assert_eq!(store.open().secret().unwrap(), secret);
    assert_eq!(store.names(), ["secret"]);
    for mode in [0o640, 0o604, 0o400, 0o700] {
        store.set_mode("secret", mode);
        let why = said(store.open().secret());
        assert!(why.contains(&format!("secret: has mode {mode:04o}")), "{why}");
    }
    store.set_mode("secret", 0o600);
    for length in [0, 31, 33] {
        std::fs::write(store.path.join("secret"), vec![1; length]).unwrap();
        let why = said(store.open().secret());
        assert!(why.contains(&format!("has {length} bytes")), "{why}");
    }
    std::fs::remove_file(store.path.join("secret")).unwrap();
    std::fs::create_dir(store.path.join("secret")).unwrap();
    said(store.open().secret());
    std::fs::remove_dir(store.path.join("secret")).unwrap();
    // What one that died has left is taken away with the next start.
    std::fs::write(store.path.join("tmp.secret.0"), "x").unwrap();
    assert_ne!(store.open().secret().unwrap(), secret);
    assert_eq!(store.names(), ["secret"]);
}

#[test]
fn each_life_is_above_all_before() {
    let store = Store::new();
    assert_eq!(store.begin(5).me(), Member::new(5, 1));
    assert_eq!(store.names(), ["member.5.1.0"]);
    let mut life = store.begin(5);
    life.look(false).unwrap();
    let other = store.begin(7);
    assert_eq!(store.names(), ["member.5.2.1", "member.7.1.0"]);
    // The view knows of one whose card is gone, and old files are not this life's.
    assert_eq!(life.propose(&view(1, &[Member::new(5, 9)])), Ok(Proposed::Won));
    std::fs::write(store.path.join("tmp.5.2.0123"), "x").unwrap();
    std::fs::write(store.path.join("tmp.7.1.0123"), "x").unwrap();
    assert_eq!(store.begin(5).me(), Member::new(5, 10));
    assert_eq!(store.names(), ["member.5.10.0", "member.7.1.0", "tmp.7.1.0123", "view.1"]);
    // The earlier one looks no more, and is told why.
    let why = said(life.look(false));
    assert!(why.contains("member.5.2.1: is gone: life 10"), "{why}");
    drop(other);
    let last = Card::new(Member::new(9, u32::MAX), "udp/n:1", "n9").unwrap();
    std::fs::write(store.path.join("member.9.4294967295.0"), last.to_text()).unwrap();
    let why = said(store.open().begin(NodeId(9), "n9", ("udp/n:1", ""), VALID));
    assert!(why.contains("all its lives"), "{why}");
}

#[test]
fn a_look_counts_first_and_finds_the_newest_view() {
    let store = Store::new();
    let (mut one, mut two) = (store.begin(1), store.begin(2));
    assert_eq!(one.look(true), Ok(Found::default()));
    let members = [one.me(), two.me()];
    for number in 1..=50 {
        assert_eq!(one.propose(&view(number, &members)), Ok(Proposed::Won));
        assert_eq!(two.propose(&view(number, &members)), Ok(Proposed::Lost));
    }
    let views = store.names().into_iter().filter(|name| name.starts_with("view.")).count();
    assert_eq!(views, 32);
    assert!(!store.names().iter().any(|name| name.starts_with("tmp.")));
    let newest = Some(Arc::new(view(50, &members)));
    // Looks of members are counted where the folder is listed.
    let found = |looks| Found { newest: newest.clone(), looks, ..Found::default() };
    assert_eq!(one.look(true), Ok(found(2)));
    assert_eq!(two.look(true), Ok(found(3)));
    assert_eq!(two.look(false), Ok(found(0)));
    assert_eq!(two.look(true), Ok(found(5)));

    two.plead(50).unwrap();
    two.plead(50).unwrap();
    assert_eq!(one.look(true).unwrap().pleas, [NodeId(2)]);
    assert_eq!(one.look(false).unwrap().pleas, []);
    assert_eq!(one.propose(&view(51, &members)), Ok(Proposed::Won));
    assert!(!store.names().contains(&"plea.50.2".to_owned()));
    // A look goes up by as many as there are.
    assert_eq!(one.propose(&view(52, &members)), Ok(Proposed::Won));
    assert_eq!(two.look(false).unwrap().newest.map(|view| view.number), Some(52));
}

#[test]
fn one_that_has_not_looked_for_long_believes_no_number_that_was_free_again() {
    let store = Store::new();
    let mut one = store.begin(1);
    // Its looks are over at once.
    let mut two = store.open().begin(NodeId(2), "n2", ("udp/n:1", ""), Duration::ZERO).unwrap();
    let mut late = store.open().begin(NodeId(3), "n3", ("udp/n:1", ""), Duration::ZERO).unwrap();
    let members = [one.me(), two.me(), late.me()];
    let mut make = |number| assert_eq!(one.propose(&view(number, &members)), Ok(Proposed::Won));
    (1..=5).for_each(&mut make);
    for life in [&mut two, &mut late] {
        assert_eq!(life.look(false).unwrap().newest.unwrap().number, 5);
    }
    (6..=60).for_each(make);
    // Proposals that were under way all the time.
    for number in [5, 6] {
        let name = format!("view.{number}");
        let link = late.propose(&view(number, &members[2..]));
        assert_eq!(link, Ok(Proposed::Won), "{name} was removed");
    }
    for life in [&mut two, &mut late] {
        assert_eq!(life.look(false).unwrap().newest, Some(Arc::new(view(60, &members))));
    }
}

#[test]
fn a_rename_whose_answer_was_lost_is_not_an_end() {
    let store = Store::new();
    let mut life = store.begin(4);
    life.look(false).unwrap();
    let path = |looks| store.path.join(format!("member.4.1.{looks}"));
    std::fs::rename(path(1), path(2)).unwrap();
    life.look(false).unwrap();
    assert!(path(3).exists());
    std::fs::remove_file(path(3)).unwrap();
    let why = said(life.look(false));
    assert!(why.contains("member.4.1.3: is gone: was the folder emptied"), "{why}");
}

#[test]
fn a_view_that_cannot_be_or_goes_back_is_an_error_that_names_it() {
    let store = Store::new();
    let mut life = store.begin(4);
    let members = [life.me()];
    for number in 1..=2 {
        assert_eq!(life.propose(&view(number, &members)), Ok(Proposed::Won));
    }
    life.look(false).unwrap();
    std::fs::write(store.path.join("view.3"), "forebay view 1\n").unwrap();
    let why = said(life.look(false));
    assert!(why.contains("view.3: its checksum"), "{why}");
    std::fs::remove_file(store.path.join("view.3")).unwrap();
    life.look(false).unwrap();
    std::fs::remove_file(store.path.join("view.2")).unwrap();
    let why = said(life.look(true));
    assert!(why.contains("view.2: was there, and the newest is number 1"), "{why}");
}

#[test]
fn cards_are_found_once_and_again_in_a_later_life() {
    let store = Store::new();
    let one = store.begin(1);
    let lives = [store.begin(2), store.begin(3)];
    let mut wanted: BTreeMap<_, _> = [2, 3, 4].map(|node| (NodeId(node), Known::default())).into();
    let found = |wanted: &BTreeMap<_, _>, most| {
        let (cards, error) = one.find(wanted, 5, most);
        assert!(cards.iter().all(|(_, is_left)| !is_left));
        (cards.into_iter().map(|(card, _)| card.member()).collect::<Vec<_>>(), error)
    };
    assert_eq!(found(&wanted, 9), (lives.iter().map(Life::me).collect(), None));
    assert_eq!(found(&wanted, 1), (vec![lives[0].me()], None));
    let first = Some(Incarnation(1));
    wanted.insert(NodeId(2), Known { card: first, left: None });
    assert_eq!(found(&wanted, 9), (vec![lives[1].me()], None));
    let later = store.begin(2);
    // One that cannot be read hides no other.
    std::fs::write(store.path.join("member.3.1.0"), "rubbish").unwrap();
    let (cards, error) = found(&wanted, 9);
    assert_eq!(cards, [later.me()]);
    assert!(error.unwrap().to_string().contains("member.3.1.0"));

    // Of one that has ended, too, until it begins again; and of those that no list has.
    std::fs::remove_file(store.path.join("member.3.1.0")).unwrap();
    store.begin(4).leave().unwrap();
    let of = |(card, is_left): &(Card, bool)| (card.member(), *is_left);
    let (cards, _) = one.find(&wanted, 5, 9);
    assert_eq!(
        cards.iter().map(of).collect::<Vec<_>>(),
        [(Member::new(2, 2), false), (Member::new(4, 1), true)]
    );
    // Its card may have been read while it lived; that it has ended is found once.
    for (left, count) in [(None, 2), (first, 1)] {
        wanted.insert(NodeId(4), Known { card: first, left });
        assert_eq!(one.find(&wanted, 5, 9).0.len(), count, "{left:?}");
    }
    store.begin(4);
    let (cards, _) = one.find(&BTreeMap::new(), 3, 9);
    assert_eq!(cards.iter().map(of).collect::<Vec<_>>(), [(Member::new(4, 2), false)]);
}

#[test]
fn a_number_is_another_hosts_while_that_lives() {
    let store = Store::new();
    let mut other = store.begin(6);
    let path = store.path.clone();
    let watch = Duration::from_secs(20);
    let begins = std::thread::spawn(move || {
        let folder = GroupFolder::open(&path).unwrap();
        folder.begin(NodeId(6), "m6", ("udp/m6:1", ""), watch).map(|life| life.me())
    });
    while !begins.is_finished() {
        other.look(false).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let why = said(begins.join().unwrap());
    assert!(why.contains("host n6 runs as node 6, which m6 is to be"), "{why}");
    // One that does not look has ended.
    let watch = Duration::from_millis(50);
    let life = store.open().begin(NodeId(6), "m6", ("udp/m6:1", ""), watch).unwrap();
    assert_eq!(life.me(), Member::new(6, 2));
    let why = said(other.look(false));
    assert!(why.contains("host m6 runs as node 6, which n6 is to be"), "{why}");
}
