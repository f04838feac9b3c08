//! A denial writes nothing: neither a record, nor a time to live, nor what it could have cleaned up. Nor does a peek, or a
//! refund that finds nothing.

use std::time::{Duration, Instant};

use tower_sliding_window::{
    Policy, RedisBackend,
    backend::{Backend, Purpose, Receipt, Refund},
};

use super::{
    look::{Look, State},
    rig::{
        HOUR, LONG, alice, backend, check, clocked, every_algorithm, idle, limiter, peek, policy, reserve,
    },
};
use crate::support::server::{Engine, Server};

#[tokio::test]
async fn a_denial_leaves_value_and_time_to_live_as_they_were() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        // Of the two policies, one would admit.
        let policies = [policy("wide", 1_000, HOUR), policy("narrow", 20, HOUR)];
        let limiter = limiter(backend(&server).await, policies);
        for _ in 0..20 {
            assert!(limiter.check(alice(), 1).await.unwrap().is_admitted());
        }
        idle().await;
        let mut look = Look::at(&server);
        let before = State::of(&mut look);
        assert_eq!(before.keys.len(), 2);

        for cost in [1, 20, 21, 1_001] {
            assert!(!limiter.check(alice(), cost).await.unwrap().is_admitted());
        }
        assert_eq!(State::of(&mut look), before, "{engine:?}");
    }
}

#[tokio::test]
async fn a_denial_leaves_what_has_left_the_window_for_the_next_charge_to_drop() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("units", 100, Duration::from_secs(10))]);
        for _ in 0..40 {
            limiter.check(alice(), 1).await.unwrap();
            clock.advance(Duration::from_millis(250));
        }
        clock.advance(Duration::from_secs(5));
        let mut look = Look::at(&server);
        let key = look.only_key();
        let before = (look.whole_value(&key), look.writes());

        assert!(!limiter.check(alice(), 100).await.unwrap().is_admitted());
        assert_eq!((look.whole_value(&key), look.writes()), before, "{engine:?}");

        let entries: usize = look.ask(&["LLEN", &key]);
        limiter.check(alice(), 1).await.unwrap();
        assert!(look.ask::<usize>(&["LLEN", &key]) < entries, "{engine:?}");
    }
}

#[tokio::test]
async fn denials_peeks_and_refunds_that_find_nothing_send_no_byte_to_a_replica() {
    for engine in Engine::ALL {
        // The pings of the primary would count, too. A replica is served at once.
        let options = ["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"];
        let server = Server::with_options(engine, &options);
        let port = server.port().to_string();
        let replica = Server::with_options(engine, &["--replicaof", "127.0.0.1", &port]);
        let mut look = Look::at(&server);
        let start = Instant::now();
        while Look::at(&replica).info("replication", "master_link_status").as_deref() != Some("up") {
            assert!(start.elapsed() < Duration::from_secs(20), "the replica does not attach");
            idle().await;
        }

        let backend = backend(&server).await;
        for policy in every_algorithm(3, LONG) {
            let policies = [policy];
            let offset = |look: &mut Look| look.number("replication", "master_repl_offset");
            let at_first = offset(&mut look);
            for _ in 0..3 {
                reserve(&backend, &policies, 1).await;
            }
            let charged = offset(&mut look);
            assert!(charged > at_first, "charges are replicated");
            for cost in [1, 2, 3, 4] {
                for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek] {
                    let denied = backend.check(&check(&policies, cost, purpose)).await.unwrap();
                    assert!(!denied.is_admitted());
                }
            }
            peek(&backend, &policies, 0).await;
            backend.refund(&unknown(&backend, &policies).await).await.unwrap();
            assert_eq!(offset(&mut look), charged, "{engine:?}: {policies:?}");
        }
    }
}

/// A refund that finds nothing: it is of another generation.
async fn unknown(backend: &RedisBackend, policies: &[Policy]) -> Refund {
    let now = peek(backend, policies, 0).await.at_micros();
    let receipt = Receipt { generation: now - 3_600_000_000, at_micros: now, ordinal: 0 };
    let receipts = vec![receipt; policies.len()];
    Refund::of(&check(policies, 1, Purpose::Reserve), &receipts, &vec![0; policies.len()]).unwrap()
}

