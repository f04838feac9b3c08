//! The metrics of a test, in the Prometheus text format.

use std::collections::BTreeMap;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// The values of all series, by their names with labels, such as `requests_total{outcome="denied"}`.
#[derive(Debug, PartialEq)]
pub struct Scrape(BTreeMap<String, f64>);

/// Returns a recorder. A test installs it for its own thread with `metrics::set_default_local_recorder`.
pub fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

impl Scrape {
    pub fn of(handle: &PrometheusHandle) -> Self {
        Self::parse(&handle.render())
    }

    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let parse = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        };
        Self(lines.map(parse).collect())
    }

    /// Returns the value of a series, 0 if there is none. The name has no prefix `rate_limit_`.
    pub fn get(&self, series: &str) -> f64 {
        self.0.get(&format!("rate_limit_{series}")).copied().unwrap_or(0.0)
    }

    /// Returns whether a series exists.
    pub fn has(&self, series: &str) -> bool {
        self.0.contains_key(&format!("rate_limit_{series}"))
    }

    /// Returns the series of a metric whose value is not 0, each with its labels, in the order of the labels.
    pub fn non_zero(&self, metric: &str) -> Vec<(&str, f64)> {
        let prefix = format!("rate_limit_{metric}{{");
        let series = self.0.iter().filter(|(_, value)| **value != 0.0);
        let labels = series.filter_map(|(name, value)| Some((name.strip_prefix(&prefix)?, *value)));
        let mut labels: Vec<_> =
            labels.filter_map(|(labels, value)| Some((labels.strip_suffix('}')?, value))).collect();
        labels.sort_by_key(|(labels, _)| *labels);
        labels
    }
}
