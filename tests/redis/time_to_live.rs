//! Every key ends by itself: not before everything in it has left, and not long after.

use std::time::Duration;

use tokio::time::timeout;
use tower_sliding_window::{
    Algorithm, Decision, Policy,
    backend::{Backend, Purpose},
};

use super::{
    layout::{Log, Windows, write_log, write_windows},
    look::Look,
    rig::{
        HOUR, Reserved, alice, backend, check, clocked, every_algorithm, limiter, peek, policy, remaining,
        reserve,
    },
};
use crate::support::server::{Engine, Server};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The key of every policy ends when everything in it has left, or at most a window and a second later.
fn assert_ends_in_time(engine: Engine, look: &mut Look, decision: &Decision) {
    assert!(decision.is_admitted());
    let keys = look.keys();
    assert!(keys.len() <= decision.statuses().len(), "{engine:?}");
    for status in decision.statuses() {
        let (name, window) = (status.policy().name(), status.policy().window());
        let has_left = Duration::from_micros(decision.at_micros()) + status.reset_after();
        let key = keys.iter().find(|key| key.contains(&format!("}}:{name}:")));
        let end = key.and_then(|key| end(look, key));
        let Some(end) = end else {
            // On a busy machine it may have ended since, as it should.
            let (seconds, micros): (u64, u64) = look.ask(&["TIME"]);
            let now = Duration::from_secs(seconds) + Duration::from_micros(micros);
            assert!(has_left <= now, "{engine:?}: {name} has ended");
            continue;
        };
        let latest = has_left + window + Duration::from_secs(1);
        assert!((has_left..=latest).contains(&end), "{engine:?}: {name} ends at {end:?}, not {has_left:?}");
        // The same, as a time from now.
        let left = look.time_to_live(key.unwrap()).unwrap_or_default();
        assert!(left <= status.reset_after() + window + Duration::from_secs(1), "{engine:?}: {left:?}");
    }
}

/// When a key is gone: with the millisecond after the one that it is given. None if it is gone already.
fn end(look: &mut Look, key: &str) -> Option<Duration> {
    let millis = look.expires_at(key);
    assert_ne!(millis, -1, "{key} has no end");
    (millis > 0).then(|| Duration::from_millis(millis as u64 + 1))
}

/// A key without a time to live, or with one in the wrong unit: sixty seconds that are kept for sixty thousand.
#[tokio::test]
async fn every_key_ends_after_its_window_whatever_its_length() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let seconds = Duration::from_secs;
        let policies = [
            policy("1 s", 1_000, seconds(1)),
            policy("1.000001 s", 1_000, Duration::from_micros(1_000_001)),
            policy("60 s", 1_000, seconds(60)),
            policy("1 h", 1_000, HOUR),
            policy("1 d", 1_000, DAY),
            policy("366 d", 1_000, 366 * DAY),
        ];
        let backend = backend(&server).await;
        let mut look = Look::at(&server);
        for shape in every_algorithm(1_000, HOUR) {
            look.ask::<()>(&["FLUSHALL"]);
            let precision = Duration::from_secs(8_000);
            let counted = policies.clone().map(|policy| match shape.algorithm() {
                // As coarse as it can be, or as fine.
                Algorithm::SlidingBuckets { .. } => {
                    let precision = precision.min(policy.window());
                    policy.with_algorithm(Algorithm::SlidingBuckets { precision }).unwrap()
                }
                other => policy.with_algorithm(other).unwrap(),
            });
            let limiter = limiter(backend.clone(), counted);
            for _ in 0..30 {
                let decision = limiter.check(alice(), 1).await.unwrap();
                assert_ends_in_time(engine, &mut look, &decision);
            }
        }
    }
}

#[tokio::test]
async fn a_busy_key_never_ends_before_its_last_charge_has_left() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, every_algorithm(1_000, Duration::from_millis(600)));
        let mut look = Look::at(&server);
        // Through more than one window, which has four times at which the time to live is set.
        for _ in 0..90 {
            let decision = limiter.check(alice(), 1).await.unwrap();
            assert_ends_in_time(engine, &mut look, &decision);
            tokio::time::sleep(Duration::from_millis(9)).await;
        }
    }
}

#[tokio::test]
async fn nothing_stays_of_a_key_that_is_asked_no_more() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let [log, buckets, counter, fixed] = every_algorithm(1_000, Duration::from_millis(100));
        let policies = [policy("1 ms", 1_000, Duration::from_millis(1)), log, buckets, counter, fixed];
        let limiter = limiter(backend(&server).await, policies);
        for _ in 0..30 {
            limiter.check(alice(), 1).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(Look::at(&server).keys(), [""; 0], "{engine:?}");
    }
}

