//! The futures of a limiter.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::outcome::{Admission, AdmitResult, Rejection};
use crate::{
    decision::Decided,
    error::{BackendError, Reason},
    now_or_later::NowOrLater,
    settle::Reservation,
};

/// A request whose outcome may be in progress.
pub(crate) type Admitting = NowOrLater<AdmitResult>;

/// The future of [`Limiter::check`](crate::Limiter::check) and [`Limiter::peek`](crate::Limiter::peek). It resolves to the decision.
#[must_use = "a check does nothing unless it is awaited"]
pub struct CheckFuture(pub(super) NowOrLater<Decided>);

/// The future of [`Limiter::admit`](crate::Limiter::admit) and [`Limiter::wait`](crate::Limiter::wait). It resolves to the admission, or
/// the reason for the rejection.
#[must_use = "a check does nothing unless it is awaited"]
pub struct AdmitFuture(pub(crate) Admitting);

/// The future of [`Limiter::reserve`](crate::Limiter::reserve). It resolves to the reservation, or the reason for the rejection.
#[must_use = "a reservation does nothing unless it is awaited"]
pub struct ReserveFuture(pub(super) Admitting);

/// The future of [`Limiter::reset`](crate::Limiter::reset).
#[must_use = "a reset does nothing unless it is awaited"]
pub struct ResetFuture(pub(super) NowOrLater<Result<(), BackendError>>);

/// Implements the future of a limiter, which makes its output from that of its field.
macro_rules! future {
    ($name:ident, $output:ty, $from:expr) => {
        impl $name {
            /// Returns the output without a runtime, if the limiter has it: if the backend answers at once, as a memory does, or if the
            /// check is answered in this process. Otherwise returns the future, and the backend was not asked yet.
            ///
            /// # Errors
            ///
            /// Returns the future.
            pub fn now(mut self) -> Result<$output, Self> {
                match &mut self.0 {
                    NowOrLater::Now(output) => output.take().map($from).ok_or(self),
                    NowOrLater::Later(_) => Err(self),
                }
            }
        }

        impl Future for $name {
            type Output = $output;

            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                Poll::Ready($from(ready!(Pin::new(&mut self.0).poll(cx))))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

future!(CheckFuture, Decided, |decided| decided);
future!(AdmitFuture, AdmitResult, |outcome| outcome);
future!(ReserveFuture, Result<Reservation, Rejection>, reserved);
future!(ResetFuture, Result<(), BackendError>, |reset| reset);

fn reserved(outcome: AdmitResult) -> Result<Reservation, Rejection> {
    let Admission { reservation, .. } = outcome?;
    // An admitted reservation always has a handle.
    reservation.ok_or_else(|| Rejection::Unavailable(BackendError::new(Reason::Other)))
}
