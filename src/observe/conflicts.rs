//! The policies of this process, to find conflicting ones.

use std::{collections::HashMap, sync::Weak};

use crate::{check::Namespace, lock::Lock, policy::Policy};

/// The policies of all limiters, by store, namespace and name.
static LIMITS: Lock<Option<HashMap<[String; 3], Limits>>> = Lock::new(None);

#[derive(Default)]
struct Limits {
    limits: Vec<(Weak<()>, Policy)>,
    /// Whether a conflict was logged. It is logged again only after all of these policies are gone.
    warned: bool,
}

/// Registers the policies of a new limiter. Returns each conflicting policy, after the one that it conflicts with.
pub(super) fn register(
    store: &str,
    namespace: &Namespace,
    policies: &[Policy],
    alive: Weak<()>,
) -> Vec<[Policy; 2]> {
    let mut limits = LIMITS.lock();
    let limits = limits.get_or_insert_default();
    // Limiters are few and are rarely created, so a full scan is cheap.
    limits.retain(|_, entry| {
        entry.limits.retain(|(limiter, _)| limiter.strong_count() > 0);
        !entry.limits.is_empty()
    });
    let mut conflicts = Vec::new();
    for policy in policies {
        let id = [store, namespace.as_str(), policy.name()].map(str::to_owned);
        let entry = limits.entry(id).or_default();
        let conflict = entry.limits.iter().find(|(_, earlier)| earlier.conflicts_with(policy));
        if let (Some((_, earlier)), false) = (conflict, entry.warned) {
            conflicts.push([earlier.clone(), policy.clone()]);
            entry.warned = true;
        }
        entry.limits.push((alive.clone(), policy.clone()));
    }
    conflicts
}
