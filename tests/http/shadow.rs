//! Shadow mode over a socket: per policy, per layer, per request and by percentage. No response shows it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    extract::Request,
    middleware,
    middleware::Next,
    routing::{any, get},
};
use tower_sliding_window::{
    Decision, Limiter, MemoryBackend, PartitionKey, PolicyTable, RateLimitLayer, RateLimitLayerBuilder,
    Reservation,
    answer::{Dialect, HttpOrGrpc, Reset},
    backend::{Pair, Reason},
    key::KeyError,
    limit,
    outage::Unchecked,
    peer_ip,
    protocol::Draft,
    settle::by_hand,
    testing::{FakeBackend, ManualClock},
};

use super::{
    ALICE, BOB, Later, MINUTE, SECOND, api_key, policy,
    wire::{Answer, Site},
};

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

async fn serve(builder: RateLimitLayerBuilder) -> Site {
    Site::serve(Router::new().route("/", any(async || "hello")).layer(builder.build().unwrap())).await
}

/// Asserts that no field, body or gRPC detail contains a name, also not in base64.
fn assert_hides(answer: &Answer, name: &str) {
    let text = format!("{answer:?}");
    assert!(!text.contains(name), "{text}");
    // "canary" in the details of a gRPC status, at each of the three positions in base64.
    assert!(!["Y2FuYXJ5", "NhbmFye", "jYW5hcn"].iter().any(|part| text.contains(part)), "{text}");
}

#[tokio::test]
async fn shadow_policy_never_appears_in_response() {
    let dialects = [
        Dialect::Draft11,
        Dialect::XRateLimit(Reset::Seconds),
        Dialect::XRateLimit(Reset::UnixTime),
        Dialect::XRateLimitByPolicy,
        Dialect::Off,
    ];
    for dialect in dialects {
        // The shadow policy is in the first limit or in a further one, and its backend answers at once or later.
        for further in [false, true] {
            let (three, canary) = (policy("three", 3, SECOND), policy("canary", 1, MINUTE).shadow());
            let builder = match further {
                false => RateLimitLayer::builder(memory()).policy(canary).policy(three),
                true => RateLimitLayer::builder(Later(memory()))
                    .policy(three)
                    .also(limit(peer_ip()).policy(canary)),
            };
            let site = serve(builder.key(api_key()).answer(HttpOrGrpc).dialect(dialect)).await;
            for (method, kind) in [("GET", None), ("POST", Some(("content-type", "application/grpc")))] {
                let key = if kind.is_none() { ALICE } else { BOB };
                let headers: Vec<_> = [Some(key), kind].into_iter().flatten().collect();
                for _ in 0..3 {
                    let admitted = site.send(method, "/", &headers).await;
                    assert_eq!((admitted.status, admitted.header("retry-after")), (200, None), "{dialect:?}");
                    assert_ne!(admitted.header("x-ratelimit-limit"), Some("1"));
                    assert_hides(&admitted, "canary");
                }
                // The enforcing policy denies for its own second, and not for the minute of the shadow.
                let denied = site.send(method, "/", &headers).await;
                assert_eq!(denied.header("retry-after"), Some("1"), "{dialect:?} {denied:?}");
                assert_hides(&denied, "canary");
            }
        }
    }
}

