//! A connection that the backend owns: made when it is needed, made again when it is lost.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, ProtocolVersion, PushKind,
    RedisConnectionInfo, RedisError, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cmd,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
    pipe,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::broadcast,
    task::AbortHandle,
    time::{Instant, timeout},
};

use super::{Line, Node, sentinel::Sentinels};
use crate::backend::redis::{error::condemns, eviction::Watch, tls};

/// How long one attempt to connect may take. A check waits for it only within its own deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After this long without an acknowledgement a connection is given up by the operating system.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection that owes an answer for so long is given up here: its server may be gone without a word, and somebody else
/// may do its work by now.
const SILENCE: Duration = Duration::from_millis(500);
/// How long nobody connects after an attempt that has failed; at least half of it. A connection to a server that refuses to
/// do its work is kept as long.
const PAUSE: Duration = Duration::from_millis(50);

/// One server: a connection that is made when it is needed and shared by all checks. When it is lost, the next check makes a
/// new one, once for all that wait.
#[derive(Clone)]
pub(super) struct Server(Arc<Shared>);

struct Shared {
    place: Place,
    state: Mutex<State>,
    eviction: Watch,
}

/// Where the server is.
pub(super) enum Place {
    At(Reach),
    /// Where these say that the primary is.
    Primary(Sentinels),
    /// Wherever the streams lead that the caller makes.
    Behind(Arc<dyn Streams>),
}

/// What makes a stream of bytes to the server and speaks over it.
pub(super) trait Streams: Send + Sync {
    fn connect(&self, config: AsyncConnectionConfig) -> Connecting;
}

type Connecting = Pin<Box<dyn Future<Output = RedisResult<(MultiplexedConnection, Driver)>> + Send>>;

/// The task that moves the bytes of a connection. Without those who ask there it ends, whatever the stream does: one that takes
/// nothing any more would keep it for ever.
pub(super) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<F, Fut, S> Streams for F
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    fn connect(&self, config: AsyncConnectionConfig) -> Connecting {
        let stream = self();
        Box::pin(async move {
            let settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
            let made = MultiplexedConnection::new_with_config(&settings, stream.await?, config);
            let (connection, driver) = made.await?;
            Ok((connection, Driver(tokio::spawn(driver).abort_handle())))
        })
    }
}

/// How a server is connected to.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) info: ConnectionInfo,
    /// Whether RESP3 may be left for RESP2, for a server that does not know it.
    pub(super) may_be_resp2: bool,
}

/// An attempt to connect, whose outcome comes once. Those that wait for it go on in the order in which they came, which those
/// of a `watch` do not: in a simulated network the same run is to be the same.
type Attempt = broadcast::Receiver<RedisResult<ServerLine>>;

enum State {
    Down,
    /// The last attempt has failed, and the next one begins after this instant.
    Failed(Instant, RedisError),
    /// Somebody connects; the others listen.
    Connecting(Attempt),
    Up(ServerLine),
}

/// One connection, told apart by its node from those before and after it.
#[derive(Clone)]
pub struct ServerLine {
    connection: MultiplexedConnection,
    node: Arc<Node>,
    server: Weak<Shared>,
    made: Instant,
    /// For a key that is on its way to this server, which has to be told that the question is meant for it.
    is_asking: bool,
    /// None if the client crate keeps it.
    _driver: Option<Arc<Driver>>,
}

impl Place {
    /// How the server is connected to, but perhaps for its address. None if that is not known here.
    pub(super) fn reach(&self) -> Option<&Reach> {
        match self {
            Self::At(reach) => Some(reach),
            Self::Primary(sentinels) => Some(sentinels.reach()),
            Self::Behind(_) => None,
        }
    }
}

