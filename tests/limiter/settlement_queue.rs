//! The queue of settlements that wait for a slow backend.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::Semaphore,
    task::yield_now,
    time::{Instant, interval, sleep, timeout},
};
use tower_sliding_window::{
    Costs, Decision, Limiter, LimiterBuilder, Reservation,
    backend::{Backend, BackendError, Check, Purpose, Reason, Refund},
    settle::{Settled, Unsettled},
    testing::FakeBackend,
};

use super::{alice, now, policy};
use crate::http::Later;

fn build(builder: LimiterBuilder) -> Limiter {
    builder.policy(policy("ten", 10)).build().unwrap()
}

async fn reserve(limiter: &Limiter) -> Reservation {
    limiter.reserve((alice(), 5)).await.unwrap()
}

/// A backend that answers checks at once. It answers refunds when the test opens the gate.
#[derive(Clone)]
struct Gate {
    fake: FakeBackend,
    open: Arc<Semaphore>,
    /// The number of refunds in flight, and its maximum.
    in_flight: Arc<AtomicUsize>,
    max_checks_in_flight: Arc<AtomicUsize>,
}

impl Gate {
    fn closed() -> Self {
        let open = Arc::new(Semaphore::new(0));
        Self {
            fake: FakeBackend::admitting(),
            open,
            in_flight: Arc::default(),
            max_checks_in_flight: Arc::default(),
        }
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
    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.max_checks_in_flight.fetch_max(self.in_flight.fetch_add(1, SeqCst) + 1, SeqCst);
        self.open.acquire().await.unwrap().forget();
        self.in_flight.fetch_sub(1, SeqCst);
        self.fake.refund(refund).await
    }
}

#[tokio::test]
async fn settlement_runs_without_await() {
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Later(backend.clone())));
    drop(reserve(&limiter).await.settle(2));
    // An overage waits in the same queue.
    drop(reserve(&limiter).await.settle(7));
    assert_eq!(backend.refunds().len(), 0);
    limiter.drain().await;
    assert_eq!(backend.refunds()[0].pairs[0].units, 3);
    assert_eq!(backend.checks()[2].pairs[0].cost, 2);
    assert_eq!(limiter.lost_settlements(), 0);
    assert!(matches!(reserve(&limiter).await.settle(2).await, Settled::Done { .. }));
}

#[tokio::test]
async fn drain_waits_for_last_settlement() {
    let backend = Gate::closed();
    let limiter = build(Limiter::builder(backend.clone()).max_checks_in_flight(8));
    now(limiter.drain());
    for _ in 0..20 {
        reserve(&limiter).await.settle(0);
    }
    let drained = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.drain().await }
    });
    for permit in 0..20 {
        for _ in 0..50 {
            yield_now().await;
        }
        assert!(!drained.is_finished(), "{permit}");
        backend.open.add_permits(1);
    }
    drained.await.unwrap();
    assert_eq!((backend.fake.refunds().len(), limiter.lost_settlements()), (20, 0));
    assert_eq!(
        backend.max_checks_in_flight.load(SeqCst),
        8,
        "as many settlements are in flight as checks may be"
    );
    // The queue accepts later settlements.
    backend.open.add_permits(1);
    assert!(matches!(reserve(&limiter).await.settle(0).await, Settled::Done { .. }));
}

/// Settlements are as fast as checks: with a few at once, a round trip of 20 ms would limit them to some hundreds per second.
#[tokio::test(start_paused = true)]
async fn settlements_keep_up_with_3000_per_second() {
    /// A backend whose refunds take a round trip of 20 ms.
    #[derive(Clone)]
    struct Distant(FakeBackend);
    impl Backend for Distant {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            self.0.check(check).await
        }
        fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
            self.0.check_now(check)
        }
        fn changes_charges(&self) -> bool {
            true
        }
        async fn refund(&self, _refund: &Refund) -> Result<u64, BackendError> {
            sleep(Duration::from_millis(20)).await;
            Ok(0)
        }
    }
    let limiter = build(Limiter::builder(Distant(FakeBackend::admitting())));
    let mut ticks = interval(Duration::from_millis(1));
    for _ in 0..10_000 {
        ticks.tick().await;
        for _ in 0..3 {
            drop(reserve(&limiter).await.settle(0));
        }
    }
    limiter.drain().await;
    assert_eq!(limiter.lost_settlements(), 0);
}

