//! One trace of requests, decided by seven counters: the five algorithms of the crate, and two that other libraries use.
//!
//! The limiters are real, on a memory backend with a manual clock. So the result does not depend on the time of day.

use std::time::Duration;

use axum::{Json, http::StatusCode};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::Value;
use tower_sliding_window::{
    Algorithm, ConfigError, Limiter, MemoryBackend, PartitionKey, Policy, policy::Rate, testing::ManualClock,
};

use crate::{
    body::{Body, whole},
    simulations::{Increx, Simulation, TwoCounters},
};

/// The largest number of requests of a trace.
const MAX_REQUESTS: usize = 5_000;
/// The largest distance of a request from the edge, in microseconds: seven days.
const MAX_TIME: i64 = 7 * 86_400 * 1_000_000;
/// The longest window. It is a bound of this page, because of the range of the manual clock.
const MAX_WINDOW: Duration = Duration::from_secs(86_400);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the policy, the precision and the trace")]
pub(crate) struct Comparison {
    /// The quota and the window.
    pub(crate) policy: Policy,
    /// The precision of the sliding buckets, in milliseconds.
    #[serde(deserialize_with = "precision")]
    pub(crate) precision_ms: u32,
    /// The time of each request in microseconds from the edge of a calendar window, and its cost.
    #[serde(deserialize_with = "requests")]
    pub(crate) trace: Vec<(i64, u32)>,
}

fn precision<'de, D: Deserializer<'de>>(given: D) -> Result<u32, D::Error> {
    whole("precision in milliseconds", &Value::deserialize(given)?, 1..=86_400_000)
}

fn requests<'de, D: Deserializer<'de>>(given: D) -> Result<Vec<(i64, u32)>, D::Error> {
    let request = |(at, cost): (Value, Value)| {
        let time = at.as_i64().filter(|at| (-MAX_TIME..=MAX_TIME).contains(at)).ok_or_else(|| {
            let text = "enter a whole number within seven days of the edge";
            D::Error::custom(format!("time {at} of a request, in microseconds: {text}"))
        })?;
        Ok((time, whole("cost", &cost, 0..=u32::MAX)?))
    };
    Vec::deserialize(given)?.into_iter().map(request).collect()
}

/// What a counter decides.
#[derive(Serialize)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    /// Whether it is an algorithm of this crate.
    is_ours: bool,
    decisions: Vec<Decided>,
    /// The edges of the windows of this counter, in microseconds. A sliding window has none.
    pub(crate) edges: Vec<i64>,
    /// The admitted units, and the denied units.
    pub(crate) admitted: u64,
    denied: u64,
    pub(crate) worst: Worst,
    /// The units over the quota in the worst window.
    pub(crate) over: u64,
}

/// The decision of a request: whether it is admitted, the remaining units, and the stated wait in microseconds.
#[derive(Clone, Copy, Serialize)]
struct Decided(bool, u32, Option<i64>);

/// The window with the most admitted units, among all intervals of this length.
#[derive(Default, Serialize)]
pub(crate) struct Worst {
    from: i64,
    pub(crate) units: u64,
}

/// A limiter of the crate, or a simulation.
enum Counter {
    Limiter(Limiter),
    Increx(Increx),
    TwoCounters(TwoCounters),
}

pub(crate) async fn compare(
    Body(comparison): Body<Comparison>,
) -> Result<Json<Vec<Lane>>, (StatusCode, String)> {
    match comparison.run().await {
        Ok(lanes) => Ok(Json(lanes)),
        Err(error) => Err((StatusCode::BAD_REQUEST, error)),
    }
}

impl Comparison {
    pub(crate) async fn run(mut self) -> Result<Vec<Lane>, String> {
        let Some(window) = self.policy.window() else {
            return Err("a policy without a window: choose one that counts in time".to_owned());
        };
        if window > MAX_WINDOW {
            let seconds = window.as_secs_f64();
            return Err(format!(
                "window of {seconds} s: it must be at most one day, 86400 s. Use a shorter one"
            ));
        }
        if self.trace.len() > MAX_REQUESTS {
            let count = self.trace.len();
            return Err(format!("{count} requests: a trace must have at most {MAX_REQUESTS}. Send fewer"));
        }
        self.trace.sort_by_key(|(at, _)| *at);
        let counters = self.counters().map_err(|error| error.to_string())?;
        let mut lanes = Vec::new();
        for (name, counter, clock) in counters {
            lanes.push(self.lane(name, counter, &clock).await?);
        }
        Ok(lanes)
    }

