//! The address of the client, as trusted proxies report it.

use std::{net::IpAddr, sync::Arc};

use super::{
    KeyError, KeyExtractor, PartitionKey,
    address::{AddressGroups, Networks, peer_address},
    forwarded::ForwardedHeader,
    kinds,
};
use crate::{error::ConfigError, head::Head, parameter::TextList};

/// The client's address as the key. Returned by [`client_ip`].
#[derive(Clone, Debug, Default)]
pub struct ClientIp {
    proxies: Option<TrustedProxies>,
    groups: AddressGroups,
}

/// Counts by the address of the client, as trusted proxies report it.
///
/// Without [`behind`](ClientIp::behind), no header is trusted: the client is the peer, as in [`peer_ip`](super::peer_ip).
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, key::{TrustedProxies, client_ip}};
///
/// let proxies = TrustedProxies::networks(["192.0.2.10", "2001:db8:7::/48"])?;
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("requests", 100, Duration::from_secs(60))?)
///     .key(client_ip().behind(proxies))
///     .build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// IPv6 addresses are grouped by their /64 network, because one host owns a whole network. Link-local addresses, `fe80::/10`, are not
/// grouped, because all hosts of a link share this network. An IPv4 address that is
/// [embedded in an IPv6 address](crate::guide::keys#ipv4-addresses-in-ipv6-addresses) counts as the IPv4 address.
///
/// A malformed entry between the service and the client is [`KeyError::Malformed`]. If a trusted proxy sends no header, the
/// request has no key, and the [rule for missing keys](super::MissingKey) applies. If the address of the peer is needed and not
/// available, the server is misconfigured, as for [`peer_ip`](super::peer_ip).
pub fn client_ip() -> ClientIp {
    ClientIp::default()
}

/// The proxies in front of this service, which are trusted to report addresses: by their networks, or by their number.
///
/// [`networks`](Self::networks) is safer, because it verifies the peer. With [`hops`](Self::hops), a client that reaches the
/// service directly can write any address.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    trust: Trust,
    header: ForwardedHeader,
}

#[derive(Clone, Debug)]
enum Trust {
    Networks(Arc<Networks>),
    Hops(u8),
}

impl TrustedProxies {
    /// Trusts the proxies in these networks: IP addresses, or networks in CIDR notation such as `10.0.0.0/8`.
    ///
    /// If the peer is not in one of the networks, the client is the peer, and the header is ignored. Otherwise, the header is
    /// read from right to left. The client is the first address that is not in one of the networks, or the leftmost address if
    /// all of them are. From a header with one address, the client is this address.
    ///
    /// **A client in one of these networks chooses its own address**, and gets a new quota for each: state the addresses of the
    /// proxies alone, if you know them. [`LOOPBACK_NETWORKS`](super::LOOPBACK_NETWORKS) and
    /// [`PRIVATE_NETWORKS`](super::PRIVATE_NETWORKS) are lists for proxies of unknown addresses that alone can connect.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] for a text that is not a network, and [`ConfigError::TrustedProxies`] without a network,
    /// or if the networks contain all addresses of IPv4 or of IPv6. Otherwise, every client could write its own address.
    pub fn networks(networks: impl TextList) -> Result<Self, ConfigError> {
        let networks = Networks::parse(networks)?;
        let reason = if networks.is_empty() {
            "there must be at least one network".to_owned()
        } else if let Some(network) = networks.all_addresses() {
            format!(
                "{network} contains every client, so each could write its own address: state the networks of your proxies only"
            )
        } else {
            return Ok(Self::new(Trust::Networks(Arc::new(networks))));
        };
        Err(ConfigError::TrustedProxies { reason })
    }

    /// Trusts this number of proxies, 1 to 255. Each of them appends one entry to the header.
    ///
    /// The client is the entry at this position from the right. A header with fewer entries is malformed. From a header with
    /// one address, the client is this address.
    ///
    /// **The peer is not verified.** Accept connections only from your proxies, for example by a firewall. Every request must
    /// pass the same number of proxies. A Google Cloud load balancer appends two entries: the client and its own address.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::TrustedProxies`] for 0.
    pub fn hops(proxies: u8) -> Result<Self, ConfigError> {
        if proxies == 0 {
            let reason = "0 hops: the number of proxies must be 1 to 255".to_owned();
            return Err(ConfigError::TrustedProxies { reason });
        }
        Ok(Self::new(Trust::Hops(proxies)))
    }

