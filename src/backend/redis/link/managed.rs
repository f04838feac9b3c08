//! What a user names by its address.

use std::{fmt, io, sync::Arc};

use redis::{ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    Link,
    cluster::Cluster,
    sentinel::Sentinels,
    server::{Place, Reach, Server, ServerLine},
};
use crate::backend::redis::{error::condemns, tls::Tls};

/// Connections that are made when they are needed, shared by all checks, and made again when they are lost: by the next
/// check, once for all that wait.
#[derive(Clone)]
pub struct Managed(Kind);

#[derive(Clone)]
enum Kind {
    Server(Server),
    Cluster(Cluster),
}

impl Managed {
    /// One server.
    pub(in crate::backend::redis) fn server(url: &str, tls: &Tls) -> RedisResult<Self> {
        Ok(Self(Kind::Server(Server::new(Place::At(reach(url, tls)?)))))
    }

    /// One server behind streams that are made by the caller.
    pub(in crate::backend::redis) fn behind<F, Fut, S>(connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self(Kind::Server(Server::new(Place::Behind(Arc::new(connect)))))
    }

    /// The primary that Sentinels watch. The URL of the primary has the name of the service for a host.
    pub(in crate::backend::redis) fn primary(url: &str, sentinels: &[String]) -> RedisResult<Self> {
        let primary = reach(url, &Tls::default())?;
        let (service, _) = address(primary.info.addr())?;
        let sentinels = sentinels.iter().map(|url| url.as_str().into_connection_info());
        let sentinels = sentinels.collect::<RedisResult<Vec<_>>>()?;
        if sentinels.is_empty() {
            return Err(RedisError::from((ErrorKind::EmptySentinelList, "no Sentinel is named")));
        }
        let place = Place::Primary(Sentinels::new(sentinels, service, primary));
        Ok(Self(Kind::Server(Server::new(place))))
    }

    /// A cluster that some of its nodes are named of. All are connected to as the first one is.
    pub(in crate::backend::redis) fn cluster(urls: &[impl AsRef<str>], tls: &Tls) -> RedisResult<Self> {
        let nodes = urls.iter().map(|url| reach(url.as_ref(), tls)).collect::<RedisResult<Vec<_>>>()?;
        let seeds = nodes.iter().map(|node| address(node.info.addr())).collect::<RedisResult<Vec<_>>>()?;
        let first = nodes.into_iter().next();
        let first = first.ok_or_else(|| {
            RedisError::from((ErrorKind::InvalidClientConfig, "no node of the cluster is named"))
        })?;
        if first.info.redis_settings().db() != 0 {
            let text = "a cluster has no databases but 0";
            return Err(RedisError::from((ErrorKind::InvalidClientConfig, text)));
        }
        Ok(Self(Kind::Cluster(Cluster::new(seeds, first))))
    }

    /// Connects, unless somebody has.
    pub(in crate::backend::redis) async fn connected(&self) -> RedisResult<()> {
        match &self.0 {
            Kind::Server(server) => server.line().await.map(drop),
            Kind::Cluster(cluster) => cluster.connected().await,
        }
    }
}

/// What a URL names. Unless it says which protocol is to be spoken, that may be chosen.
fn reach(url: &str, tls: &Tls) -> RedisResult<Reach> {
    // What the connection needs to know of certificates is kept in its address.
    let client = tls.client_of(url.into_connection_info()?)?;
    Ok(Reach::new(client.get_connection_info().clone(), !url.contains("protocol=")))
}

fn address(address: &ConnectionAddr) -> RedisResult<(String, u16)> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok((host.clone(), *port))
        }
        _ => Err(RedisError::from((ErrorKind::InvalidClientConfig, "this needs a host, and no socket"))),
    }
}

impl Link for Managed {
    type Line = ServerLine;

    async fn line(&self, slot: u16) -> RedisResult<ServerLine> {
        match &self.0 {
            Kind::Server(server) => server.line().await,
            Kind::Cluster(cluster) => cluster.line(slot).await,
        }
    }

    async fn elsewhere(
        &self,
        slot: u16,
        line: &ServerLine,
        error: &RedisError,
    ) -> Option<RedisResult<ServerLine>> {
        match &self.0 {
            // It does not do its work any more; another one may.
            Kind::Server(server) if condemns(error) => line.unless_same(server.line().await),
            Kind::Server(_) => None,
            Kind::Cluster(cluster) => cluster.elsewhere(slot, line, error).await,
        }
    }

    fn store(&self) -> Option<String> {
        Some(match &self.0 {
            Kind::Server(server) => {
                format!("redis {self}/{}", server.place().reach()?.info.redis_settings().db())
            }
            Kind::Cluster(_) => format!("redis {self}"),
        })
    }
}

/// Where it is, without its password.
impl fmt::Display for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Server(server) => match server.place() {
                Place::At(reach) => write!(f, "{}", reach.info.addr()),
                Place::Primary(sentinels) => write!(f, "{} (by Sentinel)", sentinels.service()),
                Place::Behind(_) => f.write_str("a stream of the caller's"),
            },
            Kind::Cluster(cluster) => {
                f.write_str("cluster")?;
                for (host, port) in cluster.seeds() {
                    write!(f, " {host}:{port}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Managed({self})")
    }
}
