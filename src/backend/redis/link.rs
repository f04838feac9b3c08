//! A connection that the backend owns: made when it is needed, made again when it is lost.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    PushKind, RedisError, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::{runtime::Handle, sync::watch};

use super::{
    error::is_demotion,
    eviction::Watch,
    tls::{self, Tls},
};

/// How long one attempt to connect may take. A check waits for it only within its own deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After this long without an acknowledgement a connection is given up by the operating system.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// What sends a command and brings its reply.
pub trait Link: Clone + Send + Sync + 'static {
    /// Sends the command once; never again, for it may have run. A reply that is an error is an `Err`.
    fn send(&self, command: &Cmd) -> impl Future<Output = RedisResult<Value>> + Send;

    /// The server's address and database, if they are known here.
    fn store(&self) -> Option<String> {
        None
    }
}

/// The user's own connection.
#[derive(Clone)]
pub struct Own<C>(pub(super) C);

/// A connection that is made when it is needed and shared by all checks. When it is lost, the next check makes a new
/// one, once for all that wait.
#[derive(Clone)]
pub struct Managed(Arc<Shared>);

struct Shared {
    client: Client,
    /// The same for a server that does not know RESP3, unless the URL demands it.
    resp2_client: Option<Client>,
    state: Mutex<State>,
    eviction: Watch,
}

/// An attempt to connect; None while it is under way.
type Attempt = watch::Receiver<Option<RedisResult<Line>>>;

enum State {
    Down,
    /// Somebody connects; the others watch.
    Connecting(Attempt),
    Up(Line),
}

/// One connection, told apart from those before and after it.
#[derive(Clone)]
struct Line {
    connection: MultiplexedConnection,
    identity: Arc<()>,
}

impl Managed {
    pub(super) fn new(url: &str, tls: &Tls) -> RedisResult<Self> {
        let info = url.into_connection_info()?;
        let keepalive = TcpKeepalive::new().with_time(DEAD_PEER_TIMEOUT).with_interval(DEAD_PEER_TIMEOUT);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        let tcp = tcp.set_user_timeout(DEAD_PEER_TIMEOUT);
        // With RESP3 the client tells at once when a connection is lost, not only when a command fails on it.
        let info = info.set_tcp_settings(tcp);
        let client_of = |protocol| {
            let redis = info.redis_settings().clone().set_protocol(protocol);
            tls.client_of(info.clone().set_redis_settings(redis))
        };
        let (client, resp2_client) = if url.contains("protocol=") {
            (tls.client_of(info)?, None)
        } else {
            (client_of(ProtocolVersion::RESP3)?, Some(client_of(ProtocolVersion::RESP2)?))
        };
        Ok(Self(Arc::new(Shared {
            client,
            resp2_client,
            state: Mutex::new(State::Down),
            eviction: Watch::default(),
        })))
    }

    /// Connects, unless somebody has.
    pub(super) async fn connected(&self) -> RedisResult<()> {
        self.line().await.map(|_| ())
    }

    /// The address without its password.
    pub(super) fn address(&self) -> &ConnectionAddr {
        self.0.client.get_connection_info().addr()
    }

    async fn line(&self) -> RedisResult<Line> {
        let runtime = Handle::try_current()
            .map_err(|_| RedisError::from((ErrorKind::Client, "a connection needs a tokio runtime")))?;
        let mut attempt = match &mut *self.0.state() {
            State::Up(line) => return Ok(line.clone()),
            State::Connecting(attempt) => attempt.clone(),
            down @ State::Down => {
                let (tell, attempt) = watch::channel(None);
                *down = State::Connecting(attempt.clone());
                // A task of its own: the check that happens to be the first may be dropped at its deadline.
                runtime.spawn(connect(self.0.clone(), tell));
                attempt
            }
        };
        let outcome = attempt.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        // An attempt that has ended without an outcome was cut off, as when its runtime was shut down.
        outcome.ok().flatten().unwrap_or_else(|| {
            self.0.forget_attempt(&attempt);
            Err(RedisError::from((ErrorKind::Io, "the attempt to connect was cut off")))
        })
    }
}

impl Link for Managed {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let Line { mut connection, identity } = self.line().await?;
        let reply = connection.req_packed_command(command).await;
        let reply = reply.and_then(Value::extract_error);
        if reply.as_ref().is_err_and(|error| error.is_unrecoverable_error() || is_demotion(error)) {
            self.0.lose(&identity);
        }
        reply
    }

    fn store(&self) -> Option<String> {
        let info = self.0.client.get_connection_info();
        Some(format!("redis {}/{}", info.addr(), info.redis_settings().db()))
    }
}

impl<C> Link for Own<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.0.clone().req_packed_command(command).await.and_then(Value::extract_error)
    }
}

async fn connect(shared: Arc<Shared>, tell: watch::Sender<Option<RedisResult<Line>>>) {
    tls::prepare(shared.client.get_connection_info().addr());
    let mut outcome = open(&shared, &shared.client).await;
    if let (Err(error), Some(client)) = (&outcome, &shared.resp2_client)
        && knows_no_resp3(error)
    {
        outcome = open(&shared, client).await;
    }
    *shared.state() = outcome.as_ref().map_or(State::Down, |line| State::Up(line.clone()));
    if let Ok(line) = &outcome {
        shared.eviction.look(&line.connection, shared.client.get_connection_info().addr());
    }
    // Nobody may be waiting any more.
    let _ = tell.send(Some(outcome));
}

async fn open(shared: &Arc<Shared>, client: &Client) -> RedisResult<Line> {
    let identity = Arc::new(());
    let (on_loss, lost) = (Arc::downgrade(shared), identity.clone());
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // The limiter's deadline is the only one.
        .set_response_timeout(None);
    if client.get_connection_info().redis_settings().protocol().supports_resp3() {
        config = config.set_push_sender(move |push: redis::PushInfo| {
            if let (PushKind::Disconnection, Some(shared)) = (push.kind, on_loss.upgrade()) {
                shared.lose(&lost);
            }
            Ok::<(), redis::aio::SendError>(())
        });
    }
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(Line { connection, identity })
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
    fn lose(&self, lost: &Arc<()>) {
        let mut state = self.state();
        if matches!(&*state, State::Up(line) if Arc::ptr_eq(&line.identity, lost)) {
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

impl fmt::Debug for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Managed({})", self.address())
    }
}

impl<C> fmt::Debug for Own<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own(..)")
    }
}
