//! A charge of any cost is one record: a large cost takes no more memory than a small one.

use std::time::Duration;

use tower_sliding_window::{
    Wait,
    backend::{Backend, Purpose},
};

use super::{
    admin::Admin,
    rig::{
        HOUR, alice, backend, check, concurrently, every_algorithm, limiter, peek, policy, remaining,
        with_manual_clock,
    },
};
use crate::support::server::{Engine, Server};

/// One sorted-set member per unit of cost would block Redis for 49 ms and store 1 MB.
#[tokio::test]
async fn large_cost_takes_one_small_record() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("units", 100_000, HOUR)]);
        let mut admin = Admin::at(&server);
        let mut size_of = async |cost| {
            admin.query::<()>(&["FLUSHALL"]);
            let _ = limiter.check((alice(), cost)).await.unwrap();
            let key = admin.only_key();
            (admin.memory(&key), admin.query::<usize>(&["LLEN", &key]))
        };

        let small = size_of(1).await;
        let (bytes, entries) = size_of(50_000).await;
        // The allocator may round a size up a little.
        assert!(bytes.abs_diff(small.0) <= 32 && entries == small.1, "{engine:?}: {bytes} for {small:?}");
        assert!(bytes < 400 && entries == 1, "{engine:?}: {bytes} bytes in {entries} entries");
    }
}

#[tokio::test]
async fn large_costs_are_admitted_at_exact_instants() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("units", 100_000, Duration::from_secs(60))]);

        assert!(
            limiter.check((alice(), 50_000)).await.unwrap().is_admitted(),
            "{engine:?}: the first half of the quota"
        );
        clock.advance(Duration::from_micros(10_000_001));
        assert!(
            limiter.check((alice(), 50_000)).await.unwrap().is_admitted(),
            "{engine:?}: the second half of the quota"
        );
        clock.advance(Duration::from_secs(5));
        let denied = limiter.check((alice(), 50_000)).await.unwrap();
        assert_eq!(denied.retry_after(), Wait::For(Duration::from_micros(44_999_999)), "{engine:?}");

        clock.advance(Duration::from_micros(44_999_998));
        assert!(
            !limiter.check((alice(), 50_000)).await.unwrap().is_admitted(),
            "{engine:?}: the quota is used"
        );
        clock.advance(Duration::from_micros(1));
        assert!(
            limiter.check((alice(), 50_000)).await.unwrap().is_admitted(),
            "{engine:?}: the first half has left the window"
        );
    }
}

#[tokio::test]
async fn server_clock_gives_exact_wait_for_large_costs() {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(backend(&server).await, [policy("units", 100_000, HOUR)]);
    let first = limiter.check((alice(), 50_000)).await.unwrap();
    let second = limiter.check((alice(), 50_000)).await.unwrap();
    let third = limiter.check((alice(), 50_000)).await.unwrap();
    assert_eq!(
        (first.is_admitted(), second.is_admitted(), third.is_admitted()),
        (true, true, false),
        "the quota fits two of the checks"
    );
    let first_expiry = Duration::from_micros(first.at_micros()) + HOUR;
    let wait = first_expiry - Duration::from_micros(third.at_micros());
    assert_eq!(third.retry_after(), Wait::For(wait), "the wait lasts until enough units leave the window");
    assert_eq!(remaining(&limiter).await, 0, "the denial charges nothing");
}

/// The record that must expire is in a block far from both ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_is_exact_behind_many_records() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("units", 10_000, HOUR)]);
        let start = clock.now_micros();
        // 100 instants, 100 records at each.
        for _ in 0..100 {
            for outcome in concurrently((0..100).map(|_| limiter.check(alice()))).await {
                assert!(outcome.unwrap().is_admitted(), "{engine:?}: all checks fit");
            }
            clock.advance(Duration::from_micros(1_000_003));
        }
        let expiry = |instant: u64| start + instant * 1_000_003 + 3_600_000_000;
        let wait = |instant| Wait::For(Duration::from_micros(expiry(instant) - clock.now_micros()));

        for (cost, instant) in [(1, 0), (100, 0), (101, 1), (200, 1), (5_000, 49), (5_001, 50), (10_000, 99)]
        {
            let denied = limiter.check((alice(), cost)).await.unwrap();
            assert_eq!(denied.retry_after(), wait(instant), "{engine:?}, cost {cost}");
        }
        assert_eq!(
            limiter.check((alice(), 10_001)).await.unwrap().retry_after(),
            Wait::Never,
            "{engine:?}: a cost above the quota never fits"
        );

        clock.set_micros(expiry(0) - 1);
        assert!(
            !limiter.check((alice(), 100)).await.unwrap().is_admitted(),
            "{engine:?}: too few units remain"
        );
        clock.set_micros(expiry(0));
        assert!(limiter.check((alice(), 100)).await.unwrap().is_admitted(), "{engine:?}");
        assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}: the quota is used");
    }
}

/// Overage may exceed the quota without limit. The usage stays at the largest number that can be stored, and does not wrap.
#[tokio::test]
async fn overage_does_not_overflow_usage() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        for policy in every_algorithm(u32::MAX, HOUR) {
            let policies = [policy];
            // 256 charges add up to 2^40, where a total of 5 bytes would wrap to 0.
            for charge in 1..=260 {
                let overage = check(&policies, u32::MAX, Purpose::Overage);
                let decision = backend.check(&overage).await.unwrap();
                assert!(decision.is_admitted(), "{engine:?}: an overage is always admitted");
                assert_eq!(decision.statuses()[0].remaining(), 0, "{engine:?}: {policies:?}, {charge}");
                let denied = peek(&backend, &policies, 1).await;
                assert!(!denied.is_admitted(), "{engine:?}: {policies:?}, {charge}");
            }
            clock.advance(3 * HOUR);
            assert_eq!(
                peek(&backend, &policies, 0).await.statuses()[0].remaining(),
                u32::MAX,
                "{engine:?}: the refunds restore the quota"
            );
        }
    }
}
