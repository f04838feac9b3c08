//! The Redis backend: one atomic script call and one round trip per check, on the server's clock.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::Semaphore;

use crate::{
    backend::{Backend, BackendError, Reason, Tokens, generation::Generations},
    check::{Check, Refund},
    decision::Decision,
    guard::Protection,
    key::PartitionKey,
    observe::ServerBreaker,
    policy::Policy,
};

mod command;
mod connect;
mod cross_slot;
mod error;
mod eviction;
mod execute;
mod holder;
mod keys;
mod merge;
mod mix_hasher;
mod patience;
mod problem;
mod recent_tags;
mod rollback;
mod script;
mod servers;
mod slot;
mod tag;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod tokens;
mod topology;
mod url;
mod verify;

pub use connect::RedisBackendBuilder;
pub use error::ConnectError;
use holder::Holder;
use keys::KeyNames;
use merge::Merger;
pub use merge::Merging;
use patience::Patience;
pub use problem::{ServerProblem, ServerProblemKind};
use rollback::Rollbacks;
use script::{REFUND_PAIRS, Scripts};
pub use servers::RedisServers;
#[cfg(feature = "tls")]
pub use tls::Tls;
use topology::Topology;

/// The largest number of changes of charges that wait at once until they are sent again.
const MAX_REPEATS: usize = 256;

