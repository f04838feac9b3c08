//! Stored data and its size: only the keys of the checks, with little data in each.

use std::{collections::BTreeSet, time::Duration};

use tower_sliding_window::{Algorithm, Limiter, PartitionKey, Policy, backend::Backend, policy::Rate};

use super::{
    admin::{Admin, Monitor, ScriptCall},
    layout::records,
    rig::{
        HOUR, LONG_WINDOW, alice, backend, concurrently, every_algorithm, every_type, every_type_with_window,
        limiter, policy, reserve, with_manual_clock,
    },
};
use crate::support::server::{Engine, Server};

async fn charge_ten_thousand(limiter: &Limiter) {
    for _ in 0..100 {
        for outcome in concurrently((0..100).map(|_| limiter.check(alice()))).await {
            assert!(outcome.unwrap().is_admitted(), "every charge fits");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_size_stays_below_its_bound() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 10_000, HOUR)]);
        charge_ten_thousand(&limiter).await;
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        let bytes = admin.memory(&key) as f64 / 10_000.0;
        println!("{engine:?}: {bytes} bytes a record");
        assert!(bytes < 18.0, "{engine:?}: {bytes} bytes a record");
    }
}

#[tokio::test]
async fn busy_key_does_not_grow_with_expired_records() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("units", 20, Duration::from_secs(10))]);
        let mut admin = Admin::at(&server);
        for i in 0..500 {
            assert!(limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}: charge {i}");
            // Twenty charges per window, with occasional pauses in which most or all of them expire.
            clock.advance(Duration::from_millis(if i % 100 == 99 { 11_000 } else { 500 }));
        }
        let key = admin.only_key();
        // Twenty records take at most four entries.
        let entries: usize = admin.query(&["LLEN", &key]);
        assert!(entries <= 4, "{engine:?}: {entries}");
    }
}

#[tokio::test]
async fn checks_create_only_their_own_keys() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies = [policy("a", 10, HOUR), policy("b", 10, HOUR), policy("c", 3, HOUR)];
        let limiter = limiter(backend(&server).await, policies);
        for user in ["alice", "bob", "}{", "", "a user with a name longer than any hash could be"] {
            for cost in [1, 0, 2, 3, 11] {
                let _ = limiter.check((PartitionKey::new("user", user), cost)).await.unwrap();
            }
        }
        let keys = Admin::at(&server).keys();
        assert_eq!(keys.len(), 5 * 3, "{engine:?}: {keys:?}");
        assert!(keys.iter().all(|key| key.starts_with("tsw{")), "{keys:?}");
        // A key does not contain the client's input, so the input can neither forge a key nor fill memory.
        let slots: BTreeSet<_> = keys.iter().map(|key| key[..key.find('}').unwrap()].len()).collect();
        assert_eq!(slots.len(), 1, "{keys:?}");
    }
}

#[tokio::test]
async fn scripts_touch_only_given_keys() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let policies = every_type(100, Duration::from_secs(10));
        let limiter = limiter(backend.clone(), policies.clone());
        let mut admin = Admin::at(&server);
        let mut monitor = Monitor::at(&server);
        // Charges that stay, that are refunded, that expire, and that are denied.
        for i in 0..60 {
            let reserved = reserve(&backend, &policies, 3).await;
            if i % 3 > 0 {
                backend.refund(&reserved.refund(i % 3 - 1)).await.unwrap();
            }
            clock.advance(Duration::from_millis(if i % 2 == 0 { 500 } else { 0 }));
        }
        clock.advance(Duration::from_secs(30));
        let _ = limiter.check(alice()).await.unwrap();
        assert!(
            !limiter.check((alice(), 100)).await.unwrap().is_admitted(),
            "{engine:?}: some units are used"
        );

        let calls = monitor.script_calls(&mut admin);
        let keys: BTreeSet<String> = calls.iter().filter_map(|call| call.key.clone()).collect();
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), admin.keys(), "{engine:?}");
        let commands: BTreeSet<&str> = calls.iter().map(|call| call.command.as_str()).collect();
        let expected = ["GET", "LINDEX", "LSET", "LTRIM", "PEXPIRE", "RPUSH", "SET", "SETRANGE", "UNLINK"];
        assert_eq!(commands, BTreeSet::from(expected), "{engine:?}");
    }
}

#[tokio::test]
async fn check_reads_clock_once_for_all_policies() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("a", 2, HOUR), policy("b", 2, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let mut monitor = Monitor::at(&server);
        for cost in [0, 1, 1] {
            let _ = limiter.check((alice(), cost)).await.unwrap();
            let calls = monitor.script_calls(&mut admin);
            let clock = ScriptCall { command: "TIME".to_owned(), key: None };
            assert_eq!(calls.iter().filter(|call| **call == clock).count(), 1, "{engine:?}: {calls:?}");
        }
    }
}

/// Returns the commands that the script calls for one check of this cost.
async fn commands_of(limiter: &Limiter, cost: u32, monitor: &mut Monitor, admin: &mut Admin) -> Vec<String> {
    monitor.script_calls(admin);
    let _ = limiter.check((alice(), cost)).await.unwrap();
    monitor.script_calls(admin).into_iter().map(|call| call.command).collect()
}

