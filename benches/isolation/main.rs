//! Measures what one client costs others: refunds in a long log beside another service, and many settlements of one key on a distant
//! server.
//!
//! ```text
//! cargo bench --bench isolation
//! ```
//!
//! The benchmark starts its own Redis servers, and takes about two minutes.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/support/delay.rs"]
mod delay;
#[path = "../../tests/support/refund_attack.rs"]
mod refund_attack;
#[path = "../../tests/support/server.rs"]
mod server;

use std::time::Duration;

use delay::DelayProxy;
use server::{Engine, Server};
use tokio::{task::JoinSet, time::interval};
use tower_sliding_window::{Limiter, PartitionKey, Policy, RedisBackend, settle::Settled};

/// The time of a round trip to the distant server.
const ROUND_TRIP: Duration = Duration::from_millis(20);
const SETTLEMENTS_PER_SECOND: usize = 3_000;
const SECONDS: usize = 10;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        println!("refunds in the middle of one log, beside checks of another service with a deadline of 1 s");
        for (records, refunds) in [(10_000, 1_000), (1_000_000, 1_000)] {
            let server = Server::start(Engine::Redis);
            let outcome = refund_attack::refund(&server.url(), records, refunds).await;
            println!("{records:>10} records, {refunds} refunds: {outcome}");
        }
        println!("\n{SETTLEMENTS_PER_SECOND} settlements per second of one key, {SECONDS} s, Redis {ROUND_TRIP:?} away");
        for pause in [0, 1, 5].map(Duration::from_secs) {
            let lost = lost_settlements(pause).await;
            println!("settled {pause:?} after the charge: {lost} of {} lost", SETTLEMENTS_PER_SECOND * SECONDS);
        }
    });
}

/// Charges one key at a steady rate, settles each charge to 30 % after a pause, and returns how many settlements were lost.
async fn lost_settlements(pause: Duration) -> usize {
    let server = Server::start(Engine::Redis);
    let proxy = DelayProxy::before(&server, ROUND_TRIP).await;
    let policy = Policy::new("tokens", u32::MAX, Duration::from_secs(60)).unwrap();
    let builder = Limiter::builder(RedisBackend::lazy(&proxy.url()).unwrap()).policy(policy);
    let limiter = builder.deadline(Duration::from_secs(1)).build().unwrap();
    let mut settlements = JoinSet::new();
    let mut clock = interval(Duration::from_millis(1));
    for _ in 0..SECONDS * 1_000 {
        clock.tick().await;
        for _ in 0..SETTLEMENTS_PER_SECOND / 1_000 {
            let limiter = limiter.clone();
            settlements.spawn(async move {
                let Ok(reservation) = limiter.reserve((PartitionKey::new("user", "one"), 10)).await else {
                    return false;
                };
                tokio::time::sleep(pause).await;
                matches!(reservation.settle(3).await, Settled::Done { .. })
            });
        }
    }
    settlements.join_all().await.into_iter().filter(|is_settled| !is_settled).count()
}
