//! What is measured: this crate, other layers, and the bare inner service.
//!
//! Every layer gets the same requests, the same key (a header) and the same inner service. Each is built as its own documentation
//! recommends, with the header fields of its responses.

use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, Service, service_fn};
use tower_governor::{GovernorError, GovernorLayer, governor::GovernorConfigBuilder};
use tower_sliding_window::{
    MemoryBackend, Policy, RateLimitLayer, RedisBackend, header,
    outage::DenyCacheConfig,
    policy::Rate,
    redis::{Merging, RedisServers},
};

/// The header that is the key.
pub const KEY: &str = "x-api-key";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The inner service alone.
    Inner,
    /// The inner service after one EVALSHA of `return 1`, with arguments as long as those of this crate, over the same client.
    Script,
    Memory,
    TowerGovernor,
    TowerRateLimiterMemory,
    Redis,
    /// Without the cache of denials, so that every denial asks Redis.
    RedisWithoutDenyCache,
    /// A token bucket of the capacity and the rate of `TowerRateLimitRedis`, without the deny cache and without merged checks.
    RedisTokenBucket,
    TowerRateLimitRedis,
    TowerRateLimiterRedis,
}

impl Subject {
    pub const IN_MEMORY: [Self; 3] = [Self::Memory, Self::TowerGovernor, Self::TowerRateLimiterMemory];
    pub const ON_REDIS: [Self; 4] =
        [Self::Redis, Self::RedisWithoutDenyCache, Self::TowerRateLimitRedis, Self::TowerRateLimiterRedis];

    pub fn name(self) -> &'static str {
        match self {
            Self::Inner => "inner service alone",
            Self::Script => "EVALSHA of `return 1`",
            Self::Memory => "**tower-sliding-window**, memory",
            Self::TowerGovernor => "tower_governor 0.8.0",
            Self::TowerRateLimiterMemory => "tower-rate-limiter 0.2.0-alpha.0, memory GCRA",
            Self::Redis => "**tower-sliding-window**, Redis",
            Self::RedisWithoutDenyCache => "**tower-sliding-window**, Redis, no deny cache",
            Self::RedisTokenBucket => "**tower-sliding-window**, token bucket",
            Self::TowerRateLimitRedis => "tower-rate-limit-redis 1.0.2",
            Self::TowerRateLimiterRedis => "tower-rate-limiter 0.2.0-alpha.0, Redis GCRA",
        }
    }

    /// Returns whether the subject is this crate.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Memory | Self::Redis | Self::RedisWithoutDenyCache | Self::RedisTokenBucket)
    }

    /// Returns whether the subject is another limiter, and not a reference.
    pub fn is_other_crate(self) -> bool {
        !self.is_ours() && !matches!(self, Self::Inner | Self::Script)
    }

    /// Returns the subject with this `Debug` name.
    pub fn parse(name: &str) -> Option<Self> {
        let references = [Self::Inner, Self::Script].into_iter();
        let mut all = references.chain(Self::IN_MEMORY).chain(Self::ON_REDIS);
        all.find(|subject| format!("{subject:?}") == name)
    }
}

/// The verdict of the measured requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    Denied,
}

impl Verdict {
    pub const BOTH: [Self; 2] = [Self::Admitted, Self::Denied];

    pub fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Denied => "denied",
        }
    }
}

/// The settings of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The number of policies. The other crates have one policy for each layer, so their layers are nested.
    pub policies: usize,
    /// Whether requests after the first one of a key are denied.
    pub denies: bool,
}

impl Limit {
    /// Returns a limit that never denies.
    pub fn admitting(policies: usize) -> Self {
        Self { policies, denies: false }
    }

    /// Returns a limit whose quota one request uses up for an hour.
    pub fn denying(policies: usize) -> Self {
        Self { policies, denies: true }
    }
}

/// The inner service: an empty response.
type Inner = fn(Request<Body>) -> Ready<Result<Response<Body>, Infallible>>;

/// Does something with a service, whatever its type.
pub trait Visitor {
    type Output;
    fn visit<S, B>(self, service: S) -> Self::Output
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static;
}

