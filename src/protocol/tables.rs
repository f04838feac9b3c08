//! The policy tables of a layer: whether they suit it, and whether requests have names that are not in them.

use std::sync::Arc;

use crate::{
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
}

impl Tables {
    /// Returns the tables of these limits, or `None` if there are none. `fixed` are the policies of the layer for every request.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidTier`] if a tier does not suit the layer.
    pub(crate) fn new(
        limiter: &Limiter,
        limits: &[&Limit],
        fixed: &[Policy],
        clamps: bool,
    ) -> Result<Option<Self>, ConfigError> {
        let mut tables: Vec<(PolicyTable, Arc<TableUse>)> = Vec::new();
        for table in limits.iter().flat_map(|limit| limit.tables()) {
            if tables.iter().any(|(known, _)| known.is_same(table)) {
                continue;
            }
            let choosing =
                limits.iter().filter(|limit| limit.tables().any(|of_limit| of_limit.is_same(table)));
            let limits = choosing.map(|limit| limit.constant_costs()).collect();
            let of_layer = Arc::new(TableUse { fixed: fixed.to_vec(), limits, clamps, keeps_bodies: false });
            table.use_by(&of_layer)?;
            tables.push((table.clone(), of_layer));
        }
        Ok((!tables.is_empty()).then(|| Self { limiter: limiter.clone(), tables }))
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
        Ok(Self { limiter: self.limiter.clone(), tables: tables.collect::<Result<_, _>>()? })
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
    }
}
