//! Usage that processes share, and the effect of a changed policy on it.

use std::{net::TcpListener, time::Duration};

use tokio::{task::yield_now, time::advance};
use tower_sliding_window::{
    Limiter, Policy, RedisBackend, Wait,
    backend::{Backend, Reason, Refund},
    outage::{Breaker, BreakerState},
};

use super::{
    admin::Admin,
    rig::{
        HOUR, LONG_DEADLINE, LONG_WINDOW, alice, backend, concurrently, every_algorithm, every_type, limiter,
        peek, policy, reason, remaining, reserve, with_manual_clock,
    },
};
use crate::support::server::{Engine, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_a_limit() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        // Each limiter has its own connection, like two processes.
        let a = limiter(backend(&server).await, [policy("hourly", 50, HOUR)]);
        let b = limiter(backend(&server).await, [policy("hourly", 50, HOUR)]);
        let checks = (0..80).map(|i| if i % 2 == 0 { a.check(alice()) } else { b.check(alice()) });
        let outcomes = concurrently(checks).await;
        let admitted = outcomes.into_iter().filter(|outcome| outcome.as_ref().unwrap().is_admitted());
        assert_eq!(admitted.count(), 50, "{engine:?}");
        assert_eq!(
            (remaining(&a).await, remaining(&b).await),
            (0, 0),
            "{engine:?}: both limiters use one count"
        );
    }
}

#[tokio::test]
async fn namespaces_do_not_share_usage() {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let of = |namespace: &str| {
        let builder = Limiter::builder(backend.clone()).deadline(LONG_DEADLINE);
        builder.policy(policy("hourly", 10, HOUR)).namespace(namespace).build().unwrap()
    };
    let (shop, blog) = (of("shop"), of("blog"));
    assert!(shop.check((alice(), 10)).await.unwrap().is_admitted(), "the whole quota fits");
    assert!(!shop.check(alice()).await.unwrap().is_admitted(), "the quota of this namespace is used");
    assert!(blog.check((alice(), 4)).await.unwrap().is_admitted(), "another namespace has its own count");
    assert_eq!((remaining(&shop).await, remaining(&blog).await), (0, 6), "each namespace has its own count");
    let keys = Admin::at(&server).keys();
    assert!(keys[0].starts_with("blog{") && keys[1].starts_with("shop{"), "{keys:?}");
    assert_eq!(keys[0]["blog".len()..], keys[1]["shop".len()..], "the keys differ only by the namespace");
}

/// Returns a limiter on a shared backend and clock, with its own policy.
fn with_policy(backend: &RedisBackend, policy: Policy) -> Limiter {
    limiter(backend.clone(), [policy])
}

#[tokio::test]
async fn lowered_quota_keeps_usage() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let minute = Duration::from_secs(60);
        let wide = with_policy(&backend, policy("p", 10, minute));
        for _ in 0..4 {
            assert!(
                wide.check((alice(), 2)).await.unwrap().is_admitted(),
                "{engine:?}: 8 units fit the wide quota"
            );
            clock.advance(Duration::from_secs(10));
        }
        // The clock is at 40 s. 8 units are used, by charges that expire at 60, 70, 80 and 90 s.
        let narrow = with_policy(&backend, policy("p", 5, minute));
        let denied = narrow.check(alice()).await.unwrap();
        assert_eq!(
            denied.statuses()[0].remaining(),
            0,
            "{engine:?}: more units are used than the narrow quota has"
        );
        assert_eq!(denied.retry_after(), Wait::For(Duration::from_secs(30)), "{engine:?}");
        let denied = narrow.check((alice(), 5)).await.unwrap();
        assert_eq!(denied.retry_after(), Wait::For(Duration::from_secs(50)), "{engine:?}");
        assert_eq!(
            narrow.check((alice(), 6)).await.unwrap().retry_after(),
            Wait::Never,
            "{engine:?}: a cost above the quota never fits"
        );

        clock.advance(Duration::from_secs(30));
        assert!(narrow.check(alice()).await.unwrap().is_admitted(), "{engine:?}: the wait has passed");
        assert!(!narrow.check(alice()).await.unwrap().is_admitted(), "{engine:?}: the narrow quota is used");
    }
}

#[tokio::test]
async fn raised_quota_keeps_usage() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let narrow = with_policy(&backend, policy("p", 5, HOUR));
        assert!(narrow.check((alice(), 5)).await.unwrap().is_admitted(), "{engine:?}: the whole quota fits");
        assert!(!narrow.check(alice()).await.unwrap().is_admitted(), "{engine:?}: the narrow quota is used");

        let wide = with_policy(&backend, policy("p", 8, HOUR));
        assert_eq!(remaining(&wide).await, 3, "{engine:?}");
        assert!(!wide.check((alice(), 4)).await.unwrap().is_admitted(), "{engine:?}: 5 of 8 units are used");
        assert!(
            wide.check((alice(), 3)).await.unwrap().is_admitted(),
            "{engine:?}: the raised quota fits 3 units more"
        );
        assert_eq!(remaining(&narrow).await, 0, "{engine:?}: more units are used than the narrow quota has");
    }
}