/// Builds a subject and visits it.
///
/// `redis` is the URL of a server, for the subjects that need one; they connect on the current runtime.
pub async fn visit<V: Visitor>(
    subject: Subject,
    limit: Limit,
    redis: &str,
    visitor: V,
) -> Result<V::Output, Box<dyn Error>> {
    let inner = service_fn((|_| ready(Ok(Response::new(Body::empty())))) as Inner);
    let Limit { policies, .. } = limit;
    Ok(match subject {
        Subject::Inner => visitor.visit(inner),
        Subject::Script => {
            let connection = connect(redis).await?;
            let hash = redis::Script::new("return 1").get_hash().to_owned();
            let load = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg("return 1")
                .query_async::<()>(&mut connection.clone())
                .await;
            load?;
            let send = move |request: Request<Body>| {
                let (mut connection, hash) = (connection.clone(), hash.clone());
                async move {
                    let mut call = redis::cmd("EVALSHA");
                    // A name of a key, one pair of 20 bytes, a deadline and a generation.
                    call.arg(hash)
                        .arg(1)
                        .arg(format!("{:<30}", value(&request).unwrap_or_default()))
                        .arg(&[0_u8; 35][..]);
                    let _: i64 = call.query_async(&mut connection).await.expect("a reply");
                    Ok(Response::new(Body::empty()))
                }
            };
            visitor.visit(service_fn(send))
        }
        Subject::Memory => visitor.visit(layer(limit, MemoryBackend::new(), true)?.layer(inner)),
        Subject::Redis => visitor.visit(layer(limit, backend(redis).await?, true)?.layer(inner)),
        Subject::RedisWithoutDenyCache => {
            visitor.visit(layer(limit, backend(redis).await?, false)?.layer(inner))
        }
        Subject::RedisTokenBucket => {
            let servers = RedisServers::single(redis);
            let backend = RedisBackend::builder(servers).merging(Merging::Off).connect().await?;
            let rate = Rate::new(1, Duration::from_millis(interval_of(limit)));
            let builder = RateLimitLayer::builder(backend).key(header(KEY)?).deadline(DEADLINE);
            let policy = Policy::token_bucket("h", capacity_of(limit).into(), rate)?;
            let layer = builder.policy(policy).deny_cache(None::<DenyCacheConfig>).build()?;
            visitor.visit(layer.layer(inner))
        }
        Subject::TowerGovernor if policies == 1 => visitor.visit(governor(limit)?.layer(inner)),
        Subject::TowerGovernor => {
            let [a, b, c] = [governor(limit)?, governor(limit)?, governor(limit)?];
            visitor.visit(a.layer(b.layer(c.layer(inner))))
        }
        Subject::TowerRateLimiterMemory => {
            let one = || -> Result<_, Box<dyn Error>> {
                let policy = tower_rate_limiter::MemoryGcra::new(gcra(limit)?);
                Ok(tower_rate_limiter::RateLimitLayer::builder(HeaderKey).with_policy(policy).build()?)
            };
            if policies == 1 {
                visitor.visit(one()?.layer(inner))
            } else {
                visitor.visit(one()?.layer(one()?.layer(one()?.layer(inner))))
            }
        }
        Subject::TowerRateLimiterRedis => {
            let connection = connect(redis).await?;
            let one = |name: &str| -> Result<_, Box<dyn Error>> {
                let policy = tower_rate_limiter::RedisGcra::new(connection.clone(), gcra(limit)?);
                let builder = tower_rate_limiter::RateLimitLayer::builder(HeaderKey).policy_name(name);
                Ok(builder.with_policy(policy).build()?)
            };
            if policies == 1 {
                visitor.visit(one("a")?.layer(inner))
            } else {
                visitor.visit(one("a")?.layer(one("b")?.layer(one("c")?.layer(inner))))
            }
        }
        Subject::TowerRateLimitRedis => {
            let client = redis_032::Client::open(redis)?;
            let connection = client.get_multiplexed_async_connection().await?;
            let (capacity, interval) = (capacity_of(limit), interval_of(limit));
            let one = |prefix: &'static str| {
                tower_rate_limit_redis::RateLimitLayer::builder()
                    .conn(connection.clone())
                    .key_resolver(PrefixedKey(prefix))
                    .capacity(capacity)
                    .emission_interval(Duration::from_millis(interval))
                    .build()
            };
            if policies == 1 {
                visitor.visit(one("a").layer(inner))
            } else {
                visitor.visit(one("a").layer(one("b").layer(one("c").layer(inner))))
            }
        }
    })
}

