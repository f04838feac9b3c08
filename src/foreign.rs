//! Code of users that runs on behalf of others: wakers, the recorder of metrics, the subscriber of events.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of a user. Returns `None` if it panics. The panic hook has then reported the panic.
///
/// Use it where others depend on what follows: in a task or a thread that serves many callers, and in a `drop`. In the call of one
/// caller, a panic belongs to this caller, and the order of the statements must suffice: the state of the crate comes first, and the
/// code of users last. No lock is held in either case.
pub(crate) fn contain<T>(code: impl FnOnce() -> T) -> Option<T> {
    // After a panic, only the user has a value that may be broken.
    catch_unwind(AssertUnwindSafe(code)).ok()
}

/// A recorder of metrics for tests.
#[cfg(all(test, feature = "metrics"))]
pub(crate) mod hooked_recorder {
    use std::sync::Arc;

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    type Hook = Arc<dyn Fn(&str) + Send + Sync>;

    /// A recorder that calls a function when a metric is registered, and for each value. It gives it the name and the labels.
    pub(crate) struct HookedRecorder(Hook);

    struct HookedMetric(Hook, String);

    impl HookedRecorder {
        pub(crate) fn new(hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
            Self(Arc::new(hook))
        }

        fn register(&self, key: &Key) -> Arc<HookedMetric> {
            let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
            let metric = HookedMetric(self.0.clone(), key.name().to_owned() + &labels.collect::<String>());
            metric.call();
            Arc::new(metric)
        }
    }

    impl HookedMetric {
        fn call(&self) {
            self.0(&self.1);
        }
    }

    impl CounterFn for HookedMetric {
        fn increment(&self, _: u64) {
            self.call();
        }
        fn absolute(&self, _: u64) {}
    }

    impl GaugeFn for HookedMetric {
        fn increment(&self, _: f64) {
            self.call();
        }
        fn decrement(&self, _: f64) {
            self.call();
        }
        fn set(&self, _: f64) {}
    }

    impl HistogramFn for HookedMetric {
        fn record(&self, _: f64) {
            self.call();
        }
    }

    impl Recorder for HookedRecorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.register(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.register(key))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.register(key))
        }
    }
}

/// Wakers for tests.
#[cfg(test)]
pub(crate) mod hooked_waker {
    use std::{
        sync::Arc,
        task::{Wake, Waker},
    };

    struct HookedWaker<F>(F);

    impl<F: Fn() + Send + Sync> Wake for HookedWaker<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }

    /// Returns a waker that calls a function.
    pub(crate) fn waker(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker::from(Arc::new(HookedWaker(wake)))
    }
}
