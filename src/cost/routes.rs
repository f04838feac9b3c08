//! Costs by route.

use http::Request;

use super::{CostFunction, Costs};
use crate::error::ConfigError;

/// Costs by the path of the request; all other paths cost 1, or what [`otherwise`](Self::otherwise) says.
///
/// Routes are written as in axum 0.8: `/users/{id}`, `/files/{*path}`. They are matched against the path as it arrives at
/// the layer: inside a nested router, axum has cut off what comes before. The method makes no difference; where it should,
/// see [`from_head`](crate::from_head).
///
/// ```
/// use tower_sliding_window::{CostFunction, RouteCosts};
///
/// let costs = RouteCosts::new().route("/search", 100)?.route("/export/{year}", 500)?;
/// let cost = |path: &str| costs.cost(&http::Request::get(path).body(()).unwrap());
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
    /// A table without routes: everything costs 1.
    #[expect(clippy::new_without_default, reason = "`default` would hide that everything costs 1")]
    pub fn new() -> Self {
        Self { routes: matchit::Router::new(), otherwise: Costs::from(1) }
    }

    /// Requests of this path cost so many quota units, 0 to 2^32-1, or so many of each policy: [`Costs`].
    ///
    /// # Errors
    ///
    /// [`ConfigError::Route`] if the route does not start with `/`, cannot be parsed, or meets one that is there already.
    pub fn route(mut self, route: &str, cost: impl Into<Costs>) -> Result<Self, ConfigError> {
        match self.routes.insert(route, cost.into()) {
            Ok(()) => Ok(self),
            Err(source) => Err(ConfigError::Route { route: route.to_owned(), source }),
        }
    }

    /// What requests of all other paths cost, in quota units; 1 unless it is said.
    #[must_use]
    pub fn otherwise(mut self, cost: impl Into<Costs>) -> Self {
        self.otherwise = cost.into();
        self
    }
}

impl<B> CostFunction<Request<B>> for RouteCosts {
    fn cost(&self, request: &Request<B>) -> Costs {
        self.routes.at(request.uri().path()).map_or(&self.otherwise, |found| found.value).clone()
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
    fn routes_that_meet_or_do_not_parse_are_errors() {
        let costs = RouteCosts::new().route("/a/{x}", 2).unwrap();
        assert_eq!(
            costs.clone().route("/a/{y}", 3).unwrap_err().to_string(),
            r#"route "/a/{y}": Insertion failed due to conflict with previously registered route: /a/{x}"#
        );
        assert!(costs.route("/{a", 3).is_err());
    }

    #[test]
    fn what_no_route_names_costs_the_rest() {
        let costs = RouteCosts::new().route("/free", 0).unwrap().otherwise(3);
        let cost = |path: &str| costs.cost(&Request::get(path).body(()).unwrap());
        assert_eq!((cost("/free"), cost("/free/"), cost("/")), (0.into(), 3.into(), 3.into()));
    }
}
