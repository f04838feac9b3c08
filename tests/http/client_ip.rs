//! The address of the client behind trusted proxies, over a socket. The peer is 127.0.0.1.

use axum::{Router, routing::get};
use serde_json::json;
use tower_sliding_window::{
    ConfigError, PartitionKey, RateLimitLayer, RateLimitLayerBuilder, header,
    key::{
        ClientIp, ForwardedHeader, LOOPBACK_NETWORKS, MissingKey, PRIVATE_NETWORKS, TrustedProxies, client_ip,
    },
    testing::FakeBackend,
};

use super::{MINUTE, policy, wire::Site};

const XFF: &str = "x-forwarded-for";
const INVENTED: (&str, &str) = (XFF, "198.51.100.9");

fn networks(networks: &[&str]) -> TrustedProxies {
    TrustedProxies::networks(networks).unwrap()
}

fn hops(proxies: u8) -> TrustedProxies {
    TrustedProxies::hops(proxies).unwrap()
}

/// Proxies on the loopback interface and in a private network.
fn local() -> TrustedProxies {
    networks(&["127.0.0.0/8", "10.0.0.0/8", "fd00::/8"])
}

/// Serves an app with this setting, and returns its backend.
async fn serve(set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder) -> (Site, FakeBackend) {
    let backend = FakeBackend::admitting();
    let limits =
        set(RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE))).build().unwrap();
    (Site::serve(Router::new().route("/", get(async || "hello")).layer(limits)).await, backend)
}

/// Returns the address that counts a request with these header fields, or the status and the detail of its rejection.
async fn counted(key: ClientIp, headers: &[(&str, &str)]) -> Result<PartitionKey, (u16, String)> {
    let (site, backend) = serve(|builder| builder.key(key)).await;
    let answer = site.get("/", headers).await;
    match backend.checks().first() {
        Some(check) => Ok(check.pairs[0].key.clone()),
        None => Err((answer.status, answer.json()["detail"].as_str().unwrap_or_default().to_owned())),
    }
}

fn ip(address: &str) -> Result<PartitionKey, (u16, String)> {
    Ok(PartitionKey::new("client-ip", address))
}

fn malformed(header: &str, why: &str) -> Result<PartitionKey, (u16, String)> {
    Err((400, format!("malformed rate limit key: header {header}: {why}")))
}

#[tokio::test]
async fn client_ip_walks_trusted_networks_from_right() {
    let behind = client_ip().behind(local());
    for (lines, client) in [
        (&["203.0.113.7"][..], "203.0.113.7"),
        (&["198.51.100.9, 203.0.113.7, 10.0.0.1"], "203.0.113.7"),
        (&["198.51.100.9", "203.0.113.7 , 10.0.0.2,fd00::1", "10.0.0.1:4711"], "203.0.113.7"),
        (&["any text, even \"this, 203.0.113.7"], "203.0.113.7"),
        (&["203.0.113.7, ::ffff:10.0.0.1"], "203.0.113.7"),
        (&["10.0.0.7, 10.0.0.1"], "10.0.0.7"),
    ] {
        let headers: Vec<_> = lines.iter().map(|line| (XFF, *line)).collect();
        assert_eq!(counted(behind.clone(), &headers).await, ip(client), "{lines:?}");
    }
}

#[tokio::test]
async fn client_ip_counts_hops_from_right() {
    for (proxies, lines, client) in [
        (1, &["198.51.100.9, 203.0.113.7"][..], "203.0.113.7"),
        (2, &["198.51.100.9, 203.0.113.7, 192.0.2.1"], "203.0.113.7"),
        (2, &["198.51.100.9", "203.0.113.7", "192.0.2.1"], "203.0.113.7"),
        (2, &["not an address, 203.0.113.7, 192.0.2.1"], "203.0.113.7"),
    ] {
        let headers: Vec<_> = lines.iter().map(|line| (XFF, *line)).collect();
        assert_eq!(counted(client_ip().behind(hops(proxies)), &headers).await, ip(client), "{lines:?}");
    }
    let few = malformed(XFF, "it has fewer entries than there are trusted proxies");
    assert_eq!(counted(client_ip().behind(hops(2)), &[INVENTED]).await, few);
}

#[tokio::test]
async fn client_ip_ignores_header_of_untrusted_peer() {
    let elsewhere = client_ip().behind(networks(&["192.0.2.0/24", "2001:db8::/32"]));
    for key in [client_ip(), elsewhere] {
        for headers in [&[][..], &[INVENTED], &[(XFF, "malformed")], &[("forwarded", "for=198.51.100.9")]] {
            assert_eq!(counted(key.clone(), headers).await, ip("127.0.0.1"), "{headers:?}");
        }
    }
}

