//! Decisions: the vocabulary that all levels share.

use std::{fmt, slice, sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    check::{Check, MAX_PAIRS, Namespace, NamespaceNumber, Pair, PairRef, Purpose, Receipt},
    error::BackendError,
    hold::Hold,
    policy::{Algorithm, Policy},
};

/// The time until a check would be admitted.
///
/// Waits are ordered: any duration is less than [`Unknown`](Wait::Unknown), and this is less than [`Never`](Wait::Never).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// A duration in microseconds. Zero if no wait is needed.
    For(Duration),
    /// The wait is not known, because units may return at any time: that of a policy [in flight](crate::Policy::in_flight). Only a
    /// [`Status`] states it.
    Unknown,
    /// No wait helps, because the cost is above the quota.
    Never,
}

impl Wait {
    /// No wait.
    pub const ZERO: Self = Self::For(Duration::ZERO);

    /// Returns whether no wait is needed.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// Returns the wait in whole seconds, rounded up as in `Retry-After`, so that no client returns too early. `None` unless it is a
    /// [duration](Self::For).
    pub fn whole_seconds(self) -> Option<u64> {
        self.duration().map(whole_seconds)
    }

    /// Returns the wait as a [duration](Self::For), zero if no wait is needed. `None` if it is not known, or if no wait helps.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::Wait;
    ///
    /// assert_eq!(Wait::For(Duration::from_millis(1_500)).duration(), Some(Duration::from_millis(1_500)));
    /// assert_eq!(Wait::Never.duration(), None);
    /// ```
    pub fn duration(self) -> Option<Duration> {
        let Self::For(wait) = self else { return None };
        Some(wait)
    }
}

/// Rounds a wait up to whole seconds. A nonzero wait is at least 1.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

/// The longest time in microseconds.
const LONGEST_MICROS: u64 = u64::MAX - 2;

impl WaitMicros {
    pub(crate) const ZERO: Self = Self(0);
    pub(crate) const UNKNOWN: Self = Self(u64::MAX - 1);
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// Returns a wait of this many microseconds.
    #[inline]
    pub(crate) fn new(micros: u64) -> Self {
        Self(micros.min(LONGEST_MICROS))
    }

    #[inline]
    fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    fn get(self) -> Wait {
        match self {
            Self::NEVER => Wait::Never,
            Self::UNKNOWN => Wait::Unknown,
            Self(micros) => Wait::For(Duration::from_micros(micros)),
        }
    }
}

impl From<Wait> for WaitMicros {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::For(wait) => Self::new(whole_micros(wait)),
            Wait::Unknown => Self::UNKNOWN,
            Wait::Never => Self::NEVER,
        }
    }
}

/// Rounds a time up to whole microseconds.
fn whole_micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).map_or(LONGEST_MICROS, |micros| micros.min(LONGEST_MICROS))
}

/// The result of one check: admitted or denied, with a status for every pair.
///
/// A check is admitted if every pair admits. Then all pairs were charged, at one instant: in a cluster, at one instant for each slot. If a pair does not admit, nothing was
/// charged and nothing was written. If the store cannot decide, the result is not a decision but a
/// [`BackendError`](crate::backend::BackendError).
///
/// # Shadow pairs
///
/// A [shadow pair](crate::backend::Pair::shadow) does not take part in the verdict:
///
/// - [`is_admitted`](Self::is_admitted), [`retry_after`](Self::retry_after) and [`violated`](Self::violated) ignore shadow pairs. A
///   check of shadow pairs only is always admitted.
/// - An admitted check charges the shadow pairs whose cost fits. The others are not charged: their statuses have a nonzero
///   [`retry_after`](Status::retry_after), and [`shadow_denied`](Self::shadow_denied) returns them.
/// - A denied check charges no shadow pair.
/// - If the store cannot decide a shadow pair, the decision has no status for it. This happens if its record is full or is not of
///   this crate, or if its slot of a cluster does not answer.
///
/// Cloning is cheap.
#[derive(Clone)]
#[must_use = "a denied check is a decision too: read `is_admitted()`"]
pub struct Decision(Parts);

/// The decision of a backend, or why there is none.
pub(crate) type Decided = Result<Decision, BackendError>;

/// The parts of a decision.
#[derive(Clone)]
enum Parts {
    /// Those of most decisions, which need no memory of the heap.
    One(OneStatus),
    Any(Arc<AnyParts>),
}

/// A decision of one pair, without receipts.
#[derive(Clone)]
struct OneStatus {
    at_micros: u64,
    status: Status,
    store: Option<NamespaceNumber>,
    source: OneSource,
}

