//! A cost is a number in a record. It is not so many records, and one great cost takes no more than one small cost.

use std::time::Duration;

use tower_sliding_window::{
    Wait,
    backend::{Backend, Purpose},
};

use super::{
    look::Look,
    rig::{HOUR, alice, at_once, backend, check, clocked, every_algorithm, limiter, peek, policy, remaining},
};
use crate::support::server::{Engine, Server};

/// One sorted-set member per unit of cost stopped Redis for 49 ms and left 1 MB.
#[tokio::test]
async fn a_cost_of_50_000_is_one_record_as_small_as_that_of_cost_1() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("units", 100_000, HOUR)]);
        let mut look = Look::at(&server);
        let mut size_of = async |cost| {
            look.ask::<()>(&["FLUSHALL"]);
            limiter.check(alice(), cost).await.unwrap();
            let key = look.only_key();
            (look.memory(&key), look.ask::<usize>(&["LLEN", &key]))
        };

        let small = size_of(1).await;
        let (bytes, entries) = size_of(50_000).await;
        // What is taken from the operating system may be a little more than was asked for.
        assert!(bytes.abs_diff(small.0) <= 32 && entries == small.1, "{engine:?}: {bytes} for {small:?}");
        assert!(bytes < 400 && entries == 1, "{engine:?}: {bytes} bytes in {entries} entries");
    }
}

#[tokio::test]
async fn of_three_costs_of_50_000_a_quota_of_100_000_admits_two() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("units", 100_000, Duration::from_secs(60))]);

        assert!(limiter.check(alice(), 50_000).await.unwrap().is_admitted());
        clock.advance(Duration::from_micros(10_000_001));
        assert!(limiter.check(alice(), 50_000).await.unwrap().is_admitted());
        clock.advance(Duration::from_secs(5));
        let denied = limiter.check(alice(), 50_000).await.unwrap();
        assert_eq!(denied.retry_after(), Wait::For(Duration::from_micros(44_999_999)), "{engine:?}");

        clock.advance(Duration::from_micros(44_999_998));
        assert!(!limiter.check(alice(), 50_000).await.unwrap().is_admitted());
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check(alice(), 50_000).await.unwrap().is_admitted());
    }
}

#[tokio::test]
async fn on_the_servers_own_clock_costs_of_50_000_are_as_exact() {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(backend(&server).await, [policy("units", 100_000, HOUR)]);
    let first = limiter.check(alice(), 50_000).await.unwrap();
    let second = limiter.check(alice(), 50_000).await.unwrap();
    let third = limiter.check(alice(), 50_000).await.unwrap();
    assert_eq!((first.is_admitted(), second.is_admitted(), third.is_admitted()), (true, true, false));
    let first_leaves = Duration::from_micros(first.at_micros()) + HOUR;
    let wait = first_leaves - Duration::from_micros(third.at_micros());
    assert_eq!(third.retry_after(), Wait::For(wait));
    assert_eq!(remaining(&limiter).await, 0);
}

/// The record that must leave is found in a block far from both ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wait_of_a_cost_of_100_behind_10_000_records_is_exact() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("units", 10_000, HOUR)]);
        let start = clock.now_micros();
        // 100 instants, 100 records at each.
        for _ in 0..100 {
            for outcome in at_once((0..100).map(|_| limiter.check(alice(), 1))).await {
                assert!(outcome.unwrap().is_admitted());
            }
            clock.advance(Duration::from_micros(1_000_003));
        }
        let leaves = |instant: u64| start + instant * 1_000_003 + 3_600_000_000;
        let wait = |instant| Wait::For(Duration::from_micros(leaves(instant) - clock.now_micros()));

        for (cost, instant) in [(1, 0), (100, 0), (101, 1), (200, 1), (5_000, 49), (5_001, 50), (10_000, 99)]
        {
            let denied = limiter.check(alice(), cost).await.unwrap();
            assert_eq!(denied.retry_after(), wait(instant), "{engine:?}, cost {cost}");
        }
        assert_eq!(limiter.check(alice(), 10_001).await.unwrap().retry_after(), Wait::Never);

        clock.set_micros(leaves(0) - 1);
        assert!(!limiter.check(alice(), 100).await.unwrap().is_admitted());
        clock.set_micros(leaves(0));
        assert!(limiter.check(alice(), 100).await.unwrap().is_admitted(), "{engine:?}");
        assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
    }
}

/// What is charged beyond the quota is bounded by nothing but what can be counted: there it stays, and is not small again.
#[tokio::test]
async fn usage_far_beyond_the_quota_is_never_taken_for_little() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        for policy in every_algorithm(u32::MAX, HOUR) {
            let policies = [policy];
            // 256 of them are 2^40, and the next one would be as good as the first.
            for charge in 1..=260 {
                let overage = check(&policies, u32::MAX, Purpose::Overage);
                let told = backend.check(&overage).await.unwrap();
                assert!(told.is_admitted());
                assert_eq!(told.statuses()[0].remaining(), 0, "{engine:?}: {policies:?}, {charge}");
                let denied = peek(&backend, &policies, 1).await;
                assert!(!denied.is_admitted(), "{engine:?}: {policies:?}, {charge}");
            }
            clock.advance(3 * HOUR);
            assert_eq!(peek(&backend, &policies, 0).await.statuses()[0].remaining(), u32::MAX);
        }
    }
}
