//! Measures scenarios: microseconds per call of each design, for each verdict, quota, cost and number of keys.
//!
//! A scenario is measured in its steady state. Where checks are admitted, seven tenths of the quota are in use, so one charge
//! leaves for each charge that enters. Pings between the calls set the pace; the figures do not include them. Where checks are
//! denied, the key is full: of charges of one unit, or of 60 buckets.

use std::{collections::HashMap, time::Instant};

use crate::{
    fill::fill,
    measure::{Pipeline, key, median, pair, ratio, undisturbed, verdict},
    scripts::{Design, Scripts},
};

/// The tenths of the quota that are in use where checks are admitted.
const TENTHS_IN_USE: usize = 7;
/// The percentage in use that 95 % of the samples stay below.
const MAX_PERCENT_IN_USE: f64 = 80.0;
/// If less is in use, the machine was interrupted.
const MIN_PERCENT_IN_USE: f64 = 20.0;
/// The charges in use per key in a scenario of many keys.
const CHARGES_IN_USE_OF_MANY: usize = 2;

const ONE_CALL: &str = "one call per window: no charge enters while another leaves";
const SAME_AS_100: &str = "same as quota 100: with so many keys, the pace sets the number of charges in use";

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub admitted: bool,
    pub quota: u32,
    pub cost: u32,
    pub keys: usize,
    /// The shortest window, in microseconds. It is longer for a design that is too slow to fill it.
    pub window: u64,
    /// Calls per round.
    pub calls: usize,
    /// The reason why no design is measured.
    pub skipped: Option<&'static str>,
}

/// The figures of each round, by the number of the scenario and the design.
pub struct Measured {
    /// Microseconds per call.
    times: HashMap<(usize, Design), Vec<f64>>,
    /// The percentage of the quota in use.
    in_use: HashMap<(usize, Design), Vec<f64>>,
}

/// The calls of one design in one scenario.
struct Load {
    space: u64,
    keys: usize,
    arguments: Vec<u8>,
    hash: String,
    quota: u32,
    window: u64,
    /// Pings between two calls.
    pings: usize,
}

struct Run {
    samples: Vec<Sample>,
    /// Microseconds from one call to the next.
    pace: f64,
}

/// Some calls between two marks.
struct Sample {
    micros: f64,
    admitted: usize,
    calls: usize,
    /// The percentage of the quota in use after the first call.
    in_use: f64,
}

// The numbers of the scenarios of one key.
pub const ADMITTED_100: usize = 0;
pub const ADMITTED_10_000: usize = 2;
pub const ADMITTED_10_000_COST_100: usize = 3;
pub const DENIED_100: usize = 6;
pub const DENIED_10_000_COST_100: usize = 9;

pub fn one_key(long_window: u64) -> Vec<Scenario> {
    vec![
        Scenario::admitted(100, 1, 1_000),
        Scenario::admitted(100, 1, 60_000).calls(80),
        Scenario::admitted(10_000, 1, 120_000),
        Scenario::admitted(10_000, 100, 1_000).calls(1_000),
        Scenario::admitted(10_000, 100, 60_000).calls(80),
        Scenario::admitted(100, 100, 1_000).skipped(ONE_CALL),
        Scenario::denied(100, 1, long_window),
        Scenario::denied(100, 100, long_window),
        Scenario::denied(10_000, 1, long_window),
        Scenario::denied(10_000, 100, long_window),
    ]
}

// The numbers of the scenarios of many keys.
pub const MANY_ADMITTED: usize = 0;
pub const MANY_DENIED: usize = 4;

pub fn many_keys(long_window: u64) -> Vec<Scenario> {
    [
        Scenario::admitted(100, 1, 200_000),
        Scenario::admitted(10_000, 1, 200_000).skipped(SAME_AS_100),
        Scenario::admitted(10_000, 100, 200_000),
        Scenario::admitted(100, 100, 200_000).skipped(ONE_CALL),
        Scenario::denied(100, 1, long_window),
        Scenario::denied(100, 100, long_window),
        Scenario::denied(10_000, 1, long_window),
        Scenario::denied(10_000, 100, long_window),
    ]
    .map(|scenario| scenario.keys(10_000).calls(5_000))
    .to_vec()
}

