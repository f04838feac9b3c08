//! What a key takes of the server's memory: `MEMORY USAGE`, with everything around the value.

use crate::{
    fill::charge_all,
    measure::{Wire, key, pair},
    scripts::{Design, Texts},
};

const ROWS: [(u32, u32); 5] = [(1, 1), (100, 1), (10_000, 1), (100, 100), (10_000, 100)];

/// Prints the table, and tells the bytes of one of 10,000 records of the log.
pub fn print(wire: &mut Wire, texts: &Texts, window: u64) -> f64 {
    println!("\nbytes of a key, and of a charge");
    print!("{:34}", "");
    for design in &Design::ALL[1..] {
        print!("{:>18}", design.name());
    }
    println!();
    let mut of_a_record = 0.0;
    for (row, (charges, cost)) in ROWS.into_iter().enumerate() {
        print!("{:34}", format!("{charges} charges, cost {cost}"));
        for design in &Design::ALL[1..] {
            if *design == Design::SortedSet && cost > 1 && charges > 100 {
                // A million members.
                print!("{:>18}", "-");
                continue;
            }
            let space = (0xb << 32) + (row * 16) as u64 + *design as u64;
            store(wire, texts, *design, space, window, charges, cost);
            let key = key(space, 0);
            let bytes = wire.number(&[b"MEMORY", b"USAGE", key.as_bytes(), b"SAMPLES", b"0"]);
            let each = bytes as f64 / f64::from(charges);
            if (*design, charges, cost) == (Design::Log, 10_000, 1) {
                of_a_record = each;
            }
            print!("{:>18}", format!("{bytes} ({each:.1})"));
        }
        println!();
    }
    of_a_record
}

/// So many charges, evenly over nine tenths of a window where it makes a difference.
fn store(wire: &mut Wire, texts: &Texts, design: Design, space: u64, window: u64, charges: u32, cost: u32) {
    let arguments = pair(u32::MAX, cost, window, design.shape(window));
    let now = wire.now_micros();
    let buckets = charges.min(60);
    for charge in 0..charges {
        let age = window * 9 / 10 * u64::from(charges - 1 - charge) / u64::from(charges);
        let key = key(space, 0);
        match design {
            Design::Log | Design::Buckets | Design::Counter | Design::Fixed => {
                charge_all(wire, texts, space, 1, &arguments, now - age);
            }
            Design::HashBuckets if charge < buckets => {
                let field = (now * 60 / window - u64::from(charge)).to_string();
                let units = (charges / buckets * cost).to_string();
                wire.queue(&[b"HSET", key.as_bytes(), field.as_bytes(), units.as_bytes()]);
            }
            Design::HashBuckets => {}
            _ => wire.queue(&[b"EVALSHA", texts.of(design).as_bytes(), b"1", key.as_bytes(), &arguments]),
        }
        wire.send_if_much();
    }
    wire.send(|_| {});
}
