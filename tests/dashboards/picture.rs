//! A picture of the dashboard: its panels as SVG, with the data of a Prometheus. The guide contains it. Grafana draws the same
//! panels in its own style.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value;

use crate::{
    expressions::{dashboard, of_panel},
    prometheus::Prometheus,
};

/// The colours of the other charts of the guide.
const STYLE: &str = "text{font:11px sans-serif;fill:#1b1f24}.title{font-weight:bold}.big{font-size:22px}.small{font-size:9px;fill:#57606a}\
.page{fill:#fff}.admitted{fill:#08427a;stroke:#08427a}.denied{fill:#8a96a2;stroke:#8a96a2}.over{fill:#c4361f;stroke:#c4361f}\
.edge{stroke:#7d8790;stroke-dasharray:2 3}.base{stroke:#c3ced9}@media(prefers-color-scheme:dark){text{fill:#e6edf3}\
.small{fill:#9aa5b1}.page{fill:#14181d}.admitted{fill:#a5d1f8;stroke:#a5d1f8}.denied{fill:#66717d;stroke:#66717d}\
.over{fill:#ff7b6b;stroke:#ff7b6b}.edge{stroke:#8b949e}.base{stroke:#45505c}}";

/// The classes and the dashes of the series of a panel, in their order.
const CLASSES: [&str; 3] = ["admitted", "over", "denied"];
const DASHES: [&str; 4] = ["", "5 2", "1 2", "7 2 1 2"];

/// What a link to a picture in rustdoc encodes.
const ENCODED: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'(').add(b')').add(b'<').add(b'>');

/// The pixels of a unit of the grid.
const WIDTH: f64 = 40.0;
const HEIGHT: f64 = 20.0;
/// The height of the heading.
const TOP: f64 = 58.0;
/// The points of a series.
const POINTS: f64 = 36.0;

/// The seconds of the Unix epoch between which the picture shows the data, and those of the outage.
pub struct Span {
    pub begin: f64,
    pub outage: [f64; 2],
    pub end: f64,
}

struct Series {
    name: String,
    /// Seconds of the Unix epoch and values.
    points: Vec<(f64, f64)>,
}

/// The place of a panel in pixels.
#[derive(Clone, Copy)]
struct Place {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Writes the picture to a folder: as SVG, and as a link for a page of rustdoc, which copies no files.
pub fn write(prometheus: &Prometheus, span: &Span, folder: &Path) {
    let svg = draw(prometheus, span);
    let link = format!("data:image/svg+xml,{}", utf8_percent_encode(&svg, ENCODED));
    for (extension, text) in [("svg", svg), ("txt", link)] {
        fs::write(folder.join("dashboard").with_extension(extension), text).unwrap();
    }
}

fn draw(prometheus: &Prometheus, span: &Span) -> String {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let rows = panels.iter().map(|panel| number(&panel["gridPos"]["y"]) + number(&panel["gridPos"]["h"]));
    let [width, height] = [24.0 * WIDTH + 16.0, TOP + rows.fold(0.0, f64::max) * HEIGHT + 8.0];
    let (seconds, title) = (span.end - span.begin, dashboard["title"].as_str().unwrap());
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <title>The dashboard {title}, with the data of an outage of Redis</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"14\" y=\"24\">{title}</text>\n\
         <text class=\"small\" x=\"14\" y=\"42\">{seconds:.0} s of three services, drawn from grafana.json. \
         Redis is stopped between the dashed lines. The numbers and the bars are those at the end.</text>\n"
    );
    for panel in panels {
        let of = |name: &str| number(&panel["gridPos"][name]);
        let place = Place {
            x: 8.0 + of("x") * WIDTH,
            y: TOP + of("y") * HEIGHT,
            width: of("w") * WIDTH,
            height: of("h") * HEIGHT,
        };
        let class = if panel["type"] == "stat" { "small" } else { "title" };
        text(&mut svg, class, [place.x + 6.0, place.y + 14.0], panel["title"].as_str().unwrap());
        if panel["type"] == "row" {
            continue;
        }
        let Place { x, y, width, height } = place;
        writeln!(
            svg,
            "<rect class=\"base\" x=\"{:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"3\" style=\"fill:none\"/>",
            x + 2.0,
            y + 1.0,
            width - 4.0,
            height - 3.0
        )
        .unwrap();
        let series = series(prometheus, panel, &dashboard, span);
        match panel["type"].as_str().unwrap() {
            "stat" => {
                let last = series.first().and_then(|series| series.points.last());
                let shown = last.map_or_else(|| "none".to_owned(), |(_, value)| shown(*value, panel));
                text(&mut svg, "big", [place.x + 6.0, place.y + 50.0], &shown);
            }
            "bargauge" => bars(&mut svg, place, panel, &series),
            "timeseries" => lines(&mut svg, place, panel, &series, span),
            other => panic!("a panel of the type {other}"),
        }
    }
    svg + "</svg>\n"
}

/// Returns the series of a panel. A panel of single values has one point for each.
fn series(prometheus: &Prometheus, panel: &Value, dashboard: &Value, span: &Span) -> Vec<Series> {
    let mut found = Vec::new();
    let targets = panel["targets"].as_array().unwrap();
    // The time range of the picture, in place of that of the tests.
    let range = format!("[{:.0}s]", span.end - span.begin);
    for (target, expression) in targets.iter().zip(of_panel(panel, dashboard)) {
        let expression = expression.replace("[1m]", &range);
        let begin = if target["instant"] == true { span.end } else { span.begin };
        for result in prometheus.range(&expression, [begin, span.end], (span.end - span.begin) / POINTS) {
            let mut name = target["legendFormat"].as_str().unwrap_or_default().to_owned();
            for (label, value) in result["metric"].as_object().unwrap() {
                name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap());
            }
            // A label that is absent.
            let name = if name.contains("{{") { "other".to_owned() } else { name };
            let points = result["values"].as_array().unwrap().iter();
            let points = points.map(|point| (number(&point[0]), point[1].as_str().unwrap().parse().unwrap()));
            found.push(Series {
                name,
                points: points.filter(|(_, value): &(f64, f64)| value.is_finite()).collect(),
            });
        }
    }
    found.retain(|series| !series.points.is_empty());
    found
}

