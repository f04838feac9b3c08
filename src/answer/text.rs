//! What any client may read about its rejection: a status, a wait and a text.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};

use crate::{
    decision::{Wait, whole_seconds},
    key::KeyError,
    limiter::Rejection,
    policy::Policy,
};

impl Rejection {
    /// Returns a text for the client, for example for the body of a [custom rejection](crate::RateLimitLayerBuilder::rejection). It never names a
    /// [hidden](Policy::hidden) policy, the store, or a cause inside the server. The text of `Display` does; it is for logs.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 100, std::time::Duration::from_secs(60))?)
    ///     .key(peer_ip())
    ///     // Such as "Too many requests. Try again in 7 s."
    ///     .rejection(|rejection, _| {
    ///         let mut response = Response::new(rejection.client_text().into_owned());
    ///         *response.status_mut() = rejection.status();
    ///         response
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn client_text(&self) -> Cow<'static, str> {
        match self.retry_after() {
            Some(wait) => format!("{TOO_MANY_REQUESTS}. {}", advice(wait)).into(),
            None => detail(self),
        }
    }

    /// Returns the HTTP status of the built-in answers: 429 if the request was denied or would wait too long, 400 if it has no valid key,
    /// 500 after a mistake in the server, and 503 otherwise.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied(_) | Self::WaitTooLong { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Key(KeyError::Misconfigured { .. }) | Self::Misconfigured(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Key(_) => StatusCode::BAD_REQUEST,
            Self::Unavailable(_) | Self::LocalFallbackDenied(_) | Self::TooManyWaiting { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// Returns the wait of a 429. `None` with any other [status](Self::status).
    pub fn retry_after(&self) -> Option<Wait> {
        match self {
            Self::Denied(decision) => Some(decision.retry_after()),
            Self::WaitTooLong { at_least } => Some(Wait::For(next_try(*at_least))),
            _ => None,
        }
    }
}

/// Returns the response of a closure, with the status of the rejection if it has none of its own.
pub(crate) fn with_status(rejection: &Rejection, mut response: Response<Bytes>) -> Response<Bytes> {
    // A gRPC status in the headers is always in a 200.
    if response.status() == StatusCode::OK && !response.headers().contains_key("grpc-status") {
        *response.status_mut() = rejection.status();
    }
    response
}

pub(super) const TOO_MANY_REQUESTS: &str = "Too many requests";

/// Returns the violated policies that a response may name.
pub(super) fn shown_violated(rejection: &Rejection) -> impl Iterator<Item = &Policy> {
    let violated = rejection.decision().into_iter().flat_map(|decision| decision.violated());
    violated.filter(|policy| !policy.is_hidden())
}

/// Returns the text of a rejection that is no 429.
pub(super) fn detail(rejection: &Rejection) -> Cow<'static, str> {
    match rejection {
        Rejection::TooManyWaiting { .. } => "Too many requests wait for their rate limit.".into(),
        Rejection::Key(KeyError::Misconfigured { .. }) | Rejection::Misconfigured(_) => {
            "Internal server error.".into()
        }
        Rejection::Key(error) => error.to_string().into(),
        _ => "The rate limit of the request could not be checked.".into(),
    }
}

/// Returns the response of a rejected request, without the header fields of a decision.
pub(super) fn response(rejection: &Rejection, content_type: HeaderValue, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = rejection.status();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Rejection::WaitTooLong { at_least } = rejection {
        let seconds = whole_seconds(next_try(*at_least));
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// Returns the wait that a response states instead of a lower bound, which may be zero.
pub(super) fn next_try(at_least: Duration) -> Duration {
    at_least.max(Duration::from_secs(1))
}

/// Returns a sentence about the wait of a 429, in ASCII without quotation marks.
pub(super) fn advice(wait: Wait) -> String {
    String::from_utf8(advice_parts(wait, &mut itoa::Buffer::new()).concat()).unwrap_or_default()
}

pub(super) fn advice_parts(wait: Wait, digits: &mut itoa::Buffer) -> [&[u8]; 3] {
    match wait {
        Wait::Unknown => [b"Try again later.", b"", b""],
        Wait::Never => [b"This request costs more than the whole quota.", b"", b""],
        Wait::For(wait) => [b"Try again in ", digits.format(whole_seconds(wait)).as_bytes(), b" s."],
    }
}
