//! Addresses of clients behind proxies, against a simple reference.
//!
//! The first four bytes of the input choose the header and the NAT64 prefix, the trusted proxies, the peer, and the prefix of IPv6
//! groups. The rest is the lines of the header.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use http::{HeaderName, HeaderValue, Request};
use tower_sliding_window::{
    KeyExtractor, PartitionKey,
    key::{ForwardedHeader, KeyError, TrustedProxies, client_ip},
};

pub(crate) const DICTIONARY: &[&[u8]] = &[
    b", ",
    b"\n",
    b"10.0.0.1",
    b"10.255.255.255",
    b"192.168.1.1",
    b"192.0.2.7",
    b"192.0.2.7:4711",
    b"2001:db8::1",
    b"2001:db9::1",
    b"[2001:db9::1]:443",
    b"[2001:db9::1]",
    b"::ffff:192.0.2.7",
    b"::ffff:10.0.0.1",
    b"::ffff:0:10.0.0.1",
    b"64:ff9b::10.0.0.1",
    b"64:ff9b:1::192.0.2.7",
    b"2002:a00:1::1",
    b"fe80::1%eth0",
    b"unknown",
    b"_hidden",
    b"for=",
    b"For=\"",
    b";proto=https",
    b";for=6.6.6.6",
    b"\"",
    b"\\",
    b"\t",
    b"\xff",
    b"/8",
    b"/0",
    b"/129",
];

/// The networks of the trusted proxies; [`is_trusted`] is their reference.
const NETWORKS: [&str; 4] = ["10.1.2.3/8", "192.168.1.1", "2001:db8::/32", "::ffff:172.16.0.0/108"];

/// The prefix of a translator. The first one is that of no address.
const NAT64: [&str; 8] = [
    "",
    "2001:db9::/32",
    "2001:db9::/40",
    "2001:db9::/48",
    "2001:db9::/56",
    "2001:db9::/64",
    "2001:db9::/96",
    "64:ff9b:1::/96",
];

const PEERS: [&str; 12] = [
    "10.9.8.7",
    "192.168.1.1",
    "::ffff:172.31.255.255",
    "2001:db8:1::1",
    "192.168.1.2",
    "203.0.113.9",
    "2001:db9:1:2:3:4:5:6",
    "::ffff:203.0.113.9",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::203.0.113.9",
    "::ffff:0:10.0.0.1",
    "2002:a00:1::1",
];

/// What a trusted proxy appends to `Forwarded`, each with its address.
const ELEMENTS: [(&str, &str); 4] = [
    ("for=192.0.2.1", "192.0.2.1"),
    ("for=\"[2001:db9::7]:4711\"", "2001:db9::7"),
    ("For=\"192.0.2.1:80\";proto=https;by=\"_x\"", "192.0.2.1"),
    ("proto=\"http\" ; for=192.0.2.1 ", "192.0.2.1"),
];

fn is_trusted(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => match v4.octets() {
            [10, ..] | [192, 168, 1, 1] => true,
            [172, second, ..] => second & 0xf0 == 16,
            _ => false,
        },
        IpAddr::V6(v6) => v6.segments()[..2] == [0x2001, 0x0db8],
    }
}

pub(crate) fn run(data: &[u8]) {
    let [header, trust, peer, prefix, lines @ ..] = data else { return };
    let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    let peer = PEERS[usize::from(*peer) % PEERS.len()].parse().expect("an address");
    networks_contain_what_reference_does(lines[0], peer);
    let group = Group { prefix: *prefix, nat64: NAT64[usize::from(header / 8) % NAT64.len()] };
    if header % 8 == 0 {
        return appended_element_is_client(&lines, ELEMENTS[usize::from(*trust) % ELEMENTS.len()], peer);
    }
    let header = match header % 8 {
        1 | 2 => ForwardedHeader::XForwardedFor,
        3 => ForwardedHeader::Forwarded,
        4 => ForwardedHeader::CfConnectingIp,
        5 => ForwardedHeader::CloudFrontViewerAddress,
        6 => ForwardedHeader::XRealIp,
        _ => ForwardedHeader::Other(HeaderName::from_static("x-my-ip")),
    };
    let hops = (*trust >= 128).then_some(trust % 4 + 1);
    let request = request(&header, &lines, peer);
    let found = extract(&header, hops, group, &request);
    let lines: Vec<&[u8]> =
        request.headers().get_all(header.name()).iter().map(HeaderValue::as_bytes).collect();
    let expected = if header == ForwardedHeader::Forwarded {
        // Only the trusted part is known: see `appended_element_is_client`.
        if hops.is_none() && !is_trusted(peer) { Some(Some(peer)) } else { return }
    } else {
        expected(&header, &lines, hops, peer)
    };
    let key = expected.map(|client| client.map(|client| key(client, group)));
    assert_eq!(found.ok(), key, "{header:?} {hops:?} {peer} {:?} {lines:?}", group.nat64);
}

