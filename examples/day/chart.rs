//! The picture of both days: what the API has served over the day, what it has rejected, and which reads were not sent.

use std::fmt::Write;

use crate::{
    api::{QUOTA, Sender},
    demand::Kind,
    frame,
    report::Figures,
    simulation::{Outcome, World},
    time::{DAY, HOUR, MINUTE, MONDAY},
};

const TITLE: &str = "A day of an API that grants 10,000 units, and eight jobs that want more";
/// The left edge and the width of the timelines, in pixels.
const TIMELINE: (f64, f64) = (140.0, 392.0);
/// The headings of the columns of figures, and their right edges, in pixels.
const COLUMNS: [(&str, f64); 3] = [("gone at", 602.0), ("served", 670.0), ("rejected", 746.0)];
/// The height of the heading, of the line above the rows of a day, and of a row, in pixels.
const HEADING: f64 = 82.0;
const LINE: f64 = 26.0;
const ROW: f64 = 52.0;
/// The height of the whole quota, in pixels.
const TALLEST: f64 = 34.0;
/// The time that a column covers.
const SLOT: u64 = 30 * MINUTE;

/// Draws the days with and without a stranger.
pub(crate) fn draw(days: &[(World, Vec<Outcome>)]) -> String {
    let rows: usize = days.iter().map(|(_, outcomes)| outcomes.len()).sum();
    let bottom = HEADING + LINE * days.len() as f64 + ROW * rows as f64;
    let subtitle =
        "Midnight to midnight in the zone of the API. Dashed: all units that are available to the jobs.";
    let mut svg = frame::begin(TITLE, subtitle, bottom + 26.0);
    svg += &heading(bottom);
    let mut y = HEADING;
    for (world, outcomes) in days {
        y += LINE;
        let _ = writeln!(svg, "<text class=\"title\" x=\"14\" y=\"{}\">{}</text>", y - 6.0, world.name());
        for outcome in outcomes {
            y += ROW;
            svg += &row(outcome, y - 10.0);
        }
    }
    svg + "</svg>\n"
}

/// Draws the legend, the headings of the columns, and the time axis.
fn heading(bottom: f64) -> String {
    let y = 70.0;
    let legend = [
        (TIMELINE.0, "admitted", "served so far"),
        (TIMELINE.0 + 116.0, "denied", "reads not sent"),
        (TIMELINE.0 + 240.0, "over", "rejected by the API"),
    ];
    let mut svg = frame::legend(&legend, y);
    svg += &columns(COLUMNS.map(|(name, _)| name.to_owned()), y);
    for hour in (0..=24).step_by(3) {
        let _ = writeln!(
            svg,
            "<text class=\"small\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{hour:02}:00</text>",
            x(hour * HOUR),
            bottom + 12.0,
        );
    }
    svg
}

/// Draws the day of a client, which stands on the line `y`.
fn row(outcome: &Outcome, y: f64) -> String {
    let figures = Figures::of(outcome);
    let (left, right) = (TIMELINE.0, TIMELINE.0 + TIMELINE.1);
    let available = y - height(figures.available);
    let mut svg = format!(
        "<text x=\"14\" y=\"{text}\">{name}</text>\
         <line class=\"base\" x1=\"{left}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>\
         <line class=\"edge\" x1=\"{left}\" x2=\"{right}\" y1=\"{available:.1}\" y2=\"{available:.1}\"/>\n",
        text = y - 12.0,
        name = outcome.plan.name(),
    );
    let mut served = 0;
    let (mut area, mut lost, mut rejected) = (format!("M{left} {y}"), String::new(), String::new());
    for slot in 0..DAY / SLOT {
        let slot = slot * SLOT..(slot + 1) * SLOT;
        let of_jobs = outcome.log.iter().filter(|logged| logged.sender != Sender::Stranger);
        let of_slot = of_jobs.filter(|logged| logged.at >= MONDAY && slot.contains(&(logged.at - MONDAY)));
        let (begin, end) = (x(slot.start), x(slot.end));
        served += of_slot.clone().filter(|logged| logged.is_served).map(|logged| logged.cost).sum::<u32>();
        let _ = write!(area, "V{:.1}H{end:.1}", y - height(served));
        if of_slot.clone().any(|logged| !logged.is_served) {
            let _ = write!(rejected, "M{begin:.1} {:.1}H{end:.1}v-8H{begin:.1}z", y + 8.0);
        }
        let in_slot = |at: u64| at >= MONDAY && slot.contains(&(at - MONDAY));
        if outcome.given_up.iter().any(|(at, kind)| *kind == Kind::Read && in_slot(*at)) {
            let _ = write!(lost, "M{begin:.1} {:.1}H{end:.1}v-6H{begin:.1}z", y + 7.0);
        }
    }
    let _ = write!(area, "V{y}z");
    for (class, path) in [("admitted", area), ("denied", lost), ("over", rejected)] {
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
    }
    let rejections: u32 = figures.rejected.iter().sum();
    svg + &columns([figures.gone_text(), figures.share_text(), rejections.to_string()], y - 12.0)
}

/// Draws the text of each column of figures.
fn columns(texts: [String; COLUMNS.len()], y: f64) -> String {
    let mut svg = String::new();
    for (text, (_, x)) in texts.iter().zip(COLUMNS) {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{text}</text>");
    }
    svg
}

/// Returns the position of a time of day on the axis, in pixels.
fn x(at: u64) -> f64 {
    TIMELINE.0 + TIMELINE.1 * at as f64 / DAY as f64
}

fn height(units: u32) -> f64 {
    TALLEST * f64::from(units) / f64::from(QUOTA)
}
