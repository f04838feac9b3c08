//! A constructor for each kind of built-in key: the same key as that of an extractor, from a value.

use std::net::IpAddr;

use http::Method;

use super::{
    PartitionKey, client_ip, header::canonical, kinds, partition::KeyValue, peer_ip, request::method_name,
};

/// # Keys of the built-in extractors
///
/// Use them to [look up](crate::Limiter::peek) or to [reset](crate::Limiter::reset) the usage of a key that a layer has made. The key
/// of [`extension`](super::extension()) or [`constant`](super::constant) is [`PartitionKey::new`] with the same kind.
impl PartitionKey {
    /// Returns the key that [`peer_ip`] makes for a peer of this address. For an extractor with other groups of addresses, use
    /// [`PeerIp::key_for`](super::PeerIp::key_for).
    pub fn peer_ip(address: IpAddr) -> Self {
        peer_ip().key_for(address)
    }

    /// Returns the key that [`client_ip`] makes for a client of this address. For an extractor with other groups of addresses, use
    /// [`ClientIp::key_for`](super::ClientIp::key_for).
    pub fn client_ip(address: IpAddr) -> Self {
        client_ip().key_for(address)
    }

    /// Returns the key that [`header`](super::header()) makes for a request with this value of the header.
    ///
    /// ```
    /// use tower_sliding_window::{KeyExtractor, PartitionKey, header};
    ///
    /// let request = http::Request::get("/").header("x-api-key", "alice").body(())?;
    /// let extracted = header("x-api-key")?.extract(&(&request).into())?;
    /// assert_eq!(extracted, Some(PartitionKey::header("X-Api-Key", "alice")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn header(name: &str, value: impl KeyValue) -> Self {
        let (name, value) = (name.to_ascii_lowercase(), value.as_ref().trim_ascii());
        // No request has a key of a value that is not valid.
        Self::new(&kinds::header(&name), canonical(&name, value).unwrap_or(value.into()))
    }

    /// Returns the key that [`cookie`](super::cookie()) makes for a request with this cookie. The value is percent-decoded.
    pub fn cookie(name: &str, value: impl KeyValue) -> Self {
        Self::new(&kinds::cookie(name), value)
    }

    /// Returns the key that [`path_param`](super::path_param) makes for a request with this parameter. The value is percent-decoded.
    pub fn path_param(name: &str, value: impl KeyValue) -> Self {
        Self::new(&kinds::path_param(name), value)
    }

    /// Returns the key that [`method`](super::method) makes for a request with this method.
    pub fn method(method: &Method) -> Self {
        Self::new(kinds::METHOD, method_name(method))
    }

    /// Returns the key that `key::matched_route` (feature `axum`) makes for a request to this route, such as `/users/{id}`.
    pub fn matched_route(route: &str) -> Self {
        Self::new(kinds::ROUTE, route)
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, request::Builder};

    use super::*;
    use crate::key::{self, KeyExtractor};

    fn extract(extractor: impl KeyExtractor, request: Builder) -> PartitionKey {
        extractor.extract(&(&request.body(()).unwrap()).into()).unwrap().unwrap()
    }

    #[test]
    fn constructor_and_extractor_make_same_key() {
        for address in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1:2:3:4", "64:ff9b::192.0.2.33"] {
            let address: IpAddr = address.parse().unwrap();
            let request = || Request::get("/").extension(std::net::SocketAddr::new(address, 1234));
            assert_eq!(extract(key::peer_ip(), request()), PartitionKey::peer_ip(address));
            assert_eq!(extract(key::client_ip(), request()), PartitionKey::client_ip(address));
            let (peer, client) =
                (key::peer_ip().ipv6_prefix(48).unwrap(), key::client_ip().ipv6_prefix(48).unwrap());
            assert_eq!(extract(peer, request()), peer.key_for(address));
            assert_eq!(extract(client.clone(), request()), client.key_for(address));
        }
        for (name, value) in [
            ("X-Api-Key", "alice"),
            ("x-api-key", " Alice "),
            ("authorization", "BEARER  abc"),
            ("Proxy-Authorization", "abc"),
        ] {
            let extracted = extract(key::header(name).unwrap(), Request::get("/").header(name, value));
            assert_eq!(extracted, PartitionKey::header(name, value), "{name}: {value}");
        }
        let request = Request::get("/").header("cookie", "id=%61lice");
        assert_eq!(extract(key::cookie("id").unwrap(), request), PartitionKey::cookie("id", "alice"));
        let by_room = key::path_param("room", ["/rooms/{room}"]).unwrap();
        assert_eq!(extract(by_room, Request::get("/rooms/a%2Fb")), PartitionKey::path_param("room", "a/b"));
        for method in [Method::GET, Method::PATCH, Method::from_bytes(b"INVENTED").unwrap()] {
            let extracted = extract(key::method(), Request::get("/").method(&method));
            assert_eq!(extracted, PartitionKey::method(&method));
        }
        let constant = extract(key::constant("limit", "global"), Request::get("/"));
        assert_eq!(constant, PartitionKey::new("limit", "global"));
        let by_user = key::extension("user", |user: &String| user.clone());
        let request = Request::get("/").extension("alice".to_owned());
        assert_eq!(extract(by_user, request), PartitionKey::new("user", "alice"));
    }
}
