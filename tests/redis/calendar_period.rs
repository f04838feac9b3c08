//! Calendar periods on a real server: the periods of another instant, the stored value, and its time to live.

use std::{collections::BTreeSet, slice, time::Duration};

use tokio::time::{advance, pause, resume};
use tower_sliding_window::{
    Limiter, Policy, RedisBackend,
    backend::{Backend, Check, Pair, Purpose, Reason},
    policy::{Anchor, Period, Zone},
    redis::Merging,
};

use super::{
    admin::{Admin, State},
    rig::{alice, backend, check, limiter, merging_backend, reason, reserve, with_manual_clock},
};
use crate::support::{
    events::Events,
    server::{Engine, Server},
};

const DAYS: Duration = Duration::from_secs(40 * 86_400);

fn daily(quota: u32) -> Policy {
    Policy::calendar_period("daily", quota, Period::Day, Zone::utc()).unwrap()
}

/// Moves the clock of this process, and with it its estimate of the server's clock, by 40 days.
async fn skip_days() {
    pause();
    advance(DAYS).await;
    resume();
}

/// Returns the number of script calls since the last one.
fn calls(admin: &mut Admin) -> u64 {
    let calls = admin.calls("evalsha").all;
    admin.query::<()>(&["CONFIG", "RESETSTAT"]);
    calls
}

#[tokio::test]
async fn check_outside_of_its_periods_is_sent_once_more() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, mut admin) = (backend(&server).await, Admin::at(&server));
        let policies = [daily(100)];
        let used = async |backend: &RedisBackend, purpose| {
            let decision = backend.check(&check(&policies, 3, purpose)).await.unwrap();
            100 - decision.statuses()[0].remaining()
        };
        assert_eq!(used(&backend, Purpose::Charge).await, 3);
        calls(&mut admin);
        let mut sum = 3;
        for purpose in
            [Purpose::Charge, Purpose::Reserve, Purpose::Overage, Purpose::Debit, Purpose::TakeUpTo(2)]
        {
            skip_days().await;
            sum += if purpose == Purpose::TakeUpTo(2) { 6 } else { 3 };
            assert_eq!(used(&backend, purpose).await, sum, "{engine:?}, {purpose:?}: charged once");
            assert_eq!(
                calls(&mut admin),
                2,
                "{engine:?}, {purpose:?}: the second call has the periods of the server's clock"
            );
        }
        skip_days().await;
        assert_eq!(used(&backend, Purpose::Peek).await, sum + 3, "{engine:?}");
        assert_eq!(calls(&mut admin), 2, "{engine:?}");
        // A denial of another pair, and a shadow pair, which is left out once.
        skip_days().await;
        let other = Policy::new("other", 1, DAYS).unwrap();
        let pairs = [Pair::new(alice(), other, 1), Pair::new(alice(), policies[0].clone(), 1).shadow()];
        let both = Check::new(pairs).unwrap();
        let decision = backend.check(&both).await.unwrap();
        assert!(decision.is_admitted(), "{engine:?}: {decision:?}");
        assert_eq!(calls(&mut admin), 1, "{engine:?}: a shadow pair causes no second call");
    }
}

#[tokio::test]
async fn merged_checks_outside_of_their_periods_are_charged_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = merging_backend(&server, Merging::On);
        let policies = [daily(100)];
        let mut sum = 0;
        for _ in 0..3 {
            let checks = (0..20).map(|i| {
                let (backend, one) = (backend.clone(), check(&policies, 1 + i % 2, Purpose::Reserve));
                async move { backend.check(&one).await.unwrap().is_admitted() }
            });
            let admitted = super::rig::concurrently(checks).await;
            assert!(admitted.iter().all(|is_admitted| *is_admitted), "{engine:?}");
            sum += 30;
            let decision = backend.check(&check(&policies, 0, Purpose::Charge)).await.unwrap();
            assert_eq!(100 - decision.statuses()[0].remaining(), sum, "{engine:?}");
            skip_days().await;
        }
    }
}

#[tokio::test]
async fn token_of_calendar_period_settles_outside_of_its_periods() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [daily(100)]);
        let remaining =
            async |limiter: &Limiter| limiter.check((alice(), 0)).await.unwrap().statuses()[0].remaining();
        for (used, left) in [(2, 98), (15, 83)] {
            let token = limiter.reserve((alice(), 5)).await.unwrap().into_token().unwrap();
            skip_days().await;
            limiter.settle_token(&token, used).await.unwrap();
            assert_eq!(remaining(&limiter).await, left, "{engine:?}");
        }
    }
}

