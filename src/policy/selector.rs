//! Policies that are chosen for each request.

use std::sync::Arc;

use super::Policies;
use crate::head::Head;

/// Chooses the policies of a request from its [`Head`]: by tier, tenant or route.
///
/// [`PolicyTable::choose_by`](super::PolicyTable::choose_by) returns a selector. [`Policies`] are the same for every request.
/// For a closure, use [`Builder::policies_by`](crate::Builder::policies_by), or [`from_fn`] where a value is needed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose policies",
    label = "expected a policy selector, such as `table.choose_by(|head| ..)` or `Policies`",
    note = "to add one policy for every request, call `.policy(..)`; if the value is a `Result`, add `?`; if it is a closure, call `.policies_by(|head| ..)` instead"
)]
pub trait PolicySelector: Send + Sync + 'static {
    /// Returns the policies of this request, in addition to the policies for all requests, or `None` if there are no others.
    fn select(&self, head: &Head<'_>) -> Option<Policies>;
}

impl PolicySelector for Policies {
    fn select(&self, _head: &Head<'_>) -> Option<Policies> {
        Some(self.clone())
    }
}

#[diagnostic::do_not_recommend]
impl<S: PolicySelector + ?Sized> PolicySelector for Arc<S> {
    fn select(&self, head: &Head<'_>) -> Option<Policies> {
        (**self).select(head)
    }
}

struct SelectorFn<F>(F);

#[diagnostic::do_not_recommend]
impl<F> PolicySelector for SelectorFn<F>
where
    F: Fn(&Head<'_>) -> Option<Policies> + Send + Sync + 'static,
{
    fn select(&self, head: &Head<'_>) -> Option<Policies> {
        (self.0)(head)
    }
}

/// Makes a [`PolicySelector`] from a closure.
pub fn from_fn<F>(choose: F) -> impl PolicySelector
where
    F: Fn(&Head<'_>) -> Option<Policies> + Send + Sync + 'static,
{
    SelectorFn(choose)
}
