//! A connection that the backend owns: made on demand, and made again after a loss.

use std::{
    fmt,
    future::pending,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    io, mem,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, ProtocolVersion, PushKind, RedisConnectionInfo,
    RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cmd, from_redis_value, pipe,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, timeout},
};

use super::{
    endpoint::{Address, Endpoint, timed_out},
    follower::Follower,
    sentinel::Sentinels,
    server_state::ServerState,
};
use crate::{
    backend::redis::{
        error::{requires_reconnect, without_arguments},
        tls,
    },
    guard::{Guard, SharedProtection},
    lock::Lock,
    single_flight::{Attempt, SingleFlight},
};

/// The timeout of one attempt to connect. A check waits for it only within its own deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time in which a server confirms that it is a primary, if another server may be the primary as well.
const ROLE_TIMEOUT: Duration = Duration::from_millis(300);
/// The number of attempts that a check waits for, if they are replaced or end with their runtime.
const MAX_ATTEMPTS: usize = 3;
/// A connection is dropped when a command is abandoned after the server has been silent for this long. The server may be gone
/// without closing the connection, and another server may have replaced it.
const MAX_SILENCE: Duration = Duration::from_millis(500);
/// The pause after a failed attempt to connect; a random part of it, at least half. A connection whose server demands a
/// reconnect is also kept for this long.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// One server, with one connection that all checks share.
#[derive(Clone)]
pub(crate) struct Server(Arc<ServerInner>);

struct ServerInner {
    target: Target,
    guard: Arc<Guard>,
    state: Lock<ConnectionState>,
    attempts: SingleFlight<RedisResult<ServerConnection>>,
    follower: Follower,
}

/// How to find the server.
#[derive(Clone)]
pub(super) enum Target {
    /// At a fixed address.
    Endpoint(Box<Endpoint>),
    /// At the address that Sentinels report.
    Sentinels(Arc<Sentinels>),
    /// At the other end of streams that the caller opens.
    Streams(Arc<dyn Streams>),
}

/// Opens streams to the server and starts the protocol on them.
pub(crate) trait Streams: Send + Sync {
    fn connect(&self, config: AsyncConnectionConfig) -> Connecting;
}

type Connecting = Pin<Box<dyn Future<Output = RedisResult<(MultiplexedConnection, Driver)>> + Send>>;

/// A task that runs as long as a connection can move bytes. It is aborted with the last clone of the connection; otherwise a
/// stream that accepts no more bytes would keep it forever.
pub(crate) struct Driver(AbortHandle);

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

enum ConnectionState {
    Disconnected,
    /// The last attempt has failed. The next one starts at this instant or later.
    Failed(Instant, RedisError),
    Connected(ServerConnection),
}

/// A connection to a server. Its state identifies it among the earlier and later connections to the same server.
#[derive(Clone)]
pub(crate) struct ServerConnection {
    pub(super) opened: Arc<OpenConnection>,
    /// Whether to send ASKING before each command: the slot is being migrated to this server.
    pub(super) is_asking: bool,
}

/// An open connection, which its clones share.
pub(super) struct OpenConnection {
    connection: MultiplexedConnection,
    /// The state of the server at the other end.
    pub(super) state: Arc<ServerState>,
    server: Weak<ServerInner>,
    /// The address, or `None` for the caller's streams and a Unix socket.
    address: Option<Address>,
    connected_at: Instant,
    driver: Driver,
}

impl Target {
    /// Returns how to connect to the server; behind Sentinels without its current address. None for the caller's streams.
    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Endpoint(endpoint) => Some(endpoint),
            Self::Sentinels(sentinels) => Some(&sentinels.primary),
            Self::Streams(_) => None,
        }
    }

    /// Returns the endpoint, unless Sentinels must name the address first: these may have other settings.
    fn direct_endpoint(&self) -> Option<&Endpoint> {
        self.endpoint().filter(|_| !matches!(self, Self::Sentinels(_)))
    }
}

