//! The copy of the crate that `build.rs` has made.
#![allow(missing_docs, unused, clippy::all, rustdoc::all)]

/// The switch of the bugs.
pub mod planted {
    use std::cell::Cell;

    thread_local! {
        static BUG: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Switches a bug on in this thread, or all bugs off. A simulation has one thread.
    pub fn switch(bug: Option<&'static str>) {
        BUG.set(bug);
    }

    /// Returns whether a bug is on.
    pub fn has(bug: &str) -> bool {
        BUG.get() == Some(bug)
    }
}

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
