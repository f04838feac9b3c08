//! Tables in Markdown, and bar charts in SVG.

use std::fmt::Write;

/// Median and spread of the rounds of one cell.
#[derive(Clone, Debug, Default)]
pub struct Rounds(pub Vec<f64>);

impl Rounds {
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Formats the median, and the smallest and largest round.
    pub fn with_spread(&self) -> String {
        let (min, max) = (
            self.0.iter().copied().fold(f64::NAN, f64::min),
            self.0.iter().copied().fold(f64::NAN, f64::max),
        );
        format!("{} ({} to {})", number(self.median()), number(min), number(max))
    }
}

/// Formats a number with three significant digits at least, and separators of thousands.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => String::new(),
        small if small < 10.0 => format!("{value:.2}"),
        small if small < 100.0 => format!("{value:.1}"),
        _ => {
            let digits = format!("{:.0}", value.abs());
            let mut text = String::new();
            for (i, digit) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            if value < 0.0 { format!("-{text}") } else { text }
        }
    }
}

/// How this crate compares with the best other crate, cell by cell.
#[derive(Default)]
pub struct Comparison(Vec<(String, String, f64)>);

impl Comparison {
    /// Adds a cell: what `ours` and each of the others take of time or work.
    pub fn add(
        &mut self,
        cell: impl Into<String>,
        ours: f64,
        others: impl IntoIterator<Item = (&'static str, f64)>,
    ) {
        if let Some((name, best)) = others.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b)) {
            self.0.push((cell.into(), name.to_owned(), ours / best));
        }
    }

    /// Returns the cells in which another crate is better, the worst first.
    pub fn losses(&self) -> String {
        let mut lost: Vec<_> = self.0.iter().filter(|(.., ratio)| *ratio > 1.0).collect();
        lost.sort_by(|(.., a), (.., b)| b.total_cmp(a));
        let row = |(cell, name, ratio): &&(String, String, f64)| {
            vec![cell.clone(), name.clone(), format!("{ratio:.2} x")]
        };
        let rows: Vec<_> = lost.iter().map(row).collect();
        let (lost, all) = (lost.len(), self.0.len());
        format!("In {lost} of {all} cells, another crate needs less:\n\n")
            + &markdown(&["cell", "best other crate", "this crate needs"], &rows)
    }
}

pub fn markdown(heading: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
    let rule: Vec<String> = heading.iter().map(|_| "---".to_owned()).collect();
    rows.iter().fold(line(&heading) + &line(&rule), |table, row| table + &line(row))
}

/// Draws a bar for each name and value. Ours are darker.
pub fn bars(title: &str, unit: &str, values: &[(String, f64)]) -> String {
    let max = values.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let height = 40 + 26 * values.len();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"{title}\">\n\
         <rect width=\"760\" height=\"{height}\" fill=\"#ffffff\"/>\n<text x=\"10\" y=\"20\" font-weight=\"bold\" fill=\"#1b1f24\">{title} ({unit})</text>\n"
    );
    for (i, (name, value)) in values.iter().enumerate() {
        let y = 34 + 26 * i;
        let width = (value / max * 330.0).max(1.0);
        let fill = if name.contains("tower-sliding-window") { "#0b5fa5" } else { "#9fb4c7" };
        let name = name.replace("**", "").replace('`', "");
        let _ = write!(
            svg,
            "<text x=\"330\" y=\"{}\" text-anchor=\"end\" fill=\"#1b1f24\">{name}</text>\n<rect x=\"340\" y=\"{y}\" width=\"{width:.0}\" height=\"18\" fill=\"{fill}\"/>\n<text x=\"{:.0}\" y=\"{}\" fill=\"#1b1f24\">{}</text>\n",
            y + 14,
            348.0 + width,
            y + 14,
            number(*value),
        );
    }
    svg + "</svg>\n"
}
