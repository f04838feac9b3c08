//! Merged checks on real servers: the calls on the wire, and what each check of a call keeps for itself.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use redis::cmd;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep, timeout},
};
use tower_sliding_window::{
    Decision, Limiter, PartitionKey, Policy, RedisBackend,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason, Refund},
    outage::{Breaker, BreakerState},
    redis::{Merging, RedisServers},
    testing::ManualClock,
};

use super::{
    admin::Admin,
    proxy::{Cut, Passing, Proxy},
    rig::{
        HOUR, LONG_DEADLINE, TIMEOUT, alice, check, concurrently, limiter, merging_backend, policy, reason,
        wait_until,
    },
};
use crate::support::{
    observer::waker,
    scrape::{Scrape, recorder},
    server::{Engine, Server},
};

pub type Decided = Pin<Box<dyn Future<Output = Result<Decision, BackendError>> + Send>>;

pub fn user(name: &str) -> PartitionKey {
    PartitionKey::new("user", name)
}

pub fn hourly() -> Policy {
    policy("hourly", 1_000, HOUR)
}

pub async fn merging(url: &str) -> RedisBackend {
    in_mode(url, Merging::On).await
}

pub async fn in_mode(url: &str, mode: Merging) -> RedisBackend {
    RedisBackend::builder(RedisServers::single(url)).merging(mode).connect().await.unwrap()
}

/// Returns the future of a check of one unit.
pub fn one_unit(backend: &RedisBackend, key: PartitionKey) -> Decided {
    let check = Check::new([Pair::new(key, hourly(), 1)]).unwrap();
    decided(backend, check.with_deadline(Instant::now() + LONG_DEADLINE))
}

pub fn decided(backend: &RedisBackend, check: Check) -> Decided {
    let backend = backend.clone();
    Box::pin(async move { backend.check(&check).await })
}

