//! Refusing to serve beside another instance that buffers the same directories.

use crate::config::Config;
use crate::instance::guard::Waits;
use crate::instance::runtime::Runtime;
use crate::observe::status::Observer;
use forebay_pool::stay::Stay;
use std::time::{Duration, Instant};

/// How long a starting manager waits for one that seems to be ending.
pub(super) const ENDING: Duration = Duration::from_secs(5);

/// Slots of another machine, with the same configuration, may be in use there.
pub(super) fn refuse_elsewhere(config: &Config, runtime: &Runtime) -> Result<(), String> {
    let kept = runtime.kept_elsewhere(config).filter(|_| runtime.has_slots(config));
    kept.map_or(Ok(()), |kept| {
        Err(format!(
            "{}: another machine has left its data here, or is at work with it; give each machine a \
             folder of its own. If that machine is gone, or this is it under another name, remove the \
             file: its data is brought to the store then",
            kept.display()
        ))
    })
}

/// Two managers must not buffer the same files: neither would see what the other holds. Nor may one
/// begin, unless it `drains`, before what another left is drained.
pub(super) fn refuse_overlap(
    config: &Config,
    runtime: &Runtime,
    drains: bool,
    waits: &mut Waits<'_>,
) -> Result<(), String> {
    // One without clients is probably ending.
    let backoff = Instant::now() + ENDING;
    loop {
        match find_overlap(config, runtime, drains)? {
            None => return Ok(()),
            Some((true, message)) if Instant::now() < backoff => {
                waits.say(&message);
                std::thread::sleep(Duration::from_millis(50));
            }
            Some((_, message)) => return Err(message),
        }
    }
}

/// Another manager that serves a directory of ours: whether it is without clients, and what to say.
/// Unless we drain, also one that is gone and has left something.
pub(super) fn find_overlap(
    config: &Config,
    runtime: &Runtime,
    drains: bool,
) -> Result<Option<(bool, String)>, String> {
    for other in Runtime::all()? {
        if other.instance == runtime.instance {
            continue;
        }
        let Some(theirs) = other.backing() else { continue };
        let serves = matches!(other.lock(), Ok(None));
        // Its data is older than all that would be written now, and would come to the store later.
        if !serves && (drains || !other.has_left()) {
            continue;
        }
        for ours in &config.backing {
            let overlaps = |path: &std::path::Path| {
                ours.path.starts_with(path) || path.starts_with(&ours.path)
            };
            if let Some(theirs) = theirs.iter().find(|theirs| overlaps(theirs)) {
                // A manager that ends removes its pool before its folder.
                let unused = !other.has_pool()
                    || Observer::of(&other.pool).is_ok_and(|observer| observer.clients() == 0);
                if !serves {
                    let message = format!(
                        "instance {} holds what an earlier run left for {}; `forebay recover` drains it",
                        other.instance,
                        theirs.display()
                    );
                    return Ok(Some((false, message)));
                }
                if let Some(users) = used_directly(&other) {
                    let message = format!(
                        "{} is used by processes of an earlier run with another configuration \
                         (instance {}): {users}; wait for their end, or use that configuration",
                        theirs.display(),
                        other.instance
                    );
                    return Ok(Some((unused, message)));
                }
                // One that stays is not ending, whatever uses it.
                let stay = Observer::of(&other.pool).map_or(Stay::Not, |observer| observer.stay());
                let kept = match stay {
                    Stay::Not => String::new(),
                    Stay::For(left) => {
                        format!(", which an earlier run keeps for {} s more", left.as_secs().max(1))
                    }
                    Stay::UntilTold => ", until `forebay down`".to_owned(),
                };
                let message = format!(
                    "{} is served with another configuration (instance {}, directory {}){kept}; use \
                     that one, or end it with `forebay stop --instance {}`",
                    ours.path.display(),
                    other.instance,
                    theirs.display(),
                    other.instance
                );
                return Ok(Some((unused && stay == Stay::Not, message)));
            }
        }
    }
    Ok(None)
}

/// The processes that use the files of an instance whose manager was told to end; `None` if it was
/// not.
pub(super) fn used_directly(instance: &Runtime) -> Option<String> {
    let observer = Observer::of(&instance.pool).ok()?;
    let pids: Vec<_> = observer.processes().iter().map(u32::to_string).collect();
    (observer.is_retiring() && !pids.is_empty()).then(|| pids.join(", "))
}
