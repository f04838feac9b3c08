//! Costs by route.

use super::{CostFunction, Costs, IntoCosts};
use crate::{error::ConfigError, head::Head};

/// Costs by the path of the request. All other paths cost 1, unless [`otherwise`](Self::otherwise) sets another cost.
///
/// Routes have the syntax of axum 0.8: `/users/{id}`, `/files/{*path}`. They are matched against the path that the layer
/// receives: inside a nested router, axum has removed the prefix. The method makes no difference. To choose by method, use
/// [`Builder::cost_by`](crate::Builder::cost_by).
///
/// ```
/// use tower_sliding_window::{CostFunction, RouteCosts};
///
/// let costs = RouteCosts::new().route("/search", 100)?.route("/export/{year}", 500)?;
/// let cost = |path: &str| costs.cost(&(&http::Request::get(path).body(()).unwrap()).into());
///
/// assert_eq!(cost("/search?q=1"), 100.into());
/// assert_eq!(cost("/export/2026"), 500.into());
/// assert_eq!(cost("/"), 1.into());
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct RouteCosts {
    routes: matchit::Router<Costs>,
    otherwise: Costs,
}

impl RouteCosts {
    /// Creates a table without routes, in which every request costs 1.
    #[expect(clippy::new_without_default, reason = "`default` would hide the cost of 1")]
    pub fn new() -> Self {
        Self { routes: matchit::Router::new(), otherwise: Costs::from(1) }
    }

    /// Sets the cost of requests for this path: quota units, 0 to 2^32-1, or [`Costs`] with an amount for each policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Route`] if the route cannot be parsed, or conflicts with an earlier route.
    pub fn route(mut self, route: &str, cost: impl IntoCosts) -> Result<Self, ConfigError> {
        match self.routes.insert(route, cost.into_costs()) {
            Ok(()) => Ok(self),
            Err(source) => Err(ConfigError::Route { route: route.to_owned(), source }),
        }
    }

    /// Sets the cost of requests for all other paths, in quota units. The default is 1.
    #[must_use]
    pub fn otherwise(mut self, cost: impl IntoCosts) -> Self {
        self.otherwise = cost.into_costs();
        self
    }
}

impl CostFunction for RouteCosts {
    fn cost(&self, head: &Head<'_>) -> Costs {
        self.routes.at(head.uri.path()).map_or(&self.otherwise, |found| found.value).clone()
    }
}

impl std::fmt::Debug for RouteCosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteCosts").field("otherwise", &self.otherwise).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicting_or_invalid_route_is_an_error() {
        let costs = RouteCosts::new().route("/a/{x}", 2).unwrap();
        assert_eq!(
            costs.clone().route("/a/{y}", 3).unwrap_err().to_string(),
            r#"route "/a/{y}": Insertion failed due to conflict with previously registered route: /a/{x}"#
        );
        assert!(costs.route("/{a", 3).is_err());
    }

    #[test]
    fn unlisted_path_costs_other_amount() {
        let costs = RouteCosts::new().route("/free", 0).unwrap().otherwise(3);
        let cost = |path: &str| costs.cost(&(&http::Request::get(path).body(()).unwrap()).into());
        assert_eq!((cost("/free"), cost("/free/"), cost("/")), (0.into(), 3.into(), 3.into()));
    }
}
