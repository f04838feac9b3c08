//! The amount used, as the response states it.

use crate::{
    cost::{Costs, IntoCosts},
    head::ResponseHead,
};

/// The amount that a request has used, which the handler leaves in the extensions of its response. [`actual_cost`] reads it.
///
/// In axum, a handler returns `(Extension(ActualCost::new(317)), body)`. Every layer that settles by
/// [`actual_cost`] reads it: with [nested layers](crate::guide::settling#nested-layers), name the policies by [`Costs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualCost(Costs);

impl ActualCost {
    /// Creates an amount in quota units: the same for every policy, or [`Costs`] with an amount for each.
    pub fn new(used: impl IntoCosts) -> Self {
        Self(used.into_costs())
    }
}

/// Settles by the [`ActualCost`] in the extensions of the response. Without one, the charge stands. For
/// [`RateLimitLayerBuilder::settle_by`](crate::RateLimitLayerBuilder::settle_by).
pub fn actual_cost(response: &ResponseHead<'_>) -> Option<Costs> {
    response.extensions.get::<ActualCost>().map(|used| used.0.clone())
}

/// Leaves the settlement to the handler: it takes the [`Reservation`](crate::Reservation) from its request and settles when it
/// knows the amount, for example at the end of a streamed body. For [`RateLimitLayerBuilder::settle_by`](crate::RateLimitLayerBuilder::settle_by).
pub fn by_hand(_response: &ResponseHead<'_>) -> Option<Costs> {
    None
}
