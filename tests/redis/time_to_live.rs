//! Time to live: every key expires, not before its charges have expired, and not long after.

use std::time::Duration;

use tokio::time::timeout;
use tower_sliding_window::{
    Algorithm, Decision, Policy,
    backend::{Backend, Purpose},
    policy::Rate,
};

use super::{
    admin::Admin,
    layout::{GENERATION, Log, PLAIN_TOKENS_SIZE, Windows, write_log, write_windows},
    rig::{
        HOUR, Reserved, alice, backend, check, concurrently, every_algorithm, every_type,
        every_type_with_window, limiter, peek, policy, remaining, reserve, wait_until, with_manual_clock,
    },
};
use crate::support::{
    key_name::KeyName,
    server::{Engine, Server},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An expiry that no script sets, in milliseconds of Unix time. A test sets it, to find out whether a script has set another one since.
const MARKER: i64 = 9_999_999_999_999;

/// Asserts that the key of every policy expires with its charges, or at most a window and a second later.
fn assert_expires_in_time(engine: Engine, admin: &mut Admin, decision: &Decision) {
    assert!(decision.is_admitted(), "{engine:?}: only a charge sets the time to live: {decision:?}");
    let keys = admin.keys();
    assert!(keys.len() <= decision.statuses().len(), "{engine:?}");
    for status in decision.statuses() {
        let (name, window) = (status.policy().name(), window_of(status.policy()));
        let expired_at = Duration::from_micros(decision.at_micros()) + status.reset_after();
        let key = keys.iter().find(|key| KeyName::parse(key).is_some_and(|parsed| parsed.policy == name));
        let end = key.and_then(|key| expiry_of(admin, key));
        let Some(end) = end else {
            // On a busy machine, the key may have expired in the meantime.
            let (seconds, micros): (u64, u64) = admin.query(&["TIME"]);
            let now = Duration::from_secs(seconds) + Duration::from_micros(micros);
            assert!(expired_at <= now, "{engine:?}: {name} expired too early");
            continue;
        };
        let latest = expired_at + window + Duration::from_secs(1);
        assert!(
            (expired_at..=latest).contains(&end),
            "{engine:?}: {name} expires at {end:?}, not {expired_at:?}"
        );
        // The time to live confirms it.
        let rest = admin.time_to_live(key.unwrap()).unwrap_or_default();
        assert!(rest <= status.reset_after() + window + Duration::from_secs(1), "{engine:?}: {rest:?}");
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Returns the window of a policy, or how long its units count otherwise.
fn window_of(policy: &Policy) -> Duration {
    let without = match policy.algorithm() {
        Algorithm::CalendarPeriod { .. } => 366 * DAY,
        // The capacity of the token buckets returns within an hour.
        _ => HOUR,
    };
    policy.window().unwrap_or(without)
}

/// Returns when a key disappears: the millisecond after its expiry. None if it has already disappeared.
fn expiry_of(admin: &mut Admin, key: &str) -> Option<Duration> {
    let millis = admin.expires_at(key);
    assert_ne!(millis, -1, "{key} has no expiry");
    (millis > 0).then(|| Duration::from_millis(millis as u64 + 1))
}

/// Returns the time to live that a script has set on an injected clock. `None` if no script has set it since the last call of this function.
fn lifetime_set(admin: &mut Admin, key: &str) -> Option<Duration> {
    if admin.expires_at(key) == MARKER {
        return None;
    }
    // With an injected clock, keys live an hour longer.
    let lives = admin.time_to_live(key).expect("a time to live") - HOUR;
    admin.query::<()>(&["PEXPIREAT", key, &MARKER.to_string()]);
    Some(lives)
}

/// Returns whether a script has set this time to live. The server's own clock moves before the reading.
fn is_lifetime(set: Option<Duration>, expected: Option<Duration>) -> bool {
    match (set, expected) {
        (Some(set), Some(expected)) => (expected - minutes(1)..=expected).contains(&set),
        (set, expected) => set == expected,
    }
}

/// Detects a missing time to live, or one in the wrong unit, such as a number of milliseconds used as seconds.
#[tokio::test]
async fn every_key_expires_after_its_window() {
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
        let mut admin = Admin::at(&server);
        for shape in every_type(1_000, HOUR) {
            admin.query::<()>(&["FLUSHALL"]);
            let precision = Duration::from_secs(8_000);
            let counted = policies.clone().map(|policy| match shape.algorithm() {
                // The coarsest or the finest possible buckets.
                Algorithm::SlidingBuckets { .. } => {
                    let precision = precision.min(policy.window().unwrap());
                    policy.with_algorithm(Algorithm::SlidingBuckets { precision }).unwrap()
                }
                other => policy.with_algorithm(other).unwrap(),
            });
            let limiter = limiter(backend.clone(), counted);
            for _ in 0..30 {
                let decision = limiter.check(alice()).await.unwrap();
                assert_expires_in_time(engine, &mut admin, &decision);
            }
        }
    }
}

#[tokio::test]
async fn busy_key_does_not_expire_before_its_last_charge() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, every_type(1_000, Duration::from_millis(600)));
        let mut admin = Admin::at(&server);
        // Charges set the time to live four times per window.
        for _ in 0..90 {
            let decision = limiter.check(alice()).await.unwrap();
            assert_expires_in_time(engine, &mut admin, &decision);
            // So far apart that the charges cover more than one window of the server's clock.
            tokio::time::sleep(Duration::from_millis(9)).await;
        }
    }
}

