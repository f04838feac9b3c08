//! Denials, peeks and refunds of unknown charges write nothing: no record, no time to live, and no cleanup of expired
//! records.

use std::time::Duration;

use tower_sliding_window::{
    Policy, RedisBackend,
    backend::{Backend, Purpose, Receipt, Refund},
};

use super::{
    admin::{Admin, State},
    rig::{
        HOUR, LONG_WINDOW, alice, backend, check, every_algorithm, every_type, idle, limiter, peek, policy,
        reserve, wait_until, with_manual_clock,
    },
};
use crate::support::server::{Engine, Server};

#[tokio::test]
async fn denial_preserves_value_and_time_to_live() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        // The wide policy alone would admit most of these checks.
        let policies = [policy("wide", 1_000, HOUR), policy("narrow", 20, HOUR)];
        let limiter = limiter(backend(&server).await, policies);
        for _ in 0..20 {
            assert!(limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}: 20 units fit");
        }
        idle().await;
        let mut admin = Admin::at(&server);
        let before = State::of(&mut admin);
        assert_eq!(before.keys.len(), 2, "{engine:?}: a key for each policy");

        for cost in [1, 20, 21, 1_001] {
            assert!(
                !limiter.check((alice(), cost)).await.unwrap().is_admitted(),
                "{engine:?}, cost {cost}: the narrow policy is used up"
            );
        }
        assert_eq!(State::of(&mut admin), before, "{engine:?}");
    }
}

#[tokio::test]
async fn denial_leaves_expired_records_to_next_charge() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("units", 100, Duration::from_secs(10))]);
        for _ in 0..40 {
            let _ = limiter.check(alice()).await.unwrap();
            clock.advance(Duration::from_millis(250));
        }
        clock.advance(Duration::from_secs(5));
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        let before = (admin.value_and_expiry(&key), admin.writes());

        assert!(
            !limiter.check((alice(), 100)).await.unwrap().is_admitted(),
            "{engine:?}: the cost is the whole quota"
        );
        assert_eq!((admin.value_and_expiry(&key), admin.writes()), before, "{engine:?}");

        let entries: usize = admin.query(&["LLEN", &key]);
        let _ = limiter.check(alice()).await.unwrap();
        assert!(admin.query::<usize>(&["LLEN", &key]) < entries, "{engine:?}");
    }
}

#[tokio::test]
async fn denials_peeks_and_unknown_refunds_replicate_nothing() {
    for engine in Engine::ALL {
        // The primary sends no pings during the test, because the offset counts them. The replica syncs without delay.
        let options = ["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"];
        let server = Server::with_options(engine, &options);
        let port = server.port().to_string();
        let replica = Server::with_options(engine, &["--replicaof", "127.0.0.1", &port]);
        let mut admin = Admin::at(&server);
        wait_until("the replica does not attach", || {
            Admin::at(&replica).info("replication", "master_link_status").as_deref() == Some("up")
        })
        .await;

        let backend = backend(&server).await;
        for policy in every_type(3, LONG_WINDOW) {
            let policies = [policy];
            let offset = |admin: &mut Admin| admin.number("replication", "master_repl_offset");
            let before = offset(&mut admin);
            for _ in 0..3 {
                reserve(&backend, &policies, 1).await;
            }
            let charged = offset(&mut admin);
            assert!(charged > before, "charges are replicated");
            for cost in [1, 2, 3, 4] {
                for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek] {
                    let denied = backend.check(&check(&policies, cost, purpose)).await.unwrap();
                    assert!(!denied.is_admitted(), "{engine:?}: the quota is used: {denied:?}");
                }
            }
            let _ = peek(&backend, &policies, 0).await;
            backend.refund(&unknown_refund(&backend, &policies).await).await.unwrap();
            assert_eq!(offset(&mut admin), charged, "{engine:?}: {policies:?}");
        }
    }
}

/// Returns a refund of an unknown charge, from another generation.
async fn unknown_refund(backend: &RedisBackend, policies: &[Policy]) -> Refund {
    let now = peek(backend, policies, 0).await.at_micros();
    let receipt = Receipt::new(7, now, 0);
    let receipts = vec![receipt; policies.len()];
    Refund::new(&check(policies, 1, Purpose::Reserve), &receipts, &vec![0; policies.len()]).unwrap()
}