/// The source of a decision of one pair. It is a whole word, as [`Role`] is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum OneSource {
    Backend,
    Lease,
}

#[derive(Clone)]
struct AnyParts {
    at_micros: u64,
    is_admitted: bool,
    /// Whether a shadow pair would have denied the check.
    is_shadow_denied: bool,
    statuses: Statuses,
    receipts: Box<[Receipt]>,
    origin: Origin,
    /// The namespace of the check, if the limiter has noted it. Only the warning about double charges needs it.
    store: Option<NamespaceNumber>,
    /// The units that the admitted check holds.
    hold: Option<Hold>,
}

/// The statuses of a decision. Few of them need no memory of the heap.
pub(crate) type Statuses = SmallVec<[Status; 3]>;

/// The origin of a decision.
#[derive(Clone, PartialEq, Eq)]
enum Origin {
    /// A backend, at one instant of one clock, with a status for every pair.
    Backend,
    /// A source that may not have a status for every pair.
    Partial {
        source: PartialSource,
        /// The policies of the check.
        listed: Box<[Listed]>,
        /// For each pair, whether it has a status.
        known: [bool; MAX_PAIRS],
    },
    /// A backend, which has also leased units to this process: for every pair, how many beyond its cost.
    Leasing(Box<[u32]>),
    /// This process, from units that it has leased, with a status for every pair.
    Lease,
}

/// The source of a decision that may not have a status for every pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartialSource {
    /// A backend, which cannot decide some shadow pairs.
    Backend,
    /// The slots of a cluster, at several instants of several clocks. A denial may have the statuses of some pairs only.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a cluster has several slots"))]
    Slots,
    /// The deny cache, with statuses for the pairs that are known to deny.
    Cache,
}

/// A policy of a check, and whether its pair is a shadow.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) policy: Policy,
    pub(crate) is_shadow: bool,
}

/// The status of one pair in a decision.
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    policy: Policy,
    /// The hash of the partition key, for the warning about double charges. The statuses of two keys may be equal.
    key: Uncompared<u64>,
    role: Role,
    cost: u32,
    standing: Standing,
}

/// How a pair stands after a decision: what the methods of the same names of [`Status`] return.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) remaining: u32,
    pub(crate) retry_after: WaitMicros,
    /// In microseconds.
    pub(crate) next_after: u64,
    /// In microseconds.
    pub(crate) reset_after: u64,
}

/// Whether a pair takes part in the verdict. A decision consists of whole words: each move of a smaller part, just after it was written,
/// would wait for the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Role {
    Enforcing,
    Shadow,
}

/// A [`Wait`] as a number of microseconds, in the same order.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WaitMicros(u64);

/// A value that takes no part in comparisons.
#[derive(Clone, Copy)]
struct Uncompared<T>(T);

impl<T> PartialEq for Uncompared<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Uncompared<T> {}

impl Decision {
    /// Creates a decision that was made at the instant `at_micros`, in microseconds of the backend's clock, from the statuses of
    /// all pairs in the order of the check. It is admitted if every `retry_after` is zero, except those of shadow pairs.
    pub fn new(at_micros: u64, statuses: impl Into<Box<[Status]>>) -> Self {
        Self::with_receipts(at_micros, statuses, [])
    }

    /// Creates the decision of a check whose purpose was [`Purpose::Reserve`](crate::backend::Purpose::Reserve): with a receipt for every
    /// pair if it was admitted, and none if not. The receipt of a shadow pair that was not charged has the value 0 in all fields.
    pub fn with_receipts(
        at_micros: u64,
        statuses: impl Into<Box<[Status]>>,
        receipts: impl Into<Box<[Receipt]>>,
    ) -> Self {
        Self::from_parts(Origin::Backend, at_micros, statuses.into().into_vec().into(), receipts.into())
    }

    /// Creates a decision as [`with_receipts`](Self::with_receipts) does.
    pub(crate) fn from_statuses(at_micros: u64, statuses: Statuses, receipts: Vec<Receipt>) -> Self {
        Self::from_parts(Origin::Backend, at_micros, statuses, receipts.into())
    }

    /// Creates the decision of a check of one pair that is no reservation.
    #[inline]
    pub(crate) fn from_status(at_micros: u64, status: Status) -> Self {
        Self(Parts::One(OneStatus { at_micros, status, store: None, source: OneSource::Backend }))
    }

