//! Redis URLs: whether one asks for TLS, and what an error may repeat of it.

use std::fmt::Display;

use redis::RedisError;

use crate::error::ConfigError;

/// Returns whether a URL asks for TLS. The URL parser skips leading spaces and control characters, and so does this.
pub(super) fn is_tls(url: &str) -> bool {
    let url = url.trim_start_matches(|c: char| c <= ' ');
    let has_scheme =
        |scheme: &str| url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    has_scheme("rediss:") || has_scheme("valkeys:")
}

/// Returns the error of the URL of one of several servers. `server` states which one.
pub(super) fn invalid_url_of(server: impl Display, error: &RedisError) -> ConfigError {
    ConfigError::RedisUrl { reason: format!("{server}: {}", reason_without_url(error)) }
}

/// Returns the error of the URL of a single server.
pub(super) fn invalid_url(error: &RedisError) -> ConfigError {
    ConfigError::RedisUrl { reason: reason_without_url(error) }
}

/// Returns why a URL is invalid, without the URL. The client crate appends ` - `, its own name for the error, and
/// sometimes a part of the URL, which may contain the password.
fn reason_without_url(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}
