//! Charts for the guide: the comparison of two traces, as SVG files that are readable in light and dark.

use std::{fmt::Write, ops::Range, path::Path, time::Duration};

use tower_sliding_window::Policy;

use crate::{
    compare::{Comparison, Lane},
    frame,
};

const QUOTA: u32 = 50;
const WINDOW: Duration = Duration::from_secs(10);
/// A second in microseconds.
const SECOND: i64 = 1_000_000;

/// The left edge and the width of the timelines, and of the bars, in pixels.
const TIMELINE: (f64, f64) = (122.0, 400.0);
const BARS: (f64, f64) = (600.0, 110.0);
/// The height of the heading and of a row, in pixels.
const HEADING: f64 = 92.0;
const ROW: f64 = 44.0;

/// A trace, and what its chart shows.
struct Chart {
    name: &'static str,
    title: &'static str,
    /// The time of each request in microseconds from the edge of a calendar window.
    requests: Vec<i64>,
    /// The range of the time axis, in seconds.
    shown: Range<i64>,
    /// The time that a column covers, in microseconds. It divides a second.
    slot: i64,
}

/// Writes each chart to a folder.
pub(crate) async fn write(folder: &Path) -> Result<(), String> {
    for chart in charts() {
        frame::write(folder, chart.name, chart.draw().await?)?;
    }
    Ok(())
}

fn charts() -> [Chart; 2] {
    // Fifty requests in a second. The counter of INCREX begins with the early request, and ends between the bursts.
    let burst = |begin: i64| (0..50).map(move |i| begin + i * SECOND / 50);
    let early = [-21 * SECOND / 2];
    [
        Chart {
            name: "bursts",
            title: "One early request, and a burst of 50 requests on each side of the edge of a window",
            requests: early.into_iter().chain(burst(-2 * SECOND)).chain(burst(SECOND / 2)).collect(),
            shown: -11..2,
            slot: SECOND / 5,
        },
        Chart {
            name: "stream",
            title: "An even stream of 10 requests per second: twice the quota",
            requests: (0..340).map(|i| -4 * SECOND + i * SECOND / 10).collect(),
            shown: -4..30,
            slot: SECOND / 2,
        },
    ]
}

impl Chart {
    async fn draw(&self) -> Result<String, String> {
        let policy = Policy::new("quota", QUOTA, WINDOW).map_err(|error| error.to_string())?;
        let trace = self.requests.iter().map(|at| (*at, 1)).collect();
        let lanes = Comparison { policy, precision_ms: 1_000, trace }.run().await?;
        let bottom = HEADING + ROW * lanes.len() as f64;
        let subtitle = format!(
            "Quota: {QUOTA} units in {} s. Dashed: edges of the windows of a counter.",
            WINDOW.as_secs()
        );
        let mut svg = frame::begin(self.title, &subtitle, bottom + 30.0);
        svg += &self.heading(bottom);
        let tallest =
            (0..self.columns()).map(|column| self.requested(self.column(column))).max().unwrap_or(1);
        for (row, lane) in lanes.iter().enumerate() {
            svg += &self.row(lane, HEADING + ROW * (row + 1) as f64 - 6.0, tallest.max(1) as f64);
        }
        Ok(svg + "</svg>\n")
    }

