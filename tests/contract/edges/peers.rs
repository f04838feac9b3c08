//! Cases of the test suites of other limiters that count by GCRA, or by a token bucket: governor, tower_governor and redis-cell. A token
//! bucket of the same capacity and rate decides all of them as they do.

use std::time::Duration;

use tower_sliding_window::{Algorithm, Policy, Wait, backend::Backend, policy::Rate};

use super::{Bench, edges};

/// A case: its name, the capacity, the rate as units in a period of milliseconds, and the checks.
struct Case {
    name: &'static str,
    capacity: u32,
    rate: (u32, u64),
    checks: Vec<Expected>,
}

/// A check at a time in milliseconds from the first one, with its cost, and what the suite states about the decision.
#[derive(Clone, Copy)]
struct Expected {
    at: u64,
    cost: u32,
    verdict: Verdict,
    remaining: Option<u32>,
    /// The time until the bucket is full, in milliseconds.
    reset: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Admitted,
    Denied,
    /// The wait in milliseconds.
    DeniedFor(u64),
    Never,
}
use Verdict::{Admitted, Denied, DeniedFor, Never};

fn check(at: u64, cost: u32, verdict: Verdict) -> Expected {
    Expected { at, cost, verdict, remaining: None, reset: None }
}

fn remains(at: u64, verdict: Verdict, remaining: u32) -> Expected {
    Expected { remaining: Some(remaining), ..check(at, 1, verdict) }
}

fn throttles(at: u64, cost: u32, remaining: u32, reset: u64, verdict: Verdict) -> Expected {
    Expected { remaining: Some(remaining), reset: Some(reset), ..check(at, cost, verdict) }
}

fn cases() -> [Case; 16] {
    let case = |name, capacity, rate, checks| Case { name, capacity, rate, checks };
    let many = |count, at, cost, verdict| vec![check(at, cost, verdict); count];
    let two_in_each_second = || {
        let verdicts = [Admitted, Admitted, Denied];
        let second = |at: u64| (at..).zip(verdicts).map(|(at, verdict)| check(at, 1, verdict));
        second(0).chain(second(1_002)).collect()
    };
    // Twenty cells at five per second, each at its time: the first five a millisecond apart, then one in 200 ms.
    let waits = (1..=5).map(|at| check(at, 1, Admitted)).chain((0..15).flat_map(|cell| {
        let wait = if cell == 0 { 195 } else { 199 };
        [check(200 * (cell + 1) + 1 - wait, 1, DeniedFor(wait)), check(200 * (cell + 1) + 1, 1, Admitted)]
    }));
    [
        case("governor direct accepts_first_cell", 5, (5, 1_000), many(1, 0, 1, Admitted)),
        case("governor direct rejects_too_many", 2, (2, 1_000), two_in_each_second()),
        case(
            "governor direct does_not_allow_one_extra_cell_after_longer_interval",
            5,
            (5, 1_000),
            [
                many(5, 0, 1, Admitted),
                many(1, 0, 1, Denied),
                many(5, 2_000, 1, Admitted),
                many(1, 2_000, 1, Denied),
            ]
            .concat(),
        ),
        case("governor direct all_1_identical_to_1", 2, (2, 1_000), two_in_each_second()),
        case(
            "governor direct never_allows_more_than_capacity_all",
            4,
            (4, 1_000),
            [
                (0, Admitted),
                (0, Admitted),
                (1, Denied),
                (1_001, Admitted),
                (1_002, Admitted),
                (1_003, Denied),
            ]
            .map(|(at, verdict)| check(at, 2, verdict))
            .into(),
        ),
        case(
            "governor direct rejects_too_many_all",
            5,
            (5, 1_000),
            vec![check(0, 15, Never), check(3_000, 15, Never)],
        ),
        case(
            "governor direct all_capacity_check_rejects_excess",
            5,
            (5, 1_000),
            vec![check(0, 15, Never), check(0, 7, Never), check(0, 6, Never), check(0, 5, Admitted)],
        ),
        case("governor direct correct_wait_time", 5, (5, 1_000), waits.collect()),
        case(
            "governor direct actual_threadsafety",
            20,
            (20, 1_000),
            [many(20, 0, 1, Admitted), many(1, 2, 1, Denied), many(1, 1_000, 1, Admitted)].concat(),
        ),
        case(
            "governor direct stresstest_large_quotas",
            1_000_000_001,
            (1_000_000_001, 1_000),
            many(2, 0, 1_000_000, Admitted),
        ),
        case(
            "governor middleware state_information",
            4,
            (4, 1_000),
            vec![
                remains(0, Admitted, 3),
                remains(0, Admitted, 2),
                remains(0, Admitted, 1),
                remains(0, Admitted, 0),
                check(0, 1, Denied),
            ],
        ),
        case(
            "governor middleware state_snapshot_tracks_quota_accurately",
            2,
            (1, 90),
            [0, 120_000]
                .into_iter()
                .flat_map(|at| [remains(at, Admitted, 1), remains(at, Admitted, 0), check(at, 1, Denied)])
                .collect(),
        ),
        case(
            "governor future pauses",
            10,
            (10, 1_000),
            [many(10, 0, 1, Admitted), many(1, 0, 1, DeniedFor(100)), many(1, 100, 1, Admitted)].concat(),
        ),
        case(
            "governor future pauses_n",
            10,
            (10, 1_000),
            [many(6, 0, 1, Admitted), many(1, 0, 5, DeniedFor(100)), many(1, 100, 5, Admitted)].concat(),
        ),
        case(
            "tower_governor test_server_use_headers",
            2,
            (1, 90),
            vec![
                remains(0, Admitted, 1),
                remains(0, Admitted, 0),
                remains(0, DeniedFor(90), 0),
                check(100, 1, Admitted),
            ],
        ),
        case(
            "redis-cell it_rate_limits",
            5,
            (1, 1_000),
            vec![
                throttles(0, 6, 5, 0, Never),
                throttles(0, 1, 4, 1_000, Admitted),
                throttles(0, 1, 3, 2_000, Admitted),
                throttles(0, 1, 2, 3_000, Admitted),
                throttles(0, 1, 1, 4_000, Admitted),
                throttles(0, 1, 0, 5_000, Admitted),
                throttles(0, 1, 0, 5_000, DeniedFor(1_000)),
                throttles(3_000, 1, 2, 3_000, Admitted),
                throttles(3_100, 1, 1, 3_900, Admitted),
                throttles(4_000, 1, 1, 4_000, Admitted),
                throttles(8_000, 1, 4, 1_000, Admitted),
                throttles(9_500, 1, 4, 1_000, Admitted),
                throttles(9_500, 0, 4, 1_000, Admitted),
                throttles(9_500, 2, 2, 3_000, Admitted),
                throttles(9_500, 5, 2, 3_000, DeniedFor(3_000)),
            ],
        ),
    ]
}

