//! The count of a fixed window.

use super::windows::Windows;

/// The usage of a calendar window.
pub(super) type FixedWindow = Windows<false>;
