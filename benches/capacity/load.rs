//! A load of checks, and what it costs the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tower_sliding_window::{
    Algorithm, Limiter, PartitionKey, Policy, RedisBackend,
    redis::{Merging, RedisServers},
};

use crate::server::Server;

pub const HOUR: Duration = Duration::from_secs(3600);
/// A quota that no measurement reaches.
pub const UNREACHED: u32 = 4_000_000_000;

pub const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("sliding log", Algorithm::SlidingLog),
    ("sliding buckets, a minute", Algorithm::SlidingBuckets { precision: Duration::from_secs(60) }),
    ("sliding counter", Algorithm::SlidingCounter),
    ("fixed window", Algorithm::FixedWindow),
];

/// What a load has cost the server.
pub struct Cost {
    pub seconds: f64,
    /// Microseconds of the server's processor for each check, and of the script alone.
    pub server_micros: f64,
    pub script_micros: f64,
    /// Script calls for each check.
    pub calls: f64,
}

/// The counters of a server.
#[derive(Clone, Copy)]
struct Counters {
    processor_micros: f64,
    script_micros: f64,
    calls: f64,
}

impl Counters {
    fn read(server: &Server) -> Self {
        let info: String = redis::cmd("INFO").arg("everything").query(&mut server.connection()).unwrap();
        let sum = |prefix: &str, field: &str| -> f64 {
            let lines = info.lines().filter_map(|line| line.strip_prefix(prefix));
            let fields = lines.filter_map(|line| {
                let value = line.split_once(field)?.1;
                value.split(',').next()?.trim().parse::<f64>().ok()
            });
            fields.sum()
        };
        Self {
            processor_micros: (sum("used_cpu_user", ":") + sum("used_cpu_sys", ":")) * 1e6,
            script_micros: sum("cmdstat_eval", "usec="),
            calls: sum("cmdstat_eval", "calls="),
        }
    }
}

pub fn policy(name: &str, quota: u32, window: Duration, algorithm: Algorithm) -> Policy {
    Policy::new(name, quota, window).unwrap().with_algorithm(algorithm).unwrap()
}

pub fn limiter(server: &Server, policies: impl IntoIterator<Item = Policy>, merging: Merging) -> Limiter {
    let backend = RedisBackend::builder(RedisServers::single(server.url())).merging(merging).lazy().unwrap();
    let mut builder =
        Limiter::builder(backend).deadline(Duration::from_secs(10)).max_checks_in_flight(10_000);
    for policy in policies {
        builder = builder.policy(policy);
    }
    builder.build().unwrap()
}

pub fn key(i: u64) -> PartitionKey {
    PartitionKey::new("user", format!("user {i}"))
}

/// Makes this number of checks of these keys in turn, with so many in flight, and returns their cost. The limiters take turns.
pub async fn run(
    server: &Server,
    limiters: &[Limiter],
    keys: u64,
    cost: u32,
    checks: u64,
    in_flight: u64,
) -> Cost {
    for limiter in limiters {
        let _ = limiter.check((key(0), cost)).await.expect("a decision");
    }
    let before = Counters::read(server);
    let start = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for limiter in limiters.iter().cycle().take(in_flight as usize) {
        let (limiter, next) = (limiter.clone(), next.clone());
        clients.spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= checks {
                    break;
                }
                let _ = limiter.check((key(i % keys), cost)).await.expect("a decision");
            }
        });
    }
    clients.join_all().await;
    let (seconds, after, checks) = (start.elapsed().as_secs_f64(), Counters::read(server), checks as f64);
    Cost {
        seconds,
        server_micros: (after.processor_micros - before.processor_micros) / checks,
        script_micros: (after.script_micros - before.script_micros) / checks,
        calls: (after.calls - before.calls) / checks,
    }
}

/// Returns the mean bytes of the keys of a server, of up to 1,000 of them, with their overhead.
pub fn bytes_per_key(server: &Server) -> f64 {
    let mut connection = server.connection();
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    keys.truncate(1_000);
    let bytes = keys.iter().map(|key| {
        let mut usage = redis::cmd("MEMORY");
        usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0).query::<f64>(&mut connection).unwrap()
    });
    bytes.sum::<f64>() / keys.len() as f64
}

pub fn flush(server: &Server) {
    redis::cmd("FLUSHALL").query::<()>(&mut server.connection()).unwrap();
}
