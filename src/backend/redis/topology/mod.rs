//! Connections to Redis: to a single server, to the primary behind Sentinels, to a cluster, or the caller's own.

use std::{fmt, io, sync::Arc};

#[cfg(feature = "redis-1")]
use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{error::requires_reconnect, tls::Tls};
use crate::{
    guard::{Guard, Protection},
    observe::ServerBreaker,
};

mod clock;
mod cluster;
mod endpoint;
#[cfg_attr(not(feature = "redis-1"), allow(dead_code, reason = "only this feature creates one"))]
mod external;
mod follower;
mod node;
mod pending;
mod script_cache;
mod sentinel;
mod server;
mod server_state;
mod slot_map;

use cluster::{Cluster, Nodes};
use endpoint::{Address, Endpoint, connection_info};
use external::External;
pub(super) use node::{Connection, Node};
use sentinel::Sentinels;
use server::{Server, Target};
pub(super) use server_state::ServerState;

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
    #[cfg_attr(not(feature = "redis-1"), allow(dead_code, reason = "only this feature creates one"))]
    External(External),
}

impl Topology {
    /// Returns a single server.
    pub(super) fn server(url: &str, tls: &Tls) -> RedisResult<Self> {
        Ok(Self::from_target(Target::Endpoint(Box::new(Endpoint::from_url(url, tls)?))))
    }

    /// Returns a single server behind streams that the caller opens.
    pub(super) fn streams<F, Fut, S>(connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::from_target(Target::Streams(Arc::new(connect)))
    }

    fn from_target(target: Target) -> Self {
        let name = target.to_string();
        Self::Server(Server::new(target, Arc::default(), name))
    }

    /// Returns the primary that Sentinels monitor. The URL of the primary has the service name as its host.
    pub(super) fn sentinel(primary: &str, sentinels: &[String], tls: &Tls) -> RedisResult<Self> {
        let primary = Endpoint::from_url(primary, tls)?;
        let (service, _) = primary.address()?;
        let sentinels = sentinels.iter().map(|url| connection_info(url, tls));
        let sentinels = sentinels.collect::<RedisResult<Vec<_>>>()?;
        if sentinels.is_empty() {
            return Err(RedisError::from((
                ErrorKind::EmptySentinelList,
                "missing Sentinel: give at least one URL",
            )));
        }
        Ok(Self::from_target(Target::Sentinels(Arc::new(Sentinels::new(sentinels, service, primary)))))
    }

    /// Returns a cluster. The URLs name some of its servers; the settings of the first apply to all.
    pub(super) fn cluster(urls: &[String], tls: &Tls) -> RedisResult<Self> {
        let endpoints = urls.iter().map(|url| Endpoint::from_url(url, tls));
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
        Ok(Self::Cluster(Cluster::new(seeds, Nodes::Endpoint(Box::new(first)))))
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
    #[cfg(feature = "redis-1")]
    pub(super) fn external(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self::External(External::new(connection))
    }

    /// Returns the caller's own connection to one server.
    #[cfg(feature = "redis-1")]
    pub(super) fn external_server(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self::External(External::one_server(connection))
    }

    /// Connects, unless it is connected.
    pub(super) async fn connect(&self) -> RedisResult<()> {
        match self {
            Self::Server(server) => server.connection().await.map(drop),
            Self::Cluster(cluster) => cluster.connect().await,
            Self::External(_) => Ok(()),
        }
    }

    /// Returns the number of primaries with slots, as far as they are known.
    pub(super) fn primaries(&self) -> usize {
        match self {
            Self::Server(_) | Self::External(_) => 1,
            Self::Cluster(cluster) => cluster.primaries(),
        }
    }

    /// Returns the address of the primary of a slot, without user and password. None if it is not known.
    pub(super) fn primary_of(&self, slot: u16) -> Option<String> {
        match self {
            Self::Server(_) | Self::External(_) => Some(self.to_string()),
            Self::Cluster(cluster) => cluster.primary_of(slot),
        }
    }

    /// Returns whether a check of several keys may need several calls, because this is a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns whether this may be the caller's own connection to a cluster.
    pub(super) fn has_client_of_cluster(&self) -> bool {
        matches!(self, Self::External(external) if external.has_slots())
    }

    /// Adds the settings of a limiter to the protection of all servers.
    pub(super) fn protect(&self, protection: Protection) {
        self.look_up_guard().protect(protection);
    }

    /// Returns the circuit breaker of each server.
    pub(super) fn breakers(&self) -> Vec<ServerBreaker> {
        match self {
            Self::Server(_) | Self::External(_) => self.look_up_guard().breaker().into_iter().collect(),
            Self::Cluster(cluster) => cluster.breakers(),
        }
    }

    /// Returns whether the slot of a command has an effect on where or how it is sent.
    pub(super) fn needs_slots(&self) -> bool {
        self.is_cluster() || self.has_client_of_cluster()
    }

    /// Returns the node that has the keys of a slot, or `None` if it must be looked up or may have changed.
    pub(super) fn connected_owner(&self, slot: u16) -> Option<Node> {
        match self {
            Self::Server(server) => Some(Node::new(server.clone())),
            Self::Cluster(cluster) => cluster.connected_owner(slot).map(Node::new),
            Self::External(external) => Some(Node::External(external.connection(slot))),
        }
    }

    /// Returns the node that has the keys of a slot, or `None` if it must be looked up.
    pub(super) async fn known_owner(&self, slot: u16) -> RedisResult<Option<Node>> {
        match self {
            Self::Server(_) | Self::External(_) => Ok(self.connected_owner(slot)),
            Self::Cluster(cluster) => Ok(cluster.known_owner(slot).await?.map(Node::new)),
        }
    }

    /// Looks up the node that has the keys of a slot.
    pub(super) async fn owner(&self, slot: u16) -> RedisResult<Node> {
        match self {
            Self::Server(server) => Ok(Node::new(server.clone())),
            Self::Cluster(cluster) => cluster.owner(slot).await.map(Node::new),
            Self::External(external) => Ok(Node::External(external.connection(slot))),
        }
    }

    /// Returns the guard of such look-ups.
    pub(super) fn look_up_guard(&self) -> &Arc<Guard> {
        match self {
            Self::Server(server) => server.guard(),
            Self::Cluster(cluster) => cluster.guard(),
            Self::External(external) => external.guard(),
        }
    }

    /// Returns the node for a retry of a command that has not run, because the node in the state `failed` has returned this
    /// error. None if a retry cannot succeed.
    pub(super) async fn redirect(
        &self,
        slot: u16,
        failed: &Arc<ServerState>,
        error: &RedisError,
    ) -> Option<RedisResult<Node>> {
        if error.kind() == ServerErrorKind::Moved.into() && !self.needs_slots() {
            self.look_up_guard().reject_cluster_node();
        }
        match self {
            Self::Server(server) => requires_reconnect(error).then(|| Ok(Node::new(server.clone()))),
            Self::Cluster(cluster) => {
                let is_asking = error.kind() == ServerErrorKind::Ask.into();
                let server = cluster.redirect(slot, failed, error).await?;
                Some(server.map(|server| Node::Server { server, is_asking }))
            }
            Self::External(external) => external.redirect(slot, error).map(|node| Ok(Node::External(node))),
        }
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
            Self::Server(server) => server.target().fmt(f),
            Self::Cluster(cluster) => cluster.fmt(f),
            Self::External(_) => f.write_str("custom connection"),
        }
    }
}
