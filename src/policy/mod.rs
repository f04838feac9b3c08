//! Quota policies: a name, a quota, a window and an algorithm. A policy with impossible values cannot be built.

use std::{
    fmt,
    num::{NonZeroU32, NonZeroU64},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::HeaderValue;

#[cfg(feature = "calendar")]
use crate::calendar::Boundaries;
#[cfg(feature = "calendar")]
#[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
pub use crate::calendar::{Anchor, Period, Zone};
use crate::error::ConfigError;

mod constant_costs;
#[cfg(feature = "serde")]
mod format;
mod lease;
#[cfg(feature = "serde")]
mod length;
pub(crate) mod policies;
mod properties;
mod rate;
mod selector;
mod table;
mod table_use;
mod tier;
mod types;

pub(crate) use constant_costs::{check_constant_costs, check_estimates};
pub(crate) use gate::BLOCK_UNIT;
pub use lease::Lease;
pub use policies::Policies;
pub(crate) use policies::{cost_of, distinct};
use properties::GivenFields;
#[cfg(feature = "redis")]
pub(crate) use properties::{EqualChecks, RedisProperties};
pub(crate) use properties::{Expiry, Properties};
pub(crate) use rate::MAX_WINDOW;
pub use rate::Rate;
pub use selector::{PolicySelector, from_fn};
pub(crate) use sliding_log::MAX_CHARGES as MAX_LOG_CHARGES;
pub use table::PolicyTable;
pub(crate) use table_use::{TableUse, check_held, check_kept_bodies};
pub(crate) use tier::IntoTier;
pub use tier::Tier;
pub(crate) use token_bucket::MAX_PARTS;
pub use types::Algorithm;
pub(crate) use types::for_each_type;

const MIN_WINDOW: Duration = Duration::from_millis(1);

macro_rules! define_types {
    ($($(#[$attribute:meta])* $variant:ident $({ $($field:ident: $example:expr),* })? => $module:ident,)*) => {
        $($(#[$attribute])* mod $module;)*

        /// What Redis needs to know of each type.
        #[cfg(feature = "redis")]
        pub(crate) static REDIS_TYPES: &[RedisProperties] = &[$($(#[$attribute])* $module::REDIS),*];

        impl Algorithm {
            /// Returns the properties of a policy of this type, or an error if its fields are not possible.
            fn properties(self, fields: GivenFields<'_>) -> Result<Properties, ConfigError> {
                match self {
                    $($(#[$attribute])* Self::$variant $({ $($field),* })? => $module::properties(fields $(, $($field),*)?),)*
                }
            }

            /// Returns an example of each type.
            #[cfg(feature = "redis")]
            pub(crate) fn examples() -> impl Iterator<Item = Self> {
                [$($(#[$attribute])* Self::$variant $({ $($field: $example),* })?),*].into_iter()
            }
        }
    };
}
for_each_type!(define_types);

/// A quota policy: at most `quota` units in any window of this length. The term is that of the IETF draft "RateLimit header
/// fields for HTTP".
///
/// By default, usage is an exact sliding log: a charge counts from the instant of its decision until one whole window has
/// passed. No interval of the window's length contains more than the quota, and no request is denied that would have fitted.
/// Choose another [`Algorithm`] with [`with_algorithm`](Self::with_algorithm).
///
/// The quota may change at any time, and the usage is kept. A policy with another window, algorithm or precision is another
/// policy, even under the same name, and its counting starts from zero.
///
/// Cloning is cheap. Two policies are equal if their names, quotas, windows and algorithms are, whether or not they are
/// [hidden](Self::hidden), [leased](Self::leased) or in [shadow mode](Self::shadow).
///
/// With the feature `serde`, policies are read from [a file](crate::guide::policies#policies-from-a-file).
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::Policy;
///
/// let sustained = Policy::new("sustained", 1_000, Duration::from_secs(3600))?;
/// assert_eq!(sustained.quota(), Some(1_000));
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Policy(Arc<PolicyData>);

// The count of the clones of a policy changes often: it shares no memory with what is read of the policy.
#[repr(align(128))]
struct PolicyData {
    settings: PolicySettings,
    /// Unique in this process, and the same for all clones.
    number: u64,
    /// Whether each warning was logged.
    warned: Arc<[AtomicBool; 2]>,
    /// The boundaries of a calendar period, around an earlier instant.
    #[cfg(feature = "calendar")]
    boundaries: crate::lock::Lock<Boundaries>,
    /// Whether a count has read a period that begins earlier than the counted one, and no warning was tried since.
    #[cfg(feature = "calendar")]
    has_earlier_period: AtomicBool,
    /// The policy in responses, made when it is first needed.
    text: OnceLock<PolicyText>,
}

#[derive(Clone)]
struct PolicySettings {
    name: Box<str>,
    quota: NonZeroU32,
    /// In whole microseconds. A type without a window ignores it.
    window: Duration,
    algorithm: Algorithm,
    properties: Properties,
    is_hidden: bool,
    is_shadow: bool,
    /// Only if the algorithm has buckets. At least one unit.
    lease: Option<Lease>,
    /// The quota and the algorithm without the headroom, if there is one.
    whole: Option<(NonZeroU32, Algorithm)>,
}

/// A warning that is logged once for a policy and its clones.
#[derive(Clone, Copy)]
pub(crate) enum PolicyWarning {
    CostAboveQuota,
    #[cfg(any(feature = "calendar", feature = "redis"))]
    EarlierPeriod,
}

/// The parts of responses that do not change.
pub(crate) struct PolicyText {
    /// The member of `RateLimit-Policy`.
    pub(crate) policy: HeaderValue,
    /// The start of the member of `RateLimit`, up to the remaining quota.
    pub(crate) limit_start: Box<[u8]>,
    /// The name as JSON.
    pub(crate) json_name: Box<[u8]>,
}

impl Policy {
    /// Creates a policy of `quota` units in any interval of the length `window`. The window is rounded up to whole microseconds.
    /// To convert a rate and a burst, see [the guide](crate::guide::migration#convert-a-rate-and-a-burst).
    ///
    /// A sliding log, the default algorithm, holds at most 1,048,576 charges of a key in a window, regardless of their costs. A further
    /// charge fails with [`Reason::Full`](crate::backend::Reason::Full), so a request gets a 503. If a constant cost of a layer
    /// allows more charges, building the layer returns [`ConfigError::TooManyCharges`]. The layer cannot foresee the cost of a closure,
    /// a policy that is chosen for each request, and the cost of a call of a [`Limiter`](crate::Limiter). If these may allow more charges,
    /// use [`Algorithm::SlidingBuckets`].
    ///
    /// The name is visible to clients in the header fields, and to operators in the keys of the store.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the name is 1 to 64 printable ASCII characters, and
    /// [`ConfigError::InvalidPolicy`] unless the quota is 1 to 2^32-1 units and the window is 1 ms to 366 days.
    pub fn new(name: &str, quota: u32, window: Duration) -> Result<Self, ConfigError> {
        ConfigError::check_name("policy name", name)?;
        let no_quota = || {
            ConfigError::invalid_policy(name, "quota", quota, format_args!("1 to {} quota units", u32::MAX))
        };
        let quota = NonZeroU32::new(quota).ok_or_else(no_quota)?;
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            let given = format!("{window:?}");
            return Err(ConfigError::invalid_policy(name, "window", given, "1 ms to 366 days"));
        }
        // At most 366 days, or 3.2e13 microseconds. A longer window never admits too much.
        let window = Duration::from_micros(window.as_nanos().div_ceil(1_000) as u64);
        let algorithm = Algorithm::default();
        Ok(Self::from_settings(PolicySettings {
            name: name.into(),
            quota,
            window,
            algorithm,
            properties: algorithm.properties(GivenFields { name, quota, window })?,
            is_hidden: false,
            is_shadow: false,
            lease: None,
            whole: None,
        }))
    }

    fn from_settings(settings: PolicySettings) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self::with_number(settings, LAST.fetch_add(1, Ordering::Relaxed), Default::default())
    }

    fn with_number(settings: PolicySettings, number: u64, warned: Arc<[AtomicBool; 2]>) -> Self {
        Self(Arc::new(PolicyData {
            settings,
            number,
            warned,
            #[cfg(feature = "calendar")]
            boundaries: Default::default(),
            #[cfg(feature = "calendar")]
            has_earlier_period: AtomicBool::new(false),
            text: OnceLock::new(),
        }))
    }

    /// Returns a clone with a count of its own, so that its clones are not counted in the same memory as those of this policy.
    pub(crate) fn counted_apart(&self) -> Self {
        let PolicyData { settings, number, warned, .. } = &*self.0;
        Self::with_number(settings.clone(), *number, warned.clone())
    }

    /// Returns this policy with changed settings.
    fn with(&self, change: impl FnOnce(&mut PolicySettings)) -> Self {
        let mut settings = self.0.settings.clone();
        change(&mut settings);
        Self::from_settings(settings)
    }

    /// Creates a token bucket: it holds up to `capacity` units, a request takes its cost out of it, and units return at `rate`. So a
    /// client may use `capacity` units at once, and then `rate`.
    ///
    /// In an interval of the length `d`, it admits up to `capacity + d * rate` units. In particular, in the time in which a full
    /// capacity returns, it admits up to `2 * capacity - 1`. Use it where this is what the service promises, or in place of a
    /// token bucket or GCRA of another library. A sliding log of the same rate, see [`rate`](Self::rate), never admits more than
    /// `capacity` in this time. The [guide](crate::guide::algorithms#token-bucket) compares both.
    ///
    /// Capacity and rate may change at any time, and the usage is kept. The policy has a quota, which is the capacity, and no window.
    ///
    /// ```
    /// use tower_sliding_window::{Policy, policy::Rate};
    ///
    /// let api = Policy::token_bucket("api", 20, Rate::per_second(7))?;
    /// assert_eq!((api.quota(), api.window()), (Some(20), None));
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the name is 1 to 64 printable ASCII characters, and
    /// [`ConfigError::InvalidPolicy`] unless the capacity is 1 to 2^32-1 units, the [rate](Rate) is in its range, a full capacity
    /// returns within 366 days, and the capacity times the period of the rate, reduced by the units of the rate, is at most
    /// 2^53 - 2^32 unit-microseconds.
    pub fn token_bucket(name: &str, capacity: u32, rate: Rate) -> Result<Self, ConfigError> {
        Self::new(name, capacity, MIN_WINDOW)?.with_algorithm(Algorithm::TokenBucket { rate })
    }

    /// Creates the sliding policy of a rate and a burst: at most `burst` units in any interval in which the rate returns as many. For
    /// the rate of 5 per second and a burst of 10, these are 10 units in any 2 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Policy, policy::Rate};
    ///
    /// let api = Policy::rate("api", 10, Rate::per_second(5))?;
    /// assert_eq!(api, Policy::new("api", 10, Duration::from_secs(2))?);
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new), and [`ConfigError::InvalidPolicy`] unless the [rate](Rate) is in its range, and returns
    /// the burst in 1 ms to 366 days.
    pub fn rate(name: &str, burst: u32, rate: Rate) -> Result<Self, ConfigError> {
        ConfigError::check_name("policy name", name)?;
        token_bucket::check_rate(name, rate)?;
        let window = rate.time_of(burst);
        if burst > 0 && !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            let given = format!("{burst} units at {} units per {:?}", rate.units(), rate.period());
            let valid = "a burst that returns within 1 ms to 366 days, which is the window";
            return Err(ConfigError::invalid_policy(name, "burst of", given, valid));
        }
        Self::new(name, burst, window)
    }

    /// Creates a gate: it denies every request of a partition key while it [blocks](crate::Limiter::block) the key, with the exact wait, and
    /// counts nothing. Uses: an operator stops a client, a ban, an API that has answered 429.
    ///
    /// It is one policy among others, in the same call to the store. A request with cost 0 for it passes. It has no quota and no window, and no
    /// header field or other response states it. A check with a gate takes no [leased](Self::leased) units.
    ///
    /// If Redis loses its data or evicts the key, the block ends: see [persistence](crate::guide::deployment#persistence).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, Wait};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 100, Duration::from_secs(60))?)
    ///     .policy(Policy::gate("stopped")?)
    ///     .build()?;
    /// let alice = PartitionKey::new("user", "alice");
    /// limiter.block(alice.clone(), Duration::from_secs(3600)).await?;
    /// let decision = limiter.check(&alice).await?;
    /// assert!(matches!(decision.retry_after(), Wait::For(wait) if wait.as_secs() >= 3599));
    /// limiter.unblock(alice.clone()).await?;
    /// assert!(limiter.check(alice).await?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the name is 1 to 64 printable ASCII characters.
    pub fn gate(name: &str) -> Result<Self, ConfigError> {
        Self::new(name, u32::MAX, MIN_WINDOW)?.with_algorithm(Algorithm::Gate)
    }

    /// Creates a policy in flight: at most `quota` units are held at the same time. A request holds its cost from its admission until it
    /// has ended: until the body of the response has ended or was dropped, the service has failed, or the [`Decision`](crate::Decision)
    /// of a [`Limiter`](crate::Limiter) and its [`Hold`](crate::hold::Hold) were dropped. A panic, a timeout and a client that
    /// disconnects end it as well.
    ///
    /// It is one policy among others, in the same call to the store, all or nothing. A denial has no exact wait: its response states
    /// [`retry_after`](Self::retry_after), and a [waiting](crate::Limiter::wait) request is woken by a release. It has no window, and its
    /// unit in the header fields is `concurrent-requests`.
    ///
    /// In Redis, the units of a process that has died return after the [hold time](Self::hold_time). A running process renews its units
    /// on a thread of its own, also while its runtimes are blocked. If Redis loses its data, all units are known again within a third of
    /// the hold time. Until then, and if the local fallback decides, if Redis was unreachable or its clock stepped forward, or if a
    /// process was stopped for more than two thirds of the hold time, more than the quota may run;
    /// [`Hold::was_interrupted`](crate::hold::Hold::was_interrupted) states it.
    ///
    /// Settlements and [resets](crate::Limiter::reset) do not change held units, and a [peek](crate::Limiter::peek) counts them. A lower
    /// quota applies at once. [`RateLimitLayer::same_body`](crate::RateLimitLayer::same_body) cannot see the end of a body, and returns
    /// an error.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(Policy::in_flight("exports", 2)?).build()?;
    /// let alice = || PartitionKey::new("user", "alice");
    /// let (first, _second) = (limiter.check(alice()).await?, limiter.check(alice()).await?);
    /// assert!(!limiter.check(alice()).await?.is_admitted());
    /// drop(first);
    /// assert!(limiter.check(alice()).await?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the name is 1 to 64 printable ASCII characters, and
    /// [`ConfigError::InvalidPolicy`] unless the quota is 1 to 65,536 units.
    pub fn in_flight(name: &str, quota: u32) -> Result<Self, ConfigError> {
        ConfigError::check_name("policy name", name)?;
        in_flight::check_quota(name, quota)?;
        let (hold_time, retry_after) = (in_flight::hold_time(), in_flight::retry_after());
        Self::new(name, quota, MIN_WINDOW)?.with_algorithm(Algorithm::InFlight { hold_time, retry_after })
    }

    /// Creates a calendar period: at most `quota` units in each day, week, month or year of a time zone. By default, a period begins at
    /// 00:00, on Monday, on the first day of the month or on 1 January; see [`anchored`](Self::anchored).
    ///
    /// Use it for a quota that a contract states by the calendar, such as a monthly quota. Up to twice the quota is admitted across a
    /// boundary. A denial waits until the end of the period. A day has 23 to 25 hours.
    ///
    /// Zone and anchor may change at any time, and the usage is kept. A new period starts where it begins later than the counted one, and
    /// nothing was charged since it began. Otherwise, the counted period goes on; if the new period begins earlier, one event is logged.
    /// Therefore, two configurations in use at the same time, such as during a deployment, admit at most twice the quota in one period, or
    /// three times in a period that contains two begins of the other configuration. A change from month to year is another policy, whose
    /// counting starts from zero. The policy has a quota, and no window.
    ///
    /// ```
    /// use tower_sliding_window::{Policy, policy::{Anchor, Period, Zone}};
    ///
    /// let monthly = Policy::calendar_period("monthly", 100_000, Period::Month, Zone::new("Europe/Berlin")?)?
    ///     .anchored(Anchor::day(17))?;
    /// assert_eq!((monthly.quota(), monthly.window()), (Some(100_000), None));
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the name is 1 to 64 printable ASCII characters, and
    /// [`ConfigError::InvalidPolicy`] unless the quota is 1 to 2^32-1 units.
    #[cfg(feature = "calendar")]
    #[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
    pub fn calendar_period(name: &str, quota: u32, period: Period, zone: Zone) -> Result<Self, ConfigError> {
        let anchor = Anchor::default();
        Self::new(name, quota, MIN_WINDOW)?.with_algorithm(Algorithm::CalendarPeriod { period, zone, anchor })
    }

    /// Returns this [calendar period](Self::calendar_period) with another anchor: the day and the time at which a period begins. To choose
    /// it for each request, see [`anchored_by`](Self::anchored_by).
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidPolicy`] unless the policy is a calendar period that can begin at this [anchor](Anchor).
    #[cfg(feature = "calendar")]
    #[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
    pub fn anchored(self, anchor: Anchor) -> Result<Self, ConfigError> {
        let Algorithm::CalendarPeriod { period, zone, .. } = self.algorithm() else {
            return Err(self.wrong_type("anchor", anchor.to_string(), "set on a calendar period"));
        };
        self.with_algorithm(Algorithm::CalendarPeriod { period, zone, anchor })
    }

    /// Returns this calendar period with an anchor that was not validated. It does not conflict with this policy.
    #[cfg(feature = "calendar")]
    fn with_anchor(&self, anchor: Anchor) -> Self {
        self.with(|settings| {
            settings.whole = Some(self.whole());
            if let Algorithm::CalendarPeriod { anchor: own, .. } = &mut settings.algorithm {
                *own = anchor;
            }
        })
    }

    /// Returns three boundaries of periods around an instant, in microseconds. `None` unless the policy is a calendar period.
    #[cfg(any(feature = "calendar", feature = "redis"))]
    #[cfg_attr(not(feature = "calendar"), expect(unused_variables, reason = "there are no calendar periods"))]
    pub(crate) fn boundaries_around(&self, micros: u64) -> Option<[u64; 3]> {
        #[cfg(feature = "calendar")]
        if let Algorithm::CalendarPeriod { period, zone, anchor } = self.algorithm() {
            let mut known = self.0.boundaries.lock();
            if !known.are_around(micros) {
                *known = Boundaries::around(micros, period, zone, anchor);
            }
            return Some(known.0);
        }
        None
    }

    /// Returns this policy [in flight](Self::in_flight) with another hold time: how long a unit is held after its process has died. The
    /// default is 30 s. A shorter one frees units sooner, and tolerates shorter interruptions of Redis and of processes.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidPolicy`] unless the time is 1 s to 1 h, and the policy is in flight.
    pub fn hold_time(self, hold_time: Duration) -> Result<Self, ConfigError> {
        let Algorithm::InFlight { retry_after, .. } = self.algorithm() else {
            return Err(self.wrong_type("hold time", hold_time, "set on a policy in flight"));
        };
        self.with_algorithm(Algorithm::InFlight { hold_time, retry_after })
    }

    /// Returns this policy [in flight](Self::in_flight) with another `Retry-After` in the response to a denied request. The default is 1
    /// s. A [waiting](crate::Limiter::wait) request asks again after half of this time to the whole, unless a release in this process
    /// wakes it.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidPolicy`] unless the time is 1 ms to 1 h, and the policy is in flight.
    pub fn retry_after(self, retry_after: Duration) -> Result<Self, ConfigError> {
        let Algorithm::InFlight { hold_time, .. } = self.algorithm() else {
            return Err(self.wrong_type("retry after", retry_after, "set on a policy in flight"));
        };
        self.with_algorithm(Algorithm::InFlight { hold_time, retry_after })
    }

    fn wrong_type(&self, field: &'static str, given: impl fmt::Debug, valid: &str) -> ConfigError {
        ConfigError::invalid_policy(self.name(), field, format!("{given:?}"), valid)
    }

    /// Returns this policy with another algorithm.
    ///
    /// A [token bucket](Algorithm::TokenBucket) takes the quota as its capacity, and ignores the window. So does a policy [in
    /// flight](Algorithm::InFlight), and a calendar period. A [gate](Algorithm::Gate) ignores both.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Algorithm, Policy};
    ///
    /// let daily = Policy::new("daily", 1_000_000, Duration::from_secs(86_400))?
    ///     .with_algorithm(Algorithm::SlidingBuckets { precision: Duration::from_secs(60) })?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidPolicy`] unless the precision of [`Algorithm::SlidingBuckets`] is 1 ms to the window, in whole
    /// microseconds, and at least a 4,096th of the window, or if the policy is [leased](Self::leased) and the algorithm cannot be
    /// leased so, or if the rate of a [token bucket](Self::token_bucket), a field of a policy [in flight](Self::in_flight) or the anchor of a
    /// calendar period is not possible. A [gate](Self::gate) stays a gate, because it has no quota. A policy without a
    /// [window](Self::window) gets no algorithm that needs one.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Result<Self, ConfigError> {
        if algorithm != Algorithm::Gate && !self.properties().has_quota {
            return Err(self.wrong_type("algorithm", algorithm, "that of a gate, which has no quota"));
        }
        if algorithm.has_window() && !self.algorithm().has_window() {
            return Err(self.wrong_type(
                "algorithm",
                algorithm,
                "one without a window, as the policy has none",
            ));
        }
        let PolicySettings { name, quota, window, .. } = &self.0.settings;
        let properties = algorithm.properties(GivenFields { name, quota: *quota, window: *window })?;
        if let Some(lease) = self.lease()
            && !lease.is_possible(&properties)
        {
            return Err(self.invalid_lease(lease));
        }
        Ok(self.with(|settings| {
            (settings.algorithm, settings.properties) = (algorithm, properties);
            if !properties.has_quota {
                // No cost is above it.
                settings.quota = NonZeroU32::MAX;
            }
            settings.whole =
                settings.whole.filter(|_| properties.has_quota).map(|(quota, _)| (quota, algorithm));
        }))
    }

    /// Returns this policy with a percentage of its quota kept in reserve. The reserve is rounded up: 5 percent of 10,000 units
    /// leave a quota of 9,500. The header fields state the reduced quota. The rate of a token bucket is reduced by the same factor.
    ///
    /// The policy counts together with the policy without the headroom: see [priorities](crate::guide::cookbook#priorities-batch-requests-leave-room-for-others).
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidPolicy`] unless the percentage is 0 to 99 percent and leaves at least one unit, or if the policy is a
    /// [gate](Self::gate), which has no quota.
    pub fn headroom_percent(self, percent: u32) -> Result<Self, ConfigError> {
        if !self.properties().has_quota {
            let given = format!("{percent} percent");
            return Err(ConfigError::invalid_policy(
                self.name(),
                "headroom of",
                given,
                "set on a policy with a quota",
            ));
        }
        let quota = self.quota_units();
        let kept = u64::from(quota) * u64::from(100_u32.saturating_sub(percent)) / 100;
        // Not more than the quota was.
        let kept = NonZeroU32::new(kept as u32);
        let given = format!("{percent} percent of {quota} units");
        let valid = "0 to 99 percent and leave at least one unit";
        let invalid = || ConfigError::invalid_policy(self.name(), "headroom of", given, valid);
        let kept = kept.ok_or_else(invalid)?;
        let whole = self.whole();
        Ok(self.reduced_to(kept).with(|settings| settings.whole = Some(whole)))
    }

    /// Returns the quota and the algorithm without the headroom.
    fn whole(&self) -> (NonZeroU32, Algorithm) {
        let PolicySettings { whole, quota, algorithm, .. } = self.0.settings;
        whole.unwrap_or((quota, algorithm))
    }

    /// Returns the units that the headroom keeps in reserve.
    pub(crate) fn reserve(&self) -> u32 {
        self.whole().0.get() - self.quota_units()
    }

    /// Returns whether this is the quota, with or without the headroom.
    pub(crate) fn has_quota_of(&self, units: u64) -> bool {
        [self.quota_units(), self.whole().0.get()].map(u64::from).contains(&units)
    }

    /// Returns whether these policies of one name cannot both be meant. Policies that differ only by their headroom can: they are classes
    /// of requests on one usage.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        self != other && !(self.counts_with(other) && self.whole() == other.whole())
    }

    /// Returns this policy with leased units: a process that admits many requests of one partition key charges units in advance, and
    /// then grants them without asking the store. Only for [`Algorithm::SlidingBuckets`]. By default, a policy is not leased.
    ///
    /// A lease ends with its bucket, so it saves calls if a process grants several units of a key in one precision. The store counts
    /// the units of all leases, so the processes together admit no more than the quota. The [guide](crate::guide::leases) states the
    /// exceptions, and how many units may be idle.
    ///
    /// The lease is not a part of the policy's identity. It has no effect for a backend that answers at once, such as the memory, or
    /// that does not [grant leases](crate::backend::Backend::grants_leases).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Algorithm, Policy, policy::Lease};
    ///
    /// let tenant = Policy::new("tenant", 100_000, Duration::from_secs(60))?
    ///     .with_algorithm(Algorithm::SlidingBuckets { precision: Duration::from_secs(1) })?
    ///     .leased(Lease::up_to(50))?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidPolicy`] unless the algorithm is sliding buckets and the lease has 1 to 2^32-1 units. For a lease
    /// [ahead](Lease::ahead), the precision must be at most half the window.
    pub fn leased(self, lease: Lease) -> Result<Self, ConfigError> {
        if !lease.is_possible(self.properties()) {
            return Err(self.invalid_lease(lease));
        }
        Ok(self.with(|settings| settings.lease = Some(lease)))
    }

    fn invalid_lease(&self, lease: Lease) -> ConfigError {
        let (ahead, precision) = match lease.is_ahead() {
            true => (" ahead", " with a precision of at most half the window"),
            false => ("", ""),
        };
        let given = format!("{} units{ahead}", lease.units());
        let valid =
            format!("1 to {} quota units, and the algorithm must be sliding buckets{precision}", u32::MAX);
        ConfigError::invalid_policy(self.name(), "lease of", given, valid)
    }

    /// Returns the [lease](Self::leased) of this policy, if it has one.
    pub fn lease(&self) -> Option<Lease> {
        self.0.settings.lease
    }

    /// Returns this policy, hidden from responses: header fields, problem details and gRPC details never contain its name, its
    /// quota or its usage. A request that it denies still receives a 429 with the exact `Retry-After`. Use it for a limit of which
    /// the remaining quota helps an attacker, such as a limit of logins by user.
    ///
    /// Decisions, rejections and log events contain hidden policies. The usage of a policy does not depend on whether it is
    /// hidden.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::Policy;
    ///
    /// let logins = Policy::new("logins", 5, Duration::from_secs(900))?.hidden();
    /// assert!(logins.is_hidden());
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    #[must_use]
    pub fn hidden(self) -> Self {
        self.with(|settings| settings.is_hidden = true)
    }

    /// Returns whether this policy is [hidden](Self::hidden) from responses. A [gate](Self::gate) always is.
    pub fn is_hidden(&self) -> bool {
        self.0.settings.is_hidden || !self.properties().has_quota
    }

    /// Returns this policy in shadow mode: it counts, and never denies a request. Use it to try a policy on real traffic before it
    /// takes effect.
    ///
    /// A shadow policy is left out of the verdict. An admitted request charges it if the cost fits, in the same call to the store.
    /// Its own verdict is in [`Decision::shadow_denied`](crate::Decision::shadow_denied), in
    /// [`Stats::shadow_denied`](crate::observe::Stats::shadow_denied) and in a `debug` event, and never in a response.
    ///
    /// The usage does not depend on the mode: without `.shadow()`, the policy enforces the usage that it has counted. To set the mode
    /// for a layer or for each request, see the [guide](crate::guide::rollout).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};
    ///
    /// let minute = Duration::from_secs(60);
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 600, minute)?)
    ///     .policy(Policy::new("stricter", 100, minute)?.shadow())
    ///     .key(peer_ip())
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with(|settings| settings.is_shadow = true)
    }

    /// Returns whether this policy is in [shadow mode](Self::shadow).
    pub fn is_shadow(&self) -> bool {
        self.0.settings.is_shadow
    }

    /// Returns the same policy with a smaller quota, and a rate that is smaller by the same factor.
    pub(crate) fn reduced_to(&self, quota: NonZeroU32) -> Self {
        if !self.properties().has_quota {
            return self.clone();
        }
        self.with(|settings| {
            let PolicySettings { name, window, algorithm, .. } = &*settings;
            let algorithm = match *algorithm {
                Algorithm::TokenBucket { rate } => {
                    Algorithm::TokenBucket { rate: token_bucket::reduced(rate, settings.quota, quota) }
                }
                other => other,
            };
            // If the fields are possible, so are smaller ones. Otherwise, the properties are those of the larger quota.
            let properties = algorithm.properties(GivenFields { name, quota, window: *window });
            (settings.quota, settings.algorithm) = (quota, algorithm);
            settings.properties = properties.unwrap_or(settings.properties);
        })
    }

    /// Returns the name, 1 to 64 printable ASCII characters.
    pub fn name(&self) -> &str {
        &self.0.settings.name
    }

    /// Returns the quota in quota units, 1 to 2^32-1; of a [token bucket](Self::token_bucket), its capacity. `None` for a type of
    /// policy without a quota: a [gate](Self::gate).
    pub fn quota(&self) -> Option<u32> {
        self.properties().has_quota.then(|| self.quota_units())
    }

    /// Returns the window, 1 ms to 366 days, rounded up to whole microseconds. `None` for a type of policy without a window: a
    /// [token bucket](Self::token_bucket), a policy [in flight](Self::in_flight), a calendar period, a [gate](Self::gate).
    pub fn window(&self) -> Option<Duration> {
        self.algorithm().has_window().then(|| Duration::from_micros(self.window_micros()))
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.0.settings.algorithm
    }

    /// Returns the properties of the type of this policy.
    #[inline]
    pub(crate) fn properties(&self) -> &Properties {
        &self.0.settings.properties
    }

    /// Returns the quota in quota units.
    #[inline]
    pub(crate) fn quota_units(&self) -> u32 {
        self.0.settings.quota.get()
    }

    /// Returns how long a charge of at most the quota counts, in microseconds: the window, or the time in which a full quota returns.
    #[inline]
    pub(crate) fn window_micros(&self) -> u64 {
        self.properties().window_micros
    }

    /// Returns `next_after` of a pair of which nothing is used. `None` if it is the same as of a pair that is used.
    #[inline]
    pub(crate) fn next_of_unused(&self) -> Option<u64> {
        let Properties { period_letter, next_of_unused, .. } = *self.properties();
        period_letter.is_none().then_some(next_of_unused)
    }

    /// Returns whether both are clones of one policy.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.number() == other.number()
    }

    /// Returns a number that is the same for all clones of a policy, and another one for another policy.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns whether both policies share their usage. Neither a quota nor a rate makes a difference: they may change, and the usage
    /// is kept.
    #[inline]
    pub(crate) fn counts_with(&self, other: &Self) -> bool {
        self.is_same(other) || (self.usage_id() == other.usage_id() && self.name() == other.name())
    }

    /// Returns what distinguishes the usage of policies of one name: type, window or calendar period, and length of a bucket.
    pub(crate) fn usage_id(&self) -> [u64; 3] {
        let Properties { window_micros, period_letter, bucket_micros, redis, .. } = *self.properties();
        let has_window = self.algorithm().has_window();
        let window = if has_window { window_micros } else { period_letter.unwrap_or(0).into() };
        [u64::from(redis.number), window, bucket_micros.map_or(0, NonZeroU64::get)]
    }

    /// Returns this policy in responses. The first call makes it.
    pub(crate) fn text(&self, make: impl FnOnce() -> PolicyText) -> &PolicyText {
        self.0.text.get_or_init(make)
    }

    /// Returns whether a warning that is logged once has been logged. All clones share it.
    pub(crate) fn has_warned(&self, warning: PolicyWarning) -> &AtomicBool {
        &self.0.warned[warning as usize]
    }

    /// Notes that the period of this policy begins earlier than the counted one. The caller holds the lock of the count, so the warning
    /// comes later.
    #[cfg(feature = "calendar")]
    pub(crate) fn note_earlier_period(&self) {
        if !self.has_warned(PolicyWarning::EarlierPeriod).load(Ordering::Relaxed) {
            self.0.has_earlier_period.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether an earlier period was noted since the last call.
    #[cfg(feature = "calendar")]
    #[inline]
    pub(crate) fn take_earlier_period(&self) -> bool {
        let noted = &self.0.has_earlier_period;
        noted.load(Ordering::Relaxed) && noted.swap(false, Ordering::Relaxed)
    }
}

impl PartialEq for Policy {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
            || (self.quota_units() == other.quota_units()
                && self.counts_with(other)
                && self.algorithm() == other.algorithm())
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policy = f.debug_struct("Policy");
        policy.field("name", &self.name());
        if let Some(quota) = self.quota() {
            policy.field("quota", &quota);
        }
        if let Some(window) = self.window() {
            policy.field("window", &window);
        }
        policy.field("algorithm", &self.algorithm()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_policy_error_names_value_and_range() {
        let second = Duration::from_secs(1);
        let text = |name: &str, quota, window| Policy::new(name, quota, window).unwrap_err().to_string();

        assert_eq!(
            text("", 1, second),
            r#"policy name "": it must be 1 to 64 printable ASCII characters (space to `~`)"#
        );
        assert_eq!(
            text("bürst", 1, second),
            r#"policy name "bürst": it must be 1 to 64 printable ASCII characters (space to `~`)"#
        );
        assert_eq!(
            text("burst", 0, second),
            r#"policy "burst": quota 0: it must be 1 to 4294967295 quota units"#
        );
        for window in [
            Duration::ZERO,
            Duration::from_nanos(999_999),
            Duration::from_secs(366 * 86_400) + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            assert_eq!(
                text("burst", 1, window),
                format!(r#"policy "burst": window {window:?}: it must be 1 ms to 366 days"#)
            );
        }
        Policy::new(&"~ ".repeat(32), u32::MAX, Duration::from_secs(366 * 86_400)).unwrap();
        Policy::new("x", 1, Duration::from_millis(1)).unwrap();
    }

    #[test]
    fn window_is_rounded_up_to_microseconds() {
        for (nanos, micros) in [
            (1_000_000, 1_000),
            (1_000_001, 1_001),
            (1_000_999, 1_001),
            (1_001_000, 1_001),
            (333_333_333, 333_334),
            (366 * 86_400_000_000_000 - 1, 366 * 86_400_000_000),
        ] {
            let policy = Policy::new("burst", 1, Duration::from_nanos(nanos)).unwrap();
            assert_eq!(policy.window_micros(), micros, "{nanos} ns must be {micros} us");
        }
    }

    /// The conversion that the guide documents, and two others that users write.
    #[test]
    fn every_converted_rate_is_accepted() {
        for (rate, burst) in (1..=100).flat_map(|rate| (1..=100).map(move |burst| (rate, burst))) {
            let documented = Policy::new("requests", burst, Duration::from_secs(1) * burst / rate);
            let exact = (u64::from(burst) * 1_000_000).div_ceil(u64::from(rate));
            let window = documented.map(|policy| policy.window_micros());
            assert_eq!(window.ok(), Some(exact), "{rate} per second, burst {burst}: the window in us");

            let second = Duration::from_secs(1);
            for window in [second / rate * burst, Duration::from_secs_f64(f64::from(burst) / f64::from(rate))]
            {
                let policy = Policy::new("requests", burst, window);
                assert!(policy.is_ok(), "{rate} per second, burst {burst}: {window:?} must be accepted");
            }
        }
    }

    #[test]
    fn invalid_precision_error_names_value_and_range() {
        let window = Duration::from_micros(4_096_001);
        let buckets = |precision| {
            let policy = Policy::new("burst", 10, window).unwrap();
            policy.with_algorithm(Algorithm::SlidingBuckets { precision }).map_err(|error| error.to_string())
        };
        for precision in [
            Duration::ZERO,
            Duration::from_micros(999),
            // 4,097 of them in a window, the last one a microsecond wide.
            Duration::from_millis(1),
            Duration::from_nanos(2_000_500),
            window + Duration::from_micros(1),
            Duration::MAX,
        ] {
            assert_eq!(
                buckets(precision).unwrap_err(),
                format!(
                    r#"policy "burst": precision {precision:?}: it must be 1 ms to the window of {window:?}, in whole microseconds, with at most 4096 buckets in a window"#
                )
            );
        }
        buckets(Duration::from_micros(1_001)).unwrap();
        buckets(window).unwrap();
    }

    #[test]
    fn headroom_rounds_reserve_up() {
        let quota = |quota, percent| {
            let policy = Policy::new("burst", quota, Duration::from_secs(1)).unwrap();
            policy
                .headroom_percent(percent)
                .map(|policy| policy.quota_units())
                .map_err(|error| error.to_string())
        };
        assert_eq!(quota(10_000, 5), Ok(9_500));
        assert_eq!(quota(10_000, 0), Ok(10_000));
        assert_eq!(quota(99, 10), Ok(89));
        assert_eq!(quota(u32::MAX, 99), Ok(42_949_672));
        for (units, percent) in [(9, 90), (10_000, 100), (10_000, u32::MAX)] {
            assert_eq!(
                quota(units, percent).unwrap_err(),
                format!(
                    r#"policy "burst": headroom of {percent} percent of {units} units: it must be 0 to 99 percent and leave at least one unit"#
                )
            );
        }
    }

    #[test]
    fn gate_gets_no_quota() {
        let gate = || Policy::gate("api").unwrap();
        let text = |policy: Result<Policy, ConfigError>| policy.unwrap_err().to_string();
        assert_eq!(
            text(gate().with_algorithm(Algorithm::SlidingLog)),
            r#"policy "api": algorithm SlidingLog: it must be that of a gate, which has no quota"#
        );
        assert_eq!(
            text(gate().headroom_percent(20)),
            r#"policy "api": headroom of 20 percent: it must be set on a policy with a quota"#
        );
        let reduced = Policy::new("api", 100, Duration::from_secs(1)).unwrap().headroom_percent(10).unwrap();
        assert_eq!(reduced.with_algorithm(Algorithm::Gate).unwrap().reserve(), 0);
    }

    /// It would get the shortest window of all.
    #[test]
    fn policy_without_window_gets_none() {
        let bucket = Policy::token_bucket("api", 100, Rate::per_second(10)).unwrap();
        let exports = Policy::in_flight("exports", 9).unwrap();
        let buckets = Algorithm::SlidingBuckets { precision: Duration::from_secs(1) };
        for (policy, algorithm) in [(bucket.clone(), Algorithm::FixedWindow), (exports, buckets)] {
            let error = policy.clone().with_algorithm(algorithm).unwrap_err().to_string();
            let expected = format!(
                "policy {:?}: algorithm {algorithm:?}: it must be one without a window, as the policy has none",
                policy.name()
            );
            assert_eq!(error, expected);
        }
        let faster = Algorithm::TokenBucket { rate: Rate::per_second(20) };
        assert_eq!(bucket.with_algorithm(faster).unwrap().algorithm(), faster);
    }

    #[test]
    fn reduced_token_bucket_has_reduced_rate() {
        let bucket = |capacity, rate| Policy::token_bucket("api", capacity, rate);
        let hundred = bucket(100, Rate::per_second(100)).unwrap();
        let reduced = hundred.headroom_percent(5).unwrap();
        let Algorithm::TokenBucket { rate } = reduced.algorithm() else { panic!("the same type") };
        assert_eq!((reduced.quota(), rate), (Some(95), Rate::per_second(95)), "the exact rate");
        let reduced = bucket(100, Rate::per_second(7)).unwrap().headroom_percent(5).unwrap();
        let expected = Rate::new(133, Duration::from_secs(20));
        assert_eq!(reduced.algorithm(), Algorithm::TokenBucket { rate: expected }, "the exact rate");
        for (capacity, rate, share) in [
            (7, Rate::per_second(1), 3),
            (u32::MAX, Rate::new(u32::MAX, Duration::from_secs(1)), u32::MAX),
            (1_000_000, Rate::new(999_999, Duration::from_micros(1)), 999),
            (2, Rate::new(2, MAX_WINDOW), 2),
            (3, Rate::new(3, MAX_WINDOW), 3),
            // A smaller capacity that also returns in almost 366 days.
            (366, Rate::per_day(1), 7),
            (366, Rate::per_day(1), 2),
            (4_000_000_000, Rate::new(4_000_000_000, MAX_WINDOW), 2),
            (4_000_000_000, Rate::new(4_000_000_000, MAX_WINDOW), 4_000_000),
            (10_000_000, Rate::per_second(10_000_000), 1),
            (100_000_000, Rate::per_second(100_000_000), 3),
            (1 << 30, Rate::per_second(1_000_000_000), 1),
            (1 << 30, Rate::per_second(1_000_000_000), 7),
            (4_000_000_000, Rate::new(4_000_000_000, Duration::from_micros(1)), 9),
        ] {
            let whole = bucket(capacity, rate).unwrap();
            let part = whole.reduced_to(NonZeroU32::new(capacity / share).unwrap());
            let [of_whole, of_part] = [&whole, &part].map(|policy| policy.properties().arguments);
            let per_hour = |[parts, returned]: [u64; 2]| 3.6e9 * returned as f64 / parts as f64;
            let exact = per_hour(of_whole) * f64::from(capacity / share) / f64::from(capacity);
            assert!(per_hour(of_part) <= exact * 1.000_001, "{part:?}: a rate is not larger than its share");
            assert!(per_hour(of_part) >= exact * 0.999, "{part:?}: nor much smaller");
        }
    }

    #[test]
    fn impossible_quota_error_names_range_of_type() {
        for quota in [0, 65_537] {
            assert_eq!(
                Policy::in_flight("exports", quota).unwrap_err().to_string(),
                format!(r#"policy "exports": quota {quota}: it must be 1 to 65536 units in flight"#)
            );
        }
        for (burst, rate, given) in [
            (u32::MAX, Rate::per_day(1), "4294967295 units at 1 units per 86400s"),
            (1, Rate::per_second(10_000), "1 units at 10000 units per 1s"),
        ] {
            let valid = "a burst that returns within 1 ms to 366 days, which is the window";
            assert_eq!(
                Policy::rate("api", burst, rate).unwrap_err().to_string(),
                format!(r#"policy "api": burst of {given}: it must be {valid}"#)
            );
        }
        assert_eq!(
            Policy::rate("api", 0, Rate::per_day(1)).unwrap_err().to_string(),
            r#"policy "api": quota 0: it must be 1 to 4294967295 quota units"#
        );
    }

    #[test]
    fn policy_in_flight_accepts_exactly_its_ranges() {
        let exports = |quota| Policy::in_flight("exports", quota);
        let nano = Duration::from_nanos(1);
        let (milli, second, hour) =
            (Duration::from_millis(1), Duration::from_secs(1), Duration::from_secs(3_600));
        for quota in [1, 65_536] {
            assert_eq!(exports(quota).unwrap().quota(), Some(quota));
            let log = Policy::new("exports", quota, second).unwrap();
            log.with_algorithm(exports(1).unwrap().algorithm()).unwrap();
        }
        let log = Policy::new("exports", 65_537, second).unwrap();
        assert_eq!(
            log.with_algorithm(exports(1).unwrap().algorithm()).unwrap_err().to_string(),
            r#"policy "exports": quota 65537: it must be 1 to 65536 units in flight"#
        );
        let hold_time = |time| exports(1).unwrap().hold_time(time);
        let retry_after = |time| exports(1).unwrap().retry_after(time);
        for time in [second, hour] {
            hold_time(time).unwrap();
        }
        for time in [milli, hour] {
            retry_after(time).unwrap();
        }
        for (time, given) in [(second - nano, "999.999999ms"), (hour + nano, "3600.000000001s")] {
            assert_eq!(
                hold_time(time).unwrap_err().to_string(),
                format!(r#"policy "exports": hold time {given}: it must be 1s to 3600s"#)
            );
        }
        for (time, given) in [(milli - nano, "999.999µs"), (hour + nano, "3600.000000001s")] {
            assert_eq!(
                retry_after(time).unwrap_err().to_string(),
                format!(r#"policy "exports": retry after {given}: it must be 1ms to 3600s"#)
            );
        }
    }

    #[test]
    fn impossible_bucket_error_names_value_and_range() {
        let error = |capacity, rate| Policy::token_bucket("api", capacity, rate).unwrap_err().to_string();
        for (rate, given) in [
            (Rate::per_second(0), "0 units per 1s"),
            (Rate::new(7, Duration::ZERO), "7 units per 0ns"),
            (Rate::new(7, Duration::from_nanos(999)), "7 units per 999ns"),
            (Rate::new(7, MAX_WINDOW + Duration::from_nanos(1)), "7 units per 31622400.000000001s"),
        ] {
            let valid = "1 to 4294967295 units per 1 us to 366 days";
            assert_eq!(error(1, rate), format!(r#"policy "api": rate {given}: it must be {valid}"#));
            let sliding = Policy::rate("api", 1, rate).unwrap_err().to_string();
            assert_eq!(sliding, error(1, rate));
        }
        assert_eq!(
            error(367, Rate::per_day(1)),
            r#"policy "api": capacity of 367 units at 1 units per 86400s: it must be at most 366 units at this rate: a full capacity returns within 366 days"#
        );
        Policy::token_bucket("api", 366, Rate::per_day(1)).unwrap();
        // A prime number of units: a unit has 86,400,000,000 parts.
        assert_eq!(
            error(104_250, Rate::per_day(999_983)),
            r#"policy "api": capacity of 104250 units at 999983 units per 86400s: it must be at most 104249 units at this rate: its parts are counted below 2^53"#
        );
        Policy::token_bucket("api", 104_249, Rate::per_day(999_983)).unwrap();
    }

    #[test]
    fn token_buckets_count_together_under_any_rate() {
        let bucket = |capacity, rate| Policy::token_bucket("api", capacity, rate).unwrap();
        let seven = bucket(20, Rate::per_second(7));
        for other in [bucket(21, Rate::per_second(7)), bucket(20, Rate::per_second(8))] {
            assert!(seven.counts_with(&other) && seven != other, "{other:?}");
        }
        assert!(!seven.counts_with(&Policy::rate("api", 20, Rate::per_second(7)).unwrap()), "another type");
        assert_eq!(seven, bucket(20, Rate::per_second(7)));
    }

    #[test]
    fn algorithm_distinguishes_policies() {
        let policy = Policy::new("burst", 10, Duration::from_secs(1)).unwrap();
        assert_eq!(policy.algorithm(), Algorithm::SlidingLog);
        assert_eq!(policy, policy.clone().with_algorithm(Algorithm::SlidingLog).unwrap());
        assert_ne!(policy, policy.clone().with_algorithm(Algorithm::FixedWindow).unwrap());
    }
}