/// Polls each future once, in order. On a runtime with one thread, none is complete then.
pub async fn start(checks: &mut [Decided]) {
    for check in checks {
        poll_fn(|context| {
            let _ = check.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }
}

/// Returns the outcomes in the order of the checks.
pub async fn outcomes(checks: Vec<Decided>) -> Vec<Result<Decision, BackendError>> {
    let mut outcomes = Vec::new();
    for check in checks.into_iter().map(tokio::spawn).collect::<Vec<_>>() {
        outcomes.push(check.await.unwrap());
    }
    outcomes
}

pub async fn used(server: &Server, key: PartitionKey) -> u32 {
    let direct = limiter(super::rig::backend(server).await, [hourly()]);
    let decision = direct.check((key, 0)).await.unwrap();
    hourly().quota().unwrap() - decision.statuses()[0].remaining()
}

fn remaining(outcome: &Result<Decision, BackendError>) -> u32 {
    outcome.as_ref().unwrap().statuses()[0].remaining()
}

/// Returns the number of script calls since the last `CONFIG RESETSTAT`.
pub fn script_calls(admin: &mut Admin) -> u64 {
    admin.calls("evalsha").all + admin.calls("eval").all
}

#[tokio::test]
async fn concurrent_checks_share_script_calls() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        for (mode, expected) in
            [(Merging::Off, 128..=129), (Merging::On, 3..=14), (Merging::Adaptive, 22..=40)]
        {
            let backend = in_mode(&server.url(), mode).await;
            let key = |i: usize| user(&format!("{mode:?} {}", i % 40));
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);
            let decisions = outcomes((0..128).map(|i| one_unit(&backend, key(i))).collect()).await;
            let calls = script_calls(&mut admin);
            // Redis may not know a script yet.
            assert!(expected.contains(&calls), "{engine:?} {mode:?}: {calls} calls");
            for i in 0..40 {
                let mut left: Vec<u32> = decisions.iter().skip(i).step_by(40).map(remaining).collect();
                left.sort_unstable();
                let last = hourly().quota().unwrap() - left.len() as u32;
                assert_eq!(
                    left,
                    (last..hourly().quota().unwrap()).collect::<Vec<_>>(),
                    "{engine:?} {mode:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn panic_of_waker_fails_no_other_check_of_call() {
    let server = Server::start(Engine::Redis);
    let backend = merging(&server.url()).await;
    let keys = |round: u32| (0..20).map(move |i| user(&format!("{round} {i}")));
    // The connection and the script.
    outcomes(keys(0).map(|key| one_unit(&backend, key)).collect()).await;
    let mut checks: Vec<Decided> = keys(1).map(|key| one_unit(&backend, key)).collect();
    // The first check is a call of its own, and the client crate wakes its caller.
    start(&mut checks[..3]).await;
    let mut fourth = checks.remove(3);
    let panics = waker(|| panic!("a waker panics"));
    assert!(fourth.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
    start(&mut checks[3..]).await;
    for outcome in outcomes(checks).await {
        assert!(outcome.unwrap().is_admitted());
    }
    assert!(fourth.await.unwrap().is_admitted());
}

/// With fewer calls, the server would wait while the thread reads, and the thread while the server decides.
#[tokio::test]
async fn one_thread_divides_different_checks_among_eight_calls() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    for (different, expected) in [(64, 24..=44), (1, 8..=9)] {
        let backend = in_mode(&server.url(), Merging::Adaptive).await;
        let key = |i: usize| user(&format!("{different} {}", i % different));
        let _ = one_unit(&backend, key(0)).await.unwrap();
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        // The first seven checks are too few in flight to be merged, and the first 15 to share a call with another key.
        let decisions = outcomes((0..64).map(|i| one_unit(&backend, key(i))).collect()).await;
        assert!(decisions.iter().all(|decision| decision.as_ref().unwrap().is_admitted()));
        let calls = script_calls(&mut admin);
        assert!(expected.contains(&calls), "{different} different checks: {calls} calls");
    }
}

#[tokio::test]
async fn lone_checks_use_check_script() {
    let server = Server::start(Engine::Redis);
    let backend = merging(&server.url()).await;
    let mut admin = Admin::at(&server);
    admin.query::<()>(&["SCRIPT", "FLUSH"]);
    admin.query::<()>(&["CONFIG", "RESETSTAT"]);
    for i in 0..20 {
        let left = remaining(&one_unit(&backend, alice()).await);
        assert_eq!(left, 999 - i, "each check is charged once");
    }
    // The check script is loaded once, and is the only one.
    assert_eq!(
        (admin.calls("evalsha").all, admin.calls("eval").all),
        (20, 1),
        "a call for each check, and one load of the script"
    );
    assert_eq!(admin.number("memory", "number_of_cached_scripts"), 1, "lone checks load no merged script");
}

#[tokio::test]
async fn merged_call_loads_unknown_script_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = merging(&server.url()).await;
        let mut admin = Admin::at(&server);
        for _ in 0..2 {
            admin.query::<()>(&["SCRIPT", "FLUSH"]);
            let _ = one_unit(&backend, user("first")).await.unwrap();
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);
            let checks = (0..20).map(|i| one_unit(&backend, user(&i.to_string()))).collect();
            assert!(outcomes(checks).await.iter().all(Result::is_ok), "{engine:?}");
            assert_eq!((admin.calls("evalsha").all, admin.calls("eval").all), (2, 1), "{engine:?}");
        }
    }
}

#[tokio::test]
async fn merged_check_keeps_own_deadline() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = merging(&server.url()).await;
        let passed = Instant::now() - Duration::from_millis(5);
        let mut checks = vec![one_unit(&backend, alice())];
        // Equal checks of two keys: of each key, every third one is late.
        for i in 0..24 {
            let key = if i % 2 == 0 { alice() } else { user("bob") };
            let check = Check::new([Pair::new(key, hourly(), 1)]).unwrap();
            let deadline = if i % 3 == 0 { passed } else { Instant::now() + LONG_DEADLINE };
            checks.push(decided(&backend, check.with_deadline(deadline)));
        }
        let outcomes = outcomes(checks).await;
        for (i, outcome) in outcomes.iter().skip(1).enumerate() {
            match outcome {
                Ok(decision) => assert!(decision.is_admitted() && i % 3 != 0, "{engine:?} {i}"),
                Err(error) => {
                    assert_eq!((error.reason(), i % 3), (Reason::DeadlineExceeded, 0), "{engine:?}")
                }
            }
        }
        let both = [used(&server, alice()).await, used(&server, user("bob")).await];
        assert_eq!(both, [9, 8], "{engine:?}");
        assert_eq!(backend.unanswered_checks(), 0, "{engine:?}");
    }
}

