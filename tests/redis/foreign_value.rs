//! What somebody else has written under a key of ours is an outage with a reason. It is neither overwritten nor counted.

use std::time::Duration;

use redis::cmd;
use tower_sliding_window::{
    Limiter, RedisBackend,
    backend::{Backend, Reason, Refund},
};

use super::{
    look::{Look, State},
    rig::{HOUR, alice, clocked, every_algorithm, limiter, peek, policy, reason, reserve},
};
use crate::support::server::{Engine, Server};

/// Twenty charges: one in the header of the tail, two blocks of eight, and three behind them in the tail.
async fn twenty_charges(limiter: &Limiter) {
    for _ in 0..20 {
        assert!(limiter.check(alice(), 1).await.unwrap().is_admitted());
    }
}

#[tokio::test]
async fn values_of_other_types_are_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        let key = look.only_key();

        let values: [&[&str]; 5] = [
            &["SET", &key, "7"],
            &["HSET", &key, "field", "7"],
            &["SADD", &key, "7"],
            &["ZADD", &key, "7", "member"],
            &["XADD", &key, "*", "field", "7"],
        ];
        for words in values {
            look.ask::<()>(&["DEL", &key]);
            look.ask::<redis::Value>(words);
            assert_untouched(engine, words[0], &limiter, &mut look).await;
        }
    }
}

#[tokio::test]
async fn a_list_with_a_wrong_tail_is_foreign() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
        twenty_charges(&limiter).await;
        let mut look = Look::at(&server);
        let key = look.only_key();
        let tail: Vec<u8> = look.ask(&["LINDEX", &key, "-1"]);

        let mut tails: Vec<Vec<u8>> = vec![
            b"".into(),
            b"7".into(),
            [&tail[..], b"."].concat(),
            tail[..tail.len() - 1].into(),
            // Only the header; half of one; nothing but a block; more records than a block holds.
            tail[..42].into(),
            tail[..30].into(),
            vec![0; 96],
            vec![0; 42],
            [&tail[..], &tail[42..], &tail[42..], &tail[42..]].concat(),
            // A header that speaks of more records than there are.
            tail[..tail.len() - 12].into(),
        ];
        // One more record than there is, none at all, and more in front than there are.
        for (place, value) in [(39, 21), (39, 0), (38, 4), (38, 255)] {
            let mut changed = tail.clone();
            changed[place] = value;
            tails.push(changed);
        }
        for (i, foreign) in tails.iter().enumerate() {
            cmd("LSET").arg(&key).arg(-1).arg(foreign).exec(&mut look.0).unwrap();
            assert_untouched(engine, &format!("tail {i}"), &limiter, &mut look).await;
        }
        cmd("LSET").arg(&key).arg(-1).arg(&tail).exec(&mut look.0).unwrap();
        assert_eq!(limiter.check(alice(), 1).await.unwrap().statuses()[0].remaining(), 79);
    }
}

#[tokio::test]
async fn a_list_with_a_broken_inner_block_is_foreign_when_it_is_needed() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("minutely", 20, Duration::from_secs(60))]);
        twenty_charges(&limiter).await;
        let mut look = Look::at(&server);
        let key = look.only_key();
        clock.advance(Duration::from_secs(1));

        for block in [&b"7"[..], &[0; 95], &[0; 97]] {
            cmd("LSET").arg(&key).arg(1).arg(block).exec(&mut look.0).unwrap();
            // What has to leave for a cost of 15 stands in the second block.
            let before = (look.whole_value(&key), look.writes());
            assert_eq!(reason(limiter.check(alice(), 15).await), Reason::ForeignValue, "{engine:?}");
            assert_eq!((look.whole_value(&key), look.writes()), before, "{engine:?}");
        }
        // A block too few.
        look.ask::<()>(&["LTRIM", &key, "1", "-1"]);
        look.ask::<()>(&["LTRIM", &key, "1", "-1"]);
        let before = (look.whole_value(&key), look.writes());
        assert_eq!(reason(limiter.check(alice(), 15).await), Reason::ForeignValue, "{engine:?}");
        assert_eq!((look.whole_value(&key), look.writes()), before, "{engine:?}");
    }
}

