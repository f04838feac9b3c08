//! How much is admitted in any window, around an outage.

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

/// Units that were admitted, and when.
type Admitted = Vec<(Instant, bool)>;

pub async fn figures() -> Vec<Figure> {
    let kept = killed_and_restarted().await;
    let (within, seams) = local_share().await;
    vec![
        Figure::new("admitted over the quota, killed and restarted, appendfsync always", kept, "0", "0"),
        Figure::new("the same by local shares, within the outage", within, "0", "0"),
        Figure::new("the most in a window at a seam, of a quota of 200", seams, "400", "less"),
    ]
}

/// The most that was admitted in any window.
fn most(admitted: &[Instant]) -> usize {
    let within =
        |(i, from): (usize, &Instant)| admitted[i..].iter().take_while(|at| **at < *from + WINDOW).count();
    admitted.iter().enumerate().map(within).max().unwrap_or(0)
}

/// Several processes ask for more than there is, all the time.
fn ask(server: &Server, rule: OutageRule, lasts: Duration) -> JoinSet<Admitted> {
    (0..PROCESSES)
        .map(|_| {
            let backend = RedisBackend::lazy(&server.url()).unwrap();
            let limiter = limiter(&backend, policy(QUOTA, WINDOW)).outage(rule).build().unwrap();
            ask_alone(limiter, lasts)
        })
        .collect()
}

async fn ask_alone(limiter: Limiter, lasts: Duration) -> Admitted {
    let mut admitted = Vec::new();
    let mut ticks = interval(Duration::from_millis(2));
    let start = Instant::now();
    while start.elapsed() < lasts {
        ticks.tick().await;
        if let Ok(admission) = limiter.admit(alice(), 1).await {
            admitted.push((Instant::now(), admission.local().is_some()));
        }
    }
    admitted
}

async fn all(asking: JoinSet<Admitted>) -> Admitted {
    let mut all: Admitted = asking.join_all().await.into_iter().flatten().collect();
    all.sort();
    all
}

async fn killed_and_restarted() -> String {
    let mut server = Server::with_options(Engine::Redis, &["--appendonly", "yes", "--appendfsync", "always"]);
    let asking = ask(&server, OutageRule::FailClosed, 6 * WINDOW);
    for _ in 0..4 {
        sleep(WINDOW).await;
        server.kill();
        sleep(WINDOW / 5).await;
        server.restart();
    }
    let admitted: Vec<Instant> = all(asking).await.into_iter().map(|(at, _)| at).collect();
    // An instant here is that of the answer, and two of them may be nearer to each other than their charges.
    format!("{} (of {} in 6 s)", most(&admitted).saturating_sub(QUOTA as usize), admitted.len())
}

async fn local_share() -> (String, String) {
    let mut server = Server::start(Engine::Redis);
    let share = OutageRule::LocalFallback(Share::among(PROCESSES).unwrap());
    let asking = ask(&server, share, 11 * WINDOW);
    sleep(3 * WINDOW).await;
    server.kill();
    sleep(5 * WINDOW).await;
    server.restart();
    let admitted = all(asking).await;
    let locally: Vec<Instant> = admitted.iter().filter(|(_, local)| *local).map(|(at, _)| *at).collect();
    let everything: Vec<Instant> = admitted.iter().map(|(at, _)| *at).collect();
    let within = most(&locally).saturating_sub(QUOTA as usize);
    (format!("{within} (of {} in 5 s)", locally.len()), format!("{}", most(&everything)))
}