    /// Creates the decision of a check whose purpose was [`Purpose::Lease`](crate::backend::Purpose::Lease). If it was admitted, with
    /// a receipt for every pair, and the units that were charged beyond its cost: 0 to [`Pair::lease`](crate::backend::Pair::lease)
    /// quota units. If it was denied, with none of them. `remaining` counts these units as used.
    pub fn with_leases(
        at_micros: u64,
        statuses: impl Into<Box<[Status]>>,
        receipts: impl Into<Box<[Receipt]>>,
        leases: impl Into<Box<[u32]>>,
    ) -> Self {
        Self::from_parts(
            Origin::Leasing(leases.into()),
            at_micros,
            statuses.into().into_vec().into(),
            receipts.into(),
        )
    }

    /// Creates an admission from leased units.
    pub(crate) fn from_lease(at_micros: u64, statuses: Statuses, receipts: Box<[Receipt]>) -> Self {
        Self::from_parts(Origin::Lease, at_micros, statuses, receipts)
    }

    /// Creates the decision of a check from a source that may not have a status for every pair. `statuses` has `None` for the others.
    pub(crate) fn partial(
        source: PartialSource,
        at_micros: u64,
        statuses: impl IntoIterator<Item = Option<Status>>,
        receipts: Vec<Receipt>,
        check: &Check,
    ) -> Self {
        let pairs = check.pairs();
        let (mut known, mut stated) = ([false; MAX_PAIRS], Statuses::with_capacity(pairs.len()));
        for (known, status) in known.iter_mut().zip(statuses) {
            *known = status.is_some();
            stated.extend(status);
        }
        let origin = if source == PartialSource::Backend && stated.len() == pairs.len() {
            Origin::Backend
        } else {
            let listed = |pair: &Pair| Listed { policy: pair.policy.clone(), is_shadow: pair.is_shadow };
            Origin::Partial { source, listed: pairs.iter().map(listed).collect(), known }
        };
        Self::from_parts(origin, at_micros, stated, receipts.into())
    }

    fn from_parts(origin: Origin, at_micros: u64, mut statuses: Statuses, receipts: Box<[Receipt]>) -> Self {
        let source = match origin {
            Origin::Backend => Some(OneSource::Backend),
            Origin::Lease => Some(OneSource::Lease),
            Origin::Partial { .. } | Origin::Leasing(_) => None,
        };
        if let Some(source) = source.filter(|_| receipts.is_empty() && statuses.len() == 1)
            && let Some(status) = statuses.pop()
        {
            return Self(Parts::One(OneStatus { at_micros, status, store: None, source }));
        }
        Self(Parts::Any(Arc::new(AnyParts::new(origin, at_micros, statuses, receipts))))
    }

    /// Returns this decision, of which there is no clone yet, with the units that its check holds. For the
    /// [`Backend`](crate::backend::Backend) that has made it: if it was admitted, and charged a policy [in
    /// flight](crate::Policy::in_flight). A [leased](Self::is_leased) decision holds no units.
    pub fn with_hold(self, hold: Hold) -> Self {
        let mut parts = match self.0 {
            Parts::Any(parts) => parts,
            // No backend makes the decision of a lease.
            Parts::One(OneStatus { at_micros, status, store, .. }) => {
                let statuses = [status].into_iter().collect();
                Arc::new(AnyParts { store, ..AnyParts::new(Origin::Backend, at_micros, statuses, [].into()) })
            }
        };
        if let Some(parts) = Arc::get_mut(&mut parts) {
            parts.hold = Some(hold);
        }
        Self(Parts::Any(parts))
    }

    /// Returns a copy that holds no units.
    pub(crate) fn without_hold(&self) -> Self {
        match &self.0 {
            Parts::Any(parts) if parts.hold.is_some() => {
                Self(Parts::Any(Arc::new(AnyParts { hold: None, ..AnyParts::clone(parts) })))
            }
            _ => self.clone(),
        }
    }

    /// Returns the units that an admitted check holds under policies [in flight](crate::Policy::in_flight), until the last clone of this
    /// decision and of the hold is dropped. `None` if there are none. A handler takes the [`Hold`] itself: that of an outer layer is not in
    /// the decision of an inner one.
    #[inline]
    pub fn hold(&self) -> Option<&Hold> {
        self.any_parts()?.hold.as_ref()
    }

    /// Notes the namespace of the check of this decision, so that a nested layer can compare its own decision with it.
    #[inline]
    pub(crate) fn with_namespace(mut self, namespace: &Namespace) -> Self {
        let store = match &mut self.0 {
            Parts::One(parts) => Some(&mut parts.store),
            // A backend may return one decision for several checks. Then none is noted.
            Parts::Any(parts) => Arc::get_mut(parts).map(|parts| &mut parts.store),
        };
        if let Some(store) = store {
            *store = Some(namespace.number());
        }
        self
    }

    /// Returns the number of the namespace with the identity of its store, if it is noted.
    pub(crate) fn store(&self) -> Option<NamespaceNumber> {
        match &self.0 {
            Parts::One(parts) => parts.store,
            Parts::Any(parts) => parts.store,
        }
    }