#[tokio::test]
async fn foreign_value_fails_only_checks_of_its_key() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = merging(&server.url()).await;
        let mut admin = Admin::at(&server);
        let foreign = [("SET", "type"), ("RPUSH", "layout")];
        for (command, name) in foreign {
            admin.query::<()>(&[command, &backend.key_name("tsw", &user(name), &hourly()), "foreign"]);
        }
        let names = ["alice", "type", "bob", "layout", "type", "alice"];
        let outcomes = outcomes(names.map(|name| one_unit(&backend, user(name))).into()).await;
        for (name, outcome) in names.iter().zip(outcomes) {
            if ["type", "layout"].contains(name) {
                assert_eq!(reason(outcome), Reason::ForeignValue, "{engine:?} {name}");
            } else {
                assert!(outcome.unwrap().is_admitted(), "{engine:?} {name}");
            }
        }
        assert_eq!(
            [used(&server, user("alice")).await, used(&server, user("bob")).await],
            [2, 1],
            "{engine:?}: only checks of other keys are charged"
        );
    }
}

#[tokio::test]
async fn full_log_fails_only_checks_of_its_key() {
    const RECORDS: u64 = (1 << 20) - 1;
    let server = Server::start(Engine::Redis);
    let clock = ManualClock::new();
    let backend = merging_backend(&server, Merging::On).with_clock(&clock);
    let unlimited = policy("p", u32::MAX, HOUR);
    let charge = |name: &str, cost| Check::new([Pair::new(user(name), unlimited.clone(), cost)]).unwrap();
    let _ = backend.check(&charge("full", 1)).await.unwrap();
    let mut admin = Admin::at(&server);
    let key = admin.only_key();
    let now = clock.now_micros();
    super::layout::write_charges_of_one(&mut admin.0, &key, &(now..now + RECORDS).collect::<Vec<_>>());
    clock.set_micros(now + RECORDS);
    let checks = [("alice", 1), ("full", 1), ("full", u32::MAX), ("full", 1), ("full", 1), ("alice", 1)];
    let charged = outcomes(checks.map(|(name, cost)| decided(&backend, charge(name, cost))).into()).await;
    // The record of the equal checks is the last one that fits.
    assert!([0, 1, 3, 4, 5].iter().all(|i| charged[*i].as_ref().unwrap().is_admitted()), "{charged:#?}");
    clock.advance(Duration::from_micros(1));
    let full = outcomes(checks.map(|(name, cost)| decided(&backend, charge(name, cost))).into()).await;
    for (i, outcome) in full.into_iter().enumerate() {
        match i {
            0 | 5 => assert!(outcome.unwrap().is_admitted(), "check {i} is of another key"),
            2 => assert!(!outcome.unwrap().is_admitted(), "a full log denies as usual"),
            _ => assert_eq!(reason(outcome), Reason::Full, "{i}"),
        }
    }
}

#[tokio::test]
async fn check_dropped_before_write_is_not_sent() {
    let server = Server::start(Engine::Redis);
    let backend = merging(&server.url()).await;
    let _ = one_unit(&backend, alice()).await.unwrap();
    let mut checks: Vec<_> = (0..10).map(|_| one_unit(&backend, alice())).collect();
    start(&mut checks).await;
    // The first one is a call of its own. The second one has opened the batch.
    checks.drain(1..4);
    let left: Vec<u32> = outcomes(checks).await.iter().map(remaining).collect();
    assert_eq!(left, [998, 997, 996, 995, 994, 993, 992], "the dropped checks are not charged");
    assert_eq!(used(&server, alice()).await, 8, "one unit before, and 7 of the checks that were kept");
    assert_eq!(backend.unanswered_checks(), 0, "a check that was not sent has no reply to wait for");
}

