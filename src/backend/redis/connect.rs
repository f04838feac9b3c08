//! The constructors of a backend, and its builder.

use std::fmt;

use super::{
    RedisBackend,
    error::ConnectError,
    keys::KeyNames,
    merge::{Merger, Merging},
    servers::RedisServers,
    tls::Tls,
};
use crate::error::ConfigError;

impl RedisBackend {
    /// Connects to the server at a [URL](RedisServers).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`RedisBackendBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(RedisServers::single(url)).connect().await
    }

    /// Connects on demand to the server at a [URL](RedisServers).
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::RedisUrl`] if the URL is invalid, and [`ConfigError::RedisTls`] if it is `rediss://` and the
    /// feature `tls` is off.
    pub fn lazy(url: &str) -> Result<Self, ConfigError> {
        Self::builder(RedisServers::single(url)).lazy()
    }

    /// Builds a backend with settings, for one server, the primary behind Sentinels, or a cluster.
    ///
    /// ```no_run
    /// use tower_sliding_window::{RedisBackend, redis::{Merging, RedisServers}};
    ///
    /// # async fn connect(secret: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// let servers = RedisServers::cluster(["redis://10.0.0.1:7000", "redis://10.0.0.2:7000"]);
    /// let backend = RedisBackend::builder(servers).hash_secret(secret).merging(Merging::Off).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(servers: RedisServers) -> RedisBackendBuilder {
        let (tls, names, merging) = (Tls::default(), Ok(KeyNames::default()), Merging::default());
        RedisBackendBuilder { servers, tls, names, merging }
    }
}

/// The builder of a [`RedisBackend`]. Its calls come in any order.
#[must_use = "a builder does nothing until `.lazy()?` or `.connect().await?`"]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub struct RedisBackendBuilder {
    servers: RedisServers,
    tls: Tls,
    /// The names of keys under the secret, or what is wrong with the secret.
    names: Result<KeyNames, ConfigError>,
    merging: Merging,
}

impl RedisBackendBuilder {
    /// Sets the certificate authorities and the client certificate of all connections: to a single server, to the primary and its
    /// Sentinels, or to all nodes of a cluster. Each URL must then begin with `rediss://`, also with the default settings.
    ///
    /// If the process has installed no rustls `CryptoProvider` before the first connection, the backend installs that of ring.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(self, tls: Tls) -> Self {
        Self { tls: tls.required(), ..self }
    }

    /// Hashes partition keys under a secret of at least 32 random bytes. Without the secret, an attacker who can read Redis
    /// can test whether a key belongs to a certain user or address, and a client can choose the slot of its key in a cluster.
    ///
    /// All processes that share limits need the same secret. A new secret changes the names of all keys: every count starts again
    /// from zero, and the old counts expire with their windows.
    ///
    /// ```
    /// use tower_sliding_window::{ConfigError, RedisBackend, redis::RedisServers};
    ///
    /// # fn backend(secret: &str) -> Result<RedisBackend, ConfigError> {
    /// RedisBackend::builder(RedisServers::single("redis://127.0.0.1/")).hash_secret(secret).lazy()
    /// # }
    /// # assert!(backend("too short").is_err());
    /// ```
    pub fn hash_secret(self, secret: impl AsRef<[u8]>) -> Self {
        Self { names: KeyNames::with_secret(secret.as_ref()), ..self }
    }

    /// Sets whether checks that start at the same time share a script call. By default, they do if at least eight checks are in
    /// flight at one server ([`Merging::Adaptive`]).
    ///
    /// A merged call decides up to 64 checks, one after another, as separate calls would. If their policies can store many records, there
    /// are fewer, so that no call takes longer than 2 ms of the server. Equal checks, which have the same keys,
    /// policies and costs, are charged at once, unless a policy is a sliding counter, a gate or in flight. Redis and the process then do less work per check: a single hot key gains most.
    /// Each check keeps its deadline, its error, its receipt and its place in the count of checks in flight. No check waits for
    /// the reply of another call.
    ///
    /// Checks are merged if they are for the same server, or in a cluster for the same slot, and have the same namespace and tokio
    /// runtime. Charges are merged with charges, and reservations with reservations. Peeks, overages and checks with shadow policies
    /// are calls of their own. So are checks of several partition keys in a cluster or over your own connection. Over your own
    /// connection that may lead to a cluster, only checks of the same slot are merged.
    ///
    /// A proxy may distribute keys over several servers. If it rejects a call with keys of several slots (CROSSSLOT), the checks of
    /// this call are sent again, each as a call of its own. From then on, only checks of the same slot are merged. If the proxy
    /// sends such a call to the server of the first key, use [`Merging::Off`]. Otherwise, keys are counted on several servers.
    pub fn merging(self, merging: Merging) -> Self {
        Self { merging, ..self }
    }

    /// Builds a backend that connects at once, and verifies that checks can work.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError::Config`] for the errors of [`lazy`](Self::lazy). Returns [`ConnectError::Unreachable`] if no server
    /// answers within a second: behind Sentinels no primary, in a cluster no node. The nodes of a cluster must return the slots
    /// within 500 ms. Returns [`ConnectError::Unusable`] if [`verify`](RedisBackend::verify) finds a missing permission for a command
    /// that every check may need, a command that the server does not know, a replica, a node of a cluster, a Sentinel, or a version
    /// that is too old.
    /// Other problems are logged, and so are a missing permission for the keys of the default namespace, and a primary of a cluster
    /// that does not answer.
    /// For a service that may start before its Redis, use [`lazy`](Self::lazy).
    pub async fn connect(self) -> Result<RedisBackend, ConnectError> {
        self.lazy()?.connected().await
    }

    /// Builds a backend that connects on demand: with the first check, and again with the next check after the connection is
    /// lost. A check that cannot connect within its deadline returns [`Reason::Timeout`](crate::backend::Reason::Timeout) or
    /// [`Reason::Connection`](crate::backend::Reason::Connection).
    ///
    /// Over RESP2 (Redis 5, or `?protocol=resp2`), the backend notices a lost connection only when a check fails on it. The
    /// connection runs on the tokio runtime of the check that has started it; see [runtimes](RedisBackend#runtimes).
    ///
    /// It verifies nothing. With a node of a cluster as a single server, the checks of other nodes' keys return
    /// [`Reason::Busy`](crate::backend::Reason::Busy), and the first one logs a warning that names
    /// [`RedisServers::cluster`]. [`verify`](RedisBackend::verify) reports such a node at any time.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::RedisUrl`] if a URL is invalid or asks for a connection that verifies no certificate (`#insecure`), or
    /// if there is no Sentinel or no URL of a cluster. Returns
    /// [`ConfigError::NoClusterNodes`] if there is no node behind your own streams. Returns [`ConfigError::RedisTls`] if a
    /// certificate or key is invalid, if there are TLS settings and a URL is not `rediss://`, or if it is and the feature `tls` is
    /// off. Returns [`ConfigError::HashSecret`] if the secret is too short.
    pub fn lazy(self) -> Result<RedisBackend, ConfigError> {
        let topology = self.servers.into_topology(&self.tls)?;
        Ok(RedisBackend::new(topology, self.names?, Merger::new(self.merging)))
    }
}

/// Writes the settings, without URLs and certificates.
impl fmt::Debug for RedisBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackendBuilder").field("merging", &self.merging).finish_non_exhaustive()
    }
}
