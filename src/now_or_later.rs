//! A value that is ready now, or that a future delivers later: the only type for this in the crate.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A future without its type.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A value that is ready, or a future that delivers it.
///
/// A backend in memory answers at once: its answers need no future, no box and no runtime.
pub(crate) enum NowOrLater<T, F = BoxFuture<T>> {
    /// The value is ready. It is `None` once it has been taken.
    Now(Option<T>),
    /// The future delivers the value.
    Later(F),
}

impl<T, F> NowOrLater<T, F> {
    /// Wraps a value that is ready.
    #[inline]
    pub(crate) fn now(value: T) -> Self {
        Self::Now(Some(value))
    }
}

// The value is never pinned.
impl<T, F: Unpin> Unpin for NowOrLater<T, F> {}

impl<T, F> Future for NowOrLater<T, F>
where
    F: Future<Output = T> + Unpin,
{
    type Output = T;

    /// Delivers the value once. Later polls return `Pending`: they do not panic.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Now(value) => value.take().map_or(Poll::Pending, Poll::Ready),
            Self::Later(future) => {
                let value = ready!(Pin::new(future).poll(cx));
                *self = Self::Now(None);
                Poll::Ready(value)
            }
        }
    }
}
