//! Answers over HTTP: a status and a problem details body (RFC 9457).

use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use smallvec::SmallVec;

use super::{Answer, Dialect, fields, repeated, text};
use crate::{decision::Wait, head::Head, limiter::Rejection, policy::Policy};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

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
/// [deny cache](crate::outage::DenyCacheConfig), `RateLimit-Policy` lists all policies, and `RateLimit` those that are known to deny.
/// An admission without a decision of the store has no such fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemDetails;

impl ProblemDetails {
    /// Builds the response of a rejected request, without the header fields of a decision.
    fn without_fields(rejection: &Rejection) -> Response<Bytes> {
        text::response(rejection, PROBLEM_JSON, problem(rejection))
    }
}

impl Rejection {
    /// Returns the response of a layer with default settings: that of [`ProblemDetails`], with the fields of
    /// [`Dialect::Draft11`](Dialect::Draft11) and `Retry-After`. It names no [hidden](Policy::hidden) policy.
    ///
    /// It is for a framework without tower, whose middleware calls a [`Limiter`](crate::Limiter): see
    /// [the guide](crate::guide::migration#frameworks). In axum, return the rejection itself.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("exports", 1, Duration::from_secs(60))?)
    ///     .build()?;
    /// let alice = PartitionKey::new("user", "alice");
    /// let _admission = limiter.admit(alice.clone()).await?;
    ///
    /// let response = limiter.admit(alice).await.unwrap_err().to_response();
    /// assert_eq!(response.status(), 429);
    /// assert_eq!(response.headers()["content-type"], "application/problem+json");
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""exports";q=1;w=60"#);
    /// assert_eq!(response.headers()["retry-after"], "60");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_response(&self) -> Response<Bytes> {
        let Some(decision) = self.decision() else { return ProblemDetails::without_fields(self) };
        repeated::response(decision, || {
            let mut response = ProblemDetails::without_fields(self);
            Dialect::Draft11.add_fields(decision, response.headers_mut());
            response
        })
    }
}

impl Answer for ProblemDetails {
    fn reject(&self, rejection: &Rejection, _head: &Head<'_>) -> Response<Bytes> {
        Self::without_fields(rejection)
    }
}

/// The response of a layer with default settings, which [`to_response`](Rejection::to_response) returns, with the extension. So a
/// handler may return the rejection of its own [`Limiter`](crate::Limiter) as its error.
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
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        let mut response = self.to_response().map(axum::body::Body::from);
        response.extensions_mut().insert(self);
        response
    }
}

/// A problem details body (RFC 9457).
#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    detail: &'a str,
}

impl Body<'_> {
    fn to_json(&self) -> Vec<u8> {
        // This cannot fail: the value contains no map, and a vector accepts every write.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The problem types that the draft registers.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Returns the body of a response.
fn problem(rejection: &Rejection) -> Vec<u8> {
    if let Some(wait) = rejection.retry_after() {
        return denial(wait, text::shown_violated(rejection));
    }
    let (status, detail) = (rejection.status(), text::detail(rejection));
    let (kind, title, detail) = match status {
        StatusCode::SERVICE_UNAVAILABLE => (Some(REDUCED_CAPACITY), "Service unavailable", &*detail),
        // The title of a problem without a type is the phrase of its status (RFC 9457, section 4.2.1).
        StatusCode::BAD_REQUEST => (None, status.canonical_reason().unwrap_or_default(), &*detail),
        _ => (None, status.canonical_reason().unwrap_or_default(), ""),
    };
    Body { kind, title, status: status.as_u16(), detail }.to_json()
}

/// Returns the body of a 429. The parts that do not change are serialized once: under an attack, most responses are denials.
fn denial<'a>(wait: Wait, violated: impl Iterator<Item = &'a Policy>) -> Vec<u8> {
    /// The body up to the text of its detail.
    static START: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let status = StatusCode::TOO_MANY_REQUESTS.as_u16();
        let body = Body { kind: Some(QUOTA_EXCEEDED), title: text::TOO_MANY_REQUESTS, status, detail: "" };
        let mut json = body.to_json();
        json.pop();
        json.extend_from_slice(b",\"detail\":\"");
        json
    });
    let mut digits = itoa::Buffer::new();
    let [before, seconds, after] = text::advice_parts(wait, &mut digits);
    // The detail contains no character that JSON escapes.
    let mut parts: SmallVec<[&[u8]; 24]> =
        SmallVec::from_slice(&[START.as_slice(), before, seconds, after, b"\""]);
    let mut separator: &[u8] = b",\"violated-policies\":[";
    for policy in violated {
        parts.extend([separator, &fields::text(policy).json_name]);
        separator = b",";
    }
    parts.push(if separator == b"," { b"]}" } else { b"}" });
    fields::concatenate(parts)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        check::Pair,
        decision::{Decision, Status},
        key::PartitionKey,
    };

    /// The members in the order of the body.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Expected<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        violated_policies: Vec<&'a str>,
    }

    #[test]
    fn denial_equals_that_of_serializer() {
        let status = |name: &str, wait, is_hidden: bool| {
            let policy = Policy::new(name, 10, Duration::from_secs(1)).unwrap();
            let policy = if is_hidden { policy.hidden() } else { policy };
            let pair = Pair::new(PartitionKey::new("user", "a"), policy, 1);
            Status::new(&pair, 0, wait, Duration::ZERO, Duration::ZERO)
        };
        let printable: String = (b' '..=b'~').map(char::from).collect();
        let names: Vec<&str> = ["\"", "\\", "\\\"]}", "</script>"]
            .into_iter()
            .chain([&printable[..47], &printable[47..]])
            .collect();
        let waits = [Duration::from_micros(1), Duration::from_secs(7), Duration::from_micros(u64::MAX - 2)];
        for wait in waits.map(Wait::For).into_iter().chain([Wait::Never]) {
            for is_hidden in [false, true] {
                let statuses: Vec<Status> = names.iter().map(|name| status(name, wait, is_hidden)).collect();
                let decision = Decision::new(0, statuses);
                let expected = Expected {
                    kind: QUOTA_EXCEEDED,
                    title: "Too many requests",
                    status: 429,
                    detail: match wait {
                        Wait::For(wait) => {
                            format!("Try again in {} s.", crate::decision::whole_seconds(wait))
                        }
                        Wait::Unknown | Wait::Never => {
                            "This request costs more than the whole quota.".to_owned()
                        }
                    },
                    violated_policies: if is_hidden { vec![] } else { names.clone() },
                };
                let expected = serde_json::to_string(&expected).unwrap();
                // The second time, the names come from the policies.
                for _ in 0..2 {
                    let body = problem(&Rejection::Denied(decision.clone()));
                    assert_eq!(String::from_utf8(body).unwrap(), expected);
                }
            }
        }
    }
}
