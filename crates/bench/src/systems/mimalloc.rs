//! Microsoft's allocator; not in the paper.

use super::Allocator;

pub const ALLOCATOR: Allocator = Allocator {
    name: "mimalloc",
    libraries: &["libmimalloc.so.2", "libmimalloc.so.3"],
    wanted: 1.0,
    paper: None,
};