    #[inline]
    fn any_parts(&self) -> Option<&AnyParts> {
        match &self.0 {
            Parts::One(_) => None,
            Parts::Any(parts) => Some(parts),
        }
    }

    #[inline]
    fn origin(&self) -> &Origin {
        match &self.0 {
            Parts::One(OneStatus { source: OneSource::Backend, .. }) => &Origin::Backend,
            Parts::One(OneStatus { source: OneSource::Lease, .. }) => &Origin::Lease,
            Parts::Any(parts) => &parts.origin,
        }
    }

    /// Returns the policies of which both decisions have charged the same pair of a key and a policy, in the same place. Keys are
    /// compared by their hash.
    pub(crate) fn policies_charged_by<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Policy> {
        let is_same_store = self.store().is_some_and(|store| other.store() == Some(store));
        let others = if is_same_store { other.statuses() } else { &[] };
        let is_charged = |status: &&Status| {
            // A gate counts nothing.
            status.cost > 0
                && status.quota().is_some()
                && others.iter().any(|other| {
                    other.cost > 0 && other.key.0 == status.key.0 && other.policy.counts_with(&status.policy)
                })
        };
        self.statuses().iter().filter(is_charged).map(|status| &status.policy)
    }

    /// Returns whether the check was admitted and charged.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        match &self.0 {
            Parts::One(parts) => !parts.status.denies(),
            Parts::Any(parts) => parts.is_admitted,
        }
    }

    /// Returns whether the check has written to the store: it was admitted, charged a pair with a cost, and was no peek.
    pub(crate) fn has_written(&self, check: &Check) -> bool {
        self.charged_pairs(check).any(|(_, _, status)| status.cost > 0)
    }

    /// Returns the time until the same check would be admitted, if there are no other charges: the largest wait of all enforcing
    /// pairs, because all must admit. Zero if the check was admitted. If a slot of a cluster has not replied, it is a lower bound.
    ///
    /// A wait that is not known counts as the [`retry_after`](crate::Policy::retry_after) of its policy in flight. So this method never
    /// returns [`Wait::Unknown`].
    pub fn retry_after(&self) -> Wait {
        self.longest_wait().map_or(Wait::ZERO, Status::stated_wait)
    }

    /// Returns the longest wait of the enforcing pairs whose wait is known.
    pub(crate) fn longest_known_wait(&self) -> Duration {
        self.enforced().filter_map(|status| status.retry_after().duration()).max().unwrap_or_default()
    }

    /// Returns what stands for the longest wait that is not known. `None` if all are known.
    pub(crate) fn longest_unknown_wait(&self) -> Option<Duration> {
        let unknown = self.enforced().filter(|status| status.standing.retry_after == WaitMicros::UNKNOWN);
        unknown.filter_map(|status| status.stated_wait().duration()).max()
    }

    /// Returns the status of the enforcing pair with the longest wait, which is the one that the client waits for.
    pub(crate) fn longest_wait(&self) -> Option<&Status> {
        self.enforced().max_by_key(|status| status.stated_wait())
    }

    /// Returns the status of every pair, in the order of the check. Some pairs may have no status, so do not find one by its position:
    /// call [`status`](Self::status) with the name of the policy, or [`indexed_statuses`](Self::indexed_statuses).
    ///
    /// - A [cached](Self::is_cached) denial contains only the pairs that are known to deny.
    /// - A denial across several slots of a cluster contains only the pairs whose slots have replied.
    /// - A [shadow pair](Self#shadow-pairs) that the store cannot decide has no status, also in an admission.
    ///
    /// Every decision contains at least one status, unless all its pairs are shadows. In an admission, every other pair has one.
    #[inline]
    pub fn statuses(&self) -> &[Status] {
        match &self.0 {
            Parts::One(parts) => slice::from_ref(&parts.status),
            Parts::Any(parts) => &parts.statuses,
        }
    }

    /// Returns the status of the policy with this name: of the first of its pairs, if the check has several. `None` if the check has no
    /// such policy, or if no pair of it [has a status](Self::statuses).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .policy(Policy::new("daily", 1_000, Duration::from_secs(24 * 3600))?)
    ///     .build()?;
    /// let decision = limiter.check(PartitionKey::new("user", "alice")).await?;
    ///
    /// assert_eq!(decision.status("daily").map(|status| status.remaining()), Some(999));
    /// assert!(decision.status("hourly").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn status(&self, policy: &str) -> Option<&Status> {
        self.statuses().iter().find(|status| status.policy.name() == policy)
    }

    fn enforced(&self) -> impl Iterator<Item = &Status> {
        self.statuses().iter().filter(|status| !status.is_shadow())
    }

    /// Returns the policies that deny. Shadow pairs do not count.
    pub fn violated(&self) -> impl Iterator<Item = &Policy> {
        let denying = self.enforced().filter(|status| status.denies());
        denying.map(|status| &status.policy)
    }

    /// Returns the statuses of the shadow pairs that would have denied the check: their cost does not fit. The check itself may be
    /// admitted or denied.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let mails = Policy::new("mails", 1, Duration::from_secs(60))?.shadow();
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(mails).build()?;
    /// let _ = limiter.check(PartitionKey::new("user", "alice")).await?;
    /// let second = limiter.check(PartitionKey::new("user", "alice")).await?;
    ///
    /// assert!(second.is_admitted());
    /// let would_deny: Vec<&str> = second.shadow_denied().map(|status| status.policy().name()).collect();
    /// assert_eq!(would_deny, ["mails"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shadow_denied(&self) -> impl Iterator<Item = &Status> {
        // Usually there are none, and no status is read.
        let statuses = if self.is_shadow_denied() { self.statuses() } else { &[] };
        statuses.iter().filter(|status| status.denies_in_shadow())
    }

    /// Returns whether a shadow pair would have denied the check.
    #[inline]
    pub(crate) fn is_shadow_denied(&self) -> bool {
        match &self.0 {
            Parts::One(parts) => parts.status.denies_in_shadow(),
            Parts::Any(parts) => parts.is_shadow_denied,
        }
    }

    /// Returns the statuses that a response may show: those of enforcing pairs whose policies are not hidden.
    pub(crate) fn shown_statuses(&self) -> impl Iterator<Item = &Status> {
        self.enforced().filter(|status| !status.policy.is_hidden())
    }

    /// Returns the status that a response may show, if the check had one pair. `None` otherwise, or if the status is not shown.
    #[inline]
    pub(crate) fn only_shown(&self) -> Option<&Status> {
        match (self.origin(), self.statuses()) {
            (Origin::Backend | Origin::Lease, [status])
                if !status.is_shadow() && !status.policy.is_hidden() =>
            {
                Some(status)
            }
            _ => None,
        }
    }

    /// Returns the policies that a response may show, also those of pairs without a status.
    pub(crate) fn shown_policies(&self) -> impl Iterator<Item = &Policy> {
        let shown = self.listed().filter(|(policy, is_shadow)| !is_shadow && !policy.is_hidden());
        shown.map(|(policy, _)| policy)
    }

    /// Returns the receipts of an admitted reservation, in the order of the check. Empty for any other check.
    pub fn receipts(&self) -> &[Receipt] {
        self.any_parts().map_or(&[], |parts| &parts.receipts)
    }

    /// Returns the instant of the decision, in microseconds of the backend's clock: the time of Redis, or for the memory backend
    /// the Unix time at start plus a monotonic clock. For a [cached](Self::is_cached) denial, the instant of the newest denial
    /// that it repeats.
    pub fn at_micros(&self) -> u64 {
        match &self.0 {
            Parts::One(parts) => parts.at_micros,
            Parts::Any(parts) => parts.at_micros,
        }
    }

    /// Returns whether this is a denial from the deny cache; see [`DenyCacheConfig`](crate::outage::DenyCacheConfig) for what it
    /// contains. An admission is never cached.
    pub fn is_cached(&self) -> bool {
        matches!(self.origin(), Origin::Partial { source: PartialSource::Cache, .. })
    }

    /// Returns whether this process has admitted the check from [leased units](crate::Policy::leased), which the store had charged
    /// before. Then [`at_micros`](Self::at_micros) is a lower bound, `remaining` is that of the store after the lease plus what is left
    /// of the lease in this process, and the waits of the statuses are upper bounds.
    pub fn is_leased(&self) -> bool {
        matches!(self.origin(), Origin::Lease)
    }

    /// Returns the units that a backend has leased beyond the cost, in the order of the pairs, and empty for any other decision.
    pub(crate) fn leases(&self) -> &[u32] {
        match self.origin() {
            Origin::Leasing(units) => units,
            _ => &[],
        }
    }

    /// Returns whether the check was decided at several instants of several clocks.
    pub(crate) fn is_divided(&self) -> bool {
        matches!(self.origin(), Origin::Partial { source: PartialSource::Slots, .. })
    }

    /// Returns whether every pair of this check that must have a status has one.
    #[inline]
    pub(crate) fn is_complete(&self, check: &Check) -> bool {
        match self.origin() {
            Origin::Partial { known, .. } => {
                let lacks = |(pair, is_known): (&Pair, &bool)| !pair.is_shadow && !is_known;
                !(self.is_admitted() && check.pairs().iter().zip(known).any(lacks))
            }
            _ => self.statuses().len() == check.pairs().len(),
        }
    }

    /// Returns the statuses, each with the index of its pair in the check. An index may be missing, as the [status](Self::statuses) is.
    pub fn indexed_statuses(&self) -> impl Iterator<Item = (usize, &Status)> {
        let known = match self.origin() {
            Origin::Partial { known, .. } => *known,
            Origin::Backend | Origin::Leasing(_) | Origin::Lease => [true; MAX_PAIRS],
        };
        (0..MAX_PAIRS).filter(move |index| known[*index]).zip(self.statuses())
    }

    /// Returns the pairs of this check that have a status, each with its status.
    pub(crate) fn statuses_of<'a>(
        &'a self,
        check: &'a Check,
    ) -> impl Iterator<Item = (&'a Pair, &'a Status)> {
        self.indexed_statuses().filter_map(|(i, status)| Some((check.pairs().get(i)?, status)))
    }

    /// Returns the pairs of this check whose units in flight it holds now, each with its index and the units.
    pub(crate) fn held_pairs<'a>(&'a self, check: &'a Check) -> impl Iterator<Item = (usize, &'a Pair, u32)> {
        let charged = self.charged_pairs(check).map(|(i, pair, status)| (i, pair, status.cost));
        charged.filter(|(_, pair, units)| *units > 0 && pair.policy.properties().is_held)
    }

    /// Returns the pairs of this check that it has charged, each with its index and its status.
    fn charged_pairs<'a>(&'a self, check: &'a Check) -> impl Iterator<Item = (usize, &'a Pair, &'a Status)> {
        let is_charged = self.is_admitted() && check.purpose() != Purpose::Peek;
        let pairs =
            self.indexed_statuses().filter_map(|(i, status)| Some((i, check.pairs().get(i)?, status)));
        pairs.filter(move |(_, pair, status)| {
            is_charged
                && pair.borrowed().is_chargeable(check.purpose())
                && status.standing.retry_after.is_zero()
        })
    }

    /// Returns the check that this admission has charged: that of a [`Purpose::TakeUpTo`](crate::backend::Purpose::TakeUpTo) with the
    /// units that were taken, and their costs.
    pub(crate) fn charged_check(&self, check: Check) -> Check {
        let Purpose::TakeUpTo(wanted) = check.purpose() else { return check };
        let units = self.statuses_of(&check).find_map(|(pair, status)| status.cost().checked_div(pair.cost));
        // No backend may take more.
        let units = units.unwrap_or(wanted).min(wanted);
        check.times(units).with_purpose(Purpose::TakeUpTo(units))
    }

    /// Returns all policies of the check, in its order, also those of pairs without a status.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.listed().map(|(policy, _)| policy)
    }

    /// Returns all policies of the check, in its order, each with whether its pair is a shadow.
    fn listed(&self) -> impl Iterator<Item = (&Policy, bool)> {
        let apart = self.listed_apart();
        let known = if apart.is_empty() { self.statuses() } else { &[] };
        let listed = apart.iter().map(|listed| (&listed.policy, listed.is_shadow));
        listed.chain(known.iter().map(|status| (&status.policy, status.is_shadow())))
    }

    /// Returns all policies of a check that may not have a status for every pair. Empty if every pair has a status.
    pub(crate) fn listed_apart(&self) -> &[Listed] {
        match self.origin() {
            Origin::Partial { listed, .. } => listed,
            Origin::Backend | Origin::Leasing(_) | Origin::Lease => &[],
        }
    }
}

