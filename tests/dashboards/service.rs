//! A service whose limits use what the example does not: shadow policies, leases, settlements, each outage rule, and memories that are
//! too small.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tower_sliding_window::{
    Algorithm, Head, Limiter, MemoryBackend, OutageRule, PartitionKey, Policy, RateLimitLayer, RedisBackend,
    backend::{Pair, WhenFull},
    header,
    key::KeyError,
    outage::Share,
    policy::Lease,
    protocol::Draft,
};

use crate::http::wire::{Site, request};

const MINUTE: Duration = Duration::from_secs(60);

pub struct Service {
    site: Site,
    /// Its charges are estimates.
    pub limiter: Limiter,
    /// Its requests wait.
    paced: Limiter,
}

fn policy(name: &str, quota: u32) -> Policy {
    Policy::new(name, quota, MINUTE).unwrap()
}

/// A path of the service, behind a layer.
fn limited(path: &str, limits: RateLimitLayer) -> Router {
    Router::new().route(path, get(async || "Hello!")).layer(limits)
}

/// Plans a check that contains a pair twice, which is a mistake.
fn twice(_: &Head<'_>) -> Result<Draft, KeyError> {
    let pair = || Pair::new(PartitionKey::new("user", "alice"), policy("twice", 9), 1);
    Ok(Draft::pairs(vec![pair(), pair()]))
}

impl Service {
    /// Starts the service. Its recorder is that of the process.
    pub async fn start(redis: &str) -> Self {
        let [duration, wait] =
            ["check", "wait"].map(|name| Matcher::Full(format!("rate_limit_{name}_duration_seconds")));
        let metrics = PrometheusBuilder::new()
            .set_buckets_for_metric(duration, &[0.000_5, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1])
            .unwrap()
            .set_buckets_for_metric(wait, &[0.01, 0.1, 1.0, 10.0])
            .unwrap()
            .install_recorder()
            .unwrap();
        let redis = RedisBackend::connect(redis).await.unwrap();
        let key = || header("x-api-key").unwrap();

        let leased = policy("leased", 1_000_000)
            .with_algorithm(Algorithm::SlidingBuckets { precision: Duration::from_secs(1) })
            .and_then(|policy| policy.leased(Lease::up_to(50)))
            .unwrap();
        let leased = RateLimitLayer::builder(redis.clone()).policy(leased).key(key());
        let share = OutageRule::LocalFallback(Share::among(1).unwrap());
        let local = RateLimitLayer::builder(redis.clone()).policy(policy("local", 1_000)).key(key());
        let shadow = RateLimitLayer::builder(MemoryBackend::new())
            .policy(policy("wide", 100_000))
            .policy(policy("shadow", 5).shadow())
            .key(key());
        let small = MemoryBackend::with_max_keys(20).unwrap();
        let full = MemoryBackend::with_max_keys(20).unwrap().when_full(WhenFull::Reject);
        let small = RateLimitLayer::builder(small).policy(policy("small", 100)).key(key());
        let full = RateLimitLayer::builder(full).policy(policy("full", 100)).key(key());
        let mistake = RateLimitLayer::builder(MemoryBackend::new()).plan_by(twice);
        let app = Router::new()
            .merge(limited("/leased", leased.outage(OutageRule::FailOpen).build().unwrap()))
            .merge(limited("/local", local.outage(share).build().unwrap()))
            .merge(limited("/shadow", shadow.build().unwrap()))
            .merge(limited("/small", small.build().unwrap()))
            .merge(limited("/full", full.build().unwrap()))
            .merge(limited("/mistake", mistake.build().unwrap()))
            .route("/metrics", get(async move || metrics.render()));
        let limiter = Limiter::builder(redis).policy(policy("estimated", 1_000_000)).build().unwrap();
        let pace = Policy::new("pace", 1, Duration::from_millis(20)).unwrap();
        let paced = Limiter::builder(MemoryBackend::new()).policy(pace).build().unwrap();
        Self { site: Site::serve(app).await, limiter, paced }
    }

    pub fn address(&self) -> SocketAddr {
        self.site.address()
    }

    /// Sends some requests to each path. Each round has other keys.
    pub async fn round(&self, round: usize) {
        let get = async |path: &str, key: &str| {
            request(self.address(), "GET", path, &[("x-api-key", key)]).await;
        };
        for _ in 0..5 {
            get("/leased", "alice").await;
        }
        get("/local", "alice").await;
        get("/shadow", "alice").await;
        for key in 0..5 {
            get("/small", &format!("{round}-{key}")).await;
        }
        if round.is_multiple_of(10) {
            get("/mistake", "alice").await;
        }
        // From the 21st key on, this memory is full.
        if round.is_multiple_of(5) {
            for key in 0..3 {
                get("/full", &format!("{round}-{key}")).await;
            }
        }
        let calls = [(); 2].map(|()| self.paced.wait(PartitionKey::new("api", "search"), MINUTE));
        for call in calls {
            let _ = call.await.unwrap();
        }
        if let Ok(reservation) = self.limiter.reserve((PartitionKey::new("user", "alice"), 10)).await {
            reservation.settle(3);
        }
    }
}
