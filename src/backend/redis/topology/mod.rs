//! Connections to Redis: to a single server, to the primary behind Sentinels, to a cluster, or the caller's own.

use std::{fmt, io, sync::Arc};

use redis::{ErrorKind, IntoConnectionInfo, RedisError, RedisResult, aio::ConnectionLike};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{error::requires_reconnect, tls::Tls};

mod clock;
mod cluster;
mod connection;
mod endpoint;
mod external;
mod pending;
mod script_cache;
mod sentinel;
mod server;
mod server_state;

use cluster::{Cluster, Nodes};
pub(super) use connection::Connection;
use endpoint::{Address, Endpoint};
use external::External;
use sentinel::Sentinels;
use server::{Server, Target, unless_same};

/// The servers of a backend. Clones share their connections.
///
/// The backend's own connections are made on demand. When one is lost, the next check reconnects, once for all checks that
/// wait.
#[derive(Clone)]
pub(super) enum Topology {
    /// A single server: at an address, behind Sentinels, or behind the caller's streams.
    Server(Server),
    /// A cluster.
    Cluster(Cluster),
    /// The caller's own connection.
    External(External),
}

impl Topology {
    /// Returns a single server.
    pub(super) fn server(url: &str, tls: &Tls) -> RedisResult<Self> {
        Ok(Self::Server(Server::new(Target::Endpoint(Endpoint::from_url(url, tls)?))))
    }

    /// Returns a single server behind streams that the caller opens.
    pub(super) fn streams<F, Fut, S>(connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::Server(Server::new(Target::Streams(Arc::new(connect))))
    }

    /// Returns the primary that Sentinels monitor. The URL of the primary has the service name as its host.
    pub(super) fn sentinel(primary: &str, sentinels: &[String]) -> RedisResult<Self> {
        let primary = Endpoint::from_url(primary, &Tls::default())?;
        let (service, _) = primary.address()?;
        let sentinels = sentinels.iter().map(|url| url.as_str().into_connection_info());
        let sentinels = sentinels.collect::<RedisResult<Vec<_>>>()?;
        if sentinels.is_empty() {
            return Err(RedisError::from((
                ErrorKind::EmptySentinelList,
                "missing Sentinel: give at least one URL",
            )));
        }
        Ok(Self::Server(Server::new(Target::Sentinels(Sentinels::new(sentinels, service, primary)))))
    }

    /// Returns a cluster. The URLs name some of its servers; the settings of the first apply to all.
    pub(super) fn cluster(urls: &[impl AsRef<str>], tls: &Tls) -> RedisResult<Self> {
        let endpoints = urls.iter().map(|url| Endpoint::from_url(url.as_ref(), tls));
        let endpoints = endpoints.collect::<RedisResult<Vec<_>>>()?;
        let seeds = endpoints.iter().map(Endpoint::address).collect::<RedisResult<Vec<_>>>()?;
        let invalid = |text| RedisError::from((ErrorKind::InvalidClientConfig, text));
        let first = endpoints
            .into_iter()
            .next()
            .ok_or_else(|| invalid("missing cluster node: give at least one URL"))?;
        if first.info.redis_settings().db() != 0 {
            return Err(invalid("a cluster has no database other than 0: remove it from the URL"));
        }
        Ok(Self::Cluster(Cluster::new(seeds, Nodes::Endpoint(first))))
    }

    /// Returns a cluster behind streams that the caller opens to each node.
    pub(super) fn cluster_streams<F, Fut, S>(seeds: Vec<Address>, connect: F) -> Self
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connect = Arc::new(connect);
        let streams = move |(host, port): &Address| {
            let (connect, host, port) = (connect.clone(), host.clone(), *port);
            Target::Streams(Arc::new(move || connect(host.clone(), port)))
        };
        Self::Cluster(Cluster::new(seeds, Nodes::Streams(Box::new(streams))))
    }

    /// Returns the caller's own connection.
    pub(super) fn external(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self::External(External::new(connection))
    }

    /// Connects, unless it is connected.
    pub(super) async fn connect(&self) -> RedisResult<()> {
        match self {
            Self::Server(server) => server.connection().await.map(drop),
            Self::Cluster(cluster) => cluster.connect().await,
            Self::External(_) => Ok(()),
        }
    }

    /// Returns the connection to the server that has the keys of a slot.
    pub(super) async fn connection(&self, slot: u16) -> RedisResult<Connection> {
        match self {
            Self::Server(server) => server.connection().await.map(Connection::Server),
            Self::Cluster(cluster) => cluster.connection(slot).await.map(Connection::Server),
            Self::External(external) => Ok(Connection::External(external.connection(slot))),
        }
    }

    /// Returns the connection for a retry of a command that has not run, because the server of `failed` has returned this
    /// error: to another server, or to the same one. None if a retry cannot succeed.
    pub(super) async fn redirect(
        &self,
        slot: u16,
        failed: &Connection,
        error: &RedisError,
    ) -> Option<RedisResult<Connection>> {
        let redirected = match self {
            Self::Server(server) if requires_reconnect(error) => {
                unless_same(failed.server(), server.connection().await)
            }
            Self::Server(_) => None,
            Self::Cluster(cluster) => cluster.redirect(slot, failed.server(), error).await,
            Self::External(external) => {
                return external.redirect(slot, error).map(Connection::External).map(Ok);
            }
        };
        redirected.map(|connection| connection.map(Connection::Server))
    }

    /// Returns the server's address and database. None if they are unknown.
    pub(super) fn store(&self) -> Option<String> {
        match self {
            Self::Server(server) => {
                let database = server.target().endpoint()?.info.redis_settings().db();
                Some(format!("redis {self}/{database}"))
            }
            Self::Cluster(cluster) if cluster.has_streams() => None,
            Self::Cluster(_) => Some(format!("redis {self}")),
            Self::External(_) => None,
        }
    }
}

/// Writes the address, without user and password.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => match server.target() {
                Target::Endpoint(endpoint) => write!(f, "{}", endpoint.info.addr()),
                Target::Sentinels(sentinels) => write!(f, "{} (by Sentinel)", sentinels.service()),
                Target::Streams(_) => f.write_str("custom streams"),
            },
            Self::Cluster(cluster) => {
                f.write_str(if cluster.has_streams() { "cluster over custom streams" } else { "cluster" })?;
                cluster.seeds().iter().try_for_each(|(host, port)| write!(f, " {host}:{port}"))
            }
            Self::External(_) => f.write_str("custom connection"),
        }
    }
}
