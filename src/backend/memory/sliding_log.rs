//! The count of a sliding log.

use super::log::{Log, Recording};
use crate::policy::Policy;

/// One record for each charge.
pub(super) type SlidingLog = Log<ByCharge>;

/// Records each charge at its own instant.
pub(super) struct ByCharge;

impl Recording for ByCharge {
    const IS_SHARED: bool = false;

    #[inline]
    fn recorded_at(now: u64, _: &Policy) -> u64 {
        now
    }
}
