//! The result of a settlement, and its future.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot::{Receiver, error::RecvError};

use crate::{
    error::{BackendError, Reason},
    now_or_later::NowOrLater,
};

/// What happens to the charge of a reservation that is dropped unsettled: with its last clone and its last [`Meter`](super::Meter).
///
/// For [`RateLimitLayerBuilder::unsettled`](crate::RateLimitLayerBuilder::unsettled) and
/// [`LimiterBuilder::unsettled`](crate::LimiterBuilder::unsettled). A reservation is dropped unsettled if no code settles it: the
/// handler panics or forgets it, the client disconnects before the response, an inner layer rejects the request, or the closure of
/// [`settle_by`](crate::RateLimitLayerBuilder::settle_by) returns `None`.
///
/// A process that dies settles nothing: its charges stand under both rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unsettled {
    /// The charge stands until its window has passed. A client cannot avoid its charge by a disconnect.
    #[default]
    Keep,
    /// The charge is refunded. A client that disconnects before the handler settles pays nothing: use this only if the work that
    /// is done until then is cheap, or if a [`Meter`](super::Meter) counts it.
    Refund,
}

/// The result of a settlement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Settled {
    /// The amount used has replaced the charge, as far as the charge still counts. An amount for a policy that the reservation does not
    /// have changes nothing: if [`Costs`](crate::Costs) name only such policies, all charges stand. One warning per limiter names the policy.
    #[non_exhaustive]
    Done {
        /// The instant of the change, in microseconds of the clock of the backend, as
        /// [`Decision::at_micros`](crate::Decision::at_micros) is for a check:
        /// the latest one if there were several changes. If the amount equals the charge, nothing changes, and this is the
        /// instant of the reservation.
        at_micros: u64,
    },
    /// The reservation was settled before: by this handle or a clone, or by its token. This settlement had no effect.
    Already,
    /// The [token](crate::Reservation::into_token) has expired: the windows of all its charges have passed. Nothing was refunded or
    /// charged.
    Expired,
    /// There is no charge: the request was admitted [unchecked](crate::outage::Unchecked). The settlement had no effect.
    Uncharged,
    /// The settlement may or may not have been applied, and is never resent. The limiter counts it as lost. With
    /// [`Reason::DeadlineExceeded`], the store has not applied it.
    Lost(BackendError),
}

/// The future of [`Reservation::settle`](crate::Reservation::settle). It resolves to the result. The settlement proceeds even if
/// this future is dropped.
pub struct Settlement(pub(super) NowOrLater<Result<Settled, RecvError>, Receiver<Settled>>);

impl Settlement {
    pub(super) fn now(settled: Settled) -> Self {
        Self(NowOrLater::now(Ok(settled)))
    }
}

impl Future for Settlement {
    type Output = Settled;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Settled> {
        let settled = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(settled.unwrap_or_else(|_| Settled::Lost(BackendError::new(Reason::Other))))
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").finish_non_exhaustive()
    }
}
