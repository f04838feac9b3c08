//! What a lease grants, how many units it has, and what a decision states.

use tokio::time::{advance, sleep};
use tower_sliding_window::{
    ConfigError, Limiter, MemoryBackend, Policy, Status, Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose, Receipt},
    policy::Lease,
    settle::Settled,
};

use super::store::Store;
use super::{
    MICROSECOND, MILLISECOND, PRECISION, SECOND, alice, buckets, builder, check, checks, leased, limiter,
    next_bucket, remaining,
};

#[tokio::test(start_paused = true)]
async fn lease_grants_checks_without_store() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    // 1, 1+1, 1+3, 1+7, 1+15, 1+31, and 1+50: each lease has as many units as were granted before.
    assert_eq!(checks(&limiter, 114).await, 107);
    let leases = [(Purpose::Charge, 0), (Purpose::Lease, 1), (Purpose::Lease, 3), (Purpose::Lease, 7)];
    let more = [(Purpose::Lease, 15), (Purpose::Lease, 31), (Purpose::Lease, 50)];
    assert_eq!(store.take_asked(), [&leases[..], &more].concat());
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.leased_units, stats.leased_units_granted), (114, 107, 107));
    assert_eq!(remaining(&limiter).await, 1_000 - 114);
    // In the next bucket, one request leases as many units as in the last one, at most the bound.
    next_bucket(&store).await;
    store.take_asked();
    assert_eq!(checks(&limiter, 51).await, 50);
    assert_eq!(store.take_asked(), [(Purpose::Lease, 50)]);
}

#[tokio::test(start_paused = true)]
async fn leased_decision_states_remaining_quota_and_waits() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    for used in 1..=4 {
        let decision = check(&limiter).await;
        assert_eq!(decision.is_leased(), used == 3, "{used}");
        assert_eq!(decision.statuses()[0].remaining(), 1_000 - used, "the lease counts as remaining");
    }
    advance(10 * MILLISECOND).await;
    let (decision, peek) = (check(&limiter).await, limiter.peek((alice(), 0)).await.unwrap());
    assert!(decision.is_leased() && !decision.is_cached());
    let (leased, exact) = (&decision.statuses()[0], &peek.statuses()[0]);
    assert_eq!((leased.remaining(), leased.retry_after()), (995, Wait::ZERO));
    // Two more units are leased.
    assert_eq!(exact.remaining(), 993, "a peek counts leased units as used");
    // Of the 10 ms since the reply, 5 us are the allowance for drift.
    let later = |wait| wait + 5 * MICROSECOND;
    assert_eq!(leased.next_after(), later(exact.next_after()));
    assert_eq!(leased.reset_after(), later(exact.reset_after()));
    assert_eq!(decision.at_micros() + 5, peek.at_micros());
}

/// The window is no multiple of the buckets, so usage leaves it in the middle of a bucket.
#[tokio::test(start_paused = true)]
async fn leased_decision_states_reset_after_usage_has_left() {
    let store = Store::new();
    let window = 250 * MILLISECOND;
    let limiter = limiter(&store, buckets(1_000, window, PRECISION).leased(Lease::up_to(50)).unwrap());
    next_bucket(&store).await;
    checks(&limiter, 4).await;
    // These units leave 50 ms after the beginning of this bucket.
    advance(3 * PRECISION + 10 * MILLISECOND).await;
    checks(&limiter, 5).await;
    for has_left in [false, true] {
        let decision = check(&limiter).await;
        assert!(decision.is_leased());
        let (next, reset) = (decision.statuses()[0].next_after(), decision.statuses()[0].reset_after());
        assert!(MILLISECOND < next && next <= reset, "{next:?} and {reset:?}");
        assert_eq!(next == reset, has_left, "{next:?} and {reset:?}");
        advance(60 * MILLISECOND).await;
    }
}

