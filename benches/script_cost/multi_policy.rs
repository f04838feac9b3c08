//! Measures a multi-policy check: the cost of three policies in one check, relative to one.

use crate::{
    measure::{Pipeline, key, pairs, ratio, undisturbed},
    scripts::{Design, Scripts},
};

/// The windows of the policies, in microseconds.
const WINDOWS: [u64; 3] = [50_000, 75_000, 100_000];
const ROUNDS: usize = 9;

/// Returns the cost of a check with three sliding logs, relative to one, in the steady state of all windows.
pub fn three_to_one(pipeline: &mut Pipeline, scripts: &Scripts) -> f64 {
    let hash = scripts.of(Design::Log).as_bytes();
    let mut run = |policies: usize, calls: usize| {
        let keys: Vec<String> =
            (0..policies).map(|policy| key((0xe << 32) + policies as u64, policy)).collect();
        let arguments = pairs(u32::MAX, 1, WINDOWS[..policies].iter().copied(), 0);
        let count = policies.to_string();
        pipeline.samples();
        pipeline.queue_mark();
        for call in 0..calls {
            let mut words = vec![b"EVALSHA", hash, count.as_bytes()];
            words.extend(keys.iter().map(String::as_bytes));
            words.push(&arguments);
            pipeline.queue(&words);
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
        for (times, policies) in rounds.iter_mut().zip([3, 1]) {
            run(policies, 12_800);
            times.push(run(policies, 6_400));
        }
    }
    ratio(&rounds[0], &rounds[1])
}
