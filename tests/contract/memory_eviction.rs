//! The memory backend at its bound on partition keys: evictions, and the attacks that they must withstand.

use std::{process::Command, sync::Barrier, thread, time::Duration};

use allocation_counter::measure;
use proptest::prelude::*;
use tower_sliding_window::{
    Algorithm, Decision, MemoryBackend, PartitionKey, Policy,
    backend::{Backend, Check, Pair, Purpose, Reason, Refund, WhenFull},
    policy::Rate,
    testing::ManualClock,
};

const WINDOW: Duration = Duration::from_secs(10);

fn policy(name: &str, quota: u32) -> Policy {
    Policy::new(name, quota, WINDOW).unwrap()
}

fn every_algorithm() -> [Policy; 5] {
    every_algorithm_with_quota(10)
}

fn every_algorithm_with_quota(quota: u32) -> [Policy; 5] {
    let with = |algorithm| policy("p", quota).with_algorithm(algorithm).unwrap();
    [
        with(Algorithm::SlidingLog),
        with(Algorithm::SlidingBuckets { precision: Duration::from_secs(3) }),
        with(Algorithm::SlidingCounter),
        with(Algorithm::FixedWindow),
        with(Algorithm::TokenBucket { rate: Rate::new(10, WINDOW) }),
    ]
}

fn pair(key: u32, policy: &Policy, cost: u32) -> Pair {
    Pair::new(PartitionKey::new("key", key.to_le_bytes()), policy.clone(), cost)
}

fn decide(backend: &MemoryBackend, purpose: Purpose, pairs: &[Pair]) -> Result<Decision, Reason> {
    let check = Check::new(pairs).unwrap().with_purpose(purpose);
    backend.check_now(&check).expect("memory answers at once").map_err(|error| error.reason())
}

/// Charges one pair, and returns whether it was admitted.
fn charge(backend: &MemoryBackend, key: u32, policy: &Policy, cost: u32) -> Result<bool, Reason> {
    decide(backend, Purpose::Charge, &[pair(key, policy, cost)]).map(|decision| decision.is_admitted())
}

fn used(backend: &MemoryBackend, key: u32, policy: &Policy) -> u32 {
    let decision = decide(backend, Purpose::Charge, &[pair(key, policy, 0)]).unwrap();
    policy.quota().unwrap() - decision.statuses()[0].remaining()
}

fn bounded(max_keys: usize) -> MemoryBackend {
    MemoryBackend::with_max_keys(max_keys).unwrap().with_clock(&ManualClock::new())
}

fn evicted(backend: &MemoryBackend) -> (u64, u64) {
    (backend.evicted_keys(), backend.evicted_units())
}

#[test]
fn invented_keys_take_no_more_memory_than_bound() {
    const BOUND: u32 = 10_000;
    const INVENTED: u32 = 200_000;
    let (backend, ten) = (bounded(BOUND as usize), policy("ten", 10));
    let heavy = u32::MAX;
    assert_eq!(charge(&backend, heavy, &ten, 6), Ok(true), "the memory is empty");
    let filled = measure(|| {
        for key in 1..BOUND {
            assert_eq!(charge(&backend, key, &ten, 1), Ok(true), "{key}: the bound has room");
        }
    });
    assert_eq!(
        (backend.keys(), evicted(&backend)),
        (BOUND as usize, (0, 0)),
        "up to the bound, no key is evicted"
    );
    let attacked = measure(|| {
        for key in BOUND..INVENTED {
            assert_eq!(charge(&backend, key, &ten, 1), Ok(true), "{key}");
            if key % 1_000 == 0 {
                // A new customer, who uses some units at once.
                assert_eq!(charge(&backend, heavy - key, &ten, 3), Ok(true), "{key}");
                assert_eq!(used(&backend, heavy - key, &ten), 3, "{key}: the customer keeps its usage");
            }
        }
    });
    // A table from which keys are removed all the time grows once.
    let growth = attacked.bytes_current * 8;
    assert!(growth <= filled.bytes_current, "{} bytes, and then {growth} / 8 more", filled.bytes_current);
    assert_eq!(
        (used(&backend, heavy, &ten), backend.keys()),
        (6, BOUND as usize),
        "a key with more than half of its quota is never evicted"
    );
    let customers = u64::from((INVENTED - BOUND) / 1_000);
    let (keys, units) = evicted(&backend);
    assert_eq!(keys, u64::from(INVENTED - BOUND) + customers, "each key above the bound evicts one");
    assert!((keys..=keys + 2 * customers).contains(&units), "{units} units of {keys} keys");
}