    /// Sets the header in which these proxies report the address. The default is [`ForwardedHeader::XForwardedFor`].
    #[must_use]
    pub fn header(self, header: ForwardedHeader) -> Self {
        Self { header, ..self }
    }

    fn new(trust: Trust) -> Self {
        Self { trust, header: ForwardedHeader::default() }
    }

    /// Returns the client's address in canonical form, or `None` if there is no header.
    fn client(&self, head: &Head<'_>) -> Result<Option<IpAddr>, KeyError> {
        let mut client = None;
        match &self.trust {
            Trust::Networks(networks) => {
                let peer = peer_address(head.extensions)?;
                if !networks.contains(peer) {
                    return Ok(Some(peer));
                }
                self.header.walk(head.headers, |address| {
                    client = Some(address);
                    networks.contains(address)
                })?;
            }
            Trust::Hops(hops) => {
                let hops = if self.header.is_list() { *hops } else { 1 };
                let mut entries = 0;
                self.header.walk(head.headers, |address| {
                    client = Some(address);
                    entries += 1;
                    entries < hops
                })?;
                if (1..hops).contains(&entries) {
                    return Err(self.header.malformed("it has fewer entries than there are trusted proxies"));
                }
            }
        }
        Ok(client)
    }
}

impl ClientIp {
    /// Trusts these proxies to report the address of the client.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
        Self { proxies: Some(proxies), ..self }
    }

    /// Groups IPv6 addresses by a prefix of this many bits. The default is 64.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the prefix is 1 to 128.
    pub fn ipv6_prefix(self, prefix: u8) -> Result<Self, ConfigError> {
        Ok(Self { groups: self.groups.with_ipv6_prefix(prefix)?, ..self })
    }

    /// Counts IPv6 addresses of this prefix by the IPv4 address that a NAT64 translator has embedded in them, as
    /// [`PeerIp::nat64_prefix`](super::PeerIp::nat64_prefix) does. Trusted proxies and exempt networks are not affected.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the prefix has 32, 40, 48, 56, 64 or 96 bits, of which bits 64 to 71 are zero.
    pub fn nat64_prefix(self, prefix: &str) -> Result<Self, ConfigError> {
        Ok(Self { groups: self.groups.with_nat64_prefix(prefix)?, ..self })
    }

    /// Returns the address of the client, in canonical form and not grouped, or `None` if a trusted proxy has sent no header. In
    /// this form, an IPv4-mapped IPv6 address is the IPv4 address.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`client_ip`].
    pub fn address(&self, head: &Head<'_>) -> Result<Option<IpAddr>, KeyError> {
        match &self.proxies {
            Some(proxies) => proxies.client(head),
            None => peer_address(head.extensions).map(Some),
        }
    }

    /// Returns the key of a client of this address, for example to [reset](crate::Limiter::reset) its usage.
    pub fn key_for(&self, address: IpAddr) -> PartitionKey {
        PartitionKey::new(kinds::CLIENT_IP, self.groups.group(address).to_string())
    }

    /// Returns a condition for [`RateLimitLayerBuilder::exempt`](crate::RateLimitLayerBuilder::exempt): whether the address of the client is in one of these
    /// networks. A request whose address cannot be read is not exempt. Without [`behind`](Self::behind), this is the address of the
    /// peer: behind a proxy in one of these networks, every request is exempt.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, key::{TrustedProxies, client_ip}};
    ///
    /// let client = client_ip().behind(TrustedProxies::networks(["192.0.2.10"])?);
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 100, Duration::from_secs(60))?)
    ///     .exempt(client.clone().is_in(["192.0.2.0/24", "2001:db8:1::/48"])?)
    ///     .key(client)
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] for a text that is not an IP address or a network in CIDR notation.
    pub fn is_in<L: TextList>(
        self,
        networks: L,
    ) -> Result<impl Fn(&Head<'_>) -> bool + Send + Sync + use<L>, ConfigError> {
        let networks = Networks::parse(networks)?;
        Ok(move |head: &Head<'_>| {
            self.address(head).ok().flatten().is_some_and(|address| networks.contains(address))
        })
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        Ok(self.address(head)?.map(|address| self.key_for(address)))
    }

    fn missing(&self, _head: &Head<'_>) -> String {
        let header = self.proxies.as_ref().map(|proxies| proxies.header.name());
        header.map(|name| format!("header {name:?}")).unwrap_or_default()
    }

    fn is_peer_address(&self) -> bool {
        self.proxies.is_none()
    }
}