fn request(header: &ForwardedHeader, lines: &[&[u8]], peer: IpAddr) -> Request<()> {
    let mut request = Request::new(());
    for line in lines {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(header.name()), HeaderValue::from_bytes(line)) {
            request.headers_mut().append(name, value);
        }
    }
    request.extensions_mut().insert(SocketAddr::new(peer, 4711));
    request
}

fn extract(
    header: &ForwardedHeader,
    hops: Option<u8>,
    group: Group,
    request: &Request<()>,
) -> Result<Option<PartitionKey>, KeyError> {
    let proxies = hops.map_or_else(|| TrustedProxies::networks(NETWORKS), TrustedProxies::hops);
    let client = client_ip().behind(proxies.expect("trusted proxies").header(header.clone()));
    let client = client.ipv6_prefix(group.prefix % 128 + 1).expect("a valid prefix");
    let client = match group.nat64 {
        "" => client,
        prefix => client.nat64_prefix(prefix).expect("a valid prefix"),
    };
    let (key, address) = (client.extract(&request.into()), client.address(&request.into()));
    assert_eq!(key.is_ok(), address.is_ok());
    key
}

/// How addresses are grouped.
#[derive(Clone, Copy)]
struct Group {
    prefix: u8,
    nat64: &'static str,
}

/// No NAT64 prefix, and groups of one address.
const EXACT: Group = Group { prefix: 127, nat64: NAT64[0] };

/// Returns the key of an address: bit by bit.
fn key(address: IpAddr, group: Group) -> PartitionKey {
    let group = match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => match embedded(v6, group.nat64) {
            Some(v4) => v4.to_string(),
            None => {
                let kept = (0..=group.prefix % 128).fold(0_u128, |mask, bit| mask | 1 << (127 - bit));
                Ipv6Addr::from_bits(v6.to_bits() & kept).to_string()
            }
        },
    };
    PartitionKey::new("client-ip", group)
}

/// Returns the IPv4 address in an IPv6 address: eight hexadecimal digits after a prefix.
fn embedded(address: Ipv6Addr, nat64: &str) -> Option<Ipv4Addr> {
    let digits = |address: Ipv6Addr| format!("{:032x}", address.to_bits());
    let address = digits(address);
    let after = |address: &str, prefix: usize| {
        let v4 = u32::from_str_radix(&address[prefix..prefix + 8], 16).expect("digits");
        Some(Ipv4Addr::from_bits(v4))
    };
    if let Some((prefix, length)) = nat64.split_once('/') {
        let prefix = digits(prefix.parse().expect("an address"));
        let length = length.parse::<usize>().expect("a length") / 4;
        if address[..length] == prefix[..length] {
            // Without bits 64 to 71, if they are not a part of the prefix.
            let without_octet = [&address[..16], &address[18..]].concat();
            return after(if length <= 16 { &without_octet } else { &address }, length);
        }
    }
    let prefixes = ["0064ff9b0000000000000000", "0000000000000000ffff0000", "2002"];
    let prefix = prefixes.into_iter().find(|prefix| address.starts_with(prefix))?;
    after(&address, prefix.len())
}

/// Returns the client, `Some(None)` if there is no header, and `None` if the header is malformed.
fn expected(
    header: &ForwardedHeader,
    lines: &[&[u8]],
    hops: Option<u8>,
    peer: IpAddr,
) -> Option<Option<IpAddr>> {
    let by_networks = hops.is_none();
    if by_networks && !is_trusted(peer) {
        return Some(Some(peer));
    }
    if lines.is_empty() {
        return Some(None);
    }
    if *header != ForwardedHeader::XForwardedFor {
        let [line] = lines else { return None };
        let text = visible(line)?;
        let text = if *header == ForwardedHeader::CloudFrontViewerAddress {
            &text[..text.rfind(':')?]
        } else {
            text
        };
        return address(text).map(Some);
    }
    // The entries from right to left, as if the proxies had written one line.
    let entries = lines.iter().rev().flat_map(|line| match visible(line) {
        Some(text) => text.split(',').rev().map(address).collect(),
        None => vec![None],
    });
    let entries: Vec<Option<IpAddr>> = entries.collect();
    match hops {
        Some(hops) => {
            let trusted = entries.get(..usize::from(hops))?;
            trusted.iter().copied().collect::<Option<Vec<_>>>()?.pop().map(Some)
        }
        None => {
            for entry in &entries {
                let address = (*entry)?;
                if !is_trusted(address) {
                    return Some(Some(address));
                }
            }
            entries.last().copied()
        }
    }
}

