//! Nested layers: finds a pair of a partition key and a policy that two of them charge.

use http::Extensions;

use crate::{check::Check, decision::Decision, observe, settle::Reservation};

/// The decisions of all outer layers but the next one, whose decision is in the extensions itself.
#[derive(Clone, Default)]
struct Outer(Vec<Admitted>);

/// A decision, with its reservation if there is one.
#[derive(Clone)]
struct Admitted(Decision, Option<Reservation>);

impl Admitted {
    fn check(&self) -> Option<&Check> {
        let Self(decision, reservation) = self;
        decision.check().or_else(|| reservation.as_ref()?.check_of(decision))
    }
}

/// Compares an admission with those of the outer layers. `next` is the decision of the next outer layer, whose reservation is
/// still in the extensions of the request.
pub(super) fn compare(
    next: Decision,
    decision: &Decision,
    reservation: Option<&Reservation>,
    extensions: &mut Extensions,
) {
    if !observe::IS_LOGGED {
        return;
    }
    let Outer(mut outer) = extensions.remove().unwrap_or_default();
    outer.push(Admitted(next, extensions.get().cloned()));
    let own = Admitted(decision.clone(), reservation.cloned());
    if let Some(check) = own.check() {
        for outer in outer.iter().filter_map(Admitted::check) {
            for policy in check.policies_charged_by(outer) {
                observe::charged_twice(check.place(), policy);
            }
        }
    }
    extensions.insert(Outer(outer));
}