#[tokio::test]
async fn one_foreign_key_of_several_leaves_the_others_untouched() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = clocked(&server).await;
        let policies = [policy("a", 100, HOUR), policy("b", 100, HOUR), policy("c", 100, HOUR)];
        let limiter = limiter(backend, policies);
        limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        for foreign in look.keys() {
            look.ask::<()>(&["FLUSHALL"]);
            limiter.check(alice(), 1).await.unwrap();
            look.ask::<()>(&["SET", &foreign, "7"]);
            assert_untouched(engine, &foreign, &limiter, &mut look).await;
        }
        // Nor is any of them made.
        for foreign in look.keys() {
            look.ask::<()>(&["FLUSHALL"]);
            look.ask::<()>(&["SET", &foreign, "7"]);
            assert_untouched(engine, &foreign, &limiter, &mut look).await;
            assert_eq!(look.only_key(), foreign);
        }
    }
}

/// Checks of any cost and purpose find a foreign value, and write nothing anywhere.
async fn assert_untouched(engine: Engine, what: &str, limiter: &Limiter, look: &mut Look) {
    let before = State::of(look);
    for cost in [0, 1, 101] {
        let outcome = limiter.check(alice(), cost).await;
        assert_eq!(reason(outcome), Reason::ForeignValue, "{engine:?}, {what}, cost {cost}");
    }
    assert_eq!(State::of(look), before, "{engine:?}, {what}");
}

#[tokio::test]
async fn values_of_a_wrong_length_or_type_are_foreign_to_windows() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        for policy in every_algorithm(100, HOUR).into_iter().skip(2) {
            look.ask::<()>(&["FLUSHALL"]);
            let (backend, _clock) = clocked(&server).await;
            let reserved = reserve(&backend, std::slice::from_ref(&policy), 2).await;
            let limiter = limiter(backend.clone(), [policy]);
            let key = look.only_key();
            let value: Vec<u8> = look.ask(&["GET", &key]);
            assert_eq!(value.len(), 24);

            for length in [0, 1, 12, 23, 25, 48] {
                cmd("SET").arg(&key).arg(&value.repeat(2)[..length]).exec(&mut look.0).unwrap();
                assert_untouched(engine, &format!("{length} bytes"), &limiter, &mut look).await;
                assert_no_refund(engine, &backend, &reserved.refund(0), &mut look).await;
            }
            let values: [&[&str]; 5] = [
                &["RPUSH", &key, "7"],
                &["HSET", &key, "field", "7"],
                &["SADD", &key, "7"],
                &["ZADD", &key, "7", "member"],
                &["XADD", &key, "*", "field", "7"],
            ];
            for words in values {
                look.ask::<()>(&["DEL", &key]);
                look.ask::<redis::Value>(words);
                assert_untouched(engine, words[0], &limiter, &mut look).await;
                assert_no_refund(engine, &backend, &reserved.refund(0), &mut look).await;
            }
            cmd("SET").arg(&key).arg(&value).exec(&mut look.0).unwrap();
            assert_eq!(limiter.check(alice(), 1).await.unwrap().statuses()[0].remaining(), 97);
        }
    }
}

