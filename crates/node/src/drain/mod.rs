//! Dirty data on its way to the backing stores: flush, sync, the journal for what is synced first,
//! and the check for what others changed on the store.
//!
//! May use `node` and what that uses: `config`, `devices`, `journal`, `observe`, `store`.

pub(crate) mod conflict;
pub(crate) mod flush;
