//! Costs by route.

use std::{fmt, sync::Arc};

use http::Method;

use super::{CostFunction, Costs};
use crate::{error::ConfigError, head::Head, pattern::Pattern};

/// Costs by the path and the method of the request. All other requests cost 1, unless [`otherwise`](Self::otherwise) sets another
/// cost.
///
/// Routes have the syntax of axum 0.8: `/users/{id}`, `/files/{*path}`. They are matched against the path that the layer
/// receives: inside a nested router, axum has removed the prefix. First the most specific route is chosen, then the cost of the
/// method. If the route has no cost for the method, the cost of [`route`](Self::route) applies, and else that of
/// [`otherwise`](Self::otherwise). As in axum, a cost for GET also applies to HEAD, unless HEAD has a cost of its own.
///
/// **The path is compared as the client has written it**, as the router of axum does: `/%66iles/big` is not `/files/big`. A service
/// that decodes or normalizes paths takes both for one: a file server such as `ServeDir`, `NormalizePath` inside this layer, or a reverse
/// proxy. **Over such a service, `otherwise` must be the largest cost, and so must the cost of each route with a parameter, which may match
/// the other spelling.** Otherwise, a client pays less by another spelling.
///
/// ```
/// use http::Method;
/// use tower_sliding_window::{CostFunction, RouteCosts, cost::by_content_length};
///
/// let costs = RouteCosts::new()
///     .get("/search", 100)?
///     .post("/upload/{id}", by_content_length(1024)?)?
///     .route("/export/{year}", 500)?; // any method
///
/// let cost = |method: Method, path: &str, length: &str| {
///     let request = http::Request::builder().method(method).uri(path).header("content-length", length);
///     costs.cost(&(&request.body(()).unwrap()).into())
/// };
/// assert_eq!(cost(Method::GET, "/search?q=1", "0"), 100.into());
/// assert_eq!(cost(Method::DELETE, "/search", "0"), 1.into());
/// assert_eq!(cost(Method::POST, "/upload/7", "2500"), 3.into());
/// assert_eq!(cost(Method::POST, "/export/2026", "0"), 500.into());
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// A constant cost above a quota is an error when the layer is built.
#[derive(Clone)]
pub struct RouteCosts {
    /// The index in `routes`.
    router: matchit::Router<usize>,
    routes: Vec<Route>,
    otherwise: Arc<dyn CostFunction>,
}

/// The costs of a route. `None` is any method.
#[derive(Clone)]
struct Route {
    pattern: Box<str>,
    costs: Vec<(Option<Method>, Arc<dyn CostFunction>)>,
}

impl RouteCosts {
    /// Creates a table without routes, in which every request costs 1.
    #[expect(clippy::new_without_default, reason = "`default` would hide the cost of 1")]
    pub fn new() -> Self {
        Self { router: matchit::Router::new(), routes: Vec::new(), otherwise: Arc::new(1) }
    }

    /// Sets the cost of requests for this path by any method: quota units, 0 to 2^32-1, [`Costs`] with an amount for each policy,
    /// or another [`CostFunction`].
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidRoute`] unless the route begins with `/` and has no segment that begins with `:` or `*`, which
    /// is the syntax of axum 0.7; or if it has more than 25 parameters, contains `?`, `#`, ASCII white space or an ASCII control character, which no
    /// path does, if its cost is already set, if it cannot be parsed, or if it conflicts with an earlier route.
    pub fn route(self, route: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.with(None, route, Arc::new(cost))
    }

    /// Sets the cost of requests for this path by this method; see [`route`](Self::route).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`route`](Self::route).
    pub fn method(self, method: Method, route: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.with(Some(method), route, Arc::new(cost))
    }

    /// Sets the cost of GET and HEAD requests for this path; see [`route`](Self::route).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`route`](Self::route).
    pub fn get(self, route: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.method(Method::GET, route, cost)
    }

    /// Sets the cost of POST requests for this path; see [`route`](Self::route).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`route`](Self::route).
    pub fn post(self, route: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.method(Method::POST, route, cost)
    }

    /// Sets the cost of PUT requests for this path; see [`route`](Self::route).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`route`](Self::route).
    pub fn put(self, route: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.method(Method::PUT, route, cost)
    }

    /// Sets the cost of PATCH requests for this path; see [`route`](Self::route).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`route`](Self::route).
    pub fn patch(self, route: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.method(Method::PATCH, route, cost)
    }

    /// Sets the cost of DELETE requests for this path; see [`route`](Self::route).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`route`](Self::route).
    pub fn delete(self, route: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.method(Method::DELETE, route, cost)
    }

    /// Sets the cost of calls of one gRPC method, for example `.grpc("shop.v1.Orders", "List", 10)`. The path of the call is
    /// `/shop.v1.Orders/List`.
    ///
    /// ```
    /// use tower_sliding_window::RouteCosts;
    ///
    /// let costs = RouteCosts::new()
    ///     .grpc_service("shop.v1.Orders", 2)? // in tonic: OrdersServer::<T>::NAME
    ///     .grpc("shop.v1.Orders", "List", 10)?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidRoute`] unless both names consist of ASCII letters, digits, `_` and `.`, or if the cost is
    /// already set.
    pub fn grpc(self, service: &str, method: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.route(&grpc_route(service, Some(method))?, cost)
    }