#[tokio::test]
async fn client_ip_reads_header_of_choice_only() {
    for (header, name, value) in [
        (
            ForwardedHeader::Forwarded,
            "Forwarded",
            r#"for=198.51.100.9, For="203.0.113.7:80";proto=https, for=10.0.0.1"#,
        ),
        (ForwardedHeader::XRealIp, "X-Real-IP", "203.0.113.7"),
        (ForwardedHeader::CfConnectingIp, "CF-Connecting-IP", "203.0.113.7"),
        (ForwardedHeader::TrueClientIp, "True-Client-IP", "203.0.113.7"),
        (ForwardedHeader::FlyClientIp, "Fly-Client-IP", "203.0.113.7"),
        (ForwardedHeader::CloudFrontViewerAddress, "CloudFront-Viewer-Address", "203.0.113.7:46532"),
        (ForwardedHeader::XAzureSocketIp, "X-Azure-SocketIP", "203.0.113.7"),
        (ForwardedHeader::XEnvoyExternalAddress, "X-Envoy-External-Address", "203.0.113.7"),
        (ForwardedHeader::Other("x-edge-ip".parse().unwrap()), "X-Edge-IP", "203.0.113.7"),
    ] {
        let behind = client_ip().behind(local().header(header.clone()));
        assert_eq!(counted(behind.clone(), &[INVENTED, (name, value)]).await, ip("203.0.113.7"), "{name}");
        if name != "Forwarded" {
            let hops = client_ip().behind(hops(2).header(header.clone()));
            assert_eq!(counted(hops, &[INVENTED, (name, value)]).await, ip("203.0.113.7"), "{name}");
            let twice = malformed(header.name(), "the header occurs more than once");
            assert_eq!(counted(behind, &[(name, value), (name, value)]).await, twice, "{name}");
        }
    }
}

#[tokio::test]
async fn client_ip_groups_ipv6_and_converts_mapped_ipv4() {
    let of = async |key: ClientIp, address: &str| counted(key.behind(local()), &[(XFF, address)]).await;
    assert_eq!(of(client_ip(), "2001:db8::1").await, ip("2001:db8::"));
    assert_eq!(of(client_ip(), "[2001:db8::ffff:0:0:2]:80").await, ip("2001:db8::"));
    assert_eq!(of(client_ip(), "2001:db8:0:1::1").await, ip("2001:db8:0:1::"));
    assert_eq!(of(client_ip().ipv6_prefix(48).unwrap(), "2001:db8:0:1::1").await, ip("2001:db8::"));
    assert_eq!(of(client_ip().ipv6_prefix(128).unwrap(), "2001:db8::1").await, ip("2001:db8::1"));
    for address in ["::ffff:203.0.113.7", "::ffff:203.0.113.8"] {
        assert_eq!(of(client_ip().ipv6_prefix(1).unwrap(), address).await, ip(&address[7..]));
    }
}

#[tokio::test]
async fn client_ip_rejects_malformed_entry_on_the_way() {
    for trusted in [local(), hops(2)] {
        let key = client_ip().behind(trusted);
        let not_address = malformed(XFF, "an entry is not an IP address");
        assert_eq!(counted(key.clone(), &[(XFF, "203.0.113.7, unknown")]).await, not_address);
        assert_eq!(counted(key.clone(), &[(XFF, "203.0.113.7,")]).await, not_address);
        assert_eq!(counted(key, &[(XFF, "203.0.113.7"), (XFF, "")]).await, not_address);
    }
    let forwarded = client_ip().behind(local().header(ForwardedHeader::Forwarded));
    let invalid = malformed("forwarded", "it violates RFC 7239, or has more than 256 elements");
    assert_eq!(counted(forwarded, &[("forwarded", "for=\"203.0.113.7")]).await, invalid);
}

#[tokio::test]
async fn proxy_without_header_causes_missing_key() {
    for trusted in [local(), hops(2)] {
        let text = r#"missing rate limit key: header "x-forwarded-for" not found"#;
        assert_eq!(counted(client_ip().behind(trusted.clone()), &[]).await, Err((400, text.to_owned())));
        let key = client_ip().behind(trusted);
        let (site, backend) = serve(|builder| builder.key(key).missing_key(MissingKey::Exempt)).await;
        assert_eq!((site.get("/", &[]).await.status, backend.checks().len()), (200, 0));
    }
}

