//! Measures admissions: the units admitted in any window around an outage, relative to the quota.

use std::time::{Duration, Instant};

use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};
use tower_sliding_window::{Limiter, OutageRule, RedisBackend, outage::Share};

use crate::{
    Figure, alice, limiter, policy,
    server::{Engine, Server},
};

const QUOTA: u32 = 200;
const WINDOW: Duration = Duration::from_secs(1);
const PROCESSES: u32 = 2;

/// The instants of admissions, and whether the local fallback admitted.
type Admissions = Vec<(Instant, bool)>;

pub async fn figures() -> Vec<Figure> {
    let restarts = server_restarts().await;
    let (fallback, boundary) = local_fallback().await;
    vec![
        Figure::new("admitted beyond the quota, restarts with appendfsync always", restarts, "0", "0"),
        Figure::new("admitted beyond the quota by the local fallback", fallback, "0", "0"),
        Figure::new("most admitted in a window across an outage, quota 200", boundary, "400", "less"),
    ]
}

/// Returns the most admissions in any window.
fn most(admissions: &[Instant]) -> usize {
    let in_window =
        |(i, from): (usize, &Instant)| admissions[i..].iter().take_while(|at| **at < *from + WINDOW).count();
    admissions.iter().enumerate().map(in_window).max().unwrap_or(0)
}

/// Starts processes that together send more requests than the quota admits.
fn start_processes(server: &Server, rule: OutageRule, duration: Duration) -> JoinSet<Admissions> {
    (0..PROCESSES)
        .map(|_| {
            let backend = RedisBackend::lazy(&server.url()).unwrap();
            let limiter = limiter(&backend, policy(QUOTA, WINDOW)).outage(rule).build().unwrap();
            send_requests(limiter, duration)
        })
        .collect()
}

async fn send_requests(limiter: Limiter, duration: Duration) -> Admissions {
    let mut admissions = Vec::new();
    let mut ticks = interval(Duration::from_millis(2));
    let start = Instant::now();
    while start.elapsed() < duration {
        ticks.tick().await;
        if let Ok(admission) = limiter.admit(alice()).await {
            admissions.push((Instant::now(), admission.local().is_some()));
        }
    }
    admissions
}

async fn join(processes: JoinSet<Admissions>) -> Admissions {
    let mut all: Admissions = processes.join_all().await.into_iter().flatten().collect();
    all.sort();
    all
}

async fn server_restarts() -> String {
    let mut server = Server::with_options(Engine::Redis, &["--appendonly", "yes", "--appendfsync", "always"]);
    let processes = start_processes(&server, OutageRule::FailClosed, 6 * WINDOW);
    for _ in 0..4 {
        sleep(WINDOW).await;
        server.kill();
        sleep(WINDOW / 5).await;
        server.restart();
    }
    let admissions: Vec<Instant> = join(processes).await.into_iter().map(|(at, _)| at).collect();
    // These are the instants of the replies. Two of them may be closer to each other than their charges.
    format!("{} (of {} in 6 s)", most(&admissions).saturating_sub(QUOTA as usize), admissions.len())
}

async fn local_fallback() -> (String, String) {
    let mut server = Server::start(Engine::Redis);
    let rule = OutageRule::LocalFallback(Share::among(PROCESSES).unwrap());
    let processes = start_processes(&server, rule, 11 * WINDOW);
    sleep(3 * WINDOW).await;
    server.kill();
    sleep(5 * WINDOW).await;
    server.restart();
    let admissions = join(processes).await;
    let local: Vec<Instant> = admissions.iter().filter(|(_, local)| *local).map(|(at, _)| *at).collect();
    let all: Vec<Instant> = admissions.iter().map(|(at, _)| *at).collect();
    let beyond = most(&local).saturating_sub(QUOTA as usize);
    (format!("{beyond} (of {} in 5 s)", local.len()), format!("{}", most(&all)))
}