/// The capacity of the limiters that have one of 16 bits.
fn capacity_of(limit: Limit) -> u16 {
    if limit.denies { 1 } else { u16::MAX }
}

/// The time in which a unit of them returns, in milliseconds.
fn interval_of(limit: Limit) -> u64 {
    if limit.denies { 3_600_000 } else { 1 }
}

/// The deadline of a connection and of a reply: a client under valgrind may be too slow for the defaults.
const DEADLINE: Duration = Duration::from_secs(10);

async fn connect(url: &str) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(DEADLINE))
        .set_response_timeout(Some(DEADLINE));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

/// Connects, if need be for the second time: each attempt ends after a second.
async fn backend(url: &str) -> Result<RedisBackend, Box<dyn Error>> {
    match RedisBackend::connect(url).await {
        Ok(backend) => Ok(backend),
        Err(_) => Ok(RedisBackend::connect(url).await?),
    }
}

fn layer(
    limit: Limit,
    backend: impl tower_sliding_window::backend::Backend,
    has_deny_cache: bool,
) -> Result<RateLimitLayer, Box<dyn Error>> {
    let mut builder = RateLimitLayer::builder(backend).key(header(KEY)?);
    builder = builder.deadline(DEADLINE);
    for (name, seconds) in [("s", 1), ("m", 60), ("h", 3_600)].into_iter().rev().take(limit.policies) {
        // A sliding log holds as many charges.
        let quota = if limit.denies { 1 } else { 1 << 20 };
        builder = builder.policy(Policy::new(name, quota, Duration::from_secs(seconds))?);
    }
    if !has_deny_cache {
        builder = builder.deny_cache(None::<DenyCacheConfig>);
    }
    Ok(builder.build()?)
}

type Governor = GovernorLayer<HeaderKey, governor::middleware::StateInformationMiddleware, Body>;

fn governor(limit: Limit) -> Result<Governor, Box<dyn Error>> {
    let mut config = GovernorConfigBuilder::default().key_extractor(HeaderKey);
    if limit.denies {
        config.per_second(3_600).burst_size(1);
    } else {
        config.per_nanosecond(1).burst_size(u32::MAX);
    }
    let config = config.use_headers().finish().ok_or("a period or a burst of 0")?;
    Ok(GovernorLayer::new(Arc::new(config)))
}

fn gcra(limit: Limit) -> Result<tower_rate_limiter::GcraQuota, Box<dyn Error>> {
    let (rate, burst) = if limit.denies { (1, 1) } else { (3_600_000_000, u32::MAX) };
    Ok(tower_rate_limiter::GcraQuota::new(rate, Duration::from_secs(3_600), burst)?)
}

/// The value of the header as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderKey;

fn value<T>(request: &Request<T>) -> Option<&str> {
    request.headers().get(KEY)?.to_str().ok()
}

impl tower_governor::key_extractor::KeyExtractor for HeaderKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        value(request).map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

impl tower_rate_limiter::KeyExtractor for HeaderKey {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, tower_rate_limiter::RateLimitError> {
        let missing = || tower_rate_limiter::RateLimitError::Key("missing".to_owned(), KEY.to_owned());
        value(request).map(str::to_owned).ok_or_else(missing)
    }
}

/// The value of the header after a prefix that separates nested layers.
#[derive(Clone, Copy)]
struct PrefixedKey(&'static str);

impl tower_rate_limit_redis::KeyResolver for PrefixedKey {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        value(request).map(|value| format!("{}:{value}", self.0)).ok_or_else(|| Response::new(Body::empty()))
    }
}