impl AnyParts {
    fn new(origin: Origin, at_micros: u64, statuses: Statuses, receipts: Box<[Receipt]>) -> Self {
        let (mut is_admitted, mut is_shadow_denied) = (true, false);
        for status in &statuses {
            is_admitted &= !status.denies();
            is_shadow_denied |= status.denies_in_shadow();
        }
        Self { at_micros, is_admitted, is_shadow_denied, statuses, receipts, origin, store: None, hold: None }
    }
}

/// The namespace and the units that a decision holds make no difference.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        self.at_micros() == other.at_micros()
            && self.statuses() == other.statuses()
            && self.receipts() == other.receipts()
            && self.origin() == other.origin()
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("admitted", &self.is_admitted())
            .field("cached", &self.is_cached())
            .field("leased", &self.is_leased())
            .field("at_micros", &self.at_micros())
            .field("statuses", &self.statuses())
            .finish()
    }
}

impl Status {
    /// Creates the status of a pair after the decision. The methods of the same names define the parameters. Times are rounded up to
    /// microseconds, and are at most 2^64-3 of them.
    pub fn new(
        pair: &Pair,
        remaining: u32,
        retry_after: Wait,
        next_after: Duration,
        reset_after: Duration,
    ) -> Self {
        let [next_after, reset_after] = [next_after, reset_after].map(whole_micros);
        let retry_after = retry_after.into();
        Self::of_pair(pair.borrowed(), &Standing { remaining, retry_after, next_after, reset_after })
    }

