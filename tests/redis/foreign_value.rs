//! Foreign values: a value that another program wrote to a key of this crate. A check fails with a reason, and neither
//! overwrites nor counts the value.

use std::time::Duration;

use redis::cmd;
use tower_sliding_window::{
    Limiter, Policy, RedisBackend,
    backend::{Backend, Purpose, Reason, Refund},
    policy::{Period, Zone},
};

use super::{
    admin::{Admin, State},
    layout::PLAIN_TOKENS_SIZE,
    rig::{
        HOUR, alice, check, every_algorithm, every_form, limiter, peek, policy, reason, reserve,
        with_manual_clock,
    },
};
use crate::support::server::{Engine, Server};

/// Makes twenty charges: one in the header of the tail, two blocks of eight, and three after the header in the tail.
async fn twenty_charges(limiter: &Limiter) {
    for _ in 0..20 {
        assert!(limiter.check(alice()).await.unwrap().is_admitted(), "the first check fits");
    }
}

#[tokio::test]
async fn values_of_other_types_are_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let key = admin.only_key();

        let values: [&[&str]; 5] = [
            &["SET", &key, "7"],
            &["HSET", &key, "field", "7"],
            &["SADD", &key, "7"],
            &["ZADD", &key, "7", "member"],
            &["XADD", &key, "*", "field", "7"],
        ];
        for words in values {
            admin.query::<()>(&["DEL", &key]);
            admin.query::<redis::Value>(words);
            assert_foreign_and_unchanged(engine, words[0], &limiter, &mut admin).await;
        }
    }
}

#[tokio::test]
async fn list_with_wrong_tail_is_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
        twenty_charges(&limiter).await;
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        let tail: Vec<u8> = admin.query(&["LINDEX", &key, "-1"]);

        let mut tails: Vec<Vec<u8>> = vec![
            b"".into(),
            b"7".into(),
            [&tail[..], b"."].concat(),
            tail[..tail.len() - 1].into(),
            // Only a header; part of a header; only a block; more records than a block holds.
            tail[..42].into(),
            tail[..30].into(),
            // The sizes around that of a short tail.
            tail[..22].into(),
            tail[..23].into(),
            tail[..24].into(),
            vec![0; 23],
            vec![0; 96],
            vec![0; 42],
            [&tail[..], &tail[42..], &tail[42..], &tail[42..]].concat(),
            // A header with a larger record count than the log has.
            tail[..tail.len() - 12].into(),
        ];
        // One record too many, no record, and too many records in front.
        for (offset, value) in [(39, 21), (39, 0), (38, 4), (38, 255)] {
            let mut changed = tail.clone();
            changed[offset] = value;
            tails.push(changed);
        }
        for (i, foreign) in tails.iter().enumerate() {
            cmd("LSET").arg(&key).arg(-1).arg(foreign).exec(&mut admin.0).unwrap();
            assert_foreign_and_unchanged(engine, &format!("tail {i}"), &limiter, &mut admin).await;
        }
        cmd("LSET").arg(&key).arg(-1).arg(&tail).exec(&mut admin.0).unwrap();
        assert_eq!(
            limiter.check(alice()).await.unwrap().statuses()[0].remaining(),
            79,
            "{engine:?}: the restored tail has all 20 charges"
        );
    }
}

#[tokio::test]
async fn list_with_broken_block_is_foreign_when_read() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("minutely", 20, Duration::from_secs(60))]);
        twenty_charges(&limiter).await;
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        clock.advance(Duration::from_secs(1));

        for block in [&b"7"[..], &[0; 95], &[0; 97]] {
            cmd("LSET").arg(&key).arg(1).arg(block).exec(&mut admin.0).unwrap();
            // A cost of 15 needs the expiry of a record in the second block.
            let before = (admin.value_and_expiry(&key), admin.writes());
            assert_eq!(reason(limiter.check((alice(), 15)).await), Reason::ForeignValue, "{engine:?}");
            assert_eq!((admin.value_and_expiry(&key), admin.writes()), before, "{engine:?}");
        }
        // The log lacks a block.
        admin.query::<()>(&["LTRIM", &key, "1", "-1"]);
        admin.query::<()>(&["LTRIM", &key, "1", "-1"]);
        let before = (admin.value_and_expiry(&key), admin.writes());
        assert_eq!(reason(limiter.check((alice(), 15)).await), Reason::ForeignValue, "{engine:?}");
        assert_eq!((admin.value_and_expiry(&key), admin.writes()), before, "{engine:?}");
    }
}

