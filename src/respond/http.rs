//! Answers over HTTP: status, header fields, and a body after RFC 9457.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde::Serialize;

use super::{Outcome, Refusal, Respond, headers};
use crate::{
    decision::{Decision, Wait},
    key::KeyError,
    outage::Admission,
    policy::Policy,
    settle::Reservation,
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
/// | no key, for the server is not set up to know it; or no possible check | 500 Internal Server Error | the same; it does not say what is wrong |
///
/// Every answer to a request that was decided, admitted or not, has the fields `RateLimit-Policy` and `RateLimit` of the IETF
/// draft "RateLimit header fields for HTTP" (-11), and a 429 has `Retry-After` in whole seconds, rounded up, unless no
/// wait helps. The [`Decision`] is in the extensions of the admitted request and of the response, the [`Refusal`] in
/// those of a refused one's. What is admitted although there is no decision has no such fields, and [`Unchecked`](crate::Unchecked) or
/// [`LocalDecision`](crate::LocalDecision) in both places. Where the layer settles, the [`Reservation`] is in the request's, too; the fields tell of the
/// charge as it was made, before it is settled. `Retry-After` is the wait of the policies that refused; the `t` of another one may be longer,
/// for the client need not wait for that. Of a denial that was [known without asking](crate::DenyCache), `RateLimit-Policy`
/// tells all policies as ever, and `RateLimit` those that are known to deny. Where layers are nested, the request holds the decision and the reservation of the innermost one so far, and the
/// response that of the outermost one, but for a denial, which stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Http;

impl<B, R, E> Respond<Request<B>, Response<R>, E> for Http
where
    R: From<Bytes>,
{
    fn admit(&self, request: &mut Request<B>, admission: &Admission, reservation: Option<&Reservation>) {
        admit(request, admission, reservation);
    }

    fn refuse(&self, _request: &Request<B>, refusal: &Refusal) -> Result<Response<R>, E> {
        let (status, problem) = problem(refusal);
        // Never an error: nothing in it is a map, and writing into memory does not fail.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(R::from(body.into()));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM_JSON);
        response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
        Ok(response)
    }

    fn annotate(&self, response: &mut Response<R>, outcome: Outcome<'_>) {
        annotate(response, outcome);
    }
}

pub(super) fn admit<B>(request: &mut Request<B>, admission: &Admission, reservation: Option<&Reservation>) {
    let extensions = request.extensions_mut();
    match admission {
        Admission::Checked(decision) => drop(extensions.insert(decision.clone())),
        Admission::Local(local) => drop(extensions.insert(local.clone())),
        Admission::Unchecked(unchecked) => drop(extensions.insert(unchecked.clone())),
    }
    if let Some(reservation) = reservation {
        extensions.insert(reservation.clone());
    }
}

pub(super) fn annotate<R>(response: &mut Response<R>, outcome: Outcome<'_>) {
    if let Some(decision) = outcome.decision() {
        headers::add(response.headers_mut(), decision);
        let there = response.extensions().get::<Decision>();
        if there.is_none_or(Decision::is_admitted) {
            response.extensions_mut().insert(decision.clone());
        }
    }
    let extensions = response.extensions_mut();
    match outcome {
        Outcome::Refused(refusal) => drop(extensions.insert(refusal.clone())),
        Outcome::Admitted(Admission::Local(local)) => drop(extensions.insert(local.clone())),
        Outcome::Admitted(Admission::Unchecked(unchecked)) => drop(extensions.insert(unchecked.clone())),
        Outcome::Admitted(Admission::Checked(_)) => {}
    }
}

/// A body after RFC 9457.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// The problem types are those that the draft registers.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

fn problem(refusal: &Refusal) -> (StatusCode, Problem<'_>) {
    let (status, kind, title, detail) = match refusal {
        Refusal::Denied(decision) => (
            StatusCode::TOO_MANY_REQUESTS,
            Some(QUOTA_EXCEEDED),
            "Too many requests",
            advice(decision.retry_after()),
        ),
        Refusal::Unavailable(_) | Refusal::BeyondShare(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            Some(REDUCED_CAPACITY),
            "Service unavailable",
            "The request was not let through because its rate limit could not be checked.".to_owned(),
        ),
        Refusal::NoKey(KeyError::Misconfigured { .. }) | Refusal::Misconfigured(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, None, "Internal server error", String::new())
        }
        Refusal::NoKey(error) => (StatusCode::BAD_REQUEST, None, "Bad request", error.to_string()),
    };
    let violated_policies = match refusal {
        Refusal::Denied(decision) => decision.violated().map(Policy::name).collect(),
        _ => Vec::new(),
    };
    (status, Problem { kind, title, status: status.as_u16(), detail, violated_policies })
}

pub(super) fn advice(wait: Wait) -> String {
    match wait {
        Wait::Never => "This request costs more than the whole quota.".to_owned(),
        Wait::For(wait) => format!("Try again in {} s.", headers::whole_seconds(wait)),
    }
}
