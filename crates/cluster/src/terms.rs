//! What all nodes of a group have to have alike, and what is said of one that has not.
//!
//! It is in each node's card, for people to be told, and in the keys of packets, so that nodes that
//! differ do not hear each other before a card was read.

use crate::error::GroupError;
use forebay_membership::HostList;
use std::fmt;

/// Of one node. `Display` writes what its card says.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// How many hosts its list has, and the sum of their names.
    hosts: (usize, u32),
    /// The name of what its programs see of other nodes' files; empty where that is not to be
    /// alike.
    consistency: &'static str,
}

impl Terms {
    pub fn of(hosts: &HostList, consistency: &'static str) -> Self {
        Self { hosts: (hosts.names().len(), hosts.sum()), consistency }
    }

    /// Why the node of this host, whose card says these terms, is of another group. What it does
    /// not say, or what is not known here, counts for nothing.
    pub fn differ(&self, host: &str, theirs: &str) -> Option<GroupError> {
        let of = |key: &str| {
            let mut all = theirs.split(';').filter_map(|term| term.split_once('/'));
            all.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
        };
        let host = host.to_owned();
        let hosts = of("hosts").filter(|theirs| *theirs != self.hosts());
        if let Some(hosts) = hosts {
            let count = |hosts: &str| hosts.split('.').next().unwrap_or_default().to_owned();
            let (theirs, ours) = (count(&hosts), count(&self.hosts()));
            return Some(GroupError::List { host, theirs, ours });
        }
        let consistency = of("consistency").filter(|_| !self.consistency.is_empty());
        let theirs = consistency.filter(|theirs| theirs != self.consistency)?;
        Some(GroupError::Consistency { host, theirs, ours: self.consistency })
    }

    fn hosts(&self) -> String {
        format!("{}.{:08x}", self.hosts.0, self.hosts.1)
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "hosts/{}", self.hosts())?;
        match self.consistency {
            "" => Ok(()),
            name => write!(f, ";consistency/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(hosts: &str, consistency: &'static str) -> Terms {
        Terms::of(&HostList::of_expression(hosts).unwrap(), consistency)
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
}
