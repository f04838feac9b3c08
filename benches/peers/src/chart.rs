//! Bar charts as SVG, readable in light and dark.

use std::fmt::Write;

use crate::table::number;

/// The left edge and the greatest width of the bars, and the height of the heading and of a row, in pixels.
const BARS: (f64, f64) = (390.0, 280.0);
const HEADING: usize = 36;
const ROW: usize = 26;
/// The colours of the charts in the guide.
const STYLE: &str = "text{font:13px sans-serif;fill:#1b1f24}.title{font-weight:bold}.page{fill:#fff}.ours{fill:#08427a}\
    .other{fill:#8a96a2}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#14181d}.ours{fill:#a5d1f8}\
    .other{fill:#66717d}}";

/// A bar: the name of a subject, its value, and whether it is this crate.
pub struct Bar {
    pub name: &'static str,
    pub value: f64,
    pub is_ours: bool,
}

/// A chart, with the name of its file.
pub struct Chart {
    pub file: String,
    pub title: String,
    pub svg: String,
}

impl Chart {
    pub fn new(file: &str, title: &str, bars: &[Bar]) -> Self {
        Self { file: file.to_owned(), title: title.to_owned(), svg: draw(title, bars) }
    }

    /// Returns the image in Markdown.
    pub fn markdown(&self) -> String {
        format!("![{}](charts/{})\n", self.title, self.file)
    }
}

fn draw(title: &str, bars: &[Bar]) -> String {
    let max = bars.iter().map(|bar| bar.value).fold(1.0, f64::max);
    let height = HEADING + ROW * bars.len() + 6;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" width=\"760\" height=\"{height}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<rect class=\"page\" width=\"760\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"14\" y=\"22\">{title}</text>\n"
    );
    let (left, widest) = BARS;
    for (row, bar) in bars.iter().enumerate() {
        let top = HEADING + ROW * row;
        let (baseline, width) = (top + 14, (bar.value / max * widest).max(1.0));
        let class = if bar.is_ours { "ours" } else { "other" };
        let name = bar.name.replace(['*', '`'], "");
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\">{name}</text>\n\
             <rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"{width:.0}\" height=\"18\"/>\n\
             <text x=\"{:.0}\" y=\"{baseline}\">{}</text>\n",
            left - 10.0,
            left + width + 8.0,
            number(bar.value),
        );
    }
    svg + "</svg>\n"
}
