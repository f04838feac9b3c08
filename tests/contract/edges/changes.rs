//! Peeks, overages, settlements and reset.

use tower_sliding_window::{
    Algorithm, Policy, Wait,
    backend::{Purpose, Refund},
    policy::{Period, Zone},
};

use super::{NO_CHARGE, PRECISION, WINDOW, edges, every_policy, policy};

const DAY: u64 = 24 * 3_600_000_000;

/// The units of a token bucket may have returned before they are refunded.
fn has_window(policy: &&Policy) -> bool {
    policy.window().is_some()
}

edges! {
    peek_matches_charge_and_charges_nothing: |bench| {
        for five in &every_policy("five", 5) {
            for cost in [0, 3, 3, 2, 6] {
                let pairs = [("a", five, cost), ("b", five, 1)];
                let peeks = [(); 2].map(|()| bench.check_as(Purpose::Peek, &pairs));
                let charge = bench.check(&pairs);
                for peek in peeks {
                    assert_eq!(peek.statuses(), charge.statuses(), "{five:?}, cost {cost}: a peek reports what a charge would");
                    assert!(peek.receipts().is_empty(), "{five:?}, cost {cost}: a peek has no receipts");
                }
            }
        }
    }

    overage_charges_every_pair_past_quota: |bench| {
        for five in &every_policy("five", 5) {
            bench.move_clock_to_edge(WINDOW, 1);
            assert!(bench.admits("a", five, 4), "{five:?}: 4 of 5 units");
            let pairs = [("a", five, 3), ("b", five, 9), ("c", five, 0)];
            let decision = bench.check_as(Purpose::Overage, &pairs);
            assert!(decision.is_admitted(), "{five:?}: an overage is always admitted");
            assert!(decision.statuses().iter().all(|status| status.retry_after() == Wait::ZERO), "{five:?}: no pair has a wait");
            let remaining: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
            assert_eq!(remaining, [0, 0, 5], "{five:?}: every pair is charged");
            assert!(!bench.admits("b", five, 1), "{five:?}: the overage has used the quota");
            // Seven units are used. Three units must leave the window before one unit fits.
            bench.assert_exact_wait("a", five, 1);
        }
    }

    only_admitted_reservation_returns_receipt_per_pair: |bench| {
        for five in &every_policy("five", 5) {
            bench.move_clock_to_edge(PRECISION * WINDOW, 1_000);
            let pairs = [("a", five, 5), ("b", five, 0)];
            let now = bench.clock.now_micros();
            let admitted = bench.check_as(Purpose::Reserve, &pairs);
            let [first, second] = admitted.receipts() else { panic!("two receipts") };
            let at = match five.algorithm() {
                Algorithm::SlidingBuckets { .. } => now - 1_000 + PRECISION,
                _ => now,
            };
            assert_eq!((first.at_micros, first.ordinal), (at, 0), "{five:?}: the receipt has the instant of the charge");
            assert!(first.generation < 1 << 56, "{five:?}: a generation has 56 bits");
            assert_eq!(*second, NO_CHARGE, "{five:?}: a cost of 0 charges nothing");
            assert!(bench.check_as(Purpose::Reserve, &pairs).receipts().is_empty(), "{five:?}: a denial has no receipts");
            assert!(bench.check(&[("c", five, 1)]).receipts().is_empty(), "{five:?}: a charge has no receipts");
        }
    }

    zero_cost_pair_has_zero_receipt: |bench| {
        for five in &every_policy("five", 5) {
            let receipts = |pairs: &[(&str, &Policy, u32)]| bench.check_as(Purpose::Reserve, pairs).receipts().to_vec();
            assert_eq!(receipts(&[("a", five, 0)]), [NO_CHARGE], "{five:?}");
            // The usage of the pair does not matter.
            assert!(bench.admits("a", five, 5), "{five:?}: the whole quota fits");
            assert_eq!(receipts(&[("a", five, 0)]), [NO_CHARGE], "{five:?}");
            let both = receipts(&[("a", five, 0), ("b", five, 1)]);
            assert_eq!((both.len(), both[0]), (2, NO_CHARGE), "{five:?}");
            assert_ne!(both[1], NO_CHARGE, "{five:?}");
            bench.move_clock(3 * WINDOW as i64);
            assert_eq!(receipts(&[("a", five, 0)]), [NO_CHARGE], "{five:?}");
        }
    }

    refund_credits_its_own_charge: |bench| {
        for ten in every_policy("ten", 10).iter().filter(has_window) {
            bench.move_clock_to_edge(PRECISION * WINDOW, 0);
            let first = bench.reserve("a", ten, 4);
            bench.move_clock(PRECISION as i64);
            let second = bench.reserve("a", ten, 6);
            bench.move_clock(10);
            assert_eq!(bench.used("a", ten), 10, "{ten:?}: both reservations count");
            bench.settle(&second, &[1]);
            assert_eq!(bench.used("a", ten), 5, "{ten:?}: 5 units of the second charge are refunded");
            bench.settle(&first, &[2]);
            assert_eq!(bench.used("a", ten), 3, "{ten:?}: 2 units of the first charge are refunded");
            // Two units leave the window with the first charge, and one unit leaves with the second.
            bench.move_clock_to_edge(WINDOW, 0);
            match ten.algorithm() {
                Algorithm::SlidingLog => {
                    assert_eq!(bench.used("a", ten), 1, "the first charge has left");
                    bench.move_clock(PRECISION as i64 - 1);
                    assert_eq!(bench.used("a", ten), 1, "the second charge has not left yet");
                }
                Algorithm::SlidingBuckets { .. } => {
                    bench.move_clock(PRECISION as i64 - 1);
                    assert_eq!(bench.used("a", ten), 3, "the first bucket has not left yet");
                    bench.move_clock(1);
                    assert_eq!(bench.used("a", ten), 1, "the first bucket has left");
                    bench.move_clock(PRECISION as i64 - 1);
                    assert_eq!(bench.used("a", ten), 1, "the second bucket has not left yet");
                }
                Algorithm::SlidingCounter => {
                    assert_eq!(bench.used("a", ten), 3, "the previous window counts in full");
                    bench.move_clock(WINDOW as i64 / 2);
                    assert_eq!(bench.used("a", ten), 2, "half of the previous window counts, rounded up");
                    bench.move_clock(WINDOW as i64 / 2 - 1);
                    assert_eq!(bench.used("a", ten), 1, "a part of the previous window still counts");
                }
                _ => {}
            }
            bench.move_clock(1);
            assert_eq!(bench.used("a", ten), 0, "{ten:?}: all charges have left");
        }
    }

    refund_credits_charge_in_previous_window: |bench| {
        let [_, _, counter, fixed, _] = every_policy("ten", 10);
        for ten in [counter, fixed] {
            bench.move_clock_to_edge(WINDOW, 0);
            let first = bench.reserve("a", &ten, 8);
            let second = bench.reserve("a", &ten, 2);
            bench.move_clock(WINDOW as i64 + WINDOW as i64 / 2);
            assert!(bench.admits("a", &ten, 3), "{ten:?}: the quota has room for 3 units");
            let carries = ten.algorithm() == Algorithm::SlidingCounter;
            assert_eq!(bench.used("a", &ten), if carries { 8 } else { 3 }, "{ten:?}: half of the previous window counts, if any");
            bench.settle(&first, &[0]);
            assert_eq!(bench.used("a", &ten), if carries { 4 } else { 3 }, "{ten:?}: the refund reaches the previous window");
            // The second charge has left the window.
            bench.move_clock(WINDOW as i64 / 2);
            bench.settle(&second, &[0]);
            assert_eq!(
                bench.used("a", &ten), if carries { 3 } else { 0 },
                "{ten:?}: a refund of a charge that has left changes nothing"
            );
        }
    }

    refund_ignores_charge_that_left_window: |bench| {
        for ten in &every_policy("ten", 10) {
            bench.move_clock_to_edge(PRECISION * WINDOW, PRECISION as i64 - 1);
            let early = bench.reserve("a", ten, 4);
            bench.move_clock(WINDOW as i64 - 1);
            let late = bench.reserve("a", ten, 3);
            bench.move_clock(WINDOW as i64 - 1);
            let used = bench.used("a", ten);
            bench.settle(&early, &[0]);
            assert_eq!(bench.used("a", ten), used, "{ten:?}: the early charge has left");
            bench.settle(&late, &[0]);
            assert_eq!(bench.used("a", ten), 0, "{ten:?}: the late charge is refunded");
        }
    }

    settlement_charges_overage_at_current_instant: |bench| {
        for ten in &every_policy("ten", 10) {
            bench.move_clock_to_edge(WINDOW, 0);
            let check = bench.build_check(&[("a", ten, 4), ("b", ten, 4)]).with_purpose(Purpose::Reserve);
            let receipts = bench.run_check(&check).receipts().to_vec();
            bench.move_clock(100);
            bench.settle(&(check, receipts), &[7, 1]);
            assert_eq!((bench.used("a", ten), bench.used("b", ten)), (7, 1), "{ten:?}: an overage of 3 units, and a refund of 3");
            if ten.algorithm() == Algorithm::SlidingLog {
                bench.move_clock(WINDOW as i64 - 100);
                assert_eq!((bench.used("a", ten), bench.used("b", ten)), (3, 0), "only the overage is still in the window");
            }
        }
    }

    full_refund_keeps_last_instant: |bench| {
        for ten in &every_policy("ten", 10) {
            bench.move_clock_to_edge(PRECISION * WINDOW, 4_000);
            let at = bench.clock.now_micros();
            let all = bench.reserve("a", ten, 10);
            bench.settle(&all, &[0]);
            assert_eq!(bench.used("a", ten), 0, "{ten:?}: all units are refunded");
            bench.move_clock(-1_500);
            let offset = if matches!(ten.algorithm(), Algorithm::SlidingBuckets { .. }) { 2_000 } else { 0 };
            let (_, receipts) = bench.reserve("a", ten, 10);
            assert_eq!(receipts[0].at_micros, at + offset, "{ten:?}");
            // A later refund does not advance the last instant.
            bench.move_clock(3_000);
            let more = bench.build_check(&[("a", ten, 10)]);
            bench.settle(&(more, receipts), &[4]);
            bench.move_clock(-3_000);
            let (_, receipts) = bench.reserve("a", ten, 1);
            assert_eq!(receipts[0].at_micros, at + offset, "{ten:?}");
        }
    }

    refund_distinguishes_charges_of_same_microsecond: |bench| {
        let [log, ..] = every_policy("hundred", 100);
        // The first settlement is of the oldest charge, of the newest charge, or of one between them.
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 1, 3, 0], [0, 3, 1, 2]] {
            bench.move_clock(2 * WINDOW as i64);
            let costs = [3, 10, 20, 1];
            let charges = costs.map(|cost| bench.reserve("a", &log, cost));
            let mut used = 34;
            for index in order {
                bench.settle(&charges[index], &[0]);
                used -= costs[index];
                assert_eq!(bench.used("a", &log), used, "{index} of {order:?}");
            }
        }
        // A charge after the removal of an older charge of its instant has its own ordinal.
        bench.move_clock(2 * WINDOW as i64);
        let oldest = bench.reserve("a", &log, 5);
        let second = bench.reserve("a", &log, 7);
        bench.settle(&oldest, &[0]);
        let third = bench.reserve("a", &log, 30);
        bench.settle(&third, &[2]);
        assert_eq!(bench.used("a", &log), 9, "the third charge is refunded, and no other");
        bench.settle(&second, &[1]);
        assert_eq!(bench.used("a", &log), 3, "the second charge is refunded, and no other");
    }

    receipt_stays_valid_after_older_charges_leave: |bench| {
        let [log, ..] = every_policy("hundred", 100);
        let oldest = bench.reserve("a", &log, 5);
        assert!(bench.admits("a", &log, 7), "the quota has room");
        bench.settle(&oldest, &[0]);
        bench.move_clock(10);
        let next = bench.reserve("a", &log, 20);
        // The seven units leave the window, and the next charge drops them.
        bench.move_clock(WINDOW as i64 - 10);
        assert!(bench.admits("a", &log, 1), "the quota has room");
        bench.settle(&next, &[2]);
        assert_eq!(bench.used("a", &log), 3, "the receipt refunds its own charge");
    }

    receipt_of_old_generation_refunds_nothing: |bench| {
        for ten in &every_policy("ten", 10) {
            bench.move_clock_to_edge(PRECISION * WINDOW, 0);
            assert!(bench.admits("a", ten, 1), "{ten:?}: the quota has room");
            bench.move_clock(10);
            let old = bench.reserve("a", ten, 5);
            bench.reset(&[("a", ten, 0)]);
            bench.settle(&old, &[0]);
            // The new charge has the same ordinal as the old one.
            assert!(bench.admits("a", ten, 6), "{ten:?}: the reset has restored the quota");
            bench.settle(&old, &[0]);
            assert_eq!(bench.used("a", ten), 6, "{ten:?}");
        }
    }

    refund_never_reaches_generation_of_same_microsecond: |bench| {
        let every = every_policy("ten", 10);
        let mut reached = 0;
        for round in 0..1_000 {
            let ten = &every[round % every.len()];
            let old = bench.reserve("a", ten, 10);
            bench.reset(&[("a", ten, 0)]);
            let new = bench.reserve("a", ten, 10);
            bench.settle(&old, &[0]);
            reached += u32::from(bench.admits("a", ten, 1));
            // The new charge receives its own refund.
            bench.settle(&new, &[3]);
            assert_eq!(bench.used("a", ten), 3, "{ten:?}");
            bench.reset(&[("a", ten, 0)]);
        }
        assert_eq!(reached, 0, "refunds that reached another generation");
    }

    record_of_another_clock_ignores_refund: |bench| {
        let daily = Policy::calendar_period("daily", 10, Period::Day, Zone::utc()).unwrap();
        let each = every_policy("ten", 10).map(|ten| (ten, WINDOW as i64));
        for (ten, window) in each.iter().chain(&[(daily, DAY as i64)]) {
            // An edge of buckets and of calendar windows, too.
            bench.move_clock_to_edge(DAY, 4_000);
            let charge = bench.reserve("a", ten, 10);
            bench.move_clock(-window - 1);
            bench.settle(&charge, &[0]);
            bench.move_clock(window + 1);
            assert_eq!(bench.used("a", ten), 10, "{ten:?}: the refund did not reach the record ahead of the clock");
            // If the clock is behind by exactly one window or period, the record accepts the refund.
            bench.move_clock(-window);
            bench.settle(&charge, &[1]);
            assert_eq!(bench.used("a", ten), 1, "{ten:?}: the refund reaches a record one window or period ahead");
        }
    }

    refund_treats_pairs_independently: |bench| {
        for ten in &every_policy("ten", 10) {
            let policies = [ten, &policy("another", 10)];
            let pairs = [("a", policies[0], 5), ("a", policies[1], 5), ("b", policies[0], 5)];
            let check = bench.build_check(&pairs).with_purpose(Purpose::Reserve);
            let receipts = bench.run_check(&check).receipts().to_vec();
            bench.reset(&pairs[..1]);
            bench.settle(&(check, receipts), &[0, 2, 1]);
            assert_eq!(bench.used("a", policies[0]), 0, "{ten:?}: the reset pair stays empty");
            assert_eq!(
                (bench.used("a", policies[1]), bench.used("b", policies[0])), (2, 1),
                "{ten:?}: each other pair gets its own refund"
            );
            bench.reset(&pairs);
        }
    }

    refund_never_exceeds_record: |bench| {
        for ten in &every_policy("ten", 10) {
            bench.move_clock_to_edge(PRECISION * WINDOW, 0);
            let (check, receipts) = bench.reserve("a", ten, 3);
            let more = bench.build_check(&[("a", ten, 9)]);
            bench.move_clock(PRECISION as i64);
            assert!(bench.admits("a", ten, 2), "{ten:?}: the quota has room");
            let refund = Refund::new(&more, &receipts, &[0]).unwrap();
            bench.runtime.block_on(bench.backend.refund(&refund)).unwrap();
            let left = match ten.algorithm() {
                Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => 2,
                // The bucket was full meanwhile.
                Algorithm::TokenBucket { .. } => 2,
                // A calendar window stores the sum of all its charges.
                _ => 0,
            };
            assert_eq!(
                (bench.used("a", ten), check.pairs().len()), (left, 1),
                "{ten:?}: a refund takes at most the units of its record"
            );
        }
    }

    reset_clears_only_named_pairs: |bench| {
        let [log, buckets, counter, fixed, _] = every_policy("p", 10);
        let another = policy("another", 10);
        let all = [
            ("a", &log, 1), ("a", &another, 1), ("b", &log, 1),
        ];
        for pairs in [&all[..], &[("a", &buckets, 1)], &[("a", &counter, 1)], &[("a", &fixed, 1)]] {
            assert!(bench.check(pairs).is_admitted(), "the first charge fits");
        }
        let used = || {
            let a = [&log, &another, &buckets, &counter, &fixed].map(|policy| bench.used("a", policy));
            (a, bench.used("b", &log))
        };
        bench.reset(&[("a", &log, 7)]);
        assert_eq!(used(), ([0, 1, 1, 1, 1], 1), "only the named policy of the named key");
        bench.reset(&[("a", &counter, 0), ("b", &log, 0)]);
        assert_eq!(used(), ([0, 1, 1, 0, 1], 0), "both named pairs");
        // The quota is no part of the identity of a record.
        bench.reset(&[("a", &policy("another", 3), 0)]);
        assert_eq!(used(), ([0, 0, 1, 0, 1], 0), "whatever the quota is");
        // A reset also clears the last instant.
        bench.move_clock(-5_000);
        assert_eq!(bench.reserve("a", &log, 1).1[0].at_micros, bench.clock.now_micros(), "the log starts at the current instant");
    }

    late_settlement_equals_exact_charge: |bench| {
        for ten in every_policy("ten", 60).iter().filter(has_window) {
            bench.move_clock_to_edge(PRECISION * WINDOW, 17);
            let mut open = Vec::new();
            // Both keys get the same charges, but one key gets the actual amounts later.
            for charge in 0..12_u32 {
                open.push((bench.reserve("late", ten, 4), charge % 5));
                let _ = bench.check_as(Purpose::Overage, &[("early", ten, charge % 5)]);
                bench.move_clock(611);
            }
            for turn in 0..12 {
                let (reservation, used) = open.remove(turn * 7 % open.len());
                bench.settle(&reservation, &[used]);
            }
            for _ in 0..30 {
                let statuses = |key| bench.check(&[(key, ten, 0)]).statuses().to_vec();
                assert_eq!(
                    statuses("late"), statuses("early"),
                    "{ten:?}: a late settlement equals a charge of the actual amount"
                );
                bench.move_clock(997);
            }
        }
    }
}
