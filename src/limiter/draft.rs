//! What to check for one request, before it is a check.

use std::mem;

use crate::{
    check::{MAX_PAIRS, Pair, PairRef},
    cost::{Costs, IntoCosts},
    error::ConfigError,
    key::{KeyError, PartitionKey},
    outage::OutageRule,
    policy::{Policies, Policy, Tier, cost_of},
    settle::Unsettled,
};

/// The keys, costs and policies to check for one request. All of them are one check, admitted or denied as a whole.
///
/// Only [`exempt`](Self::exempt) lets a request pass uncounted. A draft that cannot be a check is a mistake in the server: one with an
/// empty list of pairs and no key, with more than [`MAX_PAIRS`](crate::backend::MAX_PAIRS) pairs, with the same pair twice, or with two
/// policies of one name. To check two keys against the same policies, use [`pairs`](Self::pairs). Such a request is rejected with [`Rejection::Misconfigured`](crate::Rejection::Misconfigured).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Most drafts have one part, which needs no list.
    pub(crate) first: Option<Part>,
    /// What few drafts have. A draft that is exempt has none.
    pub(crate) rest: Option<Box<Rest>>,
    /// `None` for the rule of the layer or the limiter.
    pub(crate) outage: Option<OutageRule>,
    pub(crate) reserves: bool,
    /// `None` for the rule of the limiter.
    pub(crate) unsettled: Option<Unsettled>,
    /// Whether estimates are clamped, also if the limiter does not clamp them.
    pub(crate) clamps: bool,
}

/// Further parts of a draft.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) others: Vec<Part>,
    pub(crate) pairs: Vec<Pair>,
    /// A mistake in the server because of which a shadow limit does not count this request.
    pub(crate) uncounted: Option<KeyError>,
}

/// How a check reserves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserve {
    pub(crate) unsettled: Unsettled,
    /// Whether an estimate above a quota is clamped to it.
    pub(crate) clamps: bool,
}

/// One key and the policies to check it against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) key: PartitionKey,
    pub(crate) costs: Costs,
    pub(crate) against: Against,
    /// Whether all its pairs are shadows.
    pub(crate) is_shadow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// The limiter's policies, of which there must be at least one.
    Limiter,
    /// The limiter's policies, of which there may be none, and these.
    LimiterAnd(Option<Policies>),
    /// These policies only.
    Only(Policies),
}

/// A part that is checked against the policies of the limiter and no others.
#[derive(Clone, Copy)]
pub(super) struct UsualPart<'a> {
    pub(super) key: &'a PartitionKey,
    /// `None` for 1 unit of each policy.
    pub(super) costs: Option<&'a Costs>,
    pub(super) is_shadow: bool,
}

impl<'a> UsualPart<'a> {
    /// Returns the pair of a policy of the limiter.
    #[inline(always)]
    pub(super) fn pair(self, policy: &'a Policy) -> PairRef<'a> {
        let Self { key, costs, is_shadow } = self;
        let cost = match costs {
            Some(costs) => cost_of(policy, costs),
            None => 1,
        };
        PairRef { key, policy, cost, is_shadow: is_shadow || policy.is_shadow() }
    }
}

impl Draft {
    /// Creates a draft without keys: the request passes uncounted, unless [further limits](crate::RateLimitLayerBuilder::also) of the layer
    /// count it. To exempt a request from all limits, use [`RateLimitLayerBuilder::exempt`](crate::RateLimitLayerBuilder::exempt).
    pub fn exempt() -> Self {
        let (reserves, clamps) = (false, false);
        Self { first: None, rest: None, outage: None, reserves, unsettled: None, clamps }
    }

    /// Checks this key against all policies of the limiter. A policy that `costs` does not name costs 1 unit.
    pub fn check(key: PartitionKey, costs: impl IntoCosts) -> Self {
        Self::part(key, costs.into_costs(), Against::Limiter)
    }

    /// Checks this key against these policies, and not against the policies of the limiter. `policies` is a
    /// [`Policy`](crate::Policy), [`Policies`], or the [`Tier`] of a [table](crate::PolicyTable::pick). An unlimited tier is
    /// [exempt](Self::exempt).
    pub fn check_against(key: PartitionKey, policies: impl Into<Tier>, costs: impl IntoCosts) -> Self {
        match policies.into() {
            Tier::Limited(policies) => Self::part(key, costs.into_costs(), Against::Only(policies)),
            Tier::Unlimited => Self::exempt(),
        }
    }