/// Writes the address, without user and password.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(endpoint) => write!(f, "{}", endpoint.info.addr()),
            Self::Sentinels(sentinels) => write!(f, "{} (by Sentinel)", sentinels.service),
            Self::Streams(_) => f.write_str("custom streams"),
        }
    }
}

impl Server {
    /// Returns a server that is not connected. Events name it.
    pub(super) fn new(target: Target, protection: Arc<SharedProtection>, name: impl Into<Box<str>>) -> Self {
        let (state, attempts) =
            (Lock::new(ConnectionState::Disconnected), SingleFlight::new(CONNECT_TIMEOUT));
        let (guard, follower) = (Guard::new(protection, name), Follower::default());
        Self(Arc::new(ServerInner { target, guard, state, attempts, follower }))
    }

    /// Returns the guard of the server, which outlives its connections.
    pub(super) fn guard(&self) -> &Arc<Guard> {
        &self.0.guard
    }

    pub(super) fn target(&self) -> &Target {
        &self.0.target
    }

    pub(super) fn is_connected(&self) -> bool {
        self.0.state.lock().connection().is_some()
    }

    /// Returns whether this state is the one of the connection.
    pub(super) fn has_state(&self, state: &Arc<ServerState>) -> bool {
        matches!(&*self.0.state.lock(), ConnectionState::Connected(connection) if Arc::ptr_eq(&connection.opened.state, state))
    }

    /// Returns the connection, or `None` if there is none.
    pub(super) fn open_connection(&self) -> Option<ServerConnection> {
        self.0.state.lock().connection().cloned()
    }

    /// Returns the connection. If there is none, connects, or waits for the attempt in progress.
    pub(super) async fn connection(&self) -> RedisResult<ServerConnection> {
        let runtime = Handle::try_current()
            .map_err(|_| (ErrorKind::Client, "missing tokio runtime: a connection needs one"))?;
        for _ in 0..MAX_ATTEMPTS {
            let waiter = {
                let state = self.0.state.lock();
                match &*state {
                    ConnectionState::Failed(until, error) if Instant::now() < *until => {
                        return Err(error.clone());
                    }
                    state => {
                        if let Some(connection) = state.connection() {
                            return Ok(connection.clone());
                        }
                    }
                }
                let (attempt, waiter) = self.0.attempts.join();
                if let Some(attempt) = attempt {
                    // A task of its own: the check that starts the attempt may be dropped at its deadline.
                    runtime.spawn(self.0.clone().connect(attempt));
                }
                waiter
            };
            if let Some(outcome) = waiter.outcome().await {
                return outcome;
            }
        }
        Err(timed_out(self.0.target.direct_endpoint(), CONNECT_TIMEOUT))
    }
}

impl ServerConnection {
    /// Sends a command once, now.
    pub(super) async fn send(&self, command: &Cmd, now: Instant) -> RedisResult<Value> {
        let mut connection = self.opened.connection.clone();
        let request: RedisFuture<'_, Value> = match self.is_asking {
            true => Box::pin(ask(connection.clone(), command)),
            false => connection.req_packed_command(command),
        };
        self.watch(request, now, Value::extract_error).await
    }

    /// Sends several commands at once. The outer error is that of the connection.
    pub(super) async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        let mut connection = self.opened.connection.clone();
        let request = connection.req_packed_commands(commands, 0, commands.len());
        let replies = self.watch(request, Instant::now(), Ok).await?;
        Ok(replies.into_iter().map(Value::extract_error).collect())
    }

    /// Disconnects if a request that is sent now shows that the connection is lost, by its reply or by an error in the reply.
    async fn watch<T>(
        &self,
        request: RedisFuture<'_, T>,
        now: Instant,
        extract_error: fn(T) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let on_drop = |silence| {
            if silence >= MAX_SILENCE {
                self.disconnect();
            }
        };
        let pending = self.opened.state.pending.start(now, &on_drop);
        let reply = request.await.and_then(extract_error);
        pending.finish(Instant::now());
        if let Err(error) = &reply {
            self.disconnect_after(error);
        }
        reply
    }

    /// Disconnects if an error shows that the connection is lost, or requires a new connection.
    pub(super) fn disconnect_after(&self, error: &RedisError) {
        // A new connection is kept for a moment; otherwise every check would reconnect.
        let is_new = self.opened.connected_at.elapsed() < RECONNECT_PAUSE;
        if error.is_unrecoverable_error() || requires_reconnect(error) && !is_new {
            self.disconnect();
        }
    }

    fn disconnect(&self) {
        if let Some(server) = self.opened.server.upgrade() {
            server.disconnect(&self.opened.state);
        }
    }
}