#[tokio::test]
async fn full_queue_loses_only_new_settlements() {
    let backend = Gate::closed();
    let limiter = build(Limiter::builder(backend.clone()).settlement_queue(3).max_checks_in_flight(8));
    // Eight settlements are in flight, so the queue has room for three more.
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
            Settled::Done { .. } => "done",
            Settled::Lost(error) if error.reason() == Reason::Full => "full",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(outcomes, [vec!["done"; 11], vec!["full"; 2]].concat());
    assert_eq!((backend.fake.refunds().len(), limiter.lost_settlements()), (11, 2));
}

#[test]
fn builder_rejects_invalid_queue_length() {
    for given in [0, (1 << 20) + 1] {
        let builder = Limiter::builder(FakeBackend::admitting()).policy(policy("p", 1));
        let text = builder.settlement_queue(given).build().unwrap_err().to_string();
        assert_eq!(text, format!("settlement_queue {given}: it must be 1 to 1048576"));
    }
    build(Limiter::builder(FakeBackend::admitting()).settlement_queue(1 << 20));
}

/// The deadline of a check is longer or shorter than that of a settlement, and does not change it.
#[tokio::test(start_paused = true)]
async fn queue_loses_hanging_settlement_at_deadline() {
    for deadline in [Duration::from_millis(1), Duration::from_secs(60)] {
        let backend = FakeBackend::admitting().hanging_settlements();
        let limiter = build(Limiter::builder(backend.clone()).deadline(deadline));
        let start = Instant::now();
        let settlement = reserve(&limiter).await.settle(0);
        assert_eq!(start.elapsed(), Duration::ZERO);
        let outcome = settlement.await;
        assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::Timeout));
        assert!((5_000..5_010).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        limiter.drain().await;
        assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (1, 1));
    }
}

/// A settlement that has waited in the queue for too long is lost, and the backend never sees it.
#[tokio::test(start_paused = true)]
async fn queued_settlement_is_not_sent_after_deadline() {
    let backend = FakeBackend::admitting().hanging_settlements();
    let limiter = build(Limiter::builder(backend.clone()).max_checks_in_flight(1));
    let start = Instant::now();
    let [first, second] = [reserve(&limiter).await.settle(0), reserve(&limiter).await.settle(0)];
    sleep(Duration::from_secs(1)).await;
    let later = reserve(&limiter).await.settle(0);
    for settlement in [first, second, later] {
        assert!(matches!(settlement.await, Settled::Lost(error) if error.reason() == Reason::Timeout));
    }
    // The later one was sent when the first had ended, and had a second left.
    assert!((6_000..6_010).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (2, 3));
}

#[tokio::test]
async fn queue_sends_failed_settlement_once() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::Connection);
    let limiter = build(Limiter::builder(Later(backend.clone())));
    let outcome = reserve(&limiter).await.settle(0).await;
    assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::Connection));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (1, 1));
}

#[test]
fn limiter_loses_settlement_without_runtime() {
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Later(backend.clone())));
    let runtime = Builder::new_current_thread().build().unwrap();
    // The check may run in any runtime, because `Later` needs no timer.
    let limiter_of_thread = limiter.clone();
    let reservation = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(reserve(&limiter_of_thread))
    });
    let reservation = reservation.join().unwrap();
    let outcome = now(reservation.settle(0));
    assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::Other));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (0, 1));
    now(limiter.drain());
    drop(runtime);
}

#[test]
fn end_of_runtime_loses_queued_settlements() {
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
    // `drain` does not wait for lost settlements, and a new runtime continues the queue.
    backend.open.add_permits(1);
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        limiter.drain().await;
        assert!(matches!(reserve(&limiter).await.settle(0).await, Settled::Done { .. }));
    });
    assert_eq!((backend.fake.refunds().len(), limiter.lost_settlements()), (1, 20));
}

/// The runtime drops the worker in the call that spawns it.
#[test]
fn ended_runtime_loses_settlement_and_returns() {
    let limiter = build(Limiter::builder(FakeBackend::admitting().hanging_settlements()));
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let reservation = runtime.block_on(reserve(&limiter));
    let handle = runtime.handle().clone();
    drop(runtime);
    let (sender, settled) = mpsc::channel();
    std::thread::spawn(move || {
        let _entered = handle.enter();
        sender.send(now(reservation.settle(0))).unwrap();
    });
    let settled = settled.recv_timeout(Duration::from_secs(20)).expect("the settlement returns");
    assert!(matches!(settled, Settled::Lost(_)), "{settled:?}");
    assert_eq!(limiter.lost_settlements(), 1);
}

