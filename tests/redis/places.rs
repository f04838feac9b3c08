//! A record stands in the header, in front of the blocks, in one of them or behind them. Wherever the oldest one and those
//! that change stand, what is told is the same.

use std::time::Duration;

use tower_sliding_window::testing::ManualClock;

use super::{expected::Expected, look::Look, rig};
use crate::support::server::{Engine, Server};

const WINDOW: Duration = Duration::from_secs(100);
const MICROS: u64 = 100_000_000;
/// Between one instant and the next.
const STEP: u64 = 1_000_003;

/// How many charges: around the edges of three blocks behind the header.
const COUNTS: [usize; 11] = [1, 2, 8, 9, 10, 15, 17, 18, 19, 25, 28];

/// So many charges, of which some share an instant.
fn charges(start: u64, count: usize, at_once: usize) -> Vec<(u64, u64)> {
    (0..count).map(|i| (start + (i / at_once) as u64 * STEP, 1 + i as u64 % 3)).collect()
}

/// What was used before. Where it is not zero, the totals begin again among the charges.
fn before(gone: usize) -> u64 {
    if gone.is_multiple_of(2) { 0 } else { (1 << 40) - 2 * gone as u64 - 7 }
}

/// The first charges leave, at the very microsecond of the last of them, and then there is one more. It is false if that
/// would leave others, too.
async fn lose(expected: &mut Expected<'_>, clock: &ManualClock, gone: usize) -> bool {
    if gone > 0 {
        let last = expected.charges[gone - 1].0;
        if expected.charges.get(gone).is_some_and(|next| next.0 == last) {
            return false;
        }
        clock.set_micros(last + MICROS);
        expected.charge(2).await;
    }
    true
}

#[tokio::test]
async fn charges_leave_at_their_microsecond_wherever_they_stand() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = rig::clocked(&server).await;
        let start = clock.now_micros();
        for at_once in [1, 3] {
            for count in COUNTS {
                for gone in 0..count {
                    let mut expected = Expected::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
                    expected.write(&mut look, before(gone), charges(start, count, at_once)).await;
                    if !lose(&mut expected, &clock, gone).await {
                        continue;
                    }
                    let what = format!("{engine:?}: {count}, {at_once} at once, {gone} gone");
                    let mut instants: Vec<u64> = expected.charges.iter().map(|charge| charge.0).collect();
                    instants.dedup();
                    for at in instants {
                        for now in [at + MICROS - 1, at + MICROS] {
                            clock.set_micros(now);
                            expected.assert_told(&what, 2).await;
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn charges_make_blocks_that_are_found_whatever_has_left_or_was_given_back_before_them() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = rig::clocked(&server).await;
        let start = clock.now_micros();
        for count in COUNTS {
            for (gone, given_back) in (0..count).flat_map(|gone| [0, 1, 3, 9].map(|given| (gone, given))) {
                let mut expected = Expected::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
                expected.write(&mut look, before(gone), charges(start, count, 1)).await;
                assert!(lose(&mut expected, &clock, gone).await);
                let all = expected.charges.len();
                for place in (0..all).rev().take(given_back) {
                    expected.refund(place, expected.charges[place].1).await;
                }
                let what = format!("{engine:?}: {count}, {gone} gone, {given_back} given back");
                // Whole blocks, one that has left in part, and the tail.
                let key = look.only_key();
                let entries: usize = look.ask(&["LLEN", &key]);
                let holders = expected.charges.iter().filter(|charge| charge.1 > 0).count();
                assert!(entries <= holders / 8 + 2, "{what}: {entries} entries");
                for units in 1..=20 {
                    clock.advance(Duration::from_micros(10));
                    expected.charge(units).await;
                }
                expected.assert_told(&what, 12).await;
            }
        }
    }
}

#[tokio::test]
async fn charges_are_given_back_wherever_they_stand() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = rig::clocked(&server).await;
        let start = clock.now_micros();
        for (at_once, count) in [(1, 1), (1, 2), (1, 9), (1, 10), (3, 10), (1, 18), (1, 27), (3, 28)] {
            for gone in [0, 1, 2, 3, 7, 8, 9, 10, 12, 17, 18] {
                for place in 0..count - gone.min(count - 1) {
                    let mut expected = Expected::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
                    expected.write(&mut look, before(gone), charges(start, count, at_once)).await;
                    if gone >= count || !lose(&mut expected, &clock, gone).await {
                        continue;
                    }
                    let what = format!("{engine:?}: {count}, {at_once} at once, {gone} gone, place {place}");
                    // One of its units; then all of another one, of it, of the one before it, and of the one behind it.
                    let units = expected.charges[place].1;
                    if units > 1 {
                        expected.refund(place, 1).await;
                        expected.assert_told(&what, 6).await;
                    }
                    for place in [place + 3, place, place.wrapping_sub(1), place + 1] {
                        if expected.charges.get(place).is_some_and(|charge| charge.1 > 0) {
                            let units = expected.charges[place].1;
                            expected.refund(place, units).await;
                            expected.assert_told(&what, 6).await;
                        }
                    }
                    // What comes later finds its place, and what is left leaves at its microsecond.
                    clock.advance(Duration::from_micros(STEP));
                    expected.charge(3).await;
                    expected.assert_told(&what, 6).await;
                    let last = expected.charges.len() - 1;
                    let edges = [place.saturating_sub(2), (place + 2).min(last)];
                    for leaves in edges.map(|place| expected.charges[place].0 + MICROS) {
                        for now in [leaves - 1, leaves] {
                            clock.set_micros(now);
                            expected.assert_told(&what, 6).await;
                        }
                        expected.charge(1).await;
                        expected.assert_told(&what, 6).await;
                    }
                    // Those of one instant are still told apart, whichever of them has lost its units.
                    for place in 0..expected.charges.len().min(4) {
                        if expected.charges[place].1 > 0 {
                            expected.refund(place, 1).await;
                            expected.assert_told(&what, 6).await;
                        }
                    }
                }
            }
        }
    }
}

/// Of what was given back to one instant, only the last instant stays.
#[tokio::test]
async fn a_log_that_was_emptied_is_one_entry() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = rig::clocked(&server).await;
        let start = clock.now_micros();
        for backward in [false, true] {
            let mut expected = Expected::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
            expected.write(&mut look, before(13), charges(start, 28, 28)).await;
            for i in 0..28 {
                let place = if backward { 27 - i } else { i };
                expected.refund(place, expected.charges[place].1).await;
                expected.assert_told(&format!("{engine:?}: {place}"), 6).await;
            }
            let key = look.only_key();
            assert_eq!(look.ask::<usize>(&["LLEN", &key]), 1, "{engine:?}");
            for units in 1..=20 {
                clock.advance(Duration::from_micros(1));
                expected.charge(units).await;
            }
            expected.assert_told("what comes later", 20).await;
        }
    }
}