    /// Checks these pairs. Without any, the draft must be [combined](Self::and) with another one that has a key or a pair.
    pub fn pairs(pairs: impl Into<Vec<Pair>>) -> Self {
        let rest = Rest { pairs: pairs.into(), ..Rest::default() };
        Self { rest: Some(Box::new(rest)), ..Self::exempt() }
    }

    /// Sets the outage rule of this request, which replaces the rule of the [layer](crate::RateLimitLayerBuilder::outage).
    #[must_use]
    pub fn outage(self, rule: OutageRule) -> Self {
        Self { outage: Some(rule), ..self }
    }

    /// Makes the charge a [reservation](crate::Reservation), so that it can be settled later. The backend must be able to
    /// [change charges](crate::backend::Backend::changes_charges).
    #[must_use]
    pub fn reserve(self) -> Self {
        Self { reserves: true, ..self }
    }

    /// Makes all pairs of this draft [shadow pairs](Pair::shadow): they are counted, and never deny the request. Drafts that are
    /// [combined](Self::and) with this one later are not affected.
    ///
    /// ```
    /// use tower_sliding_window::{PartitionKey, protocol::Draft};
    ///
    /// // A new limit by tenant, tried on the traffic of one tenant in a hundred at first.
    /// fn limit(tenant: &str, is_enforced: bool) -> Draft {
    ///     let key = PartitionKey::new("tenant", tenant);
    ///     if is_enforced || key.percentile() < 1 { Draft::check(key, 1) } else { Draft::check(key, 1).shadow() }
    /// }
    /// ```
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow_all();
        self
    }

    /// Makes all pairs shadow pairs. An empty draft that is not exempt passes uncounted, with a warning.
    pub(crate) fn shadow_all(&mut self) {
        self.shadow_where(|_| true);
        // An empty list is a mistake, and a shadow limit rejects no request.
        if let Some(rest) = self.rest.as_deref().filter(|rest| rest.uncounted.is_none())
            && self.is_empty()
        {
            let what = ConfigError::Pairs { given: 0, max: MAX_PAIRS }.to_string();
            let uncounted = Some(KeyError::misconfigured(what));
            self.rest = Some(Box::new(Rest { uncounted, ..rest.clone() }));
        }
    }

    /// Makes the pairs of some keys shadow pairs.
    pub(crate) fn shadow_where(&mut self, is_shadow: impl Fn(&PartitionKey) -> bool) {
        if let Some(part) = &mut self.first {
            part.is_shadow |= is_shadow(&part.key);
        }
        if let Some(rest) = &mut self.rest {
            for part in &mut rest.others {
                part.is_shadow |= is_shadow(&part.key);
            }
            for pair in &mut rest.pairs {
                pair.is_shadow |= is_shadow(&pair.key);
            }
        }
    }

    /// Combines two drafts in one check. If both set an outage rule, the other's rule applies.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.outage = other.outage.or(self.outage);
        self.reserves |= other.reserves;
        let first =
            if self.first.is_some() { other.first } else { mem::replace(&mut self.first, other.first) };
        if first.is_some() || other.rest.is_some() {
            let rest = self.rest.get_or_insert_default();
            let others = other.rest.map(|rest| *rest).unwrap_or_default();
            rest.others.extend(first.into_iter().chain(others.others));
            rest.pairs.extend(others.pairs);
            rest.uncounted = rest.uncounted.take().or(others.uncounted);
        }
        self
    }

    pub(crate) fn part(key: PartitionKey, costs: Costs, against: Against) -> Self {
        let is_shadow = false;
        Self { first: Some(Part { key, costs, against, is_shadow }), ..Self::exempt() }
    }

    /// Creates the draft of a shadow limit whose key cannot be read: the request passes uncounted.
    pub(crate) fn uncounted(error: KeyError) -> Self {
        let rest = Rest { uncounted: Some(error), ..Rest::default() };
        Self { rest: Some(Box::new(rest)), ..Self::exempt() }
    }

    /// Returns the only part of a draft, if it is checked against the policies of the limiter and no others.
    #[inline]
    pub(super) fn usual_part(&self) -> Option<UsualPart<'_>> {
        let Part { key, costs, against, is_shadow } = self.first.as_ref().filter(|_| self.rest.is_none())?;
        let part = UsualPart { key, costs: Some(costs), is_shadow: *is_shadow };
        matches!(against, Against::Limiter | Against::LimiterAnd(None)).then_some(part)
    }

    /// Returns how this draft reserves, or `None` for a plain charge. `default` is the rule of the limiter.
    #[inline]
    pub(super) fn reserve_terms(&self, default: Reserve) -> Option<Reserve> {
        let unsettled = self.unsettled.unwrap_or(default.unsettled);
        self.reserves.then_some(Reserve { unsettled, clamps: self.clamps || default.clamps })
    }

    /// Returns whether the draft has no key and no pair.
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |rest: &Rest| rest.others.is_empty() && rest.pairs.is_empty();
        self.first.is_none() && self.rest.as_deref().is_none_or(is_empty)
    }

    /// Returns whether this draft has a key or a pair, and all of them are shadows, whatever its policies are.
    pub(super) fn is_shadow(&self) -> bool {
        let is_shadow = |rest: &Rest| {
            rest.others.iter().all(|part| part.is_shadow) && rest.pairs.iter().all(|pair| pair.is_shadow)
        };
        !self.is_empty()
            && self.first.iter().all(|part| part.is_shadow)
            && self.rest.as_deref().is_none_or(is_shadow)
    }
}

