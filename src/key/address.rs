//! Addresses: the peer of a request, networks, and groups of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::Extensions;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::KeyError;
use crate::{error::ConfigError, parameter::TextList};

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

/// Which addresses count as one client. Only keys are grouped: trust and exemptions compare the address as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressGroups {
    /// The length in bits of the prefix that groups IPv6 addresses: 1 to 128.
    ipv6_prefix: u8,
    /// The prefix of a translator, besides the well-known one.
    nat64: Option<Ipv6Net>,
}

impl AddressGroups {
    /// Groups IPv6 addresses by a prefix of this many bits.
    pub(super) fn with_ipv6_prefix(self, prefix: u8) -> Result<Self, ConfigError> {
        if !(1..=128).contains(&prefix) {
            return Err(ConfigError::invalid_value("IPv6 prefix", format_args!("/{prefix}"), "/1 to /128"));
        }
        Ok(Self { ipv6_prefix: prefix, ..self })
    }

    /// Groups the addresses of this prefix by the IPv4 address that they embed.
    pub(super) fn with_nat64_prefix(self, prefix: &str) -> Result<Self, ConfigError> {
        // RFC 6052, section 2.2: bits 64 to 71 are zero.
        let is_valid = |net: &Ipv6Net| {
            [32, 40, 48, 56, 64, 96].contains(&net.prefix_len()) && net.network().octets()[8] == 0
        };
        match prefix.parse::<Ipv6Net>() {
            Ok(net) if is_valid(&net) => Ok(Self { nat64: Some(net), ..self }),
            _ => Err(ConfigError::invalid_text(
                "NAT64 prefix",
                prefix,
                "an IPv6 network of /32, /40, /48, /56, /64 or /96 whose bits 64 to 71 are zero, such as \"2001:db8:64::/96\"",
            )),
        }
    }

    /// Returns the IPv4 address of a client, also if an IPv6 address embeds it, its link-local address, or the first address of its IPv6
    /// network.
    pub(super) fn group(self, address: IpAddr) -> IpAddr {
        // Embedded addresses first: masked as IPv6, all of IPv4 would be one group.
        match address.to_canonical() {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => match self.embedded(v6) {
                Some(v4) => v4.into(),
                // RFC 4291, section 2.5.6: all hosts of a link have the same prefix.
                None if v6.is_unicast_link_local() => v6.into(),
                None => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - self.ipv6_prefix))).into(),
            },
        }
    }

    /// Returns the IPv4 address that an IPv6 address embeds, if only this IPv4 host receives the replies to it. All bits
    /// beside it are ignored: the host can choose some of them.
    fn embedded(self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        if let Some(net) = self.nat64.filter(|net| net.contains(&address)) {
            // RFC 6052, section 2.2: the address is after the prefix, and around the octet of bits 64 to 71.
            let octets = address.octets().into_iter().enumerate().skip(usize::from(net.prefix_len() / 8));
            let mut octets = octets.filter(|(i, _)| *i != 8).map(|(_, octet)| octet);
            return Some(std::array::from_fn::<u8, 4, _>(|_| octets.next().unwrap_or_default()).into());
        }
        match address.segments() {
            // RFC 6052, section 2.1: the well-known prefix 64:ff9b::/96. RFC 2765, section 2.1: IPv4-translated, ::ffff:0:0:0/96.
            // RFC 3056, section 2: 6to4, where an IPv4 host has a whole /48.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low]
            | [0, 0, 0, 0, 0xffff, 0, high, low]
            | [0x2002, high, low, ..] => Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))),
            _ => None,
        }
    }
}

impl Default for AddressGroups {
    fn default() -> Self {
        Self { ipv6_prefix: 64, nat64: None }
    }
}

/// The loopback networks, `127.0.0.0/8` and `::1`: for a proxy on the same host.
///
/// Each process of the host that reaches the service chooses its own address, as each client in a trusted network does.
pub const LOOPBACK_NETWORKS: &[&str] = &["127.0.0.0/8", "::1"];