#[tokio::test]
async fn denials_of_every_algorithm_and_peeks_leave_value_and_time_to_live_as_they_were() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let mut look = Look::at(&server);
        for policy in every_algorithm(20, Duration::from_secs(10)) {
            look.ask::<()>(&["FLUSHALL"]);
            let policies = [policy];
            // Of an empty key, nothing is made.
            for (cost, purpose) in [(21, Purpose::Charge), (1, Purpose::Peek), (0, Purpose::Reserve)] {
                backend.check(&check(&policies, cost, purpose)).await.unwrap();
            }
            assert_eq!(look.keys(), [""; 0]);
            for _ in 0..20 {
                reserve(&backend, &policies, 1).await;
                clock.advance(Duration::from_millis(100));
            }
            // While all of it counts, while some of it has left, when all of it has; and while the clock is behind.
            for millis in [0, 8_500, 30_000, -35_000] {
                let now = clock.now_micros();
                clock.set_micros(now.saturating_add_signed(millis * 1_000));
                let before = State::of(&mut look);
                for cost in [0, 1, 5, 20, 21] {
                    for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek] {
                        let check = check(&policies, cost, purpose);
                        // What is admitted would be charged.
                        let fits = peek(&backend, &policies, cost).await.is_admitted();
                        if purpose == Purpose::Peek || cost == 0 || !fits {
                            backend.check(&check).await.unwrap();
                        }
                    }
                }
                assert_eq!(State::of(&mut look), before, "{engine:?}: {policies:?}, {millis} ms later");
            }
        }
    }
}

#[tokio::test]
async fn refunds_that_find_nothing_leave_value_and_time_to_live_as_they_were() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let mut look = Look::at(&server);
        for policy in every_algorithm(100, Duration::from_secs(10)) {
            look.ask::<()>(&["FLUSHALL"]);
            let policies = [policy];
            let early = reserve(&backend, &policies, 2).await;
            clock.advance(Duration::from_millis(1));
            let forgotten = early.refund(0);
            backend.refund(&forgotten).await.unwrap();
            clock.advance(Duration::from_millis(1));
            backend.reset(&early.check).await.unwrap();
            assert_eq!(look.keys(), [""; 0]);
            // A key that is not there is not made.
            backend.refund(&forgotten).await.unwrap();
            assert_eq!(look.keys(), [""; 0]);

            let old = reserve(&backend, &policies, 2).await;
            if policies[0].name() == "log" {
                // It is the only one, and no other was ever behind it.
                let before = State::of(&mut look);
                for ordinal in [1, 2, 1 << 20] {
                    let receipt = Receipt { ordinal, ..old.decision.receipts()[0] };
                    backend.refund(&Refund::of(&old.check, &[receipt], &[0]).unwrap()).await.unwrap();
                    assert_eq!(State::of(&mut look), before, "{engine:?}: {ordinal}");
                }
            }
            for _ in 0..30 {
                clock.advance(Duration::from_millis(900));
                reserve(&backend, &policies, 1).await;
            }
            let young = reserve(&backend, &policies, 2).await;
            let receipt = young.decision.receipts()[0];
            let window = policies[0].window().as_micros() as u64;
            let mut refunds = vec![
                forgotten,
                // It has left.
                old.refund(0),
                Refund::of(&old.check, &[Receipt { generation: 7, ..receipt }], &[0]).unwrap(),
            ];
            if policies[0].name() == "log" {
                // There are not so many at this instant, there was none a microsecond earlier, and none is younger.
                for receipt in [
                    Receipt { ordinal: 2, ..receipt },
                    Receipt { ordinal: 1 << 20, ..receipt },
                    Receipt { at_micros: receipt.at_micros - 1, ordinal: 0, ..receipt },
                    Receipt { at_micros: receipt.at_micros - 1, ordinal: 1, ..receipt },
                    Receipt { at_micros: receipt.at_micros + 1, ordinal: 0, ..receipt },
                    Receipt { at_micros: receipt.at_micros - window, ordinal: 0, ..receipt },
                ] {
                    refunds.push(Refund::of(&young.check, &[receipt], &[0]).unwrap());
                }
            }
            let before = State::of(&mut look);
            for (i, refund) in refunds.iter().enumerate() {
                backend.refund(refund).await.unwrap();
                assert_eq!(State::of(&mut look), before, "{engine:?}: {policies:?}, refund {i}");
            }
            // Too late for the young one, too, to the microsecond.
            let reset = peek(&backend, &policies, 0).await.statuses()[0].reset_after();
            clock.advance(reset);
            backend.refund(&young.refund(0)).await.unwrap();
            // Or its clock is another one.
            clock.set_micros(clock.now_micros() - 5 * window);
            backend.refund(&young.refund(0)).await.unwrap();
            assert_eq!(State::of(&mut look), before, "{engine:?}: {policies:?}");
        }
    }
}

#[tokio::test]
async fn a_cost_of_zero_writes_nothing() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 3, HOUR)]);
        let mut look = Look::at(&server);
        assert!(limiter.check(alice(), 0).await.unwrap().is_admitted());
        assert_eq!((look.keys(), look.writes()), (vec![], 0), "{engine:?}");
    }
}
