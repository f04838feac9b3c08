//! Several runtimes that share a backend: one that has ended, and one that is not driven any more.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
    time::sleep,
};
use tower_sliding_window::{
    Limiter, PartitionKey, Policy, RedisBackend,
    redis::{Merging, RedisServers},
};

use super::{
    admin::Admin,
    merging::in_mode,
    rig::{HOUR, alice, concurrently, limiter, policy},
};
use crate::support::{
    cluster::Cluster,
    server::{Engine, Server},
};

/// Longer than the time limit of an attempt to connect, which is the longest of all.
const LIMIT: Duration = Duration::from_millis(1_100);

/// A busy machine exceeds the default deadline of 100 ms. The deadline is shorter than an attempt to connect, so that a check that
/// waits for one fails.
const DEADLINE: Duration = Duration::from_millis(900);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs a future outside tokio.
fn block_on_std<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Polls a future once.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) {
    poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// Makes 40 checks, one after another.
async fn checks(limiter: &Limiter) {
    for check in 0..40 {
        let decision = limiter.check(alice()).await;
        assert!(decision.is_ok(), "check {check}: {decision:?}");
    }
}

fn with_deadline(backend: RedisBackend) -> Limiter {
    let builder = Limiter::builder(backend).policy(policy("hourly", 1_000, HOUR)).breaker(None);
    builder.deadline(DEADLINE).build().unwrap()
}

/// Starts a check on a runtime, runs the tasks of the runtime for a few rounds, and then drives it no more. After the time
/// limit, all checks of another runtime must be answered. The rounds are too few for a complete connection.
fn test_undriven(rounds: std::ops::RangeInclusive<u32>, backend: impl Fn() -> RedisBackend) {
    for rounds in rounds {
        let limiter = with_deadline(backend());
        let undriven = runtime();
        let mut check = Box::pin(limiter.check(alice()));
        undriven.block_on(async {
            poll_once(check.as_mut()).await;
            for _ in 0..rounds {
                yield_now().await;
            }
        });
        runtime().block_on(async {
            // The time limit of the attempt passes, on the clock of the backend.
            sleep(LIMIT).await;
            checks(&limiter).await;
        });
        drop(check);
    }
}

#[test]
fn undriven_connect_blocks_no_other_runtime() {
    let server = Server::start(Engine::Redis);
    test_undriven(0..=1, || RedisBackend::lazy(&server.url()).unwrap());
}

/// Their calls are never written, and count as unwritten.
#[test]
fn undriven_merged_checks_block_no_other_runtime() {
    let server = Server::start(Engine::Redis);
    for rounds in 0..=3 {
        let driven = runtime();
        let limiter = with_deadline(driven.block_on(in_mode(&server.url(), Merging::Adaptive)));
        let start = |user: usize| tokio::spawn(limiter.check(PartitionKey::new("user", user.to_string())));
        let undriven = runtime();
        let _checks = undriven.block_on(async {
            let checks: Vec<_> = (0..40).map(start).collect();
            for _ in 0..rounds {
                yield_now().await;
            }
            checks
        });
        driven.block_on(async {
            for check in (0..40).map(start).collect::<Vec<_>>() {
                assert!(check.await.unwrap().is_ok(), "{rounds} rounds");
            }
        });
    }
}

#[test]
fn undriven_refresh_blocks_no_other_runtime() {
    let cluster = Cluster::start(Engine::Redis);
    test_undriven(0..=3, || {
        RedisBackend::builder(RedisServers::cluster(cluster.nodes.iter().map(Server::url))).lazy().unwrap()
    });
}

#[test]
fn undriven_script_load_blocks_no_other_check() {
    let server = Server::start(Engine::Redis);
    let (driven, undriven) = (runtime(), runtime());
    let limiter = limiter(
        // Merged checks would use two scripts.
        driven.block_on(in_mode(&server.url(), Merging::Off)),
        [policy("hourly", 1_000, HOUR)],
    );
    let mut admin = Admin::at(&server);
    admin.query::<()>(&["SCRIPT", "FLUSH"]);
    admin.query::<()>(&["CONFIG", "RESETSTAT"]);
    let mut check = Box::pin(limiter.check(alice()));
    // The server does not know the script. The second poll loads it.
    for _ in 0..2 {
        undriven.block_on(poll_once(check.as_mut()));
        // The connection belongs to the driven runtime, which reads the reply.
        driven.block_on(async { sleep(Duration::from_millis(100)).await });
    }
    assert_eq!(
        (admin.calls("evalsha").failed, admin.calls("eval").all),
        (1, 1),
        "the check has sent the script"
    );
    admin.query::<()>(&["SCRIPT", "FLUSH"]);
    driven.block_on(async {
        let waiting = concurrently((0..40).map(|_| limiter.check(alice())));
        let outcomes = waiting.await;
        assert!(outcomes.iter().all(Result::is_ok), "the load is replaced: {outcomes:?}");
    });
    assert_eq!(admin.calls("eval").all, 2, "one of the checks loads the script");
    drop(check);
}

/// As consecutive tests do, each with a runtime of its own.
fn test_ended(backend: impl Fn() -> RedisBackend) {
    let limiter = limiter(backend(), [policy("hourly", 1_000, HOUR)]);
    for runtimes in 0..5 {
        let multi_thread = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let runtime = if runtimes % 2 == 0 { runtime() } else { multi_thread() };
        let decision = runtime.block_on(limiter.check(alice()));
        assert!(decision.is_ok(), "runtime {runtimes}: {decision:?}");
    }
}

#[test]
fn first_check_after_ended_runtime_succeeds() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        test_ended(|| RedisBackend::lazy(&server.url()).unwrap());
        test_ended(|| RedisBackend::lazy(&format!("{}?protocol=resp2", server.url())).unwrap());
        let configuration = format!("sentinel monitor limits 127.0.0.1 {} 1\n", server.port());
        let sentinel = Server::sentinel(engine, &configuration);
        test_ended(|| {
            RedisBackend::builder(RedisServers::sentinel("redis://limits/", [sentinel.url()])).lazy().unwrap()
        });
    }
}

