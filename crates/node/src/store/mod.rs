//! The files of the backing stores: a path or an identity that a record gives becomes an open file
//! here, and nowhere else.
//!
//! May use no other folder of this crate.

pub(crate) mod beneath;
pub(crate) mod descriptors;
pub(crate) mod layout;
pub(crate) mod share;
