//! The future of a limiter.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::outcome::AdmitResult;
use crate::now_or_later::NowOrLater;

/// A request whose outcome may be in progress.
pub(crate) type Admitting = NowOrLater<AdmitResult>;

/// The future of a method of a [`Limiter`](crate::Limiter). It resolves to the result.
#[must_use = "the result is lost unless the future is awaited"]
pub struct LimiterFuture<T>(pub(crate) NowOrLater<T>);

impl<T> LimiterFuture<T> {
    /// Returns the result without a runtime, if the limiter has it: if the backend answers at once, as a memory does, or if this process
    /// answers without the store. With any backend, a request that waits, [`settle_token`](crate::Limiter::settle_token), and
    /// [`learn`](crate::Limiter::learn) if the store must change, return the future.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// let policy = Policy::new("mails", 2, Duration::from_secs(60))?;
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
    /// let decision = limiter.check(PartitionKey::new("user", "alice")).now().expect("a memory answers at once")?;
    /// assert!(decision.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the future, if the backend must be asked. It was not asked yet.
    pub fn now(mut self) -> Result<T, Self> {
        match &mut self.0 {
            NowOrLater::Now(result) => result.take().ok_or(self),
            NowOrLater::Later(_) => Err(self),
        }
    }
}

impl<T> Future for LimiterFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> fmt::Debug for LimiterFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterFuture").finish_non_exhaustive()
    }
}
