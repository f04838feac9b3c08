//! The address of the peer.

use std::net::IpAddr;

use super::{
    KeyError, KeyExtractor, PartitionKey,
    address::{AddressGroups, peer_address},
    kinds,
};
use crate::{error::ConfigError, head::Head};

/// The peer's address as the key. Returned by [`peer_ip`].
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    groups: AddressGroups,
}

/// Counts by the address of the peer, which a client cannot forge. Behind a proxy, this is the address of the proxy: use
/// [`client_ip`](super::client_ip). If most of the first 1,000 requests of a layer come from a proxy, the layer logs a
/// [warning](crate::guide::limits_nothing#warnings-at-run-time) (feature `tracing`).
///
/// IPv6 addresses are grouped by their /64 network, because one host owns a whole network. Link-local addresses, `fe80::/10`, are not
/// grouped, because all hosts of a link share this network. An IPv4 address that is
/// [embedded in an IPv6 address](crate::guide::keys#ipv4-addresses-in-ipv6-addresses) counts as the IPv4 address.
///
/// The extractor reads the address from the request's extensions: a `std::net::SocketAddr`, else axum's
/// `ConnectInfo<SocketAddr>` (feature `axum`; serve the app with `into_make_service_with_connect_info::<SocketAddr>()`, and
/// use `MockConnectInfo` in tests), else tonic's `TcpConnectInfo` (feature `tonic`). If there is no address, the server is
/// misconfigured, and the layer rejects the request with [`KeyError::Misconfigured`]. Requests without an address never share
/// a key.
pub fn peer_ip() -> PeerIp {
    PeerIp { groups: AddressGroups::default() }
}

impl PeerIp {
    /// Groups IPv6 addresses by a prefix of this many bits. The default is 64.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the prefix is 1 to 128.
    pub fn ipv6_prefix(self, prefix: u8) -> Result<Self, ConfigError> {
        Ok(Self { groups: self.groups.with_ipv6_prefix(prefix)? })
    }

    /// Counts IPv6 addresses of this prefix by the IPv4 address that a NAT64 translator has embedded in them (RFC 6052), such as
    /// `"2001:db8:64::/96"`. The [well-known prefix](crate::guide::keys#ipv4-addresses-in-ipv6-addresses) needs no call.
    ///
    /// State only a prefix whose addresses your network routes to the translator. A client with any other address of the
    /// prefix could use up the quota of an IPv4 client.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the prefix has 32, 40, 48, 56, 64 or 96 bits, of which bits 64 to 71 are zero.
    pub fn nat64_prefix(self, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self { groups: self.groups.with_nat64_prefix(prefix)? })
    }

    /// Returns the key of a peer of this address, for example to [reset](crate::Limiter::reset) its usage.
    pub fn key_for(&self, address: IpAddr) -> PartitionKey {
        PartitionKey::new(kinds::PEER_IP, self.groups.group(address).to_string())
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        Ok(Some(self.key_for(peer_address(head.extensions)?)))
    }

    fn is_peer_address(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn key(extractor: PeerIp, address: &str) -> PartitionKey {
        let mut request = http::Request::new(());
        request.extensions_mut().insert(SocketAddr::new(address.parse().unwrap(), 1234));
        extractor.extract(&(&request).into()).unwrap().unwrap()
    }

    #[test]
    fn mapped_address_becomes_ipv4_before_masking() {
        assert_eq!(key(peer_ip(), "::ffff:192.0.2.1"), key(peer_ip(), "192.0.2.1"));
        assert_ne!(key(peer_ip(), "::ffff:192.0.2.1"), key(peer_ip(), "::ffff:192.0.2.2"));
    }

    #[test]
    fn ipv6_is_grouped_by_prefix() {
        assert_eq!(key(peer_ip(), "2001:db8::1"), key(peer_ip(), "2001:db8::ffff:0:0:2"));
        assert_ne!(key(peer_ip(), "2001:db8::1"), key(peer_ip(), "2001:db8:0:1::1"));
        let wide = peer_ip().ipv6_prefix(48).unwrap();
        assert_eq!(key(wide, "2001:db8::1"), key(wide, "2001:db8:0:1::1"));
        let exact = peer_ip().ipv6_prefix(128).unwrap();
        assert_ne!(key(exact, "2001:db8::1"), key(exact, "2001:db8::2"));
        for prefix in [0, 129] {
            let error = peer_ip().ipv6_prefix(prefix).unwrap_err();
            assert_eq!(error.to_string(), format!("IPv6 prefix /{prefix}: it must be /1 to /128"));
        }
    }

    #[test]
    fn missing_address_is_misconfigured() {
        let error = peer_ip().extract(&(&http::Request::new(())).into()).unwrap_err();
        assert!(matches!(error, KeyError::Misconfigured { .. }), "{error:?}");
    }
}
