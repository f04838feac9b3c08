//! The edge cases of the token bucket.

use tower_sliding_window::{Policy, Wait, backend::Purpose, policy::Rate};

use super::{NO_CHARGE, edges, micros, wait_of};

fn bucket(capacity: u32, units: u32, period: u64) -> Policy {
    Policy::token_bucket("bucket", capacity, Rate::new(units, micros(period))).unwrap()
}

edges! {
    full_bucket_admits_capacity_and_then_its_rate: |bench| {
        // Three units in 1,000 us: a unit returns in 333 1/3 us.
        let bucket = bucket(10, 3, 1_000);
        for left in (0..10).rev() {
            let decision = bench.check(&[("a", &bucket, 1)]);
            assert_eq!((decision.is_admitted(), decision.statuses()[0].remaining()), (true, left), "a full bucket holds 10 units");
        }
        let status = bench.check(&[("a", &bucket, 1)]).statuses()[0].clone();
        assert_eq!(status.retry_after(), wait_of(334), "a unit returns in 333 1/3 us");
        assert_eq!((status.next_after(), status.reset_after()), (micros(334), micros(3_334)), "10 units return in 3,333 1/3 us");
        let mut admitted = Vec::new();
        for at in 1..=2_000_u64 {
            bench.move_clock(1);
            if bench.admits("a", &bucket, 1) {
                admitted.push(at);
            }
        }
        assert_eq!(admitted, [334, 667, 1_000, 1_334, 1_667, 2_000], "the thirds of a microsecond are not lost");
    }

    waits_are_exact_for_any_cost: |bench| {
        let bucket = bucket(10, 7, 1_000);
        assert!(bench.admits("a", &bucket, 10), "a full bucket holds 10 units");
        for cost in [1, 3, 10, 2, 7] {
            let wait = bench.assert_exact_wait("a", &bucket, cost);
            assert!(wait <= (u64::from(cost) * 1_000).div_ceil(7), "{cost} units return in {wait} us");
        }
        assert_eq!(bench.check(&[("a", &bucket, 11)]).retry_after(), Wait::Never, "more than the capacity");
    }

    full_bucket_has_no_next_unit: |bench| {
        let bucket = bucket(10, 1, 1_000);
        let full = bench.check(&[("a", &bucket, 0)]).statuses()[0].clone();
        assert_eq!((full.remaining(), full.next_after(), full.reset_after()), (10, micros(0), micros(0)), "nothing is used");
        assert!(bench.admits("a", &bucket, 1), "a full bucket holds 10 units");
        bench.move_clock(600);
        let half = bench.check(&[("a", &bucket, 0)]).statuses()[0].clone();
        assert_eq!((half.remaining(), half.next_after(), half.reset_after()), (9, micros(400), micros(400)), "0.4 units have not returned");
        bench.move_clock(400);
        assert_eq!(bench.check(&[("a", &bucket, 0)]).statuses()[0].reset_after(), micros(0), "all units have returned");
    }

    overage_is_at_most_capacity: |bench| {
        let bucket = bucket(10, 1, 1_000);
        for units in [4, 9, 4_000_000_000] {
            assert!(bench.check_as(Purpose::Overage, &[("a", &bucket, units)]).is_admitted(), "an overage is always admitted");
        }
        let status = bench.check(&[("a", &bucket, 0)]).statuses()[0].clone();
        assert_eq!((status.remaining(), status.reset_after()), (0, micros(20_000)), "10 units beyond the capacity");
        assert_eq!(bench.assert_exact_wait("a", &bucket, 1), 11_000, "11 units return first");
    }

    debit_that_reaches_bound_has_charge_without_refund: |bench| {
        for bucket in [bucket(10, 1, 1_000), bucket(10, 1, 1_000).shadow()] {
            let pairs = [("a", &bucket, 20)];
            bench.reset(&pairs);
            let debit = bench.build_check(&pairs).with_purpose(Purpose::Debit);
            let decision = bench.run_check(&debit);
            let debit = (debit, decision.receipts().to_vec());
            assert_ne!(debit.1, [NO_CHARGE], "units were charged");
            bench.settle(&debit, &[0]);
            let reset_after = || bench.check(&[("a", &bucket, 0)]).statuses()[0].reset_after();
            assert_eq!(reset_after(), micros(20_000), "no refund changes the charge");
            bench.move_clock(12_000);
            bench.settle(&debit, &[25]);
            assert_eq!(reset_after(), micros(13_000), "the overage is charged");
        }
    }

    refund_returns_units_until_bucket_was_full: |bench| {
        let bucket = bucket(10, 1, 1_000);
        let first = bench.reserve("a", &bucket, 4);
        bench.move_clock(1_500);
        let second = bench.reserve("a", &bucket, 6);
        assert_eq!(bench.used("a", &bucket), 9, "8.5 units have not returned");
        bench.settle(&first, &[1]);
        assert_eq!(bench.used("a", &bucket), 6, "3 units are refunded");
        bench.settle(&second, &[0]);
        assert_eq!(bench.used("a", &bucket), 0, "no more units return than are used");

        let early = bench.reserve("a", &bucket, 4);
        bench.move_clock(4_000);
        assert!(bench.admits("a", &bucket, 5), "the bucket is full");
        bench.settle(&early, &[0]);
        assert_eq!(bench.used("a", &bucket), 5, "the units of the early charge had returned");
    }

    changed_capacity_keeps_usage: |bench| {
        let [ten, four, twenty] = [10, 4, 20].map(|capacity| bucket(capacity, 1, 1_000));
        assert!(bench.admits("a", &ten, 10), "a full bucket holds 10 units");
        let smaller = bench.check(&[("a", &four, 1)]);
        assert_eq!((smaller.is_admitted(), smaller.retry_after()), (false, wait_of(7_000)), "7 units return first");
        assert_eq!(bench.check_as(Purpose::Peek, &[("a", &twenty, 1)]).statuses()[0].remaining(), 9, "10 of 20 units are used");
        bench.assert_exact_wait("a", &four, 2);
    }

    overage_of_small_capacity_returns_no_unit_of_large_one: |bench| {
        // Such as a policy with a headroom.
        let [large, small] = [(100, 4), (25, 1)].map(|(capacity, units)| bucket(capacity, units, 4_000));
        assert!(bench.admits("a", &large, 100), "the whole capacity");
        assert!(bench.check_as(Purpose::Overage, &[("a", &small, 1)]).is_admitted());
        assert_eq!(bench.check(&[("a", &large, 1)]).retry_after(), wait_of(1_000));
    }

    changed_rate_keeps_usage_rounded_up: |bench| {
        // A unit is 1,000, 333 1/3, 142 6/7 and 10^6 us.
        let rates = [(1, 1_000), (3, 1_000), (7, 1_000), (1, 1_000_000), (999_983, 86_400_000_000)];
        for (from, to) in rates.iter().flat_map(|from| rates.iter().map(move |to| (from, to))) {
            let [before, after] = [from, to].map(|(units, period)| bucket(50, *units, *period));
            bench.reset(&[("a", &before, 0)]);
            assert!(bench.admits("a", &before, 20), "{before:?}: 20 of 50 units");
            bench.move_clock(777);
            // This writes the parts of a unit that are used.
            assert!(bench.admits("a", &before, 1), "{before:?}: another unit");
            let parts = |period: u64, units: u64| u128::from(period / gcd(period, units));
            let [old, new] = [from, to].map(|(units, period)| parts(*period, u64::from(*units)));
            let returned = |(units, period): (u32, u64), micros: u128| micros * u128::from(u64::from(units) / gcd(period, u64::from(units)));
            let used = (20 * old).saturating_sub(returned(*from, 777)) + old;
            bench.move_clock(1_001);
            let used = (used * new).div_ceil(old).saturating_sub(returned(*to, 1_001));
            let expected = used.div_ceil(returned(*to, 1)) as u64;
            let reset = bench.check(&[("a", &after, 0)]).statuses()[0].reset_after();
            assert_eq!(reset, micros(expected), "from {before:?} to {after:?}");
            assert!(bench.admits("a", &after, 1), "{after:?}: there is room");
            let reset = bench.check(&[("a", &after, 0)]).statuses()[0].reset_after();
            assert_eq!(reset, micros((used + new).div_ceil(returned(*to, 1)) as u64), "{after:?}: the charge is stored");
        }
    }

    largest_buckets_count_exactly: |bench| {
        let most = (1_u64 << 53) - (1 << 32);
        for (capacity, period) in [(1, 366 * 86_400_000_000_u64), (u32::MAX, most / u64::from(u32::MAX)), (284, 366 * 86_400_000_000)] {
            let units = if capacity == 284 { 283 } else { 1 };
            let rate = Rate::new(units, micros(period));
            // Less than 366 days in all.
            let Ok(bucket) = Policy::token_bucket("bucket", capacity, rate) else { continue };
            bench.reset(&[("a", &bucket, 0)]);
            assert!(bench.admits("a", &bucket, capacity), "{bucket:?}: the whole capacity");
            let full = u128::from(capacity) * u128::from(period);
            for _ in 0..3 {
                assert!(bench.check_as(Purpose::Overage, &[("a", &bucket, capacity)]).is_admitted(), "an overage is always admitted");
            }
            let parts = period / gcd(period, u64::from(units));
            let used = (2 * u128::from(capacity) * u128::from(parts)).min(u128::from(most));
            let reset = bench.check(&[("a", &bucket, 0)]).statuses()[0].reset_after().as_micros();
            assert_eq!(reset, used.div_ceil(u128::from(u64::from(units) / gcd(period, u64::from(units)))), "{bucket:?}, {full}");
            let wait = bench.assert_exact_wait("a", &bucket, 1);
            assert!(wait > 0, "{bucket:?}: the wait of one unit");
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
