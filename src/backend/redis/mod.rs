//! Decisions in Redis, shared by any number of processes: one atomic script call, one round trip, the server's clock.

use std::{
    fmt,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, aio::ConnectionLike};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, Purpose, Refund},
    decision::Decision,
    error::ConfigError,
    key::PartitionKey,
    observe,
};

mod error;
mod link;
mod script;
mod slots;

pub use error::ConnectError;
use error::unavailable;
pub use link::{Line, Link, Managed, Node, Own};
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
/// In a cluster, through the user's own connection, a check of several partition keys whose slots differ takes one call
/// for each slot, in order. What was charged before another slot denies goes back at once, by a task of its own that
/// survives the check; the slots after it are asked without charging. So there are never too many, and the wait that
/// is told is true; in the instant between, somebody else may be denied because of a charge that is given back. Of a pair
/// that was given back, `reset_after` is an upper bound. Such a denial is not [remembered](crate::DenyCache), but that of
/// somebody else in the instant between may be. All policies of one partition key are in one slot, and so in one call.
///
/// Give limits an instance of Redis of their own, with `maxmemory-policy noeviction`: a key that is evicted is a limit
/// that starts afresh. Replication is asynchronous, so a failover may lose the last charges; limits are never read from
/// a replica.
#[derive(Clone)]
pub struct RedisBackend<L = Managed> {
    link: L,
    scripts: Arc<Scripts>,
    /// Known from the first check whose keys the server would not take together.
    is_cluster: Arc<AtomicBool>,
    lost_give_backs: Arc<AtomicU64>,
    unanswered: Arc<AtomicU64>,
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
        Self::lazy(url)?.reached().await
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
    /// [`ConfigError::RedisUrl`] if the URL does not parse.
    pub fn lazy(url: &str) -> Result<Self, ConfigError> {
        Self::managed(Managed::server(url))
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
        Self::managed(Managed::primary(primary, sentinels))
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
        Self::managed(Managed::cluster(nodes))
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

    fn managed(link: RedisResult<Managed>) -> Result<Self, ConfigError> {
        let link = link.map_err(|error| ConfigError::RedisUrl { reason: without_url(&error) })?;
        Ok(Self::over(link))
    }
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

    /// Asks where the keys of this slot live, and where else they may, until the question is answered. It is put again only if
    /// it was refused and nothing has run.
    async fn ask(&self, asked: Asked<'_>) -> Result<Value, BackendError> {
        let Asked { slot, mut question, deadline, is_counted } = asked;
        let mut line = self.link.line(slot).await.map_err(unavailable)?;
        let mut refusal = BackendError::new(Reason::Other);
        for _ in 0..ATTEMPTS {
            if let (Question::Script(_, call), Some(deadline)) = (&mut question, deadline) {
                call.end_at(line.node().clock_at(deadline));
            }
            let mut sent = Sent { unanswered: is_counted.then_some(&self.unanswered) };
            let reply = question.put_to(&line).await;
            let received = Instant::now();
            if reply.as_ref().map_or_else(is_answer, |_| true) {
                sent.unanswered = None;
            }
            drop(sent);
            match (reply, deadline) {
                (Ok(reply), Some(deadline)) => {
                    if let Some(clock) = script::clock(&reply) {
                        line.node().has_told(clock, received);
                    }
                    if !script::is_late(&reply) {
                        return Ok(reply);
                    }
                    // The clock may not have been known well enough. Now it is.
                    refusal = BackendError::new(Reason::Late);
                    if deadline <= received {
                        break;
                    }
                }
                (Ok(reply), None) => return Ok(reply),
                (Err(error), _) => match self.link.elsewhere(slot, &line, &error).await {
                    Some(other) => {
                        line = other.map_err(unavailable)?;
                        refusal = unavailable(error);
                    }
                    None => return Err(unavailable(error)),
                },
            }
        }
        Err(refusal)
    }

    fn instant(&self) -> Option<u64> {
        #[cfg(feature = "test-util")]
        return self.injected_clock.as_ref().map(|clock| clock.load(Ordering::SeqCst));
        #[cfg(not(feature = "test-util"))]
        None
    }
}

/// How often a question is put that is refused and may be answered elsewhere, or later.
const ATTEMPTS: usize = 6;

/// Something to ask the server that has the keys of a slot.
struct Asked<'a> {
    slot: u16,
    question: Question<'a>,
    /// After it the script charges nothing.
    deadline: Option<Instant>,
    /// Whether it is counted if it remains unanswered.
    is_counted: bool,
}

