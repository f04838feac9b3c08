//! Nested layers: finds a pair of a partition key and a policy that two of them charge.

use http::Extensions;

use crate::{decision::Decision, observe};

/// The decisions of all outer layers but the next one, whose decision is in the extensions itself.
#[derive(Clone, Default)]
struct Outer(Vec<Decision>);

/// Compares an admission with those of the outer layers. `next` is the decision of the next outer layer.
pub(super) fn compare(next: Decision, decision: &Decision, extensions: &mut Extensions) {
    if !observe::IS_LOGGED {
        return;
    }
    let Outer(mut outer) = extensions.remove().unwrap_or_default();
    outer.push(next);
    if let Some(store) = decision.store() {
        for policy in outer.iter().flat_map(|outer| decision.policies_charged_by(outer)) {
            observe::charged_twice(store, policy);
        }
    }
    extensions.insert(Outer(outer));
}