/// All are read before one is written: by checks, and by refunds.
#[tokio::test]
async fn a_foreign_value_of_one_algorithm_leaves_those_of_the_others_untouched() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = clocked(&server).await;
        let every = every_algorithm(100, HOUR);
        // Each of them is the last one once, and the first.
        for from in 0..4 {
            let policies: Vec<_> = every.iter().cycle().skip(from).take(4).cloned().collect();
            let policies: [_; 4] = policies.try_into().unwrap();
            let limiter = limiter(backend.clone(), policies.clone());
            look.ask::<()>(&["FLUSHALL"]);
            limiter.check(alice(), 1).await.unwrap();
            for foreign in look.keys() {
                for with_type in ["SET", "RPUSH"] {
                    look.ask::<()>(&["FLUSHALL"]);
                    let mut reserved = Vec::new();
                    for _ in 0..20 {
                        reserved.push(reserve(&backend, &policies, 2).await);
                        clock.advance(Duration::from_micros(1));
                    }
                    look.ask::<()>(&["DEL", &foreign]);
                    look.ask::<()>(&[with_type, &foreign, "7"]);
                    let what = format!("{foreign} of {with_type}");
                    assert_untouched(engine, &what, &limiter, &mut look).await;
                    for i in [0, 1, 8, 18, 19] {
                        for used in [0, 1] {
                            assert_no_refund(engine, &backend, &reserved[i].refund(used), &mut look).await;
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_list_with_a_wrong_tail_is_foreign_to_a_refund() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = clocked(&server).await;
        let policies = [policy("hourly", 100, HOUR)];
        let mut reserved = Vec::new();
        for _ in 0..20 {
            reserved.push(reserve(&backend, &policies, 1).await);
        }
        let mut look = Look::at(&server);
        let key = look.only_key();
        let tail: Vec<u8> = look.ask(&["LINDEX", &key, "-1"]);
        let mut tails: Vec<Vec<u8>> =
            vec![b"7".into(), [&tail[..], b"."].concat(), tail[..42].into(), vec![0; 96], vec![0; 42]];
        for (place, value) in [(39, 21), (39, 0), (38, 4), (38, 255)] {
            let mut changed = tail.clone();
            changed[place] = value;
            tails.push(changed);
        }
        for foreign in &tails {
            cmd("LSET").arg(&key).arg(-1).arg(foreign).exec(&mut look.0).unwrap();
            for i in [0, 10, 19] {
                assert_no_refund(engine, &backend, &reserved[i].refund(0), &mut look).await;
            }
        }
        cmd("LSET").arg(&key).arg(-1).arg(&tail).exec(&mut look.0).unwrap();
        backend.refund(&reserved[10].refund(0)).await.unwrap();
        assert_eq!(peek(&backend, &policies, 0).await.statuses()[0].remaining(), 81);
    }
}

/// A block is read when it is needed; by then nothing is written either.
#[tokio::test]
async fn a_list_with_a_broken_inner_block_is_foreign_to_a_refund_that_needs_it() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let policies = [policy("a", 100, HOUR), policy("b", 100, HOUR)];
        for first in [0, 1] {
            let mut look = Look::at(&server);
            look.ask::<()>(&["FLUSHALL"]);
            let mut reserved = Vec::new();
            for _ in 0..60 {
                reserved.push(reserve(&backend, &policies, 1).await);
                clock.advance(Duration::from_micros(1));
            }
            let key = look.keys()[first].clone();
            for block in [&b"7"[..], &[0; 95], &[0; 97]] {
                // Of seven blocks, one that holds the record, or has to change with it.
                for (broken, of) in [(0, 17), (1, 12), (1, 20), (5, 33), (5, 44)] {
                    let whole: Vec<u8> = look.ask(&["LINDEX", &key, &broken.to_string()]);
                    cmd("LSET").arg(&key).arg(broken).arg(block).exec(&mut look.0).unwrap();
                    assert_no_refund(engine, &backend, &reserved[of].refund(0), &mut look).await;
                    cmd("LSET").arg(&key).arg(broken).arg(&whole).exec(&mut look.0).unwrap();
                }
            }
        }
    }
}

/// A refund finds a foreign value, and writes nothing anywhere.
async fn assert_no_refund(engine: Engine, backend: &RedisBackend, refund: &Refund, look: &mut Look) {
    let before = State::of(look);
    let error = backend.refund(refund).await.expect_err("a foreign value");
    assert_eq!(error.reason(), Reason::ForeignValue, "{engine:?}");
    assert_eq!(State::of(look), before, "{engine:?}");
}