#[tokio::test]
async fn check_dropped_after_write_counts_as_unanswered() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let backend = merging(&proxy.url()).await;
    let ten = || (0..10).map(|_| one_unit(&backend, alice())).collect::<Vec<_>>();
    // The server knows both scripts.
    outcomes(ten()).await;
    let mut admin = Admin::at(&server);
    admin.query::<()>(&["CONFIG", "RESETSTAT"]);
    proxy.pass(Passing::HeldReplies);
    let mut checks = ten();
    start(&mut checks).await;
    // The first one is a call of its own.
    wait_until("the server does not run both calls", || script_calls(&mut admin) == 2).await;
    checks.drain(1..4);
    proxy.pass(Passing::Everything);
    let left: Vec<u32> = outcomes(checks).await.iter().map(remaining).collect();
    assert_eq!(left, [989, 985, 984, 983, 982, 981, 980], "the others have their replies");
    assert_eq!(backend.unanswered_checks(), 3, "the checks that were dropped");
    assert_eq!(Scrape::of(&recorder.handle()).get("unanswered_checks_total"), 3.0);
    assert_eq!(used(&server, alice()).await, 20, "all checks are charged");
}

#[tokio::test]
async fn merged_call_with_lost_reply_is_charged_once() {
    for cut in Cut::ALL {
        let server = Server::start(Engine::Redis);
        let proxy = Proxy::before(&server).await;
        let backend = merging(&proxy.url()).await;
        // Loads the merged script.
        let all = || (0..10).map(|_| one_unit(&backend, alice())).collect::<Vec<_>>();
        outcomes(all()).await;
        proxy.cut_every(Some(cut));
        let outcomes = outcomes(all()).await;
        // The first check is a call of its own. Half of both replies may contain all of its reply.
        let lost: Vec<_> = outcomes.into_iter().enumerate().filter(|(i, it)| *i > 0 || it.is_err()).collect();
        assert_eq!(backend.unanswered_checks(), lost.len() as u64, "{cut:?}");
        for (i, outcome) in lost {
            assert_eq!(reason(outcome), Reason::Connection, "{cut:?} {i}");
        }
        // The connection may be lost before the second call has run.
        let used = used(&server, alice()).await;
        assert!([11, 20].contains(&used), "{cut:?}: {used}");
    }
}

#[tokio::test]
async fn merged_call_is_one_outcome_for_breaker() {
    const DEADLINE: Duration = Duration::from_millis(500);
    for (mode, state) in [(Merging::Off, BreakerState::Open), (Merging::On, BreakerState::Closed)] {
        let server = Server::start(Engine::Redis);
        let backend = in_mode(&server.url(), mode).await;
        let breaker = Breaker::new(5, HOUR);
        let limiter = Limiter::builder(backend).policy(hourly()).breaker(breaker);
        let limiter = limiter.deadline(DEADLINE).build().unwrap();
        let _ = limiter.check(alice()).await.unwrap();
        // A server that has answered within the last deadline is not silent.
        sleep(DEADLINE * 5 / 4).await;
        server.signal(libc::SIGSTOP);
        let outcomes = concurrently((0..20).map(|_| limiter.check(alice()))).await;
        assert!(
            outcomes.into_iter().all(|outcome| reason(outcome) == Reason::Timeout),
            "{mode:?}: the server hangs"
        );
        assert_eq!(limiter.stats().breakers[0].state, state, "{mode:?}");
        // Two calls have failed. The next three open the breaker.
        for _ in 0..3 {
            assert_eq!(limiter.stats().breakers[0].state, state, "{mode:?}");
            limiter.check(alice()).await.unwrap_err();
        }
        assert_eq!(limiter.stats().breakers[0].state, BreakerState::Open, "{mode:?}");
    }
}

#[tokio::test]
async fn checks_in_merged_call_count_as_in_flight() {
    let server = Server::start(Engine::Redis);
    let backend = merging(&server.url()).await;
    let limiter = Limiter::builder(backend).policy(hourly()).max_checks_in_flight(10);
    let limiter = limiter.deadline(LONG_DEADLINE).build().unwrap();
    let _ = limiter.check((alice(), 0)).await.unwrap();
    let outcomes = concurrently((0..16).map(|_| limiter.check(alice()))).await;
    let reasons: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.err()).collect();
    assert_eq!(reasons.len(), 6, "10 of 16 checks are in flight: {reasons:?}");
    assert!(
        reasons.iter().all(|error| error.reason() == Reason::Overloaded && !error.was_asked()),
        "the others are not asked: {reasons:?}"
    );
    assert!(limiter.check(alice()).await.is_ok(), "all places are released");
}