/// A number that is compared with a text is never equal, and what is stored never ends.
#[tokio::test]
async fn charges_leave_at_their_microsecond_of_the_servers_own_clock() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let window = Duration::from_millis(150);
        let limiter = limiter(backend(&server).await, [policy("short", 1, window)]);
        for _ in 0..3 {
            let admitted = limiter.check(alice(), 1).await.unwrap();
            assert!(admitted.is_admitted());
            let leaves = admitted.at_micros() + window.as_micros() as u64;
            let next = loop {
                let decision = limiter.check(alice(), 1).await.unwrap();
                if decision.is_admitted() {
                    break decision;
                }
                assert!(decision.at_micros() < leaves, "{engine:?}: denied too long");
            };
            assert!(next.at_micros() >= leaves, "{engine:?}: admitted too early");
            tokio::time::sleep(window).await;
        }
    }
}

#[tokio::test]
async fn the_last_charge_leaves_at_its_microsecond_of_an_injected_clock() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("minutely", 1, Duration::from_secs(60))]);
        for _ in 0..3 {
            assert!(limiter.check(alice(), 1).await.unwrap().is_admitted(), "{engine:?}");
            clock.advance(Duration::from_micros(59_999_999));
            assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted(), "{engine:?}");
            clock.advance(Duration::from_micros(1));
        }
    }
}

/// What comes after the key has ended must not be taken for a part of it: neither below zero nor without an end.
#[tokio::test]
async fn a_charge_that_lands_after_the_key_has_ended_starts_afresh_and_ends_too() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let window = Duration::from_secs(2);
        let policies = [policy("short", 10, window)];
        let backend = backend(&server).await;
        // It has no deadline but that of whoever asks, of which the server knows nothing.
        let late = check(&policies, 3, Purpose::Charge);
        let limiter = limiter(backend.clone(), policies);
        limiter.check(alice(), 5).await.unwrap();

        server.signal(libc::SIGSTOP);
        timeout(Duration::from_millis(20), backend.check(&late)).await.expect_err("an answer");
        tokio::time::sleep(window + window / 4 + Duration::from_millis(50)).await;
        server.signal(libc::SIGCONT);

        // The late charge may come before or after this one.
        let decision = limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        assert_ends_in_time(engine, &mut look, &decision);
        assert_eq!(remaining(&limiter).await, 10 - 3 - 1, "{engine:?}");
    }
}

#[tokio::test]
async fn a_charge_on_a_key_that_was_deleted_starts_afresh_and_ends_too() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let mut look = Look::at(&server);
        for _ in 0..20 {
            limiter.check(alice(), 3).await.unwrap();
        }
        look.ask::<()>(&["FLUSHALL"]);
        let decision = limiter.check(alice(), 3).await.unwrap();
        assert_ends_in_time(engine, &mut look, &decision);
        assert_eq!(remaining(&limiter).await, 97, "{engine:?}");
    }
}

#[tokio::test]
async fn a_refund_leaves_a_key_its_time_to_live_and_an_emptied_one_no_more_than_a_window() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(1_000, HOUR);
        let limiter = limiter(backend.clone(), policies.clone());
        let mut look = Look::at(&server);
        let mut reserved = Vec::new();
        for _ in 0..30 {
            reserved.push(reserve(&backend, &policies, 3).await);
        }
        let ends = |look: &mut Look| {
            let keys = look.keys();
            keys.iter().map(|key| end(look, key)).collect::<Vec<_>>()
        };
        let before = ends(&mut look);
        // In part, from both ends and between.
        for i in [29, 0, 15, 12].into_iter().chain(0..30) {
            backend.refund(&reserved[i].refund(2)).await.unwrap();
            assert_eq!(ends(&mut look), before, "{engine:?}");
        }
        // And whole, until nothing is left.
        for i in [29, 0, 15, 12].into_iter().chain(0..30) {
            backend.refund(&reserved[i].refund(0)).await.unwrap();
            // A key whose newest record is gone has the quarter of a window of the one before it.
            for (end, before) in ends(&mut look).into_iter().zip(&before) {
                assert!(end.unwrap() <= before.unwrap() + HOUR / 4, "{engine:?}: {end:?}, before {before:?}");
            }
        }
        let keys = look.keys();
        assert_eq!(keys.len(), 4);
        for key in keys {
            let lives = look.time_to_live(&key).expect("an end");
            assert!(lives <= HOUR + Duration::from_secs(1), "{engine:?}: {key} lives {lives:?}");
        }
        // It is charged as any other.
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_ends_in_time(engine, &mut look, &decision);
    }
}