#[tokio::test]
async fn unused_keys_leave_no_data() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let [log, buckets, counter, fixed, tokens] =
            every_type_with_window(1_000, Duration::from_millis(100));
        let policies =
            [policy("1 ms", 1_000, Duration::from_millis(1)), log, buckets, counter, fixed, tokens];
        let limiter = limiter(backend(&server).await, policies);
        for _ in 0..30 {
            let _ = limiter.check(alice()).await.unwrap();
        }
        let mut admin = Admin::at(&server);
        wait_until(&format!("{engine:?}: a key does not expire"), || admin.keys().is_empty()).await;
    }
}

/// Detects a comparison of a number with a string in Lua, after which no charge would expire.
#[tokio::test]
async fn charges_expire_exactly_on_server_clock() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let window = Duration::from_millis(150);
        let limiter = limiter(backend(&server).await, [policy("short", 1, window)]);
        for _ in 0..3 {
            let admitted = limiter.check(alice()).await.unwrap();
            assert!(admitted.is_admitted(), "{engine:?}: the only unit");
            let expiry = admitted.at_micros() + window.as_micros() as u64;
            let next = loop {
                let decision = limiter.check(alice()).await.unwrap();
                if decision.is_admitted() {
                    break decision;
                }
                assert!(decision.at_micros() < expiry, "{engine:?}: denied too long");
            };
            assert!(next.at_micros() >= expiry, "{engine:?}: admitted too early");
            // The charge leaves the window of the server's clock.
            tokio::time::sleep(window).await;
        }
    }
}

#[tokio::test]
async fn charges_expire_exactly_on_injected_clock() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("minutely", 1, Duration::from_secs(60))]);
        for _ in 0..3 {
            assert!(limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}");
            clock.advance(Duration::from_micros(59_999_999));
            assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}");
            clock.advance(Duration::from_micros(1));
        }
    }
}

/// A charge after the expiry of its key starts a new key: usage is not negative, and the key expires.
#[tokio::test]
async fn charge_after_key_expiry_starts_new_key() {
    concurrently(Engine::ALL.map(|engine| async move {
        let server = Server::start(engine);
        // A busy machine makes the two charges within a window.
        let window = Duration::from_secs(8);
        let policies = [policy("short", 10, window)];
        let backend = backend(&server).await;
        // The check itself has no deadline; only the caller gives up.
        let delayed = check(&policies, 3, Purpose::Charge);
        let limiter = limiter(backend.clone(), policies);
        let _ = limiter.check((alice(), 5)).await.unwrap();

        server.signal(libc::SIGSTOP);
        timeout(Duration::from_millis(20), backend.check(&delayed)).await.expect_err("an answer");
        // The key expires on the server's clock.
        tokio::time::sleep(window + window / 4 + Duration::from_millis(50)).await;
        server.signal(libc::SIGCONT);

        // The delayed charge may run before or after this one.
        let decision = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        assert_expires_in_time(engine, &mut admin, &decision);
        assert_eq!(remaining(&limiter).await, 10 - 3 - 1, "{engine:?}");
    }))
    .await;
}

