//! What `flush` and `wait` cannot know: whether data of a file is in another user's tiers, or in
//! those of a run whose pool is gone. What they do not know they do not call safe.

use crate::named::{Named, Pool};
use forebay_node::is_served;
use forebay_node::neighbours::users_with_pools;
use forebay_node::runtime::Runtime;
use std::fs;

/// A user for people: the number, and the name if there is one.
fn user(uid: u32) -> String {
    let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = known.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.map_or(format!("user {uid}"), |name| format!("user {uid} ({name})"))
}

/// What is not known of `named`, after `pools`, all of this user's, were asked. A message for each.
///
/// # Errors
/// Those of looking for pools.
pub fn unknown(named: &[Named], pools: &[Pool]) -> Result<Vec<String>, String> {
    let mut messages = left_without_pool(named)?;
    let users: Vec<_> = users_with_pools()?.into_iter().map(user).collect();
    let users = users.join(", ");
    // What a manager of ours buffers it answers for; of another user's mark on the directory it has
    // warned.
    let asked = |named: &Named| pools.iter().any(|pool| pool.buffers(named));
    for named in named.iter().filter(|named| !asked(named)) {
        let path = named.path().display();
        if !users.is_empty() {
            messages.push(format!(
                "{path}: not known to be safe: no node manager of yours buffers it, and {users} has data on this node \
                 that only that user can ask about"
            ));
        } else if !pools.iter().any(|pool| pool.is_near(named)) && is_served(named.path()) {
            messages.push(format!(
                "{path}: not known to be safe: a node manager whose pool is not seen from here buffers it, or a directory \
                 above or below it; in another container, with another /dev/shm, it can be asked there"
            ));
        }
    }
    Ok(messages)
}

/// What is left in file tiers of instances whose pool is gone, as after a reboot.
fn left_without_pool(named: &[Named]) -> Result<Vec<String>, String> {
    let mut messages = Vec::new();
    for runtime in Runtime::all()? {
        if runtime.has_pool() || !runtime.has_left() {
            continue;
        }
        let Some(config) = runtime.read_config() else { continue };
        let mut stores = config.backing.iter();
        if stores.any(|store| named.iter().any(|named| named.is_near(&store.path))) {
            messages.push(format!(
                "instance {}: an earlier run has left data that is not on the store; run `forebay recover`",
                runtime.instance
            ));
        }
    }
    Ok(messages)
}