/// The fields of the header have the right size, and contradict each other or the records.
#[tokio::test]
async fn list_with_contradictory_header_is_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let policies = [policy("minutely", 100, Duration::from_secs(60))];
        let limiter = limiter(backend.clone(), policies.clone());
        twenty_charges(&limiter).await;
        clock.advance(Duration::from_secs(30));
        let newest = reserve(&backend, &policies, 1).await;
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        let tail: Vec<u8> = admin.query(&["LINDEX", &key, "-1"]);
        let (charged, minute) = (clock.now_micros(), 60_000_000);
        // Only the newest record is in the window.
        clock.advance(Duration::from_secs(59));

        const LAST: usize = 7;
        const NEWEST: usize = 14;
        const OLDEST: usize = 21;
        const COUNT: usize = 39;
        let cases: [&[(usize, u64)]; 6] = [
            &[(LAST, charged + minute + 1)],
            &[(LAST, charged - minute - 1)],
            &[(NEWEST, charged + minute + 1)],
            &[(OLDEST, charged + 1)],
            // No record is in the window.
            &[(LAST, charged + 10 * minute), (NEWEST, charged + 10 * minute)],
            // A block that the list does not have.
            &[(COUNT, 29)],
        ];
        for (i, changes) in cases.into_iter().enumerate() {
            let mut foreign = tail.clone();
            for (offset, value) in changes {
                let size = if *offset == COUNT { 3 } else { 7 };
                foreign[*offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
            cmd("LSET").arg(&key).arg(-1).arg(&foreign).exec(&mut admin.0).unwrap();
            let at = clock.now_micros();
            let is_empty_window = i == 4;
            if is_empty_window {
                clock.set_micros(charged + 10 * minute);
            }
            assert_foreign_and_unchanged(engine, &format!("case {i}"), &limiter, &mut admin).await;
            clock.set_micros(at);
            if !is_empty_window {
                assert_refund_fails_and_writes_nothing(engine, &backend, &newest.refund(0), &mut admin).await;
            }
        }
        cmd("LSET").arg(&key).arg(-1).arg(&tail).exec(&mut admin.0).unwrap();
        assert_eq!(
            limiter.check(alice()).await.unwrap().statuses()[0].remaining(),
            98,
            "{engine:?}: the restored value has its charge"
        );
    }
}

/// A refund in the middle has written tags. The tree contradicts the log, or a block has a tag that it cannot have.
#[tokio::test]
async fn list_with_broken_tree_is_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let policies = [policy("minutely", 100, Duration::from_secs(60))];
        let limiter = limiter(backend.clone(), policies.clone());
        let mut charges = Vec::new();
        for _ in 0..60 {
            charges.push(reserve(&backend, &policies, 1).await);
            clock.advance(Duration::from_millis(1));
        }
        backend.refund(&charges[30].refund(0)).await.unwrap();
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        let tail: Vec<u8> = admin.query(&["LINDEX", &key, "-1"]);
        let (header, tree) = tail.split_at(tail.len() - 13);
        assert_eq!(
            tree,
            [1, 0, 0, 0, 0, 3, 0, 0, 1, 0, 0, 0, 0],
            "{engine:?}: three of seven blocks may have a tag"
        );

        let trees: [&[u8]; 4] = [
            // The number 0 of the first block, eight blocks that may have a tag, and a tree that is too short or too long.
            &[0, 0, 0, 0, 0, 3, 0, 0, 1, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 0],
            &tree[1..],
            &[tree, b"."].concat(),
        ];
        for (i, tree) in trees.into_iter().enumerate() {
            cmd("LSET").arg(&key).arg(-1).arg([header, tree].concat()).exec(&mut admin.0).unwrap();
            assert_foreign_and_unchanged(engine, &format!("tree {i}"), &limiter, &mut admin).await;
            assert_refund_fails_and_writes_nothing(engine, &backend, &charges[40].refund(0), &mut admin)
                .await;
        }
        cmd("LSET").arg(&key).arg(-1).arg(&tail).exec(&mut admin.0).unwrap();

        let block: Vec<u8> = admin.query(&["LINDEX", &key, "5"]);
        cmd("LSET").arg(&key).arg(5).arg([&block[..], &[0; 5]].concat()).exec(&mut admin.0).unwrap();
        // A cost of 85 needs the expiry of a record in this block.
        let before = (admin.value_and_expiry(&key), admin.writes());
        assert_eq!(
            reason(limiter.check((alice(), 85)).await),
            Reason::ForeignValue,
            "{engine:?}: a tag on block 5"
        );
        assert_eq!((admin.value_and_expiry(&key), admin.writes()), before, "{engine:?}");
    }
}

