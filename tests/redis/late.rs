//! A check that comes to the server after its deadline charges nothing, and says so.

use std::time::Duration;

use redis::{
    Client, Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager},
};
use tokio::time::Instant;
use tower_sliding_window::{
    Decision, Limiter, PartitionKey, Policy, RedisBackend,
    backend::{Backend, BackendError, Purpose, Reason},
};

use super::{
    look::Look,
    proxy::Proxy,
    rig::{HOUR, alice, at_once, backend, check, every_algorithm, idle, limiter, peek, policy, remaining},
};
use crate::support::server::{Engine, Server};

const MANY: u32 = 1_000_000;

fn hurried(backend: impl Backend, policies: &[Policy]) -> Limiter {
    let builder = Limiter::builder(backend).breaker(None).deadline(Duration::from_millis(100));
    policies.iter().cloned().fold(builder, |builder, policy| builder.policy(policy)).build().unwrap()
}

fn user(number: u32) -> PartitionKey {
    PartitionKey::new("user", number.to_string().as_str())
}

/// Stops the server, asks it many things, and lets it go on when nobody waits any more.
async fn ask_in_vain(server: &Server, limiter: &Limiter, checks: u32) {
    server.signal(libc::SIGSTOP);
    let asked = (0..checks).map(|i| limiter.check(user(i % 7), 1));
    for outcome in at_once(asked.collect::<Vec<_>>()).await {
        assert_eq!(outcome.map_err(|error| error.reason()).unwrap_err(), Reason::Timeout);
    }
    server.signal(libc::SIGCONT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_checks_that_a_server_sees_after_their_deadline_charge_nothing() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies = every_algorithm(MANY, HOUR);
        let backend = backend(&server).await;
        let hurried = hurried(backend.clone(), &policies);
        let unhurried = limiter(backend.clone(), policies.clone());
        // They are known, as is the server's clock.
        for i in 0..7 {
            assert!(unhurried.check(user(i), 1).await.unwrap().is_admitted());
        }
        let mut look = Look::at(&server);
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);
        ask_in_vain(&server, &hurried, 2_000).await;
        idle().await;

        // They have come, all of them.
        assert!(look.calls("evalsha").all >= 2_000, "{engine:?}: {:?}", look.calls("evalsha"));
        assert_eq!(backend.unanswered_checks(), 2_000, "{engine:?}");
        for i in 0..7 {
            for status in unhurried.peek(user(i), 0).await.unwrap().statuses() {
                assert_eq!(status.remaining(), MANY - 1, "{engine:?} {i}: {status:?}");
            }
        }
    }
}

/// Nothing is known of the server's clock when it is stopped: it is learnt first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_has_never_been_answered_charges_nothing_late_either() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies = [policy("hourly", MANY, HOUR)];
        let client = Client::open(server.url()).unwrap();
        let own = RedisBackend::from_connection(ConnectionManager::new(client).await.unwrap());
        for backend in
            [hurried(own, &policies), hurried(RedisBackend::lazy(&server.url()).unwrap(), &policies)]
        {
            ask_in_vain(&server, &backend, 50).await;
        }
        idle().await;
        assert_eq!(Look::at(&server).keys(), [""; 0], "{engine:?}");
    }
}

/// What the caller's own connection is asked first for a slot is asked twice, and charged once.
#[tokio::test]
async fn a_connection_of_the_callers_learns_the_clock_from_the_first_check_of_a_slot() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let client = Client::open(server.url()).unwrap();
        let own = RedisBackend::from_connection(ConnectionManager::new(client).await.unwrap());
        let limiter = hurried(own, &[policy("hourly", 100, HOUR)]);
        let mut look = Look::at(&server);
        limiter.check(user(0), 0).await.unwrap();
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);
        for (user, calls, left) in [(user(1), 2, 99), (user(1), 3, 98), (user(2), 5, 99)] {
            let decision = limiter.check(user, 1).await.unwrap();
            assert_eq!(decision.statuses()[0].remaining(), left, "{engine:?}");
            assert_eq!(look.calls("evalsha").all, calls, "{engine:?}");
        }
    }
}

#[tokio::test]
async fn a_check_whose_deadline_has_passed_is_late_whatever_it_is_for_but_what_was_used_is_charged() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(10, HOUR);
        let past = Instant::now() - Duration::from_millis(1);
        for purpose in [Purpose::Charge, Purpose::Reserve] {
            let late = check(&policies, 1, purpose).with_deadline(past);
            let error = backend.check(&late).await.unwrap_err();
            assert_eq!(error.reason(), Reason::DeadlineExceeded, "{engine:?} {purpose:?}");
        }
        assert_eq!(Look::at(&server).keys(), [""; 0], "{engine:?}");
        assert_eq!(backend.unanswered_checks(), 0, "it was answered");

        // Looking does no harm.
        let looked = backend.check(&check(&policies, 11, Purpose::Peek).with_deadline(past)).await.unwrap();
        assert!(!looked.is_admitted());
        backend.check(&check(&policies, 3, Purpose::Overage).with_deadline(past)).await.unwrap();
        for status in peek(&backend, &policies, 0).await.statuses() {
            assert_eq!(status.remaining(), 7, "{engine:?}: {status:?}");
        }
    }
}

/// A connection to something that answers whatever it is asked.
#[derive(Clone)]
struct Answers(Value);

impl ConnectionLike for Answers {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { Ok(self.0.clone()) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { Ok(vec![self.0.clone()]) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_leaves_a_charge_that_may_stand() {
    let policies = [policy("hourly", 10, HOUR)];
    for (count, value) in (1..).zip([Value::Nil, Value::Int(1), Value::BulkString(b"OK".into())]) {
        let backend = RedisBackend::from_connection(Answers(value));
        let charge = check(&policies, 1, Purpose::Charge);
        for _ in 0..count {
            assert_eq!(backend.check(&charge).await.unwrap_err().reason(), Reason::BrokenReply);
        }
        // One that only looks charges nothing, whatever is answered.
        backend.check(&check(&policies, 1, Purpose::Peek)).await.unwrap_err();
        assert_eq!(backend.unanswered_checks(), count);
    }
}

#[tokio::test]
async fn a_check_in_time_is_decided_once_however_far_the_servers_clock_is() {
    // The clocks of this machine are the same. What is measured is the way, and it is short.
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let proxy = Proxy::before(&server).await;
        let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
        let limiter = hurried(backend, &[policy("hourly", 1_000, HOUR)]);
        let mut look = Look::at(&server);
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);
        for i in 1..=50 {
            let told: Result<Decision, BackendError> = limiter.check(alice(), 1).await;
            assert_eq!(told.unwrap().statuses()[0].remaining(), 1_000 - i, "{engine:?}");
        }
        let calls = look.calls("evalsha").all + look.calls("eval").all;
        assert_eq!(calls, 51, "{engine:?}: one of them was unknown");
        assert_eq!(remaining(&limiter).await, 950);
    }
}
