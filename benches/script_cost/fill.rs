//! Fills keys up to their quota, as denials want them.

use crate::{
    cells::Cell,
    measure::{Wire, key, pair},
    scripts::{Design, Texts},
};

/// How many charges fill a key where there are many.
const CHARGES_OF_MANY: u32 = 10;

pub fn fill(wire: &mut Wire, texts: &Texts, design: Design, cell: &Cell, space: u64) {
    let Cell { quota, window, keys, .. } = *cell;
    let now = wire.now_micros();
    let charges = if keys == 1 { quota } else { CHARGES_OF_MANY };
    match design {
        Design::Nothing => {}
        Design::Gcra | Design::Log | Design::SortedSet => {
            let arguments = pair(quota, quota / charges, window, 0);
            for _ in 0..charges {
                every_key(wire, space, keys, |wire, key| {
                    wire.queue(&[b"EVALSHA", texts.of(design).as_bytes(), b"1", key, &arguments]);
                });
            }
        }
        // In the past, on a clock that is told; whether it is admitted makes no difference then.
        Design::Buckets => {
            let precision = window.div_ceil(60);
            let buckets = if keys == 1 { 60 } else { CHARGES_OF_MANY };
            let charge = pair(quota, quota.div_ceil(buckets), window, design.shape(window));
            for ago in (0..u64::from(buckets)).rev() {
                charge_all(wire, texts, space, keys, &charge, now - ago * precision);
            }
        }
        Design::Counter => {
            let charge = |units| pair(quota, units, window, design.shape(window));
            charge_all(wire, texts, space, keys, &charge(quota), now - window);
            charge_all(wire, texts, space, keys, &charge(quota / 10 * 7), now);
        }
        Design::Fixed => {
            charge_all(wire, texts, space, keys, &pair(quota, quota, window, design.shape(window)), now);
        }
        Design::HashBuckets => {
            let newest = now * 60 / window;
            let units = quota.div_ceil(60) + 1;
            let fields: Vec<String> = (0..60).map(|ago| (newest - ago).to_string()).collect();
            let units = units.to_string();
            every_key(wire, space, keys, |wire, key| {
                let mut words: Vec<&[u8]> = vec![b"HSET", key];
                fields.iter().for_each(|field| words.extend([field.as_bytes(), units.as_bytes()]));
                wire.queue(&words);
            });
        }
    }
    wire.send(|_| {});
}

/// Queues a charge of every key, at an instant of its own.
pub fn charge_all(wire: &mut Wire, texts: &Texts, space: u64, keys: usize, arguments: &[u8], at: u64) {
    let at = at.to_string();
    every_key(wire, space, keys, |wire, key| {
        let hash = texts.check_injected.as_bytes();
        wire.queue(&[b"EVALSHA", hash, b"1", key, arguments, b"o", at.as_bytes()]);
    });
}

fn every_key(wire: &mut Wire, space: u64, keys: usize, mut queue: impl FnMut(&mut Wire, &[u8])) {
    for number in 0..keys {
        queue(wire, key(space, number).as_bytes());
        wire.send_if_much();
    }
}

/// A window of some ten days, in microseconds, of which about a half has passed: no edge of a calendar is near.
pub fn long_window(now: u64) -> u64 {
    let hour = 3_600_000_000;
    let in_its_middle = |window: &u64| (window * 4 / 10..window * 6 / 10).contains(&(now % window));
    (240..).map(|hours| hours * hour).find(in_its_middle).expect("some window is in its middle")
}
