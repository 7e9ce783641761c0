//! Google's allocator, of gperftools.

use super::Allocator;

pub const ALLOCATOR: Allocator = Allocator {
    name: "tcmalloc",
    libraries: &["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"],
    wanted: 2.0,
    paper: Some(2.0),
};
