//! The edge cases that all algorithms share.

use tower_sliding_window::{Algorithm, Policy, Wait, backend::Purpose};

use super::{PRECISION, WINDOW, edges, every_policy, micros, policy};

edges! {
    zero_cost_leaves_no_trace_for_any_algorithm: |bench| {
        for five in &every_policy("five", 5) {
            let empty = bench.check(&[("a", five, 0)]);
            let status = &empty.statuses()[0];
            assert_eq!((empty.is_admitted(), status.remaining()), (true, 5), "{five:?}: a cost of 0 fits");
            // A token bucket has no window.
            let next = five.window().unwrap_or_default();
            assert_eq!((status.next_after(), status.reset_after()), (next, micros(0)), "{five:?}: nothing is used");
            // The check with zero cost has not set the last instant.
            bench.move_clock(-5_000);
            assert!(bench.admits("a", five, 5), "{five:?}: the whole quota fits");
            let full = bench.check(&[("a", five, 0)]);
            assert_eq!(
                (full.is_admitted(), full.statuses()[0].remaining()), (true, 0),
                "{five:?}: a cost of 0 fits a full record"
            );
            assert!(full.statuses()[0].reset_after() <= micros(2 * WINDOW), "{five:?}: all units return within two windows");
        }
    }

    cost_above_quota_leaves_no_trace_for_any_algorithm: |bench| {
        for five in &every_policy("five", 5) {
            let decision = bench.check(&[("a", five, 6)]);
            assert_eq!(decision.retry_after(), Wait::Never, "{five:?}: no wait helps");
            assert_eq!(decision.statuses()[0].remaining(), 5, "{five:?}: nothing is charged");
            assert_eq!(
                bench.check_as(Purpose::Peek, &[("a", five, 6)]).retry_after(), Wait::Never,
                "{five:?}: no wait helps a peek"
            );
            assert!(bench.admits("a", five, 5), "{five:?}: the denial charged nothing");
        }
    }

    lower_quota_takes_effect_at_once_with_exact_wait: |bench| {
        let [tens, fours, twenties] = [10, 4, 20].map(|quota| every_policy("p", quota));
        // With the quota, these policies of token buckets change their rate as well.
        let have_windows = |((ten, _), _): &((&Policy, _), _)| ten.window().is_some();
        for ((ten, four), twenty) in tens.iter().zip(&fours).zip(&twenties).filter(have_windows) {
            bench.move_clock_to_edge(WINDOW, 5);
            for _ in 0..10 {
                assert!(bench.admits("a", ten, 1), "{ten:?}: ten units fit");
                bench.move_clock(100);
            }
            let lowered = bench.check(&[("a", four, 1)]);
            assert_eq!(
                (lowered.is_admitted(), lowered.statuses()[0].remaining()), (false, 0),
                "{four:?}: more is used than the lower quota has"
            );
            // The oldest charge frees no unit of the lower quota.
            let next = Wait::For(lowered.statuses()[0].next_after());
            assert_eq!(next, lowered.retry_after(), "one unit remains when a cost of one fits: {four:?}");
            assert_eq!(
                bench.check_as(Purpose::Peek, &[("a", twenty, 1)]).statuses()[0].remaining(), 9,
                "{twenty:?}: the usage counts against the raised quota"
            );
            bench.assert_exact_wait("a", four, 2);
        }
    }

    changed_algorithm_starts_new_record: |bench| {
        let mut all = every_policy("p", 1).to_vec();
        let other = Algorithm::SlidingBuckets { precision: micros(PRECISION + 1) };
        all.push(policy("p", 1).with_algorithm(other).unwrap());
        for policy in &all {
            assert!(bench.admits("a", policy, 1), "{policy:?}: each algorithm has a record of its own");
        }
        // Every record still exists.
        for policy in &all {
            assert!(!bench.admits("a", policy, 1), "{policy:?}: its record still counts");
        }
    }

    clock_behind_by_window_freezes_time_for_any_algorithm: |bench| {
        for two in &every_policy("two", 2) {
            bench.move_clock_to_edge(WINDOW * PRECISION, 4_000);
            assert!(bench.admits("a", two, 1), "{two:?}: the first unit fits");
            bench.move_clock(-(WINDOW as i64));
            // The charge counts. Another pair of the same check uses the reading of the clock.
            assert!(bench.check(&[("a", two, 1), ("b", two, 1)]).is_admitted(), "{two:?}: one unit remains");
            let denied = bench.check(&[("a", two, 1), ("b", two, 0)]);
            assert_eq!(
                (denied.is_admitted(), denied.statuses()[1].remaining()), (false, 1),
                "{two:?}: the first pair is used up, and the second is not"
            );
            let [a, b] = denied.statuses() else { panic!("two statuses") };
            let caught_up = b.reset_after() + micros(WINDOW);
            assert_eq!(a.reset_after(), match two.algorithm() {
                // The other pair was charged one window earlier, at another offset in its bucket.
                Algorithm::SlidingBuckets { .. } => caught_up - micros(WINDOW % PRECISION),
                // The first pair has used both units.
                Algorithm::TokenBucket { .. } => caught_up + micros(WINDOW / 2),
                _ => caught_up,
            }, "{two:?}: time stands still for the first pair until the clock catches up");
            let longest = match two.algorithm() {
                Algorithm::SlidingLog | Algorithm::FixedWindow => 2 * WINDOW,
                _ => 3 * WINDOW,
            };
            let wait = bench.assert_exact_wait("a", two, 1);
            assert!((WINDOW..=longest).contains(&wait), "{two:?} waits for {wait}");
        }
    }

    admission_drops_record_of_another_clock: |bench| {
        for two in &every_policy("two", 2) {
            bench.move_clock_to_edge(WINDOW, 4_000);
            assert!(bench.admits("a", two, 2), "{two:?}: the whole quota fits");
            bench.move_clock(-(WINDOW as i64) - 1);
            assert_eq!(bench.used("a", two), 0, "{two:?}: a record far ahead does not count");
            // Neither a denial nor a peek drops the record.
            assert!(!bench.admits("a", two, 3), "{two:?}: the cost is above the quota");
            assert_eq!(
                bench.check_as(Purpose::Peek, &[("a", two, 1)]).statuses()[0].remaining(), 1,
                "{two:?}: the quota is free"
            );
            bench.move_clock(WINDOW as i64 + 1);
            assert_eq!(bench.used("a", two), 2, "{two:?}: the record still exists");
            bench.move_clock(-(WINDOW as i64) - 1);
            let first = bench.check(&[("a", two, 1)]);
            assert_eq!(
                (first.is_admitted(), first.statuses()[0].remaining()), (true, 1),
                "{two:?}: the admission starts a new record"
            );
            assert!(first.statuses()[0].reset_after() <= micros(2 * WINDOW), "{two:?}: the new record ends within two windows");
            bench.move_clock(2 * WINDOW as i64);
            assert_eq!(bench.used("a", two), 0, "{two:?}: the old record is gone");
        }
    }

    any_algorithm_counts_charges_of_same_microsecond: |bench| {
        for twenty in &every_policy("twenty", 20) {
            for _ in 0..20 {
                assert!(bench.admits("a", twenty, 1), "{twenty:?}: 20 units fit");
            }
            assert!(!bench.admits("a", twenty, 1), "{twenty:?}: the quota is used");
            let wait = bench.assert_exact_wait("a", twenty, 20);
            assert!(wait <= 2 * WINDOW, "{twenty:?}: all units leave within two windows");
        }
    }

    lost_record_starts_new_generation: |bench| {
        for two in &every_policy("two", 2) {
            let (_, before) = bench.reserve("a", two, 2);
            bench.reset(&[("a", two, 0)]);
            let (_, after) = bench.reserve("a", two, 2);
            assert_ne!(before[0].generation, after[0].generation, "{two:?}");
            // The record counts as foreign while the clock is far behind it.
            bench.move_clock(-(WINDOW as i64) - 1);
            let (_, of_past) = bench.reserve("a", two, 2);
            assert_ne!(after[0].generation, of_past[0].generation, "{two:?}");
            bench.move_clock(WINDOW as i64 + 1);
        }
    }

    charge_on_unused_record_begins_generation: |bench| {
        for nine in &every_policy("nine", 9) {
            let generation = || bench.reserve("a", nine, 1).1[0].generation;
            bench.move_clock_to_edge(WINDOW * PRECISION, 0);
            let first = generation();
            // A token bucket returns a unit in a ninth of a window.
            let used_for = if nine.window().is_some() { WINDOW } else { WINDOW / 9 };
            bench.move_clock(used_for as i64 - 1);
            assert_eq!(generation(), first, "{nine:?}");
            bench.move_clock(3 * WINDOW as i64);
            let second = bench.reserve("a", nine, 1);
            assert_ne!(second.1[0].generation, first, "{nine:?}");
            // The refund of every unit ends a generation too, within the same microsecond.
            bench.settle(&second, &[0]);
            assert_ne!(generation(), second.1[0].generation, "{nine:?}");
        }
    }
}