#[tokio::test]
async fn shadow_layer_rejects_no_request() {
    let limiter = Limiter::builder(memory()).policy(policy("canary", 1, MINUTE)).build().unwrap();
    let too_many = |head: &tower_sliding_window::Head<'_>| match head.uri.path() {
        "/" => Ok(Draft::check(PartitionKey::new("user", "alice"), 1)),
        "/missing" => Err(KeyError::missing("user")),
        "/misconfigured" => Err(KeyError::misconfigured("user")),
        // A check cannot have the same pair twice.
        _ => {
            let check = || Draft::check(PartitionKey::new("user", "alice"), 1);
            Ok(check().and(check()))
        }
    };
    let layer = || RateLimitLayer::builder(limiter.clone()).plan_by(too_many);
    let app = |layer: RateLimitLayer| {
        let hello = || get(async || "hello");
        let routes = ["/", "/missing", "/misconfigured", "/twice"];
        routes.iter().fold(Router::new(), |app, route| app.route(route, hello())).layer(layer)
    };
    let site = Site::serve(app(layer().shadow().build().unwrap())).await;
    for path in ["/", "/", "/", "/missing", "/misconfigured", "/twice"] {
        let answer = site.get(path, &[]).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(!format!("{answer:?}").contains("ratelimit"), "{answer:?}");
    }
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.shadow_denied, stats.denied), (3, 2, 0));
    // The usage is kept, and enforced at once.
    let site = Site::serve(app(layer().build().unwrap())).await;
    for (path, status) in [("/", 429), ("/missing", 400), ("/misconfigured", 500), ("/twice", 500)] {
        assert_eq!(site.get(path, &[]).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn shadow_layer_admits_in_every_outage() {
    let reasons = [Reason::Connection, Reason::Full, Reason::ForeignValue, Reason::NoPermission];
    for reason in reasons {
        for later in [false, true] {
            let fake = FakeBackend::unavailable(reason);
            let builder = match later {
                false => RateLimitLayer::builder(fake),
                true => RateLimitLayer::builder(Later(fake)),
            };
            let marks = Arc::new(AtomicUsize::new(0));
            let seen = marks.clone();
            let mark = middleware::from_fn(move |request: Request, next: Next| {
                let is_unchecked = request.extensions().get::<Unchecked>().is_some();
                seen.fetch_add(usize::from(is_unchecked), Ordering::Relaxed);
                next.run(request)
            });
            let layer = builder.policy(policy("p", 1, SECOND)).key(api_key()).shadow().build().unwrap();
            let app = Router::new().route("/", get(async || "hello")).layer(mark).layer(layer);
            assert_eq!(Site::serve(app).await.get("/", &[ALICE]).await.status, 200, "{reason}");
            assert_eq!(marks.load(Ordering::Relaxed), 1, "{reason}");
        }
    }
}

#[tokio::test]
async fn closure_enforces_one_tenant_at_a_time() {
    let builder = RateLimitLayer::builder(memory())
        .policy(policy("canary", 1, MINUTE))
        .key(api_key())
        .shadow_by(|head| head.header("x-api-key") != Some("bob"));
    let site = serve(builder).await;
    for expected in [200, 200, 200] {
        let answer = site.get("/", &[ALICE]).await;
        assert_eq!((answer.status, answer.header("ratelimit")), (expected, None));
    }
    for expected in [200, 429, 429] {
        let answer = site.get("/", &[BOB]).await;
        assert_eq!(answer.status, expected);
        assert!(answer.header("ratelimit").is_some_and(|fields| fields.contains("canary")));
    }
    assert_eq!(site.get("/", &[]).await.status, 200, "a missing key");
}

#[tokio::test]
async fn percentage_enforces_stable_part_of_keys() {
    for percent in [0, 30, 100] {
        // A region makes no difference.
        let builder = RateLimitLayer::builder(memory())
            .policy(policy("canary", 1, MINUTE))
            .key_by(|head| head.header("x-api-key").map(|key| PartitionKey::new("user", key)))
            .region("eu")
            .enforce_percent(percent);
        let site = serve(builder).await;
        let mut enforced = 0;
        for user in 0..40 {
            let user = user.to_string();
            let header = [("x-api-key", &*user)];
            assert_eq!(site.get("/", &header).await.status, 200);
            let is_enforced = u32::from(PartitionKey::new("user", &user).percentile()) < percent;
            let expected = if is_enforced { 429 } else { 200 };
            assert_eq!(site.get("/", &header).await.status, expected, "{user} at {percent} percent");
            enforced += u32::from(is_enforced);
        }
        assert!(percent % 100 == 0 || (1..40).contains(&enforced));
    }
}

#[tokio::test]
async fn percentage_spares_key_at_its_boundary() {
    let alice = || PartitionKey::new("user", "alice");
    let percentile = u32::from(alice().percentile());
    for (percent, second) in [(percentile, 200), (percentile + 1, 429)] {
        let builder = RateLimitLayer::builder(memory()).policy(policy("canary", 1, MINUTE));
        let site = serve(builder.key_by(move |_| alice()).enforce_percent(percent)).await;
        for expected in [200, second] {
            assert_eq!(site.get("/", &[]).await.status, expected, "{percent} percent");
        }
    }
}

/// A mistake does not wait for the end of the rollout. In shadow mode, it rejects no request.
#[tokio::test]
async fn empty_list_of_pairs_is_a_mistake_at_any_percentage() {
    for (percent, status) in [(0, 200), (1, 500), (99, 500), (100, 500)] {
        let builder = RateLimitLayer::builder(memory()).plan_by(|_| Vec::<Pair>::new());
        let site = serve(builder.enforce_percent(percent)).await;
        assert_eq!(site.get("/", &[]).await.status, status, "{percent} percent");
    }
    let builder = RateLimitLayer::builder(memory()).plan_by(|_| Vec::<Pair>::new());
    assert_eq!(serve(builder.shadow_by(|_| true)).await.get("/", &[]).await.status, 200);
}

#[test]
fn percentage_above_hundred_is_an_error() {
    let builder = |percent| {
        RateLimitLayer::builder(memory())
            .policy(policy("p", 1, SECOND))
            .key(api_key())
            .enforce_percent(percent)
            .build()
            .map_err(|error| error.to_string())
    };
    assert!(builder(100).is_ok());
    assert_eq!(
        builder(101).unwrap_err(),
        "enforce_percent 101: it must be 0 to 100 percent of the partition keys"
    );
}

#[tokio::test]
async fn handler_sees_shadow_verdict_and_settles() {
    let (three, canary) = (policy("three", 3, MINUTE), policy("canary", 1, MINUTE).shadow());
    let limiter = Limiter::builder(memory()).policy(three).policy(canary).build().unwrap();
    let layer = RateLimitLayer::builder(limiter.clone()).key(api_key()).settle_by(by_hand).build().unwrap();
    let handler = async |decision: Decision, reservation: Reservation| {
        let denied: Vec<_> =
            decision.shadow_denied().map(|status| status.policy().name().to_owned()).collect();
        reservation.settle(2).await;
        denied.join(",")
    };
    let site = Site::serve(Router::new().route("/", get(handler)).layer(layer)).await;
    assert_eq!(site.get("/", &[ALICE]).await.body, "");
    let key = || tower_sliding_window::PartitionKey::new("header:x-api-key", "alice");
    let used = async || {
        let peek = limiter.peek((key(), 0)).await.unwrap();
        peek.statuses().iter().map(|status| status.remaining()).collect::<Vec<_>>()
    };
    // The overage is charged to both policies: to the shadow beyond its quota.
    assert_eq!(used().await, [1, 0]);
    assert_eq!(site.get("/", &[ALICE]).await.body, "canary");
    assert_eq!(used().await, [0, 0]);
}

#[tokio::test]
async fn reloaded_table_enforces_usage_of_shadow_policy() {
    let canary = || policy("canary", 2, MINUTE);
    let table = PolicyTable::new(canary().shadow());
    let site =
        serve(RateLimitLayer::builder(memory()).key(api_key()).policies(table.choose_by(|_| None))).await;
    for _ in 0..3 {
        let answer = site.get("/", &[ALICE]).await;
        assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
    }
    table.replace(PolicyTable::new(canary())).unwrap();
    assert_eq!(site.get("/", &[ALICE]).await.status, 429);
    table.replace(PolicyTable::new(canary().shadow())).unwrap();
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
}
