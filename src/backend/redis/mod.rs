//! Decisions in Redis, shared by any number of processes: one atomic script call, one round trip, the server's clock.

#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, sync::Arc};

use redis::{RedisError, ServerErrorKind, Value, aio::ConnectionLike};

use crate::{
    backend::{Backend, BackendError},
    check::{Check, Refund},
    decision::Decision,
    error::ConfigError,
};

mod error;
mod link;
mod script;

pub use error::ConnectError;
use error::unavailable;
pub use link::{Link, Managed, Own};
use script::{Call, Script, Scripts};

/// Decisions in Redis (5 or newer, or Valkey), shared by any number of processes.
///
/// A check is one call of one script, and one round trip: all policies at once, on the server's clock. Clones share one
/// connection.
///
/// A user of the server needs these permissions and no others, with the limiter's namespace for `tsw`:
/// `~tsw:* +evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire +get +set +setrange`, and `+select` for a
/// database other than 0. The last three are for [`Algorithm::SlidingCounter`](crate::Algorithm) and
/// [`FixedWindow`](crate::Algorithm).
///
/// Give limits an instance of Redis of their own, with `maxmemory-policy noeviction`: a key that is evicted is a limit
/// that starts afresh. Replication is asynchronous, so a failover may lose the last charges; limits are never read from
/// a replica.
#[derive(Clone)]
pub struct RedisBackend<L = Managed> {
    link: L,
    scripts: Arc<Scripts>,
    #[cfg(feature = "test-util")]
    injected_clock: Option<Arc<AtomicU64>>,
}

impl RedisBackend {
    /// Connects to `redis://[user:password@]host[:port][/database]`, or to a socket at `redis+unix:///path`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the URL does not parse or the server cannot be reached within a second. For a service that
    /// may start before its Redis does, see [`lazy`](Self::lazy).
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let backend = Self::lazy(url)?;
        match backend.link.connected().await {
            Ok(()) => Ok(backend),
            Err(source) => {
                Err(ConnectError::Unreachable { address: backend.link.address().to_string(), source })
            }
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
    /// [`ConfigError::RedisUrl`] if the URL does not parse.
    pub fn lazy(url: &str) -> Result<Self, ConfigError> {
        let link =
            Managed::new(url).map_err(|error| ConfigError::RedisUrl { reason: without_url(&error) })?;
        Ok(Self::over(link))
    }
}

impl<C> RedisBackend<Own<C>>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Uses a connection that the caller has: a `MultiplexedConnection`, a `ConnectionManager`, a cluster's. How it
    /// reconnects is the caller's choice, but it must send nothing again that may have run: a check would be charged
    /// twice.
    pub fn from_connection(connection: C) -> Self {
        Self::over(Own(connection))
    }
}

impl<L: Link> RedisBackend<L> {
    fn over(link: L) -> Self {
        Self {
            link,
            scripts: Arc::new(Scripts::new()),
            #[cfg(feature = "test-util")]
            injected_clock: None,
        }
    }

    /// This backend on a clock that the caller moves: the same script, with its one clock line exchanged. Its keys live an
    /// hour longer than others, by the server's clock.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(self, clock: &crate::ManualClock) -> Self {
        Self {
            scripts: Arc::new(Scripts::with_injected_clock()),
            injected_clock: Some(clock.shared()),
            ..self
        }
    }

    async fn run(&self, script: &Script, call: &Call) -> Result<Value, BackendError> {
        let reply = match self.link.send(&script.by_hash(call)).await {
            // Nothing ran, so it may be sent again: with its text, which the server keeps.
            Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
                self.link.send(&script.by_text(call)).await
            }
            other => other,
        };
        reply.map_err(unavailable)
    }

    fn instant(&self) -> Option<u64> {
        #[cfg(feature = "test-util")]
        return self.injected_clock.as_ref().map(|clock| clock.load(Ordering::SeqCst));
        #[cfg(not(feature = "test-util"))]
        None
    }
}

/// What is wrong with a URL. Behind a dash the client crate adds its own name for that, and may repeat a part of the URL.
fn without_url(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}

impl<L: Link> Backend for RedisBackend<L> {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let reply = self.run(&self.scripts.check, &Call::check(check, self.instant())).await?;
        script::decision(check, &reply)
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        self.run(&self.scripts.refund, &Call::refund(refund, self.instant())).await.map(|_| ())
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        self.link.send(&script::reset(pairs)).await.map(|_| ()).map_err(unavailable)
    }

    fn store(&self) -> Option<String> {
        // Clones share their scripts, and so does nothing else.
        self.link.store().or_else(|| Some(format!("redis by {:p}", Arc::as_ptr(&self.scripts))))
    }
}

impl<L: fmt::Debug> fmt::Debug for RedisBackend<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("link", &self.link).finish_non_exhaustive()
    }
}
