//! The key of a request, for each of the other crates: the value of a header.

use axum::body::Body;
use http::{Request, Response};
use tower_governor::GovernorError;

/// The header that is the key.
pub const KEY: &str = "x-api-key";

/// The value of the header as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderKey;

pub fn value<T>(request: &Request<T>) -> Option<&str> {
    request.headers().get(KEY)?.to_str().ok()
}

impl tower_governor::key_extractor::KeyExtractor for HeaderKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        value(request).map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

impl tower_rate_limiter::KeyExtractor for HeaderKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, tower_rate_limiter::RateLimitError> {
        let missing = || tower_rate_limiter::RateLimitError::Key("missing".to_owned(), KEY.to_owned());
        value(request).map(str::to_owned).ok_or_else(missing)
    }
}

/// The value of the header after a prefix that separates nested layers.
#[derive(Clone, Copy)]
pub struct PrefixedKey(pub &'static str);

impl tower_rate_limit_redis::KeyResolver for PrefixedKey {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        value(request).map(|value| format!("{}:{value}", self.0)).ok_or_else(|| Response::new(Body::empty()))
    }
}