/// A backend in Redis (5 or newer) or Valkey, which any number of processes share.
///
/// A check is one script call and one round trip: it decides all policies at once, on the server's clock. Under load, checks that
/// start at the same time [share a call](RedisBackendBuilder::merging). Clones share their connections.
///
/// # Connections
///
/// [`connect`](RedisBackend::connect) connects to a single server at once, and [`lazy`](RedisBackend::lazy) with the first check.
/// [`builder`](RedisBackend::builder) takes settings, such as TLS, and all [servers](RedisServers):
///
/// | servers | |
/// | --- | --- |
/// | a single server | [`RedisServers::single`] |
/// | the primary behind Sentinels | [`RedisServers::sentinel`] |
/// | a cluster | [`RedisServers::cluster`] |
/// | your own streams | [`RedisServers::streams`], [`RedisServers::cluster_streams`] |
/// | your own connection (feature `redis-1`) | `RedisServers::connection`, `RedisServers::server_connection` |
///
/// The backend recovers by itself from a restarted server, a flushed script cache, a lost or hanging connection, a failover, and
/// slots that move. It also recovers when a wrong password is corrected. This does not apply to your own connection. All waiting
/// checks share one attempt to connect. After a failed attempt, the backend pauses for at most 50 ms. If a server does not know a
/// script, one check loads it.
///
/// Use a Redis instance of its own, with `maxmemory-policy noeviction`: the limit of an evicted key starts again from zero. With
/// the feature `tracing`, the backend warns when it connects to a server that evicts keys, if the user has the permission `+info`.
/// Replication is asynchronous, so a failover may lose the last charges. The backend never reads from a replica.
///
/// # Deadlines and retries
///
/// A check carries its [deadline](crate::backend::Check::with_deadline) to the script, in the server's time. A script that runs
/// after the deadline charges nothing and returns [`Reason::DeadlineExceeded`]. This happens when a server hangs and then runs
/// its queued commands. The backend keeps a lower bound of the server's clock, taken from its replies. So no check is charged
/// after its deadline. If the remaining time of a check is shorter than a round trip, the check may also return
/// [`Reason::DeadlineExceeded`]. Three limits apply:
///
/// - The clocks of the process and of the server must drift apart by at most 500 ppm.
/// - If the server's clock is set back, a check may be charged after its deadline, by at most the length of the step. This ends
///   with the first reply that arrives at least ten seconds after the reply with the best bound. After a step forward, the first
///   reply corrects the bound.
/// - If your own connection switches to another server, the effect is the same as that of a clock step.
///
/// A refund, an overage, a rollback and a reset carry a deadline as well: 5 s for settlements and rollbacks, and the deadline of the limiter
/// for a reset. After it, the script changes nothing.
///
/// The backend never resends a command that may have run, so it never charges twice. A check without a reply may still have
/// charged: [`unanswered_checks`](RedisBackend::unanswered_checks) counts these checks.
///
/// # Permissions
///
/// The Redis user needs the following permissions and no others, with the limiter's namespace in place of `tsw`:
///
/// | | |
/// | --- | --- |
/// | always | `~tsw{* +evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire` |
/// | for [`SlidingCounter`](crate::Algorithm), [`FixedWindow`](crate::Algorithm), [`TokenBucket`](crate::Algorithm) and [`CalendarPeriod`](crate::Algorithm) | `+get +set +setrange` |
/// | for [`InFlight`](crate::Algorithm) | `+get +set +setrange +getrange` |
/// | for [`Gate`](crate::Algorithm), [tokens](crate::Reservation::into_token), and a limiter that [learns](crate::Limiter::learn) | `+get +set` |
/// | for a database other than 0 | `+select` |
/// | for a cluster | `+cluster\|slots +asking` |
/// | for a cluster, optional | `+cluster\|info +cluster\|nodes` |
/// | for Sentinel | `+role` |
/// | for the warnings about eviction and old versions | `+info` |
///
/// Each new connection and `verify` also call `CLIENT SETINFO` and `INFO`. Without the permissions for them, the server adds entries to its
/// `ACL LOG`, and nothing else changes.
///
/// [`verify`](RedisBackend::verify) names each missing permission. If a permission is missing, calls that need it fail, and every key stays valid. A
/// check of several policies may then have charged some of them. The optional permissions show which node of
/// a cluster is out of date: a node counts only if it says that the cluster is ok, and the newest owner of a slot wins. Without
/// them, slots return to a node that has answered CLUSTERDOWN only if two nodes name it as the owner.
///
/// Redis stores only a hash of each partition key. Without a [secret](RedisBackendBuilder::hash_secret), an attacker who can read
/// Redis may test whether a key belongs to a certain user or address, and a client that can choose its key can choose its slot in a
/// cluster. [The guide](crate::guide::deployment#hash-secret) states where to keep the secret.
///
/// # Several partition keys in a cluster
///
/// All policies of one partition key are in one slot, and in one call. A check of several partition keys in different slots takes
/// one call per slot, all at the same time:
///
/// | replies of the slots | result of the check | slots that have charged |
/// | --- | --- | --- |
/// | all admit | admitted | |
/// | one denies | denied, whatever the other slots do | are rolled back in the background |
/// | none denies, one fails or hangs | [`BackendError`], and the [outage rule](crate::OutageRule) applies | keep their charges if the request fails open, so that a healthy limit still fills; otherwise they are rolled back. Units in flight are released in any case |
///
/// A slot of [shadow pairs](crate::backend::Pair::shadow) only is left out of this table: it does not deny, and its failure leaves
/// its pairs without a status. Its charge is rolled back if the check is denied. A check waits for such a slot for at most half of its
/// deadline.
///
/// So a check never admits too much. If a pair was denied within the `max_age` of the [deny cache](crate::outage::DenyCacheConfig), the
/// limiter peeks at all slots first and charges them only if none denies; without a deny cache, always. Therefore a client over
/// its limit causes at most one rollback per `max_age` and process, and one for each check that is in flight at that time. Until a rollback has run, Redis may deny another client
/// because of the charge. A denial has the statuses of the slots that have replied within the deadline. For a pair that was
/// rolled back, `reset_after` is an upper bound. [`Limiter::drain`](crate::Limiter::drain) waits for all rollbacks.
///
/// # Runtimes
///
/// A connection belongs to the tokio runtime of the check that has made it. If this runtime has shut down, the next check makes a
/// new connection before it sends anything. If this runtime is not driven while it connects, the next check connects instead,
/// after one second. The limit is 500 ms to look up slots, and to load a script. Three cases remain:
///
/// - A connection moves no bytes while its runtime is idle or blocked. Checks on other runtimes then time out. After they have
///   waited for 500 ms in total, the backend makes a new connection.
/// - On a runtime whose time is paused (`tokio::time::pause`), time passes while a reply is on its way: a check may reach its
///   deadline at once. Units [in flight](Policy::in_flight) have a thread with a clock that is not paused, so they are released and
///   renewed by real time.
///
/// # Failures of one server
///
/// Each server has a [circuit breaker](crate::outage::Breaker) and a bound on the checks in flight: a node that fails or hangs
/// affects only the checks that need it. Your own connection does not report which server fails, so it counts as one server.
#[derive(Clone)]
pub struct RedisBackend {
    topology: Topology,
    names: KeyNames,
    scripts: Arc<Scripts>,
    generations: Arc<Generations>,
    /// Whether a check of several keys may need several calls. Set by the first CROSSSLOT error.
    is_cluster: Arc<AtomicBool>,
    rollbacks: Arc<Rollbacks>,
    /// The changes of charges that wait until they are sent again.
    repeats: Arc<Semaphore>,
    unanswered: Arc<AtomicU64>,
    merger: Merger,
    holder: Arc<Holder>,
    #[cfg(feature = "test-util")]
    injected_clock: Option<Arc<AtomicU64>>,
}

