//! Rejections as responses of axum handlers.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};

use super::ProblemDetails;
use crate::limiter::Rejection;

/// The response of a layer with default settings: that of [`ProblemDetails`], with the fields of
/// [`Dialect::Draft11`](super::Dialect::Draft11) and the extension. So a handler may return the rejection of its own
/// [`Limiter`](crate::Limiter) as its error.
///
/// ```
/// use axum::extract::State;
/// use tower_sliding_window::{Limiter, PartitionKey, Rejection};
///
/// async fn export(State(exports): State<Limiter>) -> Result<&'static str, Rejection> {
///     let _admission = exports.admit(PartitionKey::new("user", "alice")).await?;
///     Ok("exported")
/// }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = ProblemDetails::complete(&self).map(Body::from);
        response.extensions_mut().insert(self);
        response
    }
}
