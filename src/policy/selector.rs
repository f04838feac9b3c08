//! Policies that are chosen for each request.

#[cfg(feature = "calendar")]
use std::convert::Infallible;
use std::sync::Arc;

#[cfg(feature = "calendar")]
use quick_cache::sync::Cache;

#[cfg(feature = "calendar")]
use super::{Anchor, Policy};
use super::{IntoTier, Policies, PolicyTable, Tier};
use crate::head::Head;

/// The largest number of chosen anchors that are known.
#[cfg(feature = "calendar")]
const MAX_ANCHORS: usize = 1_024;

/// Chooses the policies of a request from its [`Head`]: by tier, tenant or route.
///
/// [`PolicyTable::choose_by`](super::PolicyTable::choose_by) returns a selector. [`Policies`] are the same for every request.
/// For a closure, use [`RateLimitLayerBuilder::policies_by`](crate::RateLimitLayerBuilder::policies_by), or [`from_fn`] where a value is needed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose policies",
    label = "expected a policy selector, such as `table.choose_by(|head| ..)` or `Policies`",
    note = "to add one policy for every request, call `.policy(..)`; for several, write `.policies(Policies::new(..)?)`",
    note = "if the value is a `Result`, add `?`; if it is a closure, call `.policies_by(|head| ..)` instead"
)]
pub trait PolicySelector: Send + Sync + 'static {
    /// Returns the policies of this request, in addition to the policies for all requests. [`Tier::Unlimited`] adds none.
    fn select(&self, head: &Head<'_>) -> Tier;

    /// Returns the table from which this selector chooses, if all policies that it chooses are those of this table. A layer then compares
    /// every change of the table with its own policies and costs: see [`PolicyTable::replace`]. The default is `None`.
    fn table(&self) -> Option<&PolicyTable> {
        None
    }
}

impl PolicySelector for Policies {
    fn select(&self, _head: &Head<'_>) -> Tier {
        self.clone().into()
    }
}

#[diagnostic::do_not_recommend]
impl<S: PolicySelector + ?Sized> PolicySelector for Arc<S> {
    fn select(&self, head: &Head<'_>) -> Tier {
        (**self).select(head)
    }

    fn table(&self) -> Option<&PolicyTable> {
        (**self).table()
    }
}

/// A table, and the closure that returns the name to look up.
struct TableSelector<F> {
    table: PolicyTable,
    name: F,
}

impl<F> PolicySelector for TableSelector<F>
where
    F: for<'a> Fn(&Head<'a>) -> Option<&'a str> + Send + Sync + 'static,
{
    fn select(&self, head: &Head<'_>) -> Tier {
        let entries = head.look_up(self.table.id(), || self.table.entries());
        self.table.choose(&entries, (self.name)(head)).clone()
    }

    fn table(&self) -> Option<&PolicyTable> {
        Some(&self.table)
    }
}

impl PolicyTable {
    /// Returns a selector that picks the policies by the name that the closure returns. For an unlimited tier, it selects none.
    ///
    /// `None` has the default tier. A name that is not in the table has it, too, and the layer [logs one
    /// warning](Self#names-that-are-not-in-the-table).
    pub fn choose_by<F>(&self, name: F) -> impl PolicySelector + use<F>
    where
        F: for<'a> Fn(&Head<'a>) -> Option<&'a str> + Send + Sync + 'static,
    {
        TableSelector { table: self.clone(), name }
    }
}

#[cfg(feature = "calendar")]
impl Policy {
    /// Returns a selector that chooses the anchor of this [calendar period](Self::calendar_period) for each request, such as the billing
    /// day of a customer. For `None`, the policy has its own anchor. Add the selector with
    /// [`RateLimitLayerBuilder::policies`](crate::RateLimitLayerBuilder::policies).
    ///
    /// A day that the period does not have is its last day, and day 0 its first one. So day 31 of a month is its last day.
    /// The closure must return the same anchor for all requests of a partition key. A policy of another type ignores it.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, extension, policy::{Anchor, Period, Zone}};
    ///
    /// #[derive(Clone)]
    /// struct Customer { id: u64, billing_day: u8 }
    ///
    /// let monthly = Policy::calendar_period("monthly", 100_000, Period::Month, Zone::new("Europe/Berlin")?)?;
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policies(monthly.anchored_by(|head| Some(Anchor::day(head.extension::<Customer>()?.billing_day))))
    ///     .key(extension("customer", |customer: &Customer| customer.id.to_string()))
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
    pub fn anchored_by<F>(self, anchor: F) -> impl PolicySelector + use<F>
    where
        F: Fn(&Head<'_>) -> Option<Anchor> + Send + Sync + 'static,
    {
        // The policies of anchors that were chosen, so that their headers and boundaries are made once.
        let known: Cache<Anchor, Policies> = Cache::new(2 * MAX_ANCHORS);
        from_fn(move |head| {
            let Some(anchor) = anchor(head) else { return Policies::from(self.clone()) };
            let anchored = || Ok(self.with_anchor(anchor).into());
            let Ok::<_, Infallible>(policies) = known.get_or_insert_with(&anchor, anchored);
            policies
        })
    }
}

struct SelectorFn<F>(F);

#[diagnostic::do_not_recommend]
impl<F, T> PolicySelector for SelectorFn<F>
where
    F: Fn(&Head<'_>) -> T + Send + Sync + 'static,
    T: IntoTier,
{
    fn select(&self, head: &Head<'_>) -> Tier {
        (self.0)(head).into()
    }
}

/// Makes a [`PolicySelector`] from a closure that returns a [`Policy`](super::Policy), [`Policies`] or a [`Tier`].
pub fn from_fn<F, T>(choose: F) -> impl PolicySelector
where
    F: Fn(&Head<'_>) -> T + Send + Sync + 'static,
    T: IntoTier,
{
    SelectorFn(choose)
}
