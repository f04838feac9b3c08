//! The count of sliding buckets.

use super::log::{Log, Recording};
use crate::policy::Policy;

/// One record for each bucket with charges.
pub(super) type SlidingBuckets = Log<ByBucket>;

/// Records each charge at the end of its bucket.
pub(super) struct ByBucket;

impl Recording for ByBucket {
    const IS_SHARED: bool = true;

    #[inline]
    fn recorded_at(now: u64, policy: &Policy) -> u64 {
        policy.properties().bucket_micros.map_or(now, |bucket| (now / bucket + 1) * bucket.get())
    }
}
