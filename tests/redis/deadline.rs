//! Deadline exceeded: a check that reaches the server after its deadline charges nothing, and reports the reason.

use std::time::Duration;

use redis::{
    Client, Cmd, ErrorKind, Pipeline, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, ConnectionManager},
};
use tokio::time::Instant;
use tower_sliding_window::{
    Decision, Limiter, PartitionKey, Policy, RedisBackend,
    backend::{Backend, BackendError, Purpose, Reason},
    redis::{Merging, RedisServers},
};

use super::{
    admin::Admin,
    proxy::Proxy,
    rig::{
        HOUR, LONG_DEADLINE, alice, backend, check, concurrently, every_algorithm, idle, limiter,
        merging_backend, peek, policy, remaining, reserve,
    },
};
use crate::support::server::{Engine, Server};

const QUOTA: u32 = 1_000_000;

/// A deadline that a busy machine does not reach before it has sent 200 checks. The backend keeps a connection to a server that is
/// silent for this long.
const SHORT_DEADLINE: Duration = Duration::from_millis(250);

fn short_deadline_limiter(backend: impl Backend, policies: &[Policy]) -> Limiter {
    limiter_with_deadline(SHORT_DEADLINE, backend, policies)
}

fn limiter_with_deadline(deadline: Duration, backend: impl Backend, policies: &[Policy]) -> Limiter {
    let builder = Limiter::builder(backend).breaker(None).deadline(deadline);
    policies.iter().cloned().fold(builder, |builder, policy| builder.policy(policy)).build().unwrap()
}

fn user(number: u32) -> PartitionKey {
    PartitionKey::new("user", number.to_string().as_str())
}

/// Stops the server, sends checks until all have timed out, and lets the server continue.
async fn time_out_checks(server: &Server, limiter: &Limiter, checks: u32) {
    server.signal(libc::SIGSTOP);
    let pending = (0..checks).map(|i| limiter.check(user(i % 7)));
    for outcome in concurrently(pending.collect::<Vec<_>>()).await {
        // So many checks in flight may be an overload of this process.
        let error = outcome.unwrap_err();
        assert!(
            matches!(error.reason(), Reason::Timeout | Reason::Overloaded) && error.was_asked(),
            "{error}"
        );
    }
    server.signal(libc::SIGCONT);
}

/// Waits until the server has received all script calls that were sent, and returns their number.
async fn all_calls(admin: &mut Admin) -> u64 {
    let mut calls = admin.calls("evalsha").all;
    loop {
        idle().await;
        let before = std::mem::replace(&mut calls, admin.calls("evalsha").all);
        if calls == before {
            return calls;
        }
    }
}

/// Stops each server ten times while 200 checks run. Returns the numbers of script calls that it has then received, and of checks
/// without a reply.
async fn assert_no_charge_after_deadline(merging: Merging) -> Vec<[u64; 2]> {
    let mut calls = Vec::new();
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies = every_algorithm(QUOTA, HOUR);
        let backend = merging_backend(&server, merging);
        let short_deadline = short_deadline_limiter(backend.clone(), &policies);
        let long_deadline = limiter(backend.clone(), policies.clone());
        // The server knows the script, and the backend knows the server's clock.
        for i in 0..7 {
            assert!(
                long_deadline.check(user(i)).await.unwrap().is_admitted(),
                "{engine:?} {i}: the first check fits"
            );
        }
        let mut admin = Admin::at(&server);
        let mut received = 0;
        for _ in 0..10 {
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);
            time_out_checks(&server, &short_deadline, 200).await;
            received += all_calls(&mut admin).await;
            // A reply in time ends the silence of the server.
            let _ = long_deadline.peek((user(0), 0)).await.unwrap();
        }
        calls.push([received, backend.unanswered_checks()]);
        for i in 0..7 {
            for status in long_deadline.peek((user(i), 0)).await.unwrap().statuses() {
                assert_eq!(status.remaining(), QUOTA - 1, "{engine:?} {i}: {status:?}");
            }
        }
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_after_their_deadline_charge_nothing() {
    let calls = assert_no_charge_after_deadline(Merging::Off).await;
    // A check whose deadline passes before it is written is not sent. All others reach the server.
    let is_right = |[calls, unanswered]: &[u64; 2]| calls == unanswered && (1..=2_000).contains(calls);
    assert!(calls.iter().all(is_right), "as many calls as unanswered checks: {calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_checks_after_their_deadline_charge_nothing() {
    let calls = assert_no_charge_after_deadline(Merging::On).await;
    let is_right =
        |[calls, unanswered]: &[u64; 2]| (1..*unanswered / 2).contains(calls) && *unanswered <= 2_000;
    assert!(calls.iter().all(is_right), "at least two unanswered checks in a call: {calls:?}");
}

/// The backend does not know the server's clock yet when the server stops. It reads the clock before it charges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_connection_charges_nothing_after_deadline() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies = [policy("hourly", QUOTA, HOUR)];
        let client = Client::open(server.url()).unwrap();
        let supplied =
            RedisBackend::builder(RedisServers::connection(ConnectionManager::new(client).await.unwrap()))
                .lazy()
                .unwrap();
        for backend in [
            short_deadline_limiter(supplied, &policies),
            short_deadline_limiter(RedisBackend::lazy(&server.url()).unwrap(), &policies),
        ] {
            time_out_checks(&server, &backend, 50).await;
        }
        idle().await;
        assert_eq!(Admin::at(&server).keys(), [""; 0], "{engine:?}");
    }
}