#[tokio::test]
async fn charge_after_key_deletion_starts_new_key() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let mut admin = Admin::at(&server);
        for _ in 0..20 {
            let _ = limiter.check((alice(), 3)).await.unwrap();
        }
        admin.query::<()>(&["FLUSHALL"]);
        let decision = limiter.check((alice(), 3)).await.unwrap();
        assert_expires_in_time(engine, &mut admin, &decision);
        assert_eq!(remaining(&limiter).await, 97, "{engine:?}");
    }
}

#[tokio::test]
async fn refund_keeps_time_to_live_within_window() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(1_000, HOUR);
        let limiter = limiter(backend.clone(), policies.clone());
        let mut admin = Admin::at(&server);
        let mut reserved = Vec::new();
        for _ in 0..30 {
            reserved.push(reserve(&backend, &policies, 3).await);
        }
        let expiries = |admin: &mut Admin| {
            let keys = admin.keys();
            keys.iter().map(|key| expiry_of(admin, key)).collect::<Vec<_>>()
        };
        let before = expiries(&mut admin);
        // Refunds of parts, at both ends and between.
        for i in [29, 0, 15, 12].into_iter().chain(0..30) {
            backend.refund(&reserved[i].refund(2)).await.unwrap();
            assert_eq!(expiries(&mut admin), before, "{engine:?}");
        }
        // Refunds of the rest, until the key is empty.
        for i in [29, 0, 15, 12].into_iter().chain(0..30) {
            backend.refund(&reserved[i].refund(0)).await.unwrap();
            // A key without its newest record has the quarter of a window of the previous record.
            for (end, before) in expiries(&mut admin).into_iter().zip(&before) {
                assert!(end.unwrap() <= before.unwrap() + HOUR / 4, "{engine:?}: {end:?}, before {before:?}");
            }
        }
        let keys = admin.keys();
        assert_eq!(keys.len(), 4, "{engine:?}: a key for each policy");
        for key in keys {
            let lives = admin.time_to_live(&key).expect("a time to live");
            assert!(lives <= HOUR + Duration::from_secs(1), "{engine:?}: {key} lives {lives:?}");
        }
        // The emptied keys can be charged again.
        let decision = limiter.check(alice()).await.unwrap();
        assert_expires_in_time(engine, &mut admin, &decision);
    }
}

/// Otherwise, a key whose units return sooner than before would be kept for the longer time.
#[tokio::test]
async fn faster_rate_shortens_time_to_live_of_token_bucket() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let mut admin = Admin::at(&server);
        let lives_after = [(1, 500, 999, 1_000), (100, 1, 9, 11)];
        for (units_per_minute, cost, at_least, at_most) in lives_after {
            let rate = Rate::new(units_per_minute, minutes(1));
            let limiter = limiter(backend.clone(), [Policy::token_bucket("bucket", 1_000, rate).unwrap()]);
            assert!(limiter.check((alice(), cost)).await.unwrap().is_admitted(), "{engine:?}");
            let key = admin.only_key();
            let lives = admin.time_to_live(&key).expect("a time to live");
            assert!(
                (minutes(at_least)..=minutes(at_most)).contains(&lives),
                "{engine:?}, {units_per_minute} per minute: {lives:?}"
            );
        }
    }
}

/// A charge of a token bucket, and what it stores. All numbers are units or minutes.
struct BucketCharge {
    /// The time since the first charge.
    at: u64,
    purpose: Purpose,
    cost: u32,
    /// The time in which all units return.
    returns_in: u64,
    /// The time to live that the charge sets. `None` if it changes the value in place.
    lives: Option<u64>,
    /// The stored instant at which the key expires, since the first charge. `None` with receipts.
    expires: Option<u64>,
}

