//! Meters, which add up the amount that a request uses while its response is streamed.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    reservation::{MeterCounters, Reservation},
    settled::Settlement,
};
use crate::{
    check::Pair,
    cost::{Costs, IntoCosts},
};

/// Adds up the amount that a request uses, and settles it when it is dropped. Made by
/// [`Reservation::meter`](crate::Reservation::meter).
///
/// Move a meter into a streamed body. It is dropped with the body: at the end of the stream, or when the client disconnects. It
/// then replaces the charge by the amount that was added until then.
///
/// - **A policy without an addition** keeps its charge, the estimate. An addition of 0 is an addition.
/// - **A meter without additions** settles nothing. The reservation stays unsettled, and [`Unsettled`](crate::settle::Unsettled)
///   applies when its last clone is dropped.
/// - **Additions saturate** at 2^32-1 units of each policy.
/// - **Clones of a meter**, and all meters of one reservation, count together. The last one to be dropped settles, so keep one
///   until the end: `reservation.meter().add(5)` settles 5 units at once, and later meters have no effect. A meter is `Send` and
///   `Sync`, and additions take `&self`, so that several tasks may add.
/// - **A reservation that is settled elsewhere** is settled once: the first settlement takes effect.
///
/// A meter counts what the service produces, which may be more than the client receives before it disconnects. For a backend such
/// as Redis, drop the meter on a tokio runtime, as a body does.
///
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// use std::convert::Infallible;
/// use axum::body::Body;
/// use futures_util::{StreamExt, stream};
/// use tower_sliding_window::Reservation;
///
/// // A handler, behind a layer that settles `by_hand`. If the layer exempts requests, take an `Option<Reservation>`.
/// async fn chat(reservation: Reservation) -> Body {
///     let meter = reservation.meter();
///     Body::from_stream(stream::iter(["three", "words", "only"]).map(move |token| {
///         meter.add_to("tokens", 1);
///         Ok::<_, Infallible>(token)
///     }))
/// }
/// ```
#[derive(Clone)]
#[must_use = "a meter settles when it is dropped: move it into the body of the response"]
pub struct Meter(Arc<MeterCounters>);

/// The sum of additions never exceeds the largest amount.
const LARGEST: u64 = u32::MAX as u64 + 1;

pin_project! {
    /// A body with a [`Meter`] that counts its data. Made by [`Meter::body`].
    pub struct MeteredBody<B, F> {
        #[pin]
        body: B,
        used: F,
        // None once the stream has ended.
        meter: Option<Meter>,
    }
}

impl Reservation {
    /// Returns a meter, which adds up the amount used while a response is streamed, and settles it when the meter is dropped.
    ///
    /// All meters of a reservation count together. The last one to be dropped settles.
    pub fn meter(&self) -> Meter {
        let mut meters = self.0.meters.lock();
        let counters = meters.upgrade().unwrap_or_else(|| {
            let sums = self.0.check.pairs().iter().map(|_| AtomicU64::new(0)).collect();
            let counters = Arc::new(MeterCounters { reservation: self.clone(), sums });
            *meters = Arc::downgrade(&counters);
            counters
        });
        Meter(counters)
    }
}

