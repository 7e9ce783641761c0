//! Groups of real threads and sockets on one machine.

mod support;

use forebay_cluster::{Group, GroupConfig, GroupError, GroupStatus, Protocol, Standing};
use forebay_membership::{Card, GroupFile, HostList, Incarnation, Member, NodeId, Rank};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use support::{Site, Store, socket_of, wait, wait_agreed};

#[test]
fn a_group_of_one_makes_its_view_and_sends_no_packet() {
    let site = Site::of(1);
    let group = site.start(0);
    assert_ne!(group.rank(), Rank::Inside);
    let status = wait_agreed([&group]).remove(0);
    assert_eq!((status.view.0, status.me), (1, Member::new(0, 1)));
    // It looks on.
    let looks = |names: Vec<String>| {
        let cards = names.iter().filter_map(|name| GroupFile::of_name(name));
        cards
            .filter_map(|file| match file {
                GroupFile::Member(_, looks) => Some(looks),
                _ => None,
            })
            .max()
    };
    let before = looks(site.names());
    wait("more looks", [&group], |_| looks(site.names()) > before.map(|looks| looks + 3));
    let status = group.status();
    assert_eq!((status.packets.sent, status.packets.unsent), (0, 0));
    assert!(status.last_look.is_some() && status.store_error.is_none());
    let mut names = site.names();
    names.retain(|name| !name.starts_with("member.0.1."));
    names.sort();
    assert_eq!(names, ["secret", "view.1"]);
    group.stop();
    assert!(!site.folder.exists());
}

#[test]
fn the_last_one_that_stops_removes_the_folder() {
    let site = Site::of(3);
    let mut groups = site.start_all();
    wait_agreed(&groups);
    groups.remove(1).stop();
    // Others do not look for one that has left, and its next life has the next number.
    assert!(site.names().contains(&"left.1.1".to_owned()), "{:?}", site.names());
    wait_agreed(&groups);
    let again = site.start(1);
    assert_eq!(again.status().me, Member::new(1, 2));
    assert!(!site.names().contains(&"left.1.1".to_owned()), "{:?}", site.names());
    groups.insert(1, again);
    wait_agreed(&groups);
    groups.into_iter().for_each(Group::stop);
    assert!(!site.folder.exists());
    // One that was killed has not left: its group may go on.
    let mut groups = site.start_all();
    wait_agreed(&groups);
    drop(groups.remove(0));
    groups.into_iter().for_each(Group::stop);
    assert!(site.names().iter().any(|name| name.starts_with("member.0.1.")), "{:?}", site.names());
    // What no group has made stays.
    std::fs::write(site.folder.join("mine"), "").unwrap();
    site.start_all().into_iter().for_each(Group::stop);
    assert!(site.folder.join("mine").exists());
    std::fs::remove_file(site.folder.join("mine")).unwrap();
    site.start_all().into_iter().for_each(Group::stop);
    assert!(!site.folder.exists());
}

#[test]
fn starts_and_stops_at_once_lose_no_life_and_no_folder() {
    let site = Site::of(3);
    std::thread::scope(|scope| {
        for node in 0..3 {
            let site = &site;
            scope.spawn(move || {
                for _ in 0..30 {
                    site.start(node).stop();
                }
            });
        }
    });
    assert!(!site.folder.exists());
    let beside = std::fs::read_dir(site.folder.parent().unwrap()).unwrap();
    let beside: Vec<_> = beside.map(|entry| entry.unwrap().file_name()).collect();
    assert!(beside.is_empty(), "{beside:?}");
    let groups = site.start_all();
    wait_agreed(&groups);
}

