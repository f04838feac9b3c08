//! Charges that are looked at, made anyway, settled and forgotten.

use tower_sliding_window::{
    Algorithm, Wait,
    backend::{Purpose, Refund},
};

use super::{PRECISION, WINDOW, edges, every, policy};

edges! {
    a_peek_answers_as_the_charge_would_and_charges_nothing: |bench| {
        for five in &every("five", 5) {
            for cost in [0, 3, 3, 2, 6] {
                let pairs = [("a", five, cost), ("b", five, 1)];
                let peeks = [(); 2].map(|()| bench.asks(Purpose::Peek, &pairs));
                let charge = bench.check(&pairs);
                for peek in peeks {
                    assert_eq!(peek.statuses(), charge.statuses());
                    assert!(peek.receipts().is_empty());
                }
            }
        }
    }

    an_overage_is_charged_to_every_pair_whatever_is_used: |bench| {
        for five in &every("five", 5) {
            bench.moves_to_edge(WINDOW, 1);
            assert!(bench.admits("a", five, 4));
            let pairs = [("a", five, 3), ("b", five, 9), ("c", five, 0)];
            let decision = bench.asks(Purpose::Overage, &pairs);
            assert!(decision.is_admitted());
            assert!(decision.statuses().iter().all(|status| status.retry_after() == Wait::ZERO));
            let remaining: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
            assert_eq!(remaining, [0, 0, 5]);
            assert!(!bench.admits("b", five, 1));
            // Seven are used: what is to leave is three for a cost of one.
            bench.waits_honestly("a", five, 1);
        }
    }

    receipts_are_of_admitted_reservations_one_for_every_pair: |bench| {
        for five in &every("five", 5) {
            bench.moves_to_edge(PRECISION * WINDOW, 1_000);
            let pairs = [("a", five, 5), ("b", five, 0)];
            let now = bench.clock.now_micros();
            let admitted = bench.asks(Purpose::Reserve, &pairs);
            assert_eq!(admitted.receipts().len(), 2);
            let first = admitted.receipts()[0];
            let at = match five.algorithm() {
                Algorithm::SlidingBuckets { .. } => now - 1_000 + PRECISION,
                _ => now,
            };
            assert_eq!((first.generation, first.at_micros, first.ordinal), (now, at, 0));
            assert!(bench.asks(Purpose::Reserve, &pairs).receipts().is_empty());
            assert!(bench.check(&[("c", five, 1)]).receipts().is_empty());
        }
    }

    units_go_back_to_their_own_charge: |bench| {
        for ten in &every("ten", 10) {
            bench.moves_to_edge(PRECISION * WINDOW, 0);
            let first = bench.reserves("a", ten, 4);
            bench.moves(PRECISION as i64);
            let second = bench.reserves("a", ten, 6);
            bench.moves(10);
            assert_eq!(bench.used("a", ten), 10);
            bench.settles(&second, &[1]);
            assert_eq!(bench.used("a", ten), 5);
            bench.settles(&first, &[2]);
            assert_eq!(bench.used("a", ten), 3);
            // Two leave with the first, and one with the second.
            bench.moves_to_edge(WINDOW, 0);
            match ten.algorithm() {
                Algorithm::SlidingLog => {
                    assert_eq!(bench.used("a", ten), 1);
                    bench.moves(PRECISION as i64 - 1);
                    assert_eq!(bench.used("a", ten), 1);
                }
                Algorithm::SlidingBuckets { .. } => {
                    bench.moves(PRECISION as i64 - 1);
                    assert_eq!(bench.used("a", ten), 3);
                    bench.moves(1);
                    assert_eq!(bench.used("a", ten), 1);
                    bench.moves(PRECISION as i64 - 1);
                    assert_eq!(bench.used("a", ten), 1);
                }
                Algorithm::SlidingCounter => {
                    assert_eq!(bench.used("a", ten), 3);
                    bench.moves(WINDOW as i64 / 2);
                    assert_eq!(bench.used("a", ten), 2);
                    bench.moves(WINDOW as i64 / 2 - 1);
                    assert_eq!(bench.used("a", ten), 1);
                }
                _ => {}
            }
            bench.moves(1);
            assert_eq!(bench.used("a", ten), 0);
        }
    }

    a_charge_of_the_window_before_gets_its_units_back_there: |bench| {
        let [_, _, counter, fixed] = every("ten", 10);
        for ten in [counter, fixed] {
            bench.moves_to_edge(WINDOW, 0);
            let first = bench.reserves("a", &ten, 8);
            let second = bench.reserves("a", &ten, 2);
            bench.moves(WINDOW as i64 + WINDOW as i64 / 2);
            assert!(bench.admits("a", &ten, 3));
            let carries = ten.algorithm() == Algorithm::SlidingCounter;
            assert_eq!(bench.used("a", &ten), if carries { 8 } else { 3 });
            bench.settles(&first, &[0]);
            assert_eq!(bench.used("a", &ten), if carries { 4 } else { 3 });
            // By now it has left.
            bench.moves(WINDOW as i64 / 2);
            bench.settles(&second, &[0]);
            assert_eq!(bench.used("a", &ten), if carries { 3 } else { 0 });
        }
    }

    a_charge_that_has_left_gets_nothing_back: |bench| {
        for ten in &every("ten", 10) {
            bench.moves_to_edge(PRECISION * WINDOW, PRECISION as i64 - 1);
            let early = bench.reserves("a", ten, 4);
            bench.moves(WINDOW as i64 - 1);
            let late = bench.reserves("a", ten, 3);
            bench.moves(WINDOW as i64 - 1);
            let used = bench.used("a", ten);
            bench.settles(&early, &[0]);
            assert_eq!(bench.used("a", ten), used);
            bench.settles(&late, &[0]);
            assert_eq!(bench.used("a", ten), 0);
        }
    }

    a_larger_amount_is_charged_now_to_every_pair_of_it: |bench| {
        for ten in &every("ten", 10) {
            bench.moves_to_edge(WINDOW, 0);
            let check = bench.of(&[("a", ten, 4), ("b", ten, 4)]).with_purpose(Purpose::Reserve);
            let receipts = bench.ask(&check).receipts().to_vec();
            bench.moves(100);
            bench.settles(&(check, receipts), &[7, 1]);
            assert_eq!((bench.used("a", ten), bench.used("b", ten)), (7, 1));
            if ten.algorithm() == Algorithm::SlidingLog {
                bench.moves(WINDOW as i64 - 100);
                assert_eq!((bench.used("a", ten), bench.used("b", ten)), (3, 0));
            }
        }
    }

    the_last_instant_stays_although_all_is_given_back: |bench| {
        for ten in &every("ten", 10) {
            bench.moves_to_edge(PRECISION * WINDOW, 4_000);
            let at = bench.clock.now_micros();
            let all = bench.reserves("a", ten, 10);
            bench.settles(&all, &[0]);
            assert_eq!(bench.used("a", ten), 0);
            bench.moves(-1_500);
            let (_, receipts) = bench.reserves("a", ten, 10);
            assert_eq!(receipts[0].generation, at, "{ten:?}");
            // And what is given back does not bring the last instant forward either.
            bench.moves(3_000);
            let more = bench.of(&[("a", ten, 10)]);
            bench.settles(&(more, receipts), &[4]);
            bench.moves(-3_000);
            let (_, receipts) = bench.reserves("a", ten, 1);
            let place = if matches!(ten.algorithm(), Algorithm::SlidingBuckets { .. }) { 2_000 } else { 0 };
            assert_eq!(receipts[0].at_micros, at + place, "{ten:?}");
        }
    }

    charges_of_one_microsecond_are_told_apart: |bench| {
        let [log, ..] = every("hundred", 100);
        // Whichever are settled first: one that is oldest, newest, or between.
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 1, 3, 0], [0, 3, 1, 2]] {
            bench.moves(2 * WINDOW as i64);
            let costs = [3, 10, 20, 1];
            let charges = costs.map(|cost| bench.reserves("a", &log, cost));
            let mut used = 34;
            for index in order {
                bench.settles(&charges[index], &[0]);
                used -= costs[index];
                assert_eq!(bench.used("a", &log), used, "{index} of {order:?}");
            }
        }
        // A charge that comes after others of its instant were dropped has its own place too.
        bench.moves(2 * WINDOW as i64);
        let oldest = bench.reserves("a", &log, 5);
        let second = bench.reserves("a", &log, 7);
        bench.settles(&oldest, &[0]);
        let third = bench.reserves("a", &log, 30);
        bench.settles(&third, &[2]);
        assert_eq!(bench.used("a", &log), 9);
        bench.settles(&second, &[1]);
        assert_eq!(bench.used("a", &log), 3);
    }

    a_charge_keeps_its_place_when_those_before_it_are_gone: |bench| {
        let [log, ..] = every("hundred", 100);
        let oldest = bench.reserves("a", &log, 5);
        assert!(bench.admits("a", &log, 7));
        bench.settles(&oldest, &[0]);
        bench.moves(10);
        let next = bench.reserves("a", &log, 20);
        // The seven leave, and the next charge drops them.
        bench.moves(WINDOW as i64 - 10);
        assert!(bench.admits("a", &log, 1));
        bench.settles(&next, &[2]);
        assert_eq!(bench.used("a", &log), 3);
    }

    a_receipt_of_another_generation_gives_nothing_back: |bench| {
        for ten in &every("ten", 10) {
            bench.moves_to_edge(PRECISION * WINDOW, 0);
            assert!(bench.admits("a", ten, 1));
            bench.moves(10);
            let old = bench.reserves("a", ten, 5);
            bench.resets(&[("a", ten, 0)]);
            bench.settles(&old, &[0]);
            // At the very place of the other.
            assert!(bench.admits("a", ten, 6));
            bench.settles(&old, &[0]);
            assert_eq!(bench.used("a", ten), 6, "{ten:?}");
        }
    }

    a_record_of_another_clock_gets_nothing_back: |bench| {
        for ten in &every("ten", 10) {
            bench.moves_to_edge(PRECISION * WINDOW, 4_000);
            let charge = bench.reserves("a", ten, 10);
            bench.moves(-(WINDOW as i64) - 1);
            bench.settles(&charge, &[0]);
            bench.moves(WINDOW as i64 + 1);
            assert_eq!(bench.used("a", ten), 10);
            // Behind by one window exactly, it does.
            bench.moves(-(WINDOW as i64));
            bench.settles(&charge, &[1]);
            assert_eq!(bench.used("a", ten), 1);
        }
    }

    the_pairs_of_a_refund_stand_for_themselves: |bench| {
        for ten in &every("ten", 10) {
            let policies = [ten, &policy("another", 10)];
            let pairs = [("a", policies[0], 5), ("a", policies[1], 5), ("b", policies[0], 5)];
            let check = bench.of(&pairs).with_purpose(Purpose::Reserve);
            let receipts = bench.ask(&check).receipts().to_vec();
            bench.resets(&pairs[..1]);
            bench.settles(&(check, receipts), &[0, 2, 1]);
            assert_eq!(bench.used("a", policies[0]), 0);
            assert_eq!((bench.used("a", policies[1]), bench.used("b", policies[0])), (2, 1));
            bench.resets(&pairs);
        }
    }

    no_record_gives_back_more_than_it_holds: |bench| {
        for ten in &every("ten", 10) {
            bench.moves_to_edge(PRECISION * WINDOW, 0);
            let (check, receipts) = bench.reserves("a", ten, 3);
            let more = bench.of(&[("a", ten, 9)]);
            bench.moves(PRECISION as i64);
            assert!(bench.admits("a", ten, 2));
            let refund = Refund::of(&more, &receipts, &[0]).unwrap();
            bench.runtime.block_on(bench.backend.refund(&refund)).unwrap();
            let left = match ten.algorithm() {
                Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => 2,
                // All charges of a calendar window are one sum.
                _ => 0,
            };
            assert_eq!((bench.used("a", ten), check.pairs().len()), (left, 1));
        }
    }

    a_reset_forgets_the_pairs_that_it_names_and_no_others: |bench| {
        let [log, buckets, counter, fixed] = every("p", 10);
        let another = policy("another", 10);
        let all = [
            ("a", &log, 1), ("a", &another, 1), ("b", &log, 1),
        ];
        for pairs in [&all[..], &[("a", &buckets, 1)], &[("a", &counter, 1)], &[("a", &fixed, 1)]] {
            assert!(bench.check(pairs).is_admitted());
        }
        let used = || {
            let a = [&log, &another, &buckets, &counter, &fixed].map(|policy| bench.used("a", policy));
            (a, bench.used("b", &log))
        };
        bench.resets(&[("a", &log, 7)]);
        assert_eq!(used(), ([0, 1, 1, 1, 1], 1));
        bench.resets(&[("a", &counter, 0), ("b", &log, 0)]);
        assert_eq!(used(), ([0, 1, 1, 0, 1], 0));
        // Another quota makes no other policy.
        bench.resets(&[("a", &policy("another", 3), 0)]);
        assert_eq!(used(), ([0, 0, 1, 0, 1], 0));
        // Time does not stand still for what is forgotten.
        bench.moves(-5_000);
        assert_eq!(bench.reserves("a", &log, 1).1[0].at_micros, bench.clock.now_micros());
    }

    settled_is_settled: |bench| {
        for ten in &every("ten", 60) {
            bench.moves_to_edge(PRECISION * WINDOW, 17);
            let mut open = Vec::new();
            // The same charges to both, but one of them learns the amounts later.
            for charge in 0..12_u32 {
                open.push((bench.reserves("late", ten, 4), charge % 5));
                bench.asks(Purpose::Overage, &[("early", ten, charge % 5)]);
                bench.moves(611);
            }
            for turn in 0..12 {
                let (reservation, used) = open.remove(turn * 7 % open.len());
                bench.settles(&reservation, &[used]);
            }
            for _ in 0..30 {
                let look = |key| bench.check(&[(key, ten, 0)]).statuses().to_vec();
                assert_eq!(look("late"), look("early"));
                bench.moves(997);
            }
        }
    }
}
