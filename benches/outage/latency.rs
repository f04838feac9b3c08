//! Measures latency: the wait of a request during an outage, and the time from its end to the first decision.

use std::time::{Duration, Instant};

use tokio::time::{interval, sleep};
use tower_sliding_window::Limiter;

use crate::{
    Figure, HOUR, UNREACHED, alice, backend, limiter, policy,
    server::{Engine, Server},
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    Hang,
    Restart,
}

pub async fn figures() -> Vec<Figure> {
    let (closed, open) = waits_in_a_hang().await;
    let hang = recovery(Outage::Hang).await;
    let restart = recovery(Outage::Restart).await;
    vec![
        Figure::new("wait beyond the deadline in a hang: median, maximum", closed, "10 ms", "2 ms"),
        Figure::new("wait while the breaker is open: median, p99", open, "1 ms", "50 us"),
        Figure::new("end of a hang to the first decision: median, maximum", hang, "2 s", "0.5 s"),
        Figure::new("restarted server to the first decision: median, maximum", restart, "2 s", "0.5 s"),
    ]
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Returns the waits while the breaker is closed, and while it is open.
async fn waits_in_a_hang() -> (String, String) {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let without_breaker = limiter(&backend, policy(UNREACHED, HOUR)).breaker(None).build().unwrap();
    let with_breaker = limiter(&backend, policy(UNREACHED, HOUR)).build().unwrap();
    let _ = with_breaker.check(alice()).await.unwrap();
    server.signal(libc::SIGSTOP);
    let mut closed = Vec::new();
    for _ in 0..40 {
        let start = Instant::now();
        without_breaker.check(alice()).await.unwrap_err();
        closed.push(start.elapsed().saturating_sub(Limiter::DEFAULT_DEADLINE));
    }
    while with_breaker.check(alice()).await.unwrap_err().was_asked() {}
    let mut open = Vec::new();
    while open.len() < 20_000 {
        let start = Instant::now();
        let is_probe = with_breaker.check(alice()).await.unwrap_err().was_asked();
        // A probe waits until its deadline.
        if !is_probe {
            open.push(start.elapsed());
        }
    }
    let both = |times: &mut [Duration], percent| {
        format!("{:.1?}, {:.1?}", percentile(times, 50), percentile(times, percent))
    };
    (both(&mut closed, 100), both(&mut open, 99))
}

async fn recovery(outage: Outage) -> String {
    let mut server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let limiter = limiter(&backend, policy(UNREACHED, HOUR)).build().unwrap();
    let mut times = Vec::new();
    for round in 0..10_u64 {
        let _ = limiter.check(alice()).await.unwrap();
        // A client that sends requests all the time.
        let client = {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut ticks = interval(Duration::from_millis(2));
                let mut was_down = false;
                loop {
                    ticks.tick().await;
                    match limiter.check(alice()).await {
                        Ok(_) if was_down => return Instant::now(),
                        Ok(_) => {}
                        Err(_) => was_down = true,
                    }
                }
            })
        };
        sleep(Duration::from_millis(20)).await;
        // The outage ends at another moment between two probes in each round.
        let duration = Duration::from_millis(700 + 37 * round);
        match outage {
            Outage::Hang => {
                server.signal(libc::SIGSTOP);
                sleep(duration).await;
                server.signal(libc::SIGCONT);
            }
            Outage::Restart => {
                server.kill();
                sleep(duration).await;
                server.restart();
            }
        }
        let end = Instant::now();
        times.push(client.await.unwrap().saturating_duration_since(end));
    }
    format!("{:.0?}, {:.0?}", percentile(&mut times, 50), percentile(&mut times, 100))
}
