//! What a call costs: for every design a cell for every verdict, quota, cost and number of keys.
//!
//! A cell is measured in its steady state. What admits does so at seven tenths of its quota, so that for every charge that
//! enters another one leaves: the pace is set by pings between the calls, which the figures do not count. What denies is
//! full, of charges of one unit or of sixty buckets.

use std::{collections::HashMap, time::Instant};

use crate::{
    fill::fill,
    measure::{Wire, key, median, pair, ratio, undisturbed, verdict},
    scripts::{Design, Texts},
};

/// Of ten charges that the quota would admit in a window, so many are in use.
const IN_USE_OF_TEN: usize = 7;
/// Of a hundred, but for the twentieth part of the time.
const MOST_IN_USE: f64 = 80.0;
/// With less, the machine has stood still.
const LEAST_IN_USE: f64 = 20.0;
/// The charges in use of each key, where there are many.
const IN_USE_OF_MANY: usize = 2;

#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub admitted: bool,
    pub quota: u32,
    pub cost: u32,
    pub keys: usize,
    /// At least so long, and longer where a design is too slow to fill it. In microseconds.
    pub window: u64,
    /// Calls in a round.
    pub calls: usize,
    /// What says why there is a dash in a whole row.
    pub senseless: Option<&'static str>,
}

/// Microseconds of a call in every round, for every cell and design that makes sense.
pub struct Measured {
    times: HashMap<(usize, Design), Vec<f64>>,
    /// What is in use, of a hundred.
    in_use: HashMap<(usize, Design), Vec<f64>>,
}

/// How a design is called in a cell.
struct Load {
    space: u64,
    keys: usize,
    arguments: Vec<u8>,
    hash: String,
    quota: u32,
    window: u64,
    pings: usize,
}

/// What a run has come to, in pieces.
struct Run {
    pieces: Vec<Piece>,
    /// Microseconds from one call to the next.
    pace: f64,
}

/// Some calls, one after the other.
struct Piece {
    each: f64,
    admitted: usize,
    calls: usize,
    /// Of a hundred, after the first one of them.
    in_use: f64,
}

/// The cells of one key, each by its number.
pub const ADMITTED_100: usize = 0;
pub const ADMITTED_10_000: usize = 2;
pub const ADMITTED_10_000_BY_100: usize = 3;
pub const DENIED_100: usize = 6;
pub const DENIED_10_000_BY_100: usize = 9;

pub fn one_key(long_window: u64) -> Vec<Cell> {
    vec![
        Cell::admitted(100, 1, 1_000),
        Cell::admitted(100, 1, 60_000).calls(80),
        Cell::admitted(10_000, 1, 120_000),
        Cell::admitted(10_000, 100, 1_000).calls(1_000),
        Cell::admitted(10_000, 100, 60_000).calls(80),
        Cell::admitted(100, 100, 1_000).senseless("one call a window: none enters while another leaves"),
        Cell::denied(100, 1, long_window),
        Cell::denied(100, 100, long_window),
        Cell::denied(10_000, 1, long_window),
        Cell::denied(10_000, 100, long_window),
    ]
}

/// The cells of many keys, each by its number.
pub const MANY_ADMITTED: usize = 0;
pub const MANY_DENIED: usize = 4;

pub fn many_keys(long_window: u64) -> Vec<Cell> {
    [
        Cell::admitted(100, 1, 200_000),
        Cell::admitted(10_000, 1, 200_000)
            .senseless("as with 100: what so many keys have in use, their pace decides"),
        Cell::admitted(10_000, 100, 200_000),
        Cell::admitted(100, 100, 200_000).senseless("one call a window: none enters while another leaves"),
        Cell::denied(100, 1, long_window),
        Cell::denied(100, 100, long_window),
        Cell::denied(10_000, 1, long_window),
        Cell::denied(10_000, 100, long_window),
    ]
    .map(|cell| cell.keys(10_000).calls(5_000))
    .to_vec()
}

impl Cell {
    pub fn admitted(quota: u32, cost: u32, window: u64) -> Self {
        Self { admitted: true, quota, cost, keys: 1, window, calls: 1_920, senseless: None }
    }

    pub fn denied(quota: u32, cost: u32, window: u64) -> Self {
        Self { admitted: false, ..Self::admitted(quota, cost, window) }
    }