impl RedisBackend {
    /// Returns the name of the Redis key that counts a partition key for a policy. An operator can query its time to live
    /// (`PTTL`), its size (`MEMORY USAGE`) and its slot (`CLUSTER KEYSLOT`). Only the scripts understand its value;
    /// [`Limiter::peek`](crate::Limiter::peek) returns what it means.
    ///
    /// The namespace is that of the [limiter](crate::Limiter::namespace).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{PartitionKey, Policy, RedisBackend};
    ///
    /// let backend = RedisBackend::lazy("redis://127.0.0.1/")?;
    /// let policy = Policy::new("burst", 10, Duration::from_secs(1))?;
    /// assert_eq!(
    ///     backend.key_name("tsw", &PartitionKey::new("user", "alice"), &policy),
    ///     "tsw{WwOXjsf9nwwIkwD-ZyBy9i}sburst"
    /// );
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn key_name(&self, namespace: &str, key: &PartitionKey, policy: &Policy) -> String {
        self.names.key(namespace, key, policy)
    }

    /// Returns the number of rollbacks in a cluster that may have failed: the backend received no confirmation, or the runtime
    /// ended first. The charges of such a check may stand until their windows have passed. Clones share the count.
    pub fn lost_rollbacks(&self) -> u64 {
        self.rollbacks.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of checks that were sent and got no reply: the deadline passed, the connection was lost, or the caller
    /// dropped the check. It is an upper bound of the charges without a decision: a check that had not run by its deadline
    /// never charges. In a cluster each slot of a check counts. Clones share the count.
    ///
    /// A dropped check that has become a request for [leased](crate::guide::leases) units goes on without its caller. If its reply comes,
    /// its decision counts, and it is not unanswered.
    pub fn unanswered_checks(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Returns the number of units [in flight](crate::Policy::in_flight) that Redis did not hold for some time, although their requests
    /// ran: it has lost them, or a process was stopped for longer than the hold time. Clones share the count.
    pub fn interrupted_units(&self) -> u64 {
        self.holder.interrupted()
    }

    fn new(topology: Topology, names: KeyNames, merger: Merger) -> Self {
        Self {
            is_cluster: Arc::new(topology.is_cluster().into()),
            holder: Arc::new(Holder::random()),
            topology,
            names,
            scripts: Scripts::shared(),
            generations: Arc::new(Generations::new()),
            rollbacks: Arc::default(),
            repeats: Arc::new(Semaphore::new(MAX_REPEATS)),
            unanswered: Arc::default(),
            merger,
            #[cfg(feature = "test-util")]
            injected_clock: None,
        }
    }

    /// Returns this backend on a clock that the test moves. The scripts are the same, except for the line that reads the clock.
    /// By the server's clock, the keys live an hour longer than usual.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(self, clock: &crate::backend::memory::ManualClock) -> Self {
        // Its thread needs the same clock.
        let holder = Arc::new(Holder::random());
        Self { scripts: Scripts::with_injected_clock(), injected_clock: Some(clock.shared()), holder, ..self }
    }

    fn injected_micros(&self) -> Option<u64> {
        #[cfg(feature = "test-util")]
        return self.injected_clock.as_ref().map(|clock| clock.load(Ordering::SeqCst));
        #[cfg(not(feature = "test-util"))]
        None
    }

    /// Returns the indices of the partition keys by slot. None if one call is enough, or if this is not known to be a cluster.
    fn slots<'a>(&self, keys: impl ExactSizeIterator<Item = &'a PartitionKey>) -> Option<Vec<Vec<usize>>> {
        if keys.len() < 2 || !self.is_cluster.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.names.group_by_slot(keys)).filter(|slots| slots.len() > 1)
    }

    /// Returns the indices of the partition keys by slot after a CROSSSLOT error, by which nothing has run. From then on this is
    /// known to be a cluster.
    fn slots_after<'a, T>(
        &self,
        outcome: &Result<T, BackendError>,
        keys: impl ExactSizeIterator<Item = &'a PartitionKey>,
    ) -> Option<Vec<Vec<usize>>> {
        outcome.as_ref().err().filter(|error| error.reason() == Reason::CrossSlot)?;
        self.is_cluster.store(true, Ordering::Relaxed);
        self.slots(keys)
    }
}