impl Scenario {
    pub fn admitted(quota: u32, cost: u32, window: u64) -> Self {
        Self { admitted: true, quota, cost, keys: 1, window, calls: 1_920, skipped: None }
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

    pub fn skipped(self, reason: &'static str) -> Self {
        Self { skipped: Some(reason), ..self }
    }

    pub fn name(&self) -> String {
        let verdict = if self.admitted { "admitted" } else { "denied" };
        let quota = if self.quota == 10_000 { "10,000" } else { "100" };
        let window = match self.window {
            _ if !self.admitted => String::new(),
            micros => format!(" per {} ms", micros / 1_000),
        };
        let keys = if self.keys == 1 { "" } else { ", 10,000 keys" };
        format!("{verdict}, quota {quota}{window}, cost {}{keys}", self.cost)
    }

    fn is_measured(&self, design: Design) -> bool {
        let too_short = self.admitted && design.has_buckets() && self.window < 60_000;
        // One member per unit: a gigabyte and more.
        let too_large = design == Design::SortedSet
            && self.keys > 1
            && if self.admitted { self.cost > 1 } else { self.quota > 100 };
        // A period is at least a day long.
        let is_calendar = design == Design::Calendar;
        self.skipped.is_none() && !too_short && !too_large && !is_calendar
    }

    /// Returns the number of charges in use where checks are admitted.
    fn charges_in_use(&self) -> usize {
        if self.keys == 1 {
            (self.quota / self.cost) as usize * TENTHS_IN_USE / 10
        } else {
            self.keys * CHARGES_IN_USE_OF_MANY
        }
    }
}

impl Measured {
    pub fn of(
        pipeline: &mut Pipeline,
        scripts: &Scripts,
        scenarios: &[Scenario],
        rounds: usize,
        first_space: u64,
    ) -> Self {
        let mut loads = Self::loads(pipeline, scripts, scenarios, first_space);
        let ping = pipeline.pace_of_pings();
        let mut measured = Self { times: HashMap::new(), in_use: HashMap::new() };
        for _ in 0..rounds {
            for (number, scenario) in scenarios.iter().enumerate() {
                for design in Design::ALL {
                    let id = (number, design);
                    if let Some(load) = loads.get_mut(&id) {
                        let (micros, in_use) = load.measure(pipeline, scenario, design, ping);
                        measured.times.entry(id).or_default().push(micros);
                        measured.in_use.entry(id).or_default().push(in_use);
                    }
                }
            }
        }
        measured
    }

    fn loads(
        pipeline: &mut Pipeline,
        scripts: &Scripts,
        scenarios: &[Scenario],
        first_space: u64,
    ) -> HashMap<(usize, Design), Load> {
        let ping = pipeline.pace_of_pings();
        let mut loads = HashMap::new();
        let mut filled = HashMap::new();
        for (number, scenario) in scenarios.iter().enumerate() {
            for design in Design::ALL.into_iter().filter(|design| scenario.is_measured(*design)) {
                let Scenario { admitted, quota, cost, keys, window, calls, .. } = *scenario;
                let mut load = Load {
                    space: first_space + (number * 16) as u64 + design as u64,
                    keys,
                    arguments: Vec::new(),
                    hash: scripts.of(design).to_owned(),
                    quota,
                    window,
                    pings: 0,
                };
                if admitted {
                    // The pace without pings, with a quota that is not reached.
                    load.arguments = pair(10 * quota, cost, window, design.typed_parameter(window));
                    load.run(pipeline, calls / 2);
                    let natural = load.run(pipeline, calls / 2).pace;
                    let charges = scenario.charges_in_use() as f64;
                    let window = ((natural * charges) as u64).max(window).next_multiple_of(1_000);
                    load.window = window;
                    load.pings = ((window as f64 / charges - natural) / ping).max(0.0) as usize;
                    load.arguments = pair(quota, cost, window, design.typed_parameter(window));
                } else {
                    // Scenarios that differ only in their cost share their full keys.
                    load.space = *filled.entry((quota, keys, design)).or_insert_with(|| {
                        fill(pipeline, scripts, design, scenario, load.space);
                        load.space
                    });
                    load.arguments = pair(quota, cost, window, design.typed_parameter(window));
                }
                loads.insert((number, design), load);
            }
        }
        loads
    }

    pub fn rounds(&self, scenario: usize, design: Design) -> Option<&[f64]> {
        self.times.get(&(scenario, design)).map(Vec::as_slice)
    }

    pub fn micros(&self, scenario: usize, design: Design) -> Option<f64> {
        self.rounds(scenario, design).map(|times| median(times.to_vec()))
    }

    /// Returns the cost of one, relative to the other: the median of the ratios of all rounds.
    pub fn ratio(&self, of: (usize, Design), to: (usize, Design)) -> Option<f64> {
        Some(ratio(self.rounds(of.0, of.1)?, self.rounds(to.0, to.1)?))
    }

