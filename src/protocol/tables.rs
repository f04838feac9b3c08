//! The policy tables of a layer: whether they suit it, and whether requests have names that are not in them.

use std::{
    collections::BTreeSet,
    iter,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    cost::Costs,
    error::ConfigError,
    limit::Limit,
    limiter::Limiter,
    policy::{Policy, PolicyTable, TableUse},
};

/// The tables from which the limits of a layer choose.
pub(crate) struct Tables {
    limiter: Limiter,
    /// While the layer exists, each table compares its changes with what the layer requires.
    tables: Vec<(PolicyTable, Arc<TableUse>)>,
    /// The constant costs with names, with the requests that have them. Empty if other selectors than tables choose policies.
    named: Arc<[(String, Costs)]>,
    /// How often the tables had been replaced, all together, when the names were compared. `usize::MAX` before that.
    compared: AtomicUsize,
}

impl Tables {
    /// Returns the tables of these limits, or `None` if there are none. `of_layer` is what the layer requires of each table, without the
    /// costs of the limits that choose from it. If the layer `plans` the check of a request, any policies may be chosen.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidTier`] if a tier does not suit the layer.
    pub(crate) fn new(
        limiter: &Limiter,
        limits: &[&Limit],
        of_layer: &TableUse,
        plans: bool,
    ) -> Result<Option<Self>, ConfigError> {
        let mut tables: Vec<(PolicyTable, Arc<TableUse>)> = Vec::new();
        for table in limits.iter().flat_map(|limit| limit.tables()) {
            if tables.iter().any(|(known, _)| known.is_same(table)) {
                continue;
            }
            let choosing =
                limits.iter().filter(|limit| limit.tables().any(|of_limit| of_limit.is_same(table)));
            let limits = choosing.map(|limit| limit.constant_costs()).collect();
            let of_layer = Arc::new(TableUse { limits, ..of_layer.clone() });
            table.use_by(&of_layer)?;
            tables.push((table.clone(), of_layer));
        }
        let has_only_tables = !plans && limits.iter().all(|limit| limit.chooses_only_from_tables());
        let costs = limits.iter().filter(|_| has_only_tables).flat_map(|limit| limit.constant_costs());
        let named = costs.filter(|(_, costs)| costs.names().next().is_some()).collect();
        let has_tables = !tables.is_empty();
        Ok(has_tables.then(|| Self {
            limiter: limiter.clone(),
            tables,
            named,
            compared: AtomicUsize::new(usize::MAX),
        }))
    }

    /// Returns the same tables for a layer that keeps the types of bodies.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidTier`] if a tier has a policy in flight.
    pub(crate) fn keeping_bodies(&self) -> Result<Self, ConfigError> {
        let tables = self.tables.iter().map(|(table, of_layer)| {
            let of_layer = Arc::new(TableUse { keeps_bodies: true, ..TableUse::clone(of_layer) });
            table.use_by(&of_layer).map(|()| (table.clone(), of_layer))
        });
        Ok(Self {
            limiter: self.limiter.clone(),
            tables: tables.collect::<Result<_, _>>()?,
            named: self.named.clone(),
            compared: AtomicUsize::new(usize::MAX),
        })
    }

    /// Warns, once, about a problem of each change of a table, and about the name of a request that is not in a table.
    #[inline]
    pub(super) fn warn(&self) {
        for (table, _) in &self.tables {
            if let Some(problem) = table.take_problem() {
                self.limiter.events().problem_of_table(&problem);
            }
            if table.has_unlisted() {
                self.limiter.events().unlisted_name(&table.pick(None));
            }
        }
        if !self.named.is_empty() {
            let replacements =
                self.tables.iter().fold(0, |sum: usize, (table, _)| sum.wrapping_add(table.replacements()));
            // Usually nothing has been replaced, and nothing is written.
            if self.compared.load(Ordering::Relaxed) != replacements
                && self.compared.swap(replacements, Ordering::Relaxed) != replacements
                && let Some(problem) = self.unknown_name()
            {
                self.limiter.events().cost_without_policy(&problem);
            }
        }
    }

    /// Returns an error if a constant cost names a policy that neither the layer nor a tier of its tables has. Without any tier, all names
    /// are valid: the tiers may follow.
    #[cold]
    fn unknown_name(&self) -> Option<ConfigError> {
        let of_tiers: BTreeSet<String> =
            self.tables.iter().flat_map(|(table, _)| table.policy_names()).collect();
        let fixed =
            self.tables.first().into_iter().flat_map(|(_, of_layer)| &of_layer.fixed).map(Policy::name);
        let known = || fixed.clone().chain(of_tiers.iter().map(|name| &**name));
        let mut all =
            self.named.iter().flat_map(|(requests, costs)| costs.names().zip(iter::repeat(requests)));
        let (name, requests) =
            all.find(|(name, _)| !of_tiers.is_empty() && !known().any(|known| known == *name))?;
        let known = known().map(str::to_owned).collect();
        Some(ConfigError::CostWithoutPolicy { requests: requests.clone(), name: name.to_owned(), known })
    }
}