impl Meter {
    /// Adds an amount, in quota units, 0 to 2^32-1: the same for every policy, or [`Costs`] with an amount for each.
    /// `Costs` add nothing to a policy that they do not name.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Costs, Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let minute = Duration::from_secs(60);
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 60, minute)?)
    ///     .policy(Policy::new("tokens", 10_000, minute)?)
    ///     .policy(Policy::new("cents", 500, minute)?)
    ///     .build()?;
    /// let alice = PartitionKey::new("user", "alice");
    ///
    /// let estimate = Costs::new().policy("tokens", 1_000).policy("cents", 50);
    /// let meter = limiter.reserve((&alice, estimate)).await?.meter();
    /// meter.add(Costs::new().policy("tokens", 200).policy("cents", 10));
    /// meter.add_to("tokens", 117);
    /// drop(meter);
    ///
    /// let decision = limiter.peek((alice, 0)).await?;
    /// let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
    /// assert_eq!(left, [59, 10_000 - 317, 490]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&self, units: impl IntoCosts) {
        let units = units.into_costs();
        self.warn_of_unknown(&units);
        for (pair, sum) in self.0.pairs() {
            if let Some(units) = units.amount(pair.policy.name()) {
                add(sum, units);
            }
        }
    }

    /// Adds an amount to the policy with this name, in quota units, 0 to 2^32-1. It allocates nothing, so it suits a call per
    /// token. If the request was not charged to such a policy, the amount is not counted, and the limiter logs one warning
    /// (feature `tracing`).
    pub fn add_to(&self, policy: &str, units: u32) {
        let mut is_known = false;
        for (_, sum) in self.0.pairs().filter(|(pair, _)| pair.policy.name() == policy) {
            is_known = true;
            add(sum, units);
        }
        if !is_known {
            self.warn_of_unknown(&Costs::new().policy(policy.to_owned(), units));
        }
    }

    /// Returns the sum of the additions to the policy with this name, in quota units, or `None` without an addition.
    pub fn added(&self, policy: &str) -> Option<u32> {
        self.0.pairs().find(|(pair, _)| pair.policy.name() == policy).and_then(|(_, sum)| added(sum))
    }

    /// Settles what was added, before the meter is dropped. The settlement begins at once, and the returned future resolves to its
    /// result. Without additions, this settles the reservation at its estimate. Later additions by clones have no effect.
    pub fn settle(self) -> Settlement {
        self.0.settle()
    }

    /// Returns the body with this meter. The closure returns the amount of each piece of data, as [`add`](Self::add) takes it.
    /// The meter is dropped at the end of the stream, at an error, or with the body.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::Response;
    /// use tower_sliding_window::{Reservation, settle::MeteredBody};
    ///
    /// /// Charges one unit per started kilobyte of each piece of the body.
    /// fn download<B: http_body::Body<Data = Bytes>>(
    ///     reservation: &Reservation,
    ///     file: B,
    /// ) -> Response<MeteredBody<B, impl FnMut(&Bytes) -> u32>> {
    ///     let kilobytes = |data: &Bytes| u32::try_from(data.len().div_ceil(1024)).unwrap_or(u32::MAX);
    ///     Response::new(reservation.meter().body(file, kilobytes))
    /// }
    /// ```
    pub fn body<B, F, C>(self, body: B, used: F) -> MeteredBody<B, F>
    where
        B: Body,
        F: FnMut(&B::Data) -> C,
        C: IntoCosts,
    {
        MeteredBody { body, used, meter: Some(self) }
    }

    fn warn_of_unknown(&self, units: &Costs) {
        let held = &self.0.reservation.0;
        held.queue.events.unknown_policies(units, held.check.pairs().iter().map(|pair| &pair.policy));
    }
}

impl MeterCounters {
    /// Returns the pairs of the reservation, each with its counter.
    fn pairs(&self) -> impl Iterator<Item = (&Pair, &AtomicU64)> {
        self.reservation.0.check.pairs().iter().zip(&self.sums)
    }

    fn settle(&self) -> Settlement {
        self.reservation
            .settle_pairs(|_| self.pairs().map(|(pair, sum)| added(sum).unwrap_or(pair.cost)).collect())
    }
}

/// Settles what was added, if anything was.
impl Drop for MeterCounters {
    fn drop(&mut self) {
        if self.sums.iter().any(|sum| added(sum).is_some()) {
            // It proceeds in the background.
            drop(self.settle());
        }
    }
}

fn add(sum: &AtomicU64, units: u32) {
    // The last meter to be dropped sees the additions of all others: `Arc` orders them.
    let add = |sum: u64| Some((sum.max(1) + u64::from(units)).min(LARGEST));
    // It cannot fail: `add` always returns a sum.
    let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
}

fn added(sum: &AtomicU64) -> Option<u32> {
    sum.load(Ordering::Relaxed).checked_sub(1).map(|sum| u32::try_from(sum).unwrap_or(u32::MAX))
}

impl<B, F, C> Body for MeteredBody<B, F>
where
    B: Body,
    F: FnMut(&B::Data) -> C,
    C: IntoCosts,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(meter)) = (frame.data_ref(), &this.meter) {
                    meter.add((this.used)(data));
                }
            }
            Some(Err(_)) | None => *this.meter = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums = self.0.pairs().map(|(pair, sum)| (pair.policy.name(), added(sum)));
        f.debug_struct("Meter").field("added", &sums.collect::<Vec<_>>()).finish()
    }
}

impl<B, F> fmt::Debug for MeteredBody<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredBody").field("meter", &self.meter).finish_non_exhaustive()
    }
}
