//! Measures an idle key: a check of buckets whose key was idle for 12 hours, half of its window, beside a check of a live key.

use crate::{
    fill::charge_all,
    measure::{Pipeline, key, median, pair, undisturbed},
    scripts::{Design, Scripts},
};

const KEYS: usize = 500;
const BUCKETS: u64 = 60;
const HOUR: u64 = 3_600_000_000;
const WINDOW: u64 = 24 * HOUR;

/// Microseconds per call.
#[derive(Debug)]
pub struct IdleKey {
    pub idle_peek: f64,
    pub idle_charge: f64,
    pub live_peek: f64,
    pub live_charge: f64,
}

impl IdleKey {
    pub fn measure(pipeline: &mut Pipeline, scripts: &Scripts) -> Self {
        let arguments = pair(u32::MAX, 1, WINDOW, Design::Buckets.typed_parameter(WINDOW));
        let hash = scripts.of(Design::Buckets).as_bytes();
        let mut times = [const { Vec::new() }; 4];
        for round in 0..5 {
            let space = (0xf << 32) + round;
            // The charges begin 36 hours ago and end 12 hours ago.
            let begin = pipeline.now_micros() - 36 * HOUR;
            for bucket in 0..BUCKETS {
                charge_all(pipeline, scripts, space, KEYS, &arguments, begin + bucket * WINDOW / BUCKETS);
            }
            pipeline.flush(|_| {});
            let mut pass = |purpose: &[u8]| {
                pipeline.samples();
                pipeline.queue_mark();
                for number in 0..KEYS {
                    let key = key(space, number);
                    pipeline.queue(&[b"EVALSHA", hash, b"1", key.as_bytes(), &arguments, purpose]);
                    if number % 25 == 24 {
                        pipeline.queue_mark();
                    }
                    pipeline.flush_if_full();
                }
                pipeline.flush(|_| {});
                undisturbed(pipeline.samples())
            };
            // The first charge makes the keys live.
            for (times, purpose) in times.iter_mut().zip([&b"p"[..], b"", b"p", b""]) {
                times.push(pass(purpose));
            }
        }
        let [idle_peek, idle_charge, live_peek, live_charge] = times.map(median);
        Self { idle_peek, idle_charge, live_peek, live_charge }
    }
}
