//! What somebody else has written under a key of ours is an outage with a reason. It is neither overwritten nor counted.

use std::time::Duration;

use redis::cmd;
use tower_sliding_window::{Limiter, Reason};

use super::{
    look::Look,
    rig::{HOUR, alice, clocked, limiter, policy, reason},
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

/// Checks of any cost find a foreign value, and write nothing anywhere.
async fn assert_untouched(engine: Engine, what: &str, limiter: &Limiter, look: &mut Look) {
    let state = |look: &mut Look| {
        let keys = look.keys();
        let values: Vec<_> = keys.iter().map(|key| look.whole_value(key)).collect();
        (keys, values, look.writes())
    };
    let before = state(look);
    for cost in [0, 1, 101] {
        let outcome = limiter.check(alice(), cost).await;
        assert_eq!(reason(outcome), Reason::ForeignValue, "{engine:?}, {what}, cost {cost}");
    }
    assert_eq!(state(look), before, "{engine:?}, {what}");
}
