//! What nodes say to each other, by the number of its form.

use crate::packets::BODIES;
use crate::remote::REMOTE_VERSION;
use forebay_directory::MESSAGE_VERSION;
use std::fmt;

/// Which form the messages of a build have. Nodes of two builds that differ in `version` form no
/// group: each is told why by the other's card, and goes on as where the other is not there.
///
/// There is one rule for all that nodes say to each other: what changes the form or the meaning of
/// a message changes the number of its part, and so the version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The build, for people. Two of one version may differ in it.
    pub build: String,
    /// The numbers of packets, of the frames of links, of messages about leases, and of those about
    /// blocks.
    pub version: String,
}

impl Protocol {
    /// That of this build.
    pub fn of_this_build() -> Self {
        let (fabric, leases, blocks) = (forebay_fabric::VERSION, MESSAGE_VERSION, REMOTE_VERSION);
        Self {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            version: format!("{BODIES}.{fabric}.{leases}.{blocks}"),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Forebay {} with protocol {}", self.build, self.version)
    }
}