fn long_deadline_limiter(backend: RedisBackend) -> Limiter {
    let builder = Limiter::builder(backend).deadline(LONG_DEADLINE);
    builder.policy(policy("hourly", 100, HOUR)).build().unwrap()
}

/// Returns the commands that three first checks of different keys, and so of different slots, have sent.
async fn calls_of_three_keys(server: &Server, supplied: RedisBackend) -> [u64; 3] {
    let limiter = long_deadline_limiter(supplied);
    let mut admin = Admin::at(server);
    let _ = limiter.check((user(0), 0)).await.unwrap();
    let mut calls = [0; 3];
    for (user, calls) in (1..).map(user).zip(&mut calls) {
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        let decision = limiter.check(user).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 99, "a check that is sent twice is charged once");
        *calls = admin.calls("evalsha").all;
    }
    admin.query::<()>(&["FLUSHALL"]);
    calls
}

#[tokio::test]
async fn connection_to_one_server_learns_clock_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let client = Client::open(server.url()).unwrap();
        let multiplexed = client.get_multiplexed_async_connection().await.unwrap();
        let manager = ConnectionManager::new(client).await.unwrap();
        let wrapped = Wrapped(manager.clone());
        for (name, supplied) in [
            (
                "multiplexed connection",
                RedisBackend::builder(RedisServers::connection(multiplexed)).lazy().unwrap(),
            ),
            ("connection manager", RedisBackend::builder(RedisServers::connection(manager)).lazy().unwrap()),
            (
                "declared by the caller",
                RedisBackend::builder(RedisServers::server_connection(wrapped)).lazy().unwrap(),
            ),
        ] {
            assert_eq!(calls_of_three_keys(&server, supplied).await, [1, 1, 1], "{engine:?} {name}");
        }
    }
}

#[tokio::test]
async fn connection_of_unknown_type_learns_clock_per_slot() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let client = Client::open(server.url()).unwrap();
        let wrapped = Wrapped(ConnectionManager::new(client).await.unwrap());
        let supplied = RedisBackend::builder(RedisServers::connection(wrapped.clone())).lazy().unwrap();
        assert_eq!(calls_of_three_keys(&server, supplied).await, [2, 2, 2], "{engine:?}");
        // A second check of a slot is sent once.
        let limiter =
            long_deadline_limiter(RedisBackend::builder(RedisServers::connection(wrapped)).lazy().unwrap());
        let _ = limiter.check(user(1)).await.unwrap();
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        let _ = limiter.check(user(1)).await.unwrap();
        assert_eq!(admin.calls("evalsha").all, 1, "{engine:?}");
    }
}

/// A connection whose type does not show where it leads.
#[derive(Clone)]
struct Wrapped(ConnectionManager);

impl ConnectionLike for Wrapped {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

#[tokio::test]
async fn peek_alone_runs_after_deadline() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(10, HOUR);
        let past = Instant::now() - Duration::from_millis(1);
        for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Overage] {
            let charge = check(&policies, 1, purpose).with_deadline(past);
            let error = backend.check(&charge).await.unwrap_err();
            assert_eq!(error.reason(), Reason::DeadlineExceeded, "{engine:?} {purpose:?}");
        }
        assert_eq!(Admin::at(&server).keys(), [""; 0], "{engine:?}");
        assert_eq!(backend.unanswered_checks(), 0, "the server answered these checks");

        // A peek gets its decision after the deadline.
        let peeked = backend.check(&check(&policies, 11, Purpose::Peek).with_deadline(past)).await.unwrap();
        assert!(!peeked.is_admitted(), "{engine:?}: a cost above the quota is denied");
    }
}

/// Returns what remains of each policy.
async fn left(backend: &RedisBackend, policies: &[Policy]) -> Vec<u32> {
    peek(backend, policies, 0).await.statuses().iter().map(|status| status.remaining()).collect()
}

