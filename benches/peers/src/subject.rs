//! What is measured: this crate, other layers, and the bare inner service.

use crate::{
    comparison::{Entry, Role},
    limit::LimitType,
    table::Rounds,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The inner service alone.
    Inner,
    /// The inner service after one EVALSHA of `return 1`, with arguments as long as those of this crate, over the same client.
    Script,
    MemoryLog,
    MemoryTokenBucket,
    TowerGovernor,
    TowerRateLimiterMemory,
    RedisLog,
    /// Without the cache of denials, so that every denial asks Redis.
    RedisLogWithoutDenyCache,
    RedisTokenBucket,
    RedisTokenBucketWithoutDenyCache,
    /// Without the deny cache and without merged checks.
    RedisTokenBucketUnmerged,
    TowerRateLimitRedis,
    TowerRateLimiterRedis,
}

impl Subject {
    pub const IN_MEMORY: [Self; 4] =
        [Self::MemoryLog, Self::MemoryTokenBucket, Self::TowerGovernor, Self::TowerRateLimiterMemory];
    pub const ON_REDIS: [Self; 6] = [
        Self::RedisLog,
        Self::RedisLogWithoutDenyCache,
        Self::RedisTokenBucket,
        Self::RedisTokenBucketWithoutDenyCache,
        Self::TowerRateLimitRedis,
        Self::TowerRateLimiterRedis,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Inner => "inner service alone",
            Self::Script => "EVALSHA of `return 1`",
            Self::MemoryLog | Self::RedisLog => "**tower-sliding-window**, log",
            Self::MemoryTokenBucket | Self::RedisTokenBucket => "**tower-sliding-window**, token bucket",
            Self::RedisLogWithoutDenyCache => "**tower-sliding-window**, log, no deny cache",
            Self::RedisTokenBucketWithoutDenyCache => "**tower-sliding-window**, token bucket, no deny cache",
            Self::RedisTokenBucketUnmerged => {
                "**tower-sliding-window**, token bucket, no deny cache, not merged"
            }
            Self::TowerGovernor => "tower_governor 0.8.0",
            Self::TowerRateLimiterMemory => "tower-rate-limiter 0.2.0-alpha.0, memory GCRA",
            Self::TowerRateLimitRedis => "tower-rate-limit-redis 1.0.2",
            Self::TowerRateLimiterRedis => "tower-rate-limiter 0.2.0-alpha.0, Redis GCRA",
        }
    }

    /// Returns the part of the subject in a comparison.
    pub fn role(self) -> Role {
        match self {
            Self::MemoryLog | Self::RedisLog => Role::Ours(LimitType::Log),
            Self::MemoryTokenBucket | Self::RedisTokenBucket => Role::Ours(LimitType::TokenBucket),
            Self::TowerGovernor
            | Self::TowerRateLimiterMemory
            | Self::TowerRateLimitRedis
            | Self::TowerRateLimiterRedis => Role::OtherCrate(LimitType::TokenBucket),
            _ => Role::NotCompared,
        }
    }

    /// Returns what the subject needs in a cell, for a comparison.
    pub fn entry(self, rounds: Rounds) -> Entry {
        Entry { name: self.name(), role: self.role(), rounds }
    }

    /// Returns whether the subject is this crate without its deny cache. Only a denial depends on the cache.
    pub fn is_without_deny_cache(self) -> bool {
        matches!(self, Self::RedisLogWithoutDenyCache | Self::RedisTokenBucketWithoutDenyCache)
    }

    /// Returns whether the subject is this crate.
    pub fn is_ours(self) -> bool {
        matches!(self.role(), Role::Ours(_))
            || self.is_without_deny_cache()
            || self == Self::RedisTokenBucketUnmerged
    }

    /// Returns the subject with this `Debug` name.
    pub fn parse(name: &str) -> Option<Self> {
        let references = [Self::Inner, Self::Script].into_iter();
        let mut all = references.chain(Self::IN_MEMORY).chain(Self::ON_REDIS);
        all.find(|subject| format!("{subject:?}") == name)
    }
}