    pub fn print(&self, scenarios: &[Scenario]) {
        let line = |name: &str, value: &dyn Fn(Design) -> Option<f64>| {
            print!("{name:48}");
            for design in Design::ALL {
                print!("{:>12}", value(design).map_or("-".to_owned(), |value| format!("{value:.2}")));
            }
            println!();
        };
        for (number, scenario) in scenarios.iter().enumerate() {
            if let Some(reason) = scenario.skipped {
                println!("{:48}{:>12}  {reason}", scenario.name(), "-");
                continue;
            }
            line(&scenario.name(), &|design| self.micros(number, design));
            if scenario.admitted && scenario.keys == 1 {
                line("    % in use", &|design| Some(median(self.in_use.get(&(number, design))?.clone())));
            }
            line("    x GCRA", &|design| self.ratio((number, design), (number, Design::Gcra)));
            line("    x sorted set", &|design| self.ratio((number, design), (number, Design::SortedSet)));
        }
    }
}

impl Load {
    /// Calls the script so often, on one key after the other, with many calls per write.
    fn run(&self, pipeline: &mut Pipeline, calls: usize) -> Run {
        // A sample is shorter than a time slice of a busy machine.
        let calls_per_sample = if self.pings > 200 { 8 } else { 64 };
        let mut replies = Vec::with_capacity(calls);
        pipeline.samples();
        let start = Instant::now();
        pipeline.queue_mark();
        for first in (0..calls).step_by(4 * calls_per_sample) {
            let last = calls.min(first + 4 * calls_per_sample);
            for call in first..last {
                let key = key(self.space, call % self.keys);
                pipeline.queue(&[b"EVALSHA", self.hash.as_bytes(), b"1", key.as_bytes(), &self.arguments]);
                pipeline.queue_pings(self.pings);
                if (call + 1) % calls_per_sample == 0 || call + 1 == calls {
                    pipeline.queue_mark();
                }
            }
            pipeline.flush(|reply| replies.push(verdict(reply)));
        }
        let pace = start.elapsed().as_secs_f64() * 1e6 / calls as f64;
        let sample = |(micros, replies): (f64, &[(bool, u32)])| Sample {
            micros,
            admitted: replies.iter().filter(|(admitted, _)| *admitted).count(),
            calls: replies.len(),
            in_use: 100.0 - 100.0 * f64::from(replies[0].1.min(self.quota)) / f64::from(self.quota),
        };
        let samples = pipeline.samples().into_iter().zip(replies.chunks(calls_per_sample)).map(sample);
        Run { samples: samples.collect(), pace }
    }

    /// Measures one round: microseconds per call, and the percentage in use. Both are NaN if the machine was interrupted so
    /// often that no sample shows the steady state.
    fn measure(
        &mut self,
        pipeline: &mut Pipeline,
        scenario: &Scenario,
        design: Design,
        ping: f64,
    ) -> (f64, f64) {
        let charges = scenario.charges_in_use();
        if scenario.admitted && design != Design::Nothing {
            // The charges of the round before have left.
            self.run(pipeline, charges + charges / 10);
        }
        let mut run = self.run(pipeline, scenario.calls);
        let one_key = scenario.admitted && scenario.keys == 1;
        if one_key && !matches!(design, Design::Nothing | Design::Gcra) {
            // Other processes slow the pace. Corrects it for the next round, by the 95th percentile of the usage.
            run.samples.sort_by(|a, b| b.in_use.total_cmp(&a.in_use));
            let most = run.samples[run.samples.len() / 20].in_use;
            let pace = self.window as f64 / charges as f64;
            let correction = 0.5 * pace * (most / MAX_PERCENT_IN_USE - 1.0) / ping;
            self.pings = (self.pings as f64 + correction).max(0.0) as usize;
        }
        // After an interruption, all charges have left.
        let slides = !matches!(design, Design::Nothing | Design::Gcra | Design::Fixed);
        run.samples.retain(|sample| {
            let has_verdict = match (design, scenario.admitted) {
                (Design::Nothing, _) => true,
                (_, true) => sample.admitted == sample.calls,
                (_, false) => sample.admitted == 0,
            };
            has_verdict && (!one_key || !slides || sample.in_use >= MIN_PERCENT_IN_USE)
        });
        if run.samples.len() < 3 {
            return (f64::NAN, f64::NAN);
        }
        (
            undisturbed(run.samples.iter().map(|sample| sample.micros).collect()),
            median(run.samples.iter().map(|sample| sample.in_use).collect()),
        )
    }
}
