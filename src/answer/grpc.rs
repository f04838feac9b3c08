//! Answers over gRPC: a status in one HEADERS frame, without a body.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};
use tonic::{Code, Status, metadata::MetadataMap};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use super::{
    Answer,
    fields::whole_millis,
    problem::ProblemDetails,
    text::{advice, next_try},
};
use crate::{
    decision::{Decision, Wait},
    head::Head,
    key::KeyError,
    limiter::Rejection,
};

/// Answers over gRPC, for a tonic server.
///
/// | rejection | code | details |
/// | --- | --- | --- |
/// | denied | `RESOURCE_EXHAUSTED` | `google.rpc.RetryInfo` and `QuotaFailure`; `grpc-retry-pushback-ms`, or -1 if no wait helps or the wait is too long |
/// | [gave up waiting](Rejection::WaitTooLong) | `RESOURCE_EXHAUSTED` | `RetryInfo` and `grpc-retry-pushback-ms`, a lower bound |
/// | no decision, too many waiting | `UNAVAILABLE` | |
/// | missing or malformed key | `INVALID_ARGUMENT` | |
/// | misconfigured key or check | `INTERNAL` | |
///
/// `grpc-retry-pushback-ms` is a signed integer of 32 bits. For a wait of more than 2^31-1 ms, about 24.8 days, it is -1, which instructs
/// the client not to retry. `RetryInfo` states the exact wait.
///
/// A client receives these as statuses. A plain HTTP 429 would reach it as `UNAVAILABLE`, without its headers. The fields
/// `RateLimit-Policy` and `RateLimit` are in the metadata of every response to a decided request.
///
/// The HTTP status is 200 for every method, with `Cache-Control: no-store`. Use it only for a server of gRPC alone, and
/// [`HttpOrGrpc`] if the server also receives other requests. Together with a closure of
/// [`RateLimitLayerBuilder::rejection`](crate::RateLimitLayerBuilder::rejection), it is an error when the layer is built.
///
/// A handler that keeps a [`Limiter`](crate::Limiter) gets the same statuses from `limiter.admit(..).await?`, because `tonic::Status`
/// implements `From<Rejection>`. See [the guide](crate::guide::grpc#limit-in-a-handler).
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub struct Grpc;

/// Answers a POST request with `content-type: application/grpc` as [`Grpc`] does, and any other request as [`ProblemDetails`] does: for
/// one layer around a router that serves both. A request with `application/grpc-web` is answered over HTTP. So is a request with another
/// method, because a gRPC call is always a POST: no client gets a 200 for a rejected GET.
///
/// A closure of [`RateLimitLayerBuilder::rejection`](crate::RateLimitLayerBuilder::rejection) answers the other requests in place of
/// [`ProblemDetails`]. A gRPC call keeps its gRPC status.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub struct HttpOrGrpc;

impl Answer for Grpc {
    fn reject(&self, rejection: &Rejection, _head: &Head<'_>) -> Response<Bytes> {
        let mut response = status(rejection).into_http::<Bytes>();
        // The HTTP status is 200.
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn overrides_rejection(&self, _head: &Head<'_>) -> bool {
        true
    }
}

impl Answer for HttpOrGrpc {
    fn reject(&self, rejection: &Rejection, head: &Head<'_>) -> Response<Bytes> {
        if is_call(head) { Grpc.reject(rejection, head) } else { ProblemDetails.reject(rejection, head) }
    }

    fn overrides_rejection(&self, head: &Head<'_>) -> bool {
        is_call(head)
    }
}

/// Returns whether a request is a gRPC call.
fn is_call(head: &Head<'_>) -> bool {
    let content_type = head.headers.get(header::CONTENT_TYPE);
    head.method == Method::POST && content_type.is_some_and(|value| is_grpc(value.as_bytes()))
}

/// Returns whether a content type is `application/grpc`, with or without a suffix such as `+proto` and parameters. A client of
/// `application/grpc-web` reads its status elsewhere, so it is not gRPC.
fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    content_type.split_at_checked(GRPC.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
    })
}

/// Converts the rejection to the status that [`Grpc`] answers. Its metadata contains no `RateLimit` fields. Its source is the rejection,
/// which no client receives.
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        let mut status = status(&rejection);
        status.set_source(Arc::new(rejection));
        status
    }
}

fn status(rejection: &Rejection) -> Status {
    match rejection {
        Rejection::Denied(decision) => exhausted(decision.retry_after(), quota_failure(decision)),
        Rejection::WaitTooLong { at_least } => exhausted(Wait::For(next_try(*at_least)), ErrorDetails::new()),
        Rejection::TooManyWaiting { .. } => {
            Status::new(Code::Unavailable, "too many requests wait for their rate limit")
        }
        Rejection::Unavailable(_) | Rejection::LocalFallbackDenied(_) => {
            Status::new(Code::Unavailable, "the rate limit could not be checked")
        }
        Rejection::Key(KeyError::Misconfigured { .. }) | Rejection::Misconfigured(_) => {
            Status::new(Code::Internal, "internal error")
        }
        Rejection::Key(error) => Status::new(Code::InvalidArgument, error.to_string()),
    }
}

fn quota_failure(decision: &Decision) -> ErrorDetails {
    let violations = decision.violated().filter(|policy| !policy.is_hidden()).map(|policy| {
        let mut description = format!("{} units", policy.quota_units());
        if let Some(window) = policy.window() {
            description += &format!(" in {window:?}");
        } else if policy.properties().is_held {
            description += " at the same time";
        }
        QuotaViolation::new(policy.name(), description)
    });
    ErrorDetails::with_quota_failure(violations.collect::<Vec<_>>())
}

/// The value of `grpc-retry-pushback-ms` that instructs the client not to retry.
const DO_NOT_RETRY: i32 = -1;

fn exhausted(wait: Wait, mut details: ErrorDetails) -> Status {
    let mut metadata = MetadataMap::new();
    let pushback = match wait {
        Wait::For(wait) => {
            details.set_retry_info(Some(wait));
            i32::try_from(whole_millis(wait)).unwrap_or(DO_NOT_RETRY)
        }
        Wait::Unknown | Wait::Never => DO_NOT_RETRY,
    };
    metadata.insert("grpc-retry-pushback-ms", pushback.into());
    Status::with_error_details_and_metadata(Code::ResourceExhausted, advice(wait), details, metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_web_is_not_grpc() {
        for grpc in [
            "application/grpc",
            "application/grpc+proto",
            "Application/GRPC",
            "application/grpc; charset=utf-8",
        ] {
            assert!(is_grpc(grpc.as_bytes()), "{grpc}");
        }
        for other in
            ["application/grpc-web", "application/grpc-web+proto", "application/grp", "application/json", ""]
        {
            assert!(!is_grpc(other.as_bytes()), "{other}");
        }
    }
}