/// Returns the resident memory of this process in KiB, without the pages of its program.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel states the size");
    line.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse().ok()).expect("a number of KiB")
}

/// Other tests use memory at the same time. So this test runs itself again, in a process of its own.
#[test]
fn attack_of_a_million_keys_keeps_resident_memory() {
    const CHILD: &str = "TEST_RESIDENT_MEMORY";
    if std::env::var_os(CHILD).is_none() {
        let name = "contract::memory_eviction::attack_of_a_million_keys_keeps_resident_memory";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text} {output:?}");
        return;
    }
    const BOUND: u32 = 10_000;
    const HEAVY: u32 = u32::MAX;
    let backend = MemoryBackend::with_max_keys(BOUND as usize).unwrap();
    let ten = Policy::new("ten", 10, Duration::from_secs(3_600)).unwrap();
    let empty = resident();
    assert_eq!(charge(&backend, HEAVY, &ten, 6), Ok(true), "the memory is empty");
    for key in 1..BOUND {
        assert_eq!(charge(&backend, key, &ten, 1), Ok(true), "{key}: the bound has room");
    }
    let filled = resident();
    for key in BOUND..BOUND + 1_000_000 {
        assert_eq!(charge(&backend, key, &ten, 1), Ok(true), "{key}");
    }
    let attacked = resident();
    let growth = attacked.saturating_sub(filled);
    // The shards grow a little, because the keys do not stay evenly spread. One byte for each invented key would be a megabyte.
    assert!(
        growth * 4 <= filled - empty,
        "{empty} KiB, {filled} KiB with {BOUND} keys, and {growth} KiB more"
    );
    assert_eq!(
        (used(&backend, HEAVY, &ten), backend.keys()),
        (6, BOUND as usize),
        "a key with more than half of its quota is never evicted"
    );
    assert_eq!(evicted(&backend), (1_000_000, 1_000_000), "each invented key evicts one");
}

/// A client that has used its quota of 1 invents keys, so that its own key is evicted. All keys are at their limit, so none is.
#[test]
fn invented_keys_cannot_reset_own_key_at_quota_one() {
    let (backend, one) = (bounded(100), policy("one", 1));
    assert_eq!(charge(&backend, 0, &one, 1), Ok(true), "the client uses its quota");
    for key in 1..100 {
        assert_eq!(charge(&backend, key, &one, 1), Ok(true), "{key}: the bound has room");
    }
    for key in 100..10_000 {
        assert_eq!(
            charge(&backend, key, &one, 1),
            Err(Reason::Full),
            "{key}: no key at its limit is evicted"
        );
    }
    assert_eq!(
        (charge(&backend, 0, &one, 1), evicted(&backend)),
        (Ok(false), (0, 0)),
        "the client is still denied"
    );
}

#[test]
fn eviction_takes_only_share_below_half() {
    for ten in every_algorithm() {
        let backend = bounded(1);
        assert_eq!(charge(&backend, 0, &ten, 4), Ok(true), "{ten:?}: the memory is empty");
        assert_eq!(
            charge(&backend, 1, &ten, 5),
            Ok(true),
            "{ten:?}: a key below half of its quota is evicted"
        );
        assert_eq!((used(&backend, 0, &ten), used(&backend, 1, &ten)), (0, 5), "{ten:?}");
        assert_eq!(charge(&backend, 2, &ten, 1), Err(Reason::Full), "{ten:?}");
        assert_eq!((backend.keys(), evicted(&backend)), (1, (1, 4)), "{ten:?}");
    }
}

