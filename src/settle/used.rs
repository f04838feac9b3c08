//! From a response to what its request has really used.

use http::{Extensions, HeaderMap, Response, StatusCode};

use crate::{
    cost::Costs,
    outage::Admission,
    respond::{Outcome, Refusal, Respond},
    settle::Reservation,
};

/// Tells from a response of the type `Res` what its request has used.
///
/// Every closure `Fn(&Res) -> Option<u32>` or `Fn(&Res) -> Option<Costs>` does; see [`from_response`] for closures that need
/// no type, [`actual_cost`] for handlers that say it themselves, and [`by_hand`] where no response says it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell what a request has used from a `{Res}`",
    note = "use `from_response`, `actual_cost`, `by_hand`, or a closure that names its parameter: `|response: &{Res}|`, and returns an `Option<u32>` or an `Option<Costs>`"
)]
pub trait Used<Res> {
    /// What the request has used, in quota units, 0 to 2^32-1 of each policy; of a policy that is not named, what was charged.
    /// None if nothing is known: then the charge stands, unless whoever holds the [`Reservation`] settles it.
    fn used(&self, response: &Res) -> Option<Costs>;
}

impl<F, Res, C> Used<Res> for F
where
    F: Fn(&Res) -> Option<C>,
    C: Into<Costs>,
{
    fn used(&self, response: &Res) -> Option<Costs> {
        self(response).map(Into::into)
    }
}

/// A response without its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// What the inner service has left for the layers around it.
    pub extensions: &'a Extensions,
}

/// A closure over the [`ResponseHead`] of an HTTP response, made by [`from_response`].
#[derive(Clone, Copy, Debug)]
pub struct FromResponse<F>(F);

/// Settles by a closure over the head of an HTTP response, whatever its body is. The closure's parameter needs no type.
///
/// ```
/// use std::time::Duration;
/// use http::StatusCode;
/// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, from_response, peer_ip};
///
/// // A login that fails counts, and one that does not is free.
/// let logins = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("failed-logins", 5, Duration::from_secs(900))?)
///     .key(peer_ip())
///     .settle(from_response(|response| response.status.is_success().then_some(0)))
///     .build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
pub fn from_response<F, C>(closure: F) -> FromResponse<F>
where
    F: Fn(&ResponseHead<'_>) -> Option<C>,
{
    FromResponse(closure)
}

impl<F, B, C> Used<Response<B>> for FromResponse<F>
where
    F: Fn(&ResponseHead<'_>) -> Option<C>,
    C: Into<Costs>,
{
    fn used(&self, response: &Response<B>) -> Option<Costs> {
        let (status, headers, extensions) = (response.status(), response.headers(), response.extensions());
        self.0(&ResponseHead { status, headers, extensions }).map(Into::into)
    }
}

/// What a request has really used, as its handler says it: in the extensions of its response, where [`actual_cost`] reads it.
///
/// In axum, a handler returns `(Extension(ActualCost::new(317)), body)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualCost(Costs);

impl ActualCost {
    /// So many quota units of every policy, or of each its own: [`Costs`].
    pub fn new(used: impl Into<Costs>) -> Self {
        Self(used.into())
    }
}

/// Settles by the [`ActualCost`] in the response's extensions; made by [`actual_cost`].
#[derive(Clone, Copy, Debug)]
pub struct ReadActualCost;

/// Settles by the [`ActualCost`] that the inner service has left in the extensions of an HTTP response. Without one the
/// charge stands.
pub fn actual_cost() -> ReadActualCost {
    ReadActualCost
}

impl<B> Used<Response<B>> for ReadActualCost {
    fn used(&self, response: &Response<B>) -> Option<Costs> {
        response.extensions().get::<ActualCost>().map(|used| used.0.clone())
    }
}

/// Settles nothing by itself; made by [`by_hand`].
#[derive(Clone, Copy, Debug)]
pub struct ByHand;

/// Leaves it to the handler, which takes the [`Reservation`] from its request and settles when it knows: at the end of a
/// streamed body, for example, when the response is long under way.
pub fn by_hand() -> ByHand {
    ByHand
}

impl<Res> Used<Res> for ByHand {
    fn used(&self, _response: &Res) -> Option<Costs> {
        None
    }
}

/// Settles by `F` and says everything as `R` does; made by [`Builder::settle`](crate::Builder::settle).
#[derive(Clone, Copy, Debug)]
pub struct Settling<F, R> {
    used: F,
    others: R,
}

impl<F, R> Settling<F, R> {
    /// For [`RateLimitLayer::new`](crate::RateLimitLayer::new). The limiter's backend must be one that
    /// [changes charges](crate::Backend::changes_charges); otherwise every counted request is an outage.
    pub fn new(used: F, others: R) -> Self {
        Self { used, others }
    }
}

impl<Req, Res, Err, F, R> Respond<Req, Res, Err> for Settling<F, R>
where
    F: Used<Res>,
    R: Respond<Req, Res, Err>,
{
    fn admit(&self, request: &mut Req, admission: &Admission, reservation: Option<&Reservation>) {
        self.others.admit(request, admission, reservation);
    }

    fn refuse(&self, request: &Req, refusal: &Refusal) -> Result<Res, Err> {
        self.others.refuse(request, refusal)
    }

    fn annotate(&self, response: &mut Res, outcome: Outcome<'_>) {
        self.others.annotate(response, outcome);
    }

    fn settles(&self) -> bool {
        true
    }

    fn used(&self, response: &Res) -> Option<Costs> {
        self.used.used(response)
    }
}
