//! Leased units: a process charges units of a pair in advance, and grants them without asking the store.
//!
//! A lease belongs to one bucket of the pair. Its units count until one window after the end of the bucket, so the process may grant
//! them until the bucket ends on the server's clock. The process knows a bound of this instant: it is not before the local instant of
//! the request plus the rest of the bucket at the script, if the local clock counts suspended time.
//!
//! While a lease request is in flight, other checks of the pair wait for it: at most a quarter of their deadline, and once, unless its
//! answer is too late for a lease. The request runs in a task of its own, so it depends on no caller.

mod clock;
mod due;
mod entry;
mod request;
mod returns;
mod table;

pub(crate) use request::{Lookup, Miss};
pub(crate) use table::{Ending, Leases};

/// Microseconds of the local clock.
type Micros = u64;

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use super::{Leases, Lookup, clock::LocalClock, due::Due, returns};
    use crate::{
        backend::MemoryBackend,
        check::{Check, Namespace, Pair, Purpose, Receipt},
        decision::{Decision, Status, Wait},
        key::PartitionKey,
        observe::LimiterEvents,
        policy::{Algorithm, Lease, Policy},
        settle::Queue,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn leases(suspended: &Arc<AtomicU64>) -> Arc<Leases> {
        let events = Arc::new(LimiterEvents::new("store", &[], 1.0));
        let queue = Queue::new(Arc::new(MemoryBackend::new()), SECOND, 8, 8, None, events.clone());
        Arc::new(Leases::on_clock(LocalClock::suspended_by(suspended), Namespace::default(), queue, events))
    }

    fn hot() -> Check {
        let policy = Policy::new("hot", 1_000, 10 * SECOND).unwrap();
        let policy = policy.with_algorithm(Algorithm::SlidingBuckets { precision: SECOND }).unwrap();
        let policy = policy.leased(Lease::up_to(50)).unwrap();
        let pair = Pair::new(PartitionKey::new("user", "alice"), policy, 1);
        Check::of_limiter(Namespace::default(), [pair].into_iter())
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

    async fn is_leased(leases: &Arc<Leases>, check: &Check) -> bool {
        match leases.lookup(check) {
            Lookup::Granted(decision) => decision.is_leased(),
            Lookup::Miss(miss) => {
                let ask = |check: Check, _: Duration| -> crate::now_or_later::BoxFuture<_> {
                    Box::pin(async move { Ok(admit(&check)) })
                };
                assert!(miss.ask(check.clone(), SECOND, ask).await.unwrap().is_admitted());
                false
            }
            Lookup::Bypass => panic!("the check is leasable"),
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

    #[test]
    fn lease_outside_runtime_is_returned_by_next_task() {
        let leases = leases(&Arc::default());
        let check = hot();
        let due = || Due::new(0, &check.pairs()[0].key, &check.pairs()[0].policy);
        returns::schedule(&leases, due());
        assert_eq!(leases.dues.len(), 1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            returns::schedule(&leases, due());
            tokio::task::yield_now().await;
        });
        assert_eq!(leases.dues.len(), 0);
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
            assert!(leases.dues.len() <= 1);
        }
        assert!(leased > 50, "{leased}");
        // Without checks, nothing is scheduled.
        tokio::time::sleep(SECOND).await;
        assert_eq!(leases.dues.len(), 0);
    }
}
