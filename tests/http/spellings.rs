//! A client that spells its key in another way, over HTTP/1.1 and HTTP/2.

use axum::{Router, body::Body, routing::get};
use http::{Request, Version};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower_sliding_window::{
    KeyExtractor, MemoryBackend, RateLimitLayer, header,
    key::{TrustedProxies, client_ip, cookie, path_param},
};

use super::{MINUTE, policy, wire::Site};

/// Where a value is in the request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    ApiKey,
    Authorization,
    Cookie,
    ForwardedFor,
    Tenant,
}

use Place::{ApiKey, Authorization, Cookie, ForwardedFor, Tenant};

/// Two spellings of one client each.
const SPELLINGS: [(Place, &str, &str); 40] = [
    // White space around a header value. HTTP/1.1 removes it.
    (ApiKey, "k", " k"),
    (ApiKey, "k", "  k"),
    (ApiKey, "k", "k "),
    (ApiKey, "k", "k  "),
    (ApiKey, "k", "\tk"),
    (ApiKey, "k", "k\t"),
    (ApiKey, "k", " k "),
    (ApiKey, "k", "\tk\t"),
    (ApiKey, "k", " \tk"),
    (ApiKey, "k", "k\t \t"),
    // The scheme of credentials in upper and lower case, with any white space after it.
    (Authorization, "Bearer tOk3n==", "bearer tOk3n=="),
    (Authorization, "Bearer tOk3n==", "BEARER tOk3n=="),
    (Authorization, "Bearer tOk3n==", "bEaReR tOk3n=="),
    (Authorization, "Bearer tOk3n==", "Bearer  tOk3n=="),
    (Authorization, "Bearer tOk3n==", "Bearer\ttOk3n=="),
    (Authorization, "Bearer tOk3n==", "Bearer \t tOk3n=="),
    (Authorization, "Bearer tOk3n==", " Bearer tOk3n=="),
    (Authorization, "Bearer tOk3n==", "Bearer tOk3n== "),
    (Authorization, "Bearer tOk3n==", "\tBEARER  tOk3n==\t"),
    (Authorization, "Bearer tOk3n==", "bearer   tOk3n=="),
    (Authorization, "Basic dXNlcjpwYXNz", "basic dXNlcjpwYXNz"),
    (Authorization, "Basic dXNlcjpwYXNz", "BASIC \tdXNlcjpwYXNz"),
    (Authorization, "raw-tOk3n", " raw-tOk3n"),
    (Authorization, "raw-tOk3n", "raw-tOk3n\t"),
    // Encodings and quotation marks, which some parsers of cookies remove.
    (Cookie, "session=31d4", "session=%331d4"),
    (Cookie, "session=31d4", "session=\"31d4\""),
    (Cookie, "session=31d4", "%73ession=31d4"),
    (Cookie, "session=31d4", " session=31d4"),
    (Cookie, "session=31d4", "session = 31d4"),
    (Cookie, "session=31d4", "theme=dark;\tsession=31d4 ;"),
    // Addresses that embed an IPv4 address, with and without a port.
    (ForwardedFor, "192.0.2.1", "192.0.2.1:4711"),
    (ForwardedFor, "192.0.2.1", "::ffff:192.0.2.1"),
    (ForwardedFor, "192.0.2.1", "[::FFFF:c000:201]:443"),
    (ForwardedFor, "192.0.2.1", "64:ff9b::192.0.2.1"),
    (ForwardedFor, "192.0.2.1", "::ffff:0:192.0.2.1"),
    (ForwardedFor, "192.0.2.1", "2002:c000:201::1"),
    (ForwardedFor, "2002:c000:201::1", "2002:c000:201:ffff::2"),
    (ForwardedFor, "2001:db8::1", "2001:DB8:0:0:ffff::2"),
    // The encoding of a path.
    (Tenant, "acme", "%61cme"),
    (Tenant, "acme", "ac%6D%65"),
];

#[tokio::test]
async fn spellings_of_one_key_share_one_quota() {
    for (place, first, second) in SPELLINGS {
        assert_eq!(verified(place, first), verified(place, second), "{place:?} {first:?} {second:?}");
    }
    let mut second_quotas = Vec::new();
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for (place, first, second) in SPELLINGS {
            let site = site(place).await;
            assert_eq!(status(&site, version, place, first).await, 200, "{version:?} {place:?} {first:?}");
            match status(&site, version, place, second).await {
                429 => {}
                status => second_quotas.push((version, place, second, status)),
            }
        }
    }
    let by_version = [Version::HTTP_11, Version::HTTP_2]
        .map(|version| second_quotas.iter().filter(|(of, ..)| *of == version).count());
    assert_eq!(by_version, [0, 0], "second quotas over HTTP/1.1 and HTTP/2: {second_quotas:?}");
}

/// Returns what the verifier of a service reads from a header: other values are other clients.
fn verified(place: Place, value: &str) -> Option<(String, &str)> {
    match (place, value.trim().split_once(char::is_whitespace)) {
        (ApiKey, None) | (Authorization, None) => Some((String::new(), value.trim())),
        (Authorization, Some((scheme, token))) => Some((scheme.to_lowercase(), token.trim())),
        _ => None,
    }
}

/// Serves an app that admits one request of each key.
async fn site(place: Place) -> Site {
    fn app(key: impl KeyExtractor) -> Router {
        let limits =
            RateLimitLayer::builder(MemoryBackend::new()).policy(policy("one", 1, MINUTE)).key(key).build();
        Router::new().route("/tenants/{tenant}", get(async || "hello")).layer(limits.unwrap())
    }
    Site::serve(match place {
        ApiKey => app(header("x-api-key").unwrap()),
        Authorization => app(header("authorization").unwrap()),
        Cookie => app(cookie("session").unwrap()),
        ForwardedFor => app(client_ip().behind(TrustedProxies::networks(["127.0.0.1"]).unwrap())),
        Tenant => app(path_param("tenant", ["/tenants/{tenant}"]).unwrap()),
    })
    .await
}

/// Returns the status of a request with this value, on a new connection.
async fn status(site: &Site, version: Version, place: Place, value: &str) -> u16 {
    let name = match place {
        ApiKey => "x-api-key",
        Authorization => "authorization",
        Cookie => "cookie",
        ForwardedFor => "x-forwarded-for",
        Tenant => "x-unused",
    };
    let path = format!("/tenants/{}", if place == Tenant { value } else { "any" });
    if version == Version::HTTP_11 {
        return site.get(&path, &[(name, value)]).await.status;
    }
    let request = Request::get(format!("http://{}{path}", site.address())).header(name, value);
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
    let response = client.request(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    response.status().as_u16()
}