    pub fn keys(self, keys: usize) -> Self {
        Self { keys, ..self }
    }

    pub fn calls(self, calls: usize) -> Self {
        Self { calls, ..self }
    }

    pub fn senseless(self, why: &'static str) -> Self {
        Self { senseless: Some(why), ..self }
    }

    pub fn name(&self) -> String {
        let verdict = if self.admitted { "admitted" } else { "denied" };
        let keys = if self.keys == 1 { "" } else { ", 10,000 keys" };
        let window = match self.window {
            _ if !self.admitted => String::new(),
            micros => format!(" in {} ms", micros / 1_000),
        };
        let quota = if self.quota == 10_000 { "10,000" } else { "100" };
        format!("{verdict}, {quota}{window}, cost {}{keys}", self.cost)
    }

    fn makes_sense(&self, design: Design) -> bool {
        let too_short = self.admitted && design.has_buckets() && self.window < 60_000;
        // A member for every unit: a gigabyte and more.
        let too_large = design == Design::SortedSet
            && self.keys > 1
            && if self.admitted { self.cost > 1 } else { self.quota > 100 };
        self.senseless.is_none() && !too_short && !too_large
    }

    fn in_use(&self) -> usize {
        if self.keys == 1 {
            (self.quota / self.cost) as usize * IN_USE_OF_TEN / 10
        } else {
            self.keys * IN_USE_OF_MANY
        }
    }
}

impl Measured {
    pub fn of(wire: &mut Wire, texts: &Texts, cells: &[Cell], rounds: usize, first_space: u64) -> Self {
        let ping = wire.pace_of_pings();
        let mut loads = HashMap::new();
        let mut filled = HashMap::new();
        for (number, cell) in cells.iter().enumerate() {
            for design in Design::ALL.into_iter().filter(|design| cell.makes_sense(*design)) {
                let id = (number, design);
                let mut load = Load {
                    space: first_space + (number * 16) as u64 + design as u64,
                    keys: cell.keys,
                    arguments: Vec::new(),
                    hash: texts.of(design).to_owned(),
                    quota: cell.quota,
                    window: cell.window,
                    pings: 0,
                };
                if cell.admitted {
                    // How fast it is without pings: with a quota that is not reached.
                    load.arguments = pair(10 * cell.quota, cell.cost, cell.window, design.shape(cell.window));
                    load.run(wire, cell.calls / 2);
                    let natural = load.run(wire, cell.calls / 2).pace;
                    let full = (natural * cell.in_use() as f64) as u64;
                    let window = full.max(cell.window).next_multiple_of(1_000);
                    load.window = window;
                    load.pings = ((window as f64 / cell.in_use() as f64 - natural) / ping).max(0.0) as usize;
                    load.arguments = pair(cell.quota, cell.cost, window, design.shape(window));
                } else {
                    // Cells that differ in their cost alone share what is filled.
                    let space = *filled.entry((cell.quota, cell.keys, design)).or_insert_with(|| {
                        fill(wire, texts, design, cell, load.space);
                        load.space
                    });
                    load.space = space;
                    load.arguments = pair(cell.quota, cell.cost, cell.window, design.shape(cell.window));
                }
                loads.insert(id, load);
            }
        }
        let mut times: HashMap<_, Vec<f64>> = HashMap::new();
        let mut in_use: HashMap<_, Vec<f64>> = HashMap::new();
        for _ in 0..rounds {
            for (number, cell) in cells.iter().enumerate() {
                for design in Design::ALL {
                    if let Some(load) = loads.get_mut(&(number, design)) {
                        let (each, used) = load.measure(wire, cell, design, ping);
                        times.entry((number, design)).or_default().push(each);
                        in_use.entry((number, design)).or_default().push(used);
                    }
                }
            }
        }
        Self { times, in_use }
    }

    pub fn rounds(&self, cell: usize, design: Design) -> Option<&[f64]> {
        self.times.get(&(cell, design)).map(Vec::as_slice)
    }

    pub fn micros(&self, cell: usize, design: Design) -> Option<f64> {
        self.rounds(cell, design).map(|times| median(times.to_vec()))
    }

    /// What one took against the other, round by round.
    pub fn ratio(&self, of: (usize, Design), to: (usize, Design)) -> Option<f64> {
        Some(ratio(self.rounds(of.0, of.1)?, self.rounds(to.0, to.1)?))
    }

