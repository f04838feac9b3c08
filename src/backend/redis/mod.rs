//! Decisions in Redis, shared by any number of processes: one atomic script call, one round trip, the server's clock.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use redis::aio::ConnectionLike;

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, Purpose, Refund},
    decision::Decision,
    error::ConfigError,
    key::PartitionKey,
    observe,
    policy::Policy,
};

mod ask;
mod connect;
mod error;
mod eviction;
mod link;
mod names;
mod script;
mod slots;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;

use ask::{Asked, Question};
pub use error::ConnectError;
pub use link::{Line, Link, Managed, Node, Own};
use names::Names;
use script::{Call, Scripts};
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(not(feature = "tls"))]
use tls::Tls;

/// Decisions in Redis (5 or newer, or Valkey), shared by any number of processes.
///
/// A check is one call of one script, and one round trip: all policies at once, on the server's clock. Clones share one
/// connection.
///
/// # Which server
///
/// | | at once | with the first check |
/// | --- | --- | --- |
/// | one server | [`connect`](RedisBackend::connect) | [`lazy`](RedisBackend::lazy) |
/// | the primary that Sentinels watch | [`connect_sentinel`](RedisBackend::connect_sentinel) | [`lazy_sentinel`](RedisBackend::lazy_sentinel) |
/// | a cluster | [`connect_cluster`](RedisBackend::connect_cluster) | [`lazy_cluster`](RedisBackend::lazy_cluster) |
/// | a connection of your own | | [`from_connection`](RedisBackend::from_connection) |
/// | streams of your own | | [`over_streams`](RedisBackend::over_streams) |
///
/// All but the caller's own connections heal by themselves: a server that restarts or forgets its scripts, a connection that is
/// dropped or does not answer, a primary that is replaced, slots that move, a password that is put right. One attempt to connect
/// is under way at a time, for all who wait; after one that has failed there is a pause of some 50 ms; and a script is told once,
/// however many have found out that it is not known.
///
/// Give limits an instance of Redis of their own, with `maxmemory-policy noeviction`: a key that is evicted is a limit
/// that starts afresh. With the feature `tracing` a server that evicts is warned about, if its user has the permission
/// `+info`. Replication is asynchronous, so a failover may lose the last charges; limits are never read from a replica.
///
/// # Never late, never twice
///
/// A check carries its [deadline](crate::Check::with_deadline) to the script, in the server's own clock. A script that runs after
/// it, as when a server hangs and then works off what has piled up, charges nothing and says so. How far the server's clock is
/// from ours is known from its replies, as the least that it can be: so a charge is never late, and a good check may be refused
/// ([`Reason::Late`]) if what is left of its deadline is less than a round trip. The two clocks are taken to drift apart by no
/// more than a two-thousandth. If the server's clock is stepped back, a charge may be late by the step until a reply comes
/// that is ten seconds younger than the best one before it; a step forward is known with the first reply. A connection of the
/// caller's that leads to another server meanwhile is as a clock that is stepped.
///
/// What may have run is never sent again. So nothing is charged twice, and a check whose answer is lost may stand although its
/// caller was told that there is no decision: [`unanswered_checks`](RedisBackend::unanswered_checks) counts them.
///
/// # Permissions
///
/// A user of the server needs these and no others, with the limiter's namespace for `tsw`:
///
/// | | |
/// | --- | --- |
/// | always | `~tsw:* +evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire` |
/// | for [`SlidingCounter`](crate::Algorithm) and [`FixedWindow`](crate::Algorithm) | `+get +set +setrange` |
/// | for a database other than 0 | `+select` |
/// | in a cluster | `+cluster\|slots +asking` |
/// | behind Sentinels | `+role` |
///
/// With less than that a script may end half-way, and what it has written until then stands.
///
/// A partition key is stored as a hash only. Who can read Redis may still try whether a key is that of a certain user or
/// address, unless the hash is made [under a secret](RedisBackend::with_hash_secret).
///
/// # Several partition keys in a cluster
///
/// All policies of one partition key are in one slot, and so in one call. A check of several partition keys whose slots differ
/// takes one call for each slot, in order. What was charged before another slot denies goes back at once, by a task of its own
/// that survives the check; the slots after it are asked without charging. So there are never too many, and the wait that
/// is told is true; in the instant between, somebody else may be denied because of a charge that is given back. Of a pair
/// that was given back, `reset_after` is an upper bound. Such a denial is not [remembered](crate::DenyCache), but that of
/// somebody else in the instant between may be.
#[derive(Clone)]
pub struct RedisBackend<L = Managed> {
    link: L,
    names: Names,
    scripts: Arc<Scripts>,
    /// Known from the first check whose keys the server would not take together.
    is_cluster: Arc<AtomicBool>,
    lost_give_backs: Arc<AtomicU64>,
    unanswered: Arc<AtomicU64>,
    #[cfg(feature = "test-util")]
    injected_clock: Option<Arc<AtomicU64>>,
}

