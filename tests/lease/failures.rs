//! Lease requests without an answer, dropped callers, outages, and replies that come too late.

use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep, timeout},
};
use tower_sliding_window::{
    PartitionKey,
    backend::{Purpose, Reason},
};

use super::store::{Fault, Store};
use super::{
    MICROSECOND, MILLISECOND, PRECISION, SECOND, alice, builder, check, checks, leased, limiter, next_bucket,
};

#[tokio::test(start_paused = true)]
async fn unanswered_request_leases_nothing_for_a_second() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).deadline(10 * MILLISECOND).build().unwrap();
    checks(&limiter, 4).await;
    next_bucket(&store).await;
    store.fail([Fault::LostReply]);
    let error = limiter.check(alice()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Timeout);
    let lost = store.take_asked().last().unwrap().1;
    assert!(lost > 0);
    assert_eq!(limiter.stats().leased_units_lost, u64::from(lost));
    assert_eq!(checks(&limiter, 20).await, 0);
    advance(SECOND).await;
    assert!(checks(&limiter, 20).await > 0);
}

#[tokio::test(start_paused = true)]
async fn unanswered_request_leases_nothing_until_pause_ends() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 4).await;
    next_bucket(&store).await;
    store.fail([Fault::Error(Reason::Connection)]);
    limiter.check(alice()).await.unwrap_err();
    for step in 1..=37 {
        advance(27 * MILLISECOND).await;
        assert_eq!(checks(&limiter, 2).await, 0, "{step} steps of 27 ms after the request");
    }
    advance(MILLISECOND).await;
    assert!(checks(&limiter, 20).await > 0, "a second after the request");
}

#[tokio::test(start_paused = true)]
async fn request_loses_units_if_it_may_have_run() {
    let mut losing = Vec::new();
    for reason in Reason::ALL {
        let store = Store::new();
        let limiter = builder(&store, leased(1_000, 50)).breaker(None).build().unwrap();
        checks(&limiter, 4).await;
        next_bucket(&store).await;
        store.take_asked();
        store.fail([Fault::Error(*reason)]);
        let given = limiter.check(alice()).await.unwrap_err().reason();
        // The store answers other checks, so one without an answer means an overload.
        assert_eq!(given, if *reason == Reason::Timeout { Reason::Overloaded } else { *reason });
        let asked = store.take_asked();
        let [(Purpose::Lease, units)] = asked[..] else { panic!("{reason:?}: {asked:?}") };
        let lost = limiter.stats().leased_units_lost;
        assert!(units > 0 && (lost == 0 || lost == u64::from(units)), "{reason:?}: {lost} of {units} units");
        if lost > 0 {
            losing.push(*reason);
        }
        assert_eq!(checks(&limiter, 20).await, 0, "{reason:?}: nothing is leased for a second");
    }
    let may_have_run =
        [Reason::Timeout, Reason::Connection, Reason::BrokenReply, Reason::Overloaded, Reason::Other];
    assert_eq!(losing, may_have_run);
}

#[tokio::test(start_paused = true)]
async fn request_that_was_not_sent_loses_nothing() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).max_checks_in_flight(1).build().unwrap();
    checks(&limiter, 4).await;
    next_bucket(&store).await;
    store.take_asked();
    store.fail([Fault::LostReply]);
    let bob = tokio::spawn(limiter.check(PartitionKey::new("user", "bob")));
    yield_now().await;
    let error = limiter.check(alice()).await.unwrap_err();
    assert_eq!((error.reason(), error.was_asked()), (Reason::Overloaded, false));
    assert_eq!(store.take_asked(), [(Purpose::Charge, 0)], "the lease request of Alice is not sent");
    assert_eq!(limiter.stats().leased_units_lost, 0);
    bob.abort();
}

