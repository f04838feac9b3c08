//! Local fallback: a window holds at most the local share, and a request is rejected only if it exceeds the share.

use std::{future::ready, time::Duration};

use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Admission, Algorithm, Costs, Limiter, MemoryBackend, OutageRule, PartitionKey, Policy, RateLimitLayer,
    Rejection,
    backend::Reason,
    by,
    outage::Share,
    protocol::Draft,
    testing::{FakeBackend, ManualClock},
};

use super::{MINUTE, SECOND, alice, local, on, policy};
use crate::http::probe::now;

fn down() -> FakeBackend {
    FakeBackend::unavailable(Reason::Connection)
}

fn limiter(policies: &[Policy], rule: OutageRule) -> (ManualClock, Limiter) {
    let clock = ManualClock::new();
    let memory = MemoryBackend::new().with_clock(&clock);
    let builder = Limiter::builder(down()).outage(rule).local_memory(memory);
    let builder = policies.iter().cloned().fold(builder, |builder, policy| builder.policy(policy));
    (clock, builder.build().unwrap())
}

fn is_admitted(outcome: &Result<Admission, Rejection>) -> bool {
    match outcome {
        Ok(admission) if admission.local().is_some() && admission.reservation().is_none() => true,
        Err(Rejection::LocalFallbackDenied(_)) => false,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn local_fallback_admits_exactly_its_share(
        quota in 1_u32..60,
        processes in 1_u32..9,
        steps in prop::collection::vec((0_u64..4_000, 0_u32..9), 1..80),
    ) {
        let window = 10 * SECOND;
        let (clock, limiter) = limiter(&[Policy::new("p", quota, window).unwrap()], local(processes));
        let share = quota / processes;
        let mut log: Vec<(u64, u32)> = Vec::new();
        for (millis, cost) in steps {
            clock.advance(Duration::from_millis(millis));
            let at = clock.now_micros();
            let counts = |(when, _): &&(u64, u32)| at < when + window.as_micros() as u64;
            let used: u32 = log.iter().filter(counts).map(|(_, cost)| cost).sum();
            let fits = cost == 0 || used + cost <= share;
            prop_assert_eq!(is_admitted(&now(limiter.admit((alice(), cost)))), fits, "{} of {}", used, share);
            if fits {
                log.push((at, cost));
            }
        }
    }
}

#[test]
fn shares_of_all_processes_never_exceed_quota() {
    for (quota, processes) in [(10, 3), (10, 4), (7, 7), (100, 9), (3, 4), (u32::MAX, 2)] {
        let granted = |_| {
            let (_clock, limiter) = limiter(&[policy("p", quota)], local(processes));
            let share = quota / processes;
            // The limiter admits the whole share, and then no more units.
            let all = is_admitted(&now(limiter.admit((alice(), share.max(1)))));
            assert!(
                !is_admitted(&now(limiter.admit(alice()))),
                "{share} units of {quota}: the share is used"
            );
            if all { u64::from(share) } else { 0 }
        };
        let total: u64 = (0..processes).map(granted).sum();
        assert!(total <= u64::from(quota), "{total} of {quota}");
        assert!(total + u64::from(processes) > u64::from(quota), "{total} of {quota}");
    }
}

#[test]
fn rejected_cost_above_share_charges_nothing() {
    let (_clock, limiter) = limiter(&[policy("p", 10)], local(3));
    assert!(!is_admitted(&now(limiter.admit((alice(), 4)))), "a cost above the share is rejected");
    // A cost above the quota is also rejected as a local fallback denial.
    assert!(!is_admitted(&now(limiter.admit((alice(), 11)))), "a cost above the quota is rejected");
    assert!(is_admitted(&now(limiter.admit((alice(), 3)))), "rejected costs charge nothing");
}

#[test]
fn empty_share_admits_only_zero_cost() {
    let (_clock, limiter) = limiter(&[policy("few", 3), policy("many", 100)], local(4));
    assert!(!is_admitted(&now(limiter.admit(alice()))), "the policy `few` has no share");
    let free = |many| now(limiter.admit((alice(), Costs::new().policy("few", 0).policy("many", many))));
    assert!(is_admitted(&free(25)), "the policy `few` is not charged, and the share of `many` fits");
    assert!(!is_admitted(&free(1)), "the share of `many` is used");
    // The decision has only the policies with a local share. It may have none.
    let admission = free(0).unwrap();
    let decided = admission.local().expect("the local fallback has decided");
    let names: Vec<_> = decided.decision().statuses().iter().map(|status| status.policy().name()).collect();
    assert_eq!(names, ["many"], "only a policy with a share has a status");
    let (_clock, nothing) = limiter_of_few();
    let admission = now(nothing.admit((alice(), 0))).unwrap();
    let decided = admission.local().expect("the local fallback has decided");
    assert!(decided.decision().statuses().is_empty(), "no policy has a share");
}

fn limiter_of_few() -> (ManualClock, Limiter) {
    limiter(&[policy("few", 3)], local(4))
}

#[test]
fn local_fallback_charges_all_policies_or_none() {
    let (_clock, limiter) = limiter(&[policy("a", 10), policy("b", 20)], local(2));
    assert!(is_admitted(&now(limiter.admit((alice(), 4)))), "both shares fit the cost");
    // One policy has no room for this cost, so the other policy is not charged.
    assert!(!is_admitted(&now(limiter.admit((alice(), 3)))), "one unit of `a` remains");
    let rest = Costs::new().policy("a", 1).policy("b", 6);
    assert!(is_admitted(&now(limiter.admit((alice(), rest)))), "the rejected cost charges neither policy");
}

#[test]
fn share_uses_policy_algorithm_for_each_key() {
    let fixed = Policy::new("p", 10, SECOND).unwrap().with_algorithm(Algorithm::FixedWindow).unwrap();
    let (clock, limiter) = limiter(&[fixed], local(2));
    clock.advance(SECOND / 2);
    assert!(is_admitted(&now(limiter.admit((alice(), 5)))), "the share is half of the quota");
    assert!(!is_admitted(&now(limiter.admit(alice()))), "the share is used");
    assert!(
        is_admitted(&now(limiter.admit((PartitionKey::new("user", "bob"), 5)))),
        "another key has its own share"
    );
    // A calendar window has ended after half of its length.
    clock.advance(SECOND / 2);
    assert!(is_admitted(&now(limiter.admit((alice(), 5)))), "a new calendar window has its own share");
}

#[test]
fn limiters_with_one_memory_share_local_usage() {
    let memory = MemoryBackend::new();
    let limiter = || on(down()).outage(local(2)).local_memory(memory.clone()).build().unwrap();
    let (one, other, alone) = (limiter(), limiter(), on(down()).outage(local(2)).build().unwrap());
    assert!(is_admitted(&now(one.admit((alice(), 5)))), "the share is half of the quota");
    assert!(!is_admitted(&now(other.admit(alice()))), "the limiters share the usage of their memory");
    assert!(is_admitted(&now(alone.admit((alice(), 5)))), "a limiter has a memory of its own by default");
    assert_eq!(memory.keys(), 1, "both limiters use one key");
}

#[test]
fn local_memory_stores_nothing_while_store_answers() {
    let memory = MemoryBackend::new();
    for backend in [FakeBackend::admitting(), FakeBackend::denying(SECOND)] {
        let limiter = on(backend).outage(local(1)).local_memory(memory.clone()).build().unwrap();
        let _ = now(limiter.admit(alice()));
    }
    assert_eq!(memory.keys(), 0, "the local fallback decides only in an outage");
}

#[test]
fn outage_edge_admits_at_most_twice_quota() {
    // One process has the whole quota as its share. The store admits the quota, fails, and recovers with its data.
    let clock = ManualClock::new();
    let store = MemoryBackend::new().with_clock(&clock);
    let up = on(store.clone()).build().unwrap();
    let memory = MemoryBackend::new().with_clock(&clock);
    let rule = OutageRule::LocalFallback(Share::whole());
    let outage = on(down()).outage(rule).local_memory(memory).build().unwrap();
    let granted = |limiter: &Limiter| {
        let mut units = 0;
        while now(limiter.admit(alice())).is_ok() {
            units += 1;
        }
        units
    };
    assert_eq!(
        [&up, &outage, &up, &outage].map(granted),
        [10, 10, 0, 0],
        "the quota of the store, and the share once"
    );
    clock.advance(MINUTE);
    // The store recovers without its data.
    assert_eq!([&up, &outage].map(granted), [10, 10], "the window has passed");
    now(up.reset(alice())).unwrap();
    assert_eq!(
        [&up, &outage].map(granted),
        [10, 0],
        "the reset restores the quota of the store, not the share"
    );
}

#[test]
fn local_fallback_decides_several_keys_together() {
    let limiter = Limiter::builder(down()).policy(policy("user", 10)).outage(local(2)).build().unwrap();
    let all = policy("all", 14);
    let protocol = by(move |user: &&'static str| {
        let key = PartitionKey::new("all", "all users");
        Draft::check(PartitionKey::new("user", *user), 3).and(Draft::check_against(key, all.clone(), 1))
    });
    let limits = RateLimitLayer::new(
        limiter,
        protocol.reject_with(|_, rejection| Err(matches!(rejection, Rejection::LocalFallbackDenied(_)))),
    );
    let service = limits.layer(service_fn(|user: &'static str| ready(Ok::<_, bool>(user))));
    let send = |user| now(service.clone().oneshot(user));
    assert_eq!(send("alice"), Ok("alice"), "both shares fit the request");
    // Alice's own share of five has no room, so the shared key is not charged.
    assert_eq!(send("alice"), Err(true), "two units of alice's share remain");
    for user in ["bob", "carol", "dave", "eve", "frank", "grace"] {
        assert_eq!(send(user), Ok(user), "the shared key has a unit for each user");
    }
    // The seven units of the shared key are exhausted.
    assert_eq!(send("heidi"), Err(true), "the shared key has no unit left");
}
