//! A connection that the backend owns: made on demand, and made again after a loss.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, ProtocolVersion, PushKind, RedisConnectionInfo,
    RedisError, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cmd, pipe,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::broadcast,
    task::AbortHandle,
    time::{Instant, timeout},
};

use super::{endpoint::Endpoint, sentinel::Sentinels, server_state::ServerState};
use crate::{
    backend::redis::{error::requires_reconnect, eviction::EvictionCheck, tls},
    outage::{Guard, SharedProtection},
};

/// The timeout of one attempt to connect. A check waits for it only within its own deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection is dropped when a command is abandoned after the server has been silent for this long. The server may be gone
/// without closing the connection, and another server may have replaced it.
const MAX_SILENCE: Duration = Duration::from_millis(500);
/// The pause after a failed attempt to connect; a random part of it, at least half. A connection whose server demands a
/// reconnect is also kept for this long.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// One server, with one connection that all checks share.
#[derive(Clone)]
pub(crate) struct Server(Arc<Shared>);

struct Shared {
    target: Target,
    guard: Arc<Guard>,
    state: Mutex<State>,
    eviction: EvictionCheck,
}

/// How to find the server.
pub(super) enum Target {
    /// At a fixed address.
    Endpoint(Endpoint),
    /// At the address that Sentinels report.
    Sentinels(Sentinels),
    /// At the other end of streams that the caller opens.
    Streams(Arc<dyn Streams>),
}

/// Opens streams to the server and starts the protocol on them.
pub(super) trait Streams: Send + Sync {
    fn connect(&self, config: AsyncConnectionConfig) -> Connecting;
}

type Connecting = Pin<Box<dyn Future<Output = RedisResult<(MultiplexedConnection, Driver)>> + Send>>;

/// The task that moves the bytes of a connection. It is aborted with the last clone of the connection; otherwise a stream that
/// accepts no more bytes would keep it forever.
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
            let connected = MultiplexedConnection::new_with_config(&settings, stream.await?, config);
            let (connection, driver) = connected.await?;
            Ok((connection, Driver(tokio::spawn(driver).abort_handle())))
        })
    }
}

/// The outcome of an attempt to connect. A `broadcast` wakes its waiters in the order in which they came. A `watch` does not,
/// and a simulated network must repeat a run exactly.
type Attempt = broadcast::Receiver<RedisResult<ServerConnection>>;

enum State {
    Disconnected,
    /// The last attempt has failed. The next one starts at this instant or later.
    Failed(Instant, RedisError),
    Connecting(Attempt),
    Connected(ServerConnection),
}

/// A connection to a server. Its state identifies it among the earlier and later connections to the same server.
#[derive(Clone)]
pub(crate) struct ServerConnection {
    connection: MultiplexedConnection,
    state: Arc<ServerState>,
    server: Weak<Shared>,
    connected_at: Instant,
    /// Whether to send ASKING before each command: the slot is being migrated to this server.
    is_asking: bool,
    /// None if the client crate owns the task.
    _driver: Option<Arc<Driver>>,
}

impl Target {
    /// Returns how to connect to the server; behind Sentinels without its current address. None for the caller's streams.
    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Endpoint(endpoint) => Some(endpoint),
            Self::Sentinels(sentinels) => Some(sentinels.endpoint()),
            Self::Streams(_) => None,
        }
    }
}

impl Server {
    pub(super) fn new(target: Target, protection: Arc<SharedProtection>) -> Self {
        let (guard, state) = (Guard::new(protection), Mutex::new(State::Disconnected));
        Self(Arc::new(Shared { target, guard, state, eviction: EvictionCheck::default() }))
    }

    /// Returns the guard of the server, which outlives its connections.
    pub(super) fn guard(&self) -> &Arc<Guard> {
        &self.0.guard
    }

    pub(super) fn target(&self) -> &Target {
        &self.0.target
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(&*self.0.state(), State::Connected(_))
    }

    /// Returns the connection. If there is none, connects, or waits for the attempt in progress.
    pub(super) async fn connection(&self) -> RedisResult<ServerConnection> {
        let runtime = Handle::try_current().map_err(|_| {
            RedisError::from((ErrorKind::Client, "missing tokio runtime: a connection needs one"))
        })?;
        let mut attempt = match &mut *self.0.state() {
            State::Connected(connection) => return Ok(connection.clone()),
            // The outcome is sent after the state has changed, so this subscription cannot miss it.
            State::Connecting(attempt) => attempt.resubscribe(),
            State::Failed(until, error) if Instant::now() < *until => return Err(error.clone()),
            state @ (State::Disconnected | State::Failed(..)) => {
                let (outcome, attempt) = broadcast::channel(1);
                *state = State::Connecting(attempt.resubscribe());
                // A task of its own: the check that starts the attempt may be dropped at its deadline.
                runtime.spawn(self.0.clone().connect(outcome));
                attempt
            }
        };
        // An attempt ends without an outcome if its runtime shuts down.
        attempt.recv().await.unwrap_or_else(|_| {
            self.0.abandon(&attempt);
            Err(RedisError::from((
                ErrorKind::Io,
                "connection attempt cancelled: its tokio runtime has shut down",
            )))
        })
    }
}

impl ServerConnection {
    /// Returns the same connection for a slot that is being migrated to this server.
    pub(super) fn asking(self) -> Self {
        Self { is_asking: true, ..self }
    }

