//! Settlements that wait for a backend which does not answer at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{runtime::Builder, sync::Semaphore, task::yield_now, time::Instant};
use tower_sliding_window::{
    Costs, Decision, Limiter, LimiterBuilder, Reservation,
    backend::{Backend, BackendError, Check, Purpose, Reason, Refund},
    settle::Settled,
    testing::FakeBackend,
};

use super::{alice, now, policy};
use crate::http::Later;

fn build(builder: LimiterBuilder) -> Limiter {
    builder.policy(policy("ten", 10)).build().unwrap()
}

async fn reserve(limiter: &Limiter) -> Reservation {
    limiter.reserve(alice(), 5).await.unwrap()
}

/// Answers checks at once, and refunds when it is allowed to.
#[derive(Clone)]
struct Gate {
    fake: FakeBackend,
    open: Arc<Semaphore>,
    /// Those that are under way, and the most of them at one time.
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Gate {
    fn closed() -> Self {
        let open = Arc::new(Semaphore::new(0));
        Self { fake: FakeBackend::admitting(), open, inside: Arc::default(), most: Arc::default() }
    }
}

impl Backend for Gate {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.fake.check(check).await
    }
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        self.fake.check_now(check)
    }
    fn changes_charges(&self) -> bool {
        true
    }
    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        self.most.fetch_max(self.inside.fetch_add(1, SeqCst) + 1, SeqCst);
        self.open.acquire().await.unwrap().forget();
        self.inside.fetch_sub(1, SeqCst);
        self.fake.refund(refund).await
    }
}

#[tokio::test]
async fn it_begins_at_once_and_does_not_need_to_be_awaited() {
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Later(backend.clone())));
    drop(reserve(&limiter).await.settle(2));
    // More than was charged waits behind the same queue.
    drop(reserve(&limiter).await.settle(7));
    assert_eq!(backend.refunds().len(), 0);
    limiter.drain().await;
    assert_eq!(backend.refunds()[0].pairs[0].units, 3);
    assert_eq!(backend.checks()[2].pairs[0].cost, 2);
    assert_eq!(limiter.lost_settlements(), 0);
    assert!(matches!(reserve(&limiter).await.settle(2).await, Settled::Done));
}

#[tokio::test]
async fn draining_waits_for_the_last_one_and_does_not_wait_where_there_is_none() {
    let backend = Gate::closed();
    let limiter = build(Limiter::builder(backend.clone()));
    now(limiter.drain());
    for _ in 0..20 {
        reserve(&limiter).await.settle(0);
    }
    let drained = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.drain().await }
    });
    for allowed in 0..20 {
        for _ in 0..50 {
            yield_now().await;
        }
        assert!(!drained.is_finished(), "{allowed}");
        backend.open.add_permits(1);
    }
    drained.await.unwrap();
    assert_eq!((backend.fake.refunds().len(), limiter.lost_settlements()), (20, 0));
    assert_eq!(backend.most.load(SeqCst), 8, "so many are under way at once, and no more");
    // And it is worked off again when something comes.
    backend.open.add_permits(1);
    assert!(matches!(reserve(&limiter).await.settle(0).await, Settled::Done));
}

#[tokio::test]
async fn one_that_finds_no_place_is_lost_and_counted_and_those_before_it_are_not() {
    let backend = Gate::closed();
    let limiter = build(Limiter::builder(backend.clone()).settlement_queue(3));
    // Eight are taken up, so three more wait.
    let mut settlements = Vec::new();
    for _ in 0..8 {
        settlements.push(reserve(&limiter).await.settle(0));
        yield_now().await;
    }
    for _ in 0..5 {
        settlements.push(reserve(&limiter).await.settle(0));
    }
    assert_eq!(limiter.lost_settlements(), 2);
    backend.open.add_permits(20);
    let mut outcomes = Vec::new();
    for settlement in settlements {
        outcomes.push(match settlement.await {
            Settled::Done => "done",
            Settled::Lost(error) if error.reason() == Reason::Full => "full",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(outcomes, [vec!["done"; 11], vec!["full"; 2]].concat());
    assert_eq!((backend.fake.refunds().len(), limiter.lost_settlements()), (11, 2));
}

#[test]
fn an_impossible_queue_cannot_be_built() {
    for given in [0, (1 << 20) + 1] {
        let builder = Limiter::builder(FakeBackend::admitting()).policy(policy("p", 1));
        let text = builder.settlement_queue(given).build().unwrap_err().to_string();
        assert_eq!(text, format!("a queue of {given} settlements: it must be 1 to 1048576"));
    }
    build(Limiter::builder(FakeBackend::admitting()).settlement_queue(1 << 20));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_answered_is_lost_at_the_deadline_and_sent_once() {
    let backend = FakeBackend::admitting().hanging_settlements();
    let limiter = build(Limiter::builder(backend.clone()).deadline(Duration::from_secs(3)));
    let start = Instant::now();
    let settlement = reserve(&limiter).await.settle(0);
    assert_eq!(start.elapsed(), Duration::ZERO);
    let outcome = settlement.await;
    assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::Timeout));
    assert!((3_000..3_010).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    limiter.drain().await;
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (1, 1));
}

#[tokio::test]
async fn one_that_fails_is_lost_and_sent_once() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::Connection);
    let limiter = build(Limiter::builder(Later(backend.clone())));
    let outcome = reserve(&limiter).await.settle(0).await;
    assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::Connection));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (1, 1));
}