/// The numbers of a holder are read before another pair of the check is charged.
#[tokio::test]
async fn foreign_numbers_of_holder_leave_other_keys_unchanged() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = RedisBackend::connect(&server.url()).await.unwrap();
        let exports = Policy::in_flight("exports", 5).unwrap();
        let limiter = limiter(backend, [exports, policy("hourly", 100, HOUR)]);
        let held = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let numbers = admin.query::<Vec<String>>(&["KEYS", "*=*"]).pop().unwrap();
        admin.query::<()>(&["DEL", &numbers]);
        admin.query::<()>(&["RPUSH", &numbers, "7"]);
        let keys: Vec<String> = admin.query(&["KEYS", "*"]);
        let mut values = || -> Vec<Vec<u8>> { keys.iter().map(|key| admin.query(&["DUMP", key])).collect() };
        let before = values();
        assert_eq!(before.len(), 3, "{engine:?}: the numbers, the holders and the log: {keys:?}");
        assert_eq!(reason(limiter.check(alice()).await), Reason::ForeignValue, "{engine:?}");
        assert_eq!(values(), before, "{engine:?}");
        drop(held);
    }
}

#[tokio::test]
async fn foreign_value_leaves_other_keys_unchanged() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let policies = [policy("a", 100, HOUR), policy("b", 100, HOUR), policy("c", 100, HOUR)];
        let limiter = limiter(backend, policies);
        let _ = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        for foreign in admin.keys() {
            admin.query::<()>(&["FLUSHALL"]);
            let _ = limiter.check(alice()).await.unwrap();
            admin.query::<()>(&["SET", &foreign, "7"]);
            assert_foreign_and_unchanged(engine, &foreign, &limiter, &mut admin).await;
        }
        // The failed check creates no key.
        for foreign in admin.keys() {
            admin.query::<()>(&["FLUSHALL"]);
            admin.query::<()>(&["SET", &foreign, "7"]);
            assert_foreign_and_unchanged(engine, &foreign, &limiter, &mut admin).await;
            assert_eq!(admin.only_key(), foreign, "{engine:?}: the failed check creates no key");
        }
    }
}

/// Asserts that checks of any cost find a foreign value, and write nothing.
async fn assert_foreign_and_unchanged(engine: Engine, what: &str, limiter: &Limiter, admin: &mut Admin) {
    let before = State::of(admin);
    for cost in [0, 1, 101] {
        let outcome = limiter.check((alice(), cost)).await;
        assert_eq!(reason(outcome), Reason::ForeignValue, "{engine:?}, {what}, cost {cost}");
    }
    assert_eq!(State::of(admin), before, "{engine:?}, {what}");
}