    pub fn print(&self, cells: &[Cell]) {
        let line = |name: &str, value: &dyn Fn(Design) -> Option<f64>| {
            print!("{name:44}");
            for design in Design::ALL {
                print!("{:>12}", value(design).map_or("-".to_owned(), |value| format!("{value:.2}")));
            }
            println!();
        };
        for (number, cell) in cells.iter().enumerate() {
            if let Some(why) = cell.senseless {
                println!("{:44}{:>12}  {why}", cell.name(), "-");
                continue;
            }
            line(&cell.name(), &|design| self.micros(number, design));
            if cell.admitted && cell.keys == 1 {
                line("    % in use", &|design| Some(median(self.in_use.get(&(number, design))?.clone())));
            }
            line("    x GCRA", &|design| self.ratio((number, design), (number, Design::Gcra)));
            line("    x sorted set", &|design| self.ratio((number, design), (number, Design::SortedSet)));
        }
    }
}

impl Load {
    /// Calls it so often, one key after the other, many calls in one write.
    fn run(&self, wire: &mut Wire, calls: usize) -> Run {
        // A piece is shorter than the time that a busy machine gives at once.
        let in_a_piece = if self.pings > 200 { 8 } else { 64 };
        let mut replies = Vec::with_capacity(calls);
        wire.pieces();
        let start = Instant::now();
        wire.queue_mark();
        for first in (0..calls).step_by(4 * in_a_piece) {
            let last = calls.min(first + 4 * in_a_piece);
            for call in first..last {
                let key = key(self.space, call % self.keys);
                wire.queue(&[b"EVALSHA", self.hash.as_bytes(), b"1", key.as_bytes(), &self.arguments]);
                wire.queue_pings(self.pings);
                if (call + 1) % in_a_piece == 0 || call + 1 == calls {
                    wire.queue_mark();
                }
            }
            wire.send(|reply| replies.push(verdict(reply)));
        }
        let pace = start.elapsed().as_secs_f64() * 1e6 / calls as f64;
        let piece = |(each, replies): (f64, &[(bool, u32)])| Piece {
            each,
            admitted: replies.iter().filter(|(admitted, _)| *admitted).count(),
            calls: replies.len(),
            in_use: 100.0 - 100.0 * f64::from(replies[0].1.min(self.quota)) / f64::from(self.quota),
        };
        Run { pieces: wire.pieces().into_iter().zip(replies.chunks(in_a_piece)).map(piece).collect(), pace }
    }

    /// One round: microseconds of a call, and what is in use of a hundred. Not a number if the machine has stood still so
    /// often that no piece was what the cell is about.
    fn measure(&mut self, wire: &mut Wire, cell: &Cell, design: Design, ping: f64) -> (f64, f64) {
        if cell.admitted && design != Design::Nothing {
            // What was charged in the round before has left.
            self.run(wire, cell.in_use() + cell.in_use() / 10);
        }
        let mut run = self.run(wire, cell.calls);
        let one_key = cell.admitted && cell.keys == 1;
        if one_key && !matches!(design, Design::Nothing | Design::Gcra) {
            // The machine has others to serve, too: the pace is corrected for the next time, by what was in use when it was
            // most but for a few.
            run.pieces.sort_by(|a, b| b.in_use.total_cmp(&a.in_use));
            let most = run.pieces[run.pieces.len() / 20].in_use;
            let pace = self.window as f64 / cell.in_use() as f64;
            let correction = 0.5 * pace * (most / MOST_IN_USE - 1.0) / ping;
            self.pings = (self.pings as f64 + correction).max(0.0) as usize;
        }
        // After a pause, what was in use has left.
        let sliding = !matches!(design, Design::Nothing | Design::Gcra | Design::Fixed);
        run.pieces.retain(|piece| {
            let admitted =
                if design == Design::Nothing { cell.admitted } else { piece.admitted == piece.calls };
            let denied = piece.admitted == 0 || design == Design::Nothing;
            (if cell.admitted { admitted } else { denied })
                && (!one_key || !sliding || piece.in_use >= LEAST_IN_USE)
        });
        if run.pieces.len() < 3 {
            return (f64::NAN, f64::NAN);
        }
        (
            undisturbed(run.pieces.iter().map(|piece| piece.each).collect()),
            median(run.pieces.iter().map(|piece| piece.in_use).collect()),
        )
    }
}
