//! Naming a server, a primary that is watched, or a cluster.

use std::{future::Future, io};

use redis::{RedisError, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{ConnectError, Managed, RedisBackend, Tls};
use crate::error::ConfigError;

impl RedisBackend {
    /// Connects to `redis://[user:password@]host[:port][/database]`, or to a socket at `redis+unix:///path`. With the feature
    /// `tls` also to `rediss://`, whose certificate must be of an authority that browsers trust.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the URL does not parse or the server cannot be reached within a second. For a service that
    /// may start before its Redis does, see [`lazy`](Self::lazy).
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::lazy(url)?.reached().await
    }

    /// Connects to `rediss://[user:password@]host[:port][/database]`, with authorities and a certificate of one's own.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and as [`lazy_with_tls`](Self::lazy_with_tls).
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub async fn connect_with_tls(url: &str, tls: Tls) -> Result<Self, ConnectError> {
        Self::lazy_with_tls(url, tls)?.reached().await
    }

    async fn reached(self) -> Result<Self, ConnectError> {
        match self.link.connected().await {
            Ok(()) => Ok(self),
            Err(source) => Err(ConnectError::Unreachable { address: self.link.to_string(), source }),
        }
    }

    /// Connects with the first check, and again with the next check whenever the connection is lost. A check that cannot
    /// connect within its deadline is [`Reason::Timeout`](crate::Reason::Timeout) or
    /// [`Reason::Connection`](crate::Reason::Connection).
    ///
    /// Over RESP2, as with Redis 5 or `?protocol=resp2`, a loss is noticed only by the first check that meets it, which
    /// fails. The connection lives on the tokio runtime of the check that made it.
    ///
    /// # Errors
    ///
    /// [`ConfigError::RedisUrl`] if the URL does not parse, and [`ConfigError::RedisTls`] if it is `rediss://` and the feature
    /// `tls` is off.
    pub fn lazy(url: &str) -> Result<Self, ConfigError> {
        Self::managed(&[url], &Tls::default(), || Managed::server(url, &Tls::default()))
    }

    /// The same as [`lazy`](Self::lazy) with authorities and a certificate of one's own, for `rediss://`.
    ///
    /// Where the process has not chosen its rustls cryptography (`CryptoProvider::install_default`) when the first connection
    /// is made, it is set to ring's.
    ///
    /// # Errors
    ///
    /// [`ConfigError::RedisUrl`] if the URL does not parse, and [`ConfigError::RedisTls`] if it is not `rediss://`, or if a
    /// certificate or the key cannot be used.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn lazy_with_tls(url: &str, tls: Tls) -> Result<Self, ConfigError> {
        Self::managed(&[url], &tls, || Managed::server(url, &tls))
    }

    /// Connects to the primary that Sentinels watch, and follows it: when it is lost, or says that it is a primary no more, they
    /// are asked again. The URL of the primary has the name of its service for a host, `redis://[user:password@]service`; the
    /// Sentinels have theirs, such as `redis://10.0.0.1:26379`. What they say is confirmed by the server itself, whose user
    /// needs `+role`.
    ///
    /// A primary that is cut off from its Sentinels, and does not know yet that it is none any more, is used as long as it
    /// answers: what is charged there until then is lost with it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if a URL does not parse, no Sentinel is named, or no primary can be reached within a second.
    pub async fn connect_sentinel(
        primary: &str,
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ConnectError> {
        Self::lazy_sentinel(primary, sentinels)?.reached().await
    }

    /// The same as [`connect_sentinel`](Self::connect_sentinel), connecting as [`lazy`](Self::lazy) does.
    ///
    /// # Errors
    ///
    /// [`ConfigError::RedisUrl`] if a URL does not parse, or no Sentinel is named.
    pub fn lazy_sentinel(
        primary: &str,
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ConfigError> {
        let sentinels: Vec<_> = sentinels.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let urls = [&[primary.to_owned()], &sentinels[..]].concat();
        Self::managed(&urls, &Tls::default(), || Managed::primary(primary, &sentinels))
    }

    /// Connects to a cluster of which some nodes are named by URLs; users, passwords and all else are taken from the first. It
    /// follows what moves, from node to node and from a primary to its replica. The user needs `+asking` and
    /// `+cluster|slots`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if a URL does not parse, no node is named, or none can be reached within a second.
    pub async fn connect_cluster(
        nodes: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ConnectError> {
        Self::lazy_cluster(nodes)?.reached().await
    }

    /// The same as [`connect_cluster`](Self::connect_cluster), connecting as [`lazy`](Self::lazy) does.
    ///
    /// # Errors
    ///
    /// [`ConfigError::RedisUrl`] if a URL does not parse, or no node is named.
    pub fn lazy_cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConfigError> {
        Self::cluster(nodes, &Tls::default())
    }

    /// The same as [`lazy_cluster`](Self::lazy_cluster) with authorities and a certificate of one's own, as
    /// [`lazy_with_tls`](Self::lazy_with_tls) has them.
    ///
    /// # Errors
    ///
    /// As both have them.
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
        Self::managed(&nodes, tls, || Managed::cluster(&nodes, tls))
    }

    /// Connects, as [`lazy`](Self::lazy) does, over streams of the caller's own making: through a tunnel, or in a simulated
    /// network. The server speaks RESP3, asks for no password, and `connect` is called once for each connection.
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
        Self::over(Managed::behind(connect))
    }

    fn managed(
        urls: &[impl AsRef<str>],
        tls: &Tls,
        link: impl FnOnce() -> RedisResult<Managed>,
    ) -> Result<Self, ConfigError> {
        for url in urls {
            tls.suits(url.as_ref())?;
        }
        let link = link().map_err(|error| ConfigError::RedisUrl { reason: without_url(&error) })?;
        Ok(Self::over(link))
    }
}

/// Whether a URL asks for TLS. What it may have in front of it, whoever parses it leaves out.
pub(super) fn is_tls(url: &str) -> bool {
    let url = url.trim_start_matches(|c: char| c <= ' ');
    let begins =
        |scheme: &str| url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    begins("rediss:") || begins("valkeys:")
}

/// What is wrong with a URL. Behind a dash the client crate adds its own name for that, and may repeat a part of the URL.
fn without_url(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}