#[tokio::test]
async fn window_values_of_wrong_length_or_type_are_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        for (policy, form) in every_form(100, HOUR).into_iter().skip(2) {
            admin.query::<()>(&["FLUSHALL"]);
            let (backend, _clock) = with_manual_clock(&server).await;
            let policies = [policy];
            let reserved = reserve(&backend, &policies, 2).await;
            if form == Purpose::Charge {
                admin.query::<()>(&["FLUSHALL"]);
                assert!(backend.check(&check(&policies, 2, form)).await.unwrap().is_admitted());
            }
            let limiter = limiter(backend.clone(), policies);
            let key = admin.only_key();
            let value: Vec<u8> = admin.query(&["GET", &key]);
            assert!(
                [24, 27, PLAIN_TOKENS_SIZE, 33].contains(&value.len()),
                "{engine:?}: the layout of the windows, of both forms of a token bucket and of a period"
            );

            for length in [0, 1, 12, 23, 25, 26, 29, 48] {
                cmd("SET").arg(&key).arg(&value.repeat(2)[..length]).exec(&mut admin.0).unwrap();
                assert_foreign_and_unchanged(engine, &format!("{length} bytes"), &limiter, &mut admin).await;
                assert_refund_fails_and_writes_nothing(engine, &backend, &reserved.refund(0), &mut admin)
                    .await;
            }
            let values: [&[&str]; 5] = [
                &["RPUSH", &key, "7"],
                &["HSET", &key, "field", "7"],
                &["SADD", &key, "7"],
                &["ZADD", &key, "7", "member"],
                &["XADD", &key, "*", "field", "7"],
            ];
            for words in values {
                admin.query::<()>(&["DEL", &key]);
                admin.query::<redis::Value>(words);
                assert_foreign_and_unchanged(engine, words[0], &limiter, &mut admin).await;
                assert_refund_fails_and_writes_nothing(engine, &backend, &reserved.refund(0), &mut admin)
                    .await;
            }
            cmd("SET").arg(&key).arg(&value).exec(&mut admin.0).unwrap();
            assert_eq!(
                limiter.check(alice()).await.unwrap().statuses()[0].remaining(),
                97,
                "{engine:?}: the restored value has its charge"
            );
        }
    }
}

/// The last charge of a calendar period is in it.
#[tokio::test]
async fn period_without_its_last_charge_is_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, _clock) = with_manual_clock(&server).await;
        let yearly = Policy::calendar_period("yearly", 100, Period::Year, Zone::utc()).unwrap();
        let limiter = limiter(backend, [yearly]);
        let _ = limiter.check(alice()).await.unwrap();
        let key = admin.only_key();
        let value: Vec<u8> = admin.query(&["GET", &key]);
        let instant = |offset: usize| {
            let mut bytes = [0; 8];
            bytes[..7].copy_from_slice(&value[offset..offset + 7]);
            u64::from_le_bytes(bytes)
        };
        let (begin, end) = (instant(14), instant(21));
        for last in [begin - 5, end] {
            let mut foreign = value.clone();
            foreign[7..14].copy_from_slice(&last.to_le_bytes()[..7]);
            cmd("SET").arg(&key).arg(&foreign).exec(&mut admin.0).unwrap();
            assert_foreign_and_unchanged(engine, &format!("{last}"), &limiter, &mut admin).await;
        }
    }
}

