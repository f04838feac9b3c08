//! Where the primary is, by those who watch it.

use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError, RedisResult, TlsMode,
    sentinel::{Sentinel, SentinelNodeConnectionInfo},
};
use tokio::task::JoinSet;

use super::server::Reach;
use crate::backend::redis::tls;

/// Several Sentinels, and the name under which they know the primary.
pub(super) struct Sentinels {
    sentinels: Vec<ConnectionInfo>,
    service: String,
    /// How the primary is connected to, but for its address.
    primary: Reach,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<ConnectionInfo>, service: String, primary: Reach) -> Self {
        Self { sentinels, service, primary }
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    pub(super) fn reach(&self) -> &Reach {
        &self.primary
    }

    /// How to reach the primary. All are asked at once, for one that hangs must not keep the others from answering; the first
    /// that names a server which is a primary, by its own word too, is believed.
    pub(super) async fn primary(&self) -> RedisResult<Reach> {
        let mut asked: JoinSet<RedisResult<ConnectionInfo>> =
            self.sentinels.iter().map(|sentinel| self.ask(sentinel.clone())).collect();
        let mut outcome = Err(RedisError::from((ErrorKind::EmptySentinelList, "no Sentinel was named")));
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(info)) => {
                    let info = info.set_redis_settings(self.primary.info.redis_settings().clone());
                    return Ok(Reach { info, ..self.primary.clone() });
                }
                Ok(Err(error)) => outcome = Err(error),
                // It has panicked, or the runtime is ending.
                Err(error) => outcome = Err(std::io::Error::other(error).into()),
            }
        }
        outcome
    }

    fn ask(
        &self,
        sentinel: ConnectionInfo,
    ) -> impl Future<Output = RedisResult<ConnectionInfo>> + Send + 'static {
        let service = self.service.clone();
        let mut settings = self.primary.info.redis_settings().clone();
        if self.primary.may_be_resp2 {
            // Every server tells its role in it, and those that know no RESP3 refuse it.
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
        // Both are connected to before the primary is opened.
        tls::prepare(sentinel.addr());
        tls::prepare(self.primary.info.addr());
        async move {
            let mut sentinel = Sentinel::build(vec![sentinel])?;
            let client = sentinel.async_master_for(&service, Some(&node)).await?;
            Ok(client.get_connection_info().clone())
        }
    }
}
