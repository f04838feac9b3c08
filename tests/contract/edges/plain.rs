//! The edges of the sliding log, which counts to the microsecond.

use std::time::Duration;

use tower_sliding_window::{Policy, Wait};

use super::{WINDOW, edges, micros, policy, waits};

edges! {
    a_cost_of_zero_is_admitted_tells_the_truth_and_is_not_recorded: |bench| {
        let five = policy("five", 5);
        let empty = bench.check(&[("a", &five, 0)]);
        let status = &empty.statuses()[0];
        assert_eq!((empty.is_admitted(), status.remaining()), (true, 5));
        assert_eq!((status.next_after(), status.reset_after()), (micros(WINDOW), micros(0)));

        assert!(bench.admits("a", &five, 5));
        bench.moves(10);
        let full = bench.check(&[("a", &five, 0)]);
        let status = &full.statuses()[0];
        assert_eq!((full.is_admitted(), status.remaining()), (true, 0));
        assert_eq!((status.next_after(), status.reset_after()), (micros(WINDOW - 10), micros(WINDOW - 10)));
        // It has not moved the log's last instant either.
        bench.moves(WINDOW as i64 - 10);
        assert!(bench.admits("a", &five, 5));
    }

    a_cost_above_the_quota_is_never_admitted_and_not_recorded: |bench| {
        let (five, ten) = (policy("five", 5), policy("ten", 10));
        let decision = bench.check(&[("a", &five, 6), ("a", &ten, 6)]);
        assert_eq!(decision.retry_after(), Wait::Never);
        // The other status is still true.
        assert_eq!(decision.statuses()[1].retry_after(), Wait::ZERO);
        assert_eq!((decision.statuses()[0].remaining(), decision.statuses()[1].remaining()), (5, 10));
        assert!(bench.admits("a", &ten, 10));
    }

    a_charge_leaves_exactly_one_window_after_its_instant: |bench| {
        let one = policy("one", 1);
        assert!(bench.admits("a", &one, 1));
        bench.moves(WINDOW as i64 - 1);
        assert!(!bench.admits("a", &one, 1));
        bench.moves(1);
        assert!(bench.admits("a", &one, 1));
    }

    the_wait_for_a_large_cost_is_when_enough_units_have_left: |bench| {
        let ten = policy("ten", 10);
        for cost in [1, 2, 3, 4] {
            assert!(bench.admits("a", &ten, cost));
            bench.moves(100);
        }
        // Used: 10 units, charged 400, 300, 200 and 100 us ago.
        let wait = |cost| bench.check(&[("a", &ten, cost)]).retry_after();
        assert_eq!(wait(1), waits(WINDOW - 400));
        assert_eq!(wait(2), waits(WINDOW - 300));
        assert_eq!(wait(3), waits(WINDOW - 300));
        assert_eq!(wait(4), waits(WINDOW - 200));
        assert_eq!(wait(7), waits(WINDOW - 100));
        assert_eq!(wait(10), waits(WINDOW - 100));
        assert_eq!(wait(11), Wait::Never);
    }

    a_denial_by_one_policy_charges_no_other_whatever_their_order: |bench| {
        let (small, large) = (policy("small", 2), policy("large", 100));
        assert!(bench.check(&[("a", &small, 2), ("a", &large, 2)]).is_admitted());
        for pairs in [[("a", &small, 1), ("a", &large, 1)], [("a", &large, 1), ("a", &small, 1)]] {
            let decision = bench.check(&pairs);
            assert_eq!(decision.retry_after(), waits(WINDOW));
            let large = decision.statuses().iter().find(|status| status.limit() == 100).unwrap();
            assert_eq!((large.remaining(), large.retry_after()), (98, Wait::ZERO));
        }
    }

    costs_may_differ_from_pair_to_pair: |bench| {
        let (requests, tokens) = (policy("requests", 2), policy("tokens", 100));
        assert!(bench.check(&[("a", &requests, 1), ("a", &tokens, 70)]).is_admitted());
        assert!(!bench.check(&[("a", &requests, 1), ("a", &tokens, 70)]).is_admitted());
        assert!(bench.check(&[("a", &requests, 1), ("a", &tokens, 30)]).is_admitted());
    }

    several_partition_keys_are_decided_together: |bench| {
        let one = policy("one", 1);
        assert!(bench.admits("a", &one, 1));
        assert!(!bench.check(&[("a", &one, 1), ("b", &one, 1)]).is_admitted());
        assert!(bench.admits("b", &one, 1));
    }

    a_quota_that_changes_takes_effect_at_once_and_keeps_history: |bench| {
        let (ten, four, twenty) = (policy("p", 10), policy("p", 4), policy("p", 20));
        for _ in 0..10 {
            assert!(bench.admits("a", &ten, 1));
            bench.moves(10);
        }
        let lowered = bench.check(&[("a", &four, 1)]);
        // Ten are used; seven must leave before a fourth one fits.
        assert_eq!(lowered.statuses()[0].remaining(), 0);
        assert_eq!(lowered.retry_after(), waits(WINDOW - 40));
        assert_eq!(bench.check(&[("a", &twenty, 1)]).statuses()[0].remaining(), 9);
    }

    a_window_that_changes_is_counted_afresh: |bench| {
        let long = Policy::new("p", 1, micros(2 * WINDOW)).unwrap();
        assert!(bench.admits("a", &policy("p", 1), 1));
        assert!(bench.admits("a", &long, 1));
        assert!(!bench.admits("a", &policy("p", 1), 1));
    }

    a_policy_that_comes_later_meets_one_whose_charges_have_left: |bench| {
        let (first, second) = (policy("first", 3), policy("second", 3));
        for _ in 0..3 {
            assert!(bench.admits("a", &second, 1));
        }
        bench.moves(WINDOW as i64);
        let both = bench.check(&[("a", &first, 1), ("a", &second, 1)]);
        assert_eq!((both.statuses()[0].remaining(), both.statuses()[1].remaining()), (2, 2));
    }

    while_the_clock_is_behind_time_stands_still_for_that_pair_only: |bench| {
        let two = policy("two", 2);
        assert!(bench.admits("a", &two, 1));
        bench.moves(-(WINDOW as i64));
        // Behind by one window exactly: it counts, and the wait includes the catch-up.
        assert!(bench.check(&[("a", &two, 1), ("b", &two, 2)]).is_admitted());
        let denied = bench.check(&[("a", &two, 1), ("b", &two, 0)]);
        assert_eq!(denied.retry_after(), waits(2 * WINDOW));
        assert_eq!(denied.statuses()[1].next_after(), micros(WINDOW));
        bench.moves(2 * WINDOW as i64 - 1);
        assert!(!bench.admits("a", &two, 1));
        bench.moves(1);
        assert!(bench.admits("a", &two, 2));
    }

    a_record_far_ahead_of_the_clock_is_dropped_at_the_next_admission: |bench| {
        let two = policy("two", 2);
        assert!(bench.admits("a", &two, 2));
        bench.moves(-(WINDOW as i64) - 1);
        let first = bench.check(&[("a", &two, 1)]);
        assert_eq!((first.is_admitted(), first.statuses()[0].remaining()), (true, 1));
        assert_eq!(first.statuses()[0].reset_after(), micros(WINDOW));
        bench.moves(WINDOW as i64 + 1);
        assert_eq!(bench.check(&[("a", &two, 0)]).statuses()[0].remaining(), 2);
    }

    charges_of_one_microsecond_all_count: |bench| {
        let twenty = policy("twenty", 20);
        for _ in 0..20 {
            assert!(bench.admits("a", &twenty, 1));
        }
        assert_eq!(bench.check(&[("a", &twenty, 1)]).retry_after(), waits(WINDOW));
        bench.moves(WINDOW as i64);
        assert!(bench.admits("a", &twenty, 20));
    }

    running_totals_wrap_unseen: |bench| {
        let most = policy("most", u32::MAX);
        let half = u32::MAX / 2;
        assert!(bench.admits("a", &most, half));
        // Six hundred halves of the largest quota are more than 2^40 units, and there is always one that counts.
        for _ in 0..600 {
            bench.moves(WINDOW as i64 / 2);
            assert!(bench.admits("a", &most, half));
            assert_eq!(bench.check(&[("a", &most, half)]).retry_after(), waits(WINDOW / 2));
        }
    }

    the_largest_numbers_are_exact: |bench| {
        let year = Duration::from_secs(366 * 86_400);
        let most = Policy::new("most", u32::MAX, year).unwrap();
        assert!(bench.admits("a", &most, u32::MAX - 1));
        bench.moves(7);
        assert!(bench.admits("a", &most, 1));
        let denied = bench.check(&[("a", &most, u32::MAX)]);
        assert_eq!(denied.retry_after(), Wait::For(year));
        assert_eq!(bench.check(&[("a", &most, 2)]).retry_after(), Wait::For(year - micros(7)));
        bench.moves(year.as_micros() as i64);
        assert!(bench.admits("a", &most, u32::MAX));
    }
}