fn visible(line: &[u8]) -> Option<&str> {
    let is_visible = |byte: &u8| (32..127).contains(byte) || *byte == b'\t';
    if line.iter().all(is_visible) { str::from_utf8(line).ok() } else { None }
}

/// Parses an address with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (address, after) = rest.split_once(']')?;
        let port = after.strip_prefix(':');
        if !after.is_empty() && port.and_then(number::<u16>).is_none() {
            return None;
        }
        // RFC 4007: a zone needs a port here. It does not change the address.
        let (address, zone) =
            address.split_once('%').map_or((address, None), |(address, zone)| (address, Some(zone)));
        if zone.is_some_and(|zone| number::<u32>(zone).is_none() || port.is_none()) {
            return None;
        }
        IpAddr::V6(address.parse().ok()?)
    } else if let (1, Some((v4, port))) = (text.matches(':').count(), text.split_once(':')) {
        number::<u16>(port)?;
        IpAddr::V4(v4.parse().ok()?)
    } else {
        text.parse().ok()?
    };
    Some(address.to_canonical())
}

/// Parses decimal digits, without a sign.
fn number<N: FromStr>(text: &str) -> Option<N> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Whatever a client has written before it, the element that the only trusted proxy has appended is the client.
fn appended_element_is_client(lines: &[&[u8]], (element, client): (&str, &str), peer: IpAddr) {
    let header = ForwardedHeader::Forwarded;
    let expected = key(client.parse().expect("an address"), EXACT);
    // In a line of its own.
    let own_line = [lines, &[element.as_bytes()]].concat();
    let found = extract(&header, Some(1), EXACT, &request(&header, &own_line, peer));
    assert_eq!(found, Ok(Some(expected.clone())));
    // In the last line of the client, which may be malformed.
    if let Some((last, earlier)) = lines.split_last() {
        let joined = [last, &b", "[..], element.as_bytes()].concat();
        let lines = [earlier, &[&joined[..]]].concat();
        let request = request(&header, &lines, peer);
        // A line of other bytes is no header value.
        if request.headers().get_all(header.name()).iter().next_back().is_some_and(|line| line == &joined[..])
        {
            for hops in [Some(1), None] {
                match extract(&header, hops, EXACT, &request) {
                    Ok(found) if hops.is_some() || is_trusted(peer) => {
                        assert_eq!(found, Some(expected.clone()))
                    }
                    Ok(found) => assert_eq!(found, Some(key(peer, EXACT))),
                    Err(error) => assert!(matches!(error, KeyError::Malformed { .. }), "{error}"),
                }
            }
        }
    }
}

/// A text is a network for the crate if it is one for the reference, and both contain the same addresses.
fn networks_contain_what_reference_does(text: &[u8], peer: IpAddr) {
    let Ok(text) = str::from_utf8(text) else { return };
    let reference = network(text);
    let Ok(is_in) = client_ip().is_in([text]) else {
        let has_leading_zero = text.contains("/0");
        return assert!(reference.is_none() || has_leading_zero, "{text:?}");
    };
    let (address, prefix) = reference.unwrap_or_else(|| panic!("{text:?} is not a network"));
    let header = ForwardedHeader::default();
    for peer in [peer, address] {
        // The address of a peer is in canonical form.
        let (a, b) = (bits(peer.to_canonical()), bits(address));
        let is_inside = a.1 == b.1 && (0..prefix).all(|bit| (a.0 ^ b.0) >> (127 - bit) & 1 == 0);
        assert_eq!(is_in(&(&request(&header, &[], peer)).into()), is_inside, "{peer} in {text:?}");
    }
}

/// Returns the bits of an address from the highest bit on, and whether it is an IPv4 address.
fn bits(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, true),
        IpAddr::V6(v6) => (v6.to_bits(), false),
    }
}

/// Parses an address with or without a prefix length. A network of mapped addresses is one of IPv4 addresses.
fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(length) => number(length)?,
        None => most,
    };
    if length > most {
        return None;
    }
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() && length >= 96 => {
            Some((address.to_canonical(), length - 96))
        }
        _ => Some((address, length)),
    }
}
