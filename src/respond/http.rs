//! Answers over HTTP: status, header fields, and a body after RFC 9457.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Value, json};

use super::{Outcome, Refusal, Respond, headers};
use crate::{
    decision::{Decision, Wait},
    key::KeyError,
};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Speaks HTTP; the default.
///
/// | outcome | status | body |
/// | --- | --- | --- |
/// | denied | 429 Too Many Requests (RFC 6585) | problem type `quota-exceeded`, with the names of the violated policies |
/// | no decision | 503 Service Unavailable | problem type `temporary-reduced-capacity` |
/// | no key, or a malformed one | 400 Bad Request | a problem without a type of its own |
/// | no key, for the server is not set up to know it | 500 Internal Server Error | the same; it does not say what is wrong |
///
/// Every answer to a counted request, admitted or not, has the fields `RateLimit-Policy` and `RateLimit` of the IETF
/// draft "RateLimit header fields for HTTP" (-11), and a 429 has `Retry-After` in whole seconds, rounded up, unless no
/// wait helps. The [`Decision`] is in the extensions of the admitted request and of the response, the [`Refusal`] in
/// those of a refused one's. Where layers are nested, the request holds the decision of the innermost one so far, and the
/// response that of the outermost one, but for a denial, which stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Http;

impl<B, R, E> Respond<Request<B>, Response<R>, E> for Http
where
    R: From<Bytes>,
{
    fn admit(&self, request: &mut Request<B>, decision: &Decision) {
        admit(request, decision);
    }

    fn refuse(&self, _request: &Request<B>, refusal: &Refusal) -> Result<Response<R>, E> {
        let problem = problem(refusal);
        let mut response = Response::new(R::from(problem.body.to_string().into()));
        *response.status_mut() = problem.status;
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM_JSON);
        response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
        Ok(response)
    }

    fn annotate(&self, response: &mut Response<R>, outcome: Outcome<'_>) {
        annotate(response, outcome);
    }
}

pub(super) fn admit<B>(request: &mut Request<B>, decision: &Decision) {
    request.extensions_mut().insert(decision.clone());
}

pub(super) fn annotate<R>(response: &mut Response<R>, outcome: Outcome<'_>) {
    if let Some(decision) = outcome.decision() {
        headers::add(response.headers_mut(), decision);
        let there = response.extensions().get::<Decision>();
        if there.is_none_or(Decision::is_admitted) {
            response.extensions_mut().insert(decision.clone());
        }
    }
    if let Outcome::Refused(refusal) = outcome {
        response.extensions_mut().insert(refusal.clone());
    }
}

struct Problem {
    status: StatusCode,
    body: Value,
}

/// The problem types are those that the draft registers.
fn problem(refusal: &Refusal) -> Problem {
    let registered = |name: &str| format!("https://iana.org/assignments/http-problem-types#{name}");
    match refusal {
        Refusal::Denied(decision) => Problem {
            status: StatusCode::TOO_MANY_REQUESTS,
            body: json!({
                "type": registered("quota-exceeded"),
                "title": "Too many requests",
                "status": 429,
                "detail": advice(decision.retry_after()),
                "violated-policies": decision.violated().map(|policy| policy.name()).collect::<Vec<_>>(),
            }),
        },
        Refusal::Unavailable(_) => Problem {
            status: StatusCode::SERVICE_UNAVAILABLE,
            body: json!({
                "type": registered("temporary-reduced-capacity"),
                "title": "Service unavailable",
                "status": 503,
                "detail": "The request was not let through because its rate limit could not be checked.",
            }),
        },
        Refusal::NoKey(KeyError::Misconfigured { .. }) => Problem {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            body: json!({ "title": "Internal server error", "status": 500 }),
        },
        Refusal::NoKey(error) => Problem {
            status: StatusCode::BAD_REQUEST,
            body: json!({ "title": "Bad request", "status": 400, "detail": error.to_string() }),
        },
    }
}

pub(super) fn advice(wait: Wait) -> String {
    match wait {
        Wait::Never => "This request costs more than the whole quota.".to_owned(),
        Wait::For(wait) => format!("Try again in {} s.", headers::whole_seconds(wait)),
    }
}
