//! A log whose only record is that of the last charge has a short tail. Charges and refunds of every purpose cross this border in
//! both directions, and change nothing else.

use std::{collections::BTreeSet, time::Duration};

use tower_sliding_window::{
    Algorithm, Decision, MemoryBackend, Policy,
    backend::{Backend, Check, Pair, Purpose, Receipt, Refund},
    testing::ManualClock,
};

use super::{
    admin::Admin,
    layout::{SHORT_SIZE, record_of},
    rig::{self, HOUR, Random, Reserved, alice, check, peek, policy, reserve, with_manual_clock},
};
use crate::support::server::{Engine, Server};

const WINDOW: Duration = Duration::from_secs(10);
const QUOTA: u32 = 20;
/// An eighth of the window.
const PRECISION: Duration = Duration::from_millis(1_250);

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stored {
    Nothing,
    /// One record, that of the last charge.
    Single,
    Header,
}

use Stored::{Header, Nothing, Single};

/// Returns what the only key of the server holds. Asserts that the tail is short if and only if it can be.
fn stored(admin: &mut Admin, precision: u64, what: &str) -> Stored {
    let keys = admin.keys();
    let [key] = &keys[..] else {
        assert!(keys.is_empty(), "{what}: {keys:?}");
        return Nothing;
    };
    let tail: Vec<u8> = admin.query(&["LINDEX", key, "-1"]);
    if tail.len() == SHORT_SIZE {
        assert_eq!(admin.query::<u64>(&["LLEN", key]), 1, "{what}: elements before a single record");
        return Single;
    }
    let number = |from: usize, size: usize| {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&tail[from..from + size]);
        u64::from_le_bytes(bytes)
    };
    let (last, newest, count) = (number(7, 7), number(14, 7), number(39, 3));
    assert!(count > 1 || newest != record_of(last, precision), "{what}: a header for a single record");
    Header
}

/// Returns a decision without what differs between stores: the generation.
fn comparable(decision: &Decision) -> (u64, String, Vec<(u64, u32)>) {
    let place = |receipt: &Receipt| (receipt.at_micros, receipt.ordinal);
    (
        decision.at_micros(),
        format!("{:?}", decision.statuses()),
        decision.receipts().iter().map(place).collect(),
    )
}

/// Returns the policies, and the length of a bucket.
fn policies() -> [(Policy, u64); 2] {
    let buckets = Algorithm::SlidingBuckets { precision: PRECISION };
    [
        (policy("log", QUOTA, WINDOW), 0),
        (policy("buckets", QUOTA, WINDOW).with_algorithm(buckets).unwrap(), PRECISION.as_micros() as u64),
    ]
}

