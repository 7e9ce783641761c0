//! glibc's own.

use super::Allocator;

pub const ALLOCATOR: Allocator =
    Allocator { name: "malloc", libraries: &[], wanted: 3.0, paper: Some(3.0) };
