//! Metrics with labels, whose values are bounded in number.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, SharedString};

/// The largest number of names that a label may have, beside those that are known when a limiter is built.
const MAX_NAMES: usize = 1_024;

/// The label value of all further names.
const OTHER: &str = "other";

static METADATA: Metadata<'static> = Metadata::new("tower_sliding_window", Level::INFO, None);

/// A metric with its labels.
///
/// It is looked up for each value. A kept handle would be cheaper. But a recorder may be installed later, and recorders with an
/// idle timeout remove a metric that was not used for a while: a kept handle would then count for nothing.
pub(super) struct Series(Key);

impl Series {
    pub(super) fn new(name: &'static str, labels: Vec<Label>) -> Self {
        Self(Key::from_parts(name, labels))
    }

    pub(super) fn count(&self, number: u64) {
        self.counter().increment(number);
    }

    pub(super) fn counter(&self) -> Counter {
        metrics::with_recorder(|recorder| recorder.register_counter(&self.0, &METADATA))
    }

    pub(super) fn gauge(&self) -> Gauge {
        metrics::with_recorder(|recorder| recorder.register_gauge(&self.0, &METADATA))
    }

    pub(super) fn histogram(&self) -> Histogram {
        metrics::with_recorder(|recorder| recorder.register_histogram(&self.0, &METADATA))
    }
}

/// Metrics by the value of a label. The number of values is bounded.
pub(super) struct ByName<T> {
    new: fn(SharedString) -> T,
    /// Registers the metrics of a further value.
    register: fn(&T),
    /// The values that are known when the limiter is built.
    known: Vec<(Box<str>, T)>,
    others: RwLock<HashMap<Box<str>, Arc<T>>>,
    /// The metrics of all values beyond the bound.
    rest: OnceLock<T>,
}

impl<T> ByName<T> {
    pub(super) fn new<'a>(
        known: impl IntoIterator<Item = &'a str>,
        new: fn(SharedString) -> T,
        register: fn(&T),
    ) -> Self {
        let known = known.into_iter().map(|name| (name.into(), new(shared(name)))).collect();
        Self { new, register, known, others: RwLock::default(), rest: OnceLock::new() }
    }

    pub(super) fn known(&self) -> impl Iterator<Item = &T> {
        self.known.iter().map(|(_, metrics)| metrics)
    }

    pub(super) fn with(&self, name: &str, record: impl FnOnce(&T)) {
        if let Some((_, metrics)) = self.known.iter().find(|(known, _)| &**known == name) {
            return record(metrics);
        }
        match self.other(name) {
            Some(metrics) => record(&metrics),
            None => record(self.rest.get_or_init(|| (self.new)(SharedString::const_str(OTHER)))),
        }
    }

    /// Returns the metrics of a further value, or `None` if there are too many.
    fn other(&self, name: &str) -> Option<Arc<T>> {
        // No code that holds the lock can panic or wait.
        let known = self.others.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if known.is_some() {
            return known;
        }
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        let known = others.get(name).cloned();
        if known.is_some() || others.len() >= MAX_NAMES {
            return known;
        }
        let new = Arc::new((self.new)(shared(name)));
        others.insert(name.into(), new.clone());
        // The recorder is not asked under the lock.
        drop(others);
        (self.register)(&new);
        Some(new)
    }
}

/// Returns the value of a label. Its clones share the text.
fn shared(name: &str) -> SharedString {
    SharedString::from_shared(name.into())
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn label_has_bounded_number_of_names() {
        let new = |name| Series::new("total", vec![Label::new("name", name)]);
        let counters = ByName::new(["known"], new, |counter| drop(counter.counter()));
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for name in 0..MAX_NAMES + 10 {
                counters.with(&name.to_string(), |counter| counter.count(1));
            }
            counters.with("0", |counter| counter.count(1));
            counters.with("known", |counter| counter.count(1));
        });
        let text = recorder.handle().render();
        let has = |line: &str| text.lines().any(|other| other == line);
        assert!(has(r#"total{name="other"} 10"#), "{text}");
        assert!(has(r#"total{name="0"} 2"#) && has(r#"total{name="known"} 1"#), "{text}");
        assert_eq!(text.matches("total{").count(), MAX_NAMES + 2);
    }
}
