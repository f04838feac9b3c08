//! The bounds of the memory backend: keys and memory.

use std::{sync::Barrier, thread, time::Duration};

use allocation_counter::measure;
use tokio::runtime::Runtime;
use tower_sliding_window::{
    ConfigError, Limiter, MemoryBackend, PartitionKey, Policy,
    backend::{Backend, Check, Pair, Purpose, Reason, WhenFull},
    policy::{Algorithm, Rate},
    testing::ManualClock,
};

const WINDOW: Duration = Duration::from_secs(10);

fn policy() -> Policy {
    Policy::new("p", 2, WINDOW).unwrap()
}

/// Returns whether a check of this key at this cost is admitted.
fn check(backend: &MemoryBackend, key: u32, cost: u32) -> Result<bool, Reason> {
    let pair = Pair::new(PartitionKey::new("key", key.to_le_bytes()), policy(), cost);
    let outcome = backend.check_now(&Check::new([pair]).unwrap()).expect("memory answers at once");
    outcome.map(|decision| decision.is_admitted()).map_err(|error| error.reason())
}

fn bounded(max_keys: usize) -> (MemoryBackend, ManualClock) {
    let clock = ManualClock::new();
    (MemoryBackend::with_max_keys(max_keys).unwrap().with_clock(&clock), clock)
}

#[test]
fn full_memory_returns_error_for_new_key_only() {
    let (backend, clock) = bounded(100);
    for key in 0..100 {
        assert_eq!(check(&backend, key, 1), Ok(true), "{key}: the bound has room");
    }
    assert_eq!(check(&backend, 100, 1), Err(Reason::Full), "a new key above the bound");
    assert_eq!(backend.keys(), 100, "the rejected key is not stored");
    for key in 0..100 {
        assert_eq!(
            (check(&backend, key, 1), check(&backend, key, 1)),
            (Ok(true), Ok(false)),
            "{key}: a stored key has two units"
        );
    }
    // The backend still decides checks that store nothing.
    assert_eq!(
        (check(&backend, 100, 0), check(&backend, 100, 3)),
        (Ok(true), Ok(false)),
        "a check that stores nothing needs no room"
    );
    clock.advance(WINDOW);
    assert_eq!(check(&backend, 100, 1), Ok(true), "all keys are idle");
}

#[test]
fn full_memory_removes_idle_keys_only() {
    let (backend, clock) = bounded(100);
    for key in 0..50 {
        assert_eq!(check(&backend, key, 1), Ok(true), "{key}: the bound has room");
    }
    clock.advance(WINDOW / 2);
    for key in 50..100 {
        assert_eq!(check(&backend, key, 2), Ok(true), "{key}: the bound has room");
    }
    clock.advance(WINDOW / 2);
    // The first fifty keys are idle now, in every shard.
    for key in 100..150 {
        assert_eq!(check(&backend, key, 1), Ok(true), "{key}");
    }
    assert_eq!(check(&backend, 150, 1), Err(Reason::Full), "all idle keys are replaced");
    for key in 50..100 {
        assert_eq!(check(&backend, key, 1), Ok(false), "{key}: a busy key keeps its usage");
    }
}

/// Otherwise, the keys of a burst would stay while few others are in use.
#[test]
fn checks_of_one_key_remove_idle_keys_of_all_shards() {
    let (backend, clock) = bounded(10_000);
    for key in 0..10_000 {
        assert_eq!(check(&backend, key, 1), Ok(true), "{key}: the bound has room");
    }
    clock.advance(WINDOW);
    // Each removes at most 32 keys of its own shard, and 32 of another one.
    let mut left = backend.keys();
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(2));
        check(&backend, 0, 1).unwrap();
        assert!(backend.keys() + 64 >= left, "{left} keys became {}: no check takes long", backend.keys());
        left = backend.keys();
    }
    assert_eq!(left, 1);
}

