//! The primary behind Sentinels.

use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError, RedisResult, TlsMode,
    sentinel::{Sentinel, SentinelNodeConnectionInfo},
};
use tokio::task::JoinSet;

use super::endpoint::Endpoint;
use crate::backend::redis::tls;

/// Several Sentinels, and the service name under which they monitor the primary.
pub(super) struct Sentinels {
    sentinels: Vec<ConnectionInfo>,
    service: String,
    /// How to connect to the primary. The Sentinels supply its address.
    primary: Endpoint,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<ConnectionInfo>, service: String, primary: Endpoint) -> Self {
        Self { sentinels, service, primary }
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Returns how to connect to the primary, without its current address.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.primary
    }

    /// Resolves the primary. All Sentinels are queried at once, so that one that hangs does not delay the others. The first
    /// server that a Sentinel names, and that confirms its role, is the primary.
    pub(super) async fn resolve(&self) -> RedisResult<Endpoint> {
        let mut queries: JoinSet<RedisResult<ConnectionInfo>> =
            self.sentinels.iter().map(|sentinel| self.query(sentinel.clone())).collect();
        let mut outcome =
            Err(RedisError::from((ErrorKind::EmptySentinelList, "missing Sentinel: give at least one URL")));
        while let Some(reply) = queries.join_next().await {
            match reply {
                Ok(Ok(info)) => {
                    let info = info.set_redis_settings(self.primary.info.redis_settings().clone());
                    return Ok(Endpoint { info, ..self.primary.clone() });
                }
                Ok(Err(error)) => outcome = Err(error),
                // The task has panicked, or the runtime is shutting down.
                Err(error) => outcome = Err(std::io::Error::other(error).into()),
            }
        }
        outcome
    }

    fn query(
        &self,
        sentinel: ConnectionInfo,
    ) -> impl Future<Output = RedisResult<ConnectionInfo>> + Send + 'static {
        let service = self.service.clone();
        let mut settings = self.primary.info.redis_settings().clone();
        if self.primary.allows_resp2 {
            // Every server reports its role over RESP2. A server that does not know RESP3 rejects the connection.
            settings = settings.set_protocol(ProtocolVersion::RESP2);
        }
        let node = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(settings)
            .set_tcp_settings(self.primary.info.tcp_settings().clone());
        let node = match self.primary.info.addr() {
            ConnectionAddr::TcpTls { insecure: false, .. } => node.set_tls_mode(TlsMode::Secure),
            ConnectionAddr::TcpTls { insecure: true, .. } => node.set_tls_mode(TlsMode::Insecure),
            _ => node,
        };
        // The query connects to the Sentinel and to the primary.
        tls::prepare(sentinel.addr());
        tls::prepare(self.primary.info.addr());
        async move {
            let mut sentinel = Sentinel::build(vec![sentinel])?;
            let client = sentinel.async_master_for(&service, Some(&node)).await?;
            Ok(client.get_connection_info().clone())
        }
    }
}
