//! Addresses: the peer of a request, networks, and groups of IPv6 addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::Extensions;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::KeyError;
use crate::error::ConfigError;

/// What the server needs, so that the address of the peer is in the request's extensions.
const AXUM: &str = if cfg!(feature = "axum") {
    "serve the app with `into_make_service_with_connect_info::<SocketAddr>()`"
} else {
    "enable the feature `axum` of tower-sliding-window, and serve the app with \
     `into_make_service_with_connect_info::<SocketAddr>()`"
};
const TONIC: &str = if cfg!(feature = "tonic") {
    "serve over TCP"
} else {
    "enable the feature `tonic` of tower-sliding-window, and serve over TCP"
};

/// Returns the canonical address of the peer: an IPv4-mapped IPv6 address becomes the IPv4 address.
pub(super) fn peer_address(extensions: &Extensions) -> Result<IpAddr, KeyError> {
    let plain = extensions.get::<SocketAddr>().copied();
    #[cfg(feature = "axum")]
    let plain = plain
        .or_else(|| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0))
        .or_else(|| extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| info.0));
    #[cfg(feature = "tonic")]
    let plain = plain.or_else(|| {
        extensions.get::<tonic::transport::server::TcpConnectInfo>().and_then(|info| info.remote_addr())
    });
    match plain {
        Some(address) => Ok(address.ip().to_canonical()),
        None => Err(KeyError::Misconfigured {
            what: format!(
                "the request's extensions contain no peer address: in axum, {AXUM}; in tonic, {TONIC}; elsewhere, insert a \
                 `std::net::SocketAddr`"
            ),
        }),
    }
}

/// The length in bits of the prefix that groups IPv6 addresses: 1 to 128, 64 by default.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    pub(super) fn new(prefix: u8) -> Result<Self, ConfigError> {
        if (1..=128).contains(&prefix) { Ok(Self(prefix)) } else { Err(ConfigError::Ipv6Prefix { prefix }) }
    }

    /// Returns the address itself, or the first address of its IPv6 network.
    pub(super) fn group(self, address: IpAddr) -> IpAddr {
        // Mapped addresses first: masked as IPv6, all of IPv4 would be one group.
        match address.to_canonical() {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - self.0))).into(),
        }
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

/// A set of networks.
#[derive(Clone, Debug)]
pub(super) struct Networks(Box<[IpNet]>);

impl Networks {
    /// Parses addresses and networks in CIDR notation.
    pub(super) fn parse(networks: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConfigError> {
        let parse = |text: &str| {
            let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
            let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
            // `IpNet` ignores the leading zero of "010.0.0.0/8", with which other programs write an octal number.
            let network =
                text.parse::<IpNet>().ok().filter(|_| text.split('/').next().is_some_and(is_address));
            let network = network.or_else(address).map(canonical);
            network.ok_or_else(|| ConfigError::Network { network: text.to_owned() })
        };
        let networks: Result<Vec<_>, _> = networks.into_iter().map(|text| parse(text.as_ref())).collect();
        Ok(Self(IpNet::aggregate(&networks?).into()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the network that contains all addresses of IPv4 or of IPv6, if there is one.
    pub(super) fn all_addresses(&self) -> Option<IpNet> {
        self.0.iter().find(|network| network.prefix_len() == 0).copied()
    }

    /// Returns whether a network contains this canonical address.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// Returns the IPv4 network for a network of IPv4-mapped IPv6 addresses.
fn canonical(network: IpNet) -> IpNet {
    let mapped = |v6: &Ipv6Net| {
        let prefix = v6.prefix_len().checked_sub(96)?;
        Ipv4Net::new(v6.network().to_ipv4_mapped()?, prefix).ok()
    };
    match network {
        IpNet::V6(v6) => mapped(&v6).map_or(network, IpNet::V4),
        IpNet::V4(_) => network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        let networks =
            Networks::parse(["10.1.2.3/8", "192.0.2.1", "2001:db8::/32", "::ffff:172.16.0.0/108"]).unwrap();
        let contains = |text: &str| networks.contains(text.parse::<IpAddr>().unwrap());
        for inside in ["10.0.0.0", "10.255.255.255", "192.0.2.1", "2001:db8:ffff::1", "172.31.0.1"] {
            assert!(contains(inside), "{inside}");
        }
        for outside in ["11.0.0.0", "192.0.2.2", "2001:db9::1", "172.32.0.1", "::1"] {
            assert!(!contains(outside), "{outside}");
        }
    }

    #[test]
    fn invalid_network_is_an_error() {
        for network in ["", "10.0.0.0/33", "localhost", "10.0.0.0/8 ", "2001:db8::/129", "010.0.0.0/8"] {
            let error = Networks::parse(["10.0.0.0/8", network]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    r#"network {network:?}: it must be an IP address or a network in CIDR notation, such as "10.0.0.0/8""#
                )
            );
        }
    }
}
