//! The expressions of the dashboard and of the rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

/// The words of PromQL that are neither functions nor metrics.
const WORDS: [&str; 10] =
    ["and", "bool", "by", "group_left", "group_right", "ignoring", "offset", "on", "or", "unless"];

/// Returns the path of a file in the folder `dashboards`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards").join(name)
}

/// Returns the dashboard.
pub fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(path("grafana.json")).unwrap()).unwrap()
}

/// Returns the panels of the dashboard without its rows.
pub fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").collect()
}

#[derive(Deserialize)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// A recording rule or an alerting rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub record: Option<String>,
    pub alert: Option<String>,
    pub expr: String,
    pub r#for: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

impl Rule {
    pub fn name(&self) -> &str {
        self.record.as_deref().or(self.alert.as_deref()).unwrap()
    }

    /// Returns what an alert compares with its threshold: what is before the first comparison.
    pub fn compared(&self) -> &str {
        let comparisons = [" > ", " >= "];
        let ends = comparisons.iter().filter_map(|comparison| self.expr.find(comparison));
        let end = ends.min().unwrap_or_else(|| panic!("{}: no threshold", self.name()));
        &self.expr[..end]
    }
}

pub fn rules() -> Vec<Rule> {
    let file: File = serde_saphyr::from_str(&fs::read_to_string(path("rules.yml")).unwrap()).unwrap();
    file.groups.into_iter().flat_map(|group| group.rules).collect()
}

/// Returns the expressions of a panel without variables. The rate interval is ten times the scrape interval, for a busy machine.
pub fn of_panel(panel: &Value, dashboard: &Value) -> Vec<String> {
    let targets = panel["targets"].as_array().unwrap().iter();
    targets.map(|target| without_variables(target["expr"].as_str().unwrap(), dashboard)).collect()
}

fn without_variables(expression: &str, dashboard: &Value) -> String {
    let list = dashboard["templating"]["list"].as_array().unwrap();
    let latency = list.iter().find(|variable| variable["name"] == "service_latency").unwrap();
    let expression = expression
        .replace("${service_latency}", latency["query"].as_str().unwrap())
        .replace("$__rate_interval", "10s")
        .replace("$__range", "1m")
        .replace("$job", ".*");
    assert!(!expression.contains('$'), "{expression}");
    expression
}

/// A metric of an expression with its label matchers, such as `outcome="denied"`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    pub metric: String,
    pub matchers: Vec<String>,
}

/// Returns the metrics that an expression selects. Prometheus itself checks the syntax.
pub fn selectors(expression: &str) -> BTreeSet<Selector> {
    let mut found = BTreeSet::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let word = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        if word.is_empty() {
            rest = match first {
                '[' => rest.split_once(']').unwrap().1,
                '{' => panic!("a selector without a metric: {expression}"),
                _ => &rest[first.len_utf8()..],
            };
            continue;
        }
        rest = &rest[word.len()..];
        let next = rest.trim_start();
        let is_called = next.starts_with('(') || next.starts_with("by ");
        if ["by", "on", "ignoring"].contains(&word) {
            // The names of labels.
            rest = next.split_once(')').unwrap().1;
        } else if !WORDS.contains(&word) && !first.is_ascii_digit() && !is_called {
            let mut matchers = "";
            if let Some(braces) = rest.strip_prefix('{') {
                (matchers, rest) = braces.split_once('}').unwrap();
            }
            let matchers = matchers.split(',').map(|matcher| matcher.trim().to_owned());
            let matchers = matchers.filter(|matcher| !matcher.is_empty()).collect();
            found.insert(Selector { metric: word.to_owned(), matchers });
        }
    }
    found
}

#[test]
fn parser_finds_each_selector() {
    let expression = r#"topk(3, sum by (job, b) (rate(a_total{x="1", y=~"2|3"}[5m])) / (sum(c:d) > 0)) unless on (job) e offset 1h"#;
    let selector = |metric: &str, matchers: &[&str]| Selector {
        metric: metric.to_owned(),
        matchers: matchers.iter().map(|matcher| (*matcher).to_owned()).collect(),
    };
    let expected =
        [selector("a_total", &[r#"x="1""#, r#"y=~"2|3""#]), selector("c:d", &[]), selector("e", &[])];
    assert_eq!(selectors(expression), expected.into());
}
