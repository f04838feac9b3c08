//! The smallest quota of each policy that denies at most a share of the requests.
//!
//! Each policy is searched alone, because a request that another policy denies would charge nothing. The search bisects the quotas up to
//! the highest use, at which nothing is denied, and replays all requests for each. So the found quota denies at most the share, and one
//! unit less denies more. If every request costs the same, no smaller quota denies less. Otherwise, a smaller one may, because a denied
//! request of a high cost leaves room for cheap ones.

use tower_sliding_window::{ConfigError, Policy};

use crate::{
    demand::Demand,
    progress,
    requests::{Names, What},
    service::{Service, with_quota},
};

/// A request that is kept for the replays: 16 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) at_micros: u64,
    pub(crate) what: What,
}

/// What the search has found.
pub(crate) struct Found {
    /// The quota of each policy, and how many requests it denies alone. `None` if a sliding log cannot hold as many charges.
    pub(crate) quotas: Vec<Option<(u32, u64)>>,
    /// How many requests these quotas deny together.
    pub(crate) together: u64,
}

/// Searches the quotas at which each policy alone denies at most `allowed` requests.
pub(crate) fn search(
    requests: &[Kept],
    names: &Names,
    policies: &[Policy],
    demand: &Demand,
    allowed: u64,
) -> Result<Found, ConfigError> {
    let highest =
        |index: usize| if demand.uncounted[index] > 0 { u32::MAX } else { demand.highest(index).max(1) };
    let replays = (0..policies.len()).map(|index| u64::from(highest(index).ilog2()) + 2).sum();
    let bar = progress::Bar::replays(replays);
    let denied = |policies: Vec<Policy>, at_most: u64| count(requests, names, policies, at_most);
    let mut quotas = Vec::new();
    for (index, policy) in policies.iter().enumerate() {
        let alone = |quota: u32| {
            bar.next(format!("policy {:?}", policy.name()));
            denied(vec![with_quota(policy, quota)?], allowed)
        };
        // The quota `enough` denies at most the share. The quota `less` denies more, or is 0.
        let (mut less, mut enough) = (0, highest(index));
        let mut found = alone(enough)?;
        while let Some(count) = found.filter(|_| enough - less > 1) {
            let middle = less + (enough - less) / 2;
            match alone(middle)? {
                Some(fewer) => (enough, found) = (middle, Some(fewer)),
                None => (less, found) = (middle, Some(count)),
            }
        }
        quotas.push(found.map(|count| (enough, count)));
    }
    let found = policies.iter().zip(&quotas).filter_map(|(policy, found)| {
        let (quota, _) = (*found)?;
        Some(with_quota(policy, quota))
    });
    let together = found.collect::<Result<Vec<_>, _>>()?;
    let together = if together.is_empty() { Some(0) } else { denied(together, u64::MAX)? };
    bar.clear();
    Ok(Found { quotas, together: together.unwrap_or_default() })
}

/// Returns how many requests these policies deny, or `None` if they are more than `at_most`.
fn count(
    requests: &[Kept],
    names: &Names,
    policies: Vec<Policy>,
    at_most: u64,
) -> Result<Option<u64>, ConfigError> {
    let service = Service::new(policies)?;
    let mut denied = 0;
    for Kept { at_micros, what } in requests {
        let decision = service.decide(*at_micros, *what, names);
        denied += u64::from(!decision.is_ok_and(|decision| decision.is_admitted()));
        if denied > at_most {
            return Ok(None);
        }
    }
    Ok(Some(denied))
}
