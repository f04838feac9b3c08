//! Requests that wait for their limit, on the paused clock of tokio.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::{JoinHandle, JoinSet, yield_now},
    time::{Instant, sleep, timeout},
};
use tower_sliding_window::{
    Admission, Algorithm, Costs, Decision, Limiter, LimiterBuilder, MemoryBackend, OutageRule, PartitionKey,
    Policy, Rejection, Wait,
    backend::{Backend, BackendError, Check, Pair, Reason, Refund},
    policy::Rate,
    testing::{FakeAnswer, FakeBackend, ManualClock},
};

use super::{alice, now};
use crate::{
    http::{MINUTE, SECOND},
    support::scrape::{Scrape, recorder},
};

const MILLI: Duration = Duration::from_millis(1);

/// A memory backend on the clock of tokio. Like a store on a network, it never answers at once. It records its decisions.
#[derive(Clone)]
struct TimedBackend {
    memory: MemoryBackend,
    clock: ManualClock,
    start: Instant,
    start_micros: u64,
    round_trip: Duration,
    checks: Arc<Mutex<Vec<Asked>>>,
}

/// A check that the backend has decided.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asked {
    cost: u32,
    is_admitted: bool,
}

impl TimedBackend {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            memory: MemoryBackend::new().with_clock(&clock),
            start: Instant::now(),
            start_micros: clock.now_micros(),
            clock,
            round_trip: Duration::ZERO,
            checks: Arc::default(),
        }
    }

    fn checks(&self) -> Vec<Asked> {
        self.checks.lock().unwrap().clone()
    }

    fn set_clock(&self) {
        self.clock.set_micros(self.start_micros + self.start.elapsed().as_micros() as u64);
    }
}

impl Backend for TimedBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        if self.round_trip.is_zero() {
            yield_now().await;
        } else {
            sleep(self.round_trip).await;
        }
        self.set_clock();
        let decision = self.memory.check(check).await?;
        let asked = Asked { cost: check.pairs()[0].cost, is_admitted: decision.is_admitted() };
        self.checks.lock().unwrap().push(asked);
        Ok(decision)
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.set_clock();
        self.memory.refund(refund).await
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        self.memory.reset(pairs).await
    }

    fn denials_hold(&self) -> bool {
        true
    }
}

fn policy(quota: u32, window: Duration) -> Policy {
    Policy::new("units", quota, window).unwrap()
}

fn limiter(backend: impl Backend, quota: u32) -> Limiter {
    Limiter::builder(backend).policy(policy(quota, SECOND)).build().unwrap()
}