#[tokio::test]
async fn full_memory_fails_only_checks_that_write() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = merging(&server.url()).await;
        let one = policy("one", 1, HOUR);
        let of_one = || check(std::slice::from_ref(&one), 1, Purpose::Charge);
        assert!(backend.check(&of_one()).await.unwrap().is_admitted(), "{engine:?}: the only unit");
        Admin::at(&server).set("maxmemory", "1");
        let mut checks = vec![decided(&backend, of_one())];
        checks.extend((0..8).map(|i| match i % 2 {
            0 => decided(&backend, of_one()),
            _ => one_unit(&backend, user(&i.to_string())),
        }));
        for (i, outcome) in outcomes(checks).await.into_iter().enumerate() {
            match i % 2 {
                0 if i > 0 => assert_eq!(reason(outcome), Reason::OutOfMemory, "{engine:?} {i}"),
                _ => assert!(!outcome.unwrap().is_admitted(), "{engine:?} {i}"),
            }
        }
    }
}

#[tokio::test]
async fn receipts_of_equal_checks_refund_own_units() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = merging(&server.url()).await;
        let all = super::rig::every_algorithm(1_000, super::rig::LONG_WINDOW);
        let reserve = check(&all, 10, Purpose::Reserve);
        let decisions = outcomes((0..9).map(|_| decided(&backend, reserve.clone())).collect()).await;
        let mut expected = 1_000 - 90;
        for (i, decision) in decisions.iter().enumerate() {
            let decision = decision.as_ref().unwrap();
            let refund = Refund::new(&reserve, decision.receipts(), &[i as u32; 4]).unwrap();
            backend.refund(&refund).await.unwrap();
            expected += 10 - i as u32;
            let peek = super::rig::peek(&backend, &all, 0).await;
            let left: Vec<u32> = peek.statuses().iter().map(|status| status.remaining()).collect();
            assert_eq!(left, [expected; 4], "{engine:?} {i}");
        }
    }
}

/// A batch whose runtime ends before it is written gives its checks back.
#[test]
fn check_survives_end_of_runtime_of_its_batch() {
    let server = Server::start(Engine::Redis);
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let backend = second.block_on(merging(&server.url()));
    let mut checks: Vec<_> = (0..6).map(|_| one_unit(&backend, alice())).collect();
    first.block_on(start(&mut checks));
    drop(first);
    let left: Vec<u32> = second.block_on(outcomes(checks)).iter().map(remaining).collect();
    assert_eq!(left.len(), 6, "every check has a decision");
    assert_eq!(second.block_on(used(&server, alice())), 6, "each check is charged once");
}

#[test]
fn undriven_runtime_blocks_no_merged_check_of_another() {
    let server = Server::start(Engine::Redis);
    let driven = Runtime::new().unwrap();
    let undriven = Builder::new_current_thread().enable_all().build().unwrap();
    let backend = driven.block_on(merging(&server.url()));
    let mut stuck: Vec<_> = (0..6).map(|_| one_unit(&backend, alice())).collect();
    undriven.block_on(start(&mut stuck));
    let checks = (0..20).map(|_| one_unit(&backend, alice())).collect();
    let outcomes =
        driven.block_on(async { timeout(TIMEOUT, outcomes(checks)).await.expect("the checks are answered") });
    assert!(outcomes.iter().all(Result::is_ok), "checks of the driven runtime are decided: {outcomes:?}");
}

#[tokio::test]
async fn namespaces_share_no_call() {
    let server = Server::start(Engine::Redis);
    let backend = merging(&server.url()).await;
    let of = |namespace: &str| {
        let builder = Limiter::builder(backend.clone()).policy(hourly()).namespace(namespace);
        builder.deadline(LONG_DEADLINE).build().unwrap()
    };
    let mut admin = Admin::at(&server);
    // The user may access the keys of one namespace only.
    let rules = ["ACL", "SETUSER", "default", "resetkeys", "~one{*"];
    let (one, other) = (of("one"), of("other"));
    let _ = one.check((alice(), 0)).await.unwrap();
    admin.query::<()>(&rules);
    let checks = (0..20).map(|i| if i % 2 == 0 { one.check(alice()) } else { other.check(alice()) });
    let outcomes = concurrently(checks).await;
    let failed = outcomes.iter().filter(|outcome| outcome.is_err());
    assert_eq!(failed.count(), 10, "only the checks of the forbidden namespace fail");
    cmd("ACL").arg(&["SETUSER", "default", "allkeys"]).exec(&mut server.connection()).unwrap();
}