/// Checks and refunds read all values before they write one.
#[tokio::test]
async fn foreign_value_leaves_other_algorithms_unchanged() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let every = every_algorithm(100, HOUR);
        // Each algorithm is the first policy once, and the last one once.
        for from in 0..4 {
            let policies: Vec<_> = every.iter().cycle().skip(from).take(4).cloned().collect();
            let policies: [_; 4] = policies.try_into().unwrap();
            let limiter = limiter(backend.clone(), policies.clone());
            admin.query::<()>(&["FLUSHALL"]);
            let _ = limiter.check(alice()).await.unwrap();
            for foreign in admin.keys() {
                for with_type in ["SET", "RPUSH"] {
                    admin.query::<()>(&["FLUSHALL"]);
                    let mut reserved = Vec::new();
                    for _ in 0..20 {
                        reserved.push(reserve(&backend, &policies, 2).await);
                        clock.advance(Duration::from_micros(1));
                    }
                    admin.query::<()>(&["DEL", &foreign]);
                    admin.query::<()>(&[with_type, &foreign, "7"]);
                    let what = format!("{foreign} of {with_type}");
                    assert_foreign_and_unchanged(engine, &what, &limiter, &mut admin).await;
                    for i in [0, 1, 8, 18, 19] {
                        for used in [0, 1] {
                            assert_refund_fails_and_writes_nothing(
                                engine,
                                &backend,
                                &reserved[i].refund(used),
                                &mut admin,
                            )
                            .await;
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn refund_treats_list_with_wrong_tail_as_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let policies = [policy("hourly", 100, HOUR)];
        let mut reserved = Vec::new();
        for _ in 0..20 {
            reserved.push(reserve(&backend, &policies, 1).await);
        }
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        let tail: Vec<u8> = admin.query(&["LINDEX", &key, "-1"]);
        let mut tails: Vec<Vec<u8>> =
            vec![b"7".into(), [&tail[..], b"."].concat(), tail[..42].into(), vec![0; 96], vec![0; 42]];
        tails.extend([22, 23, 24].map(|size| tail[..size].to_vec()));
        tails.push(vec![0; 23]);
        for (offset, value) in [(39, 21), (39, 0), (38, 4), (38, 255)] {
            let mut changed = tail.clone();
            changed[offset] = value;
            tails.push(changed);
        }
        for foreign in &tails {
            cmd("LSET").arg(&key).arg(-1).arg(foreign).exec(&mut admin.0).unwrap();
            for i in [0, 10, 19] {
                assert_refund_fails_and_writes_nothing(engine, &backend, &reserved[i].refund(0), &mut admin)
                    .await;
            }
        }
        cmd("LSET").arg(&key).arg(-1).arg(&tail).exec(&mut admin.0).unwrap();
        backend.refund(&reserved[10].refund(0)).await.unwrap();
        assert_eq!(
            peek(&backend, &policies, 0).await.statuses()[0].remaining(),
            81,
            "{engine:?}: the restored tail can be refunded"
        );
    }
}

/// A refund reads a block only if it needs it, and before it writes.
#[tokio::test]
async fn refund_treats_list_with_broken_block_as_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let policies = [policy("a", 100, HOUR), policy("b", 100, HOUR)];
        for first in [0, 1] {
            let mut admin = Admin::at(&server);
            admin.query::<()>(&["FLUSHALL"]);
            let mut reserved = Vec::new();
            for _ in 0..60 {
                reserved.push(reserve(&backend, &policies, 1).await);
                clock.advance(Duration::from_micros(1));
            }
            let key = admin.keys()[first].clone();
            for block in [&b"7"[..], &[0; 95], &[0; 97]] {
                // The broken block holds the record, or the refund must change its records or its tag.
                for (broken, of) in [(0, 17), (1, 12), (1, 20), (3, 33), (5, 44)] {
                    let whole: Vec<u8> = admin.query(&["LINDEX", &key, &broken.to_string()]);
                    cmd("LSET").arg(&key).arg(broken).arg(block).exec(&mut admin.0).unwrap();
                    assert_refund_fails_and_writes_nothing(
                        engine,
                        &backend,
                        &reserved[of].refund(0),
                        &mut admin,
                    )
                    .await;
                    cmd("LSET").arg(&key).arg(broken).arg(&whole).exec(&mut admin.0).unwrap();
                }
            }
        }
    }
}

/// Asserts that a refund finds a foreign value, and writes nothing.
async fn assert_refund_fails_and_writes_nothing(
    engine: Engine,
    backend: &RedisBackend,
    refund: &Refund,
    admin: &mut Admin,
) {
    let before = State::of(admin);
    let error = backend.refund(refund).await.expect_err("a foreign value");
    assert_eq!(error.reason(), Reason::ForeignValue, "{engine:?}");
    assert_eq!(State::of(admin), before, "{engine:?}");
}