fn bars(svg: &mut String, Place { x, y, width, .. }: Place, panel: &Value, series: &[Series]) {
    let mut values: Vec<_> = series.iter().map(|series| (series.points[0].1, &series.name)).collect();
    values.sort_by(|one, other| other.0.total_cmp(&one.0));
    let largest = values.first().map_or(1.0, |(value, _)| value.max(1.0));
    for (row, (value, name)) in values.iter().take(6).enumerate() {
        let y = y + 30.0 + 21.0 * row as f64;
        text(svg, "small", [x + 8.0, y], &format!("{name}: {}", shown(*value, panel)));
        let length = (width - 18.0) * value / largest;
        writeln!(
            svg,
            "<rect class=\"over\" x=\"{:.0}\" y=\"{:.0}\" width=\"{length:.0}\" height=\"6\"/>",
            x + 8.0,
            y + 4.0
        )
        .unwrap();
    }
}

fn lines(svg: &mut String, place: Place, panel: &Value, series: &[Series], span: &Span) {
    let Place { x, y, width, height } = place;
    let is_stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal";
    let [left, right, top, bottom] = [x + 8.0, x + width - 10.0, y + 31.0, y + height - 34.0];
    // The upper end of the series so far, by the time in milliseconds.
    let mut stacked = BTreeMap::new();
    let mut curves = Vec::new();
    for series in series {
        let point = |&(time, value): &(f64, f64)| {
            let upper: &mut f64 = stacked.entry((time * 1_000.0) as u64).or_default();
            let below = if is_stacked { *upper } else { 0.0 };
            *upper = below + value;
            (time, below, *upper)
        };
        curves.push(series.points.iter().map(point).collect::<Vec<_>>());
    }
    let largest = curves.iter().flatten().map(|(_, _, value)| *value).fold(0.0, f64::max);
    let largest = if largest > 0.0 { largest } else { 1.0 };
    let across = |time: f64| left + (right - left) * (time - span.begin) / (span.end - span.begin);
    let up = |value: f64| bottom - (bottom - top) * value / largest;
    for time in span.outage.map(across) {
        writeln!(svg, "<path class=\"edge\" d=\"M{time:.0} {top:.0}V{bottom:.0}\"/>").unwrap();
    }
    writeln!(svg, "<path class=\"base\" d=\"M{left:.0} {bottom:.0}H{right:.0}\"/>").unwrap();
    text(svg, "small", [left, top - 4.0], &shown(largest, panel));
    let step = (span.end - span.begin) / POINTS;
    let mut legend = [left, bottom + 12.0];
    for (index, (curve, series)) in curves.iter().zip(series).enumerate() {
        let (class, dash) = (CLASSES[index % 3], DASHES[index / 3 % 4]);
        let mut path = String::new();
        let mut last = f64::NEG_INFINITY;
        for &(time, _, value) in curve {
            let command = if time - last > 1.5 * step { 'M' } else { 'L' };
            write!(path, "{command}{:.0} {:.0}", across(time), up(value)).unwrap();
            last = time;
        }
        if is_stacked {
            let mut area = path.replace('M', "L").replacen('L', "M", 1);
            for &(time, below, _) in curve.iter().rev() {
                write!(area, "L{:.0} {:.0}", across(time), up(below)).unwrap();
            }
            writeln!(svg, "<path class=\"{class}\" style=\"stroke:none;fill-opacity:.2\" d=\"{area}\"/>")
                .unwrap();
        }
        let style = format!("class=\"{class}\" stroke-dasharray=\"{dash}\" style=\"fill:none\"");
        writeln!(svg, "<path {style} d=\"{path}\"/>").unwrap();
        let length = 24.0 + 4.8 * series.name.len() as f64;
        if legend[0] + length > right + 10.0 {
            legend = [left, legend[1] + 11.0];
        }
        if legend[1] < y + height - 3.0 {
            writeln!(svg, "<path {style} d=\"M{:.0} {:.0}h12\"/>", legend[0], legend[1] - 3.0).unwrap();
            text(svg, "small", [legend[0] + 15.0, legend[1]], &series.name);
            legend[0] += length;
        }
    }
}

fn text(svg: &mut String, class: &str, [x, y]: [f64; 2], text: &str) {
    writeln!(svg, "<text class=\"{class}\" x=\"{x:.0}\" y=\"{y:.0}\">{text}</text>").unwrap();
}

/// Returns a value in the unit of a panel.
fn shown(value: f64, panel: &Value) -> String {
    let digits = |value: f64| {
        if value >= 10.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
    };
    match panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap() {
        "percentunit" => format!("{:.1}%", 100.0 * value),
        "reqps" => format!("{} req/s", digits(value)),
        "ops" => format!("{} ops/s", digits(value)),
        "s" => format!("{} ms", digits(1_000.0 * value)),
        "short" if panel["fieldConfig"]["defaults"]["decimals"] == 0 => format!("{value:.0}"),
        "short" => digits(value),
        other => panic!("the unit {other}"),
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}