    #[inline]
    pub(crate) fn of_pair(
        PairRef { key, policy, cost, is_shadow }: PairRef<'_>,
        standing: &Standing,
    ) -> Self {
        let role = if is_shadow { Role::Shadow } else { Role::Enforcing };
        Self { policy: policy.clone(), key: Uncompared(key.hash_code()), role, cost, standing: *standing }
    }

    /// Returns whether this shadow pair would deny the check.
    #[inline]
    pub(crate) fn denies_in_shadow(&self) -> bool {
        self.is_shadow() && !self.standing.retry_after.is_zero()
    }

    /// Returns whether this pair denies the check.
    #[inline]
    fn denies(&self) -> bool {
        !self.standing.retry_after.is_zero() && !self.is_shadow()
    }

    /// Returns whether this is the status of a [shadow pair](Decision#shadow-pairs), which does not take part in the verdict.
    pub fn is_shadow(&self) -> bool {
        self.role == Role::Shadow
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the cost of the request, in quota units.
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// Returns the quota of the policy, in quota units, as [`Policy::quota`] does.
    pub fn quota(&self) -> Option<u32> {
        self.policy.quota()
    }

    /// Returns the remaining quota after the decision, in quota units. 0 if more than the quota is used. If the policy
    /// has no quota, as a gate, the number has no meaning: skip a status whose [`quota`](Self::quota) is `None`.
    /// A shadow pair that denies was not charged.
    pub fn remaining(&self) -> u32 {
        self.standing.remaining
    }

    /// Returns the part of the quota that is in use after the decision: 0 to 1. It is 1 if more than the quota is used.
    pub fn usage_fraction(&self) -> f64 {
        let quota = self.policy.quota_units();
        f64::from(quota.saturating_sub(self.remaining())) / f64::from(quota)
    }

    /// Returns whether at least this fraction of the quota is in use after the decision. For the fraction that a limiter counts,
    /// see [`RateLimitLayerBuilder::near_limit`](crate::RateLimitLayerBuilder::near_limit).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::new("mails", 10, Duration::from_secs(60))?;
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
    /// let decision = limiter.check((PartitionKey::new("user", "alice"), 8)).await?;
    /// let status = decision.status("mails").ok_or("a memory states every pair")?;
    /// assert_eq!(status.usage_fraction(), 0.8);
    /// assert!(status.is_near(0.8) && !status.is_near(0.9));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_near(&self, fraction: f64) -> bool {
        self.usage_fraction() >= fraction
    }

