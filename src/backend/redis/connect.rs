//! The constructors of a backend: a single server, the primary behind Sentinels, or a cluster.

use std::{future::Future, io};

use redis::RedisResult;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{ConnectError, RedisBackend, Tls, Topology, url::reason_without_url};
use crate::error::ConfigError;

impl RedisBackend {
    /// Connects to `redis://[user:password@]host[:port][/database]`, or to a Unix socket at `redis+unix:///path`. With the
    /// feature `tls`, also connects to `rediss://`. A public authority must have signed the server's certificate.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if the URL is invalid or the server does not answer within a second. Also returns it if
    /// [`verify`](Self::verify) finds a missing permission, a replica, a node of a cluster, a Sentinel, or a version that is too old.
    /// Other problems are logged.
    /// For a service that may start before its Redis, use [`lazy`](Self::lazy).
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::lazy(url)?.connected().await
    }

    /// Connects to `rediss://[user:password@]host[:port][/database]`, with your own authorities and client certificate.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Self::connect) and of [`lazy_with_tls`](Self::lazy_with_tls).
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub async fn connect_with_tls(url: &str, tls: Tls) -> Result<Self, ConnectError> {
        Self::lazy_with_tls(url, tls)?.connected().await
    }

    /// Connects on demand: with the first check, and again with the next check after the connection is lost. A check that cannot
    /// connect within its deadline returns [`Reason::Timeout`](crate::backend::Reason::Timeout) or
    /// [`Reason::Connection`](crate::backend::Reason::Connection).
    ///
    /// Over RESP2 (Redis 5, or `?protocol=resp2`), the backend notices a lost connection only when a check fails on it. The
    /// connection runs on the tokio runtime of the check that has started it; see [runtimes](Self#runtimes).
    ///
    /// It verifies nothing. With a node of a cluster, the checks of other nodes' keys return
    /// [`Reason::Busy`](crate::backend::Reason::Busy), and the first one logs a warning that names
    /// [`lazy_cluster`](Self::lazy_cluster). [`verify`](Self::verify) reports such a node at any time.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::RedisUrl`] if the URL is invalid, and [`ConfigError::RedisTls`] if it is `rediss://` and the
    /// feature `tls` is off.
    pub fn lazy(url: &str) -> Result<Self, ConfigError> {
        Self::with_topology(&[url], &Tls::default(), || Topology::server(url, &Tls::default()))
    }

    /// Connects on demand, as [`lazy`](Self::lazy) does, to a `rediss://` URL with your own authorities and client certificate.
    ///
    /// If the process has installed no rustls `CryptoProvider` before the first connection, the backend installs that of ring.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::RedisUrl`] if the URL is invalid, and [`ConfigError::RedisTls`] if it is not `rediss://`, or if a
    /// certificate or the key is invalid.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn lazy_with_tls(url: &str, tls: Tls) -> Result<Self, ConfigError> {
        Self::with_topology(&[url], &tls, || Topology::server(url, &tls))
    }

    /// Connects to the primary behind Sentinels, and follows it.
    ///
    /// The URL of the primary has the service name as its host: `redis://[user:password@]service`. Each Sentinel has its own URL,
    /// such as `redis://10.0.0.1:26379`.
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
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if a URL is invalid, there is no Sentinel, or no primary answers within a second. Also returns it
    /// if the [verification](Self::verify) fails, as in [`connect`](Self::connect).
    pub async fn connect_sentinel(
        primary: &str,
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ConnectError> {
        Self::lazy_sentinel(primary, sentinels)?.connected().await
    }

    /// Connects on demand, as [`lazy`](Self::lazy) does, to the primary behind Sentinels. See
    /// [`connect_sentinel`](Self::connect_sentinel).
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::RedisUrl`] if a URL is invalid, or there is no Sentinel.
    pub fn lazy_sentinel(
        primary: &str,
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ConfigError> {
        let sentinels: Vec<_> = sentinels.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let urls = [&[primary.to_owned()], &sentinels[..]].concat();
        Self::with_topology(&urls, &Tls::default(), || Topology::sentinel(primary, &sentinels))
    }

    /// Connects to a cluster by the URLs of some of its nodes. The user, password and other settings of the first URL apply to
    /// all nodes. The user needs `+asking` and `+cluster|slots`.
    ///
    /// The backend follows slots that move and replicas that are promoted. It queries several nodes, at most twelve at a time, and
    /// the newest owner of each slot wins. With the [permissions](Self#permissions) `+cluster|info` and `+cluster|nodes`, it also
    /// recognizes a node that is cut off from the cluster.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if a URL is invalid or there is no URL. Also returns it if no node returns the slots within 500
    /// ms, or none accepts a connection within a second. Also returns it if the [verification](Self::verify) fails, as in
    /// [`connect`](Self::connect). A primary that does not answer is logged, and is no error.
    pub async fn connect_cluster(
        nodes: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ConnectError> {
        Self::lazy_cluster(nodes)?.connected().await
    }

    /// Connects on demand, as [`lazy`](Self::lazy) does, to a cluster. See [`connect_cluster`](Self::connect_cluster).
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::RedisUrl`] if a URL is invalid, or there is no URL.
    pub fn lazy_cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConfigError> {
        Self::cluster(nodes, &Tls::default())
    }

    /// Connects on demand to a cluster, with your own authorities and client certificate. See
    /// [`connect_cluster`](Self::connect_cluster) and [`lazy_with_tls`](Self::lazy_with_tls).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`lazy_cluster`](Self::lazy_cluster) and of [`lazy_with_tls`](Self::lazy_with_tls).
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn lazy_cluster_with_tls(
        nodes: impl IntoIterator<Item = impl AsRef<str>>,
        tls: Tls,
    ) -> Result<Self, ConfigError> {
        Self::cluster(nodes, &tls)
    }

    fn cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>, tls: &Tls) -> Result<Self, ConfigError> {
        let nodes: Vec<_> = nodes.into_iter().collect();
        Self::with_topology(&nodes, tls, || Topology::cluster(&nodes, tls))
    }

    /// Connects on demand, as [`lazy`](Self::lazy) does, over your own streams: through a tunnel, or in a simulated network. The
    /// backend calls `connect` once per connection. The server must support RESP3 and require no password.
    ///
    /// ```
    /// use tokio::net::TcpStream;
    /// use tower_sliding_window::RedisBackend;
    ///
    /// let backend = RedisBackend::over_streams(|| TcpStream::connect("127.0.0.1:6379"));
    /// ```
    pub fn over_streams<F, Fut, S>(connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::new(Topology::streams(connect))
    }

    /// Connects on demand, as [`lazy_cluster`](Self::lazy_cluster) does, to a cluster over your own streams. `nodes` are the hosts
    /// and ports of some of its nodes. The backend calls `connect` once per connection, with the host and the port of a node as
    /// `CLUSTER SLOTS` or a redirect names it. The servers must support RESP3 and require no password.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::NoClusterNodes`] if there is no node. If `connect` returns an error, a check of that node's keys
    /// returns [`Reason::Connection`](crate::backend::Reason::Connection).
    ///
    /// ```
    /// use tokio::net::TcpStream;
    /// use tower_sliding_window::RedisBackend;
    ///
    /// let nodes = [("10.0.0.1", 7000), ("10.0.0.2", 7000)];
    /// let backend = RedisBackend::cluster_over_streams(nodes, |host, port| TcpStream::connect((host, port)))?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn cluster_over_streams<F, Fut, S>(
        nodes: impl IntoIterator<Item = (impl Into<String>, u16)>,
        connect: F,
    ) -> Result<Self, ConfigError>
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let nodes: Vec<(String, u16)> = nodes.into_iter().map(|(host, port)| (host.into(), port)).collect();
        if nodes.is_empty() {
            return Err(ConfigError::NoClusterNodes);
        }
        Ok(Self::new(Topology::cluster_streams(nodes, connect)))
    }

    fn with_topology(
        urls: &[impl AsRef<str>],
        tls: &Tls,
        topology: impl FnOnce() -> RedisResult<Topology>,
    ) -> Result<Self, ConfigError> {
        for url in urls {
            tls.validate(url.as_ref())?;
        }
        let invalid = |error| ConfigError::RedisUrl { reason: reason_without_url(&error) };
        topology().map(Self::new).map_err(invalid)
    }
}
