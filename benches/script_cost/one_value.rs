//! Measures the types that store one value: a check with a calendar period or a gate, relative to one with a fixed window; and the renewal
//! of a unit in flight.

use std::path::Path;

use crate::{
    assemble,
    measure::{Pipeline, calendar_fields, key, median, pair, ratio, undisturbed},
    scripts::{Design, Scripts},
};

const ROUNDS: usize = 15;
/// Keys that no other measurement uses.
const SPACE: u64 = 0xca << 32;
/// The length of a period in minutes: about 16 years. Both the period and the window last longer than the measurement.
const LENGTH: u64 = 1 << 23;
/// A window, and the longest time that a gate blocks, in microseconds.
const LONG: u64 = 1 << 44;
/// The type gate, above the 45 bits of its parameter.
const GATE: u64 = 5 << 45;
/// How long a unit in flight is held, in microseconds.
const HOLD_TIME: u64 = 60_000_000;

/// The costs of admitted checks relative to one with a fixed window, and the microseconds of a renewal.
pub struct OneValue {
    pub calendar_period: f64,
    pub gate: f64,
    pub renewal: f64,
}

/// A command and its arguments.
type Call = Vec<Vec<u8>>;

impl OneValue {
    pub fn measure(pipeline: &mut Pipeline, scripts: &Scripts) -> Self {
        let (period, boundary) = calendar_fields(pipeline.now_micros() / 60_000_000, [LENGTH; 2]);
        let checks = [
            pair(u32::MAX, 1, LONG, Design::Fixed.typed_parameter(LONG)),
            pair(u32::MAX, 1, period, boundary),
            // No value is stored: the gate does not block.
            pair(1, 1, 1_000_000, GATE + LONG),
        ];
        let hash = scripts.of(Design::Fixed);
        let mut calls: Vec<Call> = Vec::new();
        for (number, arguments) in checks.iter().enumerate() {
            calls.push(call(hash, &[key(SPACE, number)], &[arguments]));
        }

        let hash = load_hold(pipeline);
        let keys = [key(SPACE, 3), key(SPACE, 4)];
        // The deadline, and the identity of the holder.
        let holder = [u64::MAX.to_le_bytes(), 1_u64.to_le_bytes()].concat();
        // The hold time, whether it is renewed, no units to subtract, no release; and the number 1 with one unit at the index 0.
        let changes =
            |is_renewed: u8| [&HOLD_TIME.to_le_bytes()[..6], &[is_renewed, 0, 0, 0, 0, 0, 0]].concat();
        let restored = [&changes(0)[..], &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]].concat();
        run(pipeline, &call(&hash, &keys, &[&holder, &restored]), 1);
        calls.push(call(&hash, &keys, &[&holder, &changes(1)]));

        let mut rounds = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (times, call) in rounds.iter_mut().zip(&calls) {
                run(pipeline, call, 3_200);
                times.push(run(pipeline, call, 6_400));
            }
        }
        let [fixed, calendar, gate, renewal] = rounds;
        println!(
            "server microseconds per admitted check, median of rounds: fixed window {:.2}, calendar period {:.2}, gate {:.2}",
            median(fixed.clone()),
            median(calendar.clone()),
            median(gate.clone()),
        );
        Self {
            calendar_period: ratio(&calendar, &fixed),
            gate: ratio(&gate, &fixed),
            renewal: median(renewal),
        }
    }
}

/// Loads the hold script, and returns its hash.
fn load_hold(pipeline: &mut Pipeline) -> String {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let text = assemble::script(&lua, "hold.lua").expect("the hold script");
    pipeline.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()])
}

fn call(hash: &str, keys: &[String], arguments: &[&Vec<u8>]) -> Call {
    let begin = ["EVALSHA".to_owned(), hash.to_owned(), keys.len().to_string()];
    let names = begin.iter().chain(keys).map(|word| word.clone().into_bytes());
    names.chain(arguments.iter().map(|argument| argument.to_vec())).collect()
}

/// Makes a number of equal calls, and returns the microseconds of one.
fn run(pipeline: &mut Pipeline, call: &Call, calls: usize) -> f64 {
    let words: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
    pipeline.samples();
    pipeline.queue_mark();
    for number in 0..calls {
        pipeline.queue(&words);
        if number % 64 == 63 {
            pipeline.queue_mark();
        }
        pipeline.flush_if_full();
    }
    pipeline.flush(|_| {});
    undisturbed(pipeline.samples())
}