    /// Returns the same status with more remaining quota.
    pub(crate) fn with_more(mut self, units: u32) -> Self {
        self.standing.remaining = self.remaining().saturating_add(units);
        self
    }

    /// Returns the smallest wait after which this pair admits the same cost, if there are no other charges. Zero if it admits
    /// now. For a cost above one, this is not the time until the oldest charge leaves, but until enough units have left.
    ///
    /// For a shadow pair, this is its own verdict, which does not affect the check.
    pub fn retry_after(&self) -> Wait {
        self.standing.retry_after.get()
    }

    /// Returns the wait that a response states: in place of one that is not known, that of the policy.
    pub(crate) fn stated_wait(&self) -> Wait {
        match (self.retry_after(), self.policy.algorithm()) {
            (Wait::Unknown, Algorithm::InFlight { retry_after, .. }) => Wait::For(retry_after),
            (wait, _) => wait,
        }
    }

    /// Returns the smallest wait after which [`remaining`](Self::remaining) is larger by at least one unit, if there are no other
    /// charges. If nothing is used, it is the window, the rest of a calendar period, or zero for a token bucket. Until then, the
    /// client can use no more than `remaining`. Zero for a type of policy without such a wait.
    pub fn next_after(&self) -> Duration {
        Duration::from_micros(self.standing.next_after)
    }

    /// Returns the smallest wait after which nothing is used, if there are no other charges. Zero also for a type of policy
    /// without such a wait.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.standing.reset_after)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("policy", &self.policy)
            .field("is_shadow", &self.is_shadow())
            .field("cost", &self.cost)
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("next_after", &self.next_after())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PartitionKey;

