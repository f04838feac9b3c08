//! Redis URLs: whether one asks for TLS, and what an error may repeat of it.

use redis::RedisError;

/// Returns whether a URL asks for TLS. The URL parser skips leading spaces and control characters, and so does this.
pub(super) fn is_tls(url: &str) -> bool {
    let url = url.trim_start_matches(|c: char| c <= ' ');
    let has_scheme =
        |scheme: &str| url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    has_scheme("rediss:") || has_scheme("valkeys:")
}

/// Returns why a URL is invalid, without the URL. The client crate appends ` - `, its own name for the error, and
/// sometimes a part of the URL, which may contain the password.
pub(super) fn reason_without_url(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}
