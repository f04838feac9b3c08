//! The worst case of every algorithm, and the saturation of usage.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Policy, Wait,
    backend::Purpose,
    policy::{Period, Zone},
};

use super::{PRECISION, WINDOW, edges, every_policy, micros, wait_of};

/// In microseconds.
const DAY: u64 = 86_400_000_000;

const YEAR: Duration = Duration::from_secs(366 * 86_400);

edges! {
    sliding_counter_admits_less_than_twice_quota_per_window: |bench| {
        let [_, _, counter, ..] = every_policy("ten", 10);
        // Charges the quota in the last microsecond of a calendar window.
        bench.move_clock_to_edge(WINDOW, -1);
        let burst = bench.clock.now_micros();
        assert!(bench.admits("a", &counter, 10), "the quota fits at the end of a window");
        let mut admitted = 10;
        // Continues until the burst is one window old.
        while bench.clock.now_micros() < burst + WINDOW - 1 {
            bench.move_clock(1);
            while bench.admits("a", &counter, 1) {
                admitted += 1;
            }
        }
        assert_eq!(admitted, 19, "less than twice the quota in one window");
        bench.move_clock(1);
        assert!(!bench.admits("a", &counter, 1), "the burst still counts");
        bench.move_clock(1);
        // One window later, all of these nine units count.
        assert!(bench.admits("a", &counter, 1), "one unit has left");
        assert!(!bench.admits("a", &counter, 1), "nine units count");
    }

    last_tick_of_long_window_still_counts_usage: |bench| {
        let ten = Policy::new("ten", 10, YEAR).unwrap().with_algorithm(Algorithm::SlidingCounter).unwrap();
        let year = YEAR.as_micros() as u64;
        let tick = year.div_ceil(1 << 20);
        let ticks = year.div_ceil(tick);
        bench.move_clock_to_edge(year, -1);
        assert!(bench.admits("a", &ten, 10), "the quota fits");
        // The charge counts in full until the end of the first tick of the next window. A whole unit returns after a tenth of it.
        let status = bench.check(&[("a", &ten, 1)]);
        let tenth = micros(1 + ticks.div_ceil(10) * tick);
        assert_eq!(status.statuses()[0].next_after(), tenth, "one unit remains after a tenth of the window");
        assert_eq!(status.retry_after(), Wait::For(tenth), "the wait of one unit");
        bench.move_clock(1 + (ticks as i64 - 1) * tick as i64);
        assert!(bench.admits("a", &ten, 9), "nine units have left");
        let denied = bench.check(&[("a", &ten, 1)]);
        assert_eq!(denied.statuses()[0].remaining(), 0, "the quota is used");
        // The end of the window cuts the last tick short. At this end nine units count in full.
        assert_eq!(
            denied.retry_after(), Wait::For(micros(year - (ticks - 1) * tick)),
            "the wait lasts until the end of the window"
        );
        bench.assert_exact_wait("a", &ten, 1);
    }

    fixed_window_admits_at_most_twice_quota_across_edge: |bench| {
        let [_, _, _, fixed, _] = every_policy("ten", 10);
        bench.move_clock_to_edge(WINDOW, -1);
        assert!(bench.admits("a", &fixed, 10), "the quota fits at the end of a window");
        assert_eq!(bench.check(&[("a", &fixed, 1)]).retry_after(), wait_of(1), "the wait lasts until the next window");
        bench.move_clock(1);
        assert!(bench.admits("a", &fixed, 10), "the next window has its own quota");
        let denied = bench.check(&[("a", &fixed, 1)]);
        assert_eq!(denied.retry_after(), wait_of(WINDOW), "the wait lasts for a whole window");
        assert_eq!(denied.statuses()[0].next_after(), micros(WINDOW), "units return at the end of the window");
        assert_eq!(denied.statuses()[0].reset_after(), micros(WINDOW), "all units return at the end of the window");
        bench.assert_exact_wait("a", &fixed, 10);
    }

    sliding_buckets_never_exceed_quota_across_edge: |bench| {
        let [_, buckets, ..] = every_policy("ten", 10);
        let mut charged: Vec<u64> = Vec::new();
        bench.move_clock_to_edge(PRECISION, -1);
        assert!(bench.admits("a", &buckets, 10), "the quota fits at the end of a bucket");
        charged.extend([bench.clock.now_micros(); 10]);
        for round in 0..1_200 {
            bench.move_clock(if round % 3 == 0 { 97 } else { 1 });
            while bench.admits("a", &buckets, 1) {
                charged.push(bench.clock.now_micros());
            }
        }
        assert!(charged.len() > 20, "units have left several times");
        for ten in charged.windows(11) {
            assert!(ten[10] - ten[0] >= WINDOW, "more than the quota in one window");
        }
    }

    sliding_buckets_delay_freed_units_by_at_most_precision: |bench| {
        let [_, buckets, ..] = every_policy("ten", 10);
        for (into, late) in [(0, PRECISION), (1, PRECISION - 1), (PRECISION as i64 - 1, 1)] {
            bench.move_clock_to_edge(PRECISION, into);
            assert!(bench.admits("a", &buckets, 10), "{into} us into a bucket: all units have left");
            assert_eq!(
                bench.assert_exact_wait("a", &buckets, 10), WINDOW + late,
                "{into} us into a bucket: the wait lasts until the end of the bucket"
            );
            bench.move_clock(2 * WINDOW as i64);
        }
    }

    charges_in_one_bucket_leave_window_together: |bench| {
        let [_, buckets, ..] = every_policy("ten", 10);
        bench.move_clock_to_edge(PRECISION, 0);
        assert!(bench.admits("a", &buckets, 2), "2 of 10 units");
        bench.move_clock(PRECISION as i64 - 1);
        assert!(bench.admits("a", &buckets, 3), "3 more in the same bucket");
        bench.move_clock(1);
        assert!(bench.admits("a", &buckets, 5), "the rest in the next bucket");
        let wait = |cost| bench.check(&[("a", &buckets, cost)]).retry_after();
        assert_eq!([wait(1), wait(5)], [wait_of(WINDOW); 2], "the first bucket leaves as a whole");
        assert_eq!([wait(6), wait(10)], [wait_of(WINDOW + PRECISION); 2], "the second bucket leaves as a whole");
    }

    log_and_buckets_saturate_usage: |bench| {
        for most in every_policy("most", u32::MAX).iter().take(2) {
            bench.move_clock_to_edge(WINDOW * PRECISION, 0);
            let mut newest = 0;
            let precision = match most.algorithm() {
                Algorithm::SlidingBuckets { .. } => PRECISION,
                _ => 1,
            };
            // Charges 2^39 units that count, and 2^39 units that do not count.
            for charge in 0..256 {
                let decision = bench.check_as(Purpose::Overage, &[("a", most, u32::MAX)]);
                assert_eq!(
                    (decision.is_admitted(), decision.statuses()[0].remaining()), (true, 0),
                    "{most:?}, charge {charge}: an overage is always admitted, and nothing remains"
                );
                let now = bench.clock.now_micros();
                if charge <= 128 {
                    let at = if precision > 1 { (now / precision + 1) * precision } else { now };
                    newest = at + WINDOW;
                }
                assert_eq!(
                    decision.statuses()[0].reset_after(), micros(newest - now),
                    "{most:?}, charge {charge}: later charges do not count"
                );
                bench.move_clock(30);
            }
            let now = bench.clock.now_micros();
            assert_eq!(
                bench.check(&[("a", most, u32::MAX)]).retry_after(), wait_of(newest - now),
                "{most:?}: the wait lasts until the last charge that counts has left"
            );
            bench.assert_exact_wait("a", most, u32::MAX);
        }
    }

    sliding_counter_saturates_usage: |bench| {
        let [_, _, counter, ..] = every_policy("most", u32::MAX);
        bench.move_clock_to_edge(WINDOW, 0);
        for _ in 0..5 {
            assert!(
                bench.check_as(Purpose::Overage, &[("a", &counter, u32::MAX)]).is_admitted(),
                "an overage is always admitted"
            );
        }
        // 2^33 - 1 units count. One unit fits when a little less than half of them count.
        let wait = bench.check(&[("a", &counter, 1)]).retry_after();
        assert_eq!(wait, wait_of(WINDOW + WINDOW / 2 + 1), "the wait lasts until less than half of the units count");
        bench.assert_exact_wait("a", &counter, 1);
    }

    fixed_window_and_calendar_period_saturate_usage: |bench| {
        let [_, _, _, fixed, _] = every_policy("most", u32::MAX);
        let daily = Policy::calendar_period("most", u32::MAX, Period::Day, Zone::utc()).unwrap();
        for (most, length) in [(fixed, WINDOW), (daily, DAY)] {
            bench.move_clock_to_edge(length, 0);
            let mut debits = Vec::new();
            for charge in 0..300 {
                let purpose = if charge < 2 { Purpose::Debit } else { Purpose::Overage };
                let check = bench.build_check(&[("a", &most, u32::MAX)]).with_purpose(purpose);
                let decision = bench.run_check(&check);
                assert_eq!(
                    (decision.is_admitted(), decision.statuses()[0].remaining()), (true, 0),
                    "{most:?}, charge {charge}: an overage is always admitted, and nothing remains"
                );
                if charge < 2 {
                    debits.push((check, decision.receipts().to_vec()));
                }
                assert_eq!(
                    bench.check(&[("a", &most, 1)]).retry_after(), wait_of(length),
                    "{most:?}, charge {charge}: the wait lasts until the end of the window"
                );
            }
            // 2^33 - 1 units count, which are one more than those of the two debits.
            bench.settle(&debits[0], &[0]);
            assert!(!bench.admits("a", &most, 1), "{most:?}: one quota and one unit count");
            bench.settle(&debits[1], &[0]);
            assert_eq!(bench.used("a", &most), 1, "{most:?}");
            assert!(!bench.admits("a", &most, u32::MAX), "{most:?}");
            bench.assert_exact_wait("a", &most, u32::MAX);
        }
    }
}
