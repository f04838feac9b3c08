//! From a request to its cost in quota units.

use http::Request;

use crate::head::{FromHead, Head};

mod routes;

pub use routes::RouteCosts;

/// Tells what a request of the type `Req` takes.
///
/// A number is a cost function, and every closure `Fn(&Req) -> u32` is one too; see [`from_head`](crate::from_head) for
/// closures that need no type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` tells no cost of a `{Req}`",
    note = "use a `u32`, a `RouteCosts`, `from_head`, or a closure that names its parameter: `|request: &{Req}|`, and returns a `u32`"
)]
pub trait CostFunction<Req> {
    /// The cost in quota units, 0 to 2^32-1. A request of cost 0 is admitted and recorded nowhere. One whose cost is
    /// above a quota can never be admitted.
    fn cost(&self, request: &Req) -> u32;
}

impl<Req> CostFunction<Req> for u32 {
    fn cost(&self, _request: &Req) -> u32 {
        *self
    }
}

impl<F, Req> CostFunction<Req> for F
where
    F: Fn(&Req) -> u32,
{
    fn cost(&self, request: &Req) -> u32 {
        self(request)
    }
}

impl<F, B> CostFunction<Request<B>> for FromHead<F>
where
    F: Fn(&Head<'_>) -> u32,
{
    fn cost(&self, request: &Request<B>) -> u32 {
        self.call(request)
    }
}