#[tokio::test]
async fn changed_window_or_name_starts_new_count() {
    let server = Server::start(Engine::Redis);
    let (backend, _clock) = with_manual_clock(&server).await;
    let full = with_policy(&backend, policy("p", 5, HOUR));
    assert!(full.check((alice(), 5)).await.unwrap().is_admitted(), "the whole quota fits");
    for other in [policy("p", 5, HOUR + Duration::from_micros(1)), policy("q", 5, HOUR)] {
        let other = with_policy(&backend, other);
        assert_eq!(remaining(&other).await, 5, "another window or name has a count of its own");
        assert!(
            other.check((alice(), 5)).await.unwrap().is_admitted(),
            "another window or name has a count of its own"
        );
    }
    assert!(!full.check(alice()).await.unwrap().is_admitted(), "the first count is unchanged");
}

#[tokio::test]
async fn process_settles_reservation_of_another_process() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (a, b) = (backend(&server).await, backend(&server).await);
        let policies = every_algorithm(100, LONG_WINDOW);
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            of_a.push(reserve(&a, &policies, 2).await);
            of_b.push(reserve(&b, &policies, 3).await);
        }
        for reserved in &of_a {
            b.refund(&reserved.refund(1)).await.unwrap();
        }
        for reserved in &of_b {
            // The receipts are all that the other process needs.
            let receipts = reserved.decision.receipts().to_vec();
            let refund = Refund::new(&reserved.check, &receipts, &[0; 4]).unwrap();
            a.refund(&refund).await.unwrap();
        }
        for backend in [&a, &b] {
            for status in peek(backend, &policies, 0).await.statuses() {
                assert_eq!(status.remaining(), 100 - 20, "{engine:?}: {status:?}");
            }
        }
    }
}

#[tokio::test]
async fn algorithms_of_same_policy_name_share_no_usage() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let one_name =
            |counted: Policy| policy("p", 10, LONG_WINDOW).with_algorithm(counted.algorithm()).unwrap();
        let policies = every_type(10, LONG_WINDOW).map(one_name);
        for (i, policy) in policies.iter().enumerate() {
            let backend = backend(&server).await;
            let own = std::slice::from_ref(policy);
            assert_eq!(peek(&backend, own, 0).await.statuses()[0].remaining(), 10, "{engine:?}: {policy:?}");
            let reserved = reserve(&backend, own, 10).await;
            backend.refund(&reserved.refund(4)).await.unwrap();
            assert_eq!(Admin::at(&server).keys().len(), i + 1, "{engine:?}");
        }
        for policy in policies {
            let limiter = limiter(backend(&server).await, [policy]);
            assert_eq!(remaining(&limiter).await, 6, "{engine:?}");
        }
        // Buckets of another width have their own count.
        let wider = policy("p", 10, LONG_WINDOW);
        let wider =
            wider.with_algorithm(tower_sliding_window::Algorithm::SlidingBuckets { precision: LONG_WINDOW });
        assert_eq!(remaining(&limiter(backend(&server).await, [wider.unwrap()])).await, 10, "{engine:?}");
    }
}

/// Each limiter is strict in another setting. The server accepts connections, and answers nothing.
#[tokio::test(start_paused = true)]
async fn strictest_settings_protect_shared_backend() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", silent.local_addr().unwrap());
    let settings = [(Breaker::new(2, Duration::from_millis(1)), 1_000), (Breaker::new(1_000, HOUR), 1)];
    for order in [[0, 1], [1, 0]] {
        let backend = RedisBackend::lazy(&url).unwrap();
        let limiters = order.map(|i| {
            let (breaker, max) = settings[i];
            let builder = Limiter::builder(backend.clone()).policy(policy("p", 5, HOUR));
            builder.breaker(breaker).max_checks_in_flight(max).build().unwrap()
        });
        let first = tokio::spawn(limiters[0].check(alice()));
        yield_now().await;
        for limiter in &limiters {
            assert_eq!(reason(limiter.check(alice()).await), Reason::Overloaded, "{order:?}: one in flight");
        }
        first.await.unwrap().unwrap_err();
        let states =
            || limiters.each_ref().map(|limiter| limiter.stats().breakers.first().map(|it| it.state));
        assert_eq!(states(), [Some(BreakerState::Closed); 2], "{order:?}: one failure");
        limiters[1].check(alice()).await.unwrap_err();
        assert_eq!(states(), [Some(BreakerState::Open); 2], "{order:?}: two failures");
        advance(HOUR / 2).await;
        assert_eq!(states(), [Some(BreakerState::Open); 2], "{order:?}: half an hour later");
    }
}