enum Question<'a> {
    Script(&'a Script, &'a mut Call),
    Plain(&'a Cmd),
}

impl Question<'_> {
    async fn put_to(&self, line: &impl Line) -> RedisResult<Value> {
        let (script, call) = match self {
            Self::Script(script, call) => (script, call),
            Self::Plain(command) => return line.send(command).await,
        };
        let is_unknown = |reply: &RedisResult<Value>| {
            reply.as_ref().is_err_and(|error| error.kind() == ServerErrorKind::NoScript.into())
        };
        let mut reply = line.send(&script.by_hash(call)).await;
        if !is_unknown(&reply) {
            return reply;
        }
        // Nothing has run. The text is sent once, however many have found out that the server does not know it.
        let mut teacher = line.node().teach().await;
        if teacher.is_none() {
            reply = line.send(&script.by_hash(call)).await;
            if !is_unknown(&reply) {
                return reply;
            }
            teacher = line.node().teach().await;
        }
        let reply = line.send(&script.by_text(call)).await;
        drop(teacher);
        reply
    }
}

/// Whether an error is a server's answer, and not the loss of one.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// A check that was sent. Dropped before its answer is there, it is counted, for its charge may stand.
struct Sent<'a> {
    unanswered: Option<&'a AtomicU64>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(unanswered) = self.unanswered {
            unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is wrong with a URL. Behind a dash the client crate adds its own name for that, and may repeat a part of the URL.
fn without_url(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}

impl<L: Link> RedisBackend<L> {
    /// Decides a check whose keys live together.
    async fn decide(&self, check: &Check) -> Result<Decision, BackendError> {
        let mut call = Call::check(check, self.instant());
        // What was used already is charged whenever it comes, and what only looks does no harm.
        let charges = matches!(check.purpose(), Purpose::Charge | Purpose::Reserve);
        let deadline = check.deadline().filter(|_| charges && self.instant().is_none());
        let slot = call.slot();
        let question = Question::Script(&self.scripts.check, &mut call);
        let reply = self.ask(Asked { slot, question, deadline, is_counted: charges }).await?;
        script::decision(check, &reply)
    }

    /// Gives units back where the keys live together.
    async fn give_back(&self, refund: &Refund) -> Result<(), BackendError> {
        let mut call = Call::refund(refund, self.instant());
        let slot = call.slot();
        let question = Question::Script(&self.scripts.refund, &mut call);
        self.ask(Asked { slot, question, deadline: None, is_counted: false }).await.map(drop)
    }

    /// Forgets keys that live together.
    async fn forget(&self, pairs: &Check) -> Result<(), BackendError> {
        let (slot, command) = script::reset(pairs);
        let question = Question::Plain(&command);
        self.ask(Asked { slot, question, deadline: None, is_counted: false }).await.map(drop)
    }

    /// The indices of the pairs of these keys slot by slot, if this is known to be a cluster and there are several slots.
    fn divided<'a>(&self, keys: impl ExactSizeIterator<Item = &'a PartitionKey>) -> Option<Vec<Vec<usize>>> {
        if keys.len() < 2 || !self.is_cluster.load(Ordering::Relaxed) {
            return None;
        }
        Some(slots::by_slot(keys)).filter(|slots| slots.len() > 1)
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
        self.link.store().or_else(|| Some(format!("redis by {:p}", Arc::as_ptr(&self.scripts))))
    }
}

impl<L: fmt::Debug> fmt::Debug for RedisBackend<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("link", &self.link).finish_non_exhaustive()
    }
}