#[test]
fn eviction_takes_smallest_of_largest_shares() {
    let (small, large) = (policy("small", 10), policy("large", 1_000));
    let both = |key, of_small, of_large| [pair(key, &small, of_small), pair(key, &large, of_large)];
    let backend = bounded(4);
    for pairs in [both(0, 4, 0), both(1, 1, 350), both(2, 3, 1), both(3, 2, 490)] {
        assert!(decide(&backend, Purpose::Charge, &pairs).unwrap().is_admitted(), "the bound has room");
    }
    // All keys are sampled. Their largest shares are 0.4, 0.35, 0.3 and 0.49.
    for (new, evicted) in [(4, 2), (5, 1), (6, 0), (7, 3)] {
        assert_eq!(
            charge(&backend, new, &small, 5),
            Ok(true),
            "{new}: a key below half of its quotas is evicted"
        );
        assert_eq!((used(&backend, evicted, &small), used(&backend, evicted, &large)), (0, 0), "{evicted}");
    }
    assert_eq!(evicted(&backend), (4, 4 + 1 + 350 + 3 + 1 + 2 + 490), "every evicted unit is counted");
}

#[test]
fn eviction_counts_by_smallest_quota_of_usage() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::with_max_keys(2).unwrap().with_clock(&clock);
    assert_eq!(charge(&backend, 0, &policy("p", 10), 4), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 1, &policy("p", 10), 4), Ok(true), "the bound has room");
    // The quota of key 0 is lowered, so that it uses more than half of it. That of key 1 is raised.
    assert_eq!(charge(&backend, 0, &policy("p", 5), 1), Ok(true), "the last unit of the lowered quota");
    assert_eq!(charge(&backend, 1, &policy("p", 100), 10), Ok(true), "the raised quota has room");
    assert_eq!(
        charge(&backend, 2, &policy("p", 5), 5),
        Err(Reason::Full),
        "both use half of a quota or more"
    );
    clock.advance(WINDOW);
    assert_eq!(charge(&backend, 1, &policy("p", 100), 14), Ok(true), "all usage has left");
    assert_eq!(charge(&backend, 0, &policy("p", 5), 5), Ok(true), "the lowered quota");
    assert_eq!(charge(&backend, 2, &policy("p", 5), 5), Ok(true), "key 1 is below half of its raised quota");
    assert_eq!(
        (used(&backend, 0, &policy("p", 5)), evicted(&backend)),
        (5, (1, 14)),
        "key 0 is above half of its lowered quota"
    );
}

#[test]
fn check_never_evicts_its_own_keys() {
    let (backend, ten) = (bounded(2), policy("ten", 10));
    assert_eq!(charge(&backend, 0, &ten, 1), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 1, &ten, 9), Ok(true), "the bound has room");
    for own_cost in [0, 1] {
        let pairs = [pair(0, &ten, own_cost), pair(2, &ten, 1)];
        for purpose in [Purpose::Peek, Purpose::Charge, Purpose::Reserve, Purpose::Overage] {
            assert_eq!(decide(&backend, purpose, &pairs).unwrap_err(), Reason::Full, "{purpose:?}");
        }
    }
    assert_eq!(
        (used(&backend, 0, &ten), used(&backend, 1, &ten), evicted(&backend)),
        (1, 9, (0, 0)),
        "both keys keep their usage"
    );
}

#[test]
fn check_of_two_new_keys_evicts_two_or_none() {
    let (backend, ten) = (bounded(3), policy("ten", 10));
    let two = |first| [pair(first, &ten, 5), pair(first + 1, &ten, 5)];
    assert_eq!(charge(&backend, 0, &ten, 1), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 1, &ten, 2), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 2, &ten, 5), Ok(true), "the bound has room");
    assert!(
        decide(&backend, Purpose::Charge, &two(10)).unwrap().is_admitted(),
        "two keys are below half of their quota"
    );
    assert_eq!((backend.keys(), evicted(&backend)), (3, (2, 3)), "both are evicted");

    let backend = bounded(2);
    assert_eq!(charge(&backend, 0, &ten, 1), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 1, &ten, 5), Ok(true), "the bound has room");
    assert_eq!(
        decide(&backend, Purpose::Charge, &two(10)).unwrap_err(),
        Reason::Full,
        "only one key is below half of its quota"
    );
    assert_eq!(
        (used(&backend, 0, &ten), backend.keys(), evicted(&backend)),
        (1, 2, (0, 0)),
        "a rejected check evicts no key"
    );

    // One of the two has room.
    let backend = bounded(3);
    assert_eq!(charge(&backend, 0, &ten, 1), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 1, &ten, 2), Ok(true), "the bound has room");
    assert!(
        decide(&backend, Purpose::Charge, &two(10)).unwrap().is_admitted(),
        "one key is free, and one is evicted"
    );
    assert_eq!(
        (backend.keys(), evicted(&backend)),
        (3, (1, 1)),
        "only the key with the smallest share is evicted"
    );
}

