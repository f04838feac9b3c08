//! Which limits there are in this process, so that those that contradict each other are told of.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError, Weak},
};

use crate::{check::Namespace, policy::Policy};

/// By store, namespace and name of the policy.
static LIMITS: Mutex<Option<HashMap<Place, Entry>>> = Mutex::new(None);

#[derive(PartialEq, Eq, Hash)]
struct Place {
    store: String,
    namespace: Namespace,
    name: String,
}

#[derive(Default)]
struct Entry {
    limits: Vec<(Weak<()>, Policy)>,
    /// Whether it was told that they contradict each other. It is told again only when all of them are gone.
    warned: bool,
}

/// Enters the policies of a new limiter. Those that contradict one that is there, each with that one.
pub(super) fn register(
    store: &str,
    namespace: &Namespace,
    policies: &[Policy],
    alive: Weak<()>,
) -> Vec<[Policy; 2]> {
    let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
    let limits = limits.get_or_insert_default();
    // Limiters are made rarely, and few of them: this is no work.
    limits.retain(|_, entry| {
        entry.limits.retain(|(limiter, _)| limiter.strong_count() > 0);
        !entry.limits.is_empty()
    });
    let mut rivals = Vec::new();
    for policy in policies {
        let (store, name) = (store.to_owned(), policy.name().to_owned());
        let entry = limits.entry(Place { store, namespace: namespace.clone(), name }).or_default();
        let rival = entry.limits.iter().find(|(_, there)| there != policy);
        if let (Some((_, there)), false) = (rival, entry.warned) {
            rivals.push([there.clone(), policy.clone()]);
            entry.warned = true;
        }
        entry.limits.push((alive.clone(), policy.clone()));
    }
    rivals
}
