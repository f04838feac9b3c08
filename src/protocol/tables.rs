//! The policy tables of a layer: whether they suit it, and whether requests have names that are not in them.

use std::sync::Arc;

use crate::{
    error::ConfigError,
    limit::Limit,
    limiter::Limiter,
    policy::{PolicyTable, TableUse},
};

/// The tables from which the limits of a layer choose.
pub(crate) struct Tables {
    limiter: Limiter,
    /// While the layer exists, each table compares its changes with what the layer requires.
    tables: Vec<(PolicyTable, Arc<TableUse>)>,
}

impl Tables {
    /// Returns the tables of these limits, or `None` if there are none. `of_layer` is what the layer requires of each table, without the
    /// costs of the limits that choose from it.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidTier`] if a tier does not suit the layer, and [`ConfigError::CostWithoutPolicy`] if a constant cost
    /// names a policy that no tier has.
    pub(crate) fn new(
        limiter: &Limiter,
        limits: &[&Limit],
        of_layer: &TableUse,
    ) -> Result<Option<Self>, ConfigError> {
        let mut tables: Vec<(PolicyTable, Arc<TableUse>)> = Vec::new();
        for table in limits.iter().flat_map(|limit| limit.tables()) {
            if tables.iter().any(|(known, _)| known.is_same(table)) {
                continue;
            }
            let choosing =
                limits.iter().filter(|limit| limit.tables().any(|of_limit| of_limit.is_same(table)));
            let limits = choosing.map(|limit| limit.constant_costs()).collect();
            tables.push((table.clone(), Arc::new(TableUse { limits, ..of_layer.clone() })));
        }
        let tables = Self { limiter: limiter.clone(), tables };
        tables.announce()?;
        Ok((!tables.tables.is_empty()).then_some(tables))
    }

    /// Returns the same tables for a layer that keeps the types of bodies.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidTier`] if a tier has a policy in flight.
    pub(crate) fn keeping_bodies(&self) -> Result<Self, ConfigError> {
        let tables = self.tables.iter().map(|(table, of_layer)| {
            (table.clone(), Arc::new(TableUse { keeps_bodies: true, ..TableUse::clone(of_layer) }))
        });
        let tables = Self { limiter: self.limiter.clone(), tables: tables.collect() };
        tables.announce()?;
        Ok(tables)
    }

    /// Tells each table what the layer requires, as long as the layer exists.
    fn announce(&self) -> Result<(), ConfigError> {
        self.tables.iter().try_for_each(|(table, of_layer)| {
            let others = self.tables.iter().map(|(other, _)| other).filter(|other| !other.is_same(table));
            table.use_by(of_layer, others)
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
    }
}