impl<C> RedisBackend<Own<C>>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Uses a connection that the caller has: a `MultiplexedConnection`, a `ConnectionManager`, a cluster's. How it
    /// reconnects is the caller's choice, but it must send nothing again that may have run: a check would be charged
    /// twice. A cluster's client sends again by itself unless it was built with `.retries(0)`; and then keys that are on
    /// their way to another node are [busy](Reason::Busy) until they have arrived.
    ///
    /// Which server answers is not to be seen from outside a connection, so how far its clock is from ours is learnt for each
    /// of the 16,384 slots by itself: the first check of a slot takes two round trips.
    pub fn from_connection(connection: C) -> Self {
        Self::over(Own::new(connection))
    }
}

impl<L: Link> RedisBackend<L> {
    /// Names keys by a hash under this secret, so that nobody who can read Redis, but does not know the secret, can find out
    /// whose key it is by trying: addresses, names and the like are soon tried all. The secret is at least 32 bytes, made at
    /// random.
    ///
    /// All processes that share limits need the same one. Under another secret, or none, every key is counted afresh, and
    /// what was counted before leaves with its window.
    ///
    /// # Errors
    ///
    /// [`ConfigError::HashSecret`] if it is too short.
    ///
    /// ```
    /// use tower_sliding_window::{ConfigError, RedisBackend};
    ///
    /// # fn backend(secret: &str) -> Result<RedisBackend, ConfigError> {
    /// RedisBackend::lazy("redis://127.0.0.1/")?.with_hash_secret(secret)
    /// # }
    /// # assert!(backend("too short").is_err());
    /// ```
    pub fn with_hash_secret(self, secret: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        Ok(Self { names: Names::with_secret(secret.as_ref())?, ..self })
    }

    /// The name of the key in Redis under which a partition key is counted for a policy, for an operator who wants to look at
    /// it: its time to live (`PTTL`), its size (`MEMORY USAGE`), the node that has it (`CLUSTER KEYSLOT`). What is in it is for
    /// the scripts; [`Limiter::peek`](crate::Limiter::peek) tells what it means.
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
    ///     "tsw:1:{b386072a653cac59a74cf54a070b44bf}:burst:log:1000000"
    /// );
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn key_name(&self, namespace: &str, key: &PartitionKey, policy: &Policy) -> String {
        self.names.key(namespace, key, policy)
    }

    /// How many times, in a cluster, what was charged in one slot may not have gone back although another slot did not
    /// admit: no answer, or the end of the runtime. Those charges leave with their windows.
    pub fn lost_give_backs(&self) -> u64 {
        self.lost_give_backs.load(Ordering::Relaxed)
    }

