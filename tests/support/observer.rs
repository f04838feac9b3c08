//! A recorder of metrics, a `tracing` subscriber and wakers that run code of a test.

use std::{
    cell::Cell,
    sync::{Arc, LazyLock},
    task::{Wake, Waker},
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, LocalRecorderGuard, Recorder,
    SharedString, Unit,
};
use tracing::{Dispatch, Event, Metadata, Subscriber, field::Field, span, subscriber::DefaultGuard};

/// Calls a function for each event and each value of a metric: with the message of the event, or with the name of the metric and its
/// labels, such as `rate_limit_settlements_total outcome=done`. What the function causes itself causes no call.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(&str) + Send + Sync>);

struct ObservedMetric(Observer, String);

struct ObservingWaker<F>(F);

impl Observer {
    pub fn new(observe: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    /// Observes the metrics of this thread while the guard exists.
    pub fn record(&self) -> LocalRecorderGuard<'_> {
        metrics::set_default_local_recorder(self)
    }

    /// Observes the events of this thread while the guard exists. `Events::collect` says why two more subscribers exist.
    pub fn subscribe(&self) -> DefaultGuard {
        static OTHERS: LazyLock<[Dispatch; 2]> =
            LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Observer::new(|_| {}))));
        LazyLock::force(&OTHERS);
        tracing::subscriber::set_default(self.clone())
    }

    fn observe(&self, text: &str) {
        thread_local! {
            static IS_OBSERVING: Cell<bool> = const { Cell::new(false) };
        }
        struct Observing;
        impl Drop for Observing {
            fn drop(&mut self) {
                IS_OBSERVING.set(false);
            }
        }
        if !IS_OBSERVING.replace(true) {
            let _observing = Observing;
            self.0(text);
        }
    }

    fn metric(&self, key: &Key) -> Arc<ObservedMetric> {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        Arc::new(ObservedMetric(self.clone(), key.name().to_owned() + &labels.collect::<String>()))
    }
}

/// Returns a waker that calls a function.
pub fn waker(wake: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(ObservingWaker(wake)))
}

impl<F: Fn() + Send + Sync> Wake for ObservingWaker<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

impl CounterFn for ObservedMetric {
    fn increment(&self, _: u64) {
        self.0.observe(&self.1);
    }
    fn absolute(&self, _: u64) {}
}

impl GaugeFn for ObservedMetric {
    fn increment(&self, _: f64) {
        self.0.observe(&self.1);
    }
    fn decrement(&self, _: f64) {
        self.0.observe(&self.1);
    }
    fn set(&self, _: f64) {}
}

impl HistogramFn for ObservedMetric {
    fn record(&self, _: f64) {
        self.0.observe(&self.1);
    }
}

impl Recorder for Observer {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &metrics::Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }
    fn register_gauge(&self, key: &Key, _: &metrics::Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }
    fn register_histogram(&self, key: &Key, _: &metrics::Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}

impl Subscriber for Observer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "tower_sliding_window"
    }
    fn event(&self, event: &Event<'_>) {
        let mut message = String::new();
        event.record(&mut |field: &Field, value: &dyn std::fmt::Debug| {
            if field.name() == "message" {
                message = format!("{value:?}");
            }
        });
        self.observe(&message);
    }
    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}