/// Sends ASKING and a command.
async fn ask(mut connection: MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    let mut both = pipe();
    both.cmd("ASKING").add_command(command.clone());
    let replies = connection.req_packed_commands(&both, 0, 2).await?;
    let mut replies = replies.into_iter().map(Value::extract_error);
    let missing = || Err(RedisError::from((ErrorKind::Parse, "no reply")));
    let (asking, reply) = (replies.next().unwrap_or_else(missing), replies.next().unwrap_or_else(missing));
    // If ASKING fails, the command is redirected again. The reason is the first error.
    reply.or_else(|error| asking.and(Err(error)))
}

impl ConnectionState {
    /// Returns the connection, unless the runtime that moved its bytes has shut down.
    fn connection(&self) -> Option<&ServerConnection> {
        match self {
            Self::Connected(connection) if !connection.opened.driver.0.is_finished() => Some(connection),
            _ => None,
        }
    }
}

impl ServerInner {
    /// Drops a connection that is lost. A newer one stays.
    fn disconnect(&self, lost: &Arc<ServerState>) {
        self.disconnect_if(|opened| Arc::ptr_eq(&opened.state, lost));
    }

    /// Drops a connection to another server than the primary. The next check connects to the primary.
    fn follow(&self, primary: &Address) {
        self.disconnect_if(|opened| opened.address.as_ref().is_some_and(|address| address != primary));
    }

    fn disconnect_if(&self, is_unusable: impl FnOnce(&OpenConnection) -> bool) {
        let mut state = self.state.lock();
        if matches!(&*state, ConnectionState::Connected(connection) if is_unusable(&connection.opened)) {
            let lost = mem::replace(&mut *state, ConnectionState::Disconnected);
            drop(state);
            drop(lost);
        }
    }

    async fn connect(self: Arc<Self>, attempt: Attempt<RedisResult<ServerConnection>>) {
        let connecting = async {
            match &self.target {
                Target::Endpoint(endpoint) => self.open(endpoint).await,
                Target::Sentinels(sentinels) => {
                    let server = Arc::downgrade(&self);
                    self.follower.start(sentinels, move |primary| {
                        if let Some(server) = server.upgrade() {
                            server.follow(primary);
                        }
                    });
                    self.open_primary(sentinels.resolve().await?).await
                }
                Target::Streams(streams) => {
                    let (state, config) = self.configure(true);
                    let (connection, driver) = streams.connect(config).await?;
                    Ok(self.initialize(state, None, connection, driver).await)
                }
            }
        };
        let started = Instant::now();
        let outcome = timeout(CONNECT_TIMEOUT, connecting).await;
        let outcome =
            outcome.unwrap_or_else(|_| Err(timed_out(self.target.direct_endpoint(), CONNECT_TIMEOUT)));
        let mut state = self.state.lock();
        let new = match &outcome {
            // A replaced attempt whose connection comes late supplies it only while there is none.
            Ok(connection) if attempt.is_current() || state.connection().is_none() => {
                Some(ConnectionState::Connected(connection.clone()))
            }
            Err(error) if attempt.is_current() && state.connection().is_none() => {
                Some(ConnectionState::Failed(Instant::now() + backoff(started.elapsed()), error.clone()))
            }
            _ => None,
        };
        let replaced = new.map(|new| mem::replace(&mut *state, new));
        drop(state);
        attempt.finish(outcome);
        // It may have an error or a stream of the user.
        drop(replaced);
    }

