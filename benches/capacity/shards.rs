//! A hot key that is sharded by hand: each request chooses one of `n` keys at random, each with a share of the quota.

use std::time::Duration;

use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, testing::ManualClock};

const QUOTA: u32 = 10_000;
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: u64 = 20;

/// Prints how much a sharded key admits, against one key with the whole quota. The clock is simulated, and the arrivals are random.
pub async fn print() {
    println!(
        "Shards: quota {QUOTA} per second over {WINDOWS} windows, random arrivals; share of what one key admits\n"
    );
    println!("| shards | asked 50 % of the quota | 80 % | 95 % | 100 % | 200 % | most units in one window |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for shards in [1, 2, 4, 8, 16, 64] {
        let mut cells = Vec::new();
        let mut most = 0;
        for percent in [50, 80, 95, 100, 200] {
            let whole = admitted(1, percent).await;
            let sharded = admitted(shards, percent).await;
            most = most.max(most_in_window(&sharded));
            cells.push(format!("{:.1} %", 100.0 * sharded.len() as f64 / whole.len() as f64));
        }
        println!("| {shards} | {} | {most} |", cells.join(" | "));
    }
    println!();
}

/// Returns the instants of the admitted requests, in microseconds.
async fn admitted(shards: u32, percent: u32) -> Vec<u64> {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(MemoryBackend::new().with_clock(&clock))
        .policy(Policy::new("share", QUOTA / shards, WINDOW).unwrap())
        .build()
        .unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mean_gap = WINDOW.as_micros() as u64 * 100 / u64::from(QUOTA * percent);
    let (mut at, mut admitted) = (0, Vec::new());
    while at < WINDOWS * WINDOW.as_micros() as u64 {
        // The gaps are even between 0 and twice their mean.
        let gap = next() % (2 * mean_gap + 1);
        clock.advance(Duration::from_micros(gap));
        at += gap;
        let shard = next() % u64::from(shards);
        let decision = limiter.check(PartitionKey::new("tenant", format!("acme {shard}"))).await.unwrap();
        if decision.is_admitted() {
            admitted.push(at);
        }
    }
    admitted
}

fn most_in_window(instants: &[u64]) -> usize {
    let (mut first, mut most) = (0, 0);
    for (i, at) in instants.iter().enumerate() {
        while instants[first] + WINDOW.as_micros() as u64 <= *at {
            first += 1;
        }
        most = most.max(i + 1 - first);
    }
    most
}
