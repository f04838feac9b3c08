//! The decision and the reservation as axum extractors.

use std::convert::Infallible;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};

use crate::{decision::Decision, settle::Reservation};

/// There is no [`Decision`]: no [`RateLimitLayer`](crate::RateLimitLayer) has decided this request. It answers 500, for
/// it is the server's mistake. A handler that is also reached by exempt requests takes an `Option<Decision>`, and so does one
/// that is reached in an outage, under an [`OutageRule`](crate::OutageRule) that admits or decides locally: its store has
/// decided nothing then.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no rate limit layer has decided this request")]
pub struct NoDecision;

impl IntoResponse for NoDecision {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = NoDecision;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NoDecision> {
        parts.extensions.get::<Self>().cloned().ok_or(NoDecision)
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// There is no [`Reservation`]: no [`RateLimitLayer`](crate::RateLimitLayer) that [settles](crate::Builder::settle) has counted
/// this request. It answers 500, for it is the server's mistake. A handler that is also reached by exempt requests takes an
/// `Option<Reservation>`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no rate limit layer that settles has counted this request")]
pub struct NoReservation;

impl IntoResponse for NoReservation {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
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
