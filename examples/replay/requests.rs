//! The requests of a log. Each key and each cost is kept once.

use std::collections::HashMap;

use tower_sliding_window::{Costs, PartitionKey};

/// A request: 24 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Request {
    /// The instant at which the request is decided, in microseconds of Unix time.
    pub(crate) at_micros: u64,
    /// The number of its line. Requests of the same instant are decided in the order of their lines.
    pub(crate) line: u64,
    pub(crate) what: What,
}

/// What a request charges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct What {
    /// The index of the key.
    pub(crate) key: u32,
    /// The index of the costs.
    pub(crate) costs: u32,
}

/// The keys and the costs of the requests, by their indices.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) keys: Vec<PartitionKey>,
    pub(crate) costs: Vec<Costs>,
    indices: HashMap<PartitionKey, u32>,
}

impl Names {
    pub(crate) fn what(&mut self, key: PartitionKey, costs: Costs) -> What {
        let Self { keys, costs: all_costs, indices } = self;
        let key = *indices.entry(key).or_insert_with_key(|key| {
            keys.push(key.clone());
            // More keys than this do not fit in memory.
            keys.len() as u32 - 1
        });
        // There are as few as the file has.
        let known = all_costs.iter().position(|known| *known == costs);
        let costs = known.unwrap_or_else(|| {
            all_costs.push(costs);
            all_costs.len() - 1
        });
        What { key, costs: costs as u32 }
    }

    pub(crate) fn key(&self, what: What) -> &PartitionKey {
        &self.keys[what.key as usize]
    }

    pub(crate) fn costs(&self, what: What) -> &Costs {
        &self.costs[what.costs as usize]
    }
}
