//! A `tracing` subscriber that records all events as text.

use std::{
    fmt::Write,
    sync::{Arc, Mutex},
};

use tracing::{Event, Metadata, Subscriber, field::Field, span};

/// The fields of all events, as text.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<String>>);

impl Events {
    /// Returns all events, one per line.
    pub fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Events {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }
    fn event(&self, event: &Event<'_>) {
        let mut text = self.0.lock().unwrap();
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