#[test]
fn end_of_runtime_loses_no_settlement_of_another() {
    let backend = Gate::closed();
    let limiter = build(Limiter::builder(backend.clone()).max_checks_in_flight(2));
    let [ending, other] = [(); 2].map(|()| Builder::new_current_thread().enable_time().build().unwrap());
    let settle = |runtime: &Runtime, settlements: usize| {
        runtime.block_on(async {
            for _ in 0..settlements {
                drop(reserve(&limiter).await.settle(0));
                yield_now().await;
            }
        });
    };
    settle(&ending, 1);
    settle(&other, 4);
    // One settlement of each runtime is in flight, and three wait.
    assert_eq!((backend.in_flight.load(SeqCst), limiter.lost_settlements()), (2, 0));
    drop(ending);
    assert_eq!(limiter.lost_settlements(), 1);
    backend.open.add_permits(4);
    other.block_on(limiter.drain());
    assert_eq!((backend.fake.refunds().len(), limiter.lost_settlements()), (4, 1));
}

#[tokio::test]
async fn queue_finishes_settlements_after_drop_of_limiter() {
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Later(backend.clone())));
    let settlement = reserve(&limiter).await.settle(0);
    drop(limiter);
    assert!(matches!(settlement.await, Settled::Done { .. }));
    assert_eq!(backend.refunds().len(), 1);
}

#[tokio::test]
async fn panic_of_backend_loses_only_its_settlements() {
    /// A backend that panics at the first eight refunds.
    #[derive(Clone)]
    struct Panics(FakeBackend, Arc<AtomicUsize>);
    impl Backend for Panics {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            self.0.check(check).await
        }
        fn changes_charges(&self) -> bool {
            true
        }
        async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
            yield_now().await;
            assert!(self.1.fetch_add(1, SeqCst) >= 8, "intended panic");
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

/// A second panic, of a drop while a handler panics, would end the process.
#[tokio::test]
async fn panic_of_backend_at_once_loses_only_its_settlement() {
    /// A backend that panics at each refund.
    struct Panics(FakeBackend);
    impl Backend for Panics {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            self.0.check(check).await
        }
        fn changes_charges(&self) -> bool {
            true
        }
        fn refund_now(&self, _: &Refund) -> Option<Result<u64, BackendError>> {
            panic!("intended panic")
        }
    }
    let backend = FakeBackend::admitting();
    let (limiter, reservation, used) = reserve_two(Panics(backend.clone())).await;
    assert!(matches!(reservation.settle(used).await, Settled::Lost(_)));
    assert_eq!(backend.checks()[1].purpose, Purpose::Overage, "the overage of the other policy");
    assert_eq!(limiter.lost_settlements(), 1);

    let limiter = build(Limiter::builder(Panics(backend)).unsettled(Unsettled::Refund));
    let dropped = reserve(&limiter).await;
    let handler = tokio::spawn(async move {
        let _dropped = dropped;
        panic!("intended panic");
    });
    assert!(handler.await.unwrap_err().is_panic());
    assert_eq!(limiter.lost_settlements(), 1);
}

/// Reserves units of two policies. The returned cost causes a refund of one and an overage of the other.
async fn reserve_two(backend: impl Backend) -> (Limiter, Reservation, Costs) {
    let builder = Limiter::builder(backend).policy(policy("less", 10)).policy(policy("more", 10));
    let limiter = builder.build().unwrap();
    let reservation = reserve(&limiter).await;
    (limiter, reservation, Costs::new().policy("less", 4).policy("more", 7))
}