    /// How many checks were sent whose callers were not told the outcome: the deadline had passed, the connection broke, or
    /// whoever asked had gone. At most so many charges stand that nobody knows of; those that had not run by their deadline
    /// never will. In a cluster each slot of a check counts. Clones count together.
    pub fn unanswered_checks(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    fn lose_give_backs(&self, slots: usize, error: &BackendError) {
        self.lost_give_backs.fetch_add(slots as u64, Ordering::Relaxed);
        observe::not_given_back(slots, error);
    }

    fn over(link: L) -> Self {
        Self {
            link,
            names: Names::default(),
            scripts: Arc::new(Scripts::new()),
            is_cluster: Arc::default(),
            lost_give_backs: Arc::default(),
            unanswered: Arc::default(),
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

    fn instant(&self) -> Option<u64> {
        #[cfg(feature = "test-util")]
        return self.injected_clock.as_ref().map(|clock| clock.load(Ordering::SeqCst));
        #[cfg(not(feature = "test-util"))]
        None
    }
}

impl<L: Link> RedisBackend<L> {
    /// Decides a check whose keys live together.
    async fn decide(&self, check: &Check) -> Result<Decision, BackendError> {
        let mut call = Call::check(check, &self.names, self.instant());
        // What was used already is charged whenever it comes, and what only looks does no harm.
        let charges = matches!(check.purpose(), Purpose::Charge | Purpose::Reserve);
        let deadline = check.deadline().filter(|_| charges && self.instant().is_none());
        let slot = call.slot();
        let question = Question::Script(&self.scripts.check, &mut call);
        let reply = self.ask(Asked { slot, question, deadline, is_counted: charges }).await?;
        let decision = script::decision(check, &reply);
        if charges && decision.as_ref().is_err_and(|error| error.reason() == Reason::BrokenReply) {
            // It has run, and what it did is not told.
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        decision
    }

    /// Gives units back where the keys live together.
    async fn give_back(&self, refund: &Refund) -> Result<(), BackendError> {
        let mut call = Call::refund(refund, &self.names, self.instant());
        let slot = call.slot();
        let question = Question::Script(&self.scripts.refund, &mut call);
        self.ask(Asked { slot, question, deadline: None, is_counted: false }).await.map(drop)
    }

    /// Forgets keys that live together.
    async fn forget(&self, pairs: &Check) -> Result<(), BackendError> {
        let (slot, command) = script::reset(pairs, &self.names);
        let question = Question::Plain(&command);
        self.ask(Asked { slot, question, deadline: None, is_counted: false }).await.map(drop)
    }

    /// The indices of the pairs of these keys slot by slot, if this is known to be a cluster and there are several slots.
    fn divided<'a>(&self, keys: impl ExactSizeIterator<Item = &'a PartitionKey>) -> Option<Vec<Vec<usize>>> {
        if keys.len() < 2 || !self.is_cluster.load(Ordering::Relaxed) {
            return None;
        }
        Some(slots::by_slot(&self.names, keys)).filter(|slots| slots.len() > 1)
    }

    /// Whether nothing has run, for the keys live in several slots. So it is a cluster, which is known from then on.
    fn crosses_slots<T>(&self, outcome: &Result<T, BackendError>) -> bool {
        let crosses = outcome.as_ref().is_err_and(|error| error.reason() == Reason::CrossSlot);
        if crosses {
            self.is_cluster.store(true, Ordering::Relaxed);
        }
        crosses
    }
}

impl<L: Link> Backend for RedisBackend<L> {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let keys = || check.pairs().iter().map(|pair| &pair.key);
        if let Some(slots) = self.divided(keys()) {
            return slots::decide(self, check, &slots).await;
        }
        let outcome = self.decide(check).await;
        match self.crosses_slots(&outcome).then(|| self.divided(keys())).flatten() {
            Some(slots) => slots::decide(self, check, &slots).await,
            None => outcome,
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        let keys = || refund.pairs().iter().map(|pair| &pair.key);
        let outcome = match self.divided(keys()) {
            Some(slots) => return slots::give_back(self, refund, &slots).await,
            None => self.give_back(refund).await,
        };
        match self.crosses_slots(&outcome).then(|| self.divided(keys())).flatten() {
            Some(slots) => slots::give_back(self, refund, &slots).await,
            None => outcome,
        }
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        let keys = || pairs.pairs().iter().map(|pair| &pair.key);
        let outcome = match self.divided(keys()) {
            Some(slots) => return slots::forget(self, pairs, &slots).await,
            None => self.forget(pairs).await,
        };
        match self.crosses_slots(&outcome).then(|| self.divided(keys())).flatten() {
            Some(slots) => slots::forget(self, pairs, &slots).await,
            None => outcome,
        }
    }

    /// On the server's own clock. One that is injected may be moved at any time.
    fn denials_hold(&self) -> bool {
        self.instant().is_none()
    }

    fn store(&self) -> Option<String> {
        // Clones share their scripts, and so does nothing else.
        let store = self.link.store().unwrap_or_else(|| format!("redis by {:p}", Arc::as_ptr(&self.scripts)));
        // Under different secrets nothing is shared. The secret cannot be found out from a hash under it.
        let under = || self.names.tag(&PartitionKey::new("", ""));
        Some(if self.names.have_secret() { format!("{store} under {}", under()) } else { store })
    }
}

impl<L: fmt::Debug> fmt::Debug for RedisBackend<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("link", &self.link)
            .field("has_hash_secret", &self.names.have_secret())
            .finish_non_exhaustive()
    }
}