/// Hours of charges and refunds, at instants of our own: the end of the key is told by the server when it is set, and
/// moves with our clock from then on.
#[tokio::test]
async fn through_hours_a_key_lives_until_everything_has_left_and_no_window_longer() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let window = Duration::from_secs(1_000);
        let buckets = |name: &str, seconds: u64| {
            let algorithm = Algorithm::SlidingBuckets { precision: Duration::from_secs(seconds) };
            policy(name, 100_000, window).with_algorithm(algorithm).unwrap()
        };
        let mut policies = every_algorithm(100_000, window).to_vec();
        policies.extend([buckets("whole", 1_000), buckets("third", 333), buckets("fine", 1)]);
        for policy in policies {
            hours_of(engine, &server, policy).await;
        }
    }
}

async fn hours_of(engine: Engine, server: &Server, policy: Policy) {
    let mut look = Look::at(server);
    look.ask::<()>(&["FLUSHALL"]);
    let (backend, clock) = clocked(server).await;
    let (name, window) = (policy.name().to_owned(), policy.window().as_micros() as u64);
    let policies = [policy];
    let mut open: Vec<Reserved> = Vec::new();
    // In microseconds of our clock: when the key ends, and when everything that was ever charged has left.
    let (mut end, mut latest) = (0, 0);
    let mark = 9_999_999_999_999_u64;
    let marked = Some(Duration::from_millis(mark + 1));
    let mut random = 7_u64;
    for step in 0..400 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = (random >> 33) % 1_000;
        let now = clock.now_micros();
        let moved = match step % 40 {
            // All of it leaves; and to a microsecond before an edge, and across it.
            39 => now + 3 * window,
            20 => (now / window + 1) * window - 1,
            21 => now + 1,
            // The clock goes back. Then all of it is given back, and it is charged again before the clock is there.
            30 => now - window / 2 + part,
            31..35 => now + window / 100,
            _ => now + window / 6_000 * part,
        };
        clock.set_micros(moved);
        if step % 40 == 31 {
            for reserved in open.drain(..) {
                backend.refund(&reserved.refund(0)).await.unwrap();
            }
        } else if step % 3 == 2 && !open.is_empty() {
            let reserved = open.swap_remove((random >> 20) as usize % open.len());
            backend.refund(&reserved.refund(0)).await.unwrap();
        } else {
            open.push(reserve(&backend, &policies, 2).await);
        }

        let key = look.only_key();
        let what = format!("{engine:?}, {name}, step {step}");
        let told = peek(&backend, &policies, 0).await;
        let leaves = moved + told.statuses()[0].reset_after().as_micros() as u64;
        if told.statuses()[0].remaining() < 100_000 {
            latest = leaves.max(latest);
        }
        // A mark that the test has left says that it was not set again.
        if self::end(&mut look, &key) != marked {
            // With an injected clock, keys live an hour longer.
            let left = look.time_to_live(&key).unwrap() - HOUR;
            end = moved + left.as_micros() as u64;
            look.ask::<()>(&["PEXPIREAT", &key, &mark.to_string()]);
        }
        // What the test itself takes is not seen by its clock.
        let second = 1_000_000;
        if told.statuses()[0].remaining() < 100_000 {
            assert!(end + second >= leaves, "{what}: ends {} us too early", leaves - end);
        }
        assert!(end <= latest + window + second, "{what}: ends {} us late", end - latest);
    }
}

/// A record that is ahead of the clock, as after a failover, lives until it has left by that clock.
#[tokio::test]
async fn what_is_ahead_of_the_servers_own_clock_lives_until_it_has_left() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let mut look = Look::at(&server);
        let hour = HOUR.as_micros() as u64;
        for policy in every_algorithm(1_000, HOUR) {
            look.ask::<()>(&["FLUSHALL"]);
            let name = policy.name().to_owned();
            let limiter = limiter(backend.clone(), [policy]);
            let now = limiter.check(alice(), 1).await.unwrap().at_micros();
            let key = look.only_key();
            let ahead = now + hour / 2;
            let precision = hour / 8;
            let stands = if name == "buckets" { (ahead / precision + 1) * precision } else { ahead };
            match &*name {
                "log" | "buckets" => {
                    let records = [(stands - precision, 3), (stands, 4)];
                    write_log(
                        &mut look.0,
                        &key,
                        &Log { born: now, last: ahead, before: 0, records: &records },
                    );
                }
                _ => {
                    let windows = Windows { born: now, last: ahead, current: 7, previous: 0 };
                    write_windows(&mut look.0, &key, &windows);
                }
            }
            let leaves = limiter.check(alice(), 0).await.unwrap().statuses()[0].reset_after();
            look.ask::<()>(&["PEXPIRE", &key, &(leaves.as_millis() + 500).to_string()]);
            for charge in 1..20 {
                let decision = limiter.check(alice(), 1).await.unwrap();
                assert_eq!(decision.statuses()[0].remaining(), 1_000 - 7 - charge, "{engine:?} {name}");
                assert_ends_in_time(engine, &mut look, &decision);
            }
        }
    }
}
