//! Reservations as tokens in the memory of this process.

use std::{sync::Barrier, thread, time::Duration};

use tower_sliding_window::{
    Costs, Limiter, MemoryBackend, OutageRule, Policy, RedisBackend, Reservation,
    backend::Reason,
    outage::Share,
    policy::Rate,
    settle::{Settled, TokenError, Unsettled},
    testing::ManualClock,
};

use super::{alice, now, one_policy::Wrapped, policy};
use crate::http::MINUTE;

fn limiter(memory: &MemoryBackend, policy: Policy) -> Limiter {
    Limiter::builder(memory.clone()).policy(policy).unsettled(Unsettled::Refund).build().unwrap()
}

fn remaining(limiter: &Limiter) -> u32 {
    now(limiter.peek((alice(), 0))).unwrap().statuses()[0].remaining()
}

fn token(limiter: &Limiter, cost: u32) -> Result<String, TokenError> {
    now(limiter.reserve((alice(), cost))).unwrap().into_token()
}

#[test]
fn reservation_becomes_one_token_and_is_not_refunded_when_dropped() {
    let limiter = limiter(&MemoryBackend::new(), policy("pages", 100));
    let reservation = now(limiter.reserve((alice(), 40))).unwrap();
    let token = reservation.clone().into_token().unwrap();
    assert!(matches!(reservation.clone().into_token(), Err(TokenError::Settled)));
    assert!(matches!(now(reservation.settle(0)), Settled::Already));
    drop(reservation);
    assert_eq!(remaining(&limiter), 60, "the charge belongs to the token");
    assert!(matches!(now(limiter.settle_token(&token, 12)), Ok(Settled::Done { .. })));
    assert!(matches!(now(limiter.settle_token(&token, 90)), Ok(Settled::Already)));
    assert_eq!(remaining(&limiter), 88);
}

#[test]
fn token_belongs_to_one_memory() {
    let token = token(&limiter(&MemoryBackend::new(), policy("pages", 100)), 40).unwrap();
    let other = now(limiter(&MemoryBackend::new(), policy("pages", 100)).settle_token(&token, 0));
    assert!(matches!(other, Err(TokenError::OtherMemory)), "{other:?}");
}

#[test]
fn memory_remembers_as_many_tokens_as_keys() {
    let clock = ManualClock::new();
    let memory = MemoryBackend::with_max_keys(100).unwrap().with_clock(&clock);
    let limiter = limiter(&memory, policy("pages", 1_000));
    let tokens: Vec<String> = (0..100).map(|_| token(&limiter, 1).unwrap()).collect();
    for token in &tokens[..50] {
        assert!(matches!(now(limiter.settle_token(token, 0)), Ok(Settled::Done { .. })));
    }
    let full = token(&limiter, 1);
    assert!(matches!(full, Err(TokenError::Backend(error)) if error.reason() == Reason::Full));
    assert_eq!(remaining(&limiter), 950, "the reservation without a token was refunded");
    assert!(matches!(now(limiter.settle_token(&tokens[0], 0)), Ok(Settled::Already)), "none is forgotten");
    clock.advance(MINUTE);
    assert!(matches!(now(limiter.settle_token(&tokens[0], 0)), Ok(Settled::Expired)));
    token(&limiter, 1).expect("expired tokens make room");
}

/// A memory without room makes no token. Whatever settles the reservation meanwhile takes effect.
#[test]
fn failed_token_loses_no_settlement() {
    let limiter = limiter(&MemoryBackend::with_max_keys(1).unwrap(), policy("pages", 1_000_000));
    let _only = token(&limiter, 1).unwrap();
    let settle = |reservation: &Reservation| {
        let settled = now(reservation.settle(1));
        assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
    };
    let meter = |reservation: &Reservation| reservation.meter().add(1);
    let settlements: [&(dyn Fn(&Reservation) + Sync); 2] = [&settle, &meter];
    for round in 0..2_000 {
        let reservation = now(limiter.reserve((alice(), 100))).unwrap();
        let (of_token, barrier) = (reservation.clone(), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                assert!(of_token.into_token().is_err());
            });
            barrier.wait();
            settlements[round % 2](&reservation);
        });
        assert_eq!(remaining(&limiter), 1_000_000 - 2 - round as u32, "round {round}");
    }
}