/// Converts a value that states what to check to a [`Draft`]: a [`PartitionKey`] or a reference to one, `(key, cost)` with one of them,
/// [pairs](Pair), a `Draft`, or a `Result` of one of them with [`KeyError`]. The methods of a [`Limiter`](crate::Limiter) take it, and a
/// planning closure returns it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not state what to check",
    label = "expected a `PartitionKey`, `&PartitionKey`, `(PartitionKey, u32)`, `(&PartitionKey, Costs)`, a `Draft`, or a `Result` of one with `KeyError`",
    note = "return `PartitionKey::new(\"tenant\", value)`, or `(key, cost)` with a `u32` or `Costs` for another cost than 1, or `Draft::exempt()` to let the request pass"
)]
pub trait IntoDraft {
    /// Converts the value.
    ///
    /// # Errors
    ///
    /// Returns the [`KeyError`] of a `Result`.
    fn into_draft(self) -> Result<Draft, KeyError>;

    /// Returns the key, if [`into_draft`](Self::into_draft) would return [`Draft::check`] of this key at 1 unit. Otherwise, and by default,
    /// returns `None`. [`Limiter::check`](crate::Limiter::check) may use the key in place of the draft, so both must state the same.
    fn as_key(&self) -> Option<&PartitionKey> {
        None
    }
}

impl IntoDraft for Draft {
    fn into_draft(self) -> Result<Draft, KeyError> {
        Ok(self)
    }
}

impl IntoDraft for PartitionKey {
    fn into_draft(self) -> Result<Draft, KeyError> {
        Ok(Draft::check(self, 1))
    }

    #[inline]
    fn as_key(&self) -> Option<&PartitionKey> {
        Some(self)
    }
}

/// The key is cloned only if the draft is needed.
impl IntoDraft for &PartitionKey {
    fn into_draft(self) -> Result<Draft, KeyError> {
        self.clone().into_draft()
    }

    #[inline]
    fn as_key(&self) -> Option<&PartitionKey> {
        Some(self)
    }
}

impl IntoDraft for Vec<Pair> {
    fn into_draft(self) -> Result<Draft, KeyError> {
        Ok(Draft::pairs(self))
    }
}

impl<const N: usize> IntoDraft for [Pair; N] {
    fn into_draft(self) -> Result<Draft, KeyError> {
        Vec::from(self).into_draft()
    }
}

impl IntoDraft for &[Pair] {
    fn into_draft(self) -> Result<Draft, KeyError> {
        self.to_vec().into_draft()
    }
}

impl<C: IntoCosts> IntoDraft for (PartitionKey, C) {
    fn into_draft(self) -> Result<Draft, KeyError> {
        Ok(Draft::check(self.0, self.1))
    }
}

/// The key is cloned.
impl<C: IntoCosts> IntoDraft for (&PartitionKey, C) {
    fn into_draft(self) -> Result<Draft, KeyError> {
        Ok(Draft::check(self.0.clone(), self.1))
    }
}

#[diagnostic::do_not_recommend]
impl<T: IntoDraft> IntoDraft for Result<T, KeyError> {
    fn into_draft(self) -> Result<Draft, KeyError> {
        self.and_then(T::into_draft)
    }
}
