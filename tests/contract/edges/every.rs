//! The edges that every algorithm meets.

use tower_sliding_window::{Algorithm, Wait, backend::Purpose};

use super::{PRECISION, WINDOW, edges, every, micros, policy};

edges! {
    a_cost_of_zero_leaves_no_trace_whatever_the_algorithm: |bench| {
        for five in &every("five", 5) {
            let empty = bench.check(&[("a", five, 0)]);
            let status = &empty.statuses()[0];
            assert_eq!((empty.is_admitted(), status.remaining()), (true, 5));
            assert_eq!((status.next_after(), status.reset_after()), (micros(WINDOW), micros(0)));
            // It has not become the last instant.
            bench.moves(-5_000);
            assert!(bench.admits("a", five, 5));
            let full = bench.check(&[("a", five, 0)]);
            assert_eq!((full.is_admitted(), full.statuses()[0].remaining()), (true, 0));
            assert!(full.statuses()[0].reset_after() <= micros(2 * WINDOW));
        }
    }

    a_cost_above_the_quota_leaves_no_trace_whatever_the_algorithm: |bench| {
        for five in &every("five", 5) {
            let decision = bench.check(&[("a", five, 6)]);
            assert_eq!(decision.retry_after(), Wait::Never);
            assert_eq!(decision.statuses()[0].remaining(), 5);
            assert_eq!(bench.asks(Purpose::Peek, &[("a", five, 6)]).retry_after(), Wait::Never);
            assert!(bench.admits("a", five, 5));
        }
    }

    a_lower_quota_takes_effect_at_once_and_the_wait_is_right: |bench| {
        for ((ten, four), twenty) in every("p", 10).iter().zip(&every("p", 4)).zip(&every("p", 20)) {
            bench.moves_to_edge(WINDOW, 5);
            for _ in 0..10 {
                assert!(bench.admits("a", ten, 1));
                bench.moves(100);
            }
            let lowered = bench.check(&[("a", four, 1)]);
            assert_eq!((lowered.is_admitted(), lowered.statuses()[0].remaining()), (false, 0));
            assert_eq!(bench.asks(Purpose::Peek, &[("a", twenty, 1)]).statuses()[0].remaining(), 9);
            bench.waits_honestly("a", four, 2);
        }
    }

    a_policy_that_counts_in_another_way_counts_afresh: |bench| {
        let mut all = every("p", 1).to_vec();
        let other = Algorithm::SlidingBuckets { precision: micros(PRECISION + 1) };
        all.push(policy("p", 1).with_algorithm(other).unwrap());
        for policy in &all {
            assert!(bench.admits("a", policy, 1));
        }
        // And each is there still.
        for policy in &all {
            assert!(!bench.admits("a", policy, 1));
        }
    }

    while_the_clock_is_behind_by_a_window_time_stands_still_whatever_the_algorithm: |bench| {
        for two in &every("two", 2) {
            bench.moves_to_edge(WINDOW * PRECISION, 4_000);
            assert!(bench.admits("a", two, 1));
            bench.moves(-(WINDOW as i64));
            // It counts, and another pair of the same check uses the clock as read.
            assert!(bench.check(&[("a", two, 1), ("b", two, 1)]).is_admitted());
            let denied = bench.check(&[("a", two, 1), ("b", two, 0)]);
            assert_eq!((denied.is_admitted(), denied.statuses()[1].remaining()), (false, 1));
            let [a, b] = denied.statuses() else { panic!("two statuses") };
            assert_eq!(a.reset_after(), b.reset_after() + micros(WINDOW) - match two.algorithm() {
                // The other one has charged a window earlier, which is another place in its bucket.
                Algorithm::SlidingBuckets { .. } => micros(WINDOW % PRECISION),
                _ => micros(0),
            });
            let longest = match two.algorithm() {
                Algorithm::SlidingLog | Algorithm::FixedWindow => 2 * WINDOW,
                _ => 3 * WINDOW,
            };
            let wait = bench.waits_honestly("a", two, 1);
            assert!((WINDOW..=longest).contains(&wait), "{two:?} waits for {wait}");
        }
    }

    a_record_of_another_clock_counts_as_empty_and_an_admission_drops_it: |bench| {
        for two in &every("two", 2) {
            bench.moves_to_edge(WINDOW, 4_000);
            assert!(bench.admits("a", two, 2));
            bench.moves(-(WINDOW as i64) - 1);
            assert_eq!(bench.used("a", two), 0);
            // A denial does not drop it, and neither does a peek.
            assert!(!bench.admits("a", two, 3));
            assert_eq!(bench.asks(Purpose::Peek, &[("a", two, 1)]).statuses()[0].remaining(), 1);
            bench.moves(WINDOW as i64 + 1);
            assert_eq!(bench.used("a", two), 2);
            bench.moves(-(WINDOW as i64) - 1);
            let first = bench.check(&[("a", two, 1)]);
            assert_eq!((first.is_admitted(), first.statuses()[0].remaining()), (true, 1));
            assert!(first.statuses()[0].reset_after() <= micros(2 * WINDOW));
            bench.moves(2 * WINDOW as i64);
            assert_eq!(bench.used("a", two), 0);
        }
    }

    charges_of_one_microsecond_all_count_whatever_the_algorithm: |bench| {
        for twenty in &every("twenty", 20) {
            for _ in 0..20 {
                assert!(bench.admits("a", twenty, 1));
            }
            assert!(!bench.admits("a", twenty, 1));
            let wait = bench.waits_honestly("a", twenty, 20);
            assert!(wait <= 2 * WINDOW);
        }
    }

    a_record_that_was_lost_starts_empty_and_of_another_generation: |bench| {
        for two in &every("two", 2) {
            let (_, before) = bench.reserves("a", two, 2);
            bench.resets(&[("a", two, 0)]);
            bench.moves(1);
            let (_, after) = bench.reserves("a", two, 2);
            assert!(before[0].generation < after[0].generation);
        }
    }

    a_generation_begins_when_a_charge_finds_nothing_used: |bench| {
        for nine in &every("nine", 9) {
            let generation = || bench.reserves("a", nine, 1).1[0].generation;
            bench.moves_to_edge(WINDOW * PRECISION, 0);
            let first = generation();
            assert_eq!(first, bench.clock.now_micros());
            bench.moves(WINDOW as i64 - 1);
            assert_eq!(generation(), first);
            bench.moves(3 * WINDOW as i64);
            assert_eq!(generation(), bench.clock.now_micros());
        }
    }
}
