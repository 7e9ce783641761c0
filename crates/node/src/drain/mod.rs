//! Dirty data on its way to the backing stores: what is due is collected, written in batches,
//! synced, and completed. What is staged is compared with the store first (`verify`), and goes
//! there once the `elevator` has seen that no process writes it. What runs may not leave dirty, or
//! not for so long, is flushed by `capped`. The journal's part of a sync is in
//! `checkpoint`; `conflict` checks for what others changed on the store.
//!
//! May use `node` and what that uses: `config`, `devices`, `journal`, `observe`, `store`.

mod batch;
mod capped;
mod checkpoint;
mod collect;
mod complete;
pub(crate) mod conflict;
mod elevator;
mod flusher;
mod reconcile;
mod slots;
mod sync;
mod verify;

pub(crate) use capped::CapKeeper;
pub(crate) use complete::{FADING, is_any_fading, is_fading, is_lost, may_be_lost};
pub(crate) use elevator::Elevator;
pub(crate) use flusher::{FlushScope, Flusher};
pub(crate) use reconcile::{reconcile, reconcile_held};
