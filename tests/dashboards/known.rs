//! The dashboard and the rules name metrics that the crate exports, and every metric is in a panel.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Mutex,
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use serde_json::Value;
use tower_sliding_window::observe::describe_metrics;

use crate::expressions::{dashboard, of_panel, panels, rules, selectors};

/// The names of the metrics that are described to this recorder, as Prometheus stores them.
#[derive(Default)]
struct Names(Mutex<BTreeSet<String>>);

impl Names {
    fn add(&self, name: &KeyName, suffixes: &[&str]) {
        self.0.lock().unwrap().extend(suffixes.iter().map(|suffix| format!("{}{suffix}", name.as_str())));
    }
}

impl Recorder for Names {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(&name, &[""]);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(&name, &[""]);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(&name, &["_bucket", "_count", "_sum"]);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn of_crate() -> BTreeSet<String> {
    let names = Names::default();
    metrics::with_local_recorder(&names, describe_metrics);
    let names = names.0.into_inner().unwrap();
    assert!(names.len() > 10, "{names:?}");
    names
}

fn names(expression: &str) -> BTreeSet<String> {
    selectors(expression).into_iter().map(|selector| selector.metric).collect()
}

#[test]
fn panels_show_every_metric_of_crate_and_no_other() {
    let (dashboard, known) = (dashboard(), of_crate());
    let mut used = BTreeSet::new();
    for panel in panels(&dashboard) {
        for expression in of_panel(panel, &dashboard) {
            used.extend(names(&expression));
        }
    }
    // The dashboard works without the recording rules. The example records the latency of its service.
    let unknown: Vec<_> = used.difference(&known).collect();
    assert_eq!(unknown, ["http_server_request_duration_seconds_bucket"]);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/observability.rs");
    assert!(fs::read_to_string(example).unwrap().contains("\"http_server_request_duration_seconds\""));
    let is_shown = |name: &&String| {
        let histogram = name.strip_suffix("_count").or(name.strip_suffix("_sum"));
        used.contains(*name) || histogram.is_some_and(|name| used.contains(&format!("{name}_bucket")))
    };
    let missing: Vec<_> = known.iter().filter(|name| !is_shown(name)).collect();
    assert!(missing.is_empty(), "no panel shows {missing:?}");
}

#[test]
fn alerts_and_records_name_known_metric() {
    let mut known = of_crate();
    for rule in rules() {
        for name in names(&rule.expr) {
            assert!(known.contains(&name), "{}: no metric {name}", rule.name());
        }
        known.extend(rule.record);
    }
}

/// An operator who reads an alert at night needs the service, the effect and the next step.
#[test]
fn alerts_have_severity_summary_and_runbook() {
    let dashboard = dashboard();
    let titles: BTreeSet<&str> =
        panels(&dashboard).iter().map(|panel| panel["title"].as_str().unwrap()).collect();
    let rules = rules();
    let alerts: Vec<_> = rules.iter().filter(|rule| rule.alert.is_some()).collect();
    let names: BTreeSet<&str> = alerts.iter().map(|alert| alert.name()).collect();
    assert_eq!(names.len(), alerts.len());
    for alert in &alerts {
        let name = alert.name();
        assert!(["critical", "warning", "info"].contains(&alert.labels["severity"].as_str()), "{name}");
        assert!(alert.annotations["summary"].contains("$labels.job"), "{name}");
        let runbook = &alert.annotations["runbook"];
        assert!(runbook.contains("\n1. "), "{name}: no first step");
        for panel in runbook.split("panel \"").skip(1) {
            let title = panel.split('"').next().unwrap();
            assert!(titles.contains(title), "{name}: no panel {title:?}");
        }
        for word in runbook.split(|c: char| !c.is_alphanumeric()).filter(|word| word.starts_with("RateLimit"))
        {
            assert!(names.contains(word), "{name}: no alert {word}");
        }
    }
    let tests = fs::read_to_string(crate::expressions::path("rules_test.yml")).unwrap();
    for name in names {
        assert!(tests.contains(name), "rules_test.yml: no test of {name}");
    }
}

#[test]
fn panels_have_source_description_and_place() {
    let dashboard = dashboard();
    let source = serde_json::json!({ "type": "prometheus", "uid": "${datasource}" });
    let (mut cells, mut ids) = (BTreeMap::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is not its own");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{title}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert_eq!(cells.insert(cell, title), None, "{title} covers another panel");
        }
    }
    for panel in panels(&dashboard) {
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{}", panel["title"]);
        assert_eq!(panel["datasource"], source);
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"], source);
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variable = |name: &str| variables.iter().find(|variable: &&Value| variable["name"] == name).unwrap();
    assert_eq!(variable("datasource")["type"], "datasource");
    assert_eq!(variable("job")["datasource"], source);
}
