//! Answers: what clients see. Header fields, status codes and bodies.
//!
//! The layer decides. An [`Answer`] states the decision in the client's protocol:
//!
//! | answer | for |
//! | --- | --- |
//! | [`ProblemDetails`], the default | HTTP: a status and a problem+json body (RFC 9457) |
//! | [`OpenAiError`] | HTTP: a status and the error object of the OpenAI API |
//! | `Grpc` (feature `tonic`) | gRPC: a status in the headers |
//! | `HttpOrGrpc` (feature `tonic`) | HTTP and gRPC on one port |
//!
//! [`RateLimitLayerBuilder::rejection`](crate::RateLimitLayerBuilder::rejection) replaces only the response of rejected requests, and keeps the header
//! fields. With `HttpOrGrpc`, it replaces only those over HTTP. [`RateLimitLayerBuilder::dialect`](crate::RateLimitLayerBuilder::dialect) chooses other header fields. See
//! [the guide](crate::guide::responses).

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::{decision::Decision, head::Head, limiter::Rejection};

mod dialect;
mod fields;
#[cfg(feature = "tonic")]
mod grpc;
mod openai;
mod problem;
mod repeated;
mod text;

pub use dialect::{Dialect, Reset};
pub(crate) use fields::RetryAfter;
#[cfg(feature = "tonic")]
pub use grpc::{Grpc, HttpOrGrpc};
pub use openai::OpenAiError;
pub use problem::ProblemDetails;
pub(crate) use text::with_status;

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use crate::extract::{NoDecision, NoReservation};

/// Builds the responses of rejected requests, and adds header fields to the responses of decided requests.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an answer",
    label = "expected an answer, such as `answer::ProblemDetails`",
    note = "if it is a closure, call `.rejection(|rejection, head| ..)` instead"
)]
pub trait Answer: Send + Sync + 'static {
    /// Builds the response of a rejected request, without the header fields of its decision. The layer keeps its status, also if it is 200:
    /// see [`Rejection::status`]. The layer adds `Cache-Control: no-store`, unless the response has a `Cache-Control` of its own.
    fn reject(&self, rejection: &Rejection, head: &Head<'_>) -> Response<Bytes>;

    /// Adds the fields of a decision to the headers of a response, regardless of which code built the response. By default,
    /// those of [`Dialect::Draft11`], and `Retry-After` (RFC 9110) for a denial.
    fn fields(&self, decision: &Decision, headers: &mut HeaderMap) {
        Dialect::Draft11.add_fields(decision, headers);
    }

    /// Returns whether this answer builds the response of a rejected request even if the layer has a
    /// [closure](crate::RateLimitLayerBuilder::rejection) for it. By default, it does not. `HttpOrGrpc` does for a gRPC call, whose client
    /// cannot read any other response. An answer around another one passes this call on to it.
    fn overrides_rejection(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }
}

#[diagnostic::do_not_recommend]
impl<A: Answer + ?Sized> Answer for Arc<A> {
    fn reject(&self, rejection: &Rejection, head: &Head<'_>) -> Response<Bytes> {
        (**self).reject(rejection, head)
    }

    fn fields(&self, decision: &Decision, headers: &mut HeaderMap) {
        (**self).fields(decision, headers);
    }

    fn overrides_rejection(&self, head: &Head<'_>) -> bool {
        (**self).overrides_rejection(head)
    }
}

/// An answer with other fields.
pub(crate) struct WithFields<A> {
    pub(crate) answer: A,
    pub(crate) dialect: Dialect,
    pub(crate) retry_after: RetryAfter,
}

impl<A: Answer> Answer for WithFields<A> {
    fn reject(&self, rejection: &Rejection, head: &Head<'_>) -> Response<Bytes> {
        self.answer.reject(rejection, head)
    }

    fn fields(&self, decision: &Decision, headers: &mut HeaderMap) {
        self.dialect.add(decision, headers, self.retry_after);
    }

    fn overrides_rejection(&self, head: &Head<'_>) -> bool {
        self.answer.overrides_rejection(head)
    }
}

/// Converts the return value of a rejection closure to a response with a complete body.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response to a rejected request",
    label = "expected an `http::Response` of `Bytes`, `String`, `&'static str`, `Vec<u8>` or `()`",
    note = "return an `http::Response`; in axum (feature `axum`), add `.into_response()` to what a handler would return"
)]
pub trait IntoAnswer {
    /// Converts the response.
    fn into_answer(self) -> Response<Bytes>;
}

impl IntoAnswer for Response<Bytes> {
    fn into_answer(self) -> Response<Bytes> {
        self
    }
}

impl IntoAnswer for Response<String> {
    fn into_answer(self) -> Response<Bytes> {
        self.map(Bytes::from)
    }
}

impl IntoAnswer for Response<&'static str> {
    fn into_answer(self) -> Response<Bytes> {
        self.map(Bytes::from)
    }
}

impl IntoAnswer for Response<Vec<u8>> {
    fn into_answer(self) -> Response<Bytes> {
        self.map(Bytes::from)
    }
}

impl IntoAnswer for Response<()> {
    fn into_answer(self) -> Response<Bytes> {
        self.map(|()| Bytes::new())
    }
}

/// The body must be complete, as the bodies of `Json`, `Html` and strings are. A body of unknown length becomes empty: a
/// rejection cannot wait for a stream.
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoAnswer for axum::response::Response {
    fn into_answer(self) -> Response<Bytes> {
        self.map(complete)
    }
}

/// Returns the bytes of a complete body, and nothing for a stream.
#[cfg(feature = "axum")]
fn complete(body: axum::body::Body) -> Bytes {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    if http_body::Body::size_hint(&body).exact().is_none() {
        return Bytes::new();
    }
    let bytes = pin!(axum::body::to_bytes(body, usize::MAX));
    match bytes.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(bytes)) => bytes,
        Poll::Ready(Err(_)) | Poll::Pending => Bytes::new(),
    }
}
