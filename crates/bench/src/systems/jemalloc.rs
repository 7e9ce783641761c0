//! FreeBSD's allocator; not in the paper.

use super::Allocator;

pub const ALLOCATOR: Allocator =
    Allocator { name: "jemalloc", libraries: &["libjemalloc.so.2"], wanted: 1.0, paper: None };
