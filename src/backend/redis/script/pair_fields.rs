//! The fields of a pair in the arguments of a check: the quota, the cost, the window, and the type with its parameter. `lua/README.md` is
//! the contract.

use super::{fields::Fields, types};
use crate::policy::{Policy, RedisProperties};

/// The size of the fields of a pair, in bytes.
pub(super) const PAIR_SIZE: usize = 20;

/// The offset of each field after the quota.
const COST: usize = 4;
pub(super) const WINDOW: usize = 8;
pub(super) const TYPE: usize = 14;

/// The fields of a pair, as numbers.
pub(super) struct PairFields {
    pub(super) quota: u32,
    pub(super) cost: u32,
    pub(super) window: u64,
    /// `None` if no type has this number.
    pub(super) redis_type: Option<&'static RedisProperties>,
    pub(super) parameter: u64,
}

impl PairFields {
    /// Reads the fields of a pair. A missing field is 0.
    pub(super) fn read(pair: &[u8]) -> Self {
        let mut fields = Fields(pair);
        let [quota, cost] = [(); 2].map(|()| fields.u32().unwrap_or_default());
        let [window, typed] = [(); 2].map(|()| fields.uint::<6>().unwrap_or_default());
        let (redis_type, parameter) = types::parse(typed).unzip();
        Self { quota, cost, window, redis_type, parameter: parameter.unwrap_or_default() }
    }
}

/// Returns the fields of a pair.
pub(super) fn write(cost: u32, policy: &Policy) -> [u8; PAIR_SIZE] {
    let mut pair = [0; PAIR_SIZE];
    pair[..COST].copy_from_slice(&policy.quota_units().to_le_bytes());
    pair[COST..WINDOW].copy_from_slice(&cost.to_le_bytes());
    // A window is shorter than 2^45 microseconds.
    let [window, _] = policy.properties().arguments;
    pair[WINDOW..TYPE].copy_from_slice(&window.to_le_bytes()[..TYPE - WINDOW]);
    pair[TYPE..].copy_from_slice(&types::typed_parameter(policy));
    pair
}
