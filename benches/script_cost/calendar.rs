//! Measures a calendar period: the cost of an admitted check, relative to one with a fixed window.

use crate::{
    measure::{Pipeline, calendar_fields, key, pair, ratio, undisturbed},
    scripts::{Design, Scripts},
};

const ROUNDS: usize = 15;
/// The length of a period in minutes: about 16 years. Both the period and the window last longer than the measurement.
const LENGTH: u64 = 1 << 23;

/// Returns the cost of an admitted check with a calendar period, relative to a fixed window.
pub fn to_fixed_window(pipeline: &mut Pipeline, scripts: &Scripts) -> f64 {
    let hash = scripts.of(Design::Calendar).as_bytes().to_vec();
    let (window, typed_parameter) = calendar_fields(pipeline.now_micros() / 60_000_000, [LENGTH; 2]);
    let long = 1 << 44;
    let loads = [
        (key(0xca << 32, 0), pair(u32::MAX, 1, window, typed_parameter)),
        (key(0xca << 32, 1), pair(u32::MAX, 1, long, Design::Fixed.typed_parameter(long))),
    ];
    let mut run = |(key, arguments): &(String, Vec<u8>), calls: usize| {
        pipeline.samples();
        pipeline.queue_mark();
        for call in 0..calls {
            pipeline.queue(&[b"EVALSHA", &hash, b"1", key.as_bytes(), arguments]);
            if call % 64 == 63 {
                pipeline.queue_mark();
            }
            pipeline.flush_if_full();
        }
        pipeline.flush(|_| {});
        undisturbed(pipeline.samples())
    };
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (times, load) in rounds.iter_mut().zip(&loads) {
            run(load, 3_200);
            times.push(run(load, 6_400));
        }
    }
    println!(
        "server microseconds per admitted check, fastest round: calendar period {:.2}, fixed window {:.2}",
        rounds[0].iter().copied().fold(f64::INFINITY, f64::min),
        rounds[1].iter().copied().fold(f64::INFINITY, f64::min)
    );
    ratio(&rounds[0], &rounds[1])
}