    /// Sets the cost of calls of all methods of a gRPC service that have no cost of their own.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`grpc`](Self::grpc).
    pub fn grpc_service(self, service: &str, cost: impl CostFunction) -> Result<Self, ConfigError> {
        self.route(&grpc_route(service, None)?, cost)
    }

    /// Sets the cost of all other requests: quota units, 0 to 2^32-1, [`Costs`], or another [`CostFunction`]. The default is 1.
    #[must_use]
    pub fn otherwise(self, cost: impl CostFunction) -> Self {
        Self { otherwise: Arc::new(cost), ..self }
    }

    fn with(
        mut self,
        method: Option<Method>,
        route: &str,
        cost: Arc<dyn CostFunction>,
    ) -> Result<Self, ConfigError> {
        let pattern = Pattern::new(route)?;
        if let Some(known) = self.routes.iter_mut().find(|known| *known.pattern == *route) {
            if known.costs.iter().any(|(of, _)| *of == method) {
                let of = method.as_ref().map_or("any method", Method::as_str);
                return Err(pattern.error(format!("its cost for {of} is set twice")));
            }
            known.costs.push((method, cost));
        } else {
            pattern.insert(&mut self.router, self.routes.len())?;
            self.routes.push(Route { pattern: route.into(), costs: vec![(method, cost)] });
        }
        Ok(self)
    }

    /// Calls `each` with every cost, and with the name of its requests, such as `GET /search`.
    fn each(&self, mut each: impl FnMut(&str, &dyn CostFunction)) {
        for Route { pattern, costs } in &self.routes {
            for (method, cost) in costs {
                match method {
                    Some(method) => each(&format!("{method} {pattern}"), cost),
                    None => each(pattern, cost),
                }
            }
        }
    }
}

/// Returns the route of a gRPC method, or of all methods of a service.
fn grpc_route(service: &str, method: Option<&str>) -> Result<String, ConfigError> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
    };
    let route = format!("/{service}/{}", method.unwrap_or("{method}"));
    if is_name(service) && method.is_none_or(is_name) {
        Ok(route)
    } else {
        let reason = "the names of a gRPC service and method must be ASCII letters, digits, `_` and `.`";
        Err(ConfigError::InvalidRoute { route, reason: reason.to_owned() })
    }
}

impl Route {
    fn cost(&self, method: &Method) -> Option<&Arc<dyn CostFunction>> {
        let of = |method: Option<&Method>| {
            self.costs.iter().find(|(of, _)| of.as_ref() == method).map(|(_, cost)| cost)
        };
        // As in axum, a handler of GET also handles HEAD.
        let get = || if *method == Method::HEAD { of(Some(&Method::GET)) } else { None };
        of(Some(method)).or_else(get).or_else(|| of(None))
    }
}

impl CostFunction for RouteCosts {
    fn cost(&self, head: &Head<'_>) -> Costs {
        let route = self.router.at(head.uri.path()).ok().and_then(|found| self.routes.get(*found.value));
        route.and_then(|route| route.cost(head.method)).unwrap_or(&self.otherwise).cost(head)
    }

    fn constants(&self, each: &mut dyn FnMut(&str, &Costs)) {
        self.each(|requests, cost| cost.constants(&mut |_, costs| each(requests, costs)));
        self.otherwise.constants(&mut |_, costs| each("all other routes", costs));
    }
}

