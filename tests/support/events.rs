//! A `tracing` subscriber that records all events of this crate as text.

use std::{
    fmt::Write,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::Field,
    span,
    subscriber::{DefaultGuard, NoSubscriber},
};

/// All events of this crate, as text.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<String>>);

impl Events {
    /// Records the events of this thread while the guard exists.
    ///
    /// While a process has one subscriber, tracing asks only the thread that reaches an event first. If that thread has no
    /// subscriber, tracing disables the event for all threads. Therefore, two more subscribers exist.
    pub fn collect() -> (Self, DefaultGuard) {
        static OTHERS: LazyLock<[Dispatch; 2]> =
            LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Events::default())));
        LazyLock::force(&OTHERS);
        let events = Self::default();
        let guard = tracing::subscriber::set_default(events.clone());
        (events, guard)
    }

    /// Computes the fields of no event on this thread. While all subscribers of the process want an event, tracing computes them on every
    /// thread, and those of other tests do.
    pub fn ignore() -> DefaultGuard {
        drop(Self::collect());
        tracing::subscriber::set_default(NoSubscriber::new())
    }

    /// Returns all events, one per line: the level and the fields.
    pub fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    /// Returns all events, and forgets them.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap()).lines().map(str::to_owned).collect()
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // A question whether an event would be logged is neither. Subscribers that read the fields of an event answer no.
        let is_logged = metadata.is_event() || metadata.is_span();
        is_logged && metadata.target() == "tower_sliding_window"
    }
    fn event(&self, event: &Event<'_>) {
        let mut text = self.0.lock().unwrap();
        let _ = write!(text, "{} ", event.metadata().level());
        event.record(&mut |field: &Field, value: &dyn std::fmt::Debug| {
            let _ = write!(text, "{field}={value:?} ");
        });
        text.push('\n');
    }
    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let _ = write!(self.0.lock().unwrap(), "{span:?}");
        span::Id::from_u64(1)
    }
    fn record(&self, _span: &span::Id, values: &span::Record<'_>) {
        let _ = write!(self.0.lock().unwrap(), "{values:?}");
    }
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}
