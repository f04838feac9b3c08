//! Keys from the route of a request.

use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::{KeyError, KeyExtractor, PartitionKey, kinds};
use crate::{error::ConfigError, head::Head, parameter::TextList, pattern::Pattern};

/// Counts by the route that axum has matched, such as `/users/{id}`: one key for all users, unlike the path.
///
/// The extractor reads axum's `MatchedPath`. Add the layer with `Router::layer`, `Router::route_layer` or `MethodRouter::layer`.
/// A layer around the whole router runs before axum matches a route. Two kinds of requests have no key of this kind: a request to no route,
/// which the fallback answers, and a request to a service that `Router::nest_service` has mounted, for which axum 0.8 sets no
/// `MatchedPath`. Set [`missing_key`](crate::RateLimitLayerBuilder::missing_key), or use [`or`](KeyExtractor::or). For the fallback, you can
/// also add the layer with `Router::route_layer`. The routes of `Router::nest` have their whole path.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_sliding_window::{KeyExtractor, MemoryBackend, Policy, RateLimitLayer, key, peer_ip};
///
/// let route = key::matched_route().or(key::constant("route", "none"));
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("per-address-and-route", 20, Duration::from_secs(1))?)
///     .key(peer_ip().and(route))
///     .build()?;
/// let app: Router = Router::new().route("/users/{id}", get(async || "hello")).layer(limits);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub fn matched_route() -> impl KeyExtractor + Clone {
    let key = |head: &Head<'_>| {
        let route = head.extensions.get::<axum::extract::MatchedPath>();
        route.map(|route| PartitionKey::matched_route(route.as_str()))
    };
    super::KeyClosure::new(key, "matched route")
}

/// A parameter of the path as the key. Returned by [`path_param`].
#[derive(Clone)]
pub struct PathParam {
    name: Box<str>,
    kind: Box<str>,
    routes: Arc<matchit::Router<()>>,
}

/// Counts by a parameter of the path, such as the room in `/rooms/{room}/messages`.
///
/// The routes are a list of texts, in the syntax of axum 0.8: `/users/{id}`, `/files/{*path}`. They are matched against the path that the
/// layer receives: inside a nested router, axum has removed the prefix. A request to any other path has no key of this kind, and neither
/// has one with an empty value. The value is percent-decoded, so `%61lice` and `alice` are one key.
///
/// **The client chooses the path.** If it can invent a new value, it gets a new quota. Limit by a parameter alone only if an
/// earlier layer rejects wrong values. Otherwise, also limit the address. It can also write the value of another client, and use up
/// its quota: for a tenant, use [`extension`](super::extension()) after the authentication.
///
/// ```
/// use tower_sliding_window::{KeyExtractor, PartitionKey, key};
///
/// let by_room = key::path_param("room", ["/rooms/{room}", "/rooms/{room}/{*rest}"])?;
///
/// let request = http::Request::get("/rooms/lobby/messages?page=2").body(()).unwrap();
/// let room = by_room.extract(&(&request).into()).unwrap();
/// assert_eq!(room, Some(PartitionKey::new("path:room", "lobby")));
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// # Errors
///
/// Returns [`ConfigError::InvalidRoute`] unless each route begins with `/`, has no segment that begins with `:` or `*`, and contains
/// the parameter; or if a route has more than 25 parameters, has a brace that is not closed, cannot be parsed, contains `?`, `#`, ASCII
/// white space or an ASCII control character, or conflicts with another one. Returns [`ConfigError::InvalidValue`] if there are no routes.
pub fn path_param(name: &str, routes: impl TextList) -> Result<PathParam, ConfigError> {
    let (mut router, mut is_empty) = (matchit::Router::new(), true);
    for route in routes {
        is_empty = false;
        let pattern = Pattern::new(route.as_ref())?;
        if !pattern.has_parameter(name) {
            return Err(pattern.error(format!("it must contain the parameter {{{name}}}")));
        }
        pattern.insert(&mut router, ())?;
    }
    if is_empty {
        return Err(ConfigError::invalid_value("path_param", "no routes", "at least one route"));
    }
    Ok(PathParam { name: name.into(), kind: kinds::path_param(name), routes: Arc::new(router) })
}

impl KeyExtractor for PathParam {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        let Ok(found) = self.routes.at(head.uri.path()) else { return Ok(None) };
        let value = found.params.get(&*self.name).filter(|value| !value.is_empty());
        Ok(value.map(|value| {
            let decoded: Vec<u8> = percent_decode_str(value).collect();
            PartitionKey::new(&self.kind, decoded)
        }))
    }

    fn missing(&self, _head: &Head<'_>) -> String {
        format!("path parameter {:?}", &*self.name)
    }
}

impl std::fmt::Debug for PathParam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathParam").field("name", &self.name).finish_non_exhaustive()
    }
}
