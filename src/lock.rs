//! A mutex without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that a panic does not poison.
///
/// The code that holds it must leave the value whole at every step that can panic, and must not wait for anything. It must not call code of
/// a user, which may wait for this lock: a subscriber, a recorder, a waker, or the drop of an error.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value without waiting. Returns `None` if it is locked, also by this thread.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
