//! UserDefined, Hermes section 3.2.2 D: the schema decides.

use super::{Policy, PolicyId};
use crate::cost::Speeds;
use crate::request::Piece;
use crate::{Destination, Hierarchy, Plan, Request, destination};

/// Does what the rule that matched says, and asks the rule's fallback for what that leaves open.
pub(super) struct UserDefined;

impl Policy for UserDefined {
    fn name(&self) -> &'static str {
        "user-defined"
    }

    fn plan(&self, hierarchy: &Hierarchy, request: &Request) -> Plan {
        let speeds = Speeds::of(hierarchy);
        let cost_ns = |place: usize, bytes: u64| {
            let pace = &speeds.paces()[place];
            pace.latency_ns + bytes as f64 * pace.write_ns
        };
        match request.pinned {
            Some(Destination::Store) => {
                let cost_ns = cost_ns(hierarchy.len(), request.bytes);
                Plan::whole(Destination::Store, request.bytes, cost_ns)
            }
            Some(Destination::Tier(wanted)) if wanted < hierarchy.len() => {
                in_tier(hierarchy, request, wanted, cost_ns)
            }
            _ => fallback(request).plan(hierarchy, request),
        }
    }

    fn stages(&self) -> bool {
        false
    }

    fn class(&self, request: &Request) -> Request {
        let class = fallback(request).class(request);
        Request { pinned: request.pinned, fallback: request.fallback, ..class }
    }
}

/// As much as the tier can hold, after others' data was moved away; the rest as the fallback says.
fn in_tier(
    hierarchy: &Hierarchy,
    request: &Request,
    wanted: usize,
    cost_ns: impl Fn(usize, u64) -> f64,
) -> Plan {
    let tier = hierarchy.tiers()[wanted];
    let free = tier.free.min(tier.capacity);
    let bytes = request.bytes.min(free.saturating_add(tier.movable()));
    let room = bytes.saturating_sub(free);
    let rest = Request { bytes: request.bytes - bytes, ..*request };
    let room_to = destination(hierarchy, wanted, room);
    let mut others = *hierarchy;
    let full = &mut others.tiers_mut()[wanted];
    (full.free, full.pinned) = (0, full.capacity);
    if let Destination::Tier(below) = room_to {
        others.tiers_mut()[below].free -= room;
        others.tiers_mut()[below].pinned += room;
    }
    let plan = fallback(request).plan(&others, &rest);
    let own = if bytes > 0 { cost_ns(wanted, bytes) } else { 0.0 };
    let mut merged = Plan::new(plan.cost_ns + own);
    merged.push(Piece { to: Destination::Tier(wanted), bytes, room, room_to });
    for &piece in plan.pieces() {
        merged.push(piece);
    }
    merged
}

fn fallback(request: &Request) -> &'static dyn Policy {
    let policy = request.fallback.policy();
    if policy.name() == UserDefined.name() { PolicyId::default().policy() } else { policy }
}