impl Reach {
    /// With RESP3 the client tells at once when a connection is lost, not only when a command fails on it.
    pub(super) fn new(info: ConnectionInfo, may_choose: bool) -> Self {
        let keepalive = TcpKeepalive::new().with_time(DEAD_PEER_TIMEOUT).with_interval(DEAD_PEER_TIMEOUT);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        let tcp = tcp.set_user_timeout(DEAD_PEER_TIMEOUT);
        let mut info = info.set_tcp_settings(tcp);
        if may_choose {
            let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            info = info.set_redis_settings(redis);
        }
        Self { info, may_be_resp2: may_choose }
    }

    async fn open(&self, server: &Arc<Shared>) -> RedisResult<ServerLine> {
        tls::prepare(self.info.addr());
        let outcome = open(server, &Client::open(self.info.clone())?).await;
        let outcome = match outcome {
            Err(error) if self.may_be_resp2 && knows_no_resp3(&error) => {
                let redis = self.info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
                open(server, &Client::open(self.info.clone().set_redis_settings(redis))?).await
            }
            outcome => outcome,
        };
        if let Ok(line) = &outcome {
            server.eviction.look(&line.connection, self.info.addr());
        }
        outcome
    }
}

impl Server {
    pub(super) fn new(place: Place) -> Self {
        Self(Arc::new(Shared { place, state: Mutex::new(State::Down), eviction: Watch::default() }))
    }

    pub(super) fn place(&self) -> &Place {
        &self.0.place
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(&*self.0.state(), State::Up(_))
    }

    pub(super) async fn line(&self) -> RedisResult<ServerLine> {
        let runtime = Handle::try_current()
            .map_err(|_| RedisError::from((ErrorKind::Client, "a connection needs a tokio runtime")))?;
        let mut attempt = match &mut *self.0.state() {
            State::Up(line) => return Ok(line.clone()),
            // The outcome is told after this state is left: nobody who listens here has missed it.
            State::Connecting(attempt) => attempt.resubscribe(),
            State::Failed(until, error) if Instant::now() < *until => return Err(error.clone()),
            down @ (State::Down | State::Failed(..)) => {
                let (tell, attempt) = broadcast::channel(1);
                *down = State::Connecting(attempt.resubscribe());
                // A task of its own: the check that happens to be the first may be dropped at its deadline.
                runtime.spawn(connect(self.0.clone(), tell));
                attempt
            }
        };
        // An attempt that has ended without an outcome was cut off, as when its runtime was shut down.
        attempt.recv().await.unwrap_or_else(|_| {
            self.0.forget_attempt(&attempt);
            Err(RedisError::from((ErrorKind::Io, "the attempt to connect was cut off")))
        })
    }
}

impl ServerLine {
    /// The same connection for a key that is on its way to this server.
    pub(super) fn asking(self) -> Self {
        Self { is_asking: true, ..self }
    }

    /// The place to ask after this one has refused. None if it is this one, which would say the same.
    pub(super) fn unless_same(&self, other: RedisResult<Self>) -> Option<RedisResult<Self>> {
        Some(other).filter(|other| !other.as_ref().is_ok_and(|other| Arc::ptr_eq(&self.node, &other.node)))
    }

    fn lose(&self) {
        if let Some(server) = self.server.upgrade() {
            server.lose(&self.node);
        }
    }

    async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        if !self.is_asking {
            return connection.req_packed_command(command).await.and_then(Value::extract_error);
        }
        let mut both = pipe();
        both.cmd("ASKING").add_command(command.clone());
        let replies = connection.req_packed_commands(&both, 0, 2).await?;
        let mut replies = replies.into_iter().map(Value::extract_error);
        let none = || Err(RedisError::from((ErrorKind::Parse, "no reply")));
        let (asking, reply) = (replies.next().unwrap_or_else(none), replies.next().unwrap_or_else(none));
        match reply {
            // Who may not say that it is meant is sent away again, and that is no reason.
            Err(_) => asking.and(reply),
            reply => reply,
        }
    }
}

