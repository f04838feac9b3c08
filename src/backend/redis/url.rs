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

/// Returns whether a URL has an `@` or a fragment after its host. Then a special character of the password has ended the host too early, and a
/// part of the password would be the host. `#insecure` has an error of its own. The URL of a Unix socket has no host.
pub(super) fn has_unencoded_password(url: &str) -> bool {
    let after_host = || {
        let (scheme, rest) = url.split_once("://")?;
        let (host, rest) = rest.split_at(rest.find(['/', '?', '#'])?);
        (!host.is_empty() && !scheme.ends_with("unix")).then_some(rest)
    };
    after_host().is_some_and(|rest| {
        rest.contains('@')
            || rest.split_once('#').is_some_and(|(_, fragment)| !["", "insecure"].contains(&fragment))
    })
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
