//! The servers that a backend connects to: one server, the primary behind Sentinels, a cluster, or the caller's own.

use std::{fmt, future::Future, io, sync::Arc};

use tokio::io::{AsyncRead, AsyncWrite};

#[cfg(feature = "redis-1")]
use super::topology::External;
use super::{tls::Tls, topology::Topology};
use crate::{error::ConfigError, parameter::TextList};

/// The servers of a [`RedisBackend`](crate::RedisBackend), for its [builder](crate::RedisBackend::builder).
///
/// A URL is `redis://[user:password@]host[:port][/database]`, or `redis+unix:///path` for a Unix socket. With the feature `tls`, it
/// may be `rediss://`. The builder validates it. Special characters in a user or a password must be percent-encoded: `/` is `%2F`,
/// `?` is `%3F`, `#` is `%23`, `@` is `%40`, and `%` is `%25`. A URL with an `@` or a `#` after the host is an error: a part of the password
/// would be the host, which errors, events and metrics state.
///
/// ```
/// use tower_sliding_window::{RedisBackend, redis::RedisServers};
///
/// // The host of the first URL is the service name that the Sentinels monitor.
/// let servers = RedisServers::sentinel("redis://limits", ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"]);
/// let backend = RedisBackend::builder(servers).lazy()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[must_use = "servers do nothing until `RedisBackend::builder(servers)`"]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub struct RedisServers(Servers);

enum Servers {
    Single(String),
    Sentinel {
        primary: String,
        sentinels: Vec<String>,
    },
    Cluster(Vec<String>),
    /// The caller's streams or connection.
    Own(Result<Topology, ConfigError>),
}

/// Contains no URL, because it may contain a password.
impl fmt::Debug for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, count) = match &self.0 {
            Servers::Single(_) => ("single", 1),
            Servers::Sentinel { sentinels, .. } => ("sentinels", sentinels.len()),
            Servers::Cluster(nodes) => ("nodes", nodes.len()),
            Servers::Own(_) => ("own", 1),
        };
        f.debug_struct("RedisServers").field(name, &count).finish_non_exhaustive()
    }
}

impl RedisServers {
    /// Returns a single server.
    pub fn single(url: impl AsRef<str>) -> Self {
        Self(Servers::Single(url.as_ref().to_owned()))
    }

    /// Returns the primary behind Sentinels, which the backend follows.
    ///
    /// The URL of the primary has the service name as its host: `redis://[user:password@]service`. Each Sentinel has its own URL,
    /// such as `redis://10.0.0.1:26379`. There must be at least one.
    ///
    /// When it connects, the backend queries all Sentinels at once. The primary is the one that most of the answering Sentinels name.
    /// If there is no majority, the newest configuration counts. The backend verifies the role of the server, so its user needs
    /// `+role`.
    ///
    /// Then the backend listens to the events of all Sentinels, and discovers those that you have not named. It queries all of them
    /// after each event of a failover, and every second. If more than half of the known Sentinels name another primary, the next check
    /// connects to that one. A planned failover needs this: the old primary goes on answering for seconds, and these charges are
    /// lost. The backend counts a discovered Sentinel from its first answer, because its address may be unreachable from here.
    ///
    /// The connections to the Sentinels have a thread of their own, two for each Sentinel. The thread starts with the first attempt to
    /// connect, and ends when the last clone of the backend is dropped.
    ///
    /// If a Sentinel URL has a user, that user needs `+sentinel|master`. To listen to events, it also needs `+subscribe` and the
    /// channels `&*`; otherwise the backend detects a failover only by its queries. To discover Sentinels, it needs
    /// `+sentinel|sentinels +sentinel|myid` and Redis 6.2. With `+sentinel|get-master-addr-by-name`, the Sentinel that leads a
    /// failover names the new primary seconds earlier. A discovered Sentinel gets the user, password and TLS settings of the first URL.
    ///
    /// During a network partition, a process that reaches neither a majority of the Sentinels nor the new primary uses the old primary
    /// as long as it answers. The charges that this primary receives after the failover are lost.
    pub fn sentinel(primary: impl AsRef<str>, sentinels: impl TextList) -> Self {
        Self(Servers::Sentinel { primary: primary.as_ref().to_owned(), sentinels: owned(sentinels) })
    }

    /// Returns a cluster, by the URLs of some of its nodes. There must be at least one. The user, password and other settings of
    /// the first URL apply to all nodes. The user needs `+asking` and `+cluster|slots`.
    ///
    /// The backend follows slots that move and replicas that are promoted. It queries several nodes, at most twelve at a time, and
    /// the newest owner of each slot wins. With the [permissions](crate::RedisBackend#permissions) `+cluster|info` and
    /// `+cluster|nodes`, it also recognizes a node that is cut off from the cluster.
    pub fn cluster(nodes: impl TextList) -> Self {
        Self(Servers::Cluster(owned(nodes)))
    }

