//! IPv6 addresses that embed the IPv4 address of a client: one key for each IPv4 address, and no trust.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::Request;
use proptest::prelude::*;
use tower_sliding_window::{
    KeyExtractor, PartitionKey,
    key::{ClientIp, TrustedProxies, client_ip, peer_ip},
};

/// A way to embed an IPv4 address, with the NAT64 prefix that must be stated.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// The first bits of the address, up to this length.
    prefix: (&'static str, u32),
    /// Whether bits 64 to 71 are not a part of the IPv4 address (RFC 6052, section 2.2).
    skips_octet: bool,
    is_stated: bool,
}

const fn form(prefix: &'static str, length: u32) -> Form {
    Form { prefix: (prefix, length), skips_octet: false, is_stated: false }
}

const fn stated(prefix: &'static str, length: u32) -> Form {
    Form { prefix: (prefix, length), skips_octet: true, is_stated: true }
}

const MAPPED: Form = form("::ffff:0:0", 96);

const FORMS: [Form; 10] = [
    MAPPED,
    form("64:ff9b::", 96),
    form("::ffff:0:0:0", 96),
    form("2002::", 16),
    stated("2001:db8::", 32),
    stated("2001:db8:100::", 40),
    stated("2001:db8:122::", 48),
    stated("2001:db8:122:300::", 56),
    stated("2001:db8:122:344::", 64),
    stated("64:ff9b:1:fffe::", 96),
];

impl Form {
    /// Embeds an IPv4 address, bit by bit. All bits that do not belong to it or to the prefix are those of `other`.
    fn embed(self, v4: Ipv4Addr, other: u128) -> IpAddr {
        let (prefix, length) = self.prefix;
        let prefix = prefix.parse::<Ipv6Addr>().unwrap().to_bits();
        let mut left: Vec<bool> = (0..32).map(|bit| v4.to_bits() >> bit & 1 == 1).collect();
        let bits = (0..128).fold(0_u128, |bits, at| {
            let is_in_octet = self.skips_octet && (64..72).contains(&at);
            let of = |number: u128| number >> (127 - at) & 1 == 1;
            let bit = if at < length {
                of(prefix)
            } else if is_in_octet || left.is_empty() {
                of(other)
            } else {
                left.pop().unwrap()
            };
            bits << 1 | u128::from(bit)
        });
        Ipv6Addr::from_bits(bits).into()
    }

    fn client(self) -> ClientIp {
        let (prefix, length) = self.prefix;
        if self.is_stated {
            client_ip().nat64_prefix(&format!("{prefix}/{length}")).unwrap()
        } else {
            client_ip()
        }
    }

    /// Returns the key of a peer. Both extractors group it alike.
    fn key(self, peer: IpAddr) -> String {
        let request = request(peer, "");
        let value = |extractor: &dyn KeyExtractor| {
            let key: PartitionKey = extractor.extract(&(&request).into()).unwrap().unwrap();
            let (_kind, value) = key.parts().next().unwrap();
            String::from_utf8(value.to_vec()).unwrap()
        };
        let (prefix, length) = self.prefix;
        let of_peer = if self.is_stated {
            peer_ip().nat64_prefix(&format!("{prefix}/{length}")).unwrap()
        } else {
            peer_ip()
        };
        assert_eq!(value(&self.client()), value(&of_peer), "{self:?} {peer}");
        value(&of_peer)
    }

    fn check(self, v4: Ipv4Addr, different: Ipv4Addr, other: [u128; 2]) {
        let embedded = self.embed(v4, other[0]);
        assert_eq!(self.key(embedded), self.key(v4.into()), "{embedded} is {v4}");
        assert_eq!(self.key(self.embed(v4, other[1])), self.key(v4.into()), "{v4} has one key");
        let neighbour = self.embed(different, other[0]);
        assert_ne!(
            self.key(neighbour),
            self.key(embedded),
            "{embedded} and {neighbour} are different clients"
        );
        self.check_trust(v4, embedded);
    }

    /// Checks that trust in an IPv4 address is no trust in an address that embeds it, unless it is the same address.
    fn check_trust(self, v4: Ipv4Addr, embedded: IpAddr) {
        let claim = IpAddr::from([203, 0, 113, 9]);
        let proxies = TrustedProxies::networks([v4.to_string(), "127.0.0.1".to_owned()]).unwrap();
        let behind = self.client().behind(proxies);
        let is_mapped = self.prefix == MAPPED.prefix;
        let expected = if is_mapped { claim } else { embedded };
        // As the peer, and as an entry that a trusted proxy has appended.
        let from_peer = request(embedded, &claim.to_string());
        let from_entry = request([127, 0, 0, 1].into(), &format!("{claim}, {embedded}"));
        for request in [from_peer, from_entry] {
            assert_eq!(behind.address(&(&request).into()), Ok(Some(expected)), "trust in {v4}: {embedded}");
        }
        let is_exempt = self.client().is_in([v4.to_string()]).unwrap();
        assert_eq!(is_exempt(&(&request(embedded, "")).into()), is_mapped, "exemption of {v4}: {embedded}");
    }
}

fn request(peer: IpAddr, forwarded_for: &str) -> Request<()> {
    let mut request = Request::new(());
    request.headers_mut().insert("x-forwarded-for", forwarded_for.parse().unwrap());
    request.extensions_mut().insert(SocketAddr::new(peer, 4711));
    request
}

proptest! {
    #[test]
    fn embedded_address_is_one_client_and_not_trusted(v4: u32, flipped in 1..=u32::MAX, other: [u128; 2]) {
        for form in FORMS {
            form.check(v4.into(), (v4 ^ flipped).into(), other);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn each_bit_of_embedded_address_matters(v4: u32, other: [u128; 2]) {
        for (form, bit) in FORMS.into_iter().flat_map(|form| (0..32).map(move |bit| (form, bit))) {
            form.check(v4.into(), (v4 ^ 1 << bit).into(), other);
        }
    }
}

#[test]
fn table_of_embedded_addresses_is_grouped_by_ipv4() {
    for (address, group) in [
        ("::ffff:192.0.2.33", "192.0.2.33"),
        ("64:ff9b::192.0.2.33", "192.0.2.33"),
        ("::ffff:0:192.0.2.33", "192.0.2.33"),
        ("2002:c000:221::1", "192.0.2.33"),
        ("2002:c000:221:ffff:ffff:ffff:ffff:ffff", "192.0.2.33"),
        // No prefix is stated, so the local-use prefix of RFC 8215 is an IPv6 network.
        ("64:ff9b:1:fffe::192.0.2.33", "64:ff9b:1:fffe::"),
        ("64:ff9b:0:1::192.0.2.33", "64:ff9b:0:1::"),
        ("2001:db8:122:344::192.0.2.33", "2001:db8:122:344::"),
        // Teredo, ISATAP and an address of its own network: the host chooses the last bits.
        ("2001:0:c000:221::1", "2001:0:c000:221::"),
        ("2001:db8::5efe:192.0.2.33", "2001:db8::"),
        ("2001:db8::192.0.2.33", "2001:db8::"),
    ] {
        assert_eq!(MAPPED.key(address.parse().unwrap()), group, "{address}");
    }
}
