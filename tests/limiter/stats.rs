//! The counters of a limiter, and the keys that are denied most.

use tokio::time::advance;
use tower_sliding_window::{
    Decision, Limiter, LimiterBuilder, MemoryBackend, PartitionKey,
    backend::{Backend, BackendError, Check, Pair, Reason, Refund},
    outage::Breaker,
    testing::FakeAnswer::{Admit, Deny, Unavailable},
    testing::{FakeBackend, ManualClock},
};

use super::{alice, policy};
use crate::http::{MINUTE, SECOND};

/// A backend that never answers immediately, and whose denials hold.
pub struct Remote(pub FakeBackend);

impl Backend for Remote {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.check(check).await
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.0.refund(refund).await
    }

    fn denials_hold(&self) -> bool {
        true
    }
}

pub fn user(i: usize) -> PartitionKey {
    PartitionKey::new("user", i.to_be_bytes())
}

#[tokio::test(start_paused = true)]
async fn stats_count_each_outcome_and_no_peek() {
    let wait = tower_sliding_window::Wait::For(MINUTE);
    let down = [Unavailable(Reason::Busy), Unavailable(Reason::Full)];
    let answers = [&[Admit, Admit, Deny(wait)][..], &down].concat();
    let backend = Remote(FakeBackend::scripted(answers).failing_settlements(Reason::Connection));
    let limiter = Limiter::builder(backend).policy(policy("p", 10)).build().unwrap();
    let clone = limiter.clone();
    let _ = limiter.peek(alice()).await.unwrap();
    limiter.reserve(alice()).await.unwrap().settle(0).await;
    for _ in 0..3 {
        // The second and the third come from the deny cache.
        assert!(!clone.check(alice()).await.unwrap().is_admitted());
    }
    for i in 0..2 {
        limiter.check(user(i)).await.unwrap_err();
    }
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.denied, stats.denied_from_cache), (1, 3, 2));
    assert_eq!((stats.unavailable, stats.lost_settlements), (2, 1));
    assert_eq!(stats.reasons, [(Reason::Busy, 1), (Reason::Full, 1)]);
    assert_eq!(clone.stats(), stats);
}

/// 100,000 keys with one denial each, and 5 keys with 2,000 each.
#[tokio::test]
async fn most_denied_keys_survive_many_rare_keys() {
    let limiter = Limiter::builder(MemoryBackend::new()).policy(policy("p", 1)).build().unwrap();
    let mut rare = 1_000..101_000;
    for _ in 0..2_000 {
        for key in (0..5).chain(rare.by_ref().take(50)) {
            // The cost is above the quota, so the backend stores nothing.
            assert!(!limiter.check((user(key), 2)).await.unwrap().is_admitted());
        }
    }
    let most = limiter.most_denied(5);
    for denied in &most {
        assert!((0..5).any(|key| denied.key == user(key)), "{most:?}");
        assert!((2_000..=3_000).contains(&denied.denials), "{most:?}");
        assert!(denied.denials - denied.excess <= 2_000, "{most:?}");
    }
    assert_eq!((most.len(), limiter.most_denied(1_000).len()), (5, 128));
}

/// A backend that never answers immediately, over a memory.
struct Far(MemoryBackend);

impl Backend for Far {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.check(check).await
    }

    fn denials_hold(&self) -> bool {
        true
    }
}

/// Returns the denied keys, if two keys have one policy, and the second one denies.
async fn denied_pairs(limiter: &Limiter) -> Vec<(PartitionKey, u64)> {
    let pair = |key| Pair::new(user(key), policy("p", 1), 1);
    let check = async |pairs: Vec<Pair>| limiter.check(pairs).await.unwrap().is_admitted();
    assert!(check(vec![pair(2)]).await);
    for _ in 0..3 {
        assert!(!check(vec![pair(0).shadow(), pair(1), pair(2)]).await);
    }
    limiter.most_denied(9).into_iter().map(|denied| (denied.key, denied.denials)).collect()
}

#[tokio::test(start_paused = true)]
async fn most_denied_key_is_that_of_denying_pair() {
    let limiter = |builder: LimiterBuilder| builder.without_policies().build().unwrap();
    let memory = || MemoryBackend::new().with_clock(&ManualClock::new());
    // The second and the third denial come from the deny cache.
    let far = limiter(Limiter::builder(Far(memory())));
    let of_far = denied_pairs(&far).await;
    assert_eq!(far.stats().denied_from_cache, 2);
    let of_memory = denied_pairs(&limiter(Limiter::builder(memory()))).await;
    assert_eq!([of_memory, of_far], [[(user(2), 3)], [(user(2), 3)]]);
}

#[tokio::test(start_paused = true)]
async fn stats_count_settlements_that_took_effect() {
    let limiter = Limiter::builder(Remote(FakeBackend::admitting())).policy(policy("p", 10)).build().unwrap();
    for used in [0, 1, 2] {
        let reservation = limiter.reserve(alice()).await.unwrap();
        reservation.settle(used).await;
        // The second settlement has no effect.
        reservation.settle(0).await;
    }
    assert_eq!((limiter.stats().settlements, limiter.stats().lost_settlements), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn stats_report_state_of_breaker() {
    let down = Unavailable(Reason::Connection);
    let builder =
        |answers: Vec<_>| Limiter::builder(Remote(FakeBackend::scripted(answers))).policy(policy("p", 10));
    let breaker = Breaker::new(2, SECOND);
    let limiter = builder(vec![down, down, Admit]).breaker(breaker).build().unwrap();
    let state = || {
        let breakers = limiter.stats().breakers;
        assert_eq!((breakers.len(), &*breakers[0].server), (1, "custom backend, namespace tsw"));
        breakers[0].state.to_string()
    };
    assert_eq!(state(), "closed");
    limiter.check(alice()).await.unwrap_err();
    assert_eq!(state(), "closed");
    limiter.check(alice()).await.unwrap_err();
    assert_eq!(state(), "open");
    advance(SECOND).await;
    assert_eq!(state(), "half-open");
    let _ = limiter.check(alice()).await.unwrap();
    assert_eq!(state(), "closed");
    let without = builder(vec![down]).breaker(None).build().unwrap();
    assert_eq!(without.stats().breakers, []);
}