/// Returns whether a policy decides each check of a case as its suite states.
fn is_equal<B: Backend>(bench: &Bench<B>, case: &Case, policy: &Policy) -> bool {
    bench.reset(&[("a", policy, 0)]);
    bench.move_clock_to_edge(1_000_000, 0);
    let mut now = 0;
    case.checks.iter().all(|expected| {
        bench.move_clock((expected.at - now) as i64 * 1_000);
        now = expected.at;
        let decision = bench.check(&[("a", policy, expected.cost)]);
        let status = &decision.statuses()[0];
        let millis = |wait: u64| Duration::from_millis(wait);
        let verdict = match (expected.verdict, decision.retry_after()) {
            (Admitted, wait) => wait == Wait::ZERO,
            (Denied, wait) => wait != Wait::ZERO,
            (DeniedFor(stated), wait) => wait == Wait::For(millis(stated)),
            (Never, wait) => wait == Wait::Never,
        };
        verdict
            && expected.remaining.is_none_or(|remaining| status.remaining() == remaining)
            && expected.reset.is_none_or(|reset| status.reset_after() == millis(reset))
    })
}

edges! {
    token_bucket_decides_cases_of_other_limiters: |bench| {
        let (mut equal, mut of_window) = (0, [0; 4]);
        for case in cases() {
            let rate = Rate::new(case.rate.0, Duration::from_millis(case.rate.1));
            let bucket = Policy::token_bucket("bucket", case.capacity, rate).unwrap();
            assert!(is_equal(bench, &case, &bucket), "{}", case.name);
            equal += 1;
            // The same rate in a window: the capacity in the time in which it returns.
            let log = Policy::rate("window", case.capacity, rate).unwrap();
            let precision = (log.window().unwrap() / 8).max(Duration::from_millis(1));
            let algorithms = [
                Algorithm::SlidingLog,
                Algorithm::SlidingBuckets { precision },
                Algorithm::SlidingCounter,
                Algorithm::FixedWindow,
            ];
            for (equal, algorithm) in of_window.iter_mut().zip(algorithms) {
                let policy = log.clone().with_algorithm(algorithm).unwrap();
                *equal += u32::from(is_equal(bench, &case, &policy));
            }
        }
        println!("equal of 16: token bucket {equal}, sliding log, buckets, counter and fixed window {of_window:?}");
        assert_eq!(equal, 16, "all cases");
        assert!(of_window.iter().all(|equal| *equal < 12), "a window differs: {of_window:?}");
    }
}
