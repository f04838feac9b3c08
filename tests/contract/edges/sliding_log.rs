//! The edge cases of the sliding log, which is exact to the microsecond.

use std::time::Duration;

use tower_sliding_window::{Policy, Wait};

use super::{WINDOW, edges, micros, policy, wait_of};

edges! {
    zero_cost_returns_true_status_and_records_nothing: |bench| {
        let five = policy("five", 5);
        let empty = bench.check(&[("a", &five, 0)]);
        let status = &empty.statuses()[0];
        assert_eq!((empty.is_admitted(), status.remaining()), (true, 5), "a cost of 0 fits");
        assert_eq!((status.next_after(), status.reset_after()), (micros(WINDOW), micros(0)), "nothing is used");

        assert!(bench.admits("a", &five, 5), "the whole quota fits");
        bench.move_clock(10);
        let full = bench.check(&[("a", &five, 0)]);
        let status = &full.statuses()[0];
        assert_eq!((full.is_admitted(), status.remaining()), (true, 0), "a cost of 0 fits a full log");
        assert_eq!(
            (status.next_after(), status.reset_after()), (micros(WINDOW - 10), micros(WINDOW - 10)),
            "the units return a window after their charge"
        );
        // The check with zero cost has not changed the last instant of the log.
        bench.move_clock(WINDOW as i64 - 10);
        assert!(bench.admits("a", &five, 5), "the charges have left");
    }

    cost_above_quota_gets_denial_and_records_nothing: |bench| {
        let (five, ten) = (policy("five", 5), policy("ten", 10));
        let decision = bench.check(&[("a", &five, 6), ("a", &ten, 6)]);
        assert_eq!(decision.retry_after(), Wait::Never, "no wait helps");
        // The other status is still correct.
        assert_eq!(decision.statuses()[1].retry_after(), Wait::ZERO, "the other policy has room");
        assert_eq!((decision.statuses()[0].remaining(), decision.statuses()[1].remaining()), (5, 10), "nothing is charged");
        assert!(bench.admits("a", &ten, 10), "nothing was charged");
    }

    charge_leaves_log_exactly_after_window: |bench| {
        let one = policy("one", 1);
        assert!(bench.admits("a", &one, 1), "the only unit");
        bench.move_clock(WINDOW as i64 - 1);
        assert!(!bench.admits("a", &one, 1), "the charge counts for a whole window");
        bench.move_clock(1);
        assert!(bench.admits("a", &one, 1), "the window has passed");
    }

    wait_of_large_cost_ends_when_enough_units_leave: |bench| {
        let ten = policy("ten", 10);
        for cost in [1, 2, 3, 4] {
            assert!(bench.admits("a", &ten, cost), "cost {cost}: ten units fit");
            bench.move_clock(100);
        }
        // The usage is 10 units, charged 400, 300, 200 and 100 us ago.
        let wait = |cost| bench.check(&[("a", &ten, cost)]).retry_after();
        assert_eq!(wait(1), wait_of(WINDOW - 400), "until the first charge has left");
        assert_eq!(wait(2), wait_of(WINDOW - 300), "until the second charge has left");
        assert_eq!(wait(3), wait_of(WINDOW - 300), "until the second charge has left");
        assert_eq!(wait(4), wait_of(WINDOW - 200), "until the third charge has left");
        assert_eq!(wait(7), wait_of(WINDOW - 100), "until the last charge has left");
        assert_eq!(wait(10), wait_of(WINDOW - 100), "until the last charge has left");
        assert_eq!(wait(11), Wait::Never, "the cost is above the quota");
    }

    denial_by_one_policy_charges_no_other_in_any_order: |bench| {
        let (small, large) = (policy("small", 2), policy("large", 100));
        assert!(bench.check(&[("a", &small, 2), ("a", &large, 2)]).is_admitted(), "both policies have room");
        for pairs in [[("a", &small, 1), ("a", &large, 1)], [("a", &large, 1), ("a", &small, 1)]] {
            let decision = bench.check(&pairs);
            assert_eq!(decision.retry_after(), wait_of(WINDOW), "the small policy denies");
            let large = decision.statuses().iter().find(|status| status.quota().unwrap() == 100).unwrap();
            assert_eq!((large.remaining(), large.retry_after()), (98, Wait::ZERO), "the other policy is not charged");
        }
    }

    check_charges_different_cost_per_pair: |bench| {
        let (requests, tokens) = (policy("requests", 2), policy("tokens", 100));
        assert!(bench.check(&[("a", &requests, 1), ("a", &tokens, 70)]).is_admitted(), "both costs fit");
        assert!(!bench.check(&[("a", &requests, 1), ("a", &tokens, 70)]).is_admitted(), "30 tokens remain");
        assert!(bench.check(&[("a", &requests, 1), ("a", &tokens, 30)]).is_admitted(), "the denial charged neither pair");
    }

    check_decides_several_keys_together: |bench| {
        let one = policy("one", 1);
        assert!(bench.admits("a", &one, 1), "the only unit of key a");
        assert!(!bench.check(&[("a", &one, 1), ("b", &one, 1)]).is_admitted(), "key a denies the check of both");
        assert!(bench.admits("b", &one, 1), "key b was not charged");
    }

    changed_quota_takes_effect_at_once_and_keeps_history: |bench| {
        let (ten, four, twenty) = (policy("p", 10), policy("p", 4), policy("p", 20));
        for _ in 0..10 {
            assert!(bench.admits("a", &ten, 1), "ten units fit");
            bench.move_clock(10);
        }
        let lowered = bench.check(&[("a", &four, 1)]);
        // Ten units are used. Seven units must leave the window before a fourth unit fits.
        assert_eq!(lowered.statuses()[0].remaining(), 0, "more is used than the lower quota has");
        assert_eq!(lowered.retry_after(), wait_of(WINDOW - 40), "seven units must leave first");
        assert_eq!(bench.check(&[("a", &twenty, 1)]).statuses()[0].remaining(), 9, "the usage counts against the raised quota");
    }

    changed_window_starts_new_record: |bench| {
        let long = Policy::new("p", 1, micros(2 * WINDOW)).unwrap();
        assert!(bench.admits("a", &policy("p", 1), 1), "the only unit");
        assert!(bench.admits("a", &long, 1), "another window has its own record");
        assert!(!bench.admits("a", &policy("p", 1), 1), "the first record still counts");
    }

    new_policy_joins_policy_without_live_charges: |bench| {
        let (first, second) = (policy("first", 3), policy("second", 3));
        for _ in 0..3 {
            assert!(bench.admits("a", &second, 1), "three units fit");
        }
        bench.move_clock(WINDOW as i64);
        let both = bench.check(&[("a", &first, 1), ("a", &second, 1)]);
        assert_eq!(
            (both.statuses()[0].remaining(), both.statuses()[1].remaining()), (2, 2),
            "both policies begin with their whole quota"
        );
    }

    clock_behind_freezes_time_for_that_pair_only: |bench| {
        let two = policy("two", 2);
        assert!(bench.admits("a", &two, 1), "the first unit fits");
        bench.move_clock(-(WINDOW as i64));
        // If the clock is behind by exactly one window, the charge counts. The wait includes the time until the clock catches up.
        assert!(bench.check(&[("a", &two, 1), ("b", &two, 2)]).is_admitted(), "key a has one unit left, and key b two");
        let denied = bench.check(&[("a", &two, 1), ("b", &two, 0)]);
        assert_eq!(denied.retry_after(), wait_of(2 * WINDOW), "the wait includes the time until the clock catches up");
        assert_eq!(denied.statuses()[1].next_after(), micros(WINDOW), "key b uses the reading of the clock");
        bench.move_clock(2 * WINDOW as i64 - 1);
        assert!(!bench.admits("a", &two, 1), "the wait has not passed");
        bench.move_clock(1);
        assert!(bench.admits("a", &two, 2), "the wait has passed");
    }

    next_admission_drops_record_far_ahead_of_clock: |bench| {
        let two = policy("two", 2);
        assert!(bench.admits("a", &two, 2), "the whole quota fits");
        bench.move_clock(-(WINDOW as i64) - 1);
        let first = bench.check(&[("a", &two, 1)]);
        assert_eq!((first.is_admitted(), first.statuses()[0].remaining()), (true, 1), "the admission starts a new record");
        assert_eq!(first.statuses()[0].reset_after(), micros(WINDOW), "the new record follows the clock");
        bench.move_clock(WINDOW as i64 + 1);
        assert_eq!(bench.check(&[("a", &two, 0)]).statuses()[0].remaining(), 2, "the old record is gone");
    }

    log_counts_all_charges_of_same_microsecond: |bench| {
        let twenty = policy("twenty", 20);
        for _ in 0..20 {
            assert!(bench.admits("a", &twenty, 1), "20 units fit");
        }
        assert_eq!(bench.check(&[("a", &twenty, 1)]).retry_after(), wait_of(WINDOW), "every charge of the microsecond counts");
        bench.move_clock(WINDOW as i64);
        assert!(bench.admits("a", &twenty, 20), "all charges leave together");
    }

    wrapped_log_totals_change_no_decision: |bench| {
        let most = policy("most", u32::MAX);
        let half = u32::MAX / 2;
        assert!(bench.admits("a", &most, half), "the first half fits");
        // The charges add up to more than 2^40 units, and one of them always counts.
        for _ in 0..600 {
            bench.move_clock(WINDOW as i64 / 2);
            assert!(bench.admits("a", &most, half), "one half has left");
            assert_eq!(bench.check(&[("a", &most, half)]).retry_after(), wait_of(WINDOW / 2), "until the older half has left");
        }
    }

    log_handles_largest_numbers_exactly: |bench| {
        let year = Duration::from_secs(366 * 86_400);
        let most = Policy::new("most", u32::MAX, year).unwrap();
        assert!(bench.admits("a", &most, u32::MAX - 1), "all units but one");
        bench.move_clock(7);
        assert!(bench.admits("a", &most, 1), "the last unit");
        let denied = bench.check(&[("a", &most, u32::MAX)]);
        assert_eq!(denied.retry_after(), Wait::For(year), "until the last charge has left");
        assert_eq!(bench.check(&[("a", &most, 2)]).retry_after(), Wait::For(year - micros(7)), "until the first charge has left");
        bench.move_clock(year.as_micros() as i64);
        assert!(bench.admits("a", &most, u32::MAX), "all charges have left");
    }
}