#[tokio::test]
async fn changes_after_their_deadline_are_refused() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(10, HOUR);
        let reserved = reserve(&backend, &policies, 4).await;
        let past = Instant::now() - Duration::from_millis(1);
        let refund = reserved.refund(0);
        let refunded = backend.refund(&refund.clone().with_deadline(past)).await;
        let reset = backend.reset(&check(&policies, 0, Purpose::Charge).with_deadline(past)).await;
        let reasons = [refunded.map(drop), reset].map(|outcome| outcome.map_err(|error| error.reason()));
        assert_eq!(reasons, [Err(Reason::DeadlineExceeded); 2], "{engine:?}");
        assert_eq!(left(&backend, &policies).await, [6; 4], "{engine:?}: nothing has changed");

        // In time, they change the same pairs. A change that was refused may be sent again.
        let future = Instant::now() + LONG_DEADLINE;
        backend.refund(&refund.with_deadline(future)).await.unwrap();
        assert_eq!(left(&backend, &policies).await, [10; 4], "{engine:?}");
        reserve(&backend, &policies, 4).await;
        backend.reset(&check(&policies, 0, Purpose::Charge).with_deadline(future)).await.unwrap();
        assert_eq!(left(&backend, &policies).await, [10; 4], "{engine:?}");
    }
}

/// A server hangs with refunds, overages and resets that it has not read, and continues after their deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_hanging_server_never_run_late() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(10, HOUR);
        let reserved = reserve(&backend, &policies, 4).await;
        // The server knows all scripts.
        backend.refund(&reserved.refund(3)).await.unwrap();
        backend.reset(&check(&[policy("other", 1, HOUR)], 0, Purpose::Charge)).await.unwrap();
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        server.signal(libc::SIGSTOP);
        let deadline = Instant::now() + SHORT_DEADLINE;
        let refund = reserved.refund(0).with_deadline(deadline);
        let overage = check(&policies, 2, Purpose::Overage).with_deadline(deadline);
        let reset = check(&policies, 0, Purpose::Charge).with_deadline(deadline);
        let all =
            async { tokio::join!(backend.refund(&refund), backend.check(&overage), backend.reset(&reset)) };
        assert!(tokio::time::timeout_at(deadline, all).await.is_err(), "{engine:?}");
        server.signal(libc::SIGCONT);
        assert_eq!(all_calls(&mut admin).await, 3, "{engine:?}: the server has received the calls");
        assert_eq!(left(&backend, &policies).await, [7; 4], "{engine:?}: nothing has changed");
    }
}

/// A connection that answers every command with the same value or error.
#[derive(Clone)]
struct ConstantReply(RedisResult<Value>);

impl ConstantReply {
    fn backend(reply: RedisResult<Value>) -> RedisBackend {
        RedisBackend::builder(RedisServers::connection(Self(reply))).lazy().unwrap()
    }
}

impl ConnectionLike for ConstantReply {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { self.0.clone() })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { Ok(vec![self.0.clone()?]) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn unreadable_reply_counts_as_unanswered_check() {
    let policies = [policy("hourly", 10, HOUR)];
    let values = [Value::Nil, Value::Int(1), Value::BulkString(b"OK".into())];
    let not_redis = Err((ErrorKind::Parse, "no reply of Redis").into());
    for (count, reply) in (1..).zip(values.map(Ok).into_iter().chain([not_redis])) {
        let backend = ConstantReply::backend(reply);
        let charge = check(&policies, 1, Purpose::Charge);
        for _ in 0..count {
            assert_eq!(
                backend.check(&charge).await.unwrap_err().reason(),
                Reason::BrokenReply,
                "{count}: the reply is no decision"
            );
        }
        // A peek charges nothing, whatever the reply is.
        backend.check(&check(&policies, 1, Purpose::Peek)).await.unwrap_err();
        assert_eq!(
            backend.unanswered_checks(),
            count,
            "each charge without a readable reply counts, and no peek"
        );
    }
}

#[tokio::test]
async fn check_that_is_not_sent_is_not_unanswered() {
    let backend = ConstantReply::backend(Ok(Value::Nil));
    let limiter = Limiter::builder(backend.clone()).policy(policy("hourly", 10, HOUR)).build().unwrap();
    let mut sent = 0;
    for _ in 0..20 {
        let error = limiter.check(alice()).await.unwrap_err();
        assert_eq!(error.reason(), Reason::BrokenReply);
        sent += u64::from(error.was_asked());
    }
    assert!((1..20).contains(&sent), "the circuit breaker opens: {sent} checks were sent");
    assert_eq!(backend.unanswered_checks(), sent);
}

#[tokio::test]
async fn check_within_deadline_is_sent_once() {
    // Server and client share a clock here. The backend measures only the short round trip.
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let proxy = Proxy::before(&server).await;
        let backend = RedisBackend::lazy(&proxy.url()).unwrap();
        let limiter =
            limiter_with_deadline(Duration::from_secs(5), backend, &[policy("hourly", 1_000, HOUR)]);
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        for i in 1..=50 {
            let outcome: Result<Decision, BackendError> = limiter.check(alice()).await;
            assert_eq!(outcome.unwrap().statuses()[0].remaining(), 1_000 - i, "{engine:?}");
        }
        let calls = admin.calls("evalsha").all + admin.calls("eval").all;
        assert_eq!(calls, 51, "{engine:?}: 50 checks, and one script load");
        assert_eq!(remaining(&limiter).await, 950, "{engine:?}: each check is charged once");
    }
}