    fn counters(&self) -> Result<Vec<(&'static str, Counter, ManualClock)>, ConfigError> {
        let precision = Duration::from_millis(self.precision_ms.into());
        let mut counters = Vec::new();
        for (name, algorithm) in [
            ("sliding log", Algorithm::SlidingLog),
            ("sliding buckets", Algorithm::SlidingBuckets { precision }),
            ("sliding counter", Algorithm::SlidingCounter),
            ("fixed window", Algorithm::FixedWindow),
            ("token bucket", Algorithm::TokenBucket { rate: self.rate() }),
        ] {
            let clock = ManualClock::new();
            let limiter = Limiter::builder(MemoryBackend::new().with_clock(&clock))
                .policy(self.policy.clone().with_algorithm(algorithm)?)
                .build()?;
            counters.push((name, Counter::Limiter(limiter), clock));
        }
        let (quota, window) = (self.quota(), self.window());
        counters.push(("INCREX", Counter::Increx(Increx::new(quota, window)), ManualClock::new()));
        let two = Counter::TwoCounters(TwoCounters::new(quota, window));
        counters.push(("two counters", two, ManualClock::new()));
        Ok(counters)
    }

    async fn lane(
        &self,
        name: &'static str,
        mut counter: Counter,
        clock: &ManualClock,
    ) -> Result<Lane, String> {
        let window = self.window();
        // An edge of a calendar window.
        let edge = (clock.now_micros().cast_signed() / window + 1) * window;
        let mut decisions = Vec::new();
        for (at, cost) in &self.trace {
            clock.set_micros((edge + at).cast_unsigned());
            decisions.push(counter.decide(*at, *cost).await?);
        }
        let decided = || {
            decisions.iter().zip(&self.trace).map(|(Decided(admitted, ..), request)| (*admitted, *request))
        };
        let units =
            |verdict| decided().filter(|it| it.0 == verdict).map(|(_, (_, cost))| u64::from(cost)).sum();
        let admitted: Vec<_> = decided().filter(|it| it.0).map(|it| it.1).collect();
        let worst = Worst::of(&admitted, window);
        let edges = match &counter {
            Counter::Increx(increx) => increx.begins.iter().flat_map(|at| [*at, *at + window]).collect(),
            _ if ["sliding log", "sliding buckets", "token bucket"].contains(&name) => Vec::new(),
            _ => self.calendar_edges(),
        };
        Ok(Lane {
            name,
            is_ours: matches!(counter, Counter::Limiter(_)),
            edges,
            admitted: units(true),
            denied: units(false),
            over: worst.units.saturating_sub(u64::from(self.quota())),
            worst,
            decisions,
        })
    }

    /// Returns the edges of the calendar windows from before the first request until after the last one, at most 200.
    fn calendar_edges(&self) -> Vec<i64> {
        let (Some((first, _)), Some((last, _))) = (self.trace.first(), self.trace.last()) else {
            return Vec::new();
        };
        let window = self.window();
        let numbers = first.div_euclid(window)..=last.div_euclid(window) + 1;
        numbers.take(200).map(|number| number * window).collect()
    }

    /// Returns the rate of a token bucket: a full quota returns in one window, rounded up to a whole time for each unit if the quota is large.
    fn rate(&self) -> Rate {
        let window = self.policy.window().unwrap_or(MAX_WINDOW);
        let unit = (window.as_micros() as u64).div_ceil(u64::from(self.quota().max(1)));
        if self.quota() <= 100_000 {
            Rate::new(self.quota(), window)
        } else {
            Rate::new(1, Duration::from_micros(unit))
        }
    }

    fn quota(&self) -> u32 {
        self.policy.quota().unwrap_or_default()
    }

    /// Returns the window in microseconds. It is at most one day.
    fn window(&self) -> i64 {
        self.policy.window().unwrap_or(MAX_WINDOW).as_micros() as i64
    }
}

impl Lane {
    /// Returns whether each request is admitted, in the order of the trace.
    pub(crate) fn admissions(&self) -> impl Iterator<Item = bool> {
        self.decisions.iter().map(|Decided(is_admitted, ..)| *is_admitted)
    }
}

impl Counter {
    async fn decide(&mut self, at: i64, cost: u32) -> Result<Decided, String> {
        let simulation: &mut dyn Simulation = match self {
            Self::Limiter(limiter) => {
                let decision = limiter.check((PartitionKey::new("user", "alice"), cost)).await;
                let decision = decision.map_err(|error| error.to_string())?;
                let wait = decision.retry_after().duration().map(|wait| wait.as_micros() as i64);
                let remaining = decision.statuses().first().map_or(0, |status| status.remaining());
                return Ok(Decided(decision.is_admitted(), remaining, wait));
            }
            Self::Increx(increx) => increx,
            Self::TwoCounters(counters) => counters,
        };
        let admitted = simulation.take(at, cost);
        let wait = if admitted { Some(0) } else { simulation.wait(at) };
        Ok(Decided(admitted, simulation.remaining(), wait))
    }
}

impl Worst {
    /// Returns the worst window of these charges, which are in the order of their times. A window contains its begin and does
    /// not contain its end.
    fn of(charges: &[(i64, u32)], window: i64) -> Self {
        let (mut worst, mut units, mut first) = (Self::default(), 0, 0);
        for (at, cost) in charges {
            units += u64::from(*cost);
            while charges[first].0 + window <= *at {
                units -= u64::from(charges[first].1);
                first += 1;
            }
            if units > worst.units {
                worst = Self { from: charges[first].0, units };
            }
        }
        worst
    }
}
