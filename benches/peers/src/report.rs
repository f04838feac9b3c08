//! What the parts have measured, and the files that it is written to.

use std::{error::Error, fs, path::Path};

use crate::{
    chart::Chart,
    comparison::{Comparison, Entry, Figure},
    unlike::Unlike,
};

#[derive(Default)]
pub struct Report {
    text: String,
    charts: Vec<Chart>,
    comparison: Comparison,
    unlike: Unlike,
}

impl Report {
    pub fn section(&mut self, heading: &str, text: &str) {
        self.text(&format!("\n## {heading}\n\n{text}\n\n"));
    }

    pub fn subsection(&mut self, heading: &str, text: &str) {
        self.text(&format!("\n### {heading}\n\n{text}\n\n"));
    }

    /// Adds Markdown, and prints it.
    pub fn text(&mut self, text: &str) {
        print!("{text}");
        self.text += text;
    }

    pub fn chart(&mut self, chart: Chart) {
        self.text(&(chart.markdown() + "\n"));
        self.charts.push(chart);
    }

    /// Compares this crate with the others in a cell, each type of limit with its own type.
    pub fn compare(&mut self, figure: Figure, cell: &str, entries: &[Entry]) {
        self.comparison.add(figure, cell, entries);
    }

    /// Shows the types of limits side by side in a cell.
    pub fn compare_types(&mut self, figure: Figure, cell: &str, entries: &[Entry]) {
        self.unlike.add(figure, cell, entries);
    }

    /// Prints where this crate loses.
    pub fn print_losses(&self) {
        println!("\n{}", self.losses());
    }

    fn losses(&self) -> String {
        format!(
            "## Where this crate loses\n\n{}\n## What a sliding log costs beside a GCRA\n\n{}",
            self.comparison.losses(),
            self.unlike.tables()
        )
    }

    /// Writes `RESULTS.md` and the charts to a folder.
    pub fn write(&self, folder: &Path, introduction: &str) -> Result<(), Box<dyn Error>> {
        let charts = folder.join("charts");
        fs::create_dir_all(&charts)?;
        for chart in &self.charts {
            fs::write(charts.join(&chart.file), &chart.svg)?;
        }
        let text = format!("# Results\n\n{introduction}\n{}{}", self.losses(), self.text);
        Ok(fs::write(folder.join("RESULTS.md"), text)?)
    }
}