/// Shows every route with its cost. A cost that depends on the request is shown as `..`.
impl fmt::Debug for RouteCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |cost: &dyn CostFunction| {
            let mut text = String::new();
            cost.constants(&mut |_, costs| text = costs.summary());
            if text.is_empty() { "..".to_owned() } else { text }
        };
        let mut map = f.debug_map();
        self.each(|requests, cost| {
            map.entry(&format_args!("{requests}"), &format_args!("{}", shown(cost)));
        });
        map.entry(&format_args!("otherwise"), &format_args!("{}", shown(&self.otherwise))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::by_content_length;

    fn cost(costs: &RouteCosts, method: &Method, path: &str) -> Costs {
        costs.cost(&(&http::Request::builder().method(method).uri(path).body(()).unwrap()).into())
    }

    #[test]
    fn conflicting_or_invalid_route_is_an_error() {
        let costs = RouteCosts::new().route("/a/{x}", 2).unwrap();
        assert_eq!(
            costs.clone().route("/a/{y}", 3).unwrap_err().to_string(),
            r#"route "/a/{y}": Insertion failed due to conflict with previously registered route: /a/{x}"#
        );
        assert!(costs.clone().route("/{a", 3).is_err());
        for (route, reason) in [
            ("search", "it must begin with `/`"),
            ("", "it must begin with `/`"),
            ("/users/:id", r#"segment ":id" has the syntax of axum 0.7: write `{name}`"#),
            ("/search?type=full", "it must be a path without a query, and no path contains `?`"),
            ("/search ", "no path contains ' '"),
            ("/a#b", "no path contains '#'"),
            ("/a\n", "no path contains '\\n'"),
            ("/{a}\t{{", "no path contains '\\t'"),
            ("/files/*path", r#"segment "*path" has the syntax of axum 0.7: write `{*name}`"#),
            ("/a/{x}", "its cost for any method is set twice"),
        ] {
            let error = costs.clone().route(route, 3).unwrap_err();
            assert!(matches!(error, ConfigError::InvalidRoute { .. }), "{error:?}");
            assert_eq!(error.to_string(), format!("route {route:?}: {reason}"));
        }
        // The name of a parameter is in no path.
        assert!(costs.clone().route("/b/{user id?}/{{c}}", 3).is_ok());
        // A path may contain any character beyond ASCII.
        assert!(costs.clone().route("/a\u{a0}b", 3).is_ok());
        assert_eq!("/a\u{a0}b".parse::<http::Uri>().unwrap().path(), "/a\u{a0}b");
        // The most that `matchit` can count.
        let route = |parameters| (0..parameters).map(|i| format!("/{{p{i}}}")).collect::<String>();
        assert!(costs.clone().route(&route(25), 3).is_ok());
        let error = costs.clone().route(&route(26), 3).unwrap_err().to_string();
        assert!(error.ends_with("it must have at most 25 parameters"), "{error}");
        let error = costs.get("/a/{x}", 1).unwrap().get("/a/{x}", 1).unwrap_err();
        assert_eq!(error.to_string(), r#"route "/a/{x}": its cost for GET is set twice"#);
        for (service, method) in [("", "List"), ("shop.Orders", ""), ("shop/Orders", "List"), ("a", "{x}")] {
            let error = RouteCosts::new().grpc(service, method, 2).unwrap_err();
            assert!(matches!(error, ConfigError::InvalidRoute { .. }), "{error:?}");
        }
    }

    #[test]
    fn unlisted_path_costs_other_amount() {
        let costs = RouteCosts::new().route("/free", 0).unwrap().otherwise(3);
        let cost = |path: &str| cost(&costs, &Method::GET, path);
        assert_eq!((cost("/free"), cost("/free/"), cost("/")), (0.into(), 3.into(), 3.into()));
    }

    #[test]
    fn method_is_chosen_after_route() {
        let costs = RouteCosts::new().route("/a/{x}", 2).unwrap().get("/a/{x}", 3).unwrap();
        let costs = costs.post("/a/b", 4).unwrap().method(Method::HEAD, "/a/b", 5).unwrap().otherwise(9);
        for (method, path, units) in [
            (Method::GET, "/a/c", 3),
            (Method::HEAD, "/a/c", 3),
            (Method::POST, "/a/c", 2),
            (Method::POST, "/a/b", 4),
            (Method::HEAD, "/a/b", 5),
            // The more specific route has no cost for GET.
            (Method::GET, "/a/b", 9),
        ] {
            assert_eq!(cost(&costs, &method, path), units.into(), "{method} {path}");
        }
    }

    /// The upgrade is a GET over HTTP/1.1, and a CONNECT over HTTP/2 (RFC 8441).
    #[test]
    fn route_sets_cost_of_websocket_over_any_http_version() {
        let [any, get] = [RouteCosts::new().route("/ws", 5), RouteCosts::new().get("/ws", 5)];
        let costs =
            |table: &RouteCosts| [Method::GET, Method::CONNECT].map(|method| cost(table, &method, "/ws"));
        assert_eq!(costs(&any.unwrap()), [5, 5].map(Costs::from));
        assert_eq!(costs(&get.unwrap()), [5, 1].map(Costs::from));
    }

    #[test]
    fn route_with_parameter_matches_other_spelling() {
        let costs = RouteCosts::new().route("/files/{*path}", 1).unwrap();
        let costs = costs.route("/files/big", 100).unwrap().otherwise(100);
        let of = |path| cost(&costs, &Method::GET, path);
        assert_eq!(["/files/big", "/files/%62ig", "/%66iles/big"].map(of), [100, 1, 100].map(Costs::from));
    }

    #[test]
    fn debug_shows_routes() {
        let costs = RouteCosts::new().get("/search", 100).unwrap().route("/search", 5).unwrap();
        let costs = costs.post("/upload/{id}", by_content_length(1024).unwrap()).unwrap();
        let costs = costs.delete("/all", Costs::new().policy("requests", 1).policy("tokens", 50)).unwrap();
        assert_eq!(
            format!("{costs:?}"),
            "{GET /search: 100, /search: 5, POST /upload/{id}: .., DELETE /all: requests=1 tokens=50, otherwise: 1}"
        );
    }
}
