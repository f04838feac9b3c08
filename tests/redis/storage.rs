//! What is stored, and what it weighs: nothing but the keys of the checks, and little in each.

use std::{collections::BTreeSet, time::Duration};

use tower_sliding_window::{Algorithm, Limiter, PartitionKey, Policy, backend::Backend};

use super::{
    layout::records,
    look::{Called, Look, Monitor},
    rig::{HOUR, LONG, alice, at_once, backend, clocked, every_algorithm, limiter, policy, reserve},
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
async fn the_scripts_touch_the_keys_that_they_were_given_and_no_others() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let policies = every_algorithm(100, Duration::from_secs(10));
        let limiter = limiter(backend.clone(), policies.clone());
        let mut look = Look::at(&server);
        let mut monitor = Monitor::at(&server);
        // Charges that are kept, that are given back, that leave, and that are denied.
        for i in 0..60 {
            let reserved = reserve(&backend, &policies, 3).await;
            if i % 3 > 0 {
                backend.refund(&reserved.refund(i % 3 - 1)).await.unwrap();
            }
            clock.advance(Duration::from_millis(if i % 2 == 0 { 500 } else { 0 }));
        }
        clock.advance(Duration::from_secs(30));
        limiter.check(alice(), 1).await.unwrap();
        assert!(!limiter.check(alice(), 100).await.unwrap().is_admitted());

        let called = monitor.called_by_scripts(&mut look);
        let keys: BTreeSet<String> = called.iter().filter_map(|call| call.key.clone()).collect();
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), look.keys(), "{engine:?}");
        let commands: BTreeSet<&str> = called.iter().map(|call| call.command.as_str()).collect();
        let expected = ["GET", "LINDEX", "LSET", "LTRIM", "PEXPIRE", "RPUSH", "SET", "SETRANGE", "UNLINK"];
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

/// What one check of this cost has the script call.
async fn called(limiter: &Limiter, cost: u32, monitor: &mut Monitor, look: &mut Look) -> Vec<String> {
    monitor.called_by_scripts(look);
    limiter.check(alice(), cost).await.unwrap();
    monitor.called_by_scripts(look).into_iter().map(|call| call.command).collect()
}

/// Two calls beside the clock: what is stored is read once and written once.
#[tokio::test]
async fn a_plain_charge_reads_one_value_and_writes_one() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let mut monitor = Monitor::at(&server);
        for policy in every_algorithm(82, LONG) {
            let name = policy.name().to_owned();
            let limiter = limiter(backend(&server).await, [policy]);
            let (first, usual): (&[&str], &[&str]) = match &*name {
                "log" | "buckets" => (&["TIME", "LINDEX", "RPUSH", "PEXPIRE"], &["TIME", "LINDEX", "LSET"]),
                _ => (&["TIME", "GET", "SET"], &["TIME", "GET", "SETRANGE"]),
            };
            assert_eq!(called(&limiter, 1, &mut monitor, &mut look).await, first, "{engine:?} {name}");
            for charge in 2..=82 {
                // One record is in the header. With every eighth one behind it, a block is full.
                let called = called(&limiter, 1, &mut monitor, &mut look).await;
                if name == "log" && charge > 8 && charge % 8 == 2 {
                    assert_eq!(called, ["TIME", "LINDEX", "LSET", "RPUSH"], "{engine:?} {charge}");
                } else {
                    assert_eq!(called, usual, "{engine:?} {name} {charge}");
                }
            }
            for cost in [0, 1] {
                let called = called(&limiter, cost, &mut monitor, &mut look).await;
                assert_eq!(called, usual[..2], "{engine:?} {name}: a denial");
            }
        }
    }
}

/// Nothing is done once for each bucket or window that has gone by.
#[tokio::test]
async fn a_key_that_was_idle_for_hours_costs_the_next_check_no_more_calls() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let mut monitor = Monitor::at(&server);
        let (backend, clock) = clocked(&server).await;
        for policy in every_algorithm(100, Duration::from_secs(10)) {
            let name = policy.name().to_owned();
            let limiter = limiter(backend.clone(), [policy]);
            let (idle, charged): (&[&str], &[&str]) = match &*name {
                "log" | "buckets" => (&["LINDEX"], &["LINDEX", "UNLINK", "RPUSH", "PEXPIRE"]),
                _ => (&["GET"], &["GET", "SET"]),
            };
            for hours in [0, 1, 100, 50_000] {
                for _ in 0..30 {
                    limiter.check(alice(), 1).await.unwrap();
                    clock.advance(Duration::from_millis(300));
                }
                clock.advance(Duration::from_secs(30) + hours * HOUR);
                for cost in [0, 101] {
                    let called = called(&limiter, cost, &mut monitor, &mut look).await;
                    assert_eq!(called, idle, "{engine:?} {name}, {hours} hours");
                }
                let called = called(&limiter, 1, &mut monitor, &mut look).await;
                assert_eq!(called, charged, "{engine:?} {name}, {hours} hours");
            }
        }
    }
}

/// Those that have left are gone with the next charge, those of one bucket are one record, and the bound is that of the
/// description.
#[tokio::test]
async fn buckets_are_never_more_than_a_window_holds_and_two() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        for (window, precision) in
            [(10_000_000, 1_000_000), (10_000_000, 3_000_001), (10_000_000, 10_000_000)]
        {
            look.ask::<()>(&["FLUSHALL"]);
            let (backend, clock) = clocked(&server).await;
            let precision_of = Duration::from_micros(precision);
            let policy: Policy = policy("p", u32::MAX, Duration::from_micros(window));
            let policy =
                policy.with_algorithm(Algorithm::SlidingBuckets { precision: precision_of }).unwrap();
            let limiter = limiter(backend, [policy]);
            let (mut most, bound) = (0, window / precision + 2);
            for i in 0..300 {
                limiter.check(alice(), 7).await.unwrap();
                let key = look.only_key();
                let records = records(&mut look, &key);
                assert!(records <= bound, "{engine:?}: {records} records of {precision} us in {window} us");
                most = most.max(records);
                clock.advance(Duration::from_micros(if i % 50 == 49 {
                    2 * window
                } else {
                    precision / 7 * 3
                }));
            }
            assert!(most >= bound - 1, "{engine:?}: {most} records at most");
        }
    }
}