#[test]
fn peek_at_bound_evicts_nothing() {
    let (backend, ten) = (bounded(2), policy("ten", 10));
    let peek =
        |first: u32| decide(&backend, Purpose::Peek, &[pair(first, &ten, 1), pair(first + 1, &ten, 1)]);
    assert_eq!(charge(&backend, 0, &ten, 1), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 1, &ten, 4), Ok(true), "the bound has room");
    for _ in 0..10 {
        assert!(peek(10).unwrap().is_admitted(), "both keys could be evicted");
    }
    assert_eq!((used(&backend, 0, &ten), used(&backend, 1, &ten)), (1, 4), "a peek evicts no key");
    assert_eq!((backend.keys(), evicted(&backend)), (2, (0, 0)), "a peek evicts and stores no key");
    // One key only can be evicted now, and the peek needs the room of two.
    assert_eq!(charge(&backend, 1, &ten, 1), Ok(true), "key 1 has room");
    assert_eq!(peek(10).unwrap_err(), Reason::Full, "key 1 uses half of its quota");
}

#[test]
fn idle_keys_are_removed_before_any_eviction() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::with_max_keys(1_000).unwrap().with_clock(&clock);
    let ten = policy("ten", 10);
    for key in 0..1_000 {
        assert_eq!(charge(&backend, key, &ten, 1), Ok(true), "{key}: the bound has room");
        clock.advance(WINDOW / 1_000);
    }
    for key in 1_000..5_000 {
        // One key becomes idle before each charge.
        assert_eq!(charge(&backend, key, &ten, 1), Ok(true), "{key}: an idle key is replaced");
        clock.advance(WINDOW / 1_000);
    }
    assert_eq!((backend.keys(), evicted(&backend)), (1_000, (0, 0)), "no key is evicted while one is idle");
}

#[test]
fn refunded_charge_makes_key_idle_earlier() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::with_max_keys(2).unwrap().with_clock(&clock).when_full(WhenFull::Reject);
    let (short, long) = (policy("short", 10), Policy::new("long", 10, 10 * WINDOW).unwrap());
    let reserved = Check::new([pair(0, &long, 1)]).unwrap().with_purpose(Purpose::Reserve);
    let receipts = backend.check_now(&reserved).unwrap().unwrap().receipts().to_vec();
    assert_eq!(charge(&backend, 0, &short, 1), Ok(true), "the key is stored");
    assert_eq!(charge(&backend, 1, &long, 1), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 2, &long, 1), Err(Reason::Full), "both keys are busy");
    let refund = Refund::new(&reserved, &receipts, &[0]).unwrap();
    backend.refund_now(&refund).unwrap().unwrap();
    assert_eq!(charge(&backend, 2, &long, 1), Err(Reason::Full), "the short window has not passed");
    clock.advance(WINDOW);
    assert_eq!(
        charge(&backend, 2, &long, 1),
        Ok(true),
        "after the refund, key 0 is idle when the short window has passed"
    );
}

#[test]
fn refund_never_reaches_charge_after_eviction() {
    for ten in every_algorithm() {
        let backend = bounded(1);
        let reserved = Check::new([pair(0, &ten, 3)]).unwrap().with_purpose(Purpose::Reserve);
        let receipts = backend.check_now(&reserved).unwrap().unwrap().receipts().to_vec();
        assert_eq!(charge(&backend, 1, &ten, 1), Ok(true), "{ten:?}: key 0 is evicted");
        assert_eq!(charge(&backend, 0, &ten, 3), Ok(true), "{ten:?}: key 1 is evicted");
        backend.refund_now(&Refund::new(&reserved, &receipts, &[0]).unwrap()).unwrap().unwrap();
        assert_eq!((used(&backend, 0, &ten), evicted(&backend)), (3, (2, 4)), "{ten:?}");
    }
}

