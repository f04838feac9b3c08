//! Replaces `tls.rs` if the feature `tls` is off.

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};

use super::url::is_tls;
use crate::error::ConfigError;

#[derive(Default)]
pub(super) struct Tls {}

impl Tls {
    /// Returns an error if the URL asks for TLS. Another crate may have enabled TLS in the client crate, but then rustls may lack a
    /// `CryptoProvider`.
    pub(super) fn validate(&self, url: &str) -> Result<(), ConfigError> {
        if is_tls(url) {
            let reason = "a URL that begins with rediss:// needs the feature `tls` of tower-sliding-window";
            return Err(ConfigError::RedisTls { reason: reason.to_owned() });
        }
        Ok(())
    }

    /// Returns a client that connects without TLS.
    pub(super) fn open(&self, info: ConnectionInfo) -> RedisResult<Client> {
        Client::open(info)
    }
}

/// Does nothing without TLS.
pub(super) fn prepare(_address: &ConnectionAddr) {}
