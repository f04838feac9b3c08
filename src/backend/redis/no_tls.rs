//! Replaces `tls.rs` if the feature `tls` is off.

use redis::{ConnectionAddr, ConnectionInfo, RedisResult};

use super::url::is_tls;
use crate::error::ConfigError;

#[derive(Default)]
pub(super) struct Tls {}

impl Tls {
    /// Returns an error if a URL asks for TLS. Another crate may have enabled TLS in the client crate, but then rustls may lack a
    /// `CryptoProvider`.
    pub(super) fn validate<'a>(&self, urls: impl IntoIterator<Item = &'a String>) -> Result<(), ConfigError> {
        if urls.into_iter().any(|url| is_tls(url)) {
            let reason = "a URL that begins with rediss:// needs the feature `tls` of tower-sliding-window";
            return Err(ConfigError::RedisTls { reason: reason.to_owned() });
        }
        Ok(())
    }

    /// Returns no error, because there are no settings.
    pub(super) fn validate_unused(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns how to connect to a server without TLS.
    pub(super) fn apply(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        Ok(info)
    }
}

/// Does nothing without TLS.
pub(super) fn prepare(_address: &ConnectionAddr) {}