/// The private networks: `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16` (RFC 1918) and the unique local addresses `fc00::/7`
/// (RFC 4193).
///
/// As trusted proxies, they let each client in a private network choose its own address, such as another container, a
/// colleague, or a device in a VPN. Use them if only proxies can connect to the service, and the addresses of the proxies are not
/// known. Otherwise, state the addresses of the proxies.
///
/// ```
/// use tower_sliding_window::key::{LOOPBACK_NETWORKS, PRIVATE_NETWORKS, TrustedProxies, client_ip};
///
/// let networks = [LOOPBACK_NETWORKS, PRIVATE_NETWORKS, &["192.0.2.10"]].concat();
/// let by_client = client_ip().behind(TrustedProxies::networks(networks)?);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// The list contains neither [`LOOPBACK_NETWORKS`], nor link-local addresses (`169.254.0.0/16` and `fe80::/10`, which every host on
/// the link has), nor the shared addresses of carriers and some clouds (`100.64.0.0/10`).
pub const PRIVATE_NETWORKS: &[&str] = &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];

/// A set of networks.
#[derive(Clone, Debug)]
pub(super) struct Networks(Box<[IpNet]>);

impl Networks {
    /// Parses addresses and networks in CIDR notation.
    pub(super) fn parse(networks: impl TextList) -> Result<Self, ConfigError> {
        let parse = |text: &str| {
            let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
            let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
            // `IpNet` ignores the leading zero of "010.0.0.0/8", with which other programs write an octal number.
            let network =
                text.parse::<IpNet>().ok().filter(|_| text.split('/').next().is_some_and(is_address));
            let network = network.or_else(address).map(canonical);
            let valid = "an IP address or a network in CIDR notation, such as \"10.0.0.0/8\"";
            network.ok_or_else(|| ConfigError::invalid_text("network", text, valid))
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

    /// The examples of RFC 6052, section 2.4, and those of the other forms.
    #[test]
    fn embedded_address_is_that_of_its_rfc() {
        let expected: IpAddr = "192.0.2.33".parse().unwrap();
        for (prefix, address) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b:1:fffe::/96", "64:ff9b:1:fffe::192.0.2.33"),
        ] {
            let address = address.parse().unwrap();
            let groups = AddressGroups::default().with_nat64_prefix(prefix).unwrap();
            assert_eq!(groups.group(address), expected, "{prefix}");
            assert_ne!(AddressGroups::default().group(address), expected, "{prefix} must be stated");
        }
        for address in
            ["64:ff9b::192.0.2.33", "::ffff:0:192.0.2.33", "2002:c000:221:7::1", "::ffff:192.0.2.33"]
        {
            assert_eq!(AddressGroups::default().group(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn link_local_addresses_are_not_grouped() {
        let group = |groups: AddressGroups, text: &str| groups.group(text.parse().unwrap()).to_string();
        let wide = AddressGroups::default().with_ipv6_prefix(48).unwrap();
        for groups in [AddressGroups::default(), wide] {
            for address in ["fe80::1", "fe80::2", "febf:ffff::1:2:3:4"] {
                assert_eq!(group(groups, address), address);
            }
            // The networks beside it.
            for (address, network) in [("fe7f::1", "fe7f::"), ("fec0::1", "fec0::"), ("fd00::1", "fd00::")] {
                assert_eq!(group(groups, address), network);
            }
        }
    }

    #[test]
    fn other_address_embeds_no_ipv4_address() {
        for address in
            ["64:ff9b:1::c000:221", "64:ff9b::1:c000:221", "::c000:221", "2001:0:c000:221::", "2003::"]
        {
            let address = address.parse().unwrap();
            assert!(AddressGroups::default().group(address).is_ipv6(), "{address}");
        }
    }

    #[test]
    fn invalid_nat64_prefix_is_an_error() {
        for prefix in
            ["", "2001:db8::", "2001:db8::/72", "2001:db8::/128", "192.0.2.0/32", "2001:db8::100:0:0:0/96"]
        {
            let error = AddressGroups::default().with_nat64_prefix(prefix).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    r#"NAT64 prefix {prefix:?}: it must be an IPv6 network of /32, /40, /48, /56, /64 or /96 whose bits 64 to 71 are zero, such as "2001:db8:64::/96""#
                )
            );
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
