//! Answers over gRPC: a status in one HEADERS frame, without a body.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use tonic::{Code, Status, metadata::MetadataMap};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use super::{
    Outcome, Refusal, Respond,
    http::{Http, admit, advice, annotate},
};
use crate::{
    decision::{Decision, Wait},
    key::KeyError,
    outage::Admission,
    settle::Reservation,
};

/// Speaks gRPC: for a tonic server.
///
/// | outcome | code | details |
/// | --- | --- | --- |
/// | denied | `RESOURCE_EXHAUSTED` | `google.rpc.RetryInfo` and `QuotaFailure`; `grpc-retry-pushback-ms`, or -1 if no wait helps |
/// | no decision | `UNAVAILABLE` | |
/// | no key, or a malformed one | `INVALID_ARGUMENT` | |
/// | no key, for the server is not set up to know it; or no possible check | `INTERNAL` | |
///
/// A client gets these as statuses; a plain HTTP 429 would reach it as `UNAVAILABLE`, and without its headers. The fields
/// `RateLimit-Policy` and `RateLimit` are in the metadata of every answer to a request that was decided.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub struct Grpc;

/// Speaks gRPC where the request does, by its `content-type: application/grpc`, and HTTP elsewhere: for one layer over a
/// router that serves both.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub struct HttpOrGrpc;

impl<B, R, E> Respond<Request<B>, Response<R>, E> for Grpc
where
    R: Default,
{
    fn admit(&self, request: &mut Request<B>, admission: &Admission, reservation: Option<&Reservation>) {
        admit(request, admission, reservation);
    }

    fn refuse(&self, _request: &Request<B>, refusal: &Refusal) -> Result<Response<R>, E> {
        Ok(status(refusal).into_http())
    }

    fn annotate(&self, response: &mut Response<R>, outcome: Outcome<'_>) {
        annotate(response, outcome);
    }
}

impl<B, R, E> Respond<Request<B>, Response<R>, E> for HttpOrGrpc
where
    R: Default + From<Bytes>,
{
    fn admit(&self, request: &mut Request<B>, admission: &Admission, reservation: Option<&Reservation>) {
        admit(request, admission, reservation);
    }

    fn refuse(&self, request: &Request<B>, refusal: &Refusal) -> Result<Response<R>, E> {
        const GRPC: &[u8] = b"application/grpc";
        let content_type = request.headers().get(header::CONTENT_TYPE).map(|value| value.as_bytes());
        let start = content_type.and_then(|value| value.get(..GRPC.len()));
        if start.is_some_and(|start| start.eq_ignore_ascii_case(GRPC)) {
            Grpc.refuse(request, refusal)
        } else {
            Http.refuse(request, refusal)
        }
    }

    fn annotate(&self, response: &mut Response<R>, outcome: Outcome<'_>) {
        annotate(response, outcome);
    }
}

fn status(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Denied(decision) => exhausted(decision),
        Refusal::Unavailable(_) | Refusal::BeyondShare(_) => {
            Status::new(Code::Unavailable, "the rate limit could not be checked")
        }
        Refusal::NoKey(KeyError::Misconfigured { .. }) | Refusal::Misconfigured(_) => {
            Status::new(Code::Internal, "internal error")
        }
        Refusal::NoKey(error) => Status::new(Code::InvalidArgument, error.to_string()),
    }
}

fn exhausted(decision: &Decision) -> Status {
    let violations =
        decision.statuses().iter().filter(|status| !status.retry_after().is_zero()).map(|status| {
            let policy = status.policy();
            let description = format!("{} units in {:?}", policy.quota(), policy.window());
            QuotaViolation::new(policy.name(), description)
        });
    let mut details = ErrorDetails::with_quota_failure(violations.collect::<Vec<_>>());
    let mut metadata = MetadataMap::new();
    let pushback = match decision.retry_after() {
        Wait::For(wait) => {
            details.set_retry_info(Some(wait));
            whole_millis(wait) as i64
        }
        // Tells a client not to try again.
        Wait::Never => -1,
    };
    metadata.insert("grpc-retry-pushback-ms", pushback.into());
    Status::with_error_details_and_metadata(
        Code::ResourceExhausted,
        advice(decision.retry_after()),
        details,
        metadata,
    )
}

/// Whole milliseconds, rounded up.
fn whole_millis(wait: Duration) -> u64 {
    wait.as_micros().div_ceil(1_000) as u64
}
