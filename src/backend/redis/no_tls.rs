//! Stands in the place of TLS where the feature `tls` is off.

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};

use super::url::is_tls;
use crate::error::ConfigError;

#[derive(Default)]
pub(super) struct Tls;

impl Tls {
    /// Whether a connection to this URL can be made. The client crate could be able to, for another crate's sake, and without
    /// cryptography.
    pub(super) fn validate(&self, url: &str) -> Result<(), ConfigError> {
        if is_tls(url) {
            let reason = "a URL that begins with rediss:// needs the feature `tls` of tower-sliding-window";
            return Err(ConfigError::RedisTls { reason: reason.to_owned() });
        }
        Ok(())
    }

    pub(super) fn open(&self, info: ConnectionInfo) -> RedisResult<Client> {
        Client::open(info)
    }
}

pub(super) fn prepare(_address: &ConnectionAddr) {}
