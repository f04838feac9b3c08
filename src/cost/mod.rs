//! The cost of a request in quota units.

use std::sync::Arc;

use crate::head::Head;

mod content_length;
mod costs;
mod routes;

pub use content_length::{ByContentLength, by_content_length};
pub(crate) use costs::IntoUsed;
pub use costs::{Costs, IntoCosts};
pub use routes::RouteCosts;

/// Returns the cost of a request from its [`Head`].
///
/// A `u32` is the same cost for every request. [`Costs`] name a cost for each policy. [`RouteCosts`] choose by path and
/// method. [`by_content_length`] measures the body. For a closure, use [`RateLimitLayerBuilder::cost_by`](crate::RateLimitLayerBuilder::cost_by), or [`from_fn`] where a value is needed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a cost",
    label = "expected a cost: a `u32`, `Costs`, or `RouteCosts`",
    note = "quota units are `u32`: convert other numbers; if the value is a `Result`, add `?`; if it is a closure, call `.cost_by(|head| ..)` instead"
)]
pub trait CostFunction: Send + Sync + 'static {
    /// Returns the cost in quota units of every policy, 0 to 2^32-1. A policy with a cost of 0 admits the request and records
    /// nothing. A request whose cost is above a quota can never be admitted.
    fn cost(&self, head: &Head<'_>) -> Costs;

    /// Calls `each` with every cost that does not depend on the request, and with the name of the requests that have it, such as
    /// `GET /search`, or an empty name for all requests. The builder compares these costs with the quotas. By default, there are
    /// none.
    fn constants(&self, each: &mut dyn FnMut(&str, &Costs)) {
        let _ = each;
    }
}

impl CostFunction for u32 {
    fn cost(&self, _head: &Head<'_>) -> Costs {
        Costs::from(*self)
    }

    fn constants(&self, each: &mut dyn FnMut(&str, &Costs)) {
        each("", &Costs::from(*self));
    }
}

impl CostFunction for Costs {
    fn cost(&self, _head: &Head<'_>) -> Costs {
        self.clone()
    }

    fn constants(&self, each: &mut dyn FnMut(&str, &Costs)) {
        each("", self);
    }
}

#[diagnostic::do_not_recommend]
impl<C: CostFunction + ?Sized> CostFunction for Arc<C> {
    fn cost(&self, head: &Head<'_>) -> Costs {
        (**self).cost(head)
    }

    fn constants(&self, each: &mut dyn FnMut(&str, &Costs)) {
        (**self).constants(each);
    }
}

struct CostClosure<F>(F);

#[diagnostic::do_not_recommend]
impl<F, C> CostFunction for CostClosure<F>
where
    F: Fn(&Head<'_>) -> C + Send + Sync + 'static,
    C: IntoCosts,
{
    fn cost(&self, head: &Head<'_>) -> Costs {
        (self.0)(head).into_costs()
    }
}

/// Makes a [`CostFunction`] from a closure.
///
/// Closures are not cost functions by themselves. Otherwise the compiler would report every mistake as a problem with
/// closures.
pub fn from_fn<F, C>(cost: F) -> impl CostFunction
where
    F: Fn(&Head<'_>) -> C + Send + Sync + 'static,
    C: IntoCosts,
{
    CostClosure(cost)
}
