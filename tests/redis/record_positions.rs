//! The position of a record: in the header, before the blocks, in a block, or after the blocks. Decisions do not depend on
//! the positions of the oldest record and of the refunded records.

use std::time::Duration;

use tower_sliding_window::testing::ManualClock;

use super::{admin::Admin, reference_log::ReferenceLog, rig};
use crate::support::server::{Engine, Server};

const WINDOW: Duration = Duration::from_secs(100);
const MICROS: u64 = 100_000_000;
/// The time between one instant and the next, in microseconds.
const STEP: u64 = 1_000_003;

/// Numbers of charges: around the boundaries of three blocks after the header.
const COUNTS: [usize; 11] = [1, 2, 8, 9, 10, 15, 17, 18, 19, 25, 28];

/// Returns this many charges, of which `per_instant` share each instant.
fn charges(start: u64, count: usize, per_instant: usize) -> Vec<(u64, u64)> {
    (0..count).map(|i| (start + (i / per_instant) as u64 * STEP, 1 + i as u64 % 3)).collect()
}

/// Returns the total before the first charge. If it is not 0, the totals wrap among the charges.
fn before(expired: usize) -> u64 {
    if expired.is_multiple_of(2) { 0 } else { (1 << 40) - 2 * expired as u64 - 7 }
}

/// Moves the clock to the expiry of the first `expired` charges, and makes another charge. Returns false if further charges
/// expire at the same instant.
async fn expire(reference: &mut ReferenceLog<'_>, clock: &ManualClock, expired: usize) -> bool {
    if expired > 0 {
        let last = reference.charges[expired - 1].0;
        if reference.charges.get(expired).is_some_and(|next| next.0 == last) {
            return false;
        }
        clock.set_micros(last + MICROS);
        reference.charge(2).await;
    }
    true
}

#[tokio::test]
async fn charges_expire_exactly_at_every_position() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = rig::with_manual_clock(&server).await;
        let start = clock.now_micros();
        for per_instant in [1, 3] {
            for count in COUNTS {
                for expired in 0..count {
                    let mut reference = ReferenceLog::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
                    reference.write(&mut admin, before(expired), charges(start, count, per_instant)).await;
                    if !expire(&mut reference, &clock, expired).await {
                        continue;
                    }
                    let what = format!("{engine:?}: {count}, {per_instant} per instant, {expired} expired");
                    let mut instants: Vec<u64> = reference.charges.iter().map(|charge| charge.0).collect();
                    instants.dedup();
                    for at in instants {
                        for now in [at + MICROS - 1, at + MICROS] {
                            clock.set_micros(now);
                            reference.assert_matches_server(&what, 2).await;
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn charges_fill_blocks_after_expiry_and_refunds() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = rig::with_manual_clock(&server).await;
        let start = clock.now_micros();
        for count in COUNTS {
            for (expired, refunded) in
                (0..count).flat_map(|expired| [0, 1, 3, 9].map(|refunded| (expired, refunded)))
            {
                let mut reference = ReferenceLog::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
                reference.write(&mut admin, before(expired), charges(start, count, 1)).await;
                assert!(expire(&mut reference, &clock, expired).await, "a record has left the window");
                let all = reference.charges.len();
                for position in (0..all).rev().take(refunded) {
                    reference.refund(position, reference.charges[position].1).await;
                }
                let what = format!("{engine:?}: {count}, {expired} expired, {refunded} refunded");
                // Full blocks, one block in part expired, and the tail.
                let key = admin.only_key();
                let entries: usize = admin.query(&["LLEN", &key]);
                let holders = reference.charges.iter().filter(|charge| charge.1 > 0).count();
                assert!(entries <= holders / 8 + 2, "{what}: {entries} entries");
                for units in 1..=20 {
                    clock.advance(Duration::from_micros(10));
                    reference.charge(units).await;
                }
                reference.assert_matches_server(&what, 12).await;
            }
        }
    }
}

#[tokio::test]
async fn refunds_are_exact_at_every_position() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = rig::with_manual_clock(&server).await;
        let start = clock.now_micros();
        for (per_instant, count) in [(1, 1), (1, 2), (1, 9), (1, 10), (3, 10), (1, 18), (1, 27), (3, 28)] {
            for expired in [0, 1, 2, 3, 7, 8, 9, 10, 12, 17, 18] {
                for position in 0..count - expired.min(count - 1) {
                    let mut reference = ReferenceLog::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
                    reference.write(&mut admin, before(expired), charges(start, count, per_instant)).await;
                    if expired >= count || !expire(&mut reference, &clock, expired).await {
                        continue;
                    }
                    let what = format!(
                        "{engine:?}: {count}, {per_instant} per instant, {expired} expired, position {position}"
                    );
                    // One unit of this charge; then all units of a later, of this, of the previous and of the next charge.
                    let units = reference.charges[position].1;
                    if units > 1 {
                        reference.refund(position, 1).await;
                        reference.assert_matches_server(&what, 6).await;
                    }
                    for position in [position + 3, position, position.wrapping_sub(1), position + 1] {
                        if reference.charges.get(position).is_some_and(|charge| charge.1 > 0) {
                            let units = reference.charges[position].1;
                            reference.refund(position, units).await;
                            reference.assert_matches_server(&what, 6).await;
                        }
                    }
                    // A later charge is appended, and the other charges expire exactly.
                    clock.advance(Duration::from_micros(STEP));
                    reference.charge(3).await;
                    reference.assert_matches_server(&what, 6).await;
                    let last = reference.charges.len() - 1;
                    let boundaries = [position.saturating_sub(2), (position + 2).min(last)];
                    for expiry in boundaries.map(|position| reference.charges[position].0 + MICROS) {
                        for now in [expiry - 1, expiry] {
                            clock.set_micros(now);
                            reference.assert_matches_server(&what, 6).await;
                        }
                        reference.charge(1).await;
                        reference.assert_matches_server(&what, 6).await;
                    }
                    // Refunds still distinguish the charges of one instant.
                    for position in 0..reference.charges.len().min(4) {
                        if reference.charges[position].1 > 0 {
                            reference.refund(position, 1).await;
                            reference.assert_matches_server(&what, 6).await;
                        }
                    }
                }
            }
        }
    }
}

/// Refunded records are dropped; only the instant of the last one remains.
#[tokio::test]
async fn emptied_log_is_one_entry() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = rig::with_manual_clock(&server).await;
        let start = clock.now_micros();
        for backward in [false, true] {
            let mut reference = ReferenceLog::of(&backend, &clock, rig::policy("p", 1_000, WINDOW));
            reference.write(&mut admin, before(13), charges(start, 28, 28)).await;
            for i in 0..28 {
                let position = if backward { 27 - i } else { i };
                reference.refund(position, reference.charges[position].1).await;
                reference.assert_matches_server(&format!("{engine:?}: {position}"), 6).await;
            }
            let key = admin.only_key();
            assert_eq!(admin.query::<usize>(&["LLEN", &key]), 1, "{engine:?}");
            for units in 1..=20 {
                clock.advance(Duration::from_micros(1));
                reference.charge(units).await;
            }
            reference.assert_matches_server("charges after the refunds", 20).await;
        }
    }
}
