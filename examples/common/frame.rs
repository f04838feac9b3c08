//! The frame, the colours and the files of the charts of the guide, which are readable in light and dark.

use std::{fmt::Write, fs, path::Path};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// The characters that a Markdown link must not contain as they are.
const ENCODED: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'(').add(b')');

const STYLE: &str = "text{font:13px sans-serif;fill:#1b1f24}.title{font-weight:bold}.small{font-size:11px;fill:#57606a}\
    .page{fill:#fff}.admitted{fill:#08427a}.denied{fill:#8a96a2}.over{fill:#c4361f;stroke:#fff}\
    .edge{stroke:#7d8790;stroke-dasharray:2 3}.base{stroke:#c3ced9}@media(prefers-color-scheme:dark){text{fill:#e6edf3}\
    .small{fill:#9aa5b1}.page{fill:#14181d}.admitted{fill:#a5d1f8}.denied{fill:#66717d}.over{fill:#ff7b6b;stroke:#14181d}\
    .edge{stroke:#8b949e}.base{stroke:#45505c}}";

/// Returns the begin of a chart: its colours, its title, and the line below the title.
pub(crate) fn begin(title: &str, subtitle: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" width=\"760\" height=\"{height}\" \
         role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"760\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"14\" y=\"24\">{title}</text>\n\
         <text class=\"small\" x=\"14\" y=\"44\">{subtitle}</text>\n",
    )
}

/// Draws a legend on the line `y`: the position of each entry, the class of its colour, and its text.
pub(crate) fn legend(entries: &[(f64, &str, &str)], y: f64) -> String {
    let mut svg = String::new();
    for (x, class, text) in entries {
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\"/><text x=\"{}\" y=\"{y}\">{text}</text>",
            y - 10.0,
            x + 16.0,
        );
    }
    svg
}

/// Writes a chart to a folder: as SVG, and as a link for a page of rustdoc, which copies no files.
pub(crate) fn write(folder: &Path, name: &str, svg: String) -> Result<(), String> {
    let link = format!("data:image/svg+xml,{}", utf8_percent_encode(&svg, ENCODED));
    for (extension, text) in [("svg", svg), ("txt", link)] {
        let file = folder.join(name).with_extension(extension);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}