#[test]
fn check_stores_all_keys_or_none() {
    let (backend, _clock) = bounded(2);
    assert_eq!(check(&backend, 0, 1), Ok(true), "the bound has room");
    let pair = |key: &str| Pair::new(PartitionKey::new("other", key), policy(), 1);
    let two = Check::new([pair("a"), pair("b")]).unwrap();
    assert_eq!(
        backend.check_now(&two).unwrap().unwrap_err().reason(),
        Reason::Full,
        "two keys need more room than there is"
    );
    assert_eq!(backend.keys(), 1, "neither key is stored");
    assert_eq!(check(&backend, 1, 1), Ok(true), "the bound still has room for one key");
}

#[test]
fn denied_or_free_check_stores_nothing() {
    let (backend, _clock) = bounded(10);
    for key in 0..1_000 {
        assert_eq!(
            (check(&backend, key, 0), check(&backend, key, 3)),
            (Ok(true), Ok(false)),
            "{key}: a cost of 0 fits, and one above the quota does not"
        );
    }
    assert_eq!(backend.keys(), 0, "no key is stored");
}

#[test]
fn abandoned_keys_leave_almost_nothing_stored() {
    let (backend, clock) = bounded(10_000);
    let mut most = 0;
    for key in 0..100_000 {
        assert_eq!(check(&backend, key, 1), Ok(true), "{key}");
        most = most.max(backend.keys());
        // A thousand keys are active at one time.
        clock.advance(WINDOW / 1_000);
    }
    assert!(most < 2_000, "{most} keys at one time");
    clock.advance(WINDOW);
    for key in 0..5_000 {
        check(&backend, key % 1_000, 0).unwrap();
    }
    assert!(backend.keys() < 100, "{} keys left", backend.keys());
}

#[test]
fn memory_never_removes_busy_key() {
    let (backend, clock) = bounded(1_000);
    for _ in 0..100 {
        assert_eq!(
            (check(&backend, 0, 2), check(&backend, 0, 1)),
            (Ok(true), Ok(false)),
            "a busy key keeps its usage until its window has passed"
        );
        for other in 1..20 {
            check(&backend, other, 1).unwrap();
        }
        clock.advance(WINDOW);
    }
}

