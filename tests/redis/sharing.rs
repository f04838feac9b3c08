//! What is shared between processes, and what a change of a policy leaves of it.

use std::time::Duration;

use tower_sliding_window::{
    Limiter, Policy, RedisBackend, Wait,
    backend::{Backend, Refund},
};

use super::{
    look::Look,
    rig::{
        HOUR, LONG, UNHURRIED, alice, at_once, backend, clocked, every_algorithm, limiter, peek, policy,
        remaining, reserve,
    },
};
use crate::support::server::{Engine, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_a_limit() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        // Each with a connection of its own, as two processes have.
        let a = limiter(backend(&server).await, [policy("hourly", 50, HOUR)]);
        let b = limiter(backend(&server).await, [policy("hourly", 50, HOUR)]);
        let checks = (0..80).map(|i| if i % 2 == 0 { a.check(alice(), 1) } else { b.check(alice(), 1) });
        let outcomes = at_once(checks).await;
        let admitted = outcomes.into_iter().filter(|outcome| outcome.as_ref().unwrap().is_admitted());
        assert_eq!(admitted.count(), 50, "{engine:?}");
        assert_eq!((remaining(&a).await, remaining(&b).await), (0, 0));
    }
}

#[tokio::test]
async fn namespaces_keep_apart() {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let of = |namespace: &str| {
        let builder = Limiter::builder(backend.clone()).deadline(UNHURRIED);
        builder.policy(policy("hourly", 10, HOUR)).namespace(namespace).build().unwrap()
    };
    let (shop, blog) = (of("shop"), of("blog"));
    assert!(shop.check(alice(), 10).await.unwrap().is_admitted());
    assert!(!shop.check(alice(), 1).await.unwrap().is_admitted());
    assert!(blog.check(alice(), 4).await.unwrap().is_admitted());
    assert_eq!((remaining(&shop).await, remaining(&blog).await), (0, 6));
    let keys = Look::at(&server).keys();
    assert!(keys[0].starts_with("blog:") && keys[1].starts_with("shop:"), "{keys:?}");
    assert_eq!(keys[0]["blog".len()..], keys[1]["shop".len()..]);
}

/// Backends over one server and one clock, that differ in their policy.
fn under(backend: &RedisBackend, policy: Policy) -> Limiter {
    limiter(backend.clone(), [policy])
}

#[tokio::test]
async fn a_quota_that_is_lowered_keeps_what_was_used() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let minute = Duration::from_secs(60);
        let wide = under(&backend, policy("p", 10, minute));
        for _ in 0..4 {
            assert!(wide.check(alice(), 2).await.unwrap().is_admitted());
            clock.advance(Duration::from_secs(10));
        }
        // 8 are used, by charges that leave at 60, 70, 80 and 90 s. It is 40 s.
        let narrow = under(&backend, policy("p", 5, minute));
        let denied = narrow.check(alice(), 1).await.unwrap();
        assert_eq!(denied.statuses()[0].remaining(), 0);
        assert_eq!(denied.retry_after(), Wait::For(Duration::from_secs(30)), "{engine:?}");
        let denied = narrow.check(alice(), 5).await.unwrap();
        assert_eq!(denied.retry_after(), Wait::For(Duration::from_secs(50)), "{engine:?}");
        assert_eq!(narrow.check(alice(), 6).await.unwrap().retry_after(), Wait::Never);

        clock.advance(Duration::from_secs(30));
        assert!(narrow.check(alice(), 1).await.unwrap().is_admitted());
        assert!(!narrow.check(alice(), 1).await.unwrap().is_admitted());
    }
}

#[tokio::test]
async fn a_quota_that_is_raised_keeps_what_was_used() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = clocked(&server).await;
        let narrow = under(&backend, policy("p", 5, HOUR));
        assert!(narrow.check(alice(), 5).await.unwrap().is_admitted());
        assert!(!narrow.check(alice(), 1).await.unwrap().is_admitted());

        let wide = under(&backend, policy("p", 8, HOUR));
        assert_eq!(remaining(&wide).await, 3, "{engine:?}");
        assert!(!wide.check(alice(), 4).await.unwrap().is_admitted());
        assert!(wide.check(alice(), 3).await.unwrap().is_admitted());
        assert_eq!(remaining(&narrow).await, 0);
    }
}

#[tokio::test]
async fn another_window_or_another_name_counts_afresh() {
    let server = Server::start(Engine::Redis);
    let (backend, _clock) = clocked(&server).await;
    let full = under(&backend, policy("p", 5, HOUR));
    assert!(full.check(alice(), 5).await.unwrap().is_admitted());
    for other in [policy("p", 5, HOUR + Duration::from_micros(1)), policy("q", 5, HOUR)] {
        let other = under(&backend, other);
        assert_eq!(remaining(&other).await, 5);
        assert!(other.check(alice(), 5).await.unwrap().is_admitted());
    }
    assert!(!full.check(alice(), 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn a_reservation_of_one_process_is_settled_by_another() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (a, b) = (backend(&server).await, backend(&server).await);
        let policies = every_algorithm(100, LONG);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            ours.push(reserve(&a, &policies, 2).await);
            theirs.push(reserve(&b, &policies, 3).await);
        }
        for reserved in &ours {
            b.refund(&reserved.refund(1)).await.unwrap();
        }
        for reserved in &theirs {
            // What a receipt holds is all that a process has to know.
            let receipts = reserved.decision.receipts().to_vec();
            let refund = Refund::of(&reserved.check, &receipts, &[0; 4]).unwrap();
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
async fn processes_that_count_one_policy_in_different_ways_do_not_meet() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let one_name = |counted: Policy| policy("p", 10, LONG).with_algorithm(counted.algorithm()).unwrap();
        let policies = every_algorithm(10, LONG).map(one_name);
        for (i, policy) in policies.iter().enumerate() {
            let backend = backend(&server).await;
            let mine = std::slice::from_ref(policy);
            assert_eq!(peek(&backend, mine, 0).await.statuses()[0].remaining(), 10, "{engine:?}: {policy:?}");
            let reserved = reserve(&backend, mine, 10).await;
            backend.refund(&reserved.refund(4)).await.unwrap();
            assert_eq!(Look::at(&server).keys().len(), i + 1, "{engine:?}");
        }
        for policy in policies {
            let limiter = limiter(backend(&server).await, [policy]);
            assert_eq!(remaining(&limiter).await, 6, "{engine:?}");
        }
        // Buckets of another width are others.
        let wider = policy("p", 10, LONG);
        let wider = wider.with_algorithm(tower_sliding_window::Algorithm::SlidingBuckets { precision: LONG });
        assert_eq!(remaining(&limiter(backend(&server).await, [wider.unwrap()])).await, 10, "{engine:?}");
    }
}