#[test]
fn reject_rule_evicts_nothing() {
    let ten = policy("ten", 10);
    let clock = ManualClock::new();
    // The settings keep the rule, in any order.
    let new = || MemoryBackend::with_max_keys(10).unwrap();
    for backend in [
        new().when_full(WhenFull::Reject).with_clock(&clock).keep_idle_for(Duration::ZERO),
        new().with_clock(&clock).when_full(WhenFull::Evict).when_full(WhenFull::Reject),
    ] {
        for key in 0..10 {
            assert_eq!(charge(&backend, key, &ten, 1), Ok(true), "{key}: the bound has room");
        }
        assert_eq!(charge(&backend.clone(), 10, &ten, 1), Err(Reason::Full), "the rule rejects a new key");
        assert_eq!((backend.keys(), evicted(&backend)), (10, (0, 0)), "no key is evicted");
    }
}

#[test]
fn concurrent_evictions_keep_key_bound() {
    let (backend, ten) = (bounded(100), policy("ten", 10));
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (backend, barrier, ten) = (&backend, &barrier, &ten);
            scope.spawn(move || {
                barrier.wait();
                for key in 0..5_000 {
                    assert_eq!(
                        charge(backend, thread * 5_000 + key, ten, 1),
                        Ok(true),
                        "{key}: a key below half of its quota is evicted"
                    );
                    assert!(backend.keys() <= 100, "the bound holds at every moment");
                }
            });
        }
    });
    assert_eq!(
        (backend.keys(), evicted(&backend)),
        (100, (39_900, 39_900)),
        "every eviction is counted once"
    );
    // The count of the keys is correct: each of the 100 is stored.
    let stored: u32 = (0..40_000).map(|key| used(&backend, key, &ten)).sum();
    assert_eq!(stored, 100, "as many keys as the bound are stored");
}

proptest! {
    /// On a stopped clock, every unit that was charged is in use or was counted as evicted.
    #[test]
    fn every_charged_unit_is_in_use_or_counted(
        bound in 1_usize..12,
        quota in 1_u32..12,
        steps in prop::collection::vec((0_u32..20, 0_u32..5, prop::bool::ANY), 1..150),
    ) {
        let (backend, policy) = (bounded(bound), policy("p", quota));
        let usage = || (0..20).map(|key| used(&backend, key, &policy)).collect::<Vec<_>>();
        for (key, cost, peeks) in steps {
            let (before, counted) = (usage(), evicted(&backend));
            let purpose = if peeks { Purpose::Peek } else { Purpose::Charge };
            let outcome = decide(&backend, purpose, &[pair(key, &policy, cost)]);
            let mut expected = before.clone();
            let is_charged = !peeks && outcome.is_ok_and(|decision| decision.is_admitted());
            if is_charged {
                expected[key as usize] += cost;
            }
            let after = usage();
            let lost: Vec<u32> = (0..20).filter(|i| after[*i] != expected[*i]).map(|i| expected[i]).collect();
            let units = u64::from(lost.iter().sum::<u32>());
            prop_assert!(lost.len() <= usize::from(is_charged) && lost.iter().all(|units| units * 2 < quota), "{lost:?}");
            prop_assert!(
                (0..20).all(|i| after[i] == expected[i] || after[i] == 0),
                "an eviction takes all usage of a key, and a check changes no other: {after:?} instead of {expected:?}"
            );
            prop_assert!(after[key as usize] == expected[key as usize], "no check evicts its own key");
            prop_assert_eq!(
                evicted(&backend), (counted.0 + lost.len() as u64, counted.1 + units),
                "every evicted unit is counted"
            );
            prop_assert!(backend.keys() <= bound, "the bound holds");
        }
    }
}