#[test]
fn nodes_form_one_view() {
    for nodes in [2, 3, 5] {
        let site = Site::of(nodes);
        let groups = site.start_all();
        let statuses = wait_agreed(&groups);
        for (status, node) in statuses.iter().zip(0..) {
            assert_eq!(status.me, Member::new(node, 1));
            assert_eq!(status.nodes.len(), usize::from(nodes));
            assert!(status.acts_for > Duration::ZERO);
            for (other, number) in status.nodes.iter().zip(0..) {
                assert_eq!((other.node, &other.name), (NodeId(number), &format!("n{number}")));
                assert_eq!(other.incarnation, Some(Incarnation(1)));
                assert_eq!(other.address.is_some(), number != node);
            }
        }
        wait("all are up", &groups, |all| {
            all.iter().flat_map(|status| &status.nodes).all(|node| node.standing == Standing::Up)
        });
    }
}

#[test]
fn a_group_forms_where_each_tenth_packet_is_lost() {
    let mut site = Site::of(4);
    site.lost_each = 10;
    let groups = site.start_all();
    wait_agreed(&groups);
    wait("packets are lost", &groups, |all| all.iter().all(|status| status.packets.sent > 100));
    wait_agreed(&groups);
}

#[test]
fn a_group_that_has_ended_as_a_whole_begins_again() {
    let site = Site::of(3);
    let groups = site.start_all();
    let before = wait_agreed(&groups)[0].view.0;
    drop(groups);
    // One that is first makes the next view alone, when no member has looked for 2 T.
    let first = site.start(1);
    let view = wait_agreed([&first])[0].view.0;
    assert!(view > before);
    let groups = [site.start(0), first, site.start(2)];
    let statuses = wait_agreed(&groups);
    assert!(statuses.iter().all(|status| status.me.incarnation == Incarnation(2)));
}

#[test]
fn one_that_has_gone_is_left_out_and_taken_in_in_its_next_life() {
    let site = Site::of(4);
    let mut groups = site.start_all();
    // One never comes.
    drop(groups.remove(3));
    let before = wait_agreed(&groups)[0].view.0;
    drop(groups.remove(1));
    let statuses = wait_agreed(&groups);
    assert!(statuses[0].view.0 > before);
    wait("it is left out", &groups, |all| {
        all.iter().all(|status| status.nodes[1].standing == Standing::LeftOut)
    });
    groups.insert(1, site.start(1));
    let statuses = wait_agreed(&groups);
    let seat = statuses[0].nodes[1].seat.unwrap();
    assert_eq!(seat.member, Member::new(1, 2));
    assert!(seat.since > before);
    assert_eq!(statuses[1].seat, Some(seat));
}

#[test]
fn one_that_is_started_again_at_once_is_a_later_life() {
    let site = Site::of(3);
    let mut groups = site.start_all();
    wait_agreed(&groups);
    for incarnation in 2..5 {
        drop(groups.remove(0));
        groups.insert(0, site.start(0));
        assert_eq!(groups[0].status().me, Member::new(0, incarnation));
        wait_agreed(&groups);
    }
    assert_eq!(site.names().iter().filter(|name| name.starts_with("member.0.")).count(), 1);
}

#[test]
fn one_that_does_not_reach_the_store_is_fenced_until_it_does() {
    let site = Site::of(3);
    let groups = site.start_all();
    wait_agreed(&groups);
    for store in [Store::Fails, Store::Hangs] {
        site.set_store(2, store);
        wait("it is fenced", [&groups[2]], |all| all[0].rank == Rank::Fenced);
        assert_eq!(groups[2].rank(), Rank::Fenced);
        assert_eq!(groups[2].status().acts_for, Duration::ZERO);
        if store == Store::Fails {
            let error = groups[2].status().store_error.unwrap();
            assert!(error.lasts);
            assert!(error.error.to_string().contains("/group: injected"), "{}", error.error);
        }
        site.set_store(2, Store::Good);
        wait_agreed(&groups);
    }
    wait("the error is over", [&groups[2]], |all| {
        all[0].store_error.as_ref().is_some_and(|error| !error.lasts)
    });
    // A slow store fences none while two looks fit into the time for which one is valid.
    site.set_store(2, Store::Slow(Duration::from_millis(20)));
    wait("a slow look", [&groups[2]], |all| {
        all[0].rank == Rank::Inside
            && all[0].last_look.is_some_and(|look| look.took >= Duration::from_millis(20))
    });
}

