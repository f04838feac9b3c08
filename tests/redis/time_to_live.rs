//! Every key ends by itself: not before everything in it has left, and not long after.

use std::time::Duration;

use tower_sliding_window::{Decision, Limiter, Reason};

use super::{
    look::Look,
    rig::{HOUR, alice, backend, clocked, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Every key there is ends when the charge of this decision has left the window, or at most a window and a second later.
fn assert_ends_in_time(engine: Engine, look: &mut Look, decision: &Decision) {
    assert!(decision.is_admitted());
    let keys = look.keys();
    assert_eq!(keys.len(), decision.statuses().len(), "{engine:?}");
    for key in keys {
        let window = decision
            .statuses()
            .iter()
            .map(|status| status.policy().window())
            .find(|window| key.ends_with(&format!(":{}", window.as_micros())));
        let window = window.expect("the window is the end of the key");
        let millis: i64 = look.ask(&["PEXPIRETIME", &key]);
        assert!(millis > 0, "{engine:?}: {key} has no end");
        let end = Duration::from_millis(millis as u64);
        let has_left = Duration::from_micros(decision.at_micros()) + window;
        let latest = has_left + window + Duration::from_secs(1);
        assert!((has_left..=latest).contains(&end), "{engine:?}: {key} ends at {end:?}, not {has_left:?}");
        // The same, as a time from now.
        let left = look.time_to_live(&key).unwrap();
        assert!(left <= window * 2 + Duration::from_secs(1), "{engine:?}: {left:?}");
    }
}

/// A key without a time to live, or with one in the wrong unit: sixty seconds that are kept for sixty thousand.
#[tokio::test]
async fn every_key_ends_after_its_window_whatever_its_length() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let seconds = Duration::from_secs;
        let policies = [
            policy("1 s", 1_000, seconds(1)),
            policy("1.000001 s", 1_000, Duration::from_micros(1_000_001)),
            policy("60 s", 1_000, seconds(60)),
            policy("1 h", 1_000, HOUR),
            policy("1 d", 1_000, DAY),
            policy("366 d", 1_000, 366 * DAY),
        ];
        let limiter = limiter(backend(&server).await, policies);
        let mut look = Look::at(&server);
        for _ in 0..30 {
            let decision = limiter.check(alice(), 1).await.unwrap();
            assert_ends_in_time(engine, &mut look, &decision);
        }
    }
}

#[tokio::test]
async fn a_busy_key_never_ends_before_its_last_charge_has_left() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("short", 1_000, Duration::from_millis(600))]);
        let mut look = Look::at(&server);
        // Through more than one window, which has four times at which the time to live is set.
        for _ in 0..90 {
            let decision = limiter.check(alice(), 1).await.unwrap();
            assert_ends_in_time(engine, &mut look, &decision);
            tokio::time::sleep(Duration::from_millis(9)).await;
        }
    }
}

#[tokio::test]
async fn nothing_stays_of_a_key_that_is_asked_no_more() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies = [
            policy("1 ms", 1_000, Duration::from_millis(1)),
            policy("100 ms", 1_000, Duration::from_millis(100)),
        ];
        let limiter = limiter(backend(&server).await, policies);
        for _ in 0..30 {
            limiter.check(alice(), 1).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(Look::at(&server).keys(), [""; 0], "{engine:?}");
    }
}

/// A number that is compared with a text is never equal, and what is stored never ends.
#[tokio::test]
async fn charges_leave_at_their_microsecond_of_the_servers_own_clock() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let window = Duration::from_millis(150);
        let limiter = limiter(backend(&server).await, [policy("short", 1, window)]);
        for _ in 0..3 {
            let admitted = limiter.check(alice(), 1).await.unwrap();
            assert!(admitted.is_admitted());
            let leaves = admitted.at_micros() + window.as_micros() as u64;
            let next = loop {
                let decision = limiter.check(alice(), 1).await.unwrap();
                if decision.is_admitted() {
                    break decision;
                }
                assert!(decision.at_micros() < leaves, "{engine:?}: denied too long");
            };
            assert!(next.at_micros() >= leaves, "{engine:?}: admitted too early");
            tokio::time::sleep(window).await;
        }
    }
}

#[tokio::test]
async fn the_last_charge_leaves_at_its_microsecond_of_an_injected_clock() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("minutely", 1, Duration::from_secs(60))]);
        for _ in 0..3 {
            assert!(limiter.check(alice(), 1).await.unwrap().is_admitted(), "{engine:?}");
            clock.advance(Duration::from_micros(59_999_999));
            assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted(), "{engine:?}");
            clock.advance(Duration::from_micros(1));
        }
    }
}

/// What comes after the key has ended must not be taken for a part of it: neither below zero nor without an end.
#[tokio::test]
async fn a_charge_that_lands_after_the_key_has_ended_starts_afresh_and_ends_too() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let window = Duration::from_secs(2);
        let policies = [policy("short", 10, window)];
        let builder = Limiter::builder(backend(&server).await).policy(policies[0].clone());
        let hurried = builder.deadline(Duration::from_millis(20)).build().unwrap();
        let limiter = limiter(backend(&server).await, policies);
        limiter.check(alice(), 5).await.unwrap();

        server.signal(libc::SIGSTOP);
        assert_eq!(reason(hurried.check(alice(), 3).await), Reason::Timeout);
        tokio::time::sleep(window + window / 4 + Duration::from_millis(50)).await;
        server.signal(libc::SIGCONT);

        // The late charge may come before or after this one.
        let decision = limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        assert_ends_in_time(engine, &mut look, &decision);
        assert_eq!(remaining(&limiter).await, 10 - 3 - 1, "{engine:?}");
    }
}

#[tokio::test]
async fn a_charge_on_a_key_that_was_deleted_starts_afresh_and_ends_too() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let mut look = Look::at(&server);
        for _ in 0..20 {
            limiter.check(alice(), 3).await.unwrap();
        }
        look.ask::<()>(&["FLUSHALL"]);
        let decision = limiter.check(alice(), 3).await.unwrap();
        assert_ends_in_time(engine, &mut look, &decision);
        assert_eq!(remaining(&limiter).await, 97, "{engine:?}");
    }
}