#[test]
fn first_cluster_check_after_ended_runtime_succeeds() {
    let cluster = Cluster::start(Engine::Redis);
    test_ended(|| RedisBackend::builder(RedisServers::cluster([cluster.nodes[0].url()])).lazy().unwrap());
}

/// The first runtime ends during an attempt to connect. The backend does not wait for that attempt.
#[test]
fn check_survives_end_of_runtime_that_connects() {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(RedisBackend::lazy(&server.url()).unwrap(), [policy("hourly", 1_000, HOUR)]);
    for _ in 0..4 {
        let first = runtime();
        let mut check = Box::pin(limiter.check(alice()));
        first.block_on(poll_once(check.as_mut()));
        drop((first, check));
        let decision = runtime().block_on(limiter.check(alice()));
        assert!(decision.is_ok(), "{decision:?}");
    }
}

/// The thread of the units in flight has a runtime and a clock of its own.
#[test]
fn drain_outside_tokio_or_with_paused_time_waits_for_releases() {
    let server = Server::start(Engine::Redis);
    let (runtime, paused) =
        (runtime(), Builder::new_current_thread().enable_all().start_paused(true).build());
    let exports = Policy::in_flight("exports", 1).unwrap().hold_time(HOUR).unwrap();
    let limiter = limiter(runtime.block_on(in_mode(&server.url(), Merging::Off)), [exports]);
    let acquire = || runtime.block_on(limiter.check(alice())).unwrap();
    drop(acquire());
    block_on_std(limiter.drain());
    let held = acquire();
    assert!(held.is_admitted(), "the unit is released");
    paused.unwrap().block_on(async {
        drop(held);
        limiter.drain().await;
    });
    assert!(acquire().is_admitted(), "the unit is released");
}

/// A release that is given up ends the wait, although no call does.
#[test]
fn drain_outside_tokio_ends_without_server() {
    let server = Server::start(Engine::Redis);
    let runtime = runtime();
    let exports = Policy::in_flight("exports", 2).unwrap().hold_time(Duration::from_secs(1)).unwrap();
    let backend = runtime.block_on(in_mode(&server.url(), Merging::Off));
    let limiter = Limiter::builder(backend).policy(exports).breaker(None).deny_cache(None);
    let limiter = limiter.deadline(Duration::from_millis(200)).build().unwrap();
    let held = runtime.block_on(limiter.check(alice())).unwrap();
    // Whether this check has run is not known.
    server.signal(libc::SIGSTOP);
    assert!(runtime.block_on(limiter.check(alice())).is_err());
    drop(server);
    drop(held);
    let (ended, is_drained) = mpsc::channel();
    thread::spawn(move || {
        block_on_std(limiter.drain());
        let _ = ended.send(());
    });
    is_drained.recv_timeout(Duration::from_secs(30)).expect("the drain ends");
}
