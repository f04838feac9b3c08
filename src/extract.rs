//! Axum extractors: the decision and the reservation.

use std::convert::Infallible;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};

use crate::{decision::Decision, settle::Reservation};

/// The rejection of the [`Decision`] extractor: no [`RateLimitLayer`](crate::RateLimitLayer) has decided this request. It answers
/// 500, because it is a mistake in the server.
///
/// A handler that also receives exempt requests takes an `Option<Decision>`. So does a handler behind an
/// [`OutageRule`](crate::OutageRule) that fails open or decides locally, because the store makes no decision in an outage.
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

/// The rejection of the [`Reservation`] extractor: no [`RateLimitLayer`](crate::RateLimitLayer) that
/// [settles](crate::Builder::settle_by) has counted this request. It answers 500, because it is a mistake in the server. A
/// handler that also receives exempt requests takes an `Option<Reservation>`.
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