/// Idle pairs are forgotten. A check that is granted from a lease is a use.
#[tokio::test(start_paused = true)]
async fn pair_in_use_keeps_its_rate() {
    let store = Store::new();
    let limiter = limiter(&store, leased(10_000, 50));
    checks(&limiter, 20).await;
    // Longer than an idle pair is kept, and until all of them were looked at.
    for bucket in 0..250 {
        next_bucket(&store).await;
        sleep(MILLISECOND).await;
        store.take_asked();
        assert!(checks(&limiter, 5).await > 0, "bucket {bucket}");
        assert_eq!(store.take_asked()[0].0, Purpose::Lease, "bucket {bucket}");
    }
}

#[tokio::test(start_paused = true)]
async fn leased_decision_states_at_most_what_process_has_read() {
    // How this process reads the remaining quota: by a denial, and by a peek.
    for reads_by in ["denial", "peek"] {
        let store = Store::new();
        let (limiter, other) = (limiter(&store, leased(2_000, 50)), limiter(&store, leased(2_000, 50)));
        // The store has charged four units and four leased ones, of which three are left.
        assert_eq!(checks(&limiter, 4).await, 1, "{reads_by}: the third check takes a leased unit");
        assert!(other.check((alice(), 1_900)).await.unwrap().is_admitted(), "{reads_by}: 1,993 units remain");
        let decision = match reads_by {
            "denial" => limiter.check((alice(), 100)).await.unwrap(),
            _ => limiter.peek((alice(), 0)).await.unwrap(),
        };
        assert_eq!(decision.is_admitted(), reads_by == "peek");
        assert_eq!(decision.statuses()[0].remaining(), 93, "{reads_by}: the store states what remains");
        let decision = check(&limiter).await;
        assert!(decision.is_leased(), "{reads_by}: two more units are leased");
        assert_eq!(decision.statuses()[0].remaining(), 93 + 2, "{reads_by}: as read, and two leased units");
    }
}

