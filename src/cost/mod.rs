//! From a request to its cost in quota units.

use http::Request;

use crate::head::{FromHead, Head};

mod costs;
mod routes;

pub use costs::Costs;
pub use routes::RouteCosts;

/// Tells what a request of the type `Req` takes.
///
/// A number is a cost function, [`Costs`] are one, and every closure `Fn(&Req) -> u32` or `Fn(&Req) -> Costs` is one too;
/// see [`from_head`](crate::from_head) for closures that need no type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` tells no cost of a `{Req}`",
    note = "use a `u32`, `Costs`, a `RouteCosts`, `from_head`, or a closure that names its parameter: `|request: &{Req}|`, and returns a `u32` or `Costs`"
)]
pub trait CostFunction<Req> {
    /// The cost in quota units of every policy, 0 to 2^32-1. A policy of which a request takes 0 admits it and records
    /// nothing. A request whose cost is above a quota can never be admitted.
    fn cost(&self, request: &Req) -> Costs;
}

impl<Req> CostFunction<Req> for u32 {
    fn cost(&self, _request: &Req) -> Costs {
        Costs::from(*self)
    }
}

impl<Req> CostFunction<Req> for Costs {
    fn cost(&self, _request: &Req) -> Costs {
        self.clone()
    }
}

impl<F, Req, C> CostFunction<Req> for F
where
    F: Fn(&Req) -> C,
    C: Into<Costs>,
{
    fn cost(&self, request: &Req) -> Costs {
        self(request).into()
    }
}

impl<F, B, C> CostFunction<Request<B>> for FromHead<F>
where
    F: Fn(&Head<'_>) -> C,
    C: Into<Costs>,
{
    fn cost(&self, request: &Request<B>) -> Costs {
        self.call(request).into()
    }
}
