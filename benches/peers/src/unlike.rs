//! What the sliding log costs beside a token bucket and the best GCRA of another crate, in the main cells.

use crate::{
    comparison::{Entry, Figure, Role, ratio, ratio_text},
    limit::LimitType,
    table::markdown,
};

/// The main cells, in which unlike types are shown side by side.
#[derive(Default)]
pub struct Unlike(Vec<(Figure, Vec<String>)>);

impl Unlike {
    /// Adds a cell that has a log, a token bucket and another crate with a GCRA.
    pub fn add(&mut self, figure: Figure, cell: &str, entries: &[Entry]) {
        let best = |role: Role| {
            let of_role = entries.iter().filter(|entry| entry.role == role);
            of_role.min_by(|a, b| a.rounds.median().total_cmp(&b.rounds.median()))
        };
        let ours = [LimitType::Log, LimitType::TokenBucket].map(|limit_type| best(Role::Ours(limit_type)));
        let gcra = best(Role::OtherCrate(LimitType::TokenBucket));
        if let ([Some(log), Some(bucket)], Some(gcra)) = (ours, gcra) {
            let mut row = vec![cell.to_owned()];
            row.extend([log, bucket].map(|entry| entry.rounds.with_spread()));
            row.extend([gcra.name.to_owned(), gcra.rounds.with_spread()]);
            row.extend([bucket, gcra].map(|entry| ratio_text(ratio(&log.rounds, &entry.rounds))));
            self.0.push((figure, row));
        }
    }

    /// Returns the cells, those of bytes in a table of their own.
    pub fn tables(&self) -> String {
        let heading = [
            "sliding log",
            "token bucket",
            "best GCRA crate",
            "its figure",
            "log / token bucket",
            "log / GCRA",
        ];
        let table = |heading_of_cell: &[&str], rows: Vec<Vec<String>>| {
            markdown(&[heading_of_cell, &heading].concat(), &rows)
        };
        let work = self.0.iter().filter(|(figure, _)| *figure != Figure::Bytes).map(|(figure, row)| {
            let mut row = row.clone();
            row.insert(1, figure.name().to_owned());
            row
        });
        let bytes = self.0.iter().filter(|(figure, _)| *figure == Figure::Bytes).map(|(_, row)| row.clone());
        format!("{TEXT}\n\n")
            + &table(&["cell", "figure"], work.collect())
            + "\nBytes of a key after one request. A log stores one record for each further charge, and a GCRA none:\n\n"
            + &table(&["cell"], bytes.collect())
    }
}

const TEXT: &str = "A sliding log is exact in every window and stores each charge. A GCRA stores one instant for each key, and admits almost \
    twice the capacity in the time in which it returns. These are unlike types, so these cells are not among those above.";