/// The pairs of a process that may be leased at once: 64 shards with 1,024 pairs each.
#[tokio::test(start_paused = true)]
async fn pairs_beyond_bound_are_not_leased() {
    const BOUND: u32 = 64 * 1_024;
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    let check = async |user: u32| limiter.check(PartitionKey::new("user", user.to_string())).await.unwrap();
    // So many that each shard has more than its share of the bound. None of them is idle for a second.
    for _ in 0..2 {
        for user in 0..BOUND / 2 * 3 {
            assert!(check(user).await.is_admitted());
        }
        advance(600 * MILLISECOND).await;
    }
    for (others, may_lease) in [(BOUND * 2, false), (BOUND * 3, true)] {
        let mut leased = 0;
        for _ in 0..2 {
            for user in others..others + 20 {
                for _ in 0..4 {
                    leased += u32::from(check(user).await.is_leased());
                }
            }
            next_bucket(&store).await;
        }
        assert_eq!(leased > 0, may_lease, "{leased} leased units of 20 further pairs");
        // All pairs are idle.
        advance(2 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_was_not_run_loses_nothing() {
    let store = Store::new();
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 4).await;
    next_bucket(&store).await;
    store.fail([Fault::Refused]);
    assert_eq!(limiter.check(alice()).await.unwrap_err().reason(), Reason::Busy);
    assert_eq!(limiter.stats().leased_units_lost, 0);
    assert_eq!(checks(&limiter, 20).await, 0);
    advance(SECOND).await;
    assert!(checks(&limiter, 20).await > 0, "a lease is requested again");
}

#[tokio::test(start_paused = true)]
async fn dropped_caller_does_not_drop_its_lease() {
    let store = Store::new().with_latency(MILLISECOND, 4 * MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    checks(&limiter, 1).await;
    assert!(timeout(2 * MILLISECOND, check(&limiter)).await.is_err());
    assert_eq!(store.take_asked().last(), Some(&(Purpose::Lease, 1)));
    // Another check waits for the lease.
    assert!(check(&limiter).await.is_leased());
    assert_eq!(limiter.stats().leased_units_lost, 0);
    assert_eq!(limiter.stats().admitted, 3, "the decision without a caller counts, too");
    // A request that was never polled does not block the next one.
    drop(limiter.check(alice()));
    let _ = check(&limiter).await;
    assert_eq!(store.take_asked().last().map(|asked| asked.0), Some(Purpose::Lease));
}

#[tokio::test(start_paused = true)]
async fn checks_wait_for_lease_request_in_flight() {
    let store = Store::new().with_latency(MILLISECOND, MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    // Neither is leased: nothing was granted before.
    let _ = tokio::join!(check(&limiter), check(&limiter));
    next_bucket(&store).await;
    store.take_asked();
    let all =
        tokio::join!(check(&limiter), check(&limiter), check(&limiter), check(&limiter), check(&limiter));
    let leased = [all.0, all.1, all.2, all.3, all.4].map(|decision| decision.is_leased());
    // The lease has two units. The other two checks have waited once, and then one of them requests a lease.
    assert_eq!(leased.iter().filter(|is_leased| **is_leased).count(), 2);
    assert_eq!(store.take_asked(), [(Purpose::Lease, 2), (Purpose::Charge, 0), (Purpose::Lease, 3)]);
}

#[tokio::test(start_paused = true)]
async fn waiting_checks_keep_their_deadline() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).deadline(80 * MILLISECOND).build().unwrap();
    checks(&limiter, 4).await;
    next_bucket(&store).await;
    // The lease request hangs, and so does the check that has waited for it.
    store.fail([Fault::LostReply; 2]);
    let started = Instant::now();
    let (first, second) = tokio::join!(limiter.check(alice()), async {
        let outcome = limiter.check(alice()).await;
        // It has gone to the store after a quarter of its deadline.
        assert!(started.elapsed() <= 82 * MILLISECOND);
        outcome
    });
    assert_eq!([first, second].map(|outcome| outcome.unwrap_err().reason()), [Reason::Timeout; 2]);
    assert_eq!(store.take_asked().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn lease_outlives_outage_until_its_bucket_ends() {
    let store = Store::new();
    let limiter = builder(&store, leased(1_000, 50)).breaker(None).build().unwrap();
    checks(&limiter, 20).await;
    next_bucket(&store).await;
    assert_eq!(checks(&limiter, 2).await, 1);
    store.fail([Fault::Refused; 100]);
    assert_eq!(checks(&limiter, 10).await, 10);
    sleep(PRECISION).await;
    limiter.check(alice()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn slow_replies_lease_nothing_and_return_units() {
    // A round trip takes longer than a bucket.
    let store = Store::new().with_latency(MILLISECOND, 150 * MILLISECOND);
    let limiter = limiter(&store, leased(1_000, 50));
    let mut requests = 0;
    for _ in 0..20 {
        let (a, b, c) = tokio::join!(check(&limiter), check(&limiter), check(&limiter));
        assert!(![a, b, c].iter().any(|decision| decision.is_leased()));
        requests += store.take_asked().iter().filter(|(purpose, _)| *purpose == Purpose::Lease).count();
    }
    // Twenty rounds of at least 150 ms: the pauses are 100, 200, 400 and 800 ms, and then a second.
    assert!((2..=8).contains(&requests), "{requests}");
    limiter.drain().await;
    let stats = limiter.stats();
    assert!(stats.leased_units > 0);
    assert_eq!(stats.leased_units, stats.leased_units_returned);
}

#[tokio::test(start_paused = true)]
async fn answer_late_by_chance_delays_no_lease() {
    let store = Store::new().with_latency(2 * MILLISECOND, 3 * MILLISECOND);
    let limiter = limiter(&store, leased(10_000, 1_000));
    checks(&limiter, 20).await;
    next_bucket(&store).await;
    // The script runs 2 ms before the end of the bucket, and the reply arrives 1 ms after it.
    advance(PRECISION - 4 * MILLISECOND).await;
    store.take_asked();
    let three = || async { tokio::join!(check(&limiter), check(&limiter), check(&limiter)) };
    let (first, second, third) = three().await;
    // The second check requests a lease of the next bucket, and the third one waits for it.
    assert_eq!([first, second, third].map(|decision| decision.is_leased()), [false, false, true]);
    assert!(store.take_asked().iter().all(|(purpose, _)| *purpose == Purpose::Lease));
}

#[tokio::test(start_paused = true)]
async fn waiting_checks_are_bounded() {
    let store = Store::new().with_latency(MILLISECOND, MILLISECOND);
    let limiter = builder(&store, leased(1_000, 50)).max_checks_in_flight(2).build().unwrap();
    checks(&limiter, 8).await;
    next_bucket(&store).await;
    let new = || limiter.check(alice());
    let (a, (b, c, d, e)) = tokio::join!(new(), async {
        // The lease request is in flight.
        yield_now().await;
        tokio::join!(new(), new(), new(), new())
    });
    // The first one requests a lease. Two wait for it, one asks the store, and there is no place for the last one.
    let is_leased = [a, b, c, d].map(|decision| decision.unwrap().is_leased());
    assert_eq!(is_leased, [false, true, true, false]);
    assert_eq!(e.unwrap_err().reason(), Reason::Overloaded);
    // All places are free again.
    advance(MICROSECOND).await;
    assert!(check(&limiter).await.is_admitted());
}
