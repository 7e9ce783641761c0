//! The smallest policy: nothing is buffered.

use super::Policy;
use crate::cost::Speeds;
use crate::{Destination, Hierarchy, Plan, Request};

/// Everything goes straight to the backing store.
pub(super) struct Noop;

impl Policy for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn plan(&self, hierarchy: &Hierarchy, request: &Request) -> Plan {
        let speeds = Speeds::of(hierarchy);
        let store = speeds.paces()[hierarchy.len()];
        let cost_ns = store.latency_ns + request.bytes as f64 * store.write_ns;
        Plan::whole(Destination::Store, request.bytes, cost_ns)
    }

    fn class(&self, request: &Request) -> Request {
        Request { bytes: request.bytes, ..Request::default() }
    }

    fn compares_hotness(&self) -> bool {
        false
    }
}
