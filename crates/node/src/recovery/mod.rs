//! Pools and file tiers that an earlier manager left: checked (`fsck`), copied from (`salvage`),
//! taken into use again (`open`), or, where the segment is gone, brought to the store (`rebuild`).
//!
//! May use everything but `drain`, `organize` and `manager`.

pub(crate) mod copies;
pub mod fsck;
pub(crate) mod inspect;
pub(crate) mod open;
pub(crate) mod rebuild;
pub(crate) mod recorded;
pub mod removed;
pub mod salvage;
