//! A denial writes nothing: neither a record, nor a time to live, nor what it could have cleaned up.

use std::time::{Duration, Instant};

use super::{
    look::Look,
    rig::{HOUR, alice, backend, clocked, idle, limiter, policy},
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
        let state = |look: &mut Look| {
            let keys = look.keys();
            let values: Vec<_> = keys.iter().map(|key| look.whole_value(key)).collect();
            (keys, values, look.writes())
        };
        let before = state(&mut look);
        assert_eq!(before.0.len(), 2);

        for cost in [1, 20, 21, 1_001] {
            assert!(!limiter.check(alice(), cost).await.unwrap().is_admitted());
        }
        assert_eq!(state(&mut look), before, "{engine:?}");
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
async fn denials_send_no_byte_to_a_replica() {
    for engine in Engine::ALL {
        // The pings of the primary would count, too. A replica is served at once.
        let options = ["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"];
        let server = Server::with_options(engine, &options);
        let port = server.port().to_string();
        let replica = Server::with_options(engine, &["--replicaof", &format!("127.0.0.1 {port}")]);
        let mut look = Look::at(&server);
        let start = Instant::now();
        while Look::at(&replica).info("replication", "master_link_status").as_deref() != Some("up") {
            assert!(start.elapsed() < Duration::from_secs(20), "the replica does not attach");
            idle().await;
        }

        let limiter = limiter(backend(&server).await, [policy("hourly", 3, HOUR)]);
        let offset = |look: &mut Look| look.number("replication", "master_repl_offset");
        let at_first = offset(&mut look);
        for _ in 0..3 {
            assert!(limiter.check(alice(), 1).await.unwrap().is_admitted());
        }
        let charged = offset(&mut look);
        assert!(charged > at_first, "charges are replicated");
        for _ in 0..100 {
            assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
        }
        assert_eq!(offset(&mut look), charged, "{engine:?}");
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
