//! Counts what a check costs the server in instructions of its processor. The figures do not depend on other processes of the machine.
//!
//! The clock is injected, so each run makes the same calls at the same instants. What the injected clock adds to a call is measured by
//! itself, and the figures leave it out. The rows are those of the table of times, with 100 keys where that table has 10,000: the
//! instructions do not depend on it. They do not depend on the length of a window either.

use std::path::Path;

use crate::{
    assemble::{script, with_injected_clock},
    callgrind::Counting,
    cell::{BEGIN, Cell, WINDOW},
    measure::{Pipeline, key, pairs},
    rows::ROWS,
    scripts::{Design, Scripts},
    server::{Engine, Server},
};

/// The calls of an empty script that are counted, and as many before.
const CALLS: usize = 500;
/// A figure that is larger by more than this part is worse.
const TOLERANCE: f64 = 0.03;
/// A difference between two servers that is larger than this part is reported.
const MAX_SPREAD: f64 = 0.02;

/// The instructions per call of each row and design. `None` if it is not measured.
type Table = Vec<[Option<f64>; Design::ALL.len()]>;

/// Prints the table. Then prints the change from the scripts of the folder `before`, if there is one.
pub fn print(before: Option<&Path>) -> Result<(), String> {
    let check = script(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"), "check.lua")?;
    expect_that_crate_sends(&check)?;
    // Fails at once if the folder is wrong.
    let before = before.map(|folder| script(folder, "check.lua")).transpose()?;

    let after = measure_twice(&check, |_| true)?;
    println!("instructions of the server per call (-: not measured)");
    print!("{:48}", "");
    Design::ALL.iter().for_each(|design| print!("{:>12}", design.name()));
    println!();
    for (row, cells) in ROWS.iter().zip(&after) {
        print_line(&row.name(), cells, |figure| format!("{figure:.0}"));
        if let Some(gcra) = cells[Design::Gcra as usize] {
            print_line("    x GCRA", cells, |figure| format!("{:.3}", figure / gcra));
        }
    }
    if let Some(before) = before {
        print_change(&measure_twice(&before, Design::is_of_crate)?, &after);
    }
    Ok(())
}

fn print_line(name: &str, cells: &[Option<f64>], show: impl Fn(f64) -> String) {
    print!("{name:48}");
    cells.iter().for_each(|cell| print!("{:>12}", cell.map_or("-".to_owned(), &show)));
    println!();
}

fn print_change(before: &Table, after: &Table) {
    println!("\n{:48}{:12}{:>12}{:>12}{:>12}", "", "", "before", "after", "ratio");
    let mut worse = 0;
    for (row, (before, after)) in ROWS.iter().zip(before.iter().zip(after)) {
        for design in Design::ALL {
            let (Some(before), Some(after)) = (before[design as usize], after[design as usize]) else {
                continue;
            };
            let ratio = after / before;
            let is_worse = ratio > 1.0 + TOLERANCE;
            worse += u32::from(is_worse);
            let note = if is_worse { "  WORSE" } else { "" };
            println!("{:48}{:12}{before:>12.0}{after:>12.0}{ratio:>12.3}{note}", row.name(), design.name());
        }
    }
    println!("worse by more than {:.0} %: {worse}", 100.0 * TOLERANCE);
}

/// The table of a folder is right only if the crate would send the same text.
fn expect_that_crate_sends(script: &str) -> Result<(), String> {
    let server = Server::start(Engine::Redis);
    let mut pipeline = Pipeline::connect(&server);
    let sent = Scripts::load(&server, &mut pipeline).of(Design::Log).to_owned();
    let assembled = pipeline.ask(&[b"SCRIPT", b"LOAD", script.as_bytes()]);
    let message = "the benchmark assembles the scripts otherwise than the crate: correct `assemble.rs`";
    if sent == assembled { Ok(()) } else { Err(message.to_owned()) }
}

/// Measures the crate's designs a second time, on another server. Prints the largest difference.
fn measure_twice(script: &str, is_wanted: fn(Design) -> bool) -> Result<Table, String> {
    let [table, again] = [measure(script, is_wanted)?, measure(script, Design::is_of_crate)?];
    let mut largest = (0.0_f64, String::new());
    for (row, (cells, again)) in ROWS.iter().zip(table.iter().zip(&again)) {
        for design in Design::ALL {
            if let (Some(first), Some(second)) = (cells[design as usize], again[design as usize]) {
                let spread = (first / second - 1.0).abs();
                if spread >= largest.0 {
                    largest = (spread, format!("{}, {}", row.name(), design.name()));
                }
            }
        }
    }
    let (spread, cell) = largest;
    let note = if spread > MAX_SPREAD { ", TOO LARGE" } else { "" };
    println!("largest difference of a figure between two servers: {:.2} % ({cell}){note}", 100.0 * spread);
    Ok(table)
}

fn measure(script: &str, is_wanted: fn(Design) -> bool) -> Result<Table, String> {
    let mut counting = Counting::start()?;
    let check = with_injected_clock(script)?;
    let gcra = with_injected_clock(include_str!("gcra.lua"))?;
    let sorted_set = with_injected_clock(include_str!("sorted_set.lua"))?;
    let hash_buckets = with_injected_clock(include_str!("hash_buckets.lua"))?;
    let added = instructions_of_injected_clock(&mut counting)?;
    let mut table = vec![[None; Design::ALL.len()]; ROWS.len()];
    for (number, row) in ROWS.iter().enumerate() {
        let is_measured = |design: &Design| is_wanted(*design) && row.is_measured(*design);
        for design in Design::ALL.into_iter().filter(is_measured) {
            let script = match design {
                Design::Nothing => {
                    table[number][design as usize] =
                        Some(instructions_of_empty(&mut counting, "return 1", &[])?);
                    continue;
                }
                design if design.is_of_crate() => &check,
                Design::Gcra => &gcra,
                Design::SortedSet => &sorted_set,
                _ => &hash_buckets,
            };
            let cell = Cell { row, design, script };
            table[number][design as usize] = Some(cell.count(&mut counting)? - added);
        }
    }
    Ok(table)
}

/// Returns what the injected clock and its arguments add to a call.
pub fn instructions_of_injected_clock(counting: &mut Counting) -> Result<f64, String> {
    let plain = format!("{}return 1", include_str!("../../lua/clock.lua"));
    let injected = with_injected_clock(&plain)?;
    let at = BEGIN.to_string();
    Ok(instructions_of_empty(counting, &injected, &[at.as_bytes()])?
        - instructions_of_empty(counting, &plain, &[])?)
}

/// Returns the instructions of a script that only returns a number, with the arguments of a charge and these.
pub fn instructions_of_empty(counting: &mut Counting, script: &str, more: &[&[u8]]) -> Result<f64, String> {
    counting.restart_interpreter();
    let hash = counting.load(script);
    let (key, arguments) = (key(0xa << 32, 0), pairs(100, 1, [WINDOW], 0));
    let words = [&[b"EVALSHA", hash.as_bytes(), b"1", key.as_bytes(), &arguments], more].concat();
    for _ in 0..2 {
        counting.count()?;
        for _ in 0..CALLS {
            counting.pipeline.queue(&words);
            counting.pipeline.flush_if_full();
        }
        counting.pipeline.flush(|_| {});
    }
    Ok(counting.count()? / CALLS as f64)
}
