//! Limiters without a layer: a decision for a key that is already made.

use std::{
    any::Any,
    error::Error,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use governor::{Quota, RateLimiter};
use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};

use crate::count::counted;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    Governor,
    /// `Limiter::check`, with the future that it returns.
    Ours,
}

impl Bare {
    pub const ALL: [Self; 2] = [Self::Ours, Self::Governor];

    pub fn name(self) -> &'static str {
        match self {
            Self::Governor => "governor 0.10, keyed",
            Self::Ours => "**tower-sliding-window**, `Limiter::check`",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bare| format!("{bare:?}") == name)
    }

    /// Makes this many admitted decisions on one thread, over this many keys. Returns the time of one decision, and the limiter.
    pub fn run(self, decisions: usize, keys: usize) -> Result<(Duration, Box<dyn Any>), Box<dyn Error>> {
        let names = (0..keys).map(|key| format!("key-{key:06}"));
        let (took, limiter): (_, Box<dyn Any>) = match self {
            Self::Governor => {
                let quota = Quota::with_period(Duration::from_nanos(1)).ok_or("a period of 0")?;
                let limiter = RateLimiter::keyed(quota.allow_burst(NonZeroU32::MAX));
                let names: Vec<String> = names.collect();
                let took = timed(decisions, keys, |key| limiter.check_key(&names[key]).is_ok());
                (took, Box::new(limiter))
            }
            Self::Ours => {
                let policy = Policy::new("hour", u32::MAX, Duration::from_secs(3_600))?;
                let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
                let keys_made: Vec<PartitionKey> =
                    names.map(|name| PartitionKey::new("x-api-key", name)).collect();
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                let took = timed(decisions, keys, |key| {
                    let check = std::pin::pin!(limiter.check(keys_made[key].clone())).poll(&mut cx);
                    matches!(check, std::task::Poll::Ready(Ok(decision)) if decision.is_admitted())
                });
                (took, Box::new(limiter))
            }
        };
        Ok((took / decisions as u32, limiter))
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
