//! Fills keys up to their quota, for scenarios that measure denials.

use crate::{
    measure::{Pipeline, key, pair},
    scenario::Scenario,
    scripts::{Design, Scripts},
};

/// The charges per key in a scenario of many keys.
const CHARGES_OF_MANY: u32 = 10;

pub fn fill(pipeline: &mut Pipeline, scripts: &Scripts, design: Design, scenario: &Scenario, space: u64) {
    let Scenario { quota, window, keys, .. } = *scenario;
    let now = pipeline.now_micros();
    let charges = if keys == 1 { quota } else { CHARGES_OF_MANY };
    match design {
        Design::Nothing => {}
        Design::Gcra | Design::Log | Design::SortedSet => {
            let arguments = pair(quota, quota / charges, window, 0);
            for _ in 0..charges {
                every_key(pipeline, space, keys, |pipeline, key| {
                    pipeline.queue(&[b"EVALSHA", scripts.of(design).as_bytes(), b"1", key, &arguments]);
                });
            }
        }
        // In the past, on an injected clock, and regardless of the verdict.
        Design::Buckets => {
            let precision = window.div_ceil(60);
            let buckets = if keys == 1 { 60 } else { CHARGES_OF_MANY };
            let charge = pair(quota, quota.div_ceil(buckets), window, design.typed_parameter(window));
            for ago in (0..u64::from(buckets)).rev() {
                charge_all(pipeline, scripts, space, keys, &charge, now - ago * precision);
            }
        }
        Design::Counter => {
            let charge = |units| pair(quota, units, window, design.typed_parameter(window));
            charge_all(pipeline, scripts, space, keys, &charge(quota), now - window);
            charge_all(pipeline, scripts, space, keys, &charge(quota / 10 * 7), now);
        }
        Design::Fixed | Design::Tokens | Design::Calendar => {
            let charge = pair(quota, quota, window, design.typed_parameter(window));
            charge_all(pipeline, scripts, space, keys, &charge, now);
        }
        Design::HashBuckets => {
            let newest = now * 60 / window;
            let units = (quota.div_ceil(60) + 1).to_string();
            let fields: Vec<String> = (0..60).map(|ago| (newest - ago).to_string()).collect();
            every_key(pipeline, space, keys, |pipeline, key| {
                let mut words: Vec<&[u8]> = vec![b"HSET", key];
                fields.iter().for_each(|field| words.extend([field.as_bytes(), units.as_bytes()]));
                pipeline.queue(&words);
            });
        }
    }
    pipeline.flush(|_| {});
}

/// Queues a charge of each key at this instant, regardless of its quota.
pub fn charge_all(
    pipeline: &mut Pipeline,
    scripts: &Scripts,
    space: u64,
    keys: usize,
    arguments: &[u8],
    at: u64,
) {
    let at = at.to_string();
    every_key(pipeline, space, keys, |pipeline, key| {
        let hash = scripts.check_injected.as_bytes();
        // Without shadow pairs. The instant is the last argument.
        pipeline.queue(&[b"EVALSHA", hash, b"1", key, arguments, b"o", b"", at.as_bytes()]);
    });
}

fn every_key(pipeline: &mut Pipeline, space: u64, keys: usize, mut queue: impl FnMut(&mut Pipeline, &[u8])) {
    for number in 0..keys {
        queue(pipeline, key(space, number).as_bytes());
        pipeline.flush_if_full();
    }
}

/// Returns a window of at least ten days, in microseconds, about half of which has passed: no boundary of a calendar window
/// falls into the run.
pub fn long_window(now: u64) -> u64 {
    let hour = 3_600_000_000;
    let in_its_middle = |window: &u64| (window * 4 / 10..window * 6 / 10).contains(&(now % window));
    (240..).map(|hours| hours * hour).find(in_its_middle).expect("a window that is in its middle")
}
