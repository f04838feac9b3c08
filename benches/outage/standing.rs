//! What is charged that nobody was told of, and what is asked of Redis for nothing.

use std::time::{Duration, Instant};

use redis::{Connection, cmd};
use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};
use tower_sliding_window::{Limiter, RedisBackend};

use crate::{
    Figure, alice, backend, limiter, policy,
    proxy::{Passing, Proxy},
    sentinel::Watched,
    server::{Engine, Server},
};

const HOUR: Duration = Duration::from_secs(3600);
const PLENTY: u32 = 1_000_000_000;

pub async fn figures() -> Vec<Figure> {
    vec![
        Figure::new("charges after their deadline, of 2,000 checks in a hang", late().await, "0", "0"),
        Figure::new(
            "charges that stand untold, of 500 checks on a line that breaks",
            untold().await,
            "those under way",
            "the same, counted",
        ),
        Figure::new(
            "commands for a key over its limit, 10,000 refusals a second, 5 s",
            over_its_limit().await,
            "5, 1 a maximum age",
            "the same",
        ),
        Figure::new(
            "charges lost by a failover to a replica",
            failover().await,
            "what was not replicated",
            "the same",
        ),
    ]
}

async fn used(limiter: &Limiter) -> u32 {
    PLENTY - limiter.peek(alice(), 0).await.unwrap().statuses()[0].remaining()
}

async fn ask_at_once(limiter: &Limiter, checks: usize) -> usize {
    let asked: JoinSet<bool> = (0..checks)
        .map(|_| {
            let limiter = limiter.clone();
            async move { limiter.check(alice(), 1).await.is_ok() }
        })
        .collect();
    asked.join_all().await.into_iter().filter(|decided| *decided).count()
}

async fn late() -> String {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let limiter = limiter(&backend, policy(PLENTY, HOUR)).breaker(None).build().unwrap();
    let patient = self::limiter(&backend, policy(PLENTY, HOUR)).deadline(Duration::from_secs(20));
    let patient = patient.build().unwrap();
    patient.check(alice(), 1).await.unwrap();
    server.signal(libc::SIGSTOP);
    let decided = ask_at_once(&limiter, 2_000).await;
    server.signal(libc::SIGCONT);
    sleep(Duration::from_millis(300)).await;
    format!("{}", used(&patient).await as usize - 1 - decided)
}

async fn untold() -> String {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let through = RedisBackend::connect(&proxy.url()).await.unwrap();
    let limiter = limiter(&through, policy(PLENTY, HOUR)).breaker(None).build().unwrap();
    limiter.check(alice(), 1).await.unwrap();
    proxy.pass(Passing::Questions);
    let decided = ask_at_once(&limiter, 500).await;
    let direct = self::limiter(&backend(&server).await, policy(PLENTY, HOUR)).build().unwrap();
    let standing = used(&direct).await as usize - 1 - decided;
    format!("{standing}, {} counted", through.unanswered_checks())
}

fn script_calls(connection: &mut Connection) -> u64 {
    let info: String = cmd("INFO").arg("commandstats").query(connection).unwrap();
    let calls = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("evalsha") + calls("eval")
}

async fn over_its_limit() -> String {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(&backend(&server).await, policy(10, HOUR)).build().unwrap();
    limiter.check(alice(), 10).await.unwrap();
    let mut connection = server.connection();
    let before = script_calls(&mut connection);
    let (start, mut refused) = (Instant::now(), 0_u32);
    let mut ticks = interval(Duration::from_millis(1));
    while start.elapsed() < Duration::from_secs(5) {
        ticks.tick().await;
        for _ in 0..10 {
            refused += u32::from(!limiter.check(alice(), 1).await.unwrap().is_admitted());
        }
    }
    format!("{} for {refused}", script_calls(&mut connection) - before)
}

async fn failover() -> String {
    let mut watched = Watched::start(Engine::Redis);
    let backend = RedisBackend::connect_sentinel(&watched.url(), watched.sentinel_urls()).await.unwrap();
    let limiter = limiter(&backend, policy(PLENTY, HOUR)).build().unwrap();
    let mut told = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        told += u32::from(limiter.check(alice(), 1).await.is_ok());
    }
    let killed = Instant::now();
    watched.primary.kill();
    while limiter.peek(alice(), 0).await.is_err() {
        sleep(Duration::from_millis(5)).await;
    }
    let took = killed.elapsed();
    format!("{} of {told}, back in {took:.1?}", told.saturating_sub(used(&limiter).await))
}
