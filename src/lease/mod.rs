//! Leased units: a process charges units of a pair in advance, and grants them without asking the store.
//!
//! A lease belongs to one bucket of the pair. Its units count until one window after the end of the bucket, so the process may grant
//! them until the bucket ends on the server's clock. The process knows a bound of this instant: it is not before the local instant of
//! the request plus the rest of the bucket at the script, if the local clock counts suspended time.
//!
//! While a lease request is in flight, other checks of the pair wait for it: at most a quarter of their deadline, and once, unless its
//! answer is too late for a lease. The request runs in a task of its own, so it depends on no caller.
//!
//! If the policy says so, a grant also asks for units of the next bucket: no check has to wait at the beginning of a bucket. The store
//! charges them with the end of the next bucket, and the process may grant them at once.

mod clock;
mod leased_pair;
mod request;
mod return_timers;
mod returns;
mod table;

pub(crate) use request::{LeaseLookup, LeaseMiss, RequestInFlight};
pub(crate) use table::{Leases, RevokeGuard};

/// Microseconds of the local clock.
type LocalMicros = u64;

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, pending},
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicU64, Ordering},
            mpsc,
        },
        task::{Context, Wake, Waker},
        thread,
        time::Duration,
    };

    use tokio::sync::oneshot;

    use super::{LeaseLookup, LeaseMiss, Leases, clock::LocalClock};
    use crate::{
        backend::{BackendError, MemoryBackend, Reason},
        check::{Check, Namespace, Pair, Purpose, Receipt},
        decision::{Decision, Status, Wait},
        foreign::hooked_waker::waker,
        key::PartitionKey,
        now_or_later::BoxFuture,
        observe::LimiterEvents,
        policy::{Algorithm, Lease, Policy},
        settle::SettlementQueue,
    };

    #[cfg(feature = "metrics")]
    use crate::foreign::hooked_recorder::HookedRecorder;

    const SECOND: Duration = Duration::from_secs(1);

    fn leases(suspended: &Arc<AtomicU64>) -> Arc<Leases> {
        let events = Arc::new(LimiterEvents::new("store", &[], 1.0, None));
        let queue = SettlementQueue::new(Arc::new(MemoryBackend::new()), None, 8, 8, events.clone());
        let clock = LocalClock::suspended_by(suspended);
        Arc::new(Leases::on_clock(clock, Namespace::default(), queue, events, usize::MAX))
    }

    fn hot() -> Check {
        let policy = Policy::new("hot", 1_000, 10 * SECOND).unwrap();
        let policy = policy.with_algorithm(Algorithm::SlidingBuckets { precision: SECOND }).unwrap();
        let policy = policy.leased(Lease::up_to(50)).unwrap();
        let pair = Pair::new(PartitionKey::new("user", "alice"), policy, 1);
        Check::from_valid_pairs(Namespace::default(), [pair].into())
    }

    /// Admits a check in the middle of a bucket of a second, with all units that it asks for.
    fn admit(check: &Check) -> Decision {
        let status = |pair| Status::new(pair, 900, Wait::ZERO, SECOND, 10 * SECOND);
        let statuses: Vec<Status> = check.pairs().iter().map(status).collect();
        if check.purpose() != Purpose::Lease {
            return Decision::new(5_500_000, statuses);
        }
        let receipt = Receipt { generation: 1, at_micros: 6_000_000, ordinal: 0 };
        let units: Vec<u32> = check.pairs().iter().map(|pair| pair.lease).collect();
        Decision::with_leases(5_500_000, statuses, vec![receipt; check.pairs().len()], units)
    }

    type Outcome = Result<Decision, BackendError>;

    fn ask<F: Future<Output = Outcome> + Send + 'static>(
        miss: LeaseMiss,
        check: &Check,
        store: impl FnOnce(Check) -> F + Send + 'static,
    ) -> BoxFuture<Outcome> {
        miss.ask(check.clone(), SECOND, move |check, _| Box::pin(store(check)))
    }

    fn miss(leases: &Arc<Leases>, check: &Check) -> LeaseMiss {
        let LeaseLookup::Miss(miss) = leases.lookup(check) else { panic!("the check is not leased") };
        miss
    }

    /// Polls a check once. Returns whether it is decided.
    fn is_decided(asked: &mut BoxFuture<Outcome>) -> bool {
        asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    async fn is_leased(leases: &Arc<Leases>, check: &Check) -> bool {
        match leases.lookup(check) {
            LeaseLookup::Granted(decision, _) => decision.is_leased(),
            LeaseLookup::Miss(miss) => {
                assert!(
                    ask(miss, check, |check| async move { Ok(admit(&check)) }).await.unwrap().is_admitted()
                );
                false
            }
            LeaseLookup::Bypass => panic!("the check is leasable"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_machine_keeps_no_lease() {
        let suspended = Arc::new(AtomicU64::new(0));
        let leases = leases(&suspended);
        let check = hot();
        for leased in [false, false, true, false, true] {
            assert_eq!(is_leased(&leases, &check).await, leased);
        }
        // Two units are left. The clock of tokio stands still, and half a second of the bucket was left.
        suspended.fetch_add(400_000, Ordering::SeqCst);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(is_leased(&leases, &check).await);
        suspended.fetch_add(100_000, Ordering::SeqCst);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!is_leased(&leases, &check).await);
    }

    /// Those with a lease or a lease request in flight stay.
    #[tokio::test(start_paused = true)]
    async fn idle_pairs_leave_while_others_are_used() {
        let leases = leases(&Arc::default());
        let of_key = |key: &str| {
            let check = hot();
            let pair = Pair::new(PartitionKey::new("user", key), check.pairs()[0].policy.clone(), 1);
            check.with_pairs([pair].into())
        };
        for i in 0..4_000 {
            assert!(!is_leased(&leases, &of_key(&i.to_string())).await);
        }
        let asked = of_key("asked");
        assert!(!is_leased(&leases, &asked).await);
        let mut in_flight = ask(miss(&leases, &asked), &asked, |_| pending());
        assert!(!is_decided(&mut in_flight));
        let [pairs, room] = leases.pairs();
        assert!(pairs == 4_001 && room >= 4_001, "{pairs}, {room}");
        // The tenant uses its lease all the time.
        let check = hot();
        let (mut granted, mut in_a_row, mut most) = (0, 0, 0);
        for _ in 0..2_500 {
            if is_leased(&leases, &check).await {
                (granted, in_a_row) = (granted + 1, in_a_row + 1);
                most = most.max(in_a_row);
            } else {
                in_a_row = 0;
            }
            tokio::time::advance(Duration::from_millis(20)).await;
        }
        let [pairs, room] = leases.pairs();
        assert!(pairs == 2 && room <= 64 * 28, "{pairs}, {room}");
        assert!(granted > 1_000 && most > 10, "{granted}, {most}");
        assert!(matches!(leases.lookup(&asked), LeaseLookup::Miss(_)));
        assert_eq!(leases.pairs()[0], pairs, "the pair of the request is stored");
        drop(in_flight);
    }

    #[test]
    fn lease_outside_runtime_is_returned_by_next_task() {
        let leases = leases(&Arc::default());
        let check = hot();
        let pair = || (check.pairs()[0].key.clone(), check.pairs()[0].policy.clone());
        leases.schedule([(0, pair())]);
        assert_eq!(leases.timers.len(), 1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            leases.schedule([(0, pair())]);
            tokio::task::yield_now().await;
        });
        assert_eq!(leases.timers.len(), 0);
    }

    #[test]
    fn lease_of_known_pair_is_returned_after_its_first_runtime() {
        let leases = leases(&Arc::default());
        let check = hot();
        let runtime = || {
            let builder = &mut tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(true).build().unwrap()
        };
        for _ in 0..2 {
            runtime().block_on(async {
                let mut requests = 0;
                while requests < 2 {
                    requests += u32::from(!is_leased(&leases, &check).await);
                }
            });
            assert_eq!(leases.timers.len(), 1);
        }
        runtime().block_on(async {
            while is_leased(&leases, &check).await {}
            tokio::time::sleep(2 * SECOND).await;
        });
        assert_eq!(leases.timers.len(), 0);
    }

    #[test]
    fn lease_is_returned_although_its_first_runtime_is_not_driven() {
        let leases = leases(&Arc::default());
        let check = hot();
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (undriven, other) = (runtime(), runtime());
        undriven.block_on(async { while !is_leased(&leases, &check).await {} });
        assert_eq!(leases.timers.len(), 1);
        let pair = || (check.pairs()[0].key.clone(), check.pairs()[0].policy.clone());
        other.block_on(async {
            leases.schedule([(0, pair())]);
            tokio::task::yield_now().await;
            assert_eq!(leases.timers.len(), 2, "the first runtime may only be busy");
            thread::sleep(2 * SECOND);
            leases.schedule([(0, pair())]);
            tokio::time::sleep(SECOND / 2).await;
        });
        assert_eq!(leases.timers.len(), 0);
        undriven.block_on(tokio::task::yield_now());
        assert_eq!(leases.timers.len(), 0);
    }

    #[test]
    fn check_outside_runtime_returns_units_of_ended_bucket() {
        let suspended = Arc::new(AtomicU64::new(0));
        let leases = leases(&suspended);
        let check = hot();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for leased in [false, false, true, false, true] {
                assert_eq!(is_leased(&leases, &check).await, leased);
            }
        });
        // Two units are left.
        suspended.fetch_add(1_000_000, Ordering::SeqCst);
        // The clock repeats a fresh reading.
        thread::sleep(SECOND / 100);
        assert!(matches!(leases.lookup(&check), LeaseLookup::Miss(_)), "the bucket has ended");
        runtime.block_on(async { tokio::time::sleep(SECOND / 50).await });
        let stats = leases.events.counters.stats(Vec::new());
        assert_eq!((stats.leased_units_lost, stats.leased_units_returned), (0, 2));
    }

    #[test]
    fn schedule_outside_runtime_does_not_end_late_task() {
        let leases = leases(&Arc::default());
        let check = hot();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { while !is_leased(&leases, &check).await {} });
        assert_eq!(leases.timers.len(), 1);
        // The runtime is busy for longer than it may be late.
        thread::sleep(5 * SECOND / 2);
        let pair = (check.pairs()[0].key.clone(), check.pairs()[0].policy.clone());
        leases.schedule([(0, pair)]);
        runtime.block_on(async { tokio::time::sleep(SECOND / 2).await });
        assert_eq!(leases.timers.len(), 0, "the task still runs");
    }

    #[test]
    fn check_outside_runtime_waits_for_no_request() {
        let leases = leases(&Arc::default());
        let check = hot();
        let (mut decided, mut requests) = (Vec::new(), Vec::new());
        for is_answered in [true, false, true] {
            let mut asked = ask(miss(&leases, &check), &check, move |check| async move {
                if is_answered { Ok(admit(&check)) } else { pending().await }
            });
            decided.push(is_decided(&mut asked));
            // The second one requests a lease, and is polled no more.
            requests.push(asked);
        }
        assert_eq!(decided, [true, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn check_waits_for_no_stuck_request() {
        let leases = leases(&Arc::default());
        let check = hot();
        assert!(!is_leased(&leases, &check).await);
        // This runtime never runs again after it has begun the request.
        let (leases_of_thread, check_of_thread) = (leases.clone(), check.clone());
        let stuck = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let miss = miss(&leases_of_thread, &check_of_thread);
            let mut asked = ask(miss, &check_of_thread, |_| pending());
            runtime.block_on(async { assert!(!is_decided(&mut asked)) });
            (runtime, asked)
        });
        let stuck = stuck.join().unwrap();
        let admitted = |check: Check| async move { Ok(admit(&check)) };
        let start = tokio::time::Instant::now();
        let _ = ask(miss(&leases, &check), &check, admitted).await.unwrap();
        let waited = start.elapsed();
        assert!(waited >= SECOND / 4 && waited < SECOND / 3, "{waited:?}");
        tokio::time::advance(SECOND).await;
        assert!(is_decided(&mut ask(miss(&leases, &check), &check, admitted)));
        assert!(!is_leased(&leases, &check).await);
        // Another request replaces it.
        tokio::time::advance(10 * SECOND).await;
        let first_leased = async || {
            let mut checks = 0;
            while !is_leased(&leases, &check).await {
                checks += 1;
                assert!(checks < 4, "a request is due");
            }
        };
        first_leased().await;
        // The end of the first request does not pause the next ones.
        thread::spawn(move || drop(stuck)).join().unwrap();
        first_leased().await;
    }

    #[tokio::test(start_paused = true)]
    async fn grant_after_wait_can_note_namespace() {
        let leases = leases(&Arc::default());
        let check = hot();
        assert!(!is_leased(&leases, &check).await);
        let new = || {
            ask(miss(&leases, &check), &check, |check| async move {
                tokio::task::yield_now().await;
                Ok(admit(&check))
            })
        };
        let (_, waited) = tokio::join!(new(), new());
        let waited = waited.unwrap().with_namespace(&Namespace::default());
        assert!(waited.is_leased() && waited.store().is_some());
    }

    /// A waker that uses the leases from another thread.
    struct Locking {
        leases: Arc<Leases>,
        check: Check,
        was_free: AtomicBool,
    }

    impl Wake for Locking {
        fn wake(self: Arc<Self>) {
            let (done, is_done) = mpsc::channel();
            let waker = self.clone();
            thread::spawn(move || {
                drop(waker.leases.lookup(&waker.check));
                let _ = done.send(());
            });
            self.was_free.store(is_done.recv_timeout(SECOND).is_ok(), Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_check_is_woken_outside_lock() {
        for answer in
            [Err(BackendError::new(Reason::Overloaded).not_sent("too many checks in flight")), Ok(())]
        {
            let leases = leases(&Arc::default());
            let check = hot();
            assert!(!is_leased(&leases, &check).await);
            let (answers, answered) = oneshot::channel::<Result<(), BackendError>>();
            let request = tokio::spawn(ask(miss(&leases, &check), &check, |check| async move {
                answered.await.unwrap().map(|()| admit(&check))
            }));
            tokio::task::yield_now().await;
            let mut waiting = ask(miss(&leases, &check), &check, |check| async move { Ok(admit(&check)) });
            let waker =
                Arc::new(Locking { leases: leases.clone(), check: check.clone(), was_free: false.into() });
            let polled = waiting.as_mut().poll(&mut Context::from_waker(&Waker::from(waker.clone())));
            assert!(polled.is_pending());
            // The bucket ends before the answer.
            tokio::time::advance(Duration::from_millis(600)).await;
            answers.send(answer).unwrap();
            let _ = request.await.unwrap();
            assert!(waker.was_free.load(Ordering::SeqCst));
        }
    }

    #[cfg(feature = "metrics")]
    #[tokio::test(start_paused = true)]
    async fn panic_of_recorder_leaves_lease_scheduled() {
        let leases = leases(&Arc::default());
        let check = hot();
        let recorder = HookedRecorder::new(|metric| {
            assert!(!metric.ends_with("leased_units_total outcome=charged"), "a recorder panics");
        });
        let _guard = metrics::set_default_local_recorder(&recorder);
        assert!(!is_leased(&leases, &check).await);
        let request = ask(miss(&leases, &check), &check, |check| async move { Ok(admit(&check)) });
        assert!(request.await.is_err());
        assert_eq!(leases.timers.len(), 1);
        tokio::time::sleep(2 * SECOND).await;
        let stats = leases.events.counters.stats(Vec::new());
        assert_eq!(stats.leased_units, stats.leased_units_returned);
        assert!(stats.leased_units > 0);
    }

    #[tokio::test(start_paused = true)]
    async fn panic_of_waker_leaves_others_of_lease_request() {
        let leases = leases(&Arc::default());
        let check = hot();
        assert!(!is_leased(&leases, &check).await);
        let (answers, answered) = oneshot::channel::<()>();
        let request = tokio::spawn(ask(miss(&leases, &check), &check, |check| async move {
            answered.await.unwrap();
            Ok(admit(&check))
        }));
        tokio::task::yield_now().await;
        let mut waiting = ask(miss(&leases, &check), &check, |check| async move { Ok(admit(&check)) });
        let panics = waker(|| panic!("a waker panics"));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
        answers.send(()).unwrap();
        assert!(request.await.unwrap().unwrap().is_admitted());
        assert!(waiting.await.unwrap().is_leased());
    }

    /// The pair is leased all the time.
    #[tokio::test(start_paused = true)]
    async fn pair_is_scheduled_once() {
        let leases = leases(&Arc::default());
        let check = hot();
        let mut leased = 0;
        for _ in 0..200 {
            leased += u32::from(is_leased(&leases, &check).await);
            tokio::time::sleep(Duration::from_millis(70)).await;
            assert!(leases.timers.len() <= 1);
        }
        assert!(leased > 50, "{leased}");
        // Without checks, nothing is scheduled.
        tokio::time::sleep(SECOND).await;
        assert_eq!(leases.timers.len(), 0);
    }
}
