//! Where another crate needs less than this one, each type of limit compared with its own type.

use crate::{
    limit::LimitType,
    table::{Rounds, markdown, number},
};

/// A figure of which less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    Time,
    P99,
    ServerTime,
    CallTime,
    Commands,
    Instructions,
    Allocations,
    Bytes,
}

impl Figure {
    const ALL: [Self; 8] = [
        Self::Time,
        Self::P99,
        Self::ServerTime,
        Self::CallTime,
        Self::Commands,
        Self::Instructions,
        Self::Allocations,
        Self::Bytes,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time of a decision, ns",
            Self::P99 => "p99 of the latency, us",
            Self::ServerTime => "CPU time of the server, us",
            Self::CallTime => "time of a script call, us",
            Self::Commands => "commands",
            Self::Instructions => "instructions",
            Self::Allocations => "allocations",
            Self::Bytes => "bytes of a key",
        }
    }
}

/// The part of a subject in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This crate, with its defaults.
    Ours(LimitType),
    OtherCrate(LimitType),
    /// A reference, or this crate with other settings.
    NotCompared,
}

/// What a subject needs in a cell. A figure that does not vary has one round.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: &'static str,
    pub role: Role,
    pub rounds: Rounds,
}

/// How this crate compares with another one in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    OtherNeedsLess,
    Equal,
    ThisNeedsLess,
}

impl Outcome {
    fn of(ours: &Rounds, theirs: &Rounds) -> Self {
        // A figure that does not vary has a range of one number. It is equal as it is printed.
        if ours.overlaps(theirs) || number(ours.median()) == number(theirs.median()) {
            Self::Equal
        } else if ours.median() > theirs.median() {
            Self::OtherNeedsLess
        } else {
            Self::ThisNeedsLess
        }
    }
}

/// How this crate compares with the best other crate, cell by cell.
#[derive(Default)]
pub struct Comparison(Vec<Compared>);

struct Compared {
    figure: Figure,
    cell: String,
    ours: Rounds,
    /// The best other crate, and what it needs.
    other: Entry,
    outcome: Outcome,
}

impl Compared {
    fn ratio(&self) -> f64 {
        ratio(&self.ours, &self.other.rounds)
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.cell.clone(),
            self.figure.name().to_owned(),
            self.ours.with_spread(),
            self.other.name.to_owned(),
            self.other.rounds.with_spread(),
            ratio_text(self.ratio()),
        ]
    }
}

/// Returns what one needs in multiples of the other. A difference from the inner service may be negative by chance.
pub fn ratio(one: &Rounds, other: &Rounds) -> f64 {
    if other.median() > 0.0 { one.median() / other.median() } else { f64::INFINITY }
}

pub fn ratio_text(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2} x") } else { String::new() }
}

impl Comparison {
    /// Adds a cell: compares this crate, in each type of limit, with the other crates of this type.
    pub fn add(&mut self, figure: Figure, cell: &str, entries: &[Entry]) {
        for ours in entries {
            let Role::Ours(limit_type) = ours.role else { continue };
            let others = entries.iter().filter(|other| other.role == Role::OtherCrate(limit_type));
            let compared = others.map(|other| (Outcome::of(&ours.rounds, &other.rounds), other));
            // One crate that needs less is enough, also if the range of a better one overlaps.
            let best = compared.min_by(|(a, one), (b, other)| {
                a.cmp(b).then(one.rounds.median().total_cmp(&other.rounds.median()))
            });
            if let Some((outcome, other)) = best {
                let (ours, other) = (ours.rounds.clone(), other.clone());
                self.0.push(Compared { figure, cell: cell.to_owned(), ours, other, outcome });
            }
        }
    }

    /// Returns the number of cells with each outcome for each figure, and the lost cells, the worst first.
    pub fn losses(&self) -> String {
        let count = |figure: Option<Figure>, outcome| {
            let of_figure = self.0.iter().filter(|compared| figure.is_none_or(|it| it == compared.figure));
            of_figure.filter(|compared| compared.outcome == outcome).count()
        };
        let mut lost: Vec<_> =
            self.0.iter().filter(|compared| compared.outcome == Outcome::OtherNeedsLess).collect();
        lost.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
        let row = |figure: Figure| {
            let outcomes = [Outcome::ThisNeedsLess, Outcome::Equal, Outcome::OtherNeedsLess];
            let counts = outcomes.map(|outcome| count(Some(figure), outcome));
            let all: usize = counts.iter().sum();
            let worst = lost.iter().find(|compared| compared.figure == figure);
            let mut row = vec![figure.name().to_owned(), all.to_string()];
            row.extend(counts.map(|count| count.to_string()));
            row.push(worst.map(|compared| ratio_text(compared.ratio())).unwrap_or_default());
            (all > 0).then_some(row)
        };
        let summary: Vec<_> = Figure::ALL.into_iter().filter_map(row).collect();
        let rows: Vec<_> = lost.iter().map(|compared| compared.row()).collect();
        let has_larger_median =
            |compared: &&Compared| compared.ours.median() > compared.other.rounds.median();
        format!(
            "{RULE}\n\nIn {} of {} cells, another crate needs less, and {} cells are equal. By the medians alone, another crate needs less in \
             {} cells:\n\n",
            lost.len(),
            self.0.len(),
            count(None, Outcome::Equal),
            self.0.iter().filter(has_larger_median).count()
        ) + &markdown(
            &["figure", "cells", "this crate needs less", "equal", "another crate needs less", "worst"],
            &summary,
        ) + "\nTimes and instructions in memory are those over the inner service. The lost cells:\n\n"
            + &markdown(&["cell", "figure", "this crate", "best other crate", "its figure", "ratio"], &rows)
    }
}

const RULE: &str = "A GCRA is a token bucket, so these cells compare the crates with a GCRA with the token bucket of this crate. None of \
    the other crates here keeps a sliding log; the next section shows what the log costs.\n\n\
    A time is the median of its rounds. If the ranges of the rounds overlap, from the smallest to the largest one, the cell counts as \
    equal: other work on the machine widens the ranges, so an equal cell proves nothing. Commands, instructions, allocations and bytes do not vary, and are compared as printed.";
