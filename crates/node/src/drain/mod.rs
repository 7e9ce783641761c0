//! Dirty data on its way to the backing stores: what is due is collected, written in batches,
//! synced, and completed. The journal's part of a sync is in `checkpoint`; `conflict` checks for
//! what others changed on the store.
//!
//! May use `node` and what that uses: `config`, `devices`, `journal`, `observe`, `store`.

mod batch;
mod checkpoint;
mod collect;
mod complete;
pub(crate) mod conflict;
mod flusher;
mod reconcile;
mod slots;
mod sync;

pub(crate) use complete::{FADING, is_any_fading, is_fading, is_lost, may_be_lost};
pub(crate) use flusher::{FlushScope, Flusher};
pub(crate) use reconcile::{reconcile, reconcile_held};