    /// Returns a single server behind your own streams: through a tunnel, or in a simulated network. The backend calls `connect`
    /// once per connection. The server must support RESP3 and require no password.
    ///
    /// ```
    /// use tokio::net::TcpStream;
    /// use tower_sliding_window::{RedisBackend, redis::RedisServers};
    ///
    /// let servers = RedisServers::streams(|| TcpStream::connect("127.0.0.1:6379"));
    /// let backend = RedisBackend::builder(servers).lazy()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn streams<F, Fut, S>(connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self(Servers::Own(Ok(Topology::streams(connect))))
    }

    /// Returns a cluster behind your own streams. `nodes` are the hosts and ports of some of its nodes; there must be at least
    /// one. The backend calls `connect` once per connection, with the host and the port of a node as `CLUSTER SLOTS` or a redirect
    /// names it. If `connect` returns an error, a check of that node's keys returns
    /// [`Reason::Connection`](crate::backend::Reason::Connection). The servers must support RESP3 and require no password.
    ///
    /// ```
    /// use tokio::net::TcpStream;
    /// use tower_sliding_window::{RedisBackend, redis::RedisServers};
    ///
    /// let nodes = [("10.0.0.1", 7000), ("10.0.0.2", 7000)];
    /// let servers = RedisServers::cluster_streams(nodes, |host, port| TcpStream::connect((host, port)));
    /// let backend = RedisBackend::builder(servers).lazy()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn cluster_streams<F, Fut, S>(
        nodes: impl IntoIterator<Item = (impl Into<String>, u16)>,
        connect: F,
    ) -> Self
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let nodes: Vec<(String, u16)> = nodes.into_iter().map(|(host, port)| (host.into(), port)).collect();
        let connect = Arc::new(connect);
        let streams = move |(host, port): &(String, u16)| {
            let (connect, host, port) = (connect.clone(), host.clone(), *port);
            move || connect(host.clone(), port)
        };
        Self(Servers::Own(match nodes.is_empty() {
            true => Err(ConfigError::NoClusterNodes),
            false => Ok(Topology::cluster_streams(nodes, streams)),
        }))
    }

    /// Returns your own connection: a `MultiplexedConnection`, a `ConnectionManager`, or a `ClusterConnection` of `redis` 1.x.
    ///
    /// The connection decides how it reconnects. It must never resend a command that may have run. Otherwise, Redis charges the
    /// check twice. A `ClusterConnection` resends commands by default, so build it with `.retries(0)`. A check of keys that are
    /// being migrated to another node then returns [`Reason::Busy`](crate::backend::Reason::Busy) until the migration has finished.
    ///
    /// A `MultiplexedConnection` and a `ConnectionManager` lead to one server. The backend learns the clock of this server from the
    /// first check, which takes two round trips. Behind a proxy that distributes keys over several servers, a check may be charged
    /// after its deadline, by at most the difference of their clocks. See [`merging`](super::RedisBackendBuilder::merging) for such a
    /// proxy.
    ///
    /// A connection of another type does not show which server replies. Therefore the backend learns the server's clock separately
    /// for each of the 16,384 slots: the first check of a slot takes two round trips. The next check of a slot takes two as well if
    /// the last one is older than 2,000 times its deadline, because the clocks may have drifted apart. If such a connection leads to
    /// one server, use [`server_connection`](Self::server_connection).
    ///
    /// A connection to one server must not lead to a node of a cluster: [`verify`](crate::RedisBackend::verify) reports this, and so
    /// does a warning about the first redirected check.
    #[cfg(feature = "redis-1")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    pub fn connection(connection: impl redis::aio::ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self(Servers::Own(Ok(Topology::External(External::new(connection)))))
    }

    /// Returns your own connection of any type that leads to one server, such as a wrapper around a `ConnectionManager`. The backend
    /// keeps one clock for it. See [`connection`](Self::connection) for what the connection must do.
    #[cfg(feature = "redis-1")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    pub fn server_connection(
        connection: impl redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        Self(Servers::Own(Ok(Topology::External(External::one_server(connection)))))
    }

    /// Returns the connections to these servers, none of which is open.
    pub(super) fn into_topology(self, tls: &Tls) -> Result<Topology, ConfigError> {
        match self.0 {
            Servers::Single(url) => {
                tls.validate([&url])?;
                Topology::server(&url, tls)
            }
            Servers::Sentinel { primary, sentinels } => {
                tls.validate(sentinels.iter().chain([&primary]))?;
                Topology::sentinel(&primary, &sentinels, tls)
            }
            Servers::Cluster(nodes) => {
                tls.validate(&nodes)?;
                Topology::cluster(&nodes, tls)
            }
            Servers::Own(topology) => tls.validate_unused().and(topology),
        }
    }
}

fn owned(urls: impl TextList) -> Vec<String> {
    urls.into_iter().map(|url| url.as_ref().to_owned()).collect()
}