/// Makes these charges of a token bucket of 1,000 units, of which one returns per minute.
async fn assert_lives(engine: Engine, charges: impl IntoIterator<Item = BucketCharge>) {
    let server = Server::start(engine);
    let mut admin = Admin::at(&server);
    let (backend, clock) = with_manual_clock(&server).await;
    let policies = [Policy::token_bucket("bucket", 1_000, Rate::new(1, minutes(1))).unwrap()];
    let begin = clock.now_micros();
    let instant = |after: u64| begin + minutes(after).as_micros() as u64;
    for BucketCharge { at, purpose, cost, returns_in, lives, expires } in charges {
        clock.set_micros(instant(at));
        let decision = backend.check(&check(&policies, cost, purpose)).await.unwrap();
        let what = format!("{engine:?}: {cost} units after {at} minutes");
        assert_eq!(decision.statuses()[0].reset_after(), minutes(returns_in), "{what}");

        let key = admin.only_key();
        let (set, expected) = (lifetime_set(&mut admin, &key), lives.map(minutes));
        assert!(is_lifetime(set, expected), "{what}: the time to live is {set:?}, not {expected:?}");

        let value: Vec<u8> = admin.query(&["GET", &key]);
        let is_plain = value.len() == PLAIN_TOKENS_SIZE;
        let stored = value.last_chunk().filter(|_| is_plain).map(|bytes| u64::from_le_bytes(*bytes));
        assert_eq!(stored, expires.map(instant), "{what}: the stored instant");
    }
}

#[tokio::test]
async fn token_bucket_with_receipts_expires_with_its_units() {
    for engine in Engine::ALL {
        let charges = [
            (0, Purpose::Reserve, 100, 100),
            (30, Purpose::Reserve, 50, 120),
            // A charge without a receipt keeps the form.
            (30, Purpose::Charge, 7, 127),
            // The clock is behind the last charge by 20 minutes.
            (10, Purpose::Reserve, 1, 148),
            (40, Purpose::Debit, 1_500, 1_618),
            // All units have returned.
            (2_000, Purpose::Reserve, 1, 1),
        ];
        let charges = charges.map(|(at, purpose, cost, returns_in)| {
            let lives = Some(returns_in);
            BucketCharge { at, purpose, cost, returns_in, lives, expires: None }
        });
        assert_lives(engine, charges).await;
    }
}

/// A charge keeps the key for twice the time in which its units return. So most of the later ones need not set when it expires.
#[tokio::test]
async fn token_bucket_without_receipts_keeps_its_expiry() {
    for engine in Engine::ALL {
        let charges = [
            (0, 100, 100, Some(200), 200),
            // The units return one minute before the key expires.
            (0, 99, 199, None, 200),
            // They would return after it.
            (50, 52, 201, Some(402), 452),
            // All units have returned, and the key has not expired.
            (440, 10, 10, None, 452),
            (440, 20, 30, Some(60), 500),
            // The clock is behind the last charge.
            (420, 5, 55, None, 500),
            (430, 30, 75, Some(150), 580),
            // Longer by the time of a full capacity, which is shorter than that of the units.
            (440, 1_400, 1_465, Some(2_465), 2_905),
            // The usage saturates at twice the capacity.
            (450, 1_300, 2_000, None, 2_905),
        ];
        let charges = charges.map(|(at, cost, returns_in, lives, expires)| {
            let purpose = if cost > 1_000 { Purpose::Overage } else { Purpose::Charge };
            BucketCharge { at, purpose, cost, returns_in, lives, expires: Some(expires) }
        });
        assert_lives(engine, charges).await;
    }
}

/// A debit beyond the capacity keeps its key for longer than a full capacity takes to return.
#[tokio::test]
async fn refund_of_debit_shortens_time_to_live_of_token_bucket() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let policies = [Policy::token_bucket("bucket", 1_000, Rate::new(1, minutes(1))).unwrap()];
        // The cost, the units that stay, the minutes between the debit and the refund, and the time to live that the refund sets.
        let cases = [
            (1_500, 0, 0, Some(1_000)),
            (1_500, 0, 100, Some(900)),
            // The key already expires sooner than the time of a full capacity from now.
            (1_500, 0, 1_100, None),
            (1_500, 200, 100, None),
            (1_000, 0, 100, None),
            (600, 0, 0, None),
        ];
        for (cost, used, after, lives) in cases {
            admin.query::<()>(&["FLUSHALL"]);
            let check = check(&policies, cost, Purpose::Debit);
            let decision = backend.check(&check).await.unwrap();
            let key = admin.only_key();
            lifetime_set(&mut admin, &key);
            clock.advance(minutes(after));
            backend.refund(&Reserved { check, decision }.refund(used)).await.unwrap();
            let (set, expected) = (lifetime_set(&mut admin, &key), lives.map(minutes));
            let what = format!("{engine:?}: {cost} units after {after} minutes");
            assert!(is_lifetime(set, expected), "{what}: the time to live is {set:?}, not {expected:?}");
            let left = u64::from(used).saturating_sub(after) as u32;
            assert_eq!(peek(&backend, &policies, 0).await.statuses()[0].remaining(), 1_000 - left, "{what}");
        }
    }
}