/// Makes random calls, and compares every reply with that of the memory backend. Returns the calls, with what the key held before and
/// after them.
async fn random_calls(
    engine: Engine,
    (policy, precision): &(Policy, u64),
) -> BTreeSet<(&'static str, Stored, Stored)> {
    let server = Server::start(engine);
    let (redis, clock) = with_manual_clock(&server).await;
    let memory = MemoryBackend::new().with_clock(&clock).keep_idle_for(HOUR);
    let (mut admin, mut random, mut seen) = (Admin::at(&server), Random(7), BTreeSet::new());
    let policies = std::slice::from_ref(policy);
    let mut charges: Vec<[Reserved; 2]> = Vec::new();
    let mut before = Nothing;
    for step in 0..2_000 {
        let what = format!("{engine:?}, {}, step {step}", policy.name());
        // A window is 10 s. Sometimes the clock goes back.
        let micros =
            [0, 0, 1, 300_000, 1_250_000, 5_000_000, 10_000_000, 11_000_000][random.below(8) as usize];
        if random.below(12) == 0 {
            clock.set_micros(clock.now_micros() - micros);
        } else {
            clock.advance(Duration::from_micros(micros));
        }
        let name = match random.below(8) {
            0..=2 if !charges.is_empty() => {
                // One of the last charges, most of which have not left.
                let index = charges.len() - 1 - random.below(charges.len().min(4) as u64) as usize;
                let [ours, models] = &charges[index];
                let cost = ours.check.pairs()[0].cost;
                let used = if random.below(2) == 0 { 0 } else { random.below(u64::from(cost)) as u32 };
                redis.refund(&ours.refund(used)).await.unwrap();
                memory.refund(&models.refund(used)).await.unwrap();
                "refund"
            }
            3 if random.below(8) == 0 => {
                let pairs = check(policies, 1, Purpose::Charge);
                redis.reset(&pairs).await.unwrap();
                memory.reset(&pairs).await.unwrap();
                "reset"
            }
            _ => {
                let (name, purpose) = [
                    ("charge", Purpose::Charge),
                    ("reserve", Purpose::Reserve),
                    ("reserve", Purpose::Reserve),
                    ("peek", Purpose::Peek),
                    ("overage", Purpose::Overage),
                    ("debit", Purpose::Debit),
                    ("take", Purpose::TakeUpTo(3)),
                ][random.below(7) as usize];
                let check = check(policies, random.below(8) as u32, purpose);
                let [ours, models] =
                    [redis.check(&check).await.unwrap(), memory.check(&check).await.unwrap()];
                assert_eq!(comparable(&ours), comparable(&models), "{what}: {check:?}");
                let is_charged = purpose == Purpose::Reserve || purpose == Purpose::Debit;
                if is_charged && !ours.receipts().is_empty() && check.pairs()[0].cost > 0 {
                    charges.push([ours, models].map(|decision| Reserved { check: check.clone(), decision }));
                }
                name
            }
        };
        let after = stored(&mut admin, *precision, &what);
        seen.insert((name, before, after));
        before = after;
        let peeks = [peek(&redis, policies, 9).await, peek(&memory, policies, 9).await];
        assert_eq!(comparable(&peeks[0]), comparable(&peeks[1]), "{what}: after {name}");
    }
    seen
}

#[tokio::test]
async fn replies_around_single_record_equal_memory() {
    for engine in Engine::ALL {
        for policy in &policies() {
            let seen = random_calls(engine, policy).await;
            let name = policy.0.name();
            let both_ways = [(Nothing, Single), (Single, Header), (Header, Single), (Single, Single)];
            for call in ["charge", "reserve", "overage", "debit", "take"] {
                for (before, after) in both_ways {
                    assert!(
                        seen.contains(&(call, before, after)),
                        "{engine:?}, {name}: {call} {before:?} {after:?}"
                    );
                }
            }
            for (before, after) in [(Single, Single), (Header, Single), (Header, Header)] {
                assert!(
                    seen.contains(&("refund", before, after)),
                    "{engine:?}, {name}: refund {before:?} {after:?}"
                );
            }
            for stored in [Single, Header] {
                assert!(seen.contains(&("peek", stored, stored)), "{engine:?}, {name}: peek {stored:?}");
                assert!(seen.contains(&("reset", stored, Nothing)), "{engine:?}, {name}: reset {stored:?}");
            }
        }
    }
}

/// A lease and an answer of an API charge the only bucket.
#[tokio::test]
async fn lease_and_answer_keep_tail_of_single_bucket_short() {
    let [_, (buckets, precision)] = policies();
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (redis, _clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        let mut pair = Pair::new(alice(), buckets.clone(), 2);
        pair.lease = 3;
        let lease = Check::new([pair]).unwrap().with_purpose(Purpose::Lease);
        for leases in 1..=3 {
            assert!(redis.check(&lease).await.unwrap().is_admitted(), "{engine:?}: a lease");
            assert_eq!(stored(&mut admin, precision, "a lease"), Single, "{engine:?}");
            let remaining = peek(&redis, std::slice::from_ref(&buckets), 0).await.statuses()[0].remaining();
            assert_eq!(remaining, QUOTA - 5 * leases, "{engine:?}");
        }
        admin.query::<()>(&["FLUSHALL"]);
        let policies = [buckets.clone()];
        let at_micros = reserve(&redis, &policies, 1).await.decision.at_micros();
        let purpose = Purpose::leave_at_most(at_micros, u64::MAX);
        let _ = redis.check(&check(&policies, 4, purpose)).await.unwrap();
        let key = redis.key_name("tsw", &alice(), &buckets);
        let tail: Vec<u8> = admin.query(&["LINDEX", &key, "-1"]);
        assert_eq!(tail.len(), SHORT_SIZE, "{engine:?}: after an answer");
        assert_eq!(peek(&redis, &policies, 0).await.statuses()[0].remaining(), 4, "{engine:?}");
    }
}