#[tokio::test]
async fn denials_and_peeks_of_every_algorithm_write_nothing() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        for policy in every_type(20, Duration::from_secs(10)) {
            admin.query::<()>(&["FLUSHALL"]);
            let policies = [policy];
            // These checks create no key.
            for (cost, purpose) in [(21, Purpose::Charge), (1, Purpose::Peek), (0, Purpose::Reserve)] {
                let _ = backend.check(&check(&policies, cost, purpose)).await.unwrap();
            }
            assert_eq!(admin.keys(), [""; 0], "{engine:?}: {policies:?}: no check creates a key");
            for _ in 0..20 {
                reserve(&backend, &policies, 1).await;
                clock.advance(Duration::from_millis(100));
            }
            // No charge has expired, some have, all have; then the clock is behind.
            for millis in [0, 8_500, 30_000, -35_000] {
                let now = clock.now_micros();
                clock.set_micros(now.saturating_add_signed(millis * 1_000));
                let before = State::of(&mut admin);
                for cost in [0, 1, 5, 20, 21] {
                    for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek] {
                        let check = check(&policies, cost, purpose);
                        // An admitted charge would write.
                        let fits = peek(&backend, &policies, cost).await.is_admitted();
                        if purpose == Purpose::Peek || cost == 0 || !fits {
                            let _ = backend.check(&check).await.unwrap();
                        }
                    }
                }
                assert_eq!(State::of(&mut admin), before, "{engine:?}: {policies:?}, {millis} ms later");
            }
        }
    }
}

#[tokio::test]
async fn unknown_refunds_write_nothing() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        for policy in every_algorithm(100, Duration::from_secs(10)) {
            admin.query::<()>(&["FLUSHALL"]);
            let policies = [policy];
            let first = reserve(&backend, &policies, 2).await;
            clock.advance(Duration::from_millis(1));
            let refunded = first.refund(0);
            backend.refund(&refunded).await.unwrap();
            clock.advance(Duration::from_millis(1));
            backend.reset(&first.check).await.unwrap();
            assert_eq!(admin.keys(), [""; 0], "{engine:?}: {policies:?}: a reset deletes the key");
            // A refund creates no key.
            backend.refund(&refunded).await.unwrap();
            assert_eq!(admin.keys(), [""; 0], "{engine:?}: {policies:?}: a refund creates no key");

            let oldest = reserve(&backend, &policies, 2).await;
            if policies[0].name() == "log" {
                // The log has one record, and never had another at this instant.
                let before = State::of(&mut admin);
                for ordinal in [1, 2, 1 << 20] {
                    let mut receipt = oldest.decision.receipts()[0];
                    receipt.ordinal = ordinal;
                    backend.refund(&Refund::new(&oldest.check, &[receipt], &[0]).unwrap()).await.unwrap();
                    assert_eq!(State::of(&mut admin), before, "{engine:?}: {ordinal}");
                }
            }
            for _ in 0..30 {
                clock.advance(Duration::from_millis(900));
                reserve(&backend, &policies, 1).await;
            }
            let newest = reserve(&backend, &policies, 2).await;
            let receipt = newest.decision.receipts()[0];
            let window = policies[0].window().unwrap().as_micros() as u64;
            let mut refunds = vec![
                refunded,
                // The charge has expired.
                oldest.refund(0),
                Refund::new(&oldest.check, &[Receipt::new(7, receipt.at_micros, receipt.ordinal)], &[0])
                    .unwrap(),
            ];
            if policies[0].name() == "log" {
                // No record has one of these ordinals or instants.
                for receipt in [
                    Receipt::new(receipt.generation, receipt.at_micros, 2),
                    Receipt::new(receipt.generation, receipt.at_micros, 1 << 20),
                    Receipt::new(receipt.generation, receipt.at_micros - 1, 0),
                    Receipt::new(receipt.generation, receipt.at_micros - 1, 1),
                    Receipt::new(receipt.generation, receipt.at_micros + 1, 0),
                    Receipt::new(receipt.generation, receipt.at_micros - window, 0),
                ] {
                    refunds.push(Refund::new(&newest.check, &[receipt], &[0]).unwrap());
                }
            }
            let before = State::of(&mut admin);
            for (i, refund) in refunds.iter().enumerate() {
                backend.refund(refund).await.unwrap();
                assert_eq!(State::of(&mut admin), before, "{engine:?}: {policies:?}, refund {i}");
            }
            // The newest charge has expired too, exactly now.
            let reset = peek(&backend, &policies, 0).await.statuses()[0].reset_after();
            clock.advance(reset);
            backend.refund(&newest.refund(0)).await.unwrap();
            // The clock is far behind.
            clock.set_micros(clock.now_micros() - 5 * window);
            backend.refund(&newest.refund(0)).await.unwrap();
            assert_eq!(State::of(&mut admin), before, "{engine:?}: {policies:?}");
        }
    }
}

#[tokio::test]
async fn zero_cost_writes_nothing() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 3, HOUR)]);
        let mut admin = Admin::at(&server);
        assert!(limiter.check((alice(), 0)).await.unwrap().is_admitted(), "{engine:?}: a cost of 0 fits");
        assert_eq!((admin.keys(), admin.writes()), (vec![], 0), "{engine:?}");
    }
}
