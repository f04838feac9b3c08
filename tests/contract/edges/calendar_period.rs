//! The edge cases of calendar periods.

use std::time::Duration;

use chrono::NaiveDate;
use tower_sliding_window::{
    Policy, Wait,
    backend::{Pair, Purpose},
    policy::{Anchor, Period, Zone},
};

use super::{WINDOW, edges, policy, wait_of};
use crate::redis_server::rig::Random;

const HOUR: u64 = 3_600_000_000;
const DAY: u64 = 24 * HOUR;

/// Returns the instant of a time in UTC.
fn utc([year, month, day, hour]: [u32; 4]) -> u64 {
    let date = NaiveDate::from_ymd_opt(year as i32, month, day).unwrap();
    date.and_hms_opt(hour, 0, 0).unwrap().and_utc().timestamp_micros() as u64
}

fn periods(quota: u32, period: Period, zone: &str, anchor: Anchor) -> Policy {
    let policy = Policy::calendar_period("p", quota, period, Zone::new(zone).unwrap()).unwrap();
    policy.anchored(anchor).unwrap()
}

fn monthly(quota: u32, day: u8) -> Policy {
    periods(quota, Period::Month, "UTC", Anchor::day(day))
}

edges! {
    calendar_period_ends_at_its_microsecond: |bench| {
        for (period, zone, anchor, begin, end) in [
            (Period::Day, "UTC", Anchor::default(), [2026, 3, 1, 0], [2026, 3, 2, 0]),
            // The clocks change on these days: 23 and 25 hours.
            (Period::Day, "Europe/Berlin", Anchor::default(), [2026, 3, 28, 23], [2026, 3, 29, 22]),
            (Period::Day, "Europe/Berlin", Anchor::default(), [2026, 10, 24, 22], [2026, 10, 25, 23]),
            // The time is skipped, and comes twice.
            (Period::Day, "Europe/Berlin", Anchor::default().at(2, 0), [2026, 3, 28, 1], [2026, 3, 29, 1]),
            (Period::Day, "Europe/Berlin", Anchor::default().at(2, 0), [2026, 10, 25, 0], [2026, 10, 26, 1]),
            (Period::Week, "America/New_York", Anchor::default(), [2026, 11, 30, 5], [2026, 12, 7, 5]),
            (Period::Week, "America/New_York", Anchor::day(7).at(20, 0), [2027, 3, 8, 1], [2027, 3, 15, 0]),
            (Period::Month, "UTC", Anchor::day(17).at(8, 0), [2027, 12, 17, 8], [2028, 1, 17, 8]),
            // The last days of shorter months.
            (Period::Month, "UTC", Anchor::day(31), [2028, 1, 31, 0], [2028, 2, 29, 0]),
            (Period::Month, "UTC", Anchor::day(30), [2028, 2, 29, 0], [2028, 3, 30, 0]),
            (Period::Month, "UTC", Anchor::day(31), [2029, 2, 28, 0], [2029, 3, 31, 0]),
            (Period::Year, "Asia/Tokyo", Anchor::date(4, 1), [2029, 3, 31, 15], [2030, 3, 31, 15]),
            (Period::Year, "UTC", Anchor::date(2, 29), [2031, 2, 28, 0], [2032, 2, 29, 0]),
        ] {
            let three = periods(3, period, zone, anchor);
            let [begin, end] = [begin, end].map(utc);
            let length = Duration::from_micros(end - begin);
            bench.clock.set_micros(begin - 1);
            assert!(bench.admits("a", &three, 3), "{three:?}: the last microsecond of the period before");
            assert_eq!(bench.check(&[("a", &three, 1)]).retry_after(), wait_of(1), "{three:?}");
            bench.move_clock(1);
            let first = bench.check(&[("a", &three, 2)]);
            let status = &first.statuses()[0];
            assert_eq!((first.is_admitted(), status.remaining()), (true, 1), "{three:?}: the first microsecond");
            assert_eq!([status.next_after(), status.reset_after()], [length; 2], "{three:?}");
            bench.clock.set_micros(end - 1);
            assert_eq!(bench.check(&[("a", &three, 2)]).retry_after(), wait_of(1), "{three:?}");
            assert_eq!(bench.check(&[("a", &three, 4)]).retry_after(), Wait::Never, "{three:?}");
            bench.move_clock(1);
            assert!(bench.admits("a", &three, 3), "{three:?}: the next period");
            bench.reset(&[("a", &three, 0)]);
        }
    }

    unused_calendar_period_states_its_end: |bench| {
        bench.clock.set_micros(utc([2026, 5, 20, 0]));
        let status = |bench: &super::Bench<B>| bench.check(&[("a", &monthly(5, 1), 0)]).statuses()[0].clone();
        let unused = status(bench);
        let until_june = Duration::from_micros(12 * DAY);
        assert_eq!((unused.remaining(), unused.next_after(), unused.reset_after()), (5, until_june, Duration::ZERO));
        let reserved = bench.reserve("a", &monthly(5, 1), 3);
        assert_eq!(status(bench).reset_after(), until_june);
        bench.settle(&reserved, &[0]);
        assert_eq!(status(bench), unused);
    }

    later_begin_starts_period_unless_charged_since: |bench| {
        // The counted period began on 17 May.
        bench.clock.set_micros(utc([2026, 5, 20, 0]));
        assert!(bench.admits("a", &monthly(3, 17), 3));
        bench.clock.set_micros(utc([2026, 6, 4, 0]));
        // The anchor has changed. Nothing was charged since 1 June.
        assert!(bench.admits("a", &monthly(3, 1), 2));
        // The other anchor: its period began earlier, and the counted one goes on.
        assert_eq!(bench.used("a", &monthly(3, 17)), 2);
        assert!(bench.admits("a", &monthly(3, 17), 1));
        assert_eq!(
            bench.check(&[("a", &monthly(3, 17), 1)]).retry_after(), wait_of(13 * DAY),
            "until 17 June, when its own period ends"
        );
        // A third anchor, whose period began after 1 June, and before the last charge.
        assert_eq!(bench.used("a", &monthly(3, 3)), 3);
        assert_eq!(
            bench.check(&[("a", &monthly(3, 3), 1)]).retry_after(), wait_of(27 * DAY),
            "until 1 July, when the counted period ends"
        );
        assert_eq!(bench.assert_exact_wait("a", &monthly(3, 17), 3), 13 * DAY);
        assert_eq!(bench.used("a", &monthly(3, 1)), 3, "its period began earlier");
    }

    kept_calendar_period_is_stored_until_its_own_end: |bench| {
        bench.clock.set_micros(utc([2026, 6, 4, 0]));
        assert!(bench.admits("a", &monthly(3, 1), 2));
        // For this anchor, the period ends on 10 June.
        assert!(bench.admits("a", &monthly(3, 10), 1));
        bench.clock.set_micros(utc([2026, 6, 11, 0]));
        assert_eq!(bench.used("a", &monthly(3, 1)), 3);
        assert_eq!(bench.used("a", &monthly(3, 10)), 0);
        // For this one, it began on 8 June and ends on 8 July, but the counted period ends on 1 July.
        bench.clock.set_micros(utc([2026, 6, 9, 0]));
        bench.reset(&[("a", &monthly(3, 1), 0)]);
        assert!(bench.admits("a", &monthly(3, 1), 2));
        assert!(bench.admits("a", &monthly(3, 8), 1));
        assert_eq!(bench.assert_exact_wait("a", &monthly(3, 8), 1), 22 * DAY);
    }

    period_that_has_ended_never_goes_on: |bench| {
        bench.clock.set_micros(utc([2026, 1, 20, 0]));
        assert!(bench.admits("a", &monthly(3, 1), 3));
        bench.clock.set_micros(utc([2026, 2, 3, 0]));
        // The anchor has changed. Its period contains the last charge, and that of the charge ended on 1 February.
        assert!(bench.admits("a", &monthly(3, 15), 3));
        assert_eq!(bench.check(&[("a", &monthly(3, 15), 1)]).retry_after(), wait_of(12 * DAY));
    }

    calendar_period_states_exact_times_under_changing_anchors: |bench| {
        let mut random = Random(11);
        let (mut verified, mut unused) = (0, 0);
        for round in 0..8 {
            let key = round.to_string();
            let policies = [(); 3].map(|()| monthly(3, 1 + random.below(28) as u8));
            bench.clock.set_micros(utc([2026, 1, 1, 0]));
            for _ in 0..80 {
                bench.move_clock(random.below(9 * DAY) as i64);
                let (policy, cost) = (&policies[random.below(3) as usize], 1 + random.below(3) as u32);
                if random.below(4) == 0 && bench.used(&key, policy) + cost <= 3 {
                    let reserved = bench.reserve(&key, policy, cost);
                    bench.move_clock(random.below(3 * DAY) as i64);
                    bench.settle(&reserved, &[0]);
                }
                let cost = if random.below(4) == 0 { 0 } else { cost };
                let decision = bench.check(&[(&key, policy, cost)]);
                let status = &decision.statuses()[0];
                let ends_in = status.reset_after();
                if status.remaining() == 3 {
                    let now = bench.clock.now_micros();
                    let [_, end] = crate::contract::model::calendar_period::CalendarPeriod::of(policy.algorithm()).period(now);
                    let expected = [Duration::from_micros(end - now), Duration::ZERO];
                    assert_eq!([status.next_after(), ends_in], expected, "{policies:?}");
                    unused += 1;
                    continue;
                }
                assert_eq!(status.next_after(), ends_in, "{policies:?}");
                if !decision.is_admitted() {
                    assert_eq!(decision.retry_after(), Wait::For(ends_in), "{policies:?}");
                }
                if random.below(3) == 0 {
                    bench.move_clock(ends_in.as_micros() as i64 - 1);
                    assert!(bench.used(&key, policy) > 0, "{policy:?} of {policies:?}");
                    bench.move_clock(1);
                    assert_eq!(bench.used(&key, policy), 0, "{policy:?} of {policies:?}");
                    verified += 1;
                }
            }
        }
        assert!(verified > 100 && unused > 20, "{verified}, {unused}");
    }

    two_anchors_admit_quota_to_twice_quota: |bench| {
        let (quota, mut random) = (4_u32, Random(5));
        for round in 0..12 {
            let key = round.to_string();
            let mut days = [0; 2].map(|_| 1 + random.below(28) as u8);
            if round == 0 {
                // An anchor before the other one, which an earlier rule admitted three times the quota.
                days = [1, 15];
            }
            let policies = days.map(|day| monthly(quota, day));
            bench.clock.set_micros(utc([2026, 1, 1, 0]));
            let mut charges = Vec::new();
            for _ in 0..250 {
                bench.move_clock(random.below(3 * DAY) as i64);
                let policy = &policies[random.below(2) as usize];
                let cost = 1 + random.below(u64::from(quota)) as u32;
                let now = bench.clock.now_micros();
                if bench.admits(&key, policy, cost) {
                    charges.push((now, cost));
                } else {
                    let has_no_room = |policy: &Policy| {
                        let model = crate::contract::model::calendar_period::CalendarPeriod::of(policy.algorithm());
                        let [begin, _] = model.period(now);
                        let used: u32 = charges.iter().filter(|(at, _)| *at >= begin).map(|(_, cost)| *cost).sum();
                        used + cost > quota
                    };
                    assert!(policies.iter().any(has_no_room), "{days:?}: {cost} units fit the periods of both at {now}");
                }
            }
            for policy in &policies {
                let model = crate::contract::model::calendar_period::CalendarPeriod::of(policy.algorithm());
                let mut admitted = 0;
                for (at, _) in &charges {
                    let [begin, end] = model.period(*at);
                    let within = charges.iter().filter(|(at, _)| (begin..end).contains(at));
                    admitted = admitted.max(within.map(|(_, cost)| *cost).sum());
                }
                assert!(admitted <= 2 * quota, "{days:?}: {admitted} units in a period of {policy:?}");
            }
        }
    }

    zones_count_together_and_periods_do_not: |bench| {
        bench.clock.set_micros(utc([2026, 5, 20, 0]));
        assert!(bench.admits("a", &periods(5, Period::Month, "UTC", Anchor::default()), 3));
        assert_eq!(bench.used("a", &periods(7, Period::Month, "Asia/Tokyo", Anchor::default())), 3, "zone and quota");
        for period in [Period::Day, Period::Week, Period::Year] {
            assert_eq!(bench.used("a", &periods(5, period, "UTC", Anchor::default())), 0, "{period:?}");
        }
    }

    calendar_period_refunds_and_overcharges_in_its_period: |bench| {
        bench.clock.set_micros(utc([2026, 5, 20, 0]));
        let ten = &monthly(10, 1);
        let first = bench.reserve("a", ten, 6);
        bench.move_clock(DAY as i64);
        let second = bench.reserve("a", ten, 4);
        bench.settle(&first, &[1]);
        assert_eq!(bench.used("a", ten), 5);
        bench.settle(&second, &[20]);
        assert_eq!(bench.used("a", ten), 10);
        let status = bench.check(&[("a", ten, 0)]).statuses()[0].clone();
        assert_eq!((status.remaining(), status.next_after()), (0, Duration::from_micros(11 * DAY)));
        bench.clock.set_micros(utc([2026, 6, 1, 0]));
        let third = bench.reserve("a", ten, 7);
        // The charges of May have left.
        bench.settle(&first, &[0]);
        assert_eq!(bench.used("a", ten), 7);
        bench.settle(&third, &[0]);
        assert_eq!(bench.used("a", ten), 0);
        let taken = bench.check_as(Purpose::TakeUpTo(25), &[("a", ten, 3)]);
        assert_eq!((taken.is_admitted(), bench.used("a", ten)), (true, 9));
        let peeked = bench.check_as(Purpose::Peek, &[("a", ten, 1)]);
        assert_eq!((peeked.statuses()[0].remaining(), bench.used("a", ten)), (0, 9));
        assert!(bench.check_as(Purpose::Debit, &[("a", ten, 5)]).is_admitted());
        bench.reset(&[("a", ten, 0)]);
        assert_eq!(bench.used("a", ten), 0);
    }

    calendar_period_stands_still_behind_its_last_charge: |bench| {
        let june = utc([2026, 6, 1, 0]);
        bench.clock.set_micros(june + HOUR);
        assert!(bench.admits("a", &monthly(3, 1), 2));
        // In May again. The counted period is that of June.
        bench.clock.set_micros(june - HOUR);
        assert_eq!(bench.check(&[("a", &monthly(3, 1), 2)]).retry_after(), wait_of(30 * DAY + HOUR));
        assert!(bench.admits("a", &monthly(3, 1), 1));
        bench.clock.set_micros(june + 2 * HOUR);
        assert_eq!(bench.used("a", &monthly(3, 1)), 3);
        assert_eq!(bench.assert_exact_wait("a", &monthly(3, 1), 3), 30 * DAY - 2 * HOUR);
        // By more than the period of July: the record is of another clock.
        bench.clock.set_micros(utc([2026, 7, 1, 0]) - 31 * DAY - 1);
        assert_eq!(bench.used("a", &monthly(3, 1)), 0);
        bench.move_clock(1);
        assert_eq!(bench.used("a", &monthly(3, 1)), 3);
    }

    calendar_period_is_one_policy_among_others: |bench| {
        bench.clock.set_micros(utc([2026, 5, 20, 0]));
        let (monthly, two) = (&monthly(10, 1), &policy("two", 2));
        assert!(bench.check(&[("a", monthly, 4), ("a", two, 2)]).is_admitted());
        assert!(!bench.check(&[("a", monthly, 4), ("a", two, 1)]).is_admitted());
        assert_eq!(bench.used("a", monthly), 4, "all or nothing");
        bench.move_clock(WINDOW as i64);
        assert!(!bench.check(&[("a", two, 2), ("a", monthly, 7)]).is_admitted());
        assert_eq!(bench.used("a", two), 0, "all or nothing");
        let shadow = Pair::new((bench.key)("a"), monthly.clone(), 7).shadow();
        let enforced = Pair::new((bench.key)("a"), two.clone(), 1);
        let check = tower_sliding_window::backend::Check::new(vec![enforced, shadow]).unwrap();
        let decision = bench.run_check(&check);
        assert!(decision.is_admitted() && decision.shadow_denied().count() == 1);
        assert_eq!(bench.used("a", monthly), 4);
    }
}
