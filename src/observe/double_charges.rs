//! The policies whose pairs nested layers have charged twice.

use crate::{check::NamespaceNumber, lock::Lock, policy::Policy};

/// The policies that were logged, each with its namespace and the identity of its store.
static LOGGED: Lock<Vec<(NamespaceNumber, Box<str>)>> = Lock::new(Vec::new());

/// A bound for a service that invents names of policies.
const MAX_LOGGED: usize = 256;

/// Returns whether this is the first double charge of a policy with this name, in this place.
pub(super) fn is_first(place: NamespaceNumber, policy: &Policy) -> bool {
    let mut logged = LOGGED.lock();
    let is_known = logged.iter().any(|(known, name)| *known == place && **name == *policy.name());
    if is_known || logged.len() >= MAX_LOGGED {
        return false;
    }
    logged.push((place, policy.name().into()));
    true
}
