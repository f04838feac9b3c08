//! The count of a sliding counter.

use super::windows::Windows;

/// The usage of a calendar window, and of the one before it, which counts in part.
pub(super) type SlidingCounter = Windows<true>;
