//! Learning from an API: a client obeys what the API answers. See [the guide](crate::guide::waiting#obey-what-an-api-answers).

use std::time::Duration;

use crate::{
    check::Pair,
    error::ConfigError,
    policy::{MAX_WINDOW, Policy},
};

mod http;
mod learner;

pub(crate) use learner::Learner;

/// What a limiter learns from the answers of an API, with one switch for each behaviour. All are on by default.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::learn::Learning;
///
/// let mut learning = Learning::default();
/// learning.max_wait = Duration::from_secs(300);
/// learning.backs_off = false;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learning {
    /// Whether a denial that states a wait blocks the [gates](crate::Policy::gate) of its request until then.
    pub obeys_waits: bool,
    /// Whether a stated remaining quota that is smaller than that of the store raises the usage in the store.
    pub obeys_quotas: bool,
    /// Whether a denial without a wait, or with one of zero, blocks the gates of its request: for half a second to a second at first, up to
    /// twice as long after each further denial, and at most [`max_wait`](Self::max_wait). A request that the API admits ends it.
    ///
    /// The limiter remembers the denials of up to 8,192 gates and keys. If more back off at the same time, the one that matters least is
    /// forgotten: its wait is short, or ended long ago. A new key that takes the place of one that still backs off takes over up to 6 of its
    /// denials, so its first wait is at most 64 s.
    pub backs_off: bool,
    /// The longest time for which an answer blocks: 10 ms to 366 days. The default is [`DEFAULT_MAX_WAIT`](Self::DEFAULT_MAX_WAIT).
    pub max_wait: Duration,
}

impl Learning {
    /// The default of [`max_wait`](Self::max_wait): 1 h.
    pub const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(3_600);

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let waits = Duration::from_millis(10)..=MAX_WINDOW;
        ConfigError::check_range("learn: max_wait", self.max_wait, waits, "10 ms to 366 days")
    }
}

impl Default for Learning {
    fn default() -> Self {
        Self { obeys_waits: true, obeys_quotas: true, backs_off: true, max_wait: Self::DEFAULT_MAX_WAIT }
    }
}

/// What the answer of an API states about its limits. For HTTP, [`from_http`](Self::from_http) reads it.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::learn::{Stated, StatedQuota};
///
/// let stated = Stated::new([StatedQuota::new(0)]).denied(Duration::from_secs(3));
/// assert!(stated.is_denial);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stated {
    /// Whether the API has denied the request.
    pub is_denial: bool,
    /// Whether the API has failed, as with HTTP 500, so that the answer does not show whether it admits requests. A failure neither lengthens
    /// nor ends a [backoff](Learning::backs_off).
    pub is_failure: bool,
    /// The wait that a denial states.
    pub wait: Option<Duration>,
    /// The quotas.
    pub quotas: Vec<StatedQuota>,
}

/// A quota that the answer of an API states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatedQuota {
    /// The name of the quota policy.
    pub name: Option<String>,
    /// The quota, in units of the API.
    pub limit: Option<u64>,
    /// The window.
    pub window: Option<Duration>,
    /// The remaining quota, in units of the API.
    pub remaining: u64,
    /// The time until the remaining quota is larger. After this time, the statement does not apply any longer.
    pub reset: Option<Duration>,
}

/// What [`Limiter::learn`](crate::Limiter::learn) has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learned {
    /// How long the gates block, from now on. A gate that blocks longer already stays as it is.
    pub blocked_for: Option<Duration>,
    /// The units that the store was asked to charge, because the API has stated a smaller remaining quota. 0 units if another process was
    /// faster, if a settlement has left as little, or if the answer is older than one that the store knows.
    pub charged: Vec<(Policy, u32)>,
    /// The quotas that belong to no policy of the request, or to several.
    pub unmatched: Vec<StatedQuota>,
}

impl Stated {
    /// Creates the statements of an answer with these quotas.
    pub fn new(quotas: impl Into<Vec<StatedQuota>>) -> Self {
        Self { quotas: quotas.into(), ..Self::default() }
    }

    /// Makes this answer a denial, with the wait that it states, if it states one.
    #[must_use]
    pub fn denied(self, wait: impl Into<Option<Duration>>) -> Self {
        Self { is_denial: true, wait: wait.into(), ..self }
    }
}

impl StatedQuota {
    /// Creates a quota of which this many units remain. All other fields are `None`.
    pub fn new(remaining: u64) -> Self {
        Self { remaining, ..Self::default() }
    }

    /// Returns the index of the pair whose policy this quota belongs to: the policy of the same name, or else the only one that has the
    /// same limit, and the same window, if the quota states them. `None` if there is none, or more than one.
    pub(crate) fn index_in(&self, pairs: &[Pair]) -> Option<usize> {
        let is_named = |pair: &Pair| self.name.as_deref() == Some(pair.policy.name());
        let has_named = pairs.iter().any(is_named);
        // A name alone does not describe another policy.
        let is_alike = |policy: &Policy| {
            (self.limit.is_some() || self.name.is_none())
                && self.limit.is_none_or(|limit| policy.has_quota_of(limit))
                && self.window.is_none_or(|window| policy.window() == Some(window))
        };
        let belongs = |pair: &Pair| if has_named { is_named(pair) } else { is_alike(&pair.policy) };
        let fits = |pair: &Pair| pair.policy.properties().is_settled() && belongs(pair);
        let mut found = pairs.iter().enumerate().filter(|(_, pair)| fits(pair)).map(|(i, _)| i);
        found.next().filter(|_| found.next().is_none())
    }
}
