//! How long a request waits, and how soon limits are shared again.

use std::time::{Duration, Instant};

use tokio::time::{interval, sleep};
use tower_sliding_window::Limiter;

use crate::{
    Figure, alice, backend, limiter, policy,
    server::{Engine, Server},
};

const HOUR: Duration = Duration::from_secs(3600);
const PLENTY: u32 = 1_000_000_000;

pub async fn figures() -> Vec<Figure> {
    let (closed, open) = while_it_hangs().await;
    let hang = shared_again(false).await;
    let restart = shared_again(true).await;
    vec![
        Figure::new("wait beyond the deadline while Redis hangs, median, largest", closed, "10 ms", "2 ms"),
        Figure::new("wait while the breaker is open, median, 99 of 100", open, "1 ms", "50 us"),
        Figure::new("from the end of a hang to a decision, median, largest", hang, "2 s", "0.5 s"),
        Figure::new("from a restarted server to a decision, median, largest", restart, "2 s", "0.5 s"),
    ]
}

fn quantile(times: &mut [Duration], of_hundred: usize) -> Duration {
    times.sort();
    times[(times.len() * of_hundred / 100).min(times.len() - 1)]
}

async fn while_it_hangs() -> (String, String) {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let without = limiter(&backend, policy(PLENTY, HOUR)).breaker(None).build().unwrap();
    let with = limiter(&backend, policy(PLENTY, HOUR)).build().unwrap();
    with.check(alice(), 1).await.unwrap();
    server.signal(libc::SIGSTOP);
    let mut closed = Vec::new();
    for _ in 0..40 {
        let start = Instant::now();
        without.check(alice(), 1).await.unwrap_err();
        closed.push(start.elapsed().saturating_sub(Limiter::DEFAULT_DEADLINE));
    }
    while with.check(alice(), 1).await.unwrap_err().was_asked() {}
    let mut open = Vec::new();
    while open.len() < 20_000 {
        let start = Instant::now();
        let asked = with.check(alice(), 1).await.unwrap_err().was_asked();
        // The probes wait, one at a time.
        if !asked {
            open.push(start.elapsed());
        }
    }
    let told =
        |times: &mut [Duration], high| format!("{:.1?}, {:.1?}", quantile(times, 50), quantile(times, high));
    (told(&mut closed, 100), told(&mut open, 99))
}

async fn shared_again(restarts: bool) -> String {
    let mut server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let limiter = limiter(&backend, policy(PLENTY, HOUR)).build().unwrap();
    let mut times = Vec::new();
    for round in 0..10_u64 {
        limiter.check(alice(), 1).await.unwrap();
        // Somebody asks all the time.
        let asking = {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut ticks = interval(Duration::from_millis(2));
                let mut was_down = false;
                loop {
                    ticks.tick().await;
                    match limiter.check(alice(), 1).await {
                        Ok(_) if was_down => return Instant::now(),
                        Ok(_) => {}
                        Err(_) => was_down = true,
                    }
                }
            })
        };
        sleep(Duration::from_millis(20)).await;
        // Not always at the same moment between two probes.
        let lasts = Duration::from_millis(700 + 37 * round);
        let whole = if restarts {
            server.kill();
            sleep(lasts).await;
            server.restart();
            Instant::now()
        } else {
            server.signal(libc::SIGSTOP);
            sleep(lasts).await;
            server.signal(libc::SIGCONT);
            Instant::now()
        };
        times.push(asking.await.unwrap().saturating_duration_since(whole));
    }
    format!("{:.0?}, {:.0?}", quantile(&mut times, 50), quantile(&mut times, 100))
}
