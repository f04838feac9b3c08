//! Where another crate needs less than this one.

use crate::table::{markdown, number};

/// A figure of which less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    Time,
    P99,
    ServerTime,
    Commands,
    Instructions,
    Allocations,
    Bytes,
}

impl Figure {
    const ALL: [Self; 7] = [
        Self::Time,
        Self::P99,
        Self::ServerTime,
        Self::Commands,
        Self::Instructions,
        Self::Allocations,
        Self::Bytes,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Time => "time of a decision, ns",
            Self::P99 => "p99 of the latency, us",
            Self::ServerTime => "CPU time of the server, us",
            Self::Commands => "commands",
            Self::Instructions => "instructions",
            Self::Allocations => "allocations",
            Self::Bytes => "bytes of a key",
        }
    }
}

/// How this crate compares with the best other crate, cell by cell.
#[derive(Default)]
pub struct Comparison(Vec<Compared>);

struct Compared {
    figure: Figure,
    cell: String,
    ours: f64,
    /// The best other crate, and what it needs.
    other: &'static str,
    theirs: f64,
}

impl Compared {
    /// Returns what this crate needs in multiples of the other. A difference from the inner service may be negative by chance.
    fn ratio(&self) -> f64 {
        if self.theirs > 0.0 { self.ours / self.theirs } else { f64::INFINITY }
    }

    /// Ratios have two decimals, and so has this verdict.
    fn is_lost(&self) -> bool {
        self.ours > self.theirs.max(0.0) && self.ratio() >= 1.005
    }

    fn ratio_text(&self) -> String {
        if self.theirs > 0.0 { format!("{:.2} x", self.ratio()) } else { String::new() }
    }
}

impl Comparison {
    /// Adds a cell: what this crate and each of the others need.
    pub fn add(
        &mut self,
        figure: Figure,
        cell: &str,
        ours: f64,
        others: impl IntoIterator<Item = (&'static str, f64)>,
    ) {
        if let Some((other, theirs)) = others.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b)) {
            self.0.push(Compared { figure, cell: cell.to_owned(), ours, other, theirs });
        }
    }

    /// Returns the number of lost cells for each figure, and the lost cells, the worst first.
    pub fn losses(&self) -> String {
        let mut lost: Vec<_> = self.0.iter().filter(|compared| compared.is_lost()).collect();
        lost.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
        let summary: Vec<_> = Figure::ALL
            .into_iter()
            .filter_map(|figure| {
                let all = self.0.iter().filter(|compared| compared.figure == figure).count();
                let worst = lost.iter().find(|compared| compared.figure == figure);
                let worst = worst.map(|compared| compared.ratio_text()).unwrap_or_default();
                let lost = lost.iter().filter(|compared| compared.figure == figure).count();
                (all > 0).then(|| vec![figure.name().to_owned(), all.to_string(), lost.to_string(), worst])
            })
            .collect();
        let row = |compared: &&Compared| {
            vec![
                compared.cell.clone(),
                compared.figure.name().to_owned(),
                number(compared.ours),
                compared.other.to_owned(),
                number(compared.theirs),
                compared.ratio_text(),
            ]
        };
        let rows: Vec<_> = lost.iter().map(row).collect();
        format!("In {} of {} cells, another crate needs less:\n\n", lost.len(), self.0.len())
            + &markdown(&["figure", "cells", "another crate needs less", "worst"], &summary)
            + "\nTime in memory and instructions are those over the inner service. Where the ranges of the rounds overlap, a difference \
               of times proves nothing.\n\n"
            + &markdown(&["cell", "figure", "this crate", "best other crate", "its figure", "ratio"], &rows)
    }
}