    /// Draws the legend, the headings of the columns, the time axis, and the line of the quota.
    fn heading(&self, bottom: f64) -> String {
        let y = 68.0;
        let legend =
            [(122.0, "admitted", "admitted"), (206.0, "denied", "denied"), (276.0, "over", "over the quota")];
        let mut svg = frame::legend(&legend, y);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">admitted in all</text>\n\
             <text x=\"{}\" y=\"{y}\">in the worst {} s</text>",
            BARS.0 - 16.0,
            BARS.0,
            WINDOW.as_secs(),
        );
        let step = if self.shown.end - self.shown.start > 20 { 5 } else { 2 };
        for second in self.shown.clone().filter(|second| second % step == 0) {
            let text = if second == 0 { "edge".to_owned() } else { format!("{second} s") };
            let _ = writeln!(
                svg,
                "<text class=\"small\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
                self.x(second * SECOND),
                bottom + 14.0,
            );
        }
        let quota = BARS.0 + BARS.1 / 2.0;
        let _ = writeln!(
            svg,
            "<line class=\"edge\" x1=\"{quota}\" x2=\"{quota}\" y1=\"{}\" y2=\"{bottom}\"/>\n\
             <text class=\"small\" x=\"{quota}\" y=\"{}\" text-anchor=\"middle\">quota</text>",
            HEADING - 14.0,
            bottom + 14.0,
        );
        svg
    }

    /// Draws the decisions of a counter, which stand on the line `y`, and the bar of its worst window.
    fn row(&self, lane: &Lane, y: f64, tallest: f64) -> String {
        let (left, width) = TIMELINE;
        let mut svg = format!(
            "<text x=\"14\" y=\"{}\">{}</text><line class=\"base\" x1=\"{left}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>\n",
            y - 8.0,
            lane.name,
            left + width,
        );
        let shown = self.shown.start * SECOND..self.shown.end * SECOND;
        for edge in lane.edges.iter().filter(|edge| shown.contains(edge)) {
            let x = self.x(*edge);
            let _ = writeln!(
                svg,
                "<line class=\"edge\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{y}\"/>",
                y - 32.0
            );
        }
        let (mut admitted, mut denied) = (String::new(), String::new());
        for column in 0..self.columns() {
            let slot = self.column(column);
            let all = self.requested(slot.clone()) as f64 / tallest * 30.0;
            let decided = self.requests.iter().zip(lane.admissions());
            let count = decided.filter(|(at, is_admitted)| *is_admitted && slot.contains(at)).count();
            let part = count as f64 / tallest * 30.0;
            let x = left + width * column as f64 / self.columns() as f64;
            for (path, from, height) in [(&mut admitted, y, part), (&mut denied, y - part, all - part)] {
                if height > 0.0 {
                    let _ = write!(path, "M{x:.1} {from:.1}h5v-{height:.1}h-5z");
                }
            }
        }
        for (class, path) in [("admitted", admitted), ("denied", denied)] {
            let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
        }
        let (left, width) = BARS;
        let scale = width / 2.0 / f64::from(QUOTA);
        let (units, over) = (lane.worst.units as f64 * scale, lane.over as f64 * scale);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\
             <rect class=\"admitted\" x=\"{left}\" y=\"{top}\" width=\"{:.1}\" height=\"16\"/>\
             <rect class=\"over\" x=\"{:.1}\" y=\"{top}\" width=\"{over:.1}\" height=\"16\"/>\
             <text x=\"{:.1}\" y=\"{text}\">{}</text>",
            left - 16.0,
            lane.admitted,
            units - over,
            left + units - over,
            left + units.max(width / 2.0) + 6.0,
            lane.worst.units,
            text = y - 8.0,
            top = y - 21.0,
        );
        svg
    }

    /// Returns the position of a time on the axis, in pixels.
    fn x(&self, at: i64) -> f64 {
        let (start, end) = (self.shown.start * SECOND, self.shown.end * SECOND);
        TIMELINE.0 + TIMELINE.1 * (at - start) as f64 / (end - start) as f64
    }

    fn columns(&self) -> i64 {
        (self.shown.end - self.shown.start) * SECOND / self.slot
    }

    /// Returns the time that a column covers, in microseconds.
    fn column(&self, column: i64) -> Range<i64> {
        let start = self.shown.start * SECOND + column * self.slot;
        start..start + self.slot
    }

    /// Returns the number of requests within this time.
    fn requested(&self, slot: Range<i64>) -> usize {
        self.requests.iter().filter(|at| slot.contains(at)).count()
    }
}
