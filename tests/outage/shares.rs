//! The local share: no window holds more of it than it is, and nobody is refused who would have fitted.

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
    fn no_window_holds_more_than_the_share_and_nobody_is_refused_who_would_have_fitted(
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
            prop_assert_eq!(is_admitted(&now(limiter.admit(alice(), cost))), fits, "{} of {}", used, share);
            if fits {
                log.push((at, cost));
            }
        }
    }
}

#[test]
fn all_processes_together_stay_within_the_quota() {
    for (quota, processes) in [(10, 3), (10, 4), (7, 7), (100, 9), (3, 4), (u32::MAX, 2)] {
        let granted = |_| {
            let (_clock, limiter) = limiter(&[policy("p", quota)], local(processes));
            let share = quota / processes;
            // The whole share at once, and then not a unit more.
            let all = is_admitted(&now(limiter.admit(alice(), share.max(1))));
            assert!(!is_admitted(&now(limiter.admit(alice(), 1))));
            if all { u64::from(share) } else { 0 }
        };
        let total: u64 = (0..processes).map(granted).sum();
        assert!(total <= u64::from(quota), "{total} of {quota}");
        assert!(total + u64::from(processes) > u64::from(quota), "{total} of {quota}");
    }
}

#[test]
fn a_cost_above_the_share_is_refused_and_the_share_is_kept() {
    let (_clock, limiter) = limiter(&[policy("p", 10)], local(3));
    assert!(!is_admitted(&now(limiter.admit(alice(), 4))));
    // Above the quota even: it is no *never* here.
    assert!(!is_admitted(&now(limiter.admit(alice(), 11))));
    assert!(is_admitted(&now(limiter.admit(alice(), 3))));
}

#[test]
fn where_a_share_is_0_only_what_costs_nothing_of_it_is_admitted() {
    let (_clock, limiter) = limiter(&[policy("few", 3), policy("many", 100)], local(4));
    assert!(!is_admitted(&now(limiter.admit(alice(), 1))));
    let free = |many| now(limiter.admit(alice(), Costs::new().policy("few", 0).policy("many", many)));
    assert!(is_admitted(&free(25)));
    assert!(!is_admitted(&free(1)));
    // What is left of such a check, nothing included, is what is told.
    let admission = free(0).unwrap();
    let decided = admission.local().expect("the local fallback has decided");
    let names: Vec<_> = decided.decision().statuses().iter().map(|status| status.policy().name()).collect();
    assert_eq!(names, ["many"]);
    let (_clock, nothing) = limiter_of_few();
    let admission = now(nothing.admit(alice(), 0)).unwrap();
    let decided = admission.local().expect("the local fallback has decided");
    assert!(decided.decision().statuses().is_empty());
}

fn limiter_of_few() -> (ManualClock, Limiter) {
    limiter(&[policy("few", 3)], local(4))
}

#[test]
fn all_policies_are_charged_locally_or_none() {
    let (_clock, limiter) = limiter(&[policy("a", 10), policy("b", 20)], local(2));
    assert!(is_admitted(&now(limiter.admit(alice(), 4))));
    // The one has no room for this, so the other keeps its own.
    assert!(!is_admitted(&now(limiter.admit(alice(), 3))));
    let rest = Costs::new().policy("a", 1).policy("b", 6);
    assert!(is_admitted(&now(limiter.admit(alice(), rest))));
}

#[test]
fn a_share_counts_as_its_policy_does_and_each_key_for_itself() {
    let fixed = Policy::new("p", 10, SECOND).unwrap().with_algorithm(Algorithm::FixedWindow).unwrap();
    let (clock, limiter) = limiter(&[fixed], local(2));
    clock.advance(SECOND / 2);
    assert!(is_admitted(&now(limiter.admit(alice(), 5))));
    assert!(!is_admitted(&now(limiter.admit(alice(), 1))));
    assert!(is_admitted(&now(limiter.admit(PartitionKey::new("user", "bob"), 5))));
    // A calendar window has ended, and no whole one has passed.
    clock.advance(SECOND / 2);
    assert!(is_admitted(&now(limiter.admit(alice(), 5))));
}

#[test]
fn limiters_that_are_given_one_memory_share_what_they_grant() {
    let memory = MemoryBackend::new();
    let limiter = || on(down()).outage(local(2)).local_memory(memory.clone()).build().unwrap();
    let (one, other, alone) = (limiter(), limiter(), on(down()).outage(local(2)).build().unwrap());
    assert!(is_admitted(&now(one.admit(alice(), 5))));
    assert!(!is_admitted(&now(other.admit(alice(), 1))));
    assert!(is_admitted(&now(alone.admit(alice(), 5))));
    assert_eq!(memory.keys(), 1);
}

#[test]
fn the_local_memory_is_not_touched_while_the_store_answers() {
    let memory = MemoryBackend::new();
    for backend in [FakeBackend::admitting(), FakeBackend::denying(SECOND)] {
        let limiter = on(backend).outage(local(1)).local_memory(memory.clone()).build().unwrap();
        let _ = now(limiter.admit(alice(), 1));
    }
    assert_eq!(memory.keys(), 0);
}

#[test]
fn a_window_that_touches_a_seam_may_hold_twice_the_quota_and_no_more() {
    // One process with the whole quota. The store has granted it, is gone, and comes back as it was.
    let clock = ManualClock::new();
    let store = MemoryBackend::new().with_clock(&clock);
    let up = on(store.clone()).build().unwrap();
    let memory = MemoryBackend::new().with_clock(&clock);
    let rule = OutageRule::LocalFallback(Share::whole());
    let outage = on(down()).outage(rule).local_memory(memory).build().unwrap();
    let granted = |limiter: &Limiter| {
        let mut units = 0;
        while now(limiter.admit(alice(), 1)).is_ok() {
            units += 1;
        }
        units
    };
    assert_eq!([&up, &outage, &up, &outage].map(granted), [10, 10, 0, 0]);
    clock.advance(MINUTE);
    // It comes back without its data.
    assert_eq!([&up, &outage].map(granted), [10, 10]);
    now(up.reset(alice())).unwrap();
    assert_eq!([&up, &outage].map(granted), [10, 0]);
}

#[test]
fn several_keys_are_decided_locally_as_one() {
    let limiter = Limiter::builder(down()).policy(policy("user", 10)).outage(local(2)).build().unwrap();
    let all = policy("all", 14);
    let protocol = by(move |user: &&'static str| {
        let key = PartitionKey::new("all", "everybody");
        Draft::check(PartitionKey::new("user", *user), 3).and(Draft::check_against(key, all.clone().into(), 1))
    });
    let limits = RateLimitLayer::new(
        limiter,
        protocol.reject_with(|_, rejection| Err(matches!(rejection, Rejection::LocalFallbackDenied(_)))),
    );
    let service = limits.layer(service_fn(|user: &'static str| ready(Ok::<_, bool>(user))));
    let ask = |user| now(service.clone().oneshot(user));
    assert_eq!(ask("alice"), Ok("alice"));
    // Her own share of five has no room, so nobody else is charged for her.
    assert_eq!(ask("alice"), Err(true));
    for user in ["bob", "carol", "dave", "eve", "frank", "grace"] {
        assert_eq!(ask(user), Ok(user));
    }
    // The seven of all are used up.
    assert_eq!(ask("heidi"), Err(true));
}