    async fn open(self: &Arc<Self>, endpoint: &Endpoint) -> RedisResult<ServerConnection> {
        tls::prepare(endpoint.info.addr());
        let outcome = match self.open_once(endpoint).await {
            Err(error) if endpoint.allows_resp2 && lacks_resp3(&error) => {
                self.open_once(&endpoint.clone().with_protocol(ProtocolVersion::RESP2)).await
            }
            // The timeout of the client crate, which has no text.
            Err(error) if error.is_timeout() && endpoint.is_tcp() => {
                Err(timed_out(Some(endpoint), CONNECT_TIMEOUT))
            }
            outcome => outcome,
        };
        if let Ok(connection) = &outcome {
            endpoint.eviction.start(&connection.opened.connection, endpoint.info.addr());
        }
        outcome
    }

    /// Opens a connection to the first of these servers that confirms that it is a primary.
    async fn open_primary(self: &Arc<Self>, candidates: Vec<Endpoint>) -> RedisResult<ServerConnection> {
        let mut candidates = candidates.into_iter().peekable();
        let mut first_error = None;
        while let Some(candidate) = candidates.next() {
            // The last one has all the time that is left.
            let limit = if candidates.peek().is_some() { ROLE_TIMEOUT } else { CONNECT_TIMEOUT };
            let opened = timeout(limit, self.open_confirmed(&candidate)).await;
            match opened.unwrap_or_else(|_| Err(timed_out(Some(&candidate), limit))) {
                Ok(connection) => return Ok(connection),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| timed_out(None, CONNECT_TIMEOUT)))
    }

    async fn open_confirmed(self: &Arc<Self>, endpoint: &Endpoint) -> RedisResult<ServerConnection> {
        let connection = self.open(endpoint).await?;
        let role: Vec<Value> = cmd("ROLE").query_async(&mut connection.opened.connection.clone()).await?;
        let role = role.into_iter().next().and_then(|role| from_redis_value::<String>(role).ok());
        if role.as_deref() == Some("master") {
            return Ok(connection);
        }
        let text = "the server that the Sentinels name is not a primary";
        Err(RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, text)))
    }

    async fn open_once(self: &Arc<Self>, endpoint: &Endpoint) -> RedisResult<ServerConnection> {
        let client = Client::open(endpoint.info.clone())?;
        let is_resp3 = endpoint.info.redis_settings().protocol().supports_resp3();
        let (state, config) = self.configure(is_resp3);
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connected.map_err(without_arguments)?;
        // The client crate owns the task that moves the bytes. A task beside it ends with their runtime, too.
        let driver = Driver(tokio::spawn(pending::<()>()).abort_handle());
        Ok(self.initialize(state, endpoint.address().ok(), connection, driver).await)
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
        address: Option<Address>,
        mut connection: MultiplexedConnection,
        driver: Driver,
    ) -> ServerConnection {
        let time = cmd("TIME").query_async::<(u64, u64)>(&mut connection).await;
        if let Ok((seconds, micros)) = time {
            state.clock.record(seconds.saturating_mul(1_000_000).saturating_add(micros), Instant::now());
        }
        let (server, connected_at) = (Arc::downgrade(self), Instant::now());
        let opened = OpenConnection { connection, state, server, address, connected_at, driver };
        ServerConnection { opened: Arc::new(opened), is_asking: false }
    }
}

/// Returns the pause after a failed attempt. It is random, because many processes lose the same server at the same time.
fn backoff(attempt: Duration) -> Duration {
    // No two attempts take the same number of nanoseconds, but in a simulated network an attempt always takes the same.
    let random = BuildHasherDefault::<DefaultHasher>::new().hash_one(attempt) % 1_024;
    RECONNECT_PAUSE / 2 + RECONNECT_PAUSE / 2 * random as u32 / 1_024
}

/// Returns whether the server does not know RESP3, as Redis 5 and some proxies. Their error texts differ.
fn lacks_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported || error.code() == Some("NOPROTO")
}
