//! Axum extractors: the decision, the hold and the reservation.

use std::convert::Infallible;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{Extensions, StatusCode, header, request::Parts};

use crate::{
    backend::Reason,
    decision::Decision,
    hold::Hold,
    observe::{self, Throttle},
    outage::{LocalDecision, Unchecked},
    settle::Reservation,
};

/// The rejection of the [`Decision`] extractor: the request has no decision of the store. It answers 500 with a problem details
/// body, and logs a warning that names the cause, at most once per minute and cause.
///
/// A handler has a decision in every case only if its layer [fails closed](crate::OutageRule::FailClosed), exempts no request,
/// and does not [omit decisions](crate::RateLimitLayerBuilder::omit_decision). Any other handler takes an `Option<Decision>`, which is `None` in these cases:
///
/// - The request is exempt, its route is outside of the layer, or the layer omits decisions.
/// - In an outage, the layer [fails open](crate::OutageRule::FailOpen) or
///   [decides locally](crate::OutageRule::LocalFallback), because the store makes no decision.
///
/// ```
/// use tower_sliding_window::Decision;
///
/// async fn handler(decision: Option<Decision>) -> String {
///     let remaining = decision.and_then(|decision| decision.statuses().iter().map(|status| status.remaining()).min());
///     remaining.map_or_else(|| "unlimited".to_owned(), |remaining| format!("{remaining} left"))
/// }
/// ```
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(transparent)]
pub struct NoDecision(Cause);

/// Why a request has no decision of the store.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Cause {
    #[error(
        "no rate limit layer has left its decision on this request: it is exempt, its route is outside of the layer, or the layer omits decisions; take an `Option<Decision>`, or add the layer to the route without `.omit_decision()`"
    )]
    Undecided,
    #[error(
        "the store has not decided this request ({0}), and the outage rule has admitted it unchecked; take an `Option<Decision>`"
    )]
    Unchecked(Reason),
    #[error(
        "the store has not decided this request ({0}), and the local fallback has admitted it; take an `Option<Decision>`"
    )]
    LocalFallback(Reason),
}

impl NoDecision {
    fn from_extensions(extensions: &Extensions) -> Self {
        let unchecked = || extensions.get().map(Unchecked::reason).map(Cause::Unchecked);
        let local = || extensions.get().map(LocalDecision::reason).map(Cause::LocalFallback);
        Self(unchecked().or_else(local).unwrap_or(Cause::Undecided))
    }
}

impl IntoResponse for NoDecision {
    fn into_response(self) -> Response {
        static UNDECIDED: Throttle = Throttle::per_minute(1);
        static UNCHECKED: Throttle = Throttle::per_minute(1);
        static LOCAL_FALLBACK: Throttle = Throttle::per_minute(1);
        let throttle = match self.0 {
            Cause::Undecided => &UNDECIDED,
            Cause::Unchecked(_) => &UNCHECKED,
            Cause::LocalFallback(_) => &LOCAL_FALLBACK,
        };
        observe::missing_value(&self, throttle);
        server_error()
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = NoDecision;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NoDecision> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| NoDecision::from_extensions(&parts.extensions))
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// Extracts the units in flight that the request holds, or `None` if it holds none. There is no extractor without `Option`: a request that
/// is admitted in an outage may hold none.
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> OptionalFromRequestParts<S> for Hold {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// The rejection of the [`Reservation`] extractor: no [`RateLimitLayer`](crate::RateLimitLayer) that
/// [settles](crate::RateLimitLayerBuilder::settle_by) has counted this request. It answers 500 with a problem details body, and logs a warning, at
/// most once per minute.
///
/// A handler that also receives exempt requests takes an `Option<Reservation>`. In an outage, a request that is admitted has a
/// reservation without a [decision](Reservation::decision).
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "no rate limit layer that settles has counted this request: it is exempt, the layer does not settle, or the route is outside of the layer; take an `Option<Reservation>`, or add `.settle_by(..)` to the layer"
)]
#[non_exhaustive]
pub struct NoReservation;

impl IntoResponse for NoReservation {
    fn into_response(self) -> Response {
        static UNCOUNTED: Throttle = Throttle::per_minute(1);
        observe::missing_value(&self, &UNCOUNTED);
        server_error()
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> FromRequestParts<S> for Reservation {
    type Rejection = NoReservation;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NoReservation> {
        parts.extensions.get::<Self>().cloned().ok_or(NoReservation)
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> OptionalFromRequestParts<S> for Reservation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// Returns the response to a mistake in the server. As for every such response of this crate, the log names the cause, and the body
/// does not.
fn server_error() -> Response {
    const BODY: &str = r#"{"title":"Internal Server Error","status":500}"#;
    let fields = [(header::CONTENT_TYPE, "application/problem+json"), (header::CACHE_CONTROL, "no-store")];
    (StatusCode::INTERNAL_SERVER_ERROR, fields, BODY).into_response()
}
