//! Builds the services that are measured.
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
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};
use tower_sliding_window::{
    ConfigError, MemoryBackend, Policy, RateLimitLayer, RedisBackend, header,
    outage::DenyCacheConfig,
    policy::Rate,
    redis::{Merging, RedisServers},
};

use crate::{
    keys::{HeaderKey, KEY, PrefixedKey, value},
    limit::Limit,
    subject::Subject,
};

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
        Subject::MemoryLog => {
            visitor.visit(layer(logs(limit, limit.capacity())?, MemoryBackend::new(), true)?.layer(inner))
        }
        Subject::MemoryTokenBucket => {
            let policies = token_buckets(limit, limit.capacity())?;
            visitor.visit(layer(policies, MemoryBackend::new(), true)?.layer(inner))
        }
        Subject::RedisLog | Subject::RedisLogWithoutDenyCache => {
            let policies = logs(limit, limit.redis_capacity().into())?;
            let has_deny_cache = !subject.is_without_deny_cache();
            visitor.visit(layer(policies, backend(redis).await?, has_deny_cache)?.layer(inner))
        }
        Subject::RedisTokenBucket | Subject::RedisTokenBucketWithoutDenyCache => {
            let policies = token_buckets(limit, limit.redis_capacity().into())?;
            let has_deny_cache = !subject.is_without_deny_cache();
            visitor.visit(layer(policies, backend(redis).await?, has_deny_cache)?.layer(inner))
        }
        Subject::RedisTokenBucketUnmerged => {
            let servers = RedisServers::single(redis);
            let backend = RedisBackend::builder(servers).merging(Merging::Off).connect().await?;
            let policies = token_buckets(limit, limit.redis_capacity().into())?;
            visitor.visit(layer(policies, backend, false)?.layer(inner))
        }
        Subject::TowerGovernor if policies == 1 => visitor.visit(governor(limit)?.layer(inner)),
        Subject::TowerGovernor => {
            let [a, b, c] = [governor(limit)?, governor(limit)?, governor(limit)?];
            visitor.visit(a.layer(b.layer(c.layer(inner))))
        }
        Subject::TowerRateLimiterMemory => {
            let one = || -> Result<_, Box<dyn Error>> {
                let policy = tower_rate_limiter::MemoryGcra::new(gcra(limit, limit.capacity())?);
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
                let gcra = gcra(limit, limit.redis_capacity().into())?;
                let policy = tower_rate_limiter::RedisGcra::new(connection.clone(), gcra);
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
            let one = |prefix: &'static str| {
                tower_rate_limit_redis::RateLimitLayer::builder()
                    .conn(connection.clone())
                    .key_resolver(PrefixedKey(prefix))
                    .capacity(limit.redis_capacity())
                    .emission_interval(limit.interval())
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

fn logs(limit: Limit, quota: u32) -> Result<Vec<Policy>, ConfigError> {
    let windows = [("h", 3_600), ("m", 60), ("s", 1)].into_iter().take(limit.policies);
    windows.map(|(name, seconds)| Policy::new(name, quota, Duration::from_secs(seconds))).collect()
}

fn token_buckets(limit: Limit, capacity: u32) -> Result<Vec<Policy>, ConfigError> {
    let names = ["a", "b", "c"].into_iter().take(limit.policies);
    names.map(|name| Policy::token_bucket(name, capacity, Rate::new(1, limit.interval()))).collect()
}

fn layer(
    policies: Vec<Policy>,
    backend: impl tower_sliding_window::backend::Backend,
    has_deny_cache: bool,
) -> Result<RateLimitLayer, Box<dyn Error>> {
    let mut builder = RateLimitLayer::builder(backend).key(header(KEY)?).deadline(DEADLINE);
    for policy in policies {
        builder = builder.policy(policy);
    }
    if !has_deny_cache {
        builder = builder.deny_cache(None::<DenyCacheConfig>);
    }
    Ok(builder.build()?)
}

type Governor = GovernorLayer<HeaderKey, governor::middleware::StateInformationMiddleware, Body>;

fn governor(limit: Limit) -> Result<Governor, Box<dyn Error>> {
    let mut config = GovernorConfigBuilder::default().key_extractor(HeaderKey);
    config.period(limit.interval()).burst_size(limit.capacity());
    let config = config.use_headers().finish().ok_or("a period or a burst of 0")?;
    Ok(GovernorLayer::new(Arc::new(config)))
}

fn gcra(limit: Limit, capacity: u32) -> Result<tower_rate_limiter::GcraQuota, Box<dyn Error>> {
    Ok(tower_rate_limiter::GcraQuota::new(1, limit.interval(), capacity)?)
}
