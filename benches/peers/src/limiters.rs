//! Limiters without a layer: a decision for a key that is already made.

use std::{
    any::Any,
    error::Error,
    num::NonZeroU32,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use governor::{Quota, RateLimiter};
use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, policy::Rate};

use crate::{
    comparison::{Entry, Role},
    count::counted,
    limit::{Limit, LimitType},
    table::Rounds,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// `Limiter::check`, with the future that it returns.
    Log,
    TokenBucket,
    Governor,
}

impl Bare {
    pub const ALL: [Self; 3] = [Self::Log, Self::TokenBucket, Self::Governor];

    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "**tower-sliding-window**, `Limiter::check`, log",
            Self::TokenBucket => "**tower-sliding-window**, `Limiter::check`, token bucket",
            Self::Governor => "governor 0.10, keyed",
        }
    }

    /// Returns the part of the limiter in a comparison.
    pub fn role(self) -> Role {
        match self {
            Self::Log => Role::Ours(LimitType::Log),
            Self::TokenBucket => Role::Ours(LimitType::TokenBucket),
            Self::Governor => Role::OtherCrate(LimitType::TokenBucket),
        }
    }

    /// Returns what the limiter needs in a cell, for a comparison.
    pub fn entry(self, rounds: Rounds) -> Entry {
        Entry { name: self.name(), role: self.role(), rounds }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bare| format!("{bare:?}") == name)
    }

    /// Makes this many admitted decisions on one thread, over this many keys. Returns the time of one decision, and the limiter.
    pub fn run(
        self,
        limit: Limit,
        decisions: usize,
        keys: usize,
    ) -> Result<(Duration, Box<dyn Any>), Box<dyn Error>> {
        let names = (0..keys).map(|key| format!("key-{key:06}"));
        let rate = Rate::new(1, limit.interval());
        let policy = match self {
            Self::Log => Policy::new("hour", limit.capacity(), Duration::from_secs(3_600))?,
            Self::TokenBucket => Policy::token_bucket("hour", limit.capacity(), rate)?,
            Self::Governor => {
                let quota = Quota::with_period(limit.interval()).ok_or("a period of 0")?;
                let burst = NonZeroU32::new(limit.capacity()).ok_or("a capacity of 0")?;
                let limiter = RateLimiter::keyed(quota.allow_burst(burst));
                let names: Vec<String> = names.collect();
                let took = timed(decisions, keys, |key| limiter.check_key(&names[key]).is_ok());
                return Ok((took / decisions as u32, Box::new(limiter)));
            }
        };
        let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
        let keys_made: Vec<PartitionKey> = names.map(|name| PartitionKey::new("x-api-key", name)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let took = timed(decisions, keys, |key| {
            let check = pin!(limiter.check(&keys_made[key])).poll(&mut cx);
            matches!(check, Poll::Ready(Ok(decision)) if decision.is_admitted())
        });
        Ok((took / decisions as u32, Box::new(limiter)))
    }
}

fn timed(decisions: usize, keys: usize, mut decide: impl FnMut(usize) -> bool) -> Duration {
    let started = Instant::now();
    counted(|| {
        for n in 0..decisions {
            assert!(decide(n % keys), "not admitted");
        }
    });
    started.elapsed()
}