#[test]
fn shadow_pair_evicts_no_key_and_rejects_no_check() {
    for rule in [WhenFull::Evict, WhenFull::Reject] {
        for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek] {
            let backend = bounded(2).when_full(rule);
            let (ten, canary) = (policy("ten", 10), policy("canary", 10));
            assert_eq!(charge(&backend, 1, &ten, 1), Ok(true), "{purpose:?}: the bound has room");
            assert_eq!(charge(&backend, 2, &ten, 1), Ok(true), "{purpose:?}: the bound has room");
            // The key of the shadow pair is new, and that of the enforcing pair is stored.
            let pairs = [pair(3, &canary, 1).shadow(), pair(1, &ten, 1)];
            let decision = decide(&backend, purpose, &pairs).unwrap();
            assert!(decision.is_admitted(), "{rule:?} {purpose:?}: the enforcing pair is stored");
            assert_eq!(
                decision.statuses().iter().map(|it| it.policy().name()).collect::<Vec<_>>(),
                ["ten"],
                "{rule:?} {purpose:?}: a shadow pair without room has no status"
            );
            assert_eq!(
                decision.receipts().len(),
                if purpose == Purpose::Reserve { 2 } else { 0 },
                "{rule:?} {purpose:?}: only a reservation has receipts"
            );
            assert_eq!(
                (evicted(&backend), backend.keys()),
                ((0, 0), 2),
                "{rule:?} {purpose:?}: a shadow pair evicts no key"
            );
            // A stored key needs no room.
            let both = [pair(1, &canary, 1).shadow(), pair(1, &ten, 1)];
            assert_eq!(
                decide(&backend, purpose, &both).unwrap().statuses().len(),
                2,
                "{rule:?} {purpose:?}: a stored key needs no room"
            );
        }
    }
}

#[test]
fn keys_of_shadow_pairs_are_evicted_first() {
    let backend = bounded(2);
    let ten = policy("ten", 10);
    // The shadow pair uses its whole quota, and the enforcing pair less than half of it.
    assert!(
        decide(&backend, Purpose::Charge, &[pair(1, &ten, 10).shadow()]).unwrap().is_admitted(),
        "the bound has room"
    );
    assert_eq!(charge(&backend, 2, &ten, 4), Ok(true), "the bound has room");
    assert_eq!(charge(&backend, 3, &ten, 1), Ok(true), "the key of the shadow pair is evicted");
    assert_eq!(
        (used(&backend, 1, &ten), used(&backend, 2, &ten)),
        (0, 4),
        "the enforcing pair keeps its usage"
    );
}

/// The count of several charges has a form of its own, with a mark of its own.
#[test]
fn shadow_charge_keeps_enforced_usage_from_eviction() {
    for costs in [&[9][..], &[5, 4]] {
        let backend = bounded(2);
        let ten = policy("ten", 10);
        for &cost in costs {
            assert_eq!(charge(&backend, 1, &ten, cost), Ok(true), "the bound has room");
        }
        // The client sends one request for which the same policy is in shadow mode, and then invents keys.
        assert!(
            decide(&backend, Purpose::Charge, &[pair(1, &ten, 1).shadow()]).unwrap().is_admitted(),
            "a shadow pair of a stored key needs no room"
        );
        assert_eq!(charge(&backend, 2, &ten, 9), Ok(true), "the bound has room");
        assert_eq!(
            charge(&backend, 3, &ten, 1),
            Err(Reason::Full),
            "both keys are above half of their quota"
        );
        assert_eq!((used(&backend, 1, &ten), evicted(&backend)), (10, (0, 0)), "the enforced usage is kept");
    }
}

/// After a reload, a key counts by the lower quota.
#[test]
fn lower_quota_of_several_charges_keeps_key_from_eviction() {
    for (ten, four) in every_algorithm().into_iter().zip(every_algorithm_with_quota(4)) {
        let backend = bounded(1);
        for _ in 0..3 {
            assert_eq!(charge(&backend, 0, &ten, 1), Ok(true), "{ten:?}: the bound has room");
        }
        assert_eq!(charge(&backend, 0, &four, 1), Ok(true), "{ten:?}: the last unit of the lower quota");
        assert_eq!(charge(&backend, 1, &ten, 1), Err(Reason::Full), "{ten:?}: the quota is used up");
        assert_eq!((used(&backend, 0, &four), evicted(&backend)), (4, (0, 0)), "{ten:?}: the usage is kept");
    }
}

/// The release of an evicted request would return the units of others.
#[test]
fn units_of_shadow_pair_in_flight_are_never_evicted() {
    let backend = bounded(1);
    let exports = Policy::in_flight("exports", 3).unwrap();
    let shadow = decide(&backend, Purpose::Charge, &[pair(1, &exports, 3).shadow()]).unwrap();
    assert_eq!(charge(&backend, 2, &policy("p", 10), 1), Err(Reason::Full));
    assert_eq!(charge(&backend, 1, &exports, 1), Ok(false), "the shadow request holds all units");
    drop(shadow);
    assert_eq!(charge(&backend, 2, &policy("p", 10), 1), Ok(true));
}
