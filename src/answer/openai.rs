//! Answers with the error object of the OpenAI API.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use super::{Answer, text};
use crate::{head::Head, limiter::Rejection, policy::Policy};

/// Answers over HTTP with the error object of the OpenAI API, whose clients print its message:
/// `{"error":{"message":"Too many requests. Try again in 7 s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`.
///
/// | rejection | status | `type` | `code` |
/// | --- | --- | --- | --- |
/// | denied, [gave up waiting](Rejection::WaitTooLong) | 429 | the first violated policy that is not hidden, such as `tokens`, or else `requests` | `rate_limit_exceeded` |
/// | no decision, too many waiting | 503 | `server_error` | `null` |
/// | missing or malformed key | 400 | `invalid_request_error` | `null` |
/// | misconfigured key or check | 500 | `server_error` | `null` |
///
/// These clients also read `retry-after-ms` ([`RateLimitLayerBuilder::retry_after_ms`](crate::RateLimitLayerBuilder::retry_after_ms)) and the fields of
/// [`Dialect::XRateLimitByPolicy`](super::Dialect::XRateLimitByPolicy).
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAiError;

/// The body.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl Answer for OpenAiError {
    fn reject(&self, rejection: &Rejection, _head: &Head<'_>) -> Response<Bytes> {
        let (kind, code) = match rejection.status() {
            StatusCode::TOO_MANY_REQUESTS => {
                let policy = text::shown_violated(rejection).next();
                (policy.map_or("requests", Policy::name), Some("rate_limit_exceeded"))
            }
            StatusCode::BAD_REQUEST => ("invalid_request_error", None),
            _ => ("server_error", None),
        };
        let message = &rejection.client_text();
        let body = ErrorBody { error: ErrorObject { message, kind, param: None, code } };
        // This cannot fail: the value contains no map, and a vector accepts every write.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        text::response(rejection, HeaderValue::from_static("application/json"), body)
    }
}