#[tokio::test]
async fn networks_are_exempt_by_client_address() {
    let client = client_ip().behind(local());
    let exempt = client.clone().is_in(["192.0.2.0/24", "2001:db8::1"]).unwrap();
    let (site, backend) = serve(|builder| builder.key(client).exempt(exempt)).await;
    for (entries, checks) in [
        ("192.0.2.1", 0),
        ("::ffff:192.0.2.255", 0),
        ("2001:db8::1", 0),
        ("2001:db8::2", 1),
        // The client has written the first entry.
        ("192.0.2.1, 203.0.113.7", 2),
    ] {
        assert_eq!(site.get("/", &[(XFF, entries)]).await.status, 200);
        assert_eq!(backend.checks().len(), checks, "{entries}");
    }
    assert_eq!(site.get("/", &[(XFF, "192.0.2.1, malformed")]).await.status, 400);
}

#[tokio::test]
async fn network_walk_requires_peer_address() {
    let backend = FakeBackend::admitting();
    let limits = |trusted| {
        let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE));
        builder.key(client_ip().behind(trusted)).build().unwrap()
    };
    for (trusted, status) in [(local(), 500), (hops(1), 200)] {
        let app = Router::new().route("/", get(async || "")).layer(limits(trusted));
        let site = Site::serve_without_connect_info(app).await;
        assert_eq!(site.get("/", &[INVENTED]).await.status, status);
    }
}

/// The peer is on the loopback interface. The last address of the header is a proxy if the networks contain it, and else the client.
#[tokio::test]
async fn named_networks_contain_their_addresses_alone() {
    let both = [LOOPBACK_NETWORKS, PRIVATE_NETWORKS].concat();
    let loopback = ["127.0.0.1", "127.255.255.255", "::1"];
    let ends_v4 =
        ["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255"];
    let ends_v6 = ["fc00::", "fdff:ffff::1", "::ffff:10.0.0.1"];
    let beside_v4 =
        ["9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0"];
    let others = ["fbff::1", "fe00::1", "::2", "169.254.1.1", "fe80::1", "100.64.0.1"];
    for (networks, addresses, is_proxy) in [
        (&both[..], &loopback[..], true),
        (&both, &ends_v4, true),
        (&both, &ends_v6, true),
        (&both, &beside_v4, false),
        (&both, &others, false),
        (LOOPBACK_NETWORKS, &ends_v4, false),
    ] {
        for address in addresses {
            let proxies = TrustedProxies::networks(networks).unwrap();
            let behind = client_ip().behind(proxies).ipv6_prefix(128).unwrap();
            let header = format!("203.0.113.7, {address}");
            let client = if is_proxy { "203.0.113.7" } else { address };
            assert_eq!(counted(behind, &[(XFF, &header)]).await, ip(client), "{networks:?}: {address}");
        }
    }
}

/// The peer is on the loopback interface, which is no private network.
#[tokio::test]
async fn private_networks_do_not_contain_loopback() {
    let behind = client_ip().behind(networks(PRIVATE_NETWORKS));
    assert_eq!(counted(behind, &[INVENTED]).await, ip("127.0.0.1"));
    let behind = client_ip().behind(networks(LOOPBACK_NETWORKS));
    assert_eq!(counted(behind, &[INVENTED]).await, ip("198.51.100.9"));
}

#[test]
fn trust_in_every_address_is_an_error() {
    for networks in
        [&["0.0.0.0/0"][..], &["10.0.0.0/8", "::/0"], &["0.0.0.0/1", "128.0.0.0/1"], &["::ffff:0.0.0.0/96"]]
    {
        let error = TrustedProxies::networks(networks).unwrap_err();
        assert!(matches!(error, ConfigError::TrustedProxies { .. }), "{networks:?}: {error:?}");
        assert!(error.to_string().contains("/0 contains every client"), "{error}");
    }
    let none: [&str; 0] = [];
    let texts = [TrustedProxies::networks(none).unwrap_err(), TrustedProxies::hops(0).unwrap_err()];
    assert_eq!(
        texts.map(|error| error.to_string()),
        [
            "trusted proxies: there must be at least one network",
            "trusted proxies: 0 hops: the number of proxies must be 1 to 255"
        ]
    );
    assert!(matches!(header(XFF).unwrap_err(), ConfigError::ForwardedHeader { name, .. } if name == XFF));
    let error = client_ip().ipv6_prefix(0).unwrap_err();
    assert!(matches!(error, ConfigError::InvalidValue { setting: "IPv6 prefix", .. }), "{error:?}");
    assert_eq!(json!(error.to_string()), "IPv6 prefix /0: it must be /1 to /128");
}
