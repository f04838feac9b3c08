//! Shows where the instructions of a check are: in the commands of its script, or in what the script computes.
//!
//! Each script does one step more than the one before it, on the key that a design stores. The difference of two scripts is the cost of a
//! step. What a whole check takes beyond them, it computes: it reads the arguments, parses the value, decides, and packs the value and the
//! reply.

use std::path::Path;

use crate::{
    assemble::{script, with_injected_clock},
    callgrind::Counting,
    cell::Cell,
    instructions::{instructions_of_empty, instructions_of_injected_clock},
    measure::key,
    rows::{Row, Verdict},
    scripts::Design,
};

const TIME: &str = "local time = call('TIME') local now = time[1] * 1000000 + time[2] ";

/// The commands of a design, and a value of its usual size.
struct Commands {
    design: Design,
    name: &'static str,
    create: &'static [u8],
    value_size: usize,
    read: &'static str,
    write: &'static str,
}

const COMMANDS: [Commands; 2] = [
    Commands {
        design: Design::Gcra,
        name: "GCRA: GET, SET with PX",
        create: b"SET",
        value_size: 8,
        read: "local value = call('GET', KEYS[1]) ",
        write: "call('SET', KEYS[1], value, 'PX', 60000) ",
    },
    Commands {
        design: Design::Log,
        name: "log: LINDEX, LSET",
        create: b"RPUSH",
        // The header, and eight records.
        value_size: 42 + 8 * 12,
        read: "local value = call('LINDEX', KEYS[1], '-1') ",
        write: "call('LSET', KEYS[1], '-1', value) ",
    },
];

/// Prints the parts of an admitted check and of a denied one, of the log and of GCRA.
pub fn print() -> Result<(), String> {
    let mut counting = Counting::start()?;
    let added = instructions_of_injected_clock(&mut counting)?;
    let check = script(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"), "check.lua")?;
    let scripts = [include_str!("gcra.lua"), &check].map(with_injected_clock);
    println!("instructions of the server per call, quota 100, cost 1");
    println!(
        "{:32}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "empty", "TIME", "read", "write", "computes", "whole"
    );
    for (commands, script) in COMMANDS.iter().zip(scripts) {
        let script = script?;
        let [empty, time, read, write] = commands.count(&mut counting)?;
        for verdict in [Verdict::Admitted, Verdict::Denied] {
            let row = Row::new(verdict, 100, 1);
            let cell = Cell { row: &row, design: commands.design, script: &script };
            let whole = cell.count(&mut counting)? - added;
            let is_denied = verdict == Verdict::Denied;
            let write = if is_denied { 0.0 } else { write };
            let name = format!("{}{}", commands.name, if is_denied { ", denied" } else { "" });
            let computes = whole - empty - time - read - write;
            print!("{name:32}");
            [empty, time, read, write, computes, whole].iter().for_each(|part| print!("{part:>10.0}"));
            println!();
        }
    }
    Ok(())
}

impl Commands {
    /// Returns the instructions of an empty script, and those of each command.
    fn count(&self, counting: &mut Counting) -> Result<[f64; 4], String> {
        counting.pipeline.ask(&[b"FLUSHALL"]);
        let (key, value) = (key(0xa << 32, 0), vec![b'x'; self.value_size]);
        counting.pipeline.ask(&[self.create, key.as_bytes(), &value]);
        let steps = ["", TIME, self.read, self.write];
        let (mut text, mut before, mut parts) = ("local call = redis.call ".to_owned(), 0.0, [0.0; 4]);
        for (step, part) in steps.into_iter().zip(&mut parts) {
            text.push_str(step);
            let whole = instructions_of_empty(counting, &format!("{text}return 1"), &[])?;
            (*part, before) = (whole - before, whole);
        }
        Ok(parts)
    }
}