#[test]
fn several_threads_may_use_a_group() {
    let site = Site::of(1);
    let group = site.start(0);
    let (rank, status) = std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait_agreed([&group]).remove(0));
        while group.rank() != Rank::Inside && !waits.is_finished() {
            std::thread::yield_now();
        }
        (group.rank(), waits.join().unwrap())
    });
    assert_ne!(rank, Rank::Outside);
    assert_eq!(status.view.0, 1);
}

#[test]
fn a_store_that_hangs_holds_no_stop_up() {
    let site = Site::of(1);
    let group = site.start(0);
    wait_agreed([&group]);
    site.set_store(0, Store::Hangs);
    wait("it is fenced", [&group], |all| all[0].rank == Rank::Fenced);
    let begin = Instant::now();
    group.stop();
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn of_a_split_group_the_majority_goes_on_and_all_are_one_when_it_heals() {
    let site = Site::of(5);
    let groups = site.start_all();
    let before = wait_agreed(&groups)[0].view.0;
    site.set_side(&[0, 1], 1);
    let statuses = wait_agreed(&groups[2..]);
    assert!(statuses[0].view.0 > before);
    wait("the others see that they are left out", &groups[..2], |all| {
        all.iter().all(|status| status.rank == Rank::Outside)
    });
    site.heal();
    let statuses = wait_agreed(&groups);
    // Those that were away have other seats, and the others have kept theirs.
    let since = |node: usize| statuses[0].nodes[node].seat.unwrap().since;
    assert!([0, 1].into_iter().all(|node| since(node) > before));
    assert!(statuses.iter().all(|status| status.me.incarnation == Incarnation(1)));
}

#[test]
fn those_of_a_large_group_ask_one_that_looks() {
    let mut site = Site::of(5);
    site.times.looked_for = 2;
    let groups = site.start_all();
    wait_agreed(&groups);
    // Longer than a look is valid.
    let old = Duration::from_millis(2 * site.times.valid);
    for asker in [1, 3] {
        wait("it acts on the look of another", [&groups[asker]], |all| {
            all[0].rank == Rank::Inside && all[0].last_look.is_some_and(|look| look.ago > old)
        });
    }
    // Where the one that looks is gone, they look themselves.
    let groups = {
        let mut groups = groups;
        drop(groups.remove(2));
        groups
    };
    wait_agreed(&groups);
}

/// The card of a life of this build.
fn card(life: Member, address: &str, host: &str) -> Card {
    let terms = format!("protocol/{}", Protocol::of_this_build().version);
    Card::new(life, address, host).unwrap().with_terms(&terms).unwrap()
}

#[test]
fn others_are_found_by_the_names_of_their_hosts() {
    let site = Site::of(3);
    let bind = Ipv4Addr::UNSPECIFIED.into();
    let host = || "localhost".to_owned();
    let start = |node| Group::start(GroupConfig { bind, host: host(), ..site.config(node) });
    let groups = [start(0).unwrap(), start(1).unwrap()];
    let statuses = wait_agreed(&groups);
    let port = |status: &GroupStatus| status.address.strip_prefix("udp/localhost:").map(str::parse);
    let address = statuses[0].nodes[1].address.unwrap();
    assert_eq!(Some(Ok(address.port())), port(&statuses[1]));
    assert!(address.ip().is_loopback());
    // A card whose address is of no use is told, and stops nothing.
    for (address, why) in [("udp/n2", "udp/n2: "), ("tls/127.0.0.1:1", "no part begins with udp/")]
    {
        let life = Member::new(2, 1);
        let card = card(life, address, "n2");
        std::fs::write(site.folder.join("member.2.1.0"), card.to_text()).unwrap();
        wait("the error is told", &groups, |all| {
            all.iter().all(|status| {
                let error = status.card_error.as_ref().map(|error| error.error.to_string());
                error.is_some_and(|error| error.contains(why))
            })
        });
    }
    wait_agreed(&groups);
}

/// A packet that a node has signed for another, whose card says that it is here.
fn capture(site: &Site, life: Member, from: u16) -> (UdpSocket, Vec<u8>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let address = format!("udp/{}", socket.local_addr().unwrap());
    let card = card(life, &address, &format!("n{}", life.node.0));
    let name = GroupFile::Member(life, 0).to_string();
    std::fs::write(site.folder.join(name), card.to_text()).unwrap();
    let mut packet = vec![0; 2000];
    let length = loop {
        let (length, _) = socket.recv_from(&mut packet).expect("a packet comes");
        if packet[2..4] == from.to_le_bytes() {
            break length;
        }
    };
    packet.truncate(length);
    (socket, packet)
}

#[test]
fn rubbish_changed_and_strange_packets_are_counted_and_change_nothing() {
    let site = Site::of(2);
    let group = site.start(0);
    let status = wait_agreed([&group]).remove(0);
    let to = socket_of(&group);
    let (socket, good) = capture(&site, Member::new(1, 1), 0);

    let seed = 0x7061_636b;
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut sent = 0;
    let mut send = |packet: &[u8]| {
        sent += 1;
        socket.send_to(packet, to).unwrap();
        // The socket holds a few hundred.
        wait("it is counted", [&group], |all| all[0].packets.dropped() == sent);
    };
    // For another node, without a change.
    send(&good);
    assert_eq!(group.status().packets.astray, 1);
    for at in 0..good.len() {
        let mut changed = good.clone();
        changed[at] ^= random.random_range(1..=u8::MAX);
        send(&changed);
    }
    let counted = group.status().packets;
    assert_eq!((counted.version, counted.group, counted.astray), (1, 8, 1));
    assert_eq!(counted.sum, good.len() as u64 - 9);
    for _ in 0..100 {
        let length = random.random_range(0..200);
        let rubbish: Vec<u8> = (0..length).map(|_| random.random_range(2..=u8::MAX)).collect();
        send(&rubbish);
    }
    let counted = group.status().packets;
    assert!(counted.malformed > 0 && counted.version > 1, "{counted:?}");
    assert_eq!((counted.taken, counted.own, counted.unlisted), (0, 0, 0));

    // Another group, which is told that a node of its own is at this address.
    let other = Site::of(2);
    let stranger = other.start(0);
    let card = card(Member::new(1, 1), &group.status().address, "n1");
    std::fs::write(other.folder.join("member.1.1.0"), card.to_text()).unwrap();
    wait("packets of the other group", [&group], |all| all[0].packets.group > counted.group);
    wait_agreed([&stranger]);

    let after = wait_agreed([&group]).remove(0);
    assert_eq!((after.view.0, after.seat), (status.view.0, status.seat));
    assert_eq!(after.nodes[1].standing, Standing::NeverHeard);
}

#[test]
fn packets_of_an_earlier_life_and_of_hosts_that_are_not_listed_change_nothing() {
    let site = Site::of(2);
    let early = site.start(1);
    let (socket, packet) = capture(&site, Member::new(0, 1), 1);
    drop(early);
    let groups = site.start_all();
    let statuses = wait_agreed(&groups);
    assert!(statuses.iter().all(|status| status.me.incarnation == Incarnation(2)));
    assert_eq!(statuses[0].packets.outdated, 0);
    socket.send_to(&packet, socket_of(&groups[0])).unwrap();
    wait("it is outdated", [&groups[0]], |all| all[0].packets.outdated == 1);

    let hosts = HostList::of_expression("n[0-2]").unwrap();
    let stranger = Group::start(GroupConfig { hosts, ..site.config(2) }).unwrap();
    // It is named, and no packet of it is taken for one of the group.
    wait("one that is not listed", &groups, |all| {
        all.iter().all(|status| refusals(status).len() == 1)
    });
    let statuses = wait_agreed(&groups);
    assert!(statuses.iter().all(|status| status.nodes[1].incarnation == Some(Incarnation(2))));
    assert_eq!(stranger.rank(), Rank::Outside);
}

#[test]
fn two_hosts_with_one_number_are_an_error_that_names_both() {
    let site = Site::of(2);
    let group = site.start(0);
    wait_agreed([&group]);
    let other = GroupConfig { host: "m0".to_owned(), ..site.config(0) };
    let error = Group::start(other).err().expect("it is refused");
    assert!(matches!(error, GroupError::Taken { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("host n0 runs as node 0, which m0 is to be"), "{said}");
    assert!(said.contains("list of hosts"), "{said}");
    wait_agreed([&group]);
    // When that host has ended, also by a crash, the other may have its number.
    drop(group);
    let other = GroupConfig { host: "m0".to_owned(), ..site.config(0) };
    let other = Group::start(other).unwrap();
    assert_eq!(wait_agreed([&other])[0].me, Member::new(0, 2));
}

/// What a node says of why others are of another group.
fn refusals(status: &GroupStatus) -> Vec<String> {
    let nodes = status.nodes.iter().filter_map(|node| node.refused.as_ref());
    nodes.chain(&status.stranger).map(GroupError::to_string).collect()
}

#[test]
fn nodes_with_other_consistency_are_named_on_both_sides() {
    let site = Site::of(3);
    let of = |node, consistency| GroupConfig { consistency, ..site.config(node) };
    let groups = [Group::start(of(0, "auto")).unwrap(), Group::start(of(1, "auto")).unwrap()];
    wait_agreed(&groups);
    let other = Group::start(of(2, "strict")).unwrap();
    let said = |host: &str, theirs: &str, ours: &str| {
        format!(
            "host {host} has consistency = {theirs:?}, this one {ours:?}: give all nodes of the \
             group the same consistency in [group]"
        )
    };
    wait("both sides say so", groups.iter().chain([&other]), |all| {
        let wanted = [said("n0", "auto", "strict"), said("n1", "auto", "strict")];
        all[..2].iter().all(|one| refusals(one) == [said("n2", "strict", "auto")])
            && refusals(&all[2]) == wanted
    });
    assert_ne!(other.rank(), Rank::Inside);
    let other_status = other.status();
    assert!(other_status.links.is_empty(), "{other_status:?}");
    wait_agreed(&groups);
    // Its next life may be of the group again, and nothing is said of it then.
    other.stop();
    let again = Group::start(of(2, "auto")).unwrap();
    let statuses = wait_agreed(groups.iter().chain([&again]));
    assert!(statuses.iter().all(|status| refusals(status).is_empty()), "{statuses:?}");
}

#[test]
fn nodes_of_builds_with_other_messages_are_named_on_both_sides() {
    let site = Site::of(3);
    let of = |node, protocol: &Protocol| {
        let protocol = protocol.clone();
        GroupConfig { protocol, ..site.config(node) }
    };
    let own = Protocol::of_this_build();
    let groups = [Group::start(of(0, &own)).unwrap(), Group::start(of(1, &own)).unwrap()];
    wait_agreed(&groups);
    let later = Protocol { build: "9.1.0".to_owned(), version: format!("{}.1", own.version) };
    let other = Group::start(of(2, &later)).unwrap();
    let said = |host: &str, theirs: &Protocol, ours: &Protocol| {
        format!(
            "host {host} has {theirs}, this one {ours}: install the same build of Forebay on all \
             nodes of the group"
        )
    };
    wait("both sides say so", groups.iter().chain([&other]), |all| {
        let wanted = [said("n0", &own, &later), said("n1", &own, &later)];
        all[..2].iter().all(|one| refusals(one) == [said("n2", &later, &own)])
            && refusals(&all[2]) == wanted
    });
    assert_ne!(other.rank(), Rank::Inside);
    assert!(other.status().links.is_empty());
    wait_agreed(&groups);
    other.stop();
    // Another build with the same messages is of the group.
    let again = Protocol { build: "9.2.0".to_owned(), ..own };
    let again = Group::start(of(2, &again)).unwrap();
    let statuses = wait_agreed(groups.iter().chain([&again]));
    assert!(statuses.iter().all(|status| refusals(status).is_empty()), "{statuses:?}");
}

#[test]
fn lists_of_different_length_that_meet_are_named_on_both_sides() {
    let site = Site::of(2);
    let groups = site.start_all();
    wait_agreed(&groups);
    let hosts = HostList::of_expression("n[0-2]").unwrap();
    let me = NodeId(2);
    let long = GroupConfig { hosts, me, host: "n2".to_owned(), ..site.config(1) };
    let other = Group::start(long).unwrap();
    let remedy = "give all nodes of the group the same list of hosts, in one order, or each group \
         a folder of its own";
    let said = |host, theirs, ours| {
        let lists = format!("has a list of {theirs} hosts, this one a list of {ours}");
        format!("host {host} {lists}: {remedy}")
    };
    wait("both sides say so", groups.iter().chain([&other]), |all| {
        all[..2].iter().all(|one| refusals(one) == [said("n2", 3, 2)])
            && refusals(&all[2]) == [said("n0", 2, 3), said("n1", 2, 3)]
    });
    assert_ne!(other.rank(), Rank::Inside);
    other.stop();
    wait_agreed(&groups);
}

#[test]
fn one_that_has_ended_by_itself_is_shown_so() {
    let site = Site::of(3);
    let mut groups = site.start_all();
    wait_agreed(&groups);
    groups.remove(1).stop();
    wait_agreed(&groups);
    let is_left = |status: &GroupStatus| status.nodes[1].standing == Standing::Left;
    wait("all show it", &groups, |all| all.iter().all(is_left));
    // So does one that comes later, and has never heard it.
    groups.pop().unwrap().stop();
    groups.push(site.start(2));
    wait("the later one, too", &groups, |all| all.iter().all(is_left));
    groups.insert(1, site.start(1));
    let statuses = wait_agreed(&groups);
    assert!(statuses.iter().all(|status| status.nodes[1].standing == Standing::Up));
}

#[test]
fn ports_that_other_programs_have_are_passed_over() {
    let site = Site::of(2);
    let first = site.start(0);
    let at = socket_of(&first);
    let next = |more| SocketAddr::new(at.ip(), at.port() + more);
    // All nodes of this site have one address here, so the next ones are tried anyway.
    let _udp = UdpSocket::bind(next(1)).unwrap();
    let _tcp = TcpListener::bind(next(2)).unwrap();
    let second = site.start(1);
    assert_eq!(socket_of(&second), next(3));
    wait_agreed([&first, &second]);
}

#[test]
fn a_later_life_ends_the_earlier_one_that_still_runs() {
    let site = Site::of(1);
    let group = site.start(0);
    wait_agreed([&group]);
    let later = site.start(0);
    wait_agreed([&later]);
    let status = wait("it may not act", [&group], |all| all[0].rank != Rank::Inside).remove(0);
    let error = status.store_error.unwrap().error.to_string();
    assert!(error.contains("life 2 of this node has begun"), "{error}");
    assert_eq!(later.rank(), Rank::Inside);
}

#[test]
fn what_cannot_begin_says_why() {
    let site = Site::of(2);
    let error = site.try_start(2).err().unwrap();
    assert_eq!(error, GroupError::Unlisted { node: NodeId(2), hosts: 2 });
    std::fs::create_dir(&site.folder).unwrap();
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&site.folder, mode(0o777)).unwrap();
    let said = site.try_start(0).err().unwrap().to_string();
    assert!(said.contains("has mode 0777: others may write it; chmod 700"), "{said}");
    std::fs::set_permissions(&site.folder, mode(0o700)).unwrap();
    std::fs::write(site.folder.join("secret"), [0; 32]).unwrap();
    std::fs::set_permissions(site.folder.join("secret"), mode(0o644)).unwrap();
    let said = site.try_start(0).err().unwrap().to_string();
    assert!(said.contains("/group/secret: has mode 0644, not 0600"), "{said}");
    std::fs::remove_file(site.folder.join("secret")).unwrap();
    wait_agreed([&site.start(0)]);
}
