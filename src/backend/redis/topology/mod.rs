//! Connections to Redis: to a single server, to the primary behind Sentinels, to a cluster, or the caller's own.

use std::{fmt, sync::Arc};

use redis::{RedisError, RedisResult, ServerErrorKind};

use super::{
    error::{has_kind, requires_reconnect},
    tls::Tls,
    url::{invalid_url, invalid_url_of},
};
use crate::{
    error::ConfigError,
    guard::{Guard, Protection},
    lock::Lock,
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

pub(super) use cluster::Cluster;
use endpoint::{Address, Endpoint, connection_info, invalid};
pub(super) use external::External;
pub(super) use node::{Connection, Node};
use sentinel::Sentinels;
use server::{Server, Streams, Target};
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
    pub(super) fn server(url: &str, tls: &Tls) -> Result<Self, ConfigError> {
        let endpoint = Endpoint::from_url(url, tls).map_err(|error| invalid_url(&error))?;
        Ok(Self::from_target(Target::Endpoint(Box::new(endpoint))))
    }

    /// Returns a single server behind streams that the caller opens.
    pub(super) fn streams(connect: impl Streams + 'static) -> Self {
        Self::from_target(Target::Streams(Arc::new(connect)))
    }

    fn from_target(target: Target) -> Self {
        let name = target.to_string();
        let server = Server::new(target, Arc::default(), name);
        server.guard().register();
        Self::Server(server)
    }

    /// Returns the primary that Sentinels monitor. The URL of the primary has the service name as its host.
    pub(super) fn sentinel(primary: &str, sentinels: &[String], tls: &Tls) -> Result<Self, ConfigError> {
        let primary = Endpoint::from_url(primary, tls);
        let primary = primary.and_then(|primary| Ok((primary.address()?.0, primary)));
        let (service, primary) = primary.map_err(|error| {
            invalid_url_of("the primary, whose host is the service name of the Sentinels", &error)
        })?;
        let sentinels = (1..).zip(sentinels).map(|(number, url)| {
            connection_info(url, tls)
                .map_err(|error| invalid_url_of(format_args!("Sentinel {number}"), &error))
        });
        let sentinels = sentinels.collect::<Result<Vec<_>, _>>()?;
        if sentinels.is_empty() {
            return Err(ConfigError::RedisUrl {
                reason: "missing Sentinel: give at least one URL".to_owned(),
            });
        }
        let sentinels = Sentinels { named: sentinels, discovered: Lock::default(), service, primary };
        Ok(Self::from_target(Target::Sentinels(Arc::new(sentinels))))
    }

    /// Returns a cluster. The URLs name some of its servers; the settings of the first apply to all.
    pub(super) fn cluster(urls: &[String], tls: &Tls) -> Result<Self, ConfigError> {
        let endpoint = |url| {
            let endpoint = Endpoint::from_url(url, tls)?;
            if endpoint.info.redis_settings().db() != 0 {
                return Err(invalid(
                    "in a cluster, the backend uses only database 0: remove it from the URL",
                ));
            }
            Ok((endpoint.address()?, endpoint))
        };
        let nodes = (1..).zip(urls).map(|(number, url)| {
            endpoint(url).map_err(|error| invalid_url_of(format_args!("node {number}"), &error))
        });
        let (seeds, endpoints): (Vec<_>, Vec<_>) = nodes.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let missing =
            || ConfigError::RedisUrl { reason: "missing cluster node: give at least one URL".to_owned() };
        let first = endpoints.into_iter().next().ok_or_else(missing)?;
        let node = move |address: &Address| Target::Endpoint(Box::new(first.with_address(address)));
        Ok(Self::Cluster(Cluster::new(seeds, false, node)))
    }

    /// Returns a cluster behind streams that the caller opens to each node.
    pub(super) fn cluster_streams<S: Streams + 'static>(
        seeds: Vec<Address>,
        streams: impl Fn(&Address) -> S + Send + Sync + 'static,
    ) -> Self {
        let node = move |address: &Address| Target::Streams(Arc::new(streams(address)));
        Self::Cluster(Cluster::new(seeds, true, node))
    }

    /// Returns the same servers, with connections of their own. The caller's own connection is the same.
    pub(super) fn with_own_connections(&self) -> Self {
        match self {
            Self::Server(server) => Self::from_target(server.target().clone()),
            Self::Cluster(cluster) => Self::Cluster(cluster.with_own_connections()),
            Self::External(external) => Self::External(external.clone()),
        }
    }

    /// Connects, unless it is connected.
    pub(super) async fn connect(&self) -> RedisResult<()> {
        match self {
            Self::Server(server) => server.connection().await.map(drop),
            Self::Cluster(cluster) => cluster.connect().await,
            Self::External(_) => Ok(()),
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
        self.look_up_guard().protection.add(protection);
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

    /// Returns the node that has the keys of a slot, or the cluster if the node must be looked up or may have changed.
    pub(super) fn connected_owner(&self, slot: u16) -> Result<Node, &Cluster> {
        match self {
            Self::Server(server) => Ok(Node::new(server.clone())),
            Self::Cluster(cluster) => cluster.connected_owner(slot).map(Node::new).ok_or(cluster),
            Self::External(external) => Ok(Node::External(external.connection(slot))),
        }
    }

    /// Returns the guard of the server, or that of the look-ups in a cluster.
    fn look_up_guard(&self) -> &Arc<Guard> {
        match self {
            Self::Server(server) => server.guard(),
            Self::Cluster(cluster) => cluster.guard(),
            Self::External(external) => &external.guard,
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
        let has_moved = has_kind(error, &[ServerErrorKind::Moved]);
        if has_moved && !self.needs_slots() {
            // Some checks are redirected to servers that the backend does not know.
            self.look_up_guard().events.cluster_node();
        }
        match self {
            Self::Server(server) => requires_reconnect(error).then(|| Ok(Node::new(server.clone()))),
            Self::Cluster(cluster) => {
                let is_asking = has_kind(error, &[ServerErrorKind::Ask]);
                let server = cluster.redirect(slot, failed, error).await?;
                Some(server.map(|server| Node::Server { server, is_asking }))
            }
            // A cluster client finds the new owner of a slot by itself.
            Self::External(external) => has_moved.then(|| Ok(Node::External(external.connection(slot)))),
        }
    }

    /// Returns the server's address and database. None if they are unknown.
    pub(super) fn store(&self) -> Option<String> {
        match self {
            Self::Server(server) => {
                let database = server.target().endpoint()?.info.redis_settings().db();
                Some(format!("redis {self}/{database}"))
            }
            Self::Cluster(cluster) => (!cluster.has_streams()).then(|| format!("redis {self}")),
            Self::External(_) => None,
        }
    }
}

/// Writes the address, without user and password.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.look_up_guard().events.server())
    }
}
