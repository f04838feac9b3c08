//! Answers over HTTP: a status and a problem details body (RFC 9457).

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use super::{Answer, fields};
use crate::{decision::Wait, head::Head, key::KeyError, limiter::Rejection, policy::Policy};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Answers over HTTP with a status and a problem+json body (RFC 9457). The default.
///
/// | rejection | status | body |
/// | --- | --- | --- |
/// | denied | 429 Too Many Requests (RFC 6585) | problem type `quota-exceeded`, with the names of the violated policies |
/// | [gave up waiting](Rejection::WaitTooLong) | 429 Too Many Requests | problem type `quota-exceeded`; `Retry-After` is a lower bound |
/// | no decision, too many waiting | 503 Service Unavailable | problem type `temporary-reduced-capacity` |
/// | missing or malformed key | 400 Bad Request | a problem without a type of its own |
/// | misconfigured key or check | 500 Internal Server Error | the same; it does not state the cause |
///
/// Every response to a decided request, admitted or denied, has the fields `RateLimit-Policy` and `RateLimit` of the IETF draft
/// "RateLimit header fields for HTTP" (-11), or those of another [`Dialect`](super::Dialect). They state the charge as it was made, before it is settled. A 429 has
/// `Retry-After` in whole seconds, rounded up, unless no wait helps. `Retry-After` is the wait of the policies that deny; the
/// `t` of another policy may be longer, because the client need not wait for it. For a denial from the
/// [deny cache](crate::outage::DenyCache), `RateLimit-Policy` lists all policies, and `RateLimit` those that are known to deny.
/// An admission without a decision of the store has no such fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Problem;

impl Problem {
    /// Builds the response of a rejected request, without the header fields of a decision.
    pub(crate) fn response(rejection: &Rejection) -> Response<Bytes> {
        let (status, problem) = problem(rejection);
        // This cannot fail: the value contains no map, and a vector accepts every write.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM_JSON);
        response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
        if let Rejection::WaitTooLong { at_least } = rejection {
            let seconds = fields::whole_seconds(next_try(*at_least));
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl Answer for Problem {
    fn reject(&self, rejection: &Rejection, _head: &Head<'_>) -> Response<Bytes> {
        Self::response(rejection)
    }
}

/// A problem details body (RFC 9457).
#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// The problem types that the draft registers.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

fn problem(rejection: &Rejection) -> (StatusCode, Body<'_>) {
    let (status, kind, title, detail) = match rejection {
        Rejection::Denied(decision) => (
            StatusCode::TOO_MANY_REQUESTS,
            Some(QUOTA_EXCEEDED),
            "Too many requests",
            advice(decision.retry_after()),
        ),
        Rejection::WaitTooLong { at_least } => (
            StatusCode::TOO_MANY_REQUESTS,
            Some(QUOTA_EXCEEDED),
            "Too many requests",
            advice(Wait::For(next_try(*at_least))),
        ),
        Rejection::TooManyWaiting { .. } => (
            StatusCode::SERVICE_UNAVAILABLE,
            Some(REDUCED_CAPACITY),
            "Service unavailable",
            "Too many requests wait for their rate limit.".to_owned(),
        ),
        Rejection::Unavailable(_) | Rejection::LocalFallbackDenied(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            Some(REDUCED_CAPACITY),
            "Service unavailable",
            "The rate limit of the request could not be checked.".to_owned(),
        ),
        Rejection::Key(KeyError::Misconfigured { .. }) | Rejection::Misconfigured(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, None, "Internal server error", String::new())
        }
        Rejection::Key(error) => (StatusCode::BAD_REQUEST, None, "Bad request", error.to_string()),
    };
    let violated_policies = match rejection {
        Rejection::Denied(decision) => {
            decision.violated().filter(|policy| !policy.is_hidden()).map(Policy::name).collect()
        }
        _ => Vec::new(),
    };
    (status, Body { kind, title, status: status.as_u16(), detail, violated_policies })
}

/// Returns the wait that a response states instead of a lower bound, which may be zero.
pub(super) fn next_try(at_least: Duration) -> Duration {
    at_least.max(Duration::from_secs(1))
}

pub(super) fn advice(wait: Wait) -> String {
    match wait {
        Wait::Never => "This request costs more than the whole quota.".to_owned(),
        Wait::For(wait) => format!("Try again in {} s.", fields::whole_seconds(wait)),
    }
}