/// The documented layout: generation, last instant, begin and end of the period, and the usage.
#[tokio::test]
async fn value_of_calendar_period_has_documented_layout() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        let mut seen = BTreeSet::new();
        // The clock begins on Sunday, 9 September 2001, 01:46:40 UTC.
        let day = 86_400_000_000;
        let today = clock.now_micros() / day;
        for (period, letter, begin, end) in [
            (Period::Day, 'd', today, today + 1),
            (Period::Week, 'w', today - 6, today + 1),
            (Period::Month, 'm', today - 8, today + 22),
            (Period::Year, 'y', today - 251, today + 114),
        ] {
            admin.query::<()>(&["FLUSHALL"]);
            let policy = Policy::calendar_period("p", 100, period, Zone::utc()).unwrap();
            let reserved = reserve(&backend, slice::from_ref(&policy), 7).await;
            let key = admin.only_key();
            assert!(key.ends_with(&format!("}}z{letter}p")), "{engine:?}: {key}");
            let value: Vec<u8> = admin.query(&["GET", &key]);
            let receipt = reserved.decision.receipts()[0];
            let number =
                |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let fields = [0..7, 7..14, 14..21, 21..28, 28..33].map(|range| number(&value[range]));
            let expected = [receipt.generation, clock.now_micros(), begin * day, end * day, 7];
            assert_eq!((value.len(), fields), (33, expected), "{engine:?}, {period:?}");
            // With an injected clock, keys live an hour longer.
            let left = Duration::from_micros(end * day - clock.now_micros()) + Duration::from_secs(3_600);
            let time_to_live = admin.time_to_live(&key).unwrap();
            assert!(
                time_to_live <= left && time_to_live > left - Duration::from_secs(20),
                "{engine:?}, {period:?}"
            );
            // The next charge keeps it.
            reserve(&backend, slice::from_ref(&policy), 1).await;
            assert!(admin.time_to_live(&key).unwrap() <= time_to_live, "{engine:?}, {period:?}");
            seen.insert(key);
        }
        assert_eq!(seen.len(), 4);
    }
}

#[tokio::test]
async fn foreign_value_of_calendar_period_is_an_error() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        let policies = [daily(100)];
        let reserved = reserve(&backend, &policies, 7).await;
        let key = admin.only_key();
        let value: Vec<u8> = admin.query(&["GET", &key]);
        let mut swapped = value.clone();
        swapped[14..28].rotate_left(7);
        for foreign in [&value[..32], &[&value[..], b"0"].concat(), &[], &swapped] {
            redis::cmd("SET").arg(&key).arg(foreign).exec(&mut admin.0).unwrap();
            let before = State::of(&mut admin);
            for cost in [0, 1, 101] {
                let outcome = backend.check(&check(&policies, cost, Purpose::Charge)).await;
                assert_eq!(reason(outcome), Reason::ForeignValue, "{engine:?}, {} bytes", foreign.len());
            }
            if foreign.len() != value.len() {
                let error = backend.refund(&reserved.refund(0)).await.unwrap_err();
                assert_eq!(error.reason(), Reason::ForeignValue, "{engine:?}");
            }
            assert_eq!(State::of(&mut admin), before, "{engine:?}");
        }
    }
}

#[tokio::test]
async fn denial_and_peek_of_calendar_period_write_nothing() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        let policies = [daily(10)];
        for _ in 0..2 {
            let before = State::of(&mut admin);
            for (cost, purpose) in
                [(11, Purpose::Charge), (11, Purpose::Reserve), (3, Purpose::Peek), (0, Purpose::Charge)]
            {
                let _ = backend.check(&check(&policies, cost, purpose)).await.unwrap();
            }
            assert_eq!(State::of(&mut admin), before, "{engine:?}");
            reserve(&backend, &policies, 4).await;
        }
    }
}

#[tokio::test]
async fn earlier_begin_logs_one_event() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = with_manual_clock(&server).await;
    let memory = tower_sliding_window::MemoryBackend::new().with_clock(&clock);
    let anchored = |day| {
        let monthly = Policy::calendar_period("monthly", 10, Period::Month, Zone::utc()).unwrap();
        monthly.anchored(Anchor::day(day)).unwrap()
    };
    // The clock begins on 9 September.
    let (later, earlier) = ([anchored(5)], [anchored(20)]);
    let (events, _guard) = Events::collect();
    for _ in 0..3 {
        for policies in [&later, &earlier] {
            let _ = backend.check(&check(policies, 1, Purpose::Charge)).await.unwrap();
        }
    }
    let logged = || events.text().matches("the calendar period begins earlier").count();
    assert_eq!(logged(), 1);
    // A clone shares the warning. Another policy does not.
    let (later, earlier) = ([anchored(5)], [anchored(20)]);
    for _ in 0..3 {
        for policies in [&later, &earlier] {
            let _ = memory.check(&check(policies, 1, Purpose::Charge)).await.unwrap();
        }
    }
    assert_eq!(logged(), 2);
}