#[test]
fn concurrent_threads_never_exceed_key_bound() {
    let (backend, _clock) = bounded(1_000);
    let barrier = Barrier::new(4);
    let admitted: usize = thread::scope(|scope| {
        let run = |thread: u32| {
            let (backend, barrier) = (&backend, &barrier);
            scope.spawn(move || {
                barrier.wait();
                (0..1_000).filter(|key| check(backend, thread * 1_000 + key, 1) == Ok(true)).count()
            })
        };
        let threads: Vec<_> = (0..4).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((admitted, backend.keys()), (1_000, 1_000), "as many keys as the bound");
}

#[test]
fn constructor_rejects_zero_key_bound() {
    let error = MemoryBackend::with_max_keys(0).unwrap_err();
    assert!(
        matches!(error, ConfigError::InvalidValue { setting: "max_keys", .. }),
        "a bound of 0 is an error: {error:?}"
    );
    assert_eq!(
        error.to_string(),
        "max_keys 0: it must be 1 to 4294967295",
        "the error states the value and what is allowed"
    );
}

#[test]
fn only_backend_clones_share_state() {
    let (backend, _clock) = bounded(10);
    assert_eq!(check(&backend, 0, 2), Ok(true), "the whole quota fits");
    assert_eq!(check(&backend.clone(), 0, 1), Ok(false), "a clone shares the usage");
    assert_eq!(check(&MemoryBackend::new(), 0, 1), Ok(true), "another backend has its own usage");
}

#[test]
fn key_bound_counts_key_once_for_several_policies() {
    let (backend, clock) = bounded(10);
    let backend = backend.when_full(WhenFull::Reject);
    let policies = ["short", "long"].map(|name| Policy::new(name, 5, WINDOW).unwrap());
    let both = |key: u32| {
        let key = PartitionKey::new("key", key.to_le_bytes());
        let pairs = policies.iter().map(|policy| Pair::new(key.clone(), policy.clone(), 1));
        backend.check_now(&Check::new(pairs.collect::<Vec<_>>()).unwrap()).unwrap().map(|it| it.is_admitted())
    };
    for _ in 0..3 {
        for key in 0..10 {
            assert!(both(key).unwrap(), "{key}: a key counts once for both policies");
        }
        assert_eq!(backend.keys(), 10, "the bound counts keys");
        assert_eq!(both(10).unwrap_err().reason(), Reason::Full, "a new key above the bound");
        clock.advance(WINDOW);
        // All keys are idle now, so the backend has room for ten keys again.
        assert!(both(10).unwrap(), "all keys are idle");
        clock.advance(WINDOW);
    }
}

#[test]
fn namespaces_separate_usage() {
    let backend = MemoryBackend::new();
    let limiter = |namespace: &str| {
        Limiter::builder(backend.clone()).policy(policy()).namespace(namespace).build().unwrap()
    };
    let key = PartitionKey::new("key", "a");
    let admitted = |limiter: &Limiter| {
        let check = limiter.check((key.clone(), 2));
        Runtime::new().unwrap().block_on(check).unwrap().is_admitted()
    };
    let (shop, mail) = (limiter("shop"), limiter("mail"));
    assert_eq!(
        [admitted(&shop), admitted(&shop), admitted(&mail), admitted(&mail)],
        [true, false, true, false],
        "each namespace has its own usage"
    );
}

#[test]
fn key_takes_at_most_documented_memory() {
    let key = |number: u32| PartitionKey::new("key", number.to_le_bytes());
    let bytes_per_key = |policies: usize, records: usize| {
        let backend = MemoryBackend::new();
        let policies: Vec<Policy> =
            (0..policies).map(|i| Policy::new(&format!("p{i}"), 9, WINDOW).unwrap()).collect();
        let kept = measure(|| {
            for number in (0..records).flat_map(|_| 0..20_000) {
                let pair = |policy: &Policy| Pair::new(key(number), policy.clone(), 1);
                let check = Check::new(policies.iter().map(pair).collect::<Vec<_>>()).unwrap();
                assert!(
                    backend.check_now(&check).unwrap().unwrap().is_admitted(),
                    "{number}: the quota fits"
                );
            }
        });
        kept.bytes_current / 20_000
    };
    // A map of so few keys has more room for growth than one of many.
    let one = 240;
    for (policies, records, at_most) in [
        (1, 1, one),
        (1, 3, one),
        (2, 3, one + 2 * 80),
        (3, 3, one + 3 * 80),
        (1, 4, one + 50 + 4 * 32),
        (1, 5, one + 50 + 5 * 32),
        (1, 9, one + 50 + 9 * 32),
    ] {
        let bytes = bytes_per_key(policies, records);
        assert!(bytes <= at_most, "{bytes} bytes for {policies} policies and {records} records");
    }
}

#[test]
fn long_keys_take_no_extra_memory() {
    let backend = MemoryBackend::new();
    let pair = |value: usize| {
        let long = format!("{value}{}", "x".repeat(100_000));
        Pair::new(PartitionKey::new("header:x-api-key", long), policy(), 1)
    };
    let kept = measure(|| {
        for value in 0..50 {
            let _ = backend.check_now(&Check::new([pair(value)]).unwrap()).unwrap().unwrap();
        }
    });
    assert_eq!(backend.keys(), 50, "every key is stored");
    assert!(kept.bytes_current < 100_000, "{} bytes for fifty keys", kept.bytes_current);
}

/// A long key is kept as its digest, and decided in another way.
#[test]
fn long_key_has_decisions_of_short_key() {
    let policies = [
        Policy::new("log", 3, WINDOW).unwrap(),
        Policy::token_bucket("bucket", 3, Rate::new(3, WINDOW)).unwrap(),
        Policy::new("counter", 3, WINDOW).unwrap().with_algorithm(Algorithm::FixedWindow).unwrap(),
    ];
    let purposes = [
        Purpose::Charge,
        Purpose::Peek,
        Purpose::Reserve,
        Purpose::Debit,
        Purpose::TakeUpTo(2),
        Purpose::Overage,
    ];
    // What a sequence of checks of one key returns, in a memory with room for one key.
    let outcomes = |value: &str, count: usize, rule, has_shadow| {
        let clock = ManualClock::new();
        let backend = MemoryBackend::with_max_keys(1).unwrap().with_clock(&clock).when_full(rule);
        let mut outcomes = Vec::new();
        let mut decide = |value: &str, purpose, cost| {
            let key = PartitionKey::new("user", value);
            let mut pairs: Vec<Pair> =
                policies[..count].iter().map(|policy| Pair::new(key.clone(), policy.clone(), cost)).collect();
            if has_shadow {
                pairs[0] = pairs[0].clone().shadow();
            }
            let check = Check::new(pairs).unwrap().with_purpose(purpose);
            outcomes.push(match backend.check_now(&check).expect("memory answers at once") {
                Ok(decision) => Ok((
                    decision.is_admitted(),
                    decision.statuses().to_vec(),
                    decision.receipts().iter().map(|receipt| receipt.at_micros).collect::<Vec<_>>(),
                )),
                Err(error) => Err(error.reason()),
            });
        };
        for purpose in purposes {
            for cost in [1, 0, 4, 1] {
                decide(value, purpose, cost);
                clock.advance(WINDOW / 20);
            }
        }
        // Another key has no room, or evicts this one.
        decide("another", Purpose::Charge, 1);
        decide(value, Purpose::Charge, 1);
        outcomes
    };
    for count in 1..=policies.len() {
        for rule in [WhenFull::Evict, WhenFull::Reject] {
            for has_shadow in [false, true] {
                let of = |length| outcomes(&"x".repeat(length), count, rule, has_shadow);
                let (short, long) = (of(20), of(300));
                assert_eq!(short, long, "{count} policies, {rule:?}, shadow: {has_shadow}");
                let is_denied = short.iter().any(|outcome| matches!(outcome, Ok((false, ..))));
                assert_eq!(is_denied, !has_shadow || count > 1, "a check of shadow pairs only is admitted");
            }
        }
    }
}

#[test]
fn busy_key_drops_records_of_unused_policies() {
    let (backend, clock) = bounded(10);
    let charge = |name: &str| {
        let pair = Pair::new(PartitionKey::new("key", "busy"), Policy::new(name, 5, WINDOW).unwrap(), 1);
        let _ = backend.check_now(&Check::new([pair]).unwrap()).unwrap().unwrap();
        clock.advance(WINDOW / 3);
    };
    // A new policy name in every third of a window, such as a name that contains the date.
    let kept = measure(|| {
        for day in 0..2_000 {
            charge(&day.to_string());
        }
    });
    assert!(kept.bytes_current < 20_000, "{} bytes for one key", kept.bytes_current);
}

#[test]
fn shrunken_log_frees_memory() {
    let (backend, clock) = bounded(10);
    let many = Policy::new("many", 100_000, WINDOW).unwrap();
    let charge = || {
        let pair = Pair::new(PartitionKey::new("key", "a"), many.clone(), 1);
        assert!(
            backend.check_now(&Check::new([pair]).unwrap()).unwrap().unwrap().is_admitted(),
            "the quota fits"
        );
    };
    let kept = measure(|| {
        (0..50_000).for_each(|_| charge());
        // All charges but one leave the window, so that the key is not idle and stays stored.
        for _ in 0..2 {
            clock.advance(WINDOW / 2);
            charge();
        }
    });
    assert!(kept.bytes_current < 10_000, "{} bytes for two records", kept.bytes_current);
}