/// The instants at which requests are admitted, in milliseconds since the start, by the names of the requests.
#[derive(Clone)]
struct Journal(Arc<Mutex<Vec<(&'static str, u64)>>>, Instant);

impl Journal {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    /// Starts a request, which joins its queue before this function returns.
    async fn wait(
        &self,
        limiter: &Limiter,
        name: &'static str,
        cost: u32,
        at_most: Duration,
    ) -> JoinHandle<Result<Admission, Rejection>> {
        let (journal, limiter) = (self.clone(), limiter.clone());
        let task = tokio::spawn(async move {
            let outcome = limiter.wait((alice(), cost), at_most).await;
            if outcome.is_ok() {
                journal.0.lock().unwrap().push((name, journal.now()));
            }
            outcome
        });
        // The runtime has one thread and polls tasks in the order in which they were spawned.
        yield_now().await;
        task
    }

    fn now(&self) -> u64 {
        self.1.elapsed().as_millis() as u64
    }

    fn admitted(&self) -> Vec<(&'static str, u64)> {
        self.0.lock().unwrap().clone()
    }
}

fn denied_wait(outcome: Result<Admission, Rejection>) -> Wait {
    match outcome {
        Err(Rejection::Denied(decision)) => decision.retry_after(),
        outcome => panic!("{outcome:?}"),
    }
}

/// Returns the bound that rejects a request, and whether it is that of one key.
fn too_many(outcome: Result<Admission, Rejection>) -> (usize, bool) {
    match outcome {
        Err(Rejection::TooManyWaiting { max, is_per_key, .. }) => (max, is_per_key),
        outcome => panic!("{outcome:?}"),
    }
}

fn too_long(outcome: Result<Admission, Rejection>) -> Duration {
    match outcome {
        Err(Rejection::WaitTooLong { at_least, .. }) => at_least,
        outcome => panic!("{outcome:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn thousand_waiters_are_admitted_in_order() {
    for has_deny_cache in [true, false] {
        let backend = TimedBackend::new();
        let builder = Limiter::builder(backend.clone()).policy(policy(100, SECOND));
        let builder = if has_deny_cache { builder } else { builder.deny_cache(None) };
        let limiter = builder.build().unwrap();
        let (start, order) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let mut waiters = JoinSet::new();
        for i in 0..1_000 {
            let (limiter, order) = (limiter.clone(), order.clone());
            waiters.spawn(async move {
                let _ = limiter.wait(alice(), MINUTE).await.unwrap();
                order.lock().unwrap().push(i);
            });
        }
        waiters.join_all().await;

        // 100 units at the start and after each of nine windows.
        let (took, ideal) = (start.elapsed(), 9 * SECOND);
        assert!(took >= ideal && took <= ideal.mul_f64(1.02), "{took:?}");
        assert_eq!(*order.lock().unwrap(), (0..1_000).collect::<Vec<_>>());
        // Only the first of the queue asks, so a request that asks a third time is denied twice in a row.
        let checks = backend.checks();
        assert_eq!(checks.iter().filter(|asked| asked.is_admitted).count(), 1_000);
        assert!(checks.windows(2).all(|two| two[0].is_admitted || two[1].is_admitted), "{checks:?}");
        assert_eq!(checks.len(), 1_009, "the first of each window is denied once");
        assert_eq!(limiter.waiting(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn shadow_policy_delays_no_waiter() {
    let shadow = Policy::new("shadow", 1, 60 * MINUTE).unwrap().shadow();
    let builder = Limiter::builder(TimedBackend::new()).policy(policy(1, SECOND)).policy(shadow);
    let limiter = builder.build().unwrap();
    let journal = Journal::new();
    for name in ["a", "b", "c"] {
        drop(journal.wait(&limiter, name, 1, 5 * SECOND).await);
    }
    let refused = journal.wait(&limiter, "d", 1, SECOND).await;
    assert_eq!(too_long(refused.await.unwrap()), 3 * SECOND);
    sleep(5 * SECOND).await;
    assert_eq!(journal.admitted(), [("a", 0), ("b", 1_000), ("c", 2_000)]);
}

#[tokio::test(start_paused = true)]
async fn waiter_never_asks_before_its_instant() {
    let backend = TimedBackend::new();
    // No wait is a whole number of milliseconds, which is what tokio's timer counts.
    let policy = policy(1, Duration::from_micros(1_234));
    let limiter = Limiter::builder(backend.clone()).policy(policy).deny_cache(None).build().unwrap();
    for _ in 0..50 {
        let _ = limiter.wait(alice(), SECOND).await.unwrap();
    }
    let denied = backend.checks().iter().filter(|asked| !asked.is_admitted).count();
    assert_eq!((denied, backend.checks().len()), (49, 99));
}

#[tokio::test(start_paused = true)]
async fn small_cost_waits_behind_large_cost() {
    let limiter = limiter(TimedBackend::new(), 10);
    let journal = Journal::new();
    for (name, cost) in [("six", 6), ("eight", 8), ("one", 1), ("nothing", 0), ("two", 2)] {
        journal.wait(&limiter, name, cost, MINUTE).await;
    }
    // A request of another key is not in this queue.
    let _ = limiter.wait((PartitionKey::new("user", "bob"), 10), Duration::ZERO).await.unwrap();
    assert_eq!(journal.now(), 0);
    sleep(3 * SECOND).await;
    assert_eq!(
        journal.admitted(),
        [("six", 0), ("nothing", 0), ("eight", 1_000), ("one", 1_000), ("two", 2_000)],
        "a cost of 0 needs no room"
    );
    assert_eq!(limiter.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_gives_its_turn_to_next() {
    let limiter = limiter(TimedBackend::new(), 10);
    let journal = Journal::new();
    journal.wait(&limiter, "six", 6, MINUTE).await;
    let head = journal.wait(&limiter, "eight", 8, MINUTE).await;
    journal.wait(&limiter, "four", 4, MINUTE).await;
    let middle = journal.wait(&limiter, "nine", 9, MINUTE).await;
    journal.wait(&limiter, "three", 3, MINUTE).await;
    sleep(100 * MILLI).await;
    assert_eq!((journal.admitted(), limiter.waiting()), (vec![("six", 0)], 4));

    middle.abort();
    yield_now().await;
    assert_eq!(limiter.waiting(), 3, "it leaves at once");
    sleep(100 * MILLI).await;
    head.abort();
    sleep(100 * MILLI).await;
    assert_eq!(journal.admitted(), [("six", 0), ("four", 200)]);
    sleep(SECOND).await;
    assert_eq!(journal.admitted(), [("six", 0), ("four", 200), ("three", 1_000)]);
    assert_eq!(limiter.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiter_dropped_during_its_check_gives_turn_to_next() {
    let backend = TimedBackend { round_trip: 50 * MILLI, ..TimedBackend::new() };
    let limiter = limiter(backend.clone(), 10);
    let journal = Journal::new();
    let head = journal.wait(&limiter, "first", 1, MINUTE).await;
    journal.wait(&limiter, "second", 1, MINUTE).await;
    sleep(10 * MILLI).await;
    head.abort();
    sleep(100 * MILLI).await;
    assert_eq!(journal.admitted(), [("second", 60)]);
    assert_eq!(backend.checks().len(), 1, "the first check was dropped before the backend decided");
}

/// Until the first of a queue has its answer, its wait is not known, and a short time may be long enough.
#[tokio::test(start_paused = true)]
async fn request_joins_queue_whose_first_asks_again() {
    for is_head_dropped in [false, true] {
        let backend = TimedBackend { round_trip: 50 * MILLI, ..TimedBackend::new() };
        let build = |backend| {
            let builder = Limiter::builder(backend).policy(policy(10, 60 * MINUTE));
            builder.deny_cache(None).build().unwrap()
        };
        let (mine, other_process) = (build(backend.clone()), build(backend));
        let _ = other_process.check((alice(), 10)).await.unwrap();
        let journal = Journal::new();
        let head = journal.wait(&mine, "head", 1, Duration::MAX).await;
        let _second = journal.wait(&mine, "second", 1, Duration::MAX).await;
        sleep(100 * MILLI).await;
        assert!(too_long(mine.wait(alice(), MINUTE).await) > MINUTE, "the first sleeps");
        if is_head_dropped {
            other_process.reset(alice()).await.unwrap();
            head.abort();
        } else {
            mine.reset(alice()).await.unwrap();
        }
        sleep(20 * MILLI).await;
        let short = journal.wait(&mine, "short", 1, 200 * MILLI).await;
        let _ = short.await.unwrap().unwrap();
        let expected = if is_head_dropped {
            vec![("second", 150), ("short", 200)]
        } else {
            vec![("head", 150), ("second", 200), ("short", 250)]
        };
        assert_eq!(journal.admitted(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_gives_up_at_once_if_wait_is_too_long() {
    let backend = TimedBackend::new();
    let limiter = limiter(backend.clone(), 10);
    let journal = Journal::new();
    assert_eq!(denied_wait(limiter.wait((alice(), 11), MINUTE).await), Wait::Never);
    let _ = limiter.wait((alice(), 10), MINUTE).await.unwrap();
    assert_eq!(denied_wait(limiter.wait(alice(), SECOND - MILLI).await), Wait::For(SECOND));
    assert_eq!((journal.now(), backend.checks().len(), limiter.waiting()), (0, 3, 0));

    let head = journal.wait(&limiter, "head", 4, SECOND).await;
    sleep(100 * MILLI).await;
    assert_eq!(denied_wait(limiter.wait((alice(), 11), MINUTE).await), Wait::Never);
    let asked = backend.checks().len();
    // The first of the queue sleeps for 900 ms. 10 units fit then, and 10 more a second later.
    let least = |cost, at_most| limiter.wait((alice(), cost), at_most);
    assert_eq!(too_long(least(6, 899 * MILLI).await), 900 * MILLI);
    assert_eq!(too_long(least(7, 1_899 * MILLI).await), 1_900 * MILLI);
    assert_eq!((journal.now(), backend.checks().len()), (100, asked), "the store is not asked");
    let other = journal.wait(&limiter, "seven", 7, 1_900 * MILLI).await;
    let _ = head.await.unwrap().unwrap();
    let _ = other.await.unwrap().unwrap();
    assert_eq!(journal.admitted(), [("head", 1_000), ("seven", 2_000)]);
}

#[tokio::test(start_paused = true)]
async fn queue_gives_up_when_head_learns_its_wait() {
    let backend = TimedBackend { round_trip: 50 * MILLI, ..TimedBackend::new() };
    let (mine, other_process) = (limiter(backend.clone(), 10), limiter(backend, 10));
    let _ = other_process.check((alice(), 10)).await.unwrap();
    let journal = Journal::new();
    let head = journal.wait(&mine, "head", 1, MINUTE).await;
    let short = journal.wait(&mine, "short", 1, 900 * MILLI).await;
    let long = journal.wait(&mine, "long", 1, 2 * SECOND).await;
    assert_eq!(too_long(short.await.unwrap()), 950 * MILLI);
    assert_eq!((journal.now(), mine.waiting()), (50, 2), "it gives up with the reply to the first request");
    let _ = head.await.unwrap().unwrap();
    let _ = long.await.unwrap().unwrap();
    assert_eq!(journal.admitted(), [("head", 1_050), ("long", 1_100)]);
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_up_returns_its_units_to_queue() {
    let backend = TimedBackend { round_trip: 50 * MILLI, ..TimedBackend::new() };
    let (mine, other_process) = (limiter(backend.clone(), 10), limiter(backend, 10));
    let _ = other_process.check((alice(), 10)).await.unwrap();
    let journal = Journal::new();
    journal.wait(&mine, "head", 1, MINUTE).await;
    let short = journal.wait(&mine, "short", 9, 900 * MILLI).await;
    assert_eq!(too_long(short.await.unwrap()), 950 * MILLI);
    // With the units of the one that has left, this one would wait for a second window.
    let next = journal.wait(&mine, "next", 9, 1_500 * MILLI).await;
    let _ = next.await.unwrap().unwrap();
    assert_eq!(journal.admitted(), [("head", 1_050), ("next", 1_100)]);
}

/// One request joins as often as one leaves, so the queue is never empty.
#[tokio::test(start_paused = true)]
async fn waiter_that_leaves_returns_its_units_to_queue() {
    let limiter = limiter(TimedBackend::new(), 1);
    let journal = Journal::new();
    let (mut waiters, mut fewest) = (Vec::new(), usize::MAX);
    for second in 0..60 {
        for _ in 0..if second == 0 { 4 } else { 1 } {
            waiters.push(journal.wait(&limiter, "request", 1, 6 * SECOND).await);
        }
        sleep(SECOND).await;
        fewest = fewest.min(limiter.waiting());
    }
    for waiter in waiters {
        let _ = waiter.await.unwrap().unwrap();
    }
    assert!(fewest > 0);
    assert_eq!(journal.now(), 62_000, "one second for each request after the first");
}

#[tokio::test(start_paused = true)]
async fn waiter_in_queue_gives_up_at_end_of_its_time() {
    let builder = Limiter::builder(FakeBackend::hanging()).deadline(MINUTE).policy(policy(10, SECOND));
    let limiter = builder.build().unwrap();
    let journal = Journal::new();
    let head = journal.wait(&limiter, "head", 1, SECOND).await;
    let second = journal.wait(&limiter, "second", 1, 2 * SECOND).await;
    assert_eq!(too_long(second.await.unwrap()), Duration::ZERO);
    assert_eq!((journal.now(), limiter.waiting()), (2_000, 1));
    // A check that has begun is completed.
    assert!(
        matches!(head.await.unwrap(), Err(Rejection::Unavailable(error)) if error.reason() == Reason::Timeout)
    );
    assert_eq!((journal.now(), limiter.waiting()), (60_000, 0));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_up_states_time_of_units_ahead() {
    let builder = Limiter::builder(FakeBackend::hanging()).deadline(MINUTE).policy(policy(10, SECOND));
    let limiter = builder.build().unwrap();
    let journal = Journal::new();
    journal.wait(&limiter, "head", 10, MINUTE).await;
    journal.wait(&limiter, "ahead", 7, MINUTE).await;
    let mut waiters = Vec::new();
    // Each quota of the units up to those of the waiter itself, after the first one, takes a window.
    for (cost, at_most, at_least) in [(3, 2, 1), (4, 3, 2), (10, 4, 2)] {
        let task = journal.wait(&limiter, "waiter", cost, at_most * SECOND).await;
        waiters.push((task, at_most * SECOND, at_least * SECOND));
    }
    for (task, at_most, at_least) in waiters {
        assert_eq!(too_long(task.await.unwrap()), at_least, "{at_most:?}");
        assert_eq!(journal.now(), at_most.as_millis() as u64, "it gives up at the end of its time");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_asks_again_if_another_process_takes_its_units() {
    let backend = TimedBackend::new();
    let (mine, other_process) = (limiter(backend.clone(), 10), limiter(backend.clone(), 10));
    let _ = other_process.check((alice(), 10)).await.unwrap();
    let journal = Journal::new();
    let waiter = journal.wait(&mine, "mine", 1, MINUTE).await;
    sleep(500 * MILLI).await;
    other_process.reset(alice()).await.unwrap();
    let _ = other_process.check((alice(), 10)).await.unwrap();
    let _ = waiter.await.unwrap().unwrap();
    assert_eq!(journal.admitted(), [("mine", 1_500)]);
    let mine: Vec<_> = backend.checks().into_iter().filter(|asked| asked.cost == 1).collect();
    assert_eq!(mine.iter().map(|asked| asked.is_admitted).collect::<Vec<_>>(), [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn outage_rule_ends_every_wait() {
    let builder = |answer, rule| {
        let backend = FakeBackend::scripted([FakeAnswer::Deny(Wait::For(SECOND)), answer]);
        Limiter::builder(backend).policy(policy(10, SECOND)).outage(rule).build().unwrap()
    };
    let outage = FakeAnswer::Unavailable(Reason::Connection);
    for (rule, is_admitted) in [(OutageRule::FailOpen, true), (OutageRule::FailClosed, false)] {
        let limiter = builder(outage, rule);
        let journal = Journal::new();
        let mut tasks = Vec::new();
        for _ in 0..20 {
            tasks.push(journal.wait(&limiter, "request", 1, MINUTE).await);
        }
        for task in tasks {
            match task.await.unwrap() {
                Ok(admission) => assert!(is_admitted && admission.unchecked().is_some()),
                Err(rejection) => {
                    assert!(!is_admitted && matches!(rejection, Rejection::Unavailable(_)), "{rejection:?}");
                }
            }
        }
        assert_eq!((journal.now(), limiter.waiting()), (1_000, 0), "the first check was denied");
    }
}

#[tokio::test(start_paused = true)]
async fn bound_on_waiters_rejects_further_requests() {
    let builder = Limiter::builder(TimedBackend::new()).policy(policy(1, SECOND)).max_waiting(2);
    let limiter = builder.build().unwrap();
    let journal = Journal::new();
    for name in ["first", "second", "third"] {
        journal.wait(&limiter, name, 1, MINUTE).await;
        sleep(MILLI).await;
    }
    assert_eq!(too_many(limiter.wait(alice(), MINUTE).await), (2, false));
    assert_eq!((journal.now(), limiter.waiting()), (3, 2));
    sleep(3 * SECOND).await;
    let _ = limiter.wait(alice(), MINUTE).await.unwrap();

    let builder = || Limiter::builder(MemoryBackend::new()).policy(policy(1, SECOND));
    for max in [0, (1 << 20) + 1] {
        let error = builder().max_waiting(max).build().unwrap_err().to_string();
        assert_eq!(error, format!("max_waiting {max}: it must be 1 to 1048576"));
        let error = builder().max_waiting_per_key(max).build().unwrap_err().to_string();
        assert_eq!(error, format!("max_waiting_per_key {max}: it must be 1 to 1048576"));
    }
    for max in [1, 1 << 20] {
        assert!(builder().max_waiting(max).max_waiting_per_key(max).build().is_ok(), "{max}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_host_delay_no_other_host() {
    // The second bound lets one host take all room to wait.
    for (per_key, expected) in [(Limiter::DEFAULT_MAX_WAITING_PER_KEY, 1_024), (1 << 20, 4_096)] {
        let backend = TimedBackend { round_trip: MILLI, ..TimedBackend::new() };
        let builder = Limiter::builder(backend).policy(policy(1, MINUTE)).max_waiting_per_key(per_key);
        let limiter = builder.build().unwrap();
        let wait = |host: u32| limiter.wait(PartitionKey::new("host", host.to_string()), Duration::MAX);
        let _ = wait(0).await.unwrap();
        let mut attacker = JoinSet::new();
        for _ in 0..4_096 {
            attacker.spawn(wait(0));
        }
        sleep(SECOND).await;

        let (start, mut others) = (Instant::now(), JoinSet::new());
        for host in 1..=200 {
            others.spawn(wait(host));
        }
        let outcomes = others.join_all().await;
        let admitted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!((admitted, start.elapsed()), (200, MILLI), "hosts admitted after one round trip");
        assert_eq!(limiter.waiting(), expected, "waiting requests of the attacker");
    }
}

#[tokio::test(start_paused = true)]
async fn each_key_asks_once_if_bound_on_waiters_is_reached() {
    let backend = TimedBackend { round_trip: 50 * MILLI, ..TimedBackend::new() };
    let builder = Limiter::builder(backend.clone()).policy(policy(1, SECOND)).max_waiting(2);
    let limiter = builder.build().unwrap();
    let journal = Journal::new();
    for name in ["first", "second", "third"] {
        drop(journal.wait(&limiter, name, 1, MINUTE).await);
    }
    sleep(100 * MILLI).await;
    assert_eq!((journal.admitted(), limiter.waiting()), (vec![("first", 50)], 2));

    let bob = || limiter.wait(PartitionKey::new("user", "bob"), MINUTE);
    let mut asking = JoinSet::new();
    asking.spawn(bob());
    yield_now().await;
    assert_eq!(too_many(bob().await), (2, false), "the first request of this key asks now");
    let _ = asking.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(journal.now(), 150, "one round trip");
    let asked = backend.checks().len();
    assert_eq!(denied_wait(bob().await), Wait::For(950 * MILLI), "there is no room to wait");
    assert_eq!((journal.now(), backend.checks().len(), limiter.waiting()), (200, asked + 1, 2));
}

#[tokio::test(start_paused = true)]
async fn bound_per_key_rejects_only_further_requests_of_key() {
    let builder = Limiter::builder(TimedBackend::new()).policy(policy(1, SECOND)).max_waiting_per_key(2);
    let limiter = builder.build().unwrap();
    let journal = Journal::new();
    for name in ["first", "second", "third"] {
        drop(journal.wait(&limiter, name, 1, MINUTE).await);
        sleep(MILLI).await;
    }
    assert_eq!(too_many(limiter.wait(alice(), MINUTE).await), (2, true));
    let bob = || limiter.wait(PartitionKey::new("user", "bob"), MINUTE);
    let _ = bob().await.unwrap();
    assert_eq!((journal.now(), limiter.waiting()), (3, 2));
    let _ = bob().await.unwrap();
    assert_eq!(journal.now(), 1_003, "another key may wait");
    sleep(2 * SECOND).await;
    assert_eq!(journal.admitted(), [("first", 0), ("second", 1_000), ("third", 2_000)]);
}

#[tokio::test(start_paused = true)]
async fn every_policy_and_algorithm_admits_waiters_in_order() {
    let precision = 100 * MILLI;
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets { precision },
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { rate: Rate::per_second(5) },
    ] {
        let backend = TimedBackend::new();
        let with = |builder: LimiterBuilder, name, quota, window| {
            builder.policy(Policy::new(name, quota, window).unwrap().with_algorithm(algorithm).unwrap())
        };
        let builder = with(Limiter::builder(backend.clone()), "short", 5, SECOND);
        let limiter = with(builder, "long", 12, 5 * SECOND).build().unwrap();
        let journal = Journal::new();
        let names = ["1", "2", "3", "4", "5", "6", "7", "8"];
        for name in names {
            journal.wait(&limiter, name, 3, MINUTE).await;
        }
        sleep(MINUTE).await;
        let admitted = journal.admitted();
        assert_eq!(admitted.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names, "{algorithm:?}");
        let repeated =
            backend.checks().windows(2).filter(|two| !two[0].is_admitted && !two[1].is_admitted).count();
        assert_eq!(repeated, 0, "{algorithm:?}: {:?}", backend.checks());
    }
}

#[test]
fn wait_outside_runtime_returns_every_denial() {
    let clock = ManualClock::new();
    let limiter = limiter(MemoryBackend::new().with_clock(&clock), 1);
    assert!(now(limiter.wait(alice(), MINUTE)).is_ok());
    assert_eq!(denied_wait(now(limiter.wait(alice(), MINUTE))), Wait::For(SECOND));
    clock.advance(SECOND);
    assert!(now(limiter.wait(alice(), Duration::MAX)).is_ok());
    assert_eq!(limiter.waiting(), 0);
}

#[test]
fn wait_begins_at_first_poll() {
    let backend = FakeBackend::admitting();
    let limiter = limiter(backend.clone(), 10);
    let unpolled = limiter.wait(alice(), MINUTE);
    assert!(now(limiter.wait((alice(), 2), MINUTE)).is_ok(), "an unpolled future is not in the queue");
    assert_eq!((backend.checks().len(), limiter.waiting()), (1, 0));
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn waiter_may_wait_for_a_very_long_time() {
    const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
    let limiter = limiter(TimedBackend::new(), 1);
    let journal = Journal::new();
    for (name, years) in [("1", 10), ("2", 1_000), ("3", 100_000_000)] {
        drop(journal.wait(&limiter, name, 1, years * YEAR).await);
    }
    sleep(3 * SECOND).await;
    assert_eq!(journal.admitted(), [("1", 0), ("2", 1_000), ("3", 2_000)]);
}

/// Batch requests leave half of the units to others, and a reload raises the quota. In both cases, those that have room do not wait.
#[tokio::test(start_paused = true)]
async fn lower_quota_holds_up_no_higher_quota() {
    let high = policy(10, MINUTE);
    for low in [high.clone().headroom_percent(50).unwrap(), policy(5, MINUTE)] {
        let limiter = Limiter::builder(TimedBackend::new()).without_policies().build().unwrap();
        let wait = |policy: &Policy| {
            tokio::spawn(limiter.wait([Pair::new(alice(), policy.clone(), 1)], 60 * MINUTE))
        };
        let _ = limiter.check([Pair::new(alice(), high.clone(), 5)]).await.unwrap();
        let start = Instant::now();
        let first = wait(&low);
        sleep(SECOND).await;
        let _ = wait(&high).await.unwrap().unwrap();
        assert_eq!(start.elapsed().as_secs(), 1);
        let _ = first.await.unwrap().unwrap();
        assert_eq!(start.elapsed().as_secs(), 60);
    }
}

/// The queue behind a long sleep is open at once, also before the first request has run. Each request asks once, in order.
#[tokio::test(start_paused = true)]
async fn reset_and_unblock_wake_first_waiter() {
    let hour = 60 * MINUTE;
    for is_gate in [false, true] {
        let backend = TimedBackend::new();
        let builder = Limiter::builder(backend.clone()).policy(policy(10, hour));
        let limiter = builder.policy(Policy::gate("api").unwrap()).build().unwrap();
        if is_gate {
            limiter.block(alice(), hour).await.unwrap();
        } else {
            let _ = limiter.check((alice(), 10)).await.unwrap();
        }
        let journal = Journal::new();
        for name in ["a", "b", "c"] {
            journal.wait(&limiter, name, 1, Duration::MAX).await;
        }
        sleep(SECOND).await;
        assert_eq!(too_long(limiter.wait(alice(), MINUTE).await), hour - SECOND);
        let asked = backend.checks().len();
        limiter.reset(PartitionKey::new("user", "bob")).await.unwrap();
        sleep(SECOND).await;
        assert_eq!((backend.checks().len(), limiter.waiting()), (asked, 3), "that of another key wakes none");

        if is_gate {
            limiter.unblock(alice()).await.unwrap();
        } else {
            limiter.reset(alice()).await.unwrap();
        }
        let _ = limiter.wait(alice(), SECOND).await.unwrap();
        assert_eq!(journal.admitted(), [("a", 2_000), ("b", 2_000), ("c", 2_000)]);
        assert_eq!((journal.now(), backend.checks().len()), (2_000, asked + 4));
        let stats = limiter.stats();
        assert_eq!(
            (stats.delayed, stats.denied),
            (1, 1),
            "each of those that wait and are rejected counts once"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn settlement_wakes_first_waiter() {
    let backend = TimedBackend::new();
    let limiter = Limiter::builder(backend.clone()).policy(policy(100, MINUTE)).build().unwrap();
    let mut reservations = Vec::new();
    for _ in 0..10 {
        reservations.push(limiter.reserve((alice(), 10)).await.unwrap());
    }
    let journal = Journal::new();
    for (name, cost) in [("fifteen", 15), ("four", 4)] {
        journal.wait(&limiter, name, cost, MINUTE).await;
    }
    for reservation in &reservations[..2] {
        sleep(SECOND).await;
        let _ = reservation.settle(0).await;
    }
    sleep(SECOND).await;
    assert_eq!(journal.admitted(), [("fifteen", 2_000), ("four", 2_000)]);
    assert_eq!(backend.checks().len(), 10 + 3 + 1, "each settlement makes the first request ask once");
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.delayed, stats.denied), (12, 1, 0));
}

/// A memory settles at once, and nothing waits for it in a queue of settlements.
#[tokio::test(start_paused = true)]
async fn settlement_in_memory_wakes_first_waiter() {
    let memory = MemoryBackend::new().with_clock(&ManualClock::new());
    let limiter = Limiter::builder(memory).policy(policy(10, MINUTE)).build().unwrap();
    let reservation = limiter.reserve((alice(), 10)).await.unwrap();
    let journal = Journal::new();
    let waiter = journal.wait(&limiter, "waiter", 1, 2 * MINUTE).await;
    sleep(SECOND).await;
    assert_eq!((journal.admitted(), limiter.waiting()), (vec![], 1));
    let _ = reservation.settle(0).await;
    let _ = waiter.await.unwrap().unwrap();
    assert_eq!(journal.admitted(), [("waiter", 1_000)]);
}

#[tokio::test(start_paused = true)]
async fn many_settlements_cost_few_checks() {
    let backend = TimedBackend::new();
    let limiter = Limiter::builder(backend.clone()).policy(policy(1_000, MINUTE)).build().unwrap();
    let mut reservations = Vec::new();
    for _ in 0..1_000 {
        reservations.push(limiter.reserve(alice()).await.unwrap());
    }
    let journal = Journal::new();
    journal.wait(&limiter, "all", 1_000, MINUTE).await;
    for reservation in reservations {
        sleep(MILLI).await;
        let _ = reservation.settle(0).await;
    }
    sleep(10 * MILLI).await;
    assert!(matches!(journal.admitted()[..], [("all", 1_000..=1_010)]), "{:?}", journal.admitted());
    let asked = backend.checks().len() - 1_000;
    assert!((50..=102).contains(&asked), "{asked} checks of the request that waits");
}

/// The first requests of several queues wait for one pair.
#[tokio::test(start_paused = true)]
async fn settlement_wakes_queue_that_it_has_room_for() {
    let backend = TimedBackend::new();
    let limiter = Limiter::builder(backend.clone()).without_policies().build().unwrap();
    let [account, of_user] = [policy(10, MINUTE), Policy::new("user", 100, MINUTE).unwrap()];
    let pairs = |user: &str, cost| {
        let user = Pair::new(PartitionKey::new("user", user), of_user.clone(), cost);
        vec![Pair::new(PartitionKey::new("account", "ours"), account.clone(), cost), user]
    };
    let used = limiter.reserve(pairs("z", 10)).await.unwrap();
    let waits = [("a", 8), ("b", 2), ("c", 3), ("d", 1)];
    let mut waits = waits.map(|(user, cost)| tokio::spawn(limiter.wait(pairs(user, cost), Duration::MAX)));
    sleep(SECOND).await;
    let asked = backend.checks().len();
    let _ = used.settle(7).await;
    sleep(SECOND).await;
    let admitted: Vec<bool> = waits.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(admitted, [false, true, false, true]);
    let costs: Vec<u32> = backend.checks()[asked..].iter().map(|asked| asked.cost).collect();
    assert_eq!(costs, [8, 2, 1], "the third one has no room, and does not ask");
    sleep(MINUTE).await;
    for wait in &mut waits {
        let _ = wait.await.unwrap().unwrap();
    }
}

/// A request that waits for units in flight asks again and again.
#[tokio::test(start_paused = true)]
async fn repeated_denials_of_waiter_count_once() {
    let policy = Policy::in_flight("exports", 1).unwrap();
    let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build().unwrap();
    let running = limiter.admit(alice()).await.unwrap();
    let waiter = tokio::spawn(limiter.wait(alice(), 10 * MINUTE));
    sleep(MINUTE).await;
    drop(running);
    let _ = waiter.await.unwrap().unwrap();
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.delayed, stats.denied), (2, 1, 0));
    assert_eq!(limiter.most_denied(1), []);
}

/// Returns the pairs of a request of a user: the account that all users share, and the user, whose queue is its own.
fn pairs_of(account: &Policy, user: &str, cost: u32) -> Vec<Pair> {
    let of_user = Policy::new("user", 1_000, MINUTE).unwrap();
    vec![
        Pair::new(PartitionKey::new("account", "ours"), account.clone(), cost),
        Pair::new(PartitionKey::new("user", user), of_user, cost),
    ]
}

#[tokio::test(start_paused = true)]
async fn release_during_pause_wakes_no_later_queue() {
    let backend = TimedBackend::new();
    let limiter = Limiter::builder(backend.clone()).without_policies().build().unwrap();
    let account = policy(10, MINUTE);
    let mut used = Vec::new();
    for _ in 0..10 {
        used.push(limiter.reserve(pairs_of(&account, "z", 1)).await.unwrap());
    }
    let waits = [("a", 2), ("b", 2)]
        .map(|(user, cost)| tokio::spawn(limiter.wait(pairs_of(&account, user, cost), Duration::MAX)));
    sleep(SECOND).await;
    for used in &used[..3] {
        let _ = used.settle(0).await;
        sleep(MILLI).await;
    }
    sleep(SECOND).await;
    let admitted: Vec<bool> = waits.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(admitted, [true, false]);
}

#[tokio::test(start_paused = true)]
async fn settlements_for_many_queues_cost_few_checks() {
    let backend = TimedBackend::new();
    let limiter = Limiter::builder(backend.clone()).without_policies().build().unwrap();
    let account = policy(1_000, MINUTE);
    let mut used = Vec::new();
    for _ in 0..1_000 {
        used.push(limiter.reserve(pairs_of(&account, "z", 1)).await.unwrap());
    }
    let waits: Vec<_> = (0..50)
        .map(|i| tokio::spawn(limiter.wait(pairs_of(&account, &format!("u{i}"), 1_000), Duration::MAX)))
        .collect();
    sleep(SECOND).await;
    let asked = backend.checks().len();
    for used in &used[..900] {
        let _ = used.settle(0).await;
        sleep(MILLI).await;
    }
    sleep(SECOND).await;
    assert!(backend.checks().len() - asked < 120);
    assert!(!waits.iter().any(JoinHandle::is_finished), "900 of 1,000 units are free");
}

#[tokio::test(start_paused = true)]
async fn gate_that_blocks_again_opens_for_all_queues() {
    let backend = TimedBackend::new();
    let limiter = Limiter::builder(backend.clone()).without_policies().build().unwrap();
    let account = Policy::gate("api").unwrap();
    limiter.block(pairs_of(&account, "z", 1), 60 * MINUTE).await.unwrap();
    let waits: Vec<_> = ["a", "b", "c"]
        .map(|user| tokio::spawn(limiter.wait(pairs_of(&account, user, 1), Duration::MAX)))
        .into();
    sleep(SECOND).await;
    limiter.unblock(pairs_of(&account, "z", 1)).await.unwrap();
    limiter.block(pairs_of(&account, "z", 1), SECOND).await.unwrap();
    sleep(MINUTE).await;
    let admitted: Vec<bool> = waits.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(admitted, [true, true, true]);
}

/// A refund shortens all waits, but has room for none of the requests at once.
#[tokio::test(start_paused = true)]
async fn denied_request_that_leaves_passes_release_on() {
    let backend = TimedBackend::new();
    let limiter = Limiter::builder(backend.clone()).without_policies().build().unwrap();
    let account = policy(10, 60 * MINUTE);
    let _ = limiter.check(pairs_of(&account, "y", 5)).await.unwrap();
    sleep(59 * MINUTE).await;
    let late = limiter.reserve(pairs_of(&account, "z", 5)).await.unwrap();
    let waits: Vec<_> =
        ["a", "b"].map(|user| tokio::spawn(limiter.wait(pairs_of(&account, user, 6), Duration::MAX))).into();
    sleep(SECOND).await;
    let _ = late.settle(0).await;
    sleep(SECOND).await;
    waits[0].abort();
    sleep(2 * MINUTE).await;
    assert!(waits[1].is_finished(), "10 of 10 units remain, and the request sleeps for an hour");
}

/// The store is not asked for them.
#[tokio::test(start_paused = true)]
async fn requests_rejected_in_queue_are_counted() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    for (max_waiting, at_most, rejected) in [(64, 2 * SECOND, [6, 0]), (2, MINUTE, [0, 6])] {
        let shadow = Policy::new("shadow", 99, MINUTE).unwrap().shadow();
        let builder = Limiter::builder(TimedBackend::new()).policy(policy(1, SECOND)).policy(shadow);
        let limiter = builder.max_waiting(max_waiting).build().unwrap();
        let waits: Vec<_> = (0..9).map(|_| tokio::spawn(limiter.wait(alice(), at_most))).collect();
        let mut seen = [0, 0];
        for wait in waits {
            match wait.await.unwrap() {
                Err(Rejection::WaitTooLong { .. }) => seen[0] += 1,
                Err(Rejection::TooManyWaiting { .. }) => seen[1] += 1,
                outcome => assert!(outcome.is_ok(), "{outcome:?}"),
            }
        }
        assert_eq!(seen, rejected);
        let stats = limiter.stats();
        assert_eq!([stats.denied, stats.unavailable], rejected);
        assert!(stats.reasons.iter().all(|(reason, _)| *reason == Reason::Overloaded), "{stats:?}");
    }
    let scrape = Scrape::of(&recorder.handle());
    let denied = |policy| scrape.get(&format!(r#"decisions_total{{policy="{policy}",outcome="denied"}}"#));
    assert_eq!([denied("units"), denied("shadow")], [6.0, 0.0]);
    assert_eq!(scrape.get(r#"unavailable_checks_total{reason="overloaded"}"#), 6.0);
}

/// A healthy queue denies nothing: its requests are delayed, and then admitted.
#[tokio::test(start_paused = true)]
async fn waits_are_measured_and_are_no_denials() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let scrape = || Scrape::of(&recorder.handle());
    let builder = Limiter::builder(TimedBackend::new()).policy(policy(1, SECOND));
    let limiter = builder.policy(Policy::gate("gate").unwrap()).build().unwrap();
    assert!(
        scrape().has("waiting_requests")
            && scrape().has(r#"decisions_total{policy="gate",outcome="delayed"}"#)
    );
    // It does not wait.
    let _ = limiter.wait(alice(), MINUTE).await.unwrap();
    assert_eq!(scrape().non_zero("wait_duration_seconds_count"), []);
    // The second one waits behind the first one.
    let two = [(); 2].map(|()| tokio::spawn(limiter.wait(alice(), MINUTE)));
    sleep(SECOND / 2).await;
    assert_eq!((scrape().get("waiting_requests"), limiter.waiting()), (2.0, 2));
    for wait in two {
        let _ = wait.await.unwrap().unwrap();
    }
    assert_eq!((limiter.stats().delayed, limiter.stats().denied, limiter.most_denied(1)), (2, 0, vec![]));
    assert!(timeout(SECOND / 2, limiter.wait(alice(), MINUTE)).await.is_err());
    // It is rejected at once.
    limiter.wait(alice(), MILLI).await.unwrap_err();
    // It has waited, and is rejected in the end.
    limiter.block(alice(), SECOND).await.unwrap();
    let free = Costs::new().policy("units", 0);
    let late = tokio::spawn(limiter.wait((alice(), free), 2 * SECOND));
    sleep(SECOND / 2).await;
    limiter.block(alice(), MINUTE).await.unwrap();
    late.await.unwrap().unwrap_err();
    let late = tokio::spawn(limiter.wait((alice(), 1), MINUTE + SECOND));
    sleep(SECOND).await;
    limiter.block(alice(), 2 * MINUTE).await.unwrap();
    late.await.unwrap().unwrap_err();

    let scrape = scrape();
    assert_eq!(scrape.get("waiting_requests"), 0.0);
    let waits =
        [(r#"outcome="admitted""#, 2.0), (r#"outcome="dropped""#, 1.0), (r#"outcome="rejected""#, 2.0)];
    assert_eq!(scrape.non_zero("wait_duration_seconds_count"), waits);
    let admitted = scrape.get(r#"wait_duration_seconds_sum{outcome="admitted"}"#);
    assert!((3.0..3.1).contains(&admitted), "{admitted}");
    let decisions = [
        (r#"policy="gate",outcome="admitted""#, 3.0),
        (r#"policy="gate",outcome="delayed""#, 2.0),
        (r#"policy="gate",outcome="denied""#, 2.0),
        (r#"policy="units",outcome="admitted""#, 3.0),
        (r#"policy="units",outcome="delayed""#, 3.0),
        (r#"policy="units",outcome="denied_from_cache""#, 1.0),
    ];
    assert_eq!(scrape.non_zero("decisions_total"), decisions);
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.delayed, stats.denied), (3, 5, 3));
    assert_eq!(limiter.most_denied(1)[0].denials, 3);
}
