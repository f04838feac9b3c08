//! What is stored, and what it weighs: nothing but the keys of the checks, and little in each.

use std::{collections::BTreeSet, time::Duration};

use tower_sliding_window::{Limiter, PartitionKey};

use super::{
    look::{Called, Look, Monitor},
    rig::{HOUR, alice, at_once, backend, clocked, limiter, policy},
};
use crate::support::server::{Engine, Server};

async fn charge_ten_thousand(limiter: &Limiter) {
    for _ in 0..100 {
        for outcome in at_once((0..100).map(|_| limiter.check(alice(), 1))).await {
            assert!(outcome.unwrap().is_admitted());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_takes_less_than_18_bytes() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 10_000, HOUR)]);
        charge_ten_thousand(&limiter).await;
        let mut look = Look::at(&server);
        let key = look.only_key();
        let bytes = look.memory(&key) as f64 / 10_000.0;
        println!("{engine:?}: {bytes} bytes a record");
        assert!(bytes < 18.0, "{engine:?}: {bytes} bytes a record");
    }
}

#[tokio::test]
async fn a_busy_key_does_not_grow_with_what_has_left() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("units", 20, Duration::from_secs(10))]);
        let mut look = Look::at(&server);
        for i in 0..500 {
            assert!(limiter.check(alice(), 1).await.unwrap().is_admitted(), "{engine:?}: charge {i}");
            // Twenty in a window, and at times a pause that lets most of them leave, or all.
            clock.advance(Duration::from_millis(if i % 100 == 99 { 11_000 } else { 500 }));
        }
        let key = look.only_key();
        // Twenty records lie in at most four entries.
        let entries: usize = look.ask(&["LLEN", &key]);
        assert!(entries <= 4, "{engine:?}: {entries}");
    }
}

#[tokio::test]
async fn there_are_no_keys_but_those_of_the_checks() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies = [policy("a", 10, HOUR), policy("b", 10, HOUR), policy("c", 3, HOUR)];
        let limiter = limiter(backend(&server).await, policies);
        for user in ["alice", "bob", "}{", "", "a user with a name longer than any hash could be"] {
            for cost in [1, 0, 2, 3, 11] {
                limiter.check(PartitionKey::new("user", user), cost).await.unwrap();
            }
        }
        let keys = Look::at(&server).keys();
        assert_eq!(keys.len(), 5 * 3, "{engine:?}: {keys:?}");
        assert!(keys.iter().all(|key| key.starts_with("tsw:1:{")), "{keys:?}");
        // What a client chooses is not in a key, so it can neither read like one nor fill memory.
        let slots: BTreeSet<_> = keys.iter().map(|key| key[..key.find('}').unwrap()].len()).collect();
        assert_eq!(slots.len(), 1, "{keys:?}");
    }
}

#[tokio::test]
async fn the_script_touches_the_keys_that_it_was_given_and_no_others() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let policies = [policy("a", 40, Duration::from_secs(10)), policy("b", 40, HOUR)];
        let limiter = limiter(backend, policies);
        let mut look = Look::at(&server);
        let mut monitor = Monitor::at(&server);
        // Charges that are kept, that leave, and that are denied.
        for _ in 0..30 {
            limiter.check(alice(), 1).await.unwrap();
            clock.advance(Duration::from_secs(1));
        }
        clock.advance(Duration::from_secs(20));
        limiter.check(alice(), 1).await.unwrap();
        assert!(!limiter.check(alice(), 40).await.unwrap().is_admitted());

        let called = monitor.called_by_scripts(&mut look);
        let keys: BTreeSet<String> = called.iter().filter_map(|call| call.key.clone()).collect();
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), look.keys(), "{engine:?}");
        let commands: BTreeSet<&str> = called.iter().map(|call| call.command.as_str()).collect();
        let expected = ["LINDEX", "LSET", "LTRIM", "PEXPIRE", "RPUSH", "UNLINK"];
        assert_eq!(commands, BTreeSet::from(expected), "{engine:?}");
    }
}

#[tokio::test]
async fn the_clock_is_read_once_for_all_policies_of_a_check() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("a", 2, HOUR), policy("b", 2, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        let mut monitor = Monitor::at(&server);
        for cost in [0, 1, 1] {
            limiter.check(alice(), cost).await.unwrap();
            let called = monitor.called_by_scripts(&mut look);
            let clock = Called { command: "TIME".to_owned(), key: None };
            assert_eq!(called.iter().filter(|call| **call == clock).count(), 1, "{engine:?}: {called:?}");
        }
    }
}