/// Checks that share a call store what separate calls store.
#[tokio::test]
async fn merged_checks_store_single_record() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let clock = ManualClock::new();
        let redis =
            rig::merging_backend(&server, tower_sliding_window::redis::Merging::On).with_clock(&clock);
        let mut admin = Admin::at(&server);
        for (policy, precision) in policies() {
            admin.query::<()>(&["FLUSHALL"]);
            let policies = [policy];
            let five = check(&policies, 1, Purpose::Charge);
            let all = tokio::join!(
                redis.check(&five),
                redis.check(&five),
                redis.check(&five),
                redis.check(&five),
                redis.check(&five)
            );
            for outcome in [all.0, all.1, all.2, all.3, all.4] {
                assert!(outcome.unwrap().is_admitted(), "{engine:?}: the checks fit");
            }
            let what = format!("{engine:?}, {}", policies[0].name());
            // The first check is a call of its own, so the charges of a log are two records of one instant.
            let expected = if precision > 0 { Single } else { Header };
            assert_eq!(stored(&mut admin, precision, &what), expected, "{what}");
            assert_eq!(peek(&redis, &policies, 0).await.statuses()[0].remaining(), QUOTA - 5, "{what}");
            clock.advance(2 * WINDOW);
            let both = tokio::join!(redis.check(&five), redis.check(&five));
            assert!(both.0.unwrap().is_admitted() && both.1.unwrap().is_admitted(), "{what}");
            assert_eq!(peek(&redis, &policies, 0).await.statuses()[0].remaining(), QUOTA - 2, "{what}");
        }
    }
}

/// A receipt of a single record is valid in a longer log. A receipt of a longer log is valid for the only record that is left.
#[tokio::test]
async fn receipts_stay_valid_across_single_record() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (redis, clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        for (policy, precision) in policies() {
            admin.query::<()>(&["FLUSHALL"]);
            let policies = [policy];
            let what = format!("{engine:?}, {}", policies[0].name());
            let mut charges = Vec::new();
            for charge in 0..3_u64 {
                charges.push(reserve(&redis, &policies, 4).await);
                let expected = if charge == 0 { Single } else { Header };
                assert_eq!(stored(&mut admin, precision, &what), expected, "{what}: charge {charge}");
                clock.advance(Duration::from_secs(2));
            }
            let used = async || QUOTA - peek(&redis, &policies, 0).await.statuses()[0].remaining();
            // Of the first charge a part, which was stored in the short tail.
            redis.refund(&charges[0].refund(3)).await.unwrap();
            assert_eq!((used().await, stored(&mut admin, precision, &what)), (11, Header), "{what}");
            // The rest of it, and the second charge: one record is left, that of the last charge.
            redis.refund(&charges[0].refund(0)).await.unwrap();
            redis.refund(&charges[1].refund(0)).await.unwrap();
            assert_eq!((used().await, stored(&mut admin, precision, &what)), (4, Single), "{what}");
            redis.refund(&charges[2].refund(3)).await.unwrap();
            assert_eq!((used().await, stored(&mut admin, precision, &what)), (3, Single), "{what}");
            redis.refund(&charges[2].refund(0)).await.unwrap();
            assert_eq!((used().await, stored(&mut admin, precision, &what)), (0, Single), "{what}");
            // Its generation has ended with its last unit.
            let next = reserve(&redis, &policies, 2).await;
            let refund = Refund::new(&next.check, charges[2].decision.receipts(), &[0]).unwrap();
            redis.refund(&refund).await.unwrap();
            assert_eq!((used().await, stored(&mut admin, precision, &what)), (2, Single), "{what}");
        }
    }
}
