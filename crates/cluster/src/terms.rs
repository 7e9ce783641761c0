//! What all nodes of a group have to have alike, and what is said of one that has not.
//!
//! It is in each node's card, for people to be told, and in the keys of packets, so that nodes that
//! differ do not hear each other before a card was read.

use crate::error::GroupError;
use crate::protocol::Protocol;
use forebay_membership::HostList;
use std::fmt;

/// Of one node. `Display` writes what has to be alike.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    protocol: Protocol,
    /// How many hosts its list has, and the sum of their names.
    hosts: (usize, u32),
    /// The name of what its programs see of other nodes' files; empty where that is not to be
    /// alike.
    consistency: &'static str,
    /// The sum of the rules that say so of single files; 0 without any.
    rules: u32,
}

impl Terms {
    pub fn of(protocol: Protocol, hosts: &HostList, consistency: &'static str, rules: u32) -> Self {
        Self { protocol, hosts: (hosts.names().len(), hosts.sum()), consistency, rules }
    }

    /// What the card says: what has to be alike, and what people are told.
    pub fn in_card(&self) -> String {
        format!("{self};build/{}", self.protocol.build)
    }

    /// Why the node of this host, whose card says these terms, is of another build with which this
    /// one forms no group. Those of builds that named no protocol have another one.
    pub fn protocol_differs(&self, host: &str, theirs: &str) -> Option<GroupError> {
        let version = term(theirs, "protocol");
        if version.as_ref() == Some(&self.protocol.version) {
            return None;
        }
        let build = term(theirs, "build").unwrap_or_default();
        let theirs = version.map(|version| Protocol { build, version });
        let (host, ours) = (host.to_owned(), self.protocol.clone());
        Some(GroupError::Protocol { host, theirs, ours })
    }

    /// Why the node of this host, whose card says these terms, is of another group though it is of
    /// the same build. What it does not say, or what is not known here, counts for nothing.
    pub fn differ(&self, host: &str, theirs: &str) -> Option<GroupError> {
        let of = |key: &str| term(theirs, key);
        let host = host.to_owned();
        let hosts = of("hosts").filter(|theirs| *theirs != self.hosts());
        if let Some(hosts) = hosts {
            let count = |hosts: &str| hosts.split('.').next().unwrap_or_default().to_owned();
            let (theirs, ours) = (count(&hosts), count(&self.hosts()));
            return Some(GroupError::List { host, theirs, ours });
        }
        if self.consistency.is_empty() {
            return None;
        }
        let consistency = of("consistency").filter(|theirs| theirs != self.consistency);
        if let Some(theirs) = consistency {
            return Some(GroupError::Consistency { host, theirs, ours: self.consistency });
        }
        let is_other = of("rules") != self.rules();
        (is_other && of("consistency").is_some()).then_some(GroupError::Rules { host })
    }

    fn rules(&self) -> Option<String> {
        (self.rules != 0).then(|| format!("{:08x}", self.rules))
    }

    fn hosts(&self) -> String {
        format!("{}.{:08x}", self.hosts.0, self.hosts.1)
    }
}

/// What a card's terms say of one thing.
fn term(terms: &str, key: &str) -> Option<String> {
    let mut all = terms.split(';').filter_map(|term| term.split_once('/'));
    all.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "protocol/{};hosts/{}", self.protocol.version, self.hosts())?;
        match self.consistency {
            "" => {}
            name => write!(f, ";consistency/{name}")?,
        }
        match self.rules() {
            Some(rules) if !self.consistency.is_empty() => write!(f, ";rules/{rules}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(hosts: &str, consistency: &'static str) -> Terms {
        let hosts = HostList::of_expression(hosts).unwrap();
        Terms::of(Protocol::of_this_build(), &hosts, consistency, 0)
    }

    #[test]
    fn other_rules_for_consistency_are_named() {
        let of = |rules| Terms { rules, ..terms("a,b", "auto") };
        let said = |own: u32, theirs: u32| {
            of(own).differ("c", &of(theirs).to_string()).map(|error| error.to_string())
        };
        assert_eq!(of(0).to_string(), terms("a,b", "auto").to_string());
        assert_eq!([said(0, 0), said(7, 7)], [None, None]);
        for (own, theirs) in [(0, 7), (7, 0), (7, 8)] {
            let said = said(own, theirs).unwrap();
            let wanted = "host c has other rules that set consistency than this one";
            assert!(said.contains(wanted), "{said}");
        }
        // Where files are not shared they mean nothing.
        let open = Terms { rules: 7, ..terms("a,b", "") };
        assert_eq!(open.to_string(), terms("a,b", "").to_string());
        assert!(open.differ("c", &of(8).to_string()).is_none());
    }

    #[test]
    fn what_differs_is_named_with_the_remedy() {
        let own = terms("a,b", "auto");
        let said = |theirs: &str| own.differ("c", theirs).map(|error| error.to_string());
        for same in [&own.to_string(), "", "later/1", "consistency/auto"] {
            assert_eq!(said(same), None, "{same}");
        }
        let strict = said(&terms("a,b", "strict").to_string()).unwrap();
        assert!(
            strict.contains("host c has consistency = \"strict\", this one \"auto\""),
            "{strict}"
        );
        for (hosts, wanted) in [
            ("a,b,c", "host c has a list of 3 hosts, this one a list of 2"),
            ("b,a", "host c has another list of 2 hosts than this one"),
            ("a,c", "host c has another list of 2 hosts than this one"),
        ] {
            let list = said(&terms(hosts, "auto").to_string()).unwrap();
            assert!(list.contains(wanted), "{list}");
            assert!(list.ends_with("or each group a folder of its own"), "{list}");
        }
    }

    #[test]
    fn another_protocol_is_named_and_another_build_of_the_same_is_none() {
        let own = terms("a,b", "auto");
        let said = |theirs: &str| own.protocol_differs("c", theirs).map(|error| error.to_string());
        let ours = Protocol::of_this_build();
        let of = |build: &str, version: &str| {
            let (build, version) = (build.to_owned(), version.to_owned());
            let hosts = HostList::of_expression("a,b").unwrap();
            Terms::of(Protocol { build, version }, &hosts, "auto", 0)
        };
        let later = of("9.0.0", &ours.version);
        assert_eq!(said(&later.in_card()), None);
        // They hear each other: the keys of their packets follow from this.
        assert_eq!(later.to_string(), own.to_string());
        let other = said(&of("9.0.0", "9.9.9.9").in_card()).unwrap();
        let remedy = "install the same build of Forebay on all nodes of the group";
        assert_eq!(
            other,
            format!("host c has Forebay 9.0.0 with protocol 9.9.9.9, this one {ours}: {remedy}")
        );
        for earlier in ["", "hosts/2.00000000;consistency/auto"] {
            let earlier = said(earlier).unwrap();
            assert_eq!(
                earlier,
                format!("host c has an earlier build of Forebay, this one {ours}: {remedy}")
            );
        }
    }
}