    fn pair() -> Pair {
        let policy = Policy::new("p", 5, Duration::from_secs(1)).unwrap();
        Pair::new(PartitionKey::new("user", "a"), policy, 1)
    }

    fn status(wait: Wait) -> Status {
        Status::new(&pair(), 0, wait, Duration::ZERO, Duration::ZERO)
    }

    #[test]
    fn decision_wait_is_largest_of_pairs() {
        let seconds = |s| Wait::For(Duration::from_secs(s));
        let wait = |waits: &[Wait]| {
            Decision::new(0, waits.iter().copied().map(status).collect::<Vec<_>>()).retry_after()
        };
        assert_eq!(wait(&[seconds(1), seconds(7), Wait::ZERO]), seconds(7));
        assert_eq!(wait(&[Wait::Never, Wait::For(Duration::MAX)]), Wait::Never);
        assert_eq!(wait(&[Wait::ZERO, Wait::ZERO]), Wait::ZERO);
    }

    #[test]
    fn decision_is_admitted_if_every_pair_admits() {
        let decision = |waits: [Wait; 2]| Decision::new(0, waits.map(status));
        assert!(decision([Wait::ZERO, Wait::ZERO]).is_admitted());
        assert!(!decision([Wait::ZERO, Wait::For(Duration::from_micros(1))]).is_admitted());
        assert!(!decision([Wait::Never, Wait::ZERO]).is_admitted());
    }

    /// A decision of one pair has two forms.
    #[test]
    fn units_and_namespace_make_no_difference() {
        let decision = Decision::new(7, [status(Wait::ZERO)]);
        let [one, other] = [(); 2].map(|()| Namespace::default().in_unnamed_store());
        let held = decision.clone().with_namespace(&one).with_hold(Hold::new(|| ()));
        assert!(decision.hold().is_none() && held.hold().is_some());
        assert_eq!((held.store(), &held), (Some(one.number()), &decision));
        assert_ne!(held.store(), decision.clone().with_namespace(&other).store());
        assert_ne!(decision, Decision::new(8, [status(Wait::ZERO)]));
        assert_ne!(decision, Decision::with_leases(7, [status(Wait::ZERO)], [], [1]));
    }

    #[test]
    fn times_are_rounded_up_to_microseconds() {
        for (nanos, micros) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2)] {
            let [given, stated] = [Duration::from_nanos(nanos), Duration::from_micros(micros)];
            let status = Status::new(&pair(), 0, Wait::For(given), given, given);
            assert_eq!(status.retry_after(), Wait::For(stated));
            assert_eq!((status.next_after(), status.reset_after()), (stated, stated));
        }
        let longest = Status::new(&pair(), 0, Wait::For(Duration::MAX), Duration::MAX, Duration::MAX);
        assert_eq!(longest.retry_after(), Wait::For(longest.reset_after()));
    }

    #[test]
    fn shadow_pair_does_not_change_verdict() {
        let shadow = |wait| Status::new(&pair().shadow(), 0, wait, Duration::ZERO, Duration::ZERO);
        let second = Wait::For(Duration::from_secs(1));
        let admitted = Decision::new(0, [status(Wait::ZERO), shadow(Wait::Never)]);
        assert!(admitted.is_admitted());
        assert_eq!((admitted.violated().count(), admitted.shadow_denied().count()), (0, 1));
        let denied = Decision::new(0, [shadow(Wait::Never), status(second), shadow(Wait::ZERO)]);
        assert_eq!(denied.retry_after(), second);
        assert_eq!((denied.violated().count(), denied.shadow_denied().count()), (1, 1));
        assert!(Decision::new(0, [shadow(Wait::Never)]).is_admitted());
        for decision in [admitted, denied] {
            assert_eq!((decision.shown_statuses().count(), decision.shown_policies().count()), (1, 1));
        }
    }

    #[test]
    fn only_shadow_pair_may_lack_status() {
        let check =
            Check::new([pair(), Pair::new(PartitionKey::new("user", "b"), pair().policy, 1).shadow()]);
        let check = check.unwrap();
        let decision = |statuses: [Option<Status>; 2]| {
            Decision::partial(PartialSource::Backend, 0, statuses, vec![], &check)
        };
        let of_shadow = Status::new(&check.pairs()[1], 0, Wait::ZERO, Duration::ZERO, Duration::ZERO);
        assert!(decision([Some(status(Wait::ZERO)), Some(of_shadow.clone())]).is_complete(&check));
        assert!(decision([Some(status(Wait::ZERO)), None]).is_complete(&check));
        assert!(!decision([None, Some(of_shadow)]).is_complete(&check));
        assert!(!Decision::new(0, [status(Wait::ZERO)]).is_complete(&check));
    }
}