impl Line for ServerLine {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let unanswered = |silence| {
            if silence >= SILENCE {
                self.lose();
            }
        };
        let asked = self.node.asks(&unanswered);
        let reply = self.ask(command).await;
        asked.end();
        if let Err(error) = &reply {
            // One that has just been made would be made again with every check.
            if error.is_unrecoverable_error() || condemns(error) && self.made.elapsed() >= PAUSE {
                self.lose();
            }
        }
        reply
    }

    fn node(&self) -> &Node {
        &self.node
    }
}

async fn connect(server: Arc<Shared>, tell: broadcast::Sender<RedisResult<ServerLine>>) {
    let attempt = async {
        match &server.place {
            Place::At(reach) => reach.open(&server).await,
            Place::Primary(sentinels) => sentinels.primary().await?.open(&server).await,
            Place::Behind(streams) => {
                let (node, config) = prepare(&server, true);
                let (connection, driver) = streams.connect(config).await?;
                Ok(begin(&server, node, connection, Some(driver)).await)
            }
        }
    };
    let begun = Instant::now();
    let outcome = timeout(CONNECT_TIMEOUT, attempt).await;
    let outcome = outcome.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, "no connection within a second").into())
    });
    *server.state() = match &outcome {
        Ok(line) => State::Up(line.clone()),
        Err(error) => State::Failed(Instant::now() + pause(begun.elapsed()), error.clone()),
    };
    // Nobody may be waiting any more.
    let _ = tell.send(outcome);
}

/// Many processes have lost the same server at once, and need not come back at once.
fn pause(attempt: Duration) -> Duration {
    // No two attempts take as many nanoseconds, and in a simulated network the same one always does.
    let mut hasher = DefaultHasher::new();
    attempt.hash(&mut hasher);
    let chance = hasher.finish() % 1_024;
    PAUSE / 2 + PAUSE / 2 * chance as u32 / 1_024
}

async fn open(server: &Arc<Shared>, client: &Client) -> RedisResult<ServerLine> {
    let knows_resp3 = client.get_connection_info().redis_settings().protocol().supports_resp3();
    let (node, config) = prepare(server, knows_resp3);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(begin(server, node, connection, None).await)
}

/// A node of which nothing is known, and how to connect to it.
fn prepare(server: &Arc<Shared>, knows_resp3: bool) -> (Arc<Node>, AsyncConnectionConfig) {
    let node = Arc::<Node>::default();
    let (on_loss, lost) = (Arc::downgrade(server), node.clone());
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // The limiter's deadline is the only one.
        .set_response_timeout(None);
    if knows_resp3 {
        config = config.set_push_sender(move |push: redis::PushInfo| {
            if let (PushKind::Disconnection, Some(server)) = (push.kind, on_loss.upgrade()) {
                server.lose(&lost);
            }
            Ok::<(), redis::aio::SendError>(())
        });
    }
    (node, config)
}

async fn begin(
    server: &Arc<Shared>,
    node: Arc<Node>,
    mut connection: MultiplexedConnection,
    driver: Option<Driver>,
) -> ServerLine {
    // The first check is to know the server's clock. Where this may not be asked, the check learns it by itself.
    let time = cmd("TIME").query_async::<(u64, u64)>(&mut connection).await;
    if let Ok((seconds, micros)) = time {
        node.has_told(seconds.saturating_mul(1_000_000).saturating_add(micros), Instant::now());
    }
    let (server, made) = (Arc::downgrade(server), Instant::now());
    ServerLine { connection, node, server, made, is_asking: false, _driver: driver.map(Arc::new) }
}

/// Servers before Redis 6, and some proxies. Their words differ, and the client knows those of Redis 5.
fn knows_no_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is lost; a newer one is not touched.
    fn lose(&self, lost: &Arc<Node>) {
        let mut state = self.state();
        if matches!(&*state, State::Up(line) if Arc::ptr_eq(&line.node, lost)) {
            *state = State::Down;
        }
    }

    fn forget_attempt(&self, attempt: &Attempt) {
        let mut state = self.state();
        if matches!(&*state, State::Connecting(other) if other.same_channel(attempt)) {
            *state = State::Down;
        }
    }
}
