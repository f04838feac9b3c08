//! What every algorithm promises at most, built and met; and where usage saturates.

use std::time::Duration;

use tower_sliding_window::{Algorithm, Policy, Wait, backend::Purpose};

use super::{PRECISION, WINDOW, edges, every, micros, waits};

const YEAR: Duration = Duration::from_secs(366 * 86_400);

edges! {
    the_sliding_counter_admits_twice_the_quota_less_one_in_a_window_and_no_more: |bench| {
        let [_, _, counter, _] = every("ten", 10);
        // All of the quota in the last microsecond of a calendar window.
        bench.moves_to_edge(WINDOW, -1);
        let burst = bench.clock.now_micros();
        assert!(bench.admits("a", &counter, 10));
        let mut admitted = 10;
        // Until the burst is a window old.
        while bench.clock.now_micros() < burst + WINDOW - 1 {
            bench.moves(1);
            while bench.admits("a", &counter, 1) {
                admitted += 1;
            }
        }
        assert_eq!(admitted, 19);
        bench.moves(1);
        assert!(!bench.admits("a", &counter, 1));
        bench.moves(1);
        // A window later, all of these nine count.
        assert!(bench.admits("a", &counter, 1));
        assert!(!bench.admits("a", &counter, 1));
    }

    the_last_tick_of_a_long_window_still_counts_one_unit: |bench| {
        let ten = Policy::new("ten", 10, YEAR).unwrap().with_algorithm(Algorithm::SlidingCounter).unwrap();
        let year = YEAR.as_micros() as u64;
        let tick = year.div_ceil(1 << 20);
        let ticks = year.div_ceil(tick);
        bench.moves_to_edge(year, -1);
        assert!(bench.admits("a", &ten, 10));
        // It counts in full until the first tick of the next window is over.
        let status = bench.check(&[("a", &ten, 1)]);
        assert_eq!(status.statuses()[0].next_after(), micros(1 + tick));
        assert_eq!(status.retry_after(), Wait::For(micros(1 + ticks.div_ceil(10) * tick)));
        bench.moves(1 + (ticks as i64 - 1) * tick as i64);
        assert!(bench.admits("a", &ten, 9));
        let denied = bench.check(&[("a", &ten, 1)]);
        assert_eq!(denied.statuses()[0].remaining(), 0);
        // The last tick is cut short by the end of the window. There nine count in full.
        assert_eq!(denied.retry_after(), Wait::For(micros(year - (ticks - 1) * tick)));
        bench.waits_honestly("a", &ten, 1);
    }

    the_fixed_window_admits_twice_the_quota_across_an_edge_and_no_more: |bench| {
        let [_, _, _, fixed] = every("ten", 10);
        bench.moves_to_edge(WINDOW, -1);
        assert!(bench.admits("a", &fixed, 10));
        assert_eq!(bench.check(&[("a", &fixed, 1)]).retry_after(), waits(1));
        bench.moves(1);
        assert!(bench.admits("a", &fixed, 10));
        let denied = bench.check(&[("a", &fixed, 1)]);
        assert_eq!(denied.retry_after(), waits(WINDOW));
        assert_eq!(denied.statuses()[0].next_after(), micros(WINDOW));
        assert_eq!(denied.statuses()[0].reset_after(), micros(WINDOW));
        bench.waits_honestly("a", &fixed, 10);
    }

    sliding_buckets_never_admit_more_than_the_quota_across_an_edge: |bench| {
        let [_, buckets, _, _] = every("ten", 10);
        let mut charged: Vec<u64> = Vec::new();
        bench.moves_to_edge(PRECISION, -1);
        assert!(bench.admits("a", &buckets, 10));
        charged.extend([bench.clock.now_micros(); 10]);
        for round in 0..1_200 {
            bench.moves(if round % 3 == 0 { 97 } else { 1 });
            while bench.admits("a", &buckets, 1) {
                charged.push(bench.clock.now_micros());
            }
        }
        assert!(charged.len() > 20);
        for ten in charged.windows(11) {
            assert!(ten[10] - ten[0] >= WINDOW, "eleven in one window");
        }
    }

    capacity_of_sliding_buckets_returns_up_to_a_precision_late: |bench| {
        let [_, buckets, _, _] = every("ten", 10);
        for (into, late) in [(0, PRECISION), (1, PRECISION - 1), (PRECISION as i64 - 1, 1)] {
            bench.moves_to_edge(PRECISION, into);
            assert!(bench.admits("a", &buckets, 10));
            assert_eq!(bench.waits_honestly("a", &buckets, 10), WINDOW + late);
            bench.moves(2 * WINDOW as i64);
        }
    }

    charges_of_one_bucket_leave_together_and_others_later: |bench| {
        let [_, buckets, _, _] = every("ten", 10);
        bench.moves_to_edge(PRECISION, 0);
        assert!(bench.admits("a", &buckets, 2));
        bench.moves(PRECISION as i64 - 1);
        assert!(bench.admits("a", &buckets, 3));
        bench.moves(1);
        assert!(bench.admits("a", &buckets, 5));
        let wait = |cost| bench.check(&[("a", &buckets, cost)]).retry_after();
        assert_eq!([wait(1), wait(5)], [waits(WINDOW); 2]);
        assert_eq!([wait(6), wait(10)], [waits(WINDOW + PRECISION); 2]);
    }

    what_is_used_in_a_log_saturates: |bench| {
        for most in every("most", u32::MAX).iter().take(2) {
            bench.moves_to_edge(WINDOW * PRECISION, 0);
            let mut newest = 0;
            let precision = match most.algorithm() {
                Algorithm::SlidingBuckets { .. } => PRECISION,
                _ => 1,
            };
            // 2^39 units, and 2^39 more that are not counted.
            for charge in 0..256 {
                let decision = bench.asks(Purpose::Overage, &[("a", most, u32::MAX)]);
                assert_eq!((decision.is_admitted(), decision.statuses()[0].remaining()), (true, 0));
                let now = bench.clock.now_micros();
                if charge <= 128 {
                    let at = if precision > 1 { (now / precision + 1) * precision } else { now };
                    newest = at + WINDOW;
                }
                assert_eq!(decision.statuses()[0].reset_after(), micros(newest - now));
                bench.moves(30);
            }
            let now = bench.clock.now_micros();
            assert_eq!(bench.check(&[("a", most, u32::MAX)]).retry_after(), waits(newest - now));
            bench.waits_honestly("a", most, u32::MAX);
        }
    }

    what_is_used_in_a_calendar_window_saturates: |bench| {
        let [_, _, counter, _] = every("most", u32::MAX);
        bench.moves_to_edge(WINDOW, 0);
        for _ in 0..5 {
            assert!(bench.asks(Purpose::Overage, &[("a", &counter, u32::MAX)]).is_admitted());
        }
        // 2^33 - 1 units count; a little less than half of them is what leaves room for one.
        let wait = bench.check(&[("a", &counter, 1)]).retry_after();
        assert_eq!(wait, waits(WINDOW + WINDOW / 2 + 1));
        bench.waits_honestly("a", &counter, 1);
    }
}