impl Backend for RedisBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let keys = || check.pairs().iter().map(|pair| &pair.key);
        let outcome = match self.slots(keys()) {
            Some(slots) => return Box::pin(self.check_in_slots(check, &slots)).await,
            None => self.check_in_slot(check, Patience::Caller).await,
        };
        match self.slots_after(&outcome, keys()) {
            Some(slots) => Box::pin(self.check_in_slots(check, &slots)).await,
            None => outcome,
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        let keys = || refund.pairs().iter().map(|pair| &pair.key);
        let count = refund.pairs().len();
        let outcome = match self.slots(keys()) {
            Some(slots) => return self.refund_in_slots(refund, &slots).await,
            None if count <= REFUND_PAIRS => self.refund_in_slot(refund).await,
            None => self.refund_in_slots(refund, &[(0..count).collect()]).await,
        };
        match self.slots_after(&outcome, keys()) {
            Some(slots) => self.refund_in_slots(refund, &slots).await,
            None => outcome,
        }
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        let keys = || pairs.pairs().iter().map(|pair| &pair.key);
        let outcome = match self.slots(keys()) {
            Some(slots) => return self.reset_in_slots(pairs, &slots).await,
            None => self.reset_in_slot(pairs).await,
        };
        match self.slots_after(&outcome, keys()) {
            Some(slots) => self.reset_in_slots(pairs, &slots).await,
            None => outcome,
        }
    }

    /// Protects each server on its own. The strictest settings of the limiters that share this backend apply to all servers.
    fn protect(&self, protection: Protection) -> bool {
        self.topology.protect(protection);
        true
    }

    /// Returns the circuit breaker of each server. In a cluster, the first one is that of the look-ups of slots.
    fn breakers(&self) -> Vec<ServerBreaker> {
        self.topology.breakers()
    }

    /// Waits until all rollbacks have ended, and all units of ended requests are released.
    async fn drain(&self) {
        self.rollbacks.drain().await;
        self.holder.drain().await;
    }

    fn holds_units(&self) -> bool {
        true
    }

    /// Returns true on the server's own clock. A test may move an injected clock at any time.
    fn denials_hold(&self) -> bool {
        self.injected_micros().is_none()
    }

    /// Returns true on the server's own clock. A test may move an injected clock at any time.
    fn grants_leases(&self) -> bool {
        self.injected_micros().is_none()
    }

    fn tokens(&self) -> Option<Tokens> {
        Some(Tokens::new(self.clone()))
    }

    fn store(&self) -> Option<String> {
        // Only clones share their count of unanswered checks.
        let store =
            self.topology.store().unwrap_or_else(|| format!("redis by {:p}", Arc::as_ptr(&self.unanswered)));
        // Backends with different secrets share no keys. A hash under the secret does not reveal it.
        let hash = || self.names.tag(&PartitionKey::new("", ""));
        Some(if self.names.secret().is_some() { format!("{store} under {}", hash()) } else { store })
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("topology", &format_args!("{}", self.topology))
            .field("has_hash_secret", &self.names.secret().is_some())
            .finish_non_exhaustive()
    }
}