#[test]
fn overage_of_token_on_full_log_changes_nothing() {
    const MAX_RECORDS: u32 = 1 << 20;
    let clock = ManualClock::new();
    let memory = MemoryBackend::new().with_clock(&clock);
    let builder = Limiter::builder(memory).policy(policy("log", u32::MAX)).policy(policy("other", 100));
    let limiter = builder.build().unwrap();
    let one = Costs::new().policy("log", 1).policy("other", 0);
    let charge_one = || assert!(now(limiter.check((alice(), one.clone()))).unwrap().is_admitted());
    charge_one();
    clock.advance(Duration::from_secs(1));
    let token = token(&limiter, 10).unwrap();
    (2..MAX_RECORDS).for_each(|_| charge_one());
    let remains = |log_used: u32, other_used: u32, what: &str| {
        let decision = now(limiter.peek((alice(), 0))).unwrap();
        let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
        assert_eq!(left, [u32::MAX - log_used, 100 - other_used], "{what}");
    };
    let used = Costs::new().policy("log", 12).policy("other", 3);
    let settle = || now(limiter.settle_token(&token, used.clone()));
    let all = MAX_RECORDS - 1 + 10;
    for wait in [Duration::ZERO, MINUTE - Duration::from_secs(1) - Duration::from_micros(1)] {
        clock.advance(wait);
        let settled = settle();
        let is_full = matches!(&settled, Err(TokenError::Backend(error)) if error.reason() == Reason::Full);
        assert!(is_full, "{settled:?}");
        remains(all, 10, "nothing has changed");
    }
    clock.advance(Duration::from_micros(1));
    assert!(matches!(settle(), Ok(Settled::Done { .. })), "the oldest record has left");
    assert!(matches!(settle(), Ok(Settled::Already)));
    remains(all - 1 + 2, 3, "the overage is charged, and the rest is refunded");
}

#[test]
fn token_without_charge_in_store_has_nothing_to_settle() {
    let share = OutageRule::LocalFallback(Share::among(1).unwrap());
    for rule in [OutageRule::FailOpen, share] {
        let backend = RedisBackend::lazy("redis://127.0.0.1:1/").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limiter =
                Limiter::builder(backend.clone()).policy(policy("pages", 100)).outage(rule).build().unwrap();
            let token = limiter.reserve(alice()).await.unwrap().into_token().unwrap();
            assert_eq!(token.len(), 32);
            assert!(matches!(limiter.settle_token(&token, 5).await, Ok(Settled::Uncharged)));
        });
    }
}

#[test]
fn shadow_pair_without_charge_is_not_settled() {
    let memory = MemoryBackend::new();
    let builder = Limiter::builder(memory).policy(policy("pages", 100));
    let limiter = builder.policy(policy("small", 30).shadow()).build().unwrap();
    let token = token(&limiter, 40).unwrap();
    assert!(matches!(now(limiter.settle_token(&token, 50)), Ok(Settled::Done { .. })));
    let decision = now(limiter.peek((alice(), 0))).unwrap();
    let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
    assert_eq!(left, [50, 30], "only the enforced policy was charged");
}

#[test]
fn token_settles_eight_policies() {
    let builder = Limiter::builder(MemoryBackend::new());
    let policies = (0..8).map(|i| policy(&i.to_string(), 10));
    let limiter = policies.fold(builder, |builder, policy| builder.policy(policy)).build().unwrap();
    let token = token(&limiter, 10).unwrap();
    let remaining = || {
        let decision = now(limiter.peek((alice(), 0))).unwrap();
        decision.statuses().iter().map(|status| status.remaining()).collect::<Vec<_>>()
    };
    assert_eq!(remaining(), [0; 8]);
    let settled = now(limiter.settle_token(&token, 0));
    assert!(matches!(settled, Ok(Settled::Done { .. })), "{settled:?}");
    assert_eq!(remaining(), [10; 8]);
}

#[test]
fn other_backend_has_no_tokens() {
    let limiter = Limiter::builder(Wrapped(MemoryBackend::new()));
    let limiter = limiter.policy(policy("pages", 100)).build().unwrap();
    let unsupported = |error: TokenError| matches!(error, TokenError::Backend(error) if error.reason() == Reason::Unsupported);
    assert!(unsupported(token(&limiter, 1).unwrap_err()));
    assert!(unsupported(now(limiter.settle_token("token", 1)).unwrap_err()));
}

/// How long a settled token is remembered depends on the time in which a bucket is refilled.
#[test]
fn token_of_bucket_needs_its_capacity_and_rate() {
    let memory = MemoryBackend::new();
    let bucket = |capacity| Policy::token_bucket("bucket", capacity, Rate::per_second(10)).unwrap();
    let [small, large] = [20, 200].map(|capacity| limiter(&memory, bucket(capacity)));
    let token = token(&small, 10).unwrap();
    let error = now(large.settle_token(&token, 3)).unwrap_err();
    assert!(matches!(error, TokenError::UnknownPolicy { .. }), "{error:?}");
    assert!(matches!(now(small.settle_token(&token, 3)).unwrap(), Settled::Done { .. }));
    assert!(matches!(now(small.settle_token(&token, 3)).unwrap(), Settled::Already));
    let text = now(small.settle_token("hello123", 3)).unwrap_err();
    assert!(matches!(text, TokenError::Invalid), "{text:?}");
}
