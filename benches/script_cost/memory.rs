//! Measures memory: the bytes of a key (`MEMORY USAGE`), including the key's own overhead.

use crate::{
    fill::charge_all,
    measure::{Pipeline, calendar_fields, key, pair},
    scripts::{Design, Scripts},
};

/// Charges and the cost of each.
const ROWS: [(u32, u32); 5] = [(1, 1), (100, 1), (10_000, 1), (100, 100), (10_000, 100)];

/// Prints the table, and returns the bytes per record of a log of 10,000 records.
pub fn print(pipeline: &mut Pipeline, scripts: &Scripts, window: u64) -> f64 {
    println!("\nbytes per key (bytes per charge)");
    print!("{:34}", "");
    for design in &Design::ALL[1..] {
        print!("{:>18}", design.name());
    }
    println!();
    let mut per_record = 0.0;
    for (row, (charges, cost)) in ROWS.into_iter().enumerate() {
        print!("{:34}", format!("{charges} charges, cost {cost}"));
        for design in &Design::ALL[1..] {
            if *design == Design::SortedSet && cost > 1 && charges > 100 {
                // It would have a million members.
                print!("{:>18}", "-");
                continue;
            }
            let space = (0xb << 32) + (row * 16) as u64 + *design as u64;
            store(pipeline, scripts, *design, space, window, charges, cost);
            let key = key(space, 0);
            let bytes = pipeline.number(&[b"MEMORY", b"USAGE", key.as_bytes(), b"SAMPLES", b"0"]);
            let per_charge = bytes as f64 / f64::from(charges);
            if (*design, charges, cost) == (Design::Log, 10_000, 1) {
                per_record = per_charge;
            }
            print!("{:>18}", format!("{bytes} ({per_charge:.1})"));
        }
        println!();
    }
    per_record
}

/// Stores charges. Where their instants matter, they are evenly spread over nine tenths of a window.
fn store(
    pipeline: &mut Pipeline,
    scripts: &Scripts,
    design: Design,
    space: u64,
    window: u64,
    charges: u32,
    cost: u32,
) {
    let now = pipeline.now_micros();
    let (lengths, typed_parameter) = match design {
        Design::Calendar => calendar_fields(now / 60_000_000, [1 << 23; 2]),
        _ => (window, design.typed_parameter(window)),
    };
    let arguments = pair(u32::MAX, cost, lengths, typed_parameter);
    let buckets = charges.min(60);
    for charge in 0..charges {
        let age = window * 9 / 10 * u64::from(charges - 1 - charge) / u64::from(charges);
        let key = key(space, 0);
        match design {
            Design::Log
            | Design::Buckets
            | Design::Counter
            | Design::Fixed
            | Design::Tokens
            | Design::Calendar => {
                charge_all(pipeline, scripts, space, 1, &arguments, now - age);
            }
            Design::HashBuckets if charge < buckets => {
                let field = (now * 60 / window - u64::from(charge)).to_string();
                let units = (charges / buckets * cost).to_string();
                pipeline.queue(&[b"HSET", key.as_bytes(), field.as_bytes(), units.as_bytes()]);
            }
            Design::HashBuckets => {}
            _ => {
                let hash = scripts.of(design).as_bytes();
                pipeline.queue(&[b"EVALSHA", hash, b"1", key.as_bytes(), &arguments]);
            }
        }
        pipeline.flush_if_full();
    }
    pipeline.flush(|_| {});
}