#[tokio::test(start_paused = true)]
async fn leased_decision_states_bounds_despite_drift() {
    for drift in [-500, 0, 500] {
        let store = Store::new().with_drift(drift);
        let limiter = limiter(&store, leased(1_000, 50));
        next_bucket(&store).await;
        advance(MILLISECOND).await;
        checks(&limiter, 8).await;
        advance(90 * MILLISECOND).await;
        let (decision, peek) = (check(&limiter).await, limiter.peek((alice(), 0)).await.unwrap());
        assert!(decision.is_leased());
        let (leased, exact) = (&decision.statuses()[0], &peek.statuses()[0]);
        assert!(leased.next_after() >= exact.next_after() && leased.reset_after() >= exact.reset_after());
        assert!(decision.at_micros() <= peek.at_micros(), "drift {drift}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_falls_to_zero_with_remaining_quota() {
    let store = Store::new();
    let limiter = limiter(&store, leased(40, 50));
    checks(&limiter, 40).await;
    let units: Vec<u32> = store.take_asked().iter().map(|(_, units)| *units).collect();
    // An eighth of what remained after the last reply.
    assert_eq!(units, [0, 1, 3, 4, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
    assert!(!check(&limiter).await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn near_limit_counts_what_decision_states() {
    let store = Store::new();
    let limiter = builder(&store, leased(40, 50)).near_limit(0.5).build().unwrap();
    let mut near = 0;
    for _ in 0..40 {
        near += u64::from(check(&limiter).await.statuses()[0].is_near(0.5));
    }
    assert_eq!((near, limiter.stats().near_limit), (21, 21));
    assert_eq!(limiter.stats().admitted, 40);
}

#[tokio::test(start_paused = true)]
async fn rare_checks_lease_nothing() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    for _ in 0..10 {
        assert_eq!(checks(&limiter, 1).await, 0);
        advance(2 * PRECISION).await;
    }
    assert_eq!(limiter.stats().leased_units, 0);
}

#[tokio::test(start_paused = true)]
async fn larger_cost_goes_to_store() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    // The second lease has three units more.
    assert_eq!(checks(&limiter, 4).await, 1);
    assert!(!limiter.check((alice(), 4)).await.unwrap().is_leased());
    assert!(limiter.check((alice(), 3)).await.unwrap().is_leased());
}

#[tokio::test(start_paused = true)]
async fn several_pairs_are_leased_as_a_whole() {
    let store = Store::new();
    let other = Policy::new("other", 500, SECOND).unwrap();
    let other = other.with_algorithm(buckets(1, SECOND, PRECISION).algorithm()).unwrap();
    let both = |other: Policy| {
        let builder = Limiter::builder(store.clone()).policy(leased(1_000, 50)).policy(other);
        builder.build().unwrap()
    };
    let limiter = both(other.clone().leased(Lease::up_to(2)).unwrap());
    // The second policy has fewer units: the fourth and the seventh check go to the store.
    assert_eq!(checks(&limiter, 9).await, 5);
    let decision = check(&limiter).await;
    let remaining = decision.statuses().iter().map(|status| status.remaining());
    assert_eq!(remaining.collect::<Vec<_>>(), [990, 490]);
    // A pair that is not leased, and a pair of no cost: the store decides.
    let stats = limiter.stats();
    assert_eq!(stats.leased_units_granted, 2 * (stats.admitted - store.take_asked().len() as u64));
    let limiter = both(other);
    assert_eq!(checks(&limiter, 20).await, 0);
    assert!(store.take_asked().iter().all(|(purpose, _)| *purpose == Purpose::Charge));
}

#[tokio::test(start_paused = true)]
async fn leased_reservation_settles_at_its_place() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    assert_eq!(checks(&limiter, 4).await, 1);
    let reservation = limiter.reserve((alice(), 2)).await.unwrap();
    assert!(reservation.decision().unwrap().is_leased());
    let before = remaining(&limiter).await;
    assert!(matches!(reservation.settle(0).await, Settled::Done { .. }));
    assert_eq!(remaining(&limiter).await, before + 2);
    // The units of the lease remain charged, and this process may still grant the last one.
    assert_eq!(checks(&limiter, 1).await, 1);
    // A reservation that requests a lease settles its own cost only.
    let reservation = limiter.reserve(alice()).await.unwrap();
    assert!(!reservation.decision().unwrap().is_leased());
    let before = remaining(&limiter).await;
    reservation.settle(0).await;
    assert_eq!(remaining(&limiter).await, before + 1);
    assert_eq!(limiter.stats().settlements, 2);
}

#[tokio::test]
async fn lease_has_no_effect_on_memory() {
    let limiter = Limiter::builder(MemoryBackend::new()).policy(leased(100, 50)).build().unwrap();
    assert_eq!(checks(&limiter, 100).await, 0);
    assert!(!check(&limiter).await.is_admitted());
}

/// A backend around the store that grants no leases.
struct Plain(Store);

impl Backend for Plain {
    async fn check(&self, check: &Check) -> Result<tower_sliding_window::Decision, BackendError> {
        self.0.check(check).await
    }

    fn changes_charges(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn custom_backend_receives_no_lease_request() {
    let store = Store::new();
    let limiter = Limiter::builder(Plain(store.clone())).policy(leased(100, 50)).build().unwrap();
    assert_eq!(checks(&limiter, 100).await, 0);
    assert!(store.take_asked().iter().all(|asked| *asked == (Purpose::Charge, 0)));
}

/// A store that leases one unit more than it was asked for.
struct Generous(Store);

impl Backend for Generous {
    async fn check(&self, check: &Check) -> Result<tower_sliding_window::Decision, BackendError> {
        let more = |pair: &Pair| {
            let mut pair = pair.clone();
            pair.lease += 1;
            pair
        };
        let pairs: Vec<Pair> = check.pairs().iter().map(more).collect();
        self.0.check(&Check::new(pairs).unwrap().with_purpose(check.purpose())).await
    }

    fn changes_charges(&self) -> bool {
        true
    }

    fn grants_leases(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn lease_above_request_is_a_broken_reply() {
    let limiter = Limiter::builder(Generous(Store::new())).policy(leased(100, 50)).build().unwrap();
    let _ = check(&limiter).await;
    let error = limiter.check(alice()).await.unwrap_err();
    assert_eq!(error.reason(), tower_sliding_window::backend::Reason::BrokenReply);
}

#[test]
fn lease_needs_units_and_sliding_buckets() {
    let text = |policy: Result<Policy, ConfigError>| policy.unwrap_err().to_string();
    let log = || Policy::new("hot", 10, SECOND).unwrap();
    let error = |units| {
        format!(
            "policy \"hot\": lease of {units} units: it must be 1 to 4294967295 quota units, and the algorithm must be sliding buckets"
        )
    };
    assert_eq!(text(log().leased(Lease::up_to(5))), error(5));
    assert_eq!(text(buckets(10, SECOND, PRECISION).leased(Lease::up_to(0))), error(0));
    let policy = leased(10, 7);
    assert_eq!(text(policy.clone().with_algorithm(log().algorithm())), error(7));
    assert_eq!(policy.clone().hidden().headroom_percent(20).unwrap().lease(), Some(Lease::up_to(7)));
    assert_eq!(policy, buckets(10, SECOND, PRECISION));
}

#[tokio::test(start_paused = true)]
async fn full_lease_does_not_block_that_of_other_policy() {
    let store = Store::new();
    let short = Policy::new("short", 10_000, SECOND).unwrap();
    let short = short.with_algorithm(buckets(1, SECOND, PRECISION).algorithm()).unwrap();
    let long = buckets(10_000, 60 * SECOND, 10 * SECOND).leased(Lease::up_to(8)).unwrap();
    let limiter = Limiter::builder(store.clone()).policy(long).policy(short.leased(Lease::up_to(8)).unwrap());
    let limiter = limiter.build().unwrap();
    // Both policies hold eight units.
    while store.take_asked() != [(Purpose::Lease, 8)] {
        let _ = check(&limiter).await;
    }
    // The short bucket ends, and the other lease is full.
    next_bucket(&store).await;
    assert_eq!(checks(&limiter, 9).await, 8);
}

/// A store with other decisions than the contract permits.
struct Altered(Store, fn(tower_sliding_window::Decision) -> tower_sliding_window::Decision);

impl Backend for Altered {
    async fn check(&self, check: &Check) -> Result<tower_sliding_window::Decision, BackendError> {
        self.0.check(check).await.map(self.1)
    }

    fn changes_charges(&self) -> bool {
        true
    }

    fn grants_leases(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn instants_out_of_range_do_not_panic() {
    for at_micros in [0, u64::MAX] {
        let alter = match at_micros {
            0 => |decision| altered(decision, 0, u64::MAX),
            _ => |decision| altered(decision, u64::MAX, u64::MAX),
        };
        let limiter =
            Limiter::builder(Altered(Store::new(), alter)).policy(leased(1_000, 50)).build().unwrap();
        for _ in 0..10 {
            advance(MILLISECOND).await;
            assert!(check(&limiter).await.is_admitted());
        }
        advance(SECOND).await;
    }
}

fn altered(
    decision: tower_sliding_window::Decision,
    at_micros: u64,
    end: u64,
) -> tower_sliding_window::Decision {
    let receipts: Vec<Receipt> = decision
        .receipts()
        .iter()
        .map(|receipt| Receipt::new(receipt.generation, end, receipt.ordinal))
        .collect();
    let leases = vec![1; receipts.len()];
    tower_sliding_window::Decision::with_leases(at_micros, decision.statuses(), receipts, leases)
}

#[tokio::test(start_paused = true)]
async fn denial_with_units_grants_nothing() {
    let deny = |decision: tower_sliding_window::Decision| {
        let (at, retry_after) = (decision.at_micros(), Wait::For(SECOND));
        let deny = |status: &Status| {
            let pair = Pair::new(alice(), status.policy().clone(), 1);
            Status::new(&pair, status.remaining(), retry_after, SECOND, SECOND)
        };
        if decision.receipts().is_empty() {
            return decision;
        }
        let statuses: Vec<Status> = decision.statuses().iter().map(deny).collect();
        tower_sliding_window::Decision::with_leases(at, statuses, decision.receipts(), [1])
    };
    let limiter = Limiter::builder(Altered(Store::new(), deny)).policy(leased(1_000, 50)).build().unwrap();
    let _ = check(&limiter).await;
    assert!(!check(&limiter).await.is_admitted());
    assert!(!check(&limiter).await.is_leased());
    assert_eq!(limiter.stats().leased_units, 0);
}
