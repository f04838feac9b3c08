//! Measures charges without a response, the commands for repeated denials, and the charges that a failover loses.

use std::time::{Duration, Instant};

use redis::{Connection, cmd};
use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};
use tower_sliding_window::{Limiter, RedisBackend, redis::RedisServers};

use crate::{
    Figure, HOUR, UNREACHED, alice, backend, limiter, policy,
    proxy::{Passing, Proxy},
    sentinel::Watched,
    server::{Engine, Server},
};

pub async fn figures() -> Vec<Figure> {
    vec![
        Figure::new("charges after their deadline, 2,000 checks in a hang", after_deadline().await, "0", "0"),
        Figure::new(
            "charges without a response, 500 checks, replies are lost",
            without_response().await,
            "in flight",
            "in flight, all counted",
        ),
        Figure::new(
            "commands for repeated denials, 10,000 per second for 5 s",
            repeated_denials().await,
            "5, 1 per maximum age",
            "the same",
        ),
        Figure::new(
            "charges lost by a failover to a replica",
            failover().await,
            "not replicated",
            "the same",
        ),
    ]
}

async fn used(limiter: &Limiter) -> u32 {
    UNREACHED - limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining()
}

/// Sends these checks at once, and returns how many got a decision.
async fn send_checks(limiter: &Limiter, checks: usize) -> usize {
    let checks: JoinSet<bool> = (0..checks)
        .map(|_| {
            let limiter = limiter.clone();
            async move { limiter.check(alice()).await.is_ok() }
        })
        .collect();
    checks.join_all().await.into_iter().filter(|decided| *decided).count()
}

async fn after_deadline() -> String {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let limiter = limiter(&backend, policy(UNREACHED, HOUR)).breaker(None).build().unwrap();
    let patient = self::limiter(&backend, policy(UNREACHED, HOUR)).deadline(Duration::from_secs(20));
    let patient = patient.build().unwrap();
    let _ = patient.check(alice()).await.unwrap();
    server.signal(libc::SIGSTOP);
    let decided = send_checks(&limiter, 2_000).await;
    server.signal(libc::SIGCONT);
    sleep(Duration::from_millis(300)).await;
    format!("{}", used(&patient).await as usize - 1 - decided)
}

async fn without_response() -> String {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let through = RedisBackend::connect(&proxy.url()).await.unwrap();
    let limiter = limiter(&through, policy(UNREACHED, HOUR)).breaker(None).build().unwrap();
    let _ = limiter.check(alice()).await.unwrap();
    proxy.pass(Passing::Questions);
    let decided = send_checks(&limiter, 500).await;
    let direct = self::limiter(&backend(&server).await, policy(UNREACHED, HOUR)).build().unwrap();
    let charges = used(&direct).await as usize - 1 - decided;
    format!("{charges}, {} counted", through.unanswered_checks())
}

fn script_calls(connection: &mut Connection) -> u64 {
    let info: String = cmd("INFO").arg("commandstats").query(connection).unwrap();
    let calls = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("evalsha") + calls("eval")
}

async fn repeated_denials() -> String {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(&backend(&server).await, policy(10, HOUR)).build().unwrap();
    let _ = limiter.check((alice(), 10)).await.unwrap();
    let mut connection = server.connection();
    let before = script_calls(&mut connection);
    let (start, mut denied) = (Instant::now(), 0_u32);
    let mut ticks = interval(Duration::from_millis(1));
    while start.elapsed() < Duration::from_secs(5) {
        ticks.tick().await;
        for _ in 0..10 {
            denied += u32::from(!limiter.check(alice()).await.unwrap().is_admitted());
        }
    }
    format!("{} for {denied}", script_calls(&mut connection) - before)
}

async fn failover() -> String {
    let mut watched = Watched::start(Engine::Redis);
    let backend = RedisBackend::builder(RedisServers::sentinel(watched.url(), watched.sentinel_urls()))
        .connect()
        .await
        .unwrap();
    let limiter = limiter(&backend, policy(UNREACHED, HOUR)).build().unwrap();
    let mut charged = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        charged += u32::from(limiter.check(alice()).await.is_ok());
    }
    let killed = Instant::now();
    watched.primary.kill();
    while limiter.peek((alice(), 0)).await.is_err() {
        sleep(Duration::from_millis(5)).await;
    }
    let recovered = killed.elapsed();
    let lost = charged.saturating_sub(used(&limiter).await);
    format!("{lost} of {charged}, recovered in {recovered:.1?}")
}