/// Hours of charges and refunds on a manual clock. The test reads the expiry from the server when a script sets it.
#[tokio::test]
async fn key_outlives_its_charges_by_at_most_a_window() {
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
            run_for_hours(engine, &server, policy).await;
        }
    }
}

async fn run_for_hours(engine: Engine, server: &Server, policy: Policy) {
    let mut admin = Admin::at(server);
    admin.query::<()>(&["FLUSHALL"]);
    let (backend, clock) = with_manual_clock(server).await;
    let (name, window) = (policy.name().to_owned(), policy.window().unwrap().as_micros() as u64);
    let policies = [policy];
    let mut open: Vec<Reserved> = Vec::new();
    // In microseconds of the manual clock: the expiry of the key, and the expiry of the last charge.
    let (mut end, mut latest) = (0, 0);
    let mut random = 7_u64;
    for step in 0..400 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = (random >> 33) % 1_000;
        let now = clock.now_micros();
        let moved = match step % 40 {
            // All charges expire. Then the clock moves to a microsecond before a window boundary, and across it.
            39 => now + 3 * window,
            20 => (now / window + 1) * window - 1,
            21 => now + 1,
            // The clock goes back. Then all charges are refunded, and new ones follow before the clock has caught up.
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

        let key = admin.only_key();
        let what = format!("{engine:?}, {name}, step {step}");
        let decision = peek(&backend, &policies, 0).await;
        let expiry = moved + decision.statuses()[0].reset_after().as_micros() as u64;
        if decision.statuses()[0].remaining() < 100_000 {
            latest = expiry.max(latest);
        }
        if let Some(lives) = lifetime_set(&mut admin, &key) {
            end = moved + lives.as_micros() as u64;
        }
        // The manual clock does not include the time that the test takes.
        let second = 1_000_000;
        if decision.statuses()[0].remaining() < 100_000 {
            assert!(end + second >= expiry, "{what}: expires {} us too early", expiry - end);
        }
        assert!(end <= latest + window + second, "{what}: expires {} us late", end - latest);
    }
}

/// After a failover, a record may be ahead of the server's clock. It lives until it expires on that clock.
#[tokio::test]
async fn future_records_live_until_they_expire() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let mut admin = Admin::at(&server);
        let hour = HOUR.as_micros() as u64;
        for policy in every_algorithm(1_000, HOUR) {
            admin.query::<()>(&["FLUSHALL"]);
            let name = policy.name().to_owned();
            let limiter = limiter(backend.clone(), [policy]);
            let now = limiter.check(alice()).await.unwrap().at_micros();
            let key = admin.only_key();
            let ahead = now + hour / 2;
            let precision = hour / 8;
            let record_at = if name == "buckets" { (ahead / precision + 1) * precision } else { ahead };
            match &*name {
                "log" | "buckets" => {
                    let records = [(record_at - precision, 3), (record_at, 4)];
                    write_log(
                        &mut admin.0,
                        &key,
                        &Log { generation: GENERATION, last: ahead, before: 0, precision, records: &records },
                    );
                }
                _ => {
                    let windows = Windows { generation: GENERATION, last: ahead, current: 7, previous: 0 };
                    write_windows(&mut admin.0, &key, &windows);
                }
            }
            let expiry = limiter.check((alice(), 0)).await.unwrap().statuses()[0].reset_after();
            admin.query::<()>(&["PEXPIRE", &key, &(expiry.as_millis() + 500).to_string()]);
            for charge in 1..20 {
                let decision = limiter.check(alice()).await.unwrap();
                assert_eq!(decision.statuses()[0].remaining(), 1_000 - 7 - charge, "{engine:?} {name}");
                assert_expires_in_time(engine, &mut admin, &decision);
            }
        }
    }
}