    /// Returns the state of the server at the other end.
    pub(super) fn server(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Sends a command once.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let on_drop = |silence| {
            if silence >= MAX_SILENCE {
                self.disconnect();
            }
        };
        let pending = self.state.pending.start(&on_drop);
        let reply = self.request(command).await;
        pending.finish();
        if let Err(error) = &reply {
            // A new connection is kept for a moment; otherwise every check would reconnect.
            let is_new = self.connected_at.elapsed() < RECONNECT_PAUSE;
            if error.is_unrecoverable_error() || requires_reconnect(error) && !is_new {
                self.disconnect();
            }
        }
        reply
    }

    async fn request(&self, command: &Cmd) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        if !self.is_asking {
            return connection.req_packed_command(command).await.and_then(Value::extract_error);
        }
        let mut both = pipe();
        both.cmd("ASKING").add_command(command.clone());
        let replies = connection.req_packed_commands(&both, 0, 2).await?;
        let mut replies = replies.into_iter().map(Value::extract_error);
        let missing = || Err(RedisError::from((ErrorKind::Parse, "no reply")));
        let (asking, reply) =
            (replies.next().unwrap_or_else(missing), replies.next().unwrap_or_else(missing));
        match reply {
            // If ASKING fails, the command is redirected again. The reason is the first error.
            Err(_) => asking.and(reply),
            reply => reply,
        }
    }

    fn disconnect(&self) {
        if let Some(server) = self.server.upgrade() {
            server.disconnect(&self.state);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a connection that is lost. A newer one stays.
    fn disconnect(&self, lost: &Arc<ServerState>) {
        let mut state = self.state();
        if matches!(&*state, State::Connected(connection) if Arc::ptr_eq(&connection.state, lost)) {
            *state = State::Disconnected;
        }
    }

    fn abandon(&self, attempt: &Attempt) {
        let mut state = self.state();
        if matches!(&*state, State::Connecting(other) if other.same_channel(attempt)) {
            *state = State::Disconnected;
        }
    }

    async fn connect(self: Arc<Self>, waiters: broadcast::Sender<RedisResult<ServerConnection>>) {
        let attempt = async {
            match &self.target {
                Target::Endpoint(endpoint) => self.open(endpoint).await,
                Target::Sentinels(sentinels) => self.open(&sentinels.resolve().await?).await,
                Target::Streams(streams) => {
                    let (state, config) = self.configure(true);
                    let (connection, driver) = streams.connect(config).await?;
                    Ok(self.initialize(state, connection, Some(driver)).await)
                }
            }
        };
        let started = Instant::now();
        let outcome = timeout(CONNECT_TIMEOUT, attempt).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out after 1 s").into())
        });
        *self.state() = match &outcome {
            Ok(connection) => State::Connected(connection.clone()),
            Err(error) => State::Failed(Instant::now() + backoff(started.elapsed()), error.clone()),
        };
        // Every waiter may have gone.
        let _ = waiters.send(outcome);
    }

    async fn open(self: &Arc<Self>, endpoint: &Endpoint) -> RedisResult<ServerConnection> {
        tls::prepare(endpoint.info.addr());
        let outcome = match self.open_once(endpoint).await {
            Err(error) if endpoint.allows_resp2 && lacks_resp3(&error) => {
                self.open_once(&endpoint.clone().with_protocol(ProtocolVersion::RESP2)).await
            }
            outcome => outcome,
        };
        if let Ok(opened) = &outcome {
            self.eviction.start(&opened.connection, endpoint.info.addr());
        }
        outcome
    }

    async fn open_once(self: &Arc<Self>, endpoint: &Endpoint) -> RedisResult<ServerConnection> {
        let client = Client::open(endpoint.info.clone())?;
        let is_resp3 = endpoint.info.redis_settings().protocol().supports_resp3();
        let (state, config) = self.configure(is_resp3);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(self.initialize(state, connection, None).await)
    }

    /// Returns an empty server state, and a configuration that disconnects this state when the connection is lost.
    fn configure(self: &Arc<Self>, is_resp3: bool) -> (Arc<ServerState>, AsyncConnectionConfig) {
        let state = Arc::<ServerState>::default();
        let (server, lost) = (Arc::downgrade(self), state.clone());
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // The limiter's deadline is the only one.
            .set_response_timeout(None);
        if is_resp3 {
            config = config.set_push_sender(move |push: redis::PushInfo| {
                if let (PushKind::Disconnection, Some(server)) = (push.kind, server.upgrade()) {
                    server.disconnect(&lost);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        }
        (state, config)
    }

    /// Reads the server's clock, so that the first check knows it. If the user may not call TIME, the first check learns the
    /// clock from its own reply.
    async fn initialize(
        self: &Arc<Self>,
        state: Arc<ServerState>,
        mut connection: MultiplexedConnection,
        driver: Option<Driver>,
    ) -> ServerConnection {
        let time = cmd("TIME").query_async::<(u64, u64)>(&mut connection).await;
        if let Ok((seconds, micros)) = time {
            state.clock.record(seconds.saturating_mul(1_000_000).saturating_add(micros), Instant::now());
        }
        let (server, connected_at) = (Arc::downgrade(self), Instant::now());
        let _driver = driver.map(Arc::new);
        ServerConnection { connection, state, server, connected_at, is_asking: false, _driver }
    }
}

/// Returns the pause after a failed attempt. It is random, because many processes lose the same server at the same time.
fn backoff(attempt: Duration) -> Duration {
    // No two attempts take the same number of nanoseconds, but in a simulated network an attempt always takes the same.
    let mut hasher = DefaultHasher::new();
    attempt.hash(&mut hasher);
    let random = hasher.finish() % 1_024;
    RECONNECT_PAUSE / 2 + RECONNECT_PAUSE / 2 * random as u32 / 1_024
}

/// Returns whether the server does not know RESP3, as Redis 5 and some proxies. Their error texts differ.
fn lacks_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}