#[tokio::test]
async fn failed_refund_keeps_overage_and_counts_one_loss() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::Busy);
    let (limiter, reservation, used) = reserve_two(Later(backend.clone())).await;
    assert!(matches!(reservation.settle(used).await, Settled::Lost(_)));
    let overage = &backend.checks()[1];
    assert_eq!((overage.purpose, overage.pairs[0].cost), (Purpose::Overage, 2));
    assert_eq!((overage.pairs.len(), backend.refunds().len(), limiter.lost_settlements()), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn hanging_refund_does_not_delay_overage() {
    let backend = FakeBackend::admitting().hanging_settlements();
    let (limiter, reservation, used) = reserve_two(backend.clone()).await;
    let start = Instant::now();
    let settlement = reservation.settle(used);
    yield_now().await;
    assert_eq!((backend.checks().len(), backend.refunds().len()), (2, 1), "both were sent at once");
    assert!(matches!(settlement.await, Settled::Lost(_)));
    assert!((5_000..5_010).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!((backend.checks().len(), backend.refunds().len(), limiter.lost_settlements()), (2, 1, 1));
}

#[tokio::test]
async fn immediate_refund_failure_keeps_delayed_overage() {
    /// A backend that fails refunds at once, and charges after a delay.
    struct Half(FakeBackend);
    impl Backend for Half {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            yield_now().await;
            self.0.check(check).await
        }
        fn changes_charges(&self) -> bool {
            true
        }
        fn refund_now(&self, _refund: &Refund) -> Option<Result<u64, BackendError>> {
            Some(Err(BackendError::new(Reason::ReadOnly)))
        }
    }
    let backend = FakeBackend::admitting();
    let (limiter, reservation, used) = reserve_two(Half(backend.clone())).await;
    let outcome = reservation.settle(used).await;
    assert!(matches!(outcome, Settled::Lost(error) if error.reason() == Reason::ReadOnly));
    assert_eq!((backend.checks().len(), limiter.lost_settlements()), (2, 1));
}

#[tokio::test]
async fn settlement_returns_instant_of_latest_change() {
    /// A backend that refunds and charges overages at these instants. It refunds at once if `refunds_now` is set.
    struct Clocks {
        fake: FakeBackend,
        refund: u64,
        overage: u64,
        refunds_now: bool,
    }
    impl Backend for Clocks {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            yield_now().await;
            let decision = self.fake.check(check).await?;
            let at = if check.purpose() == Purpose::Overage { self.overage } else { 3 };
            Ok(Decision::with_receipts(at, decision.statuses(), decision.receipts()))
        }
        fn changes_charges(&self) -> bool {
            true
        }
        async fn refund(&self, _refund: &Refund) -> Result<u64, BackendError> {
            Ok(self.refund)
        }
        fn refund_now(&self, _refund: &Refund) -> Option<Result<u64, BackendError>> {
            self.refunds_now.then_some(Ok(self.refund))
        }
    }
    let instant = async |refund, overage, refunds_now, change: fn(Costs) -> Costs| {
        let fake = FakeBackend::admitting();
        let (_limiter, reservation, used) = reserve_two(Clocks { fake, refund, overage, refunds_now }).await;
        match reservation.settle(change(used)).await {
            Settled::Done { at_micros, .. } => at_micros,
            other => panic!("{other:?}"),
        }
    };
    for refunds_now in [false, true] {
        assert_eq!(instant(7, 9, refunds_now, |used| used).await, 9);
        assert_eq!(instant(9, 7, refunds_now, |used| used).await, 9);
        assert_eq!(instant(7, 9, refunds_now, |used| used.policy("more", 5)).await, 7);
        assert_eq!(instant(7, 9, refunds_now, |used| used.policy("less", 5)).await, 9);
        // Without a change, it is the instant of the reservation.
        assert_eq!(instant(7, 9, refunds_now, |_| Costs::from(5)).await, 3);
    }
}

/// The runtime of a settlement is not driven while another one drains.
#[test]
fn drain_ends_although_another_runtime_is_not_driven() {
    let limiter = build(Limiter::builder(Later(FakeBackend::admitting())));
    let undriven = Builder::new_current_thread().enable_time().build().unwrap();
    let reservation = undriven.block_on(reserve(&limiter));
    let _settlement = undriven.block_on(async { Some(reservation.settle(2)) });
    let other = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let drained = other.block_on(async { timeout(Duration::from_secs(10), limiter.drain()).await });
    assert!(drained.is_ok(), "the deadline of the settlement has passed");
    assert_eq!(limiter.stats().lost_settlements, 1);
}

/// The runtime of the only worker is not driven for 7 s. The settlement that comes meanwhile has a deadline of its own.
#[test]
fn drain_waits_for_settlement_that_comes_meanwhile() {
    let backend = FakeBackend::admitting();
    let limiter = build(Limiter::builder(Later(backend.clone())).max_checks_in_flight(1));
    let undriven = Builder::new_current_thread().enable_time().build().unwrap();
    let reservation = undriven.block_on(reserve(&limiter));
    let _first = undriven.block_on(async { Some(reservation.settle(2)) });
    let other = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (drained, second) = other.block_on(async {
        let drained = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.drain().await }
        });
        sleep(Duration::from_secs(3)).await;
        let second = reserve(&limiter).await.settle(2);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(limiter.lost_settlements(), 1, "the deadline of the first one has passed");
        assert!(!drained.is_finished());
        (drained, second)
    });
    assert!(matches!(undriven.block_on(second), Settled::Done { .. }));
    other.block_on(drained).unwrap();
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (1, 1));
}