/// A charge makes two calls besides TIME: it reads the value once and writes it once.
#[tokio::test]
async fn charge_reads_and_writes_value_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let mut monitor = Monitor::at(&server);
        for policy in every_algorithm(82, LONG_WINDOW) {
            let name = policy.name().to_owned();
            let limiter = limiter(backend(&server).await, [policy]);
            let (first, usual): (&[&str], &[&str]) = match &*name {
                "log" | "buckets" => (&["TIME", "LINDEX", "RPUSH", "PEXPIRE"], &["TIME", "LINDEX", "LSET"]),
                _ => (&["TIME", "GET", "SET"], &["TIME", "GET", "SETRANGE"]),
            };
            assert_eq!(commands_of(&limiter, 1, &mut monitor, &mut admin).await, first, "{engine:?} {name}");
            for charge in 2..=82 {
                // One record is in the header. Every eighth record after it completes a block.
                let commands = commands_of(&limiter, 1, &mut monitor, &mut admin).await;
                if name == "log" && charge > 8 && charge % 8 == 2 {
                    assert_eq!(commands, ["TIME", "LINDEX", "LSET", "RPUSH"], "{engine:?} {charge}");
                } else {
                    assert_eq!(commands, usual, "{engine:?} {name} {charge}");
                }
            }
            for cost in [0, 1] {
                let commands = commands_of(&limiter, cost, &mut monitor, &mut admin).await;
                assert_eq!(commands, usual[..2], "{engine:?} {name}: a denial");
            }
        }
    }
}

/// No call is repeated for each bucket or window that has passed.
#[tokio::test]
async fn idle_key_costs_next_check_no_more_calls() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let mut monitor = Monitor::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        for policy in every_type_with_window(100, Duration::from_secs(10)) {
            let name = policy.name().to_owned();
            let limiter = limiter(backend.clone(), [policy]);
            let (idle, charged): (&[&str], &[&str]) = match &*name {
                "log" | "buckets" => (&["LINDEX"], &["LINDEX", "UNLINK", "RPUSH", "PEXPIRE"]),
                _ => (&["GET"], &["GET", "SET"]),
            };
            for hours in [0, 1, 100, 50_000] {
                for _ in 0..30 {
                    let _ = limiter.check(alice()).await.unwrap();
                    clock.advance(Duration::from_millis(300));
                }
                clock.advance(Duration::from_secs(30) + hours * HOUR);
                for cost in [0, 101] {
                    let commands = commands_of(&limiter, cost, &mut monitor, &mut admin).await;
                    assert_eq!(commands, idle, "{engine:?} {name}, {hours} hours");
                }
                let commands = commands_of(&limiter, 1, &mut monitor, &mut admin).await;
                assert_eq!(commands, charged, "{engine:?} {name}, {hours} hours");
            }
        }
    }
}

/// A charge drops expired buckets, and all charges of one bucket are one record. The bound is the documented one.
#[tokio::test]
async fn bucket_count_stays_within_its_bound() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        for (window, precision) in
            [(10_000_000, 1_000_000), (10_000_000, 3_000_001), (10_000_000, 10_000_000)]
        {
            admin.query::<()>(&["FLUSHALL"]);
            let (backend, clock) = with_manual_clock(&server).await;
            let precision_of = Duration::from_micros(precision);
            let policy: Policy = policy("p", u32::MAX, Duration::from_micros(window));
            let policy =
                policy.with_algorithm(Algorithm::SlidingBuckets { precision: precision_of }).unwrap();
            let limiter = limiter(backend, [policy]);
            let (mut max, bound) = (0, window / precision + 2);
            for i in 0..300 {
                let _ = limiter.check((alice(), 7)).await.unwrap();
                let key = admin.only_key();
                let records = records(&mut admin, &key);
                assert!(records <= bound, "{engine:?}: {records} records of {precision} us in {window} us");
                max = max.max(records);
                clock.advance(Duration::from_micros(if i % 50 == 49 {
                    2 * window
                } else {
                    precision / 7 * 3
                }));
            }
            assert!(max >= bound - 1, "{engine:?}: {max} records at most");
        }
    }
}

/// A charge seldom sets when the key of a token bucket expires. A receipt begins a generation, which lasts until the bucket is full.
#[tokio::test]
async fn token_bucket_in_use_is_changed_in_place() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let mut monitor = Monitor::at(&server);
        // A unit returns in a minute.
        let bucket = Policy::token_bucket("bucket", 1_000, Rate::new(60, HOUR)).unwrap();
        let backend = backend(&server).await;
        let limiter = limiter(backend.clone(), [bucket.clone()]);
        let mut commands = Vec::new();
        for _ in 0..100 {
            commands.extend(commands_of(&limiter, 1, &mut monitor, &mut admin).await);
        }
        let count = |command: &str| commands.iter().filter(|given| *given == command).count();
        // Each time, it is almost twice as late: with the charges 1, 3, 6 or 7, 12 to 15, 24 to 31, 48 to 63, and 96 at the earliest.
        assert!((6..=7).contains(&count("SET")), "{engine:?}: {commands:?}");
        assert_eq!(count("SET") + count("SETRANGE"), 100, "{engine:?}");

        let key = admin.only_key();
        let mut size = || -> usize { admin.query(&["STRLEN", &key]) };
        assert_eq!(size(), 28, "{engine:?}");
        let reserved = reserve(&backend, std::slice::from_ref(&bucket), 10).await;
        assert_eq!(size(), 27, "{engine:?}");
        let checked = limiter.check(alice()).await.unwrap();
        assert_eq!((checked.statuses()[0].remaining(), size()), (889, 27), "{engine:?}");
        backend.refund(&reserved.refund(0)).await.unwrap();
        let checked = limiter.check(alice()).await.unwrap();
        assert_eq!((checked.statuses()[0].remaining(), size()), (898, 27), "{engine:?}");
        limiter.reset(alice()).await.unwrap();
        let _ = limiter.check(alice()).await.unwrap();
        assert_eq!(size(), 28, "{engine:?}");
    }
}