#[test]
fn without_a_runtime_it_is_lost_and_no_panic() {
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Later(backend.clone())));
    let runtime = Builder::new_current_thread().build().unwrap();
    // The check may run anywhere; `Later` needs no timer.
    let limiter_there = limiter.clone();
    let reservation = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(reserve(&limiter_there))
    });
    let reservation = reservation.join().unwrap();
    let outcome = now(reservation.settle(0));
    assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::Other));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (0, 1));
    now(limiter.drain());
    drop(runtime);
}

#[test]
fn those_that_wait_when_their_runtime_ends_are_lost_and_counted() {
    let backend = Gate::closed();
    let limiter = build(Limiter::builder(backend.clone()).deadline(Duration::from_secs(60)));
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let settlements = runtime.block_on(async {
        let mut settlements = Vec::new();
        for _ in 0..20 {
            settlements.push(reserve(&limiter).await.settle(0));
            yield_now().await;
        }
        settlements
    });
    assert_eq!(limiter.lost_settlements(), 0);
    drop(runtime);
    assert_eq!(limiter.lost_settlements(), 20);
    for settlement in settlements {
        assert!(matches!(now(settlement), Settled::Lost(_)));
    }
    // Nobody waits for those, and another runtime goes on.
    backend.open.add_permits(1);
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        limiter.drain().await;
        assert!(matches!(reserve(&limiter).await.settle(0).await, Settled::Done));
    });
    assert_eq!((backend.fake.refunds().len(), limiter.lost_settlements()), (1, 20));
}

#[tokio::test]
async fn what_waits_is_worked_off_although_the_limiter_is_gone() {
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Later(backend.clone())));
    let settlement = reserve(&limiter).await.settle(0);
    drop(limiter);
    assert!(matches!(settlement.await, Settled::Done));
    assert_eq!(backend.refunds().len(), 1);
}

#[tokio::test]
async fn a_backend_that_panics_loses_its_own_settlements_and_no_others() {
    /// Panics at the first eight refunds, which is as many as are under way at once.
    #[derive(Clone)]
    struct Panics(FakeBackend, Arc<AtomicUsize>);
    impl Backend for Panics {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            self.0.check(check).await
        }
        fn changes_charges(&self) -> bool {
            true
        }
        async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
            yield_now().await;
            assert!(self.1.fetch_add(1, SeqCst) >= 8, "as it is meant to");
            self.0.refund(refund).await
        }
    }
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Panics(backend.clone(), Arc::default())));
    for _ in 0..20 {
        reserve(&limiter).await.settle(0);
    }
    limiter.drain().await;
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (12, 8));
}

/// Of one policy less was used than charged, of the other more.
async fn reserve_two(backend: impl Backend) -> (Limiter, Reservation, Costs) {
    let builder = Limiter::builder(backend).policy(policy("less", 10)).policy(policy("more", 10));
    let limiter = builder.build().unwrap();
    let reservation = reserve(&limiter).await;
    (limiter, reservation, Costs::new().policy("less", 4).policy("more", 7))
}

#[tokio::test]
async fn what_is_more_is_charged_although_what_is_less_did_not_go_back_and_it_is_one_loss() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::Busy);
    let (limiter, reservation, used) = reserve_two(Later(backend.clone())).await;
    assert!(matches!(reservation.settle(used).await, Settled::Lost(_)));
    let overage = &backend.checks()[1];
    assert_eq!((overage.purpose, overage.pairs[0].cost), (Purpose::Overage, 2));
    assert_eq!((overage.pairs.len(), backend.refunds().len(), limiter.lost_settlements()), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn each_half_of_a_settlement_has_one_deadline() {
    let backend = FakeBackend::admitting().hanging_settlements();
    let (limiter, reservation, used) = reserve_two(backend.clone()).await;
    let start = Instant::now();
    assert!(matches!(reservation.settle(used).await, Settled::Lost(_)));
    assert!((200..210).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!((backend.checks().len(), backend.refunds().len(), limiter.lost_settlements()), (2, 1, 1));
}

#[tokio::test]
async fn a_half_that_fails_at_once_is_lost_though_the_other_one_waits_and_is_done() {
    /// Refuses refunds at once, and charges later.
    struct Half(FakeBackend);
    impl Backend for Half {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            yield_now().await;
            self.0.check(check).await
        }
        fn changes_charges(&self) -> bool {
            true
        }
        fn refund_now(&self, _refund: &Refund) -> Option<Result<(), BackendError>> {
            Some(Err(BackendError::new(Reason::ReadOnly)))
        }
    }
    let backend = FakeBackend::admitting();
    let (limiter, reservation, used) = reserve_two(Half(backend.clone())).await;
    let outcome = reservation.settle(used).await;
    assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::ReadOnly));
    assert_eq!((backend.checks().len(), limiter.lost_settlements()), (2, 1));
}
