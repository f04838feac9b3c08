//! Policies per request: by tier, by tenant and by route.

use axum::{Router, extract::MatchedPath, routing::get};
use http::Request;
use tower_sliding_window::{
    Costs, Head, KeyExtractor, MemoryBackend, PartitionKey, Policies, PolicyTable, RateLimitLayer,
    backend::{Backend, Pair},
    header, key, limit, peer_ip,
    policy::{self, PolicySelector, Tier},
    protocol::Draft,
    testing::{FakeBackend, ManualClock},
};

use super::{
    ALICE, BOB, MINUTE, SECOND, api_key, policy,
    wire::{Answer, Site},
};

fn app() -> Router {
    Router::new().route("/", get(async || "")).route("/search", get(async || ""))
}

/// Returns the tier that the client names in a header. A real service reads it from verified data.
fn tier<'a>(head: &Head<'a>) -> Option<&'a str> {
    head.headers.get("x-tier")?.to_str().ok()
}

fn is_search(head: &Head<'_>) -> bool {
    head.uri.path() == "/search"
}

fn by_tier(table: &PolicyTable) -> impl PolicySelector + use<> {
    table.choose_by(tier)
}

/// Builds a layer without own policies, whose further limit takes its policies from a table.
fn limits_with_table_on_limit(backend: impl Backend, table: &PolicyTable) -> RateLimitLayer {
    let on_address = limit(peer_ip()).policies(by_tier(table));
    RateLimitLayer::builder(backend)
        .key(api_key())
        .policies_by(|_| Tier::Unlimited)
        .also(on_address)
        .build()
        .unwrap()
}

/// Builds a layer whose further limit has one policy, and a second one for `/search`.
fn limits_with_choice_on_limit(backend: impl Backend) -> RateLimitLayer {
    let of_search =
        |head: &Head<'_>| if is_search(head) { policy("scan", 5, MINUTE).into() } else { Tier::Unlimited };
    let of_both = limit(peer_ip()).policies_by(of_search).cost(2);
    RateLimitLayer::builder(backend)
        .policy(policy("own", 9, MINUTE))
        .key(api_key())
        .also(of_both)
        .build()
        .unwrap()
}

/// Builds a layer with one fixed policy and one that a closure derives from the path.
fn limits_with_policy_by_path(backend: impl Backend) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend).policy(policy("own", 9, MINUTE));
    let builder = builder.policies_by(|head| policy(head.uri.path(), 5, MINUTE));
    builder.key(api_key()).cost(Costs::new().policy("/search", 3)).build().unwrap()
}

fn recorded_costs(backend: &FakeBackend) -> Vec<Vec<(String, u32)>> {
    let pair = |pair: &Pair| (pair.policy.name().to_owned(), pair.cost);
    backend.checks().iter().map(|check| check.pairs.iter().map(pair).collect()).collect()
}

fn requests(quota: u32) -> Policies {
    policy("requests", quota, MINUTE).into()
}

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

fn summary(answer: &Answer) -> (u16, String) {
    (answer.status, answer.header("ratelimit").unwrap_or_default().to_owned())
}

const GOLD: (&str, &str) = ("x-tier", "gold");

#[tokio::test]
async fn table_chooses_quota_by_tier_or_default() {
    let table = PolicyTable::new(requests(2)).with("gold", requests(100)).with("none", requests(1));
    let limits = RateLimitLayer::builder(memory()).key(api_key()).policies(by_tier(&table)).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let bronze = ("x-tier", "bronze");
    assert_eq!(summary(&site.get("/", &[BOB, GOLD]).await), (200, r#""requests";r=99;t=60"#.to_owned()));
    assert_eq!(summary(&site.get("/", &[ALICE]).await), (200, r#""requests";r=1;t=60"#.to_owned()));
    assert_eq!(summary(&site.get("/", &[ALICE, bronze]).await), (200, r#""requests";r=0;t=60"#.to_owned()));
    assert_eq!(summary(&site.get("/", &[ALICE, bronze]).await), (429, r#""requests";r=0;t=60"#.to_owned()));
}

#[tokio::test]
async fn changed_quota_applies_at_once_and_keeps_usage() {
    let table = PolicyTable::new(requests(2)).with("gold", requests(10));
    let limits = RateLimitLayer::builder(memory()).key(api_key()).policies(by_tier(&table)).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let send = async || {
        let answer = site.get("/", &[ALICE, GOLD]).await;
        (
            answer.status,
            answer.header("ratelimit").unwrap().to_owned(),
            answer.header("ratelimit-policy").unwrap().to_owned(),
        )
    };
    let expected = |status, left, quota| {
        (status, format!(r#""requests";r={left};t=60"#), format!(r#""requests";q={quota};w=60"#))
    };
    for left in [9, 8, 7, 6] {
        assert_eq!(send().await, expected(200, left, 10));
    }
    // The new quota is below the usage.
    assert_eq!(table.set("gold", requests(3)).unwrap(), Some(requests(10).into()));
    assert_eq!(send().await, expected(429, 0, 3));
    // The quota grows, and the earlier usage still counts.
    assert_eq!(table.set("gold", requests(6)).unwrap(), Some(requests(3).into()));
    assert_eq!(send().await, expected(200, 1, 6));
    // The key returns to the default, whose quota is used up.
    assert_eq!(table.remove("gold"), Some(requests(6).into()));
    assert_eq!(send().await, expected(429, 0, 2));
    table.set_default(requests(100)).unwrap();
    assert_eq!(send().await, expected(200, 94, 100));
    assert_eq!(table.remove("gold"), None);
}

#[tokio::test]
async fn each_window_keeps_its_own_usage() {
    let table = PolicyTable::new(requests(2));
    let limits = RateLimitLayer::builder(memory()).key(api_key()).policies(by_tier(&table)).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let status = async || site.get("/", &[ALICE]).await.status;
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    table.set_default(policy("requests", 2, 2 * MINUTE)).unwrap();
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    table.set_default(requests(2)).unwrap();
    assert_eq!(status().await, 429);
}

#[tokio::test]
async fn table_accepts_changes_during_requests() {
    let table = PolicyTable::new(requests(1_000_000));
    let limits = RateLimitLayer::builder(memory()).key(api_key()).policies(by_tier(&table)).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let changing = tokio::task::spawn_blocking({
        let table = table.clone();
        move || {
            for quota in 1..2_000 {
                table.set(format!("{}", quota % 7), requests(quota)).unwrap();
                table.set_default(requests(1_000_000 + quota)).unwrap();
            }
        }
    });
    for _ in 0..50 {
        assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    }
    changing.await.unwrap();
}

#[tokio::test]
async fn chosen_policies_extend_policies_of_layer() {
    let backend = FakeBackend::admitting();
    let of_route = |head: &Head<'_>| {
        if is_search(head) { policy("searches", 5, MINUTE).into() } else { Tier::Unlimited }
    };
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("requests", 100, MINUTE))
        .key(api_key())
        .policies_by(of_route)
        .also(limit(peer_ip()).policy(policy("per-address", 100, MINUTE)).policies_by(|head| {
            if is_search(head) { policy("scan", 5, MINUTE).into() } else { Tier::Unlimited }
        }))
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(site.get("/search", &[ALICE]).await.status, 200);
    let checks = backend.checks();
    let names: Vec<Vec<_>> =
        checks.iter().map(|check| check.pairs.iter().map(|pair| pair.policy.name()).collect()).collect();
    assert_eq!(names, [vec!["requests", "per-address"], vec!["requests", "searches", "per-address", "scan"]]);
    assert_eq!(checks[1].pairs[1].key, checks[1].pairs[0].key);
}

#[tokio::test]
async fn request_without_policy_causes_no_check() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .key(api_key())
        .policies_by(|head| if is_search(head) { requests(5).into() } else { Tier::Unlimited })
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.has_limit_fields(), backend.checks().len()), (200, false, 0));
    assert_eq!(summary(&site.get("/search", &[ALICE]).await), (200, r#""requests";r=4;t=60"#.to_owned()));
    assert_eq!(backend.checks().len(), 1);
}

#[tokio::test]
async fn duplicate_chosen_policy_causes_server_error() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("requests", 100, MINUTE))
        .key(api_key())
        .policies_by(|_| requests(5))
        .build()
        .unwrap();
    let answer = Site::serve(app().layer(limits)).await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, backend.checks().len()), (500, 0));
    assert!(!answer.body.contains("requests\""), "the body does not name the cause: {answer:?}");
}

#[tokio::test]
async fn header_fields_report_quota_after_headroom() {
    let headroom = |quota, percent| policy("requests", quota, MINUTE).headroom_percent(percent).unwrap();
    let table = PolicyTable::new(headroom(100, 5)).with("gold", headroom(3, 34));
    let limits = RateLimitLayer::builder(memory()).key(api_key()).policies(by_tier(&table)).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""requests";q=95;w=60"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""requests";r=94;t=60"#));
    assert_eq!(site.get("/", &[BOB, GOLD]).await.header("ratelimit-policy"), Some(r#""requests";q=1;w=60"#));
    let denied = site.get("/", &[BOB, GOLD]).await;
    assert_eq!((denied.status, denied.header("ratelimit")), (429, Some(r#""requests";r=0;t=60"#)));
}

#[test]
fn clones_of_table_share_policies() {
    let table = PolicyTable::new(requests(1));
    let clone = table.clone().with("gold", requests(2));
    assert_eq!(
        (table.pick("gold"), table.pick("silver"), table.pick(None)),
        (requests(2).into(), requests(1).into(), Tier::from(requests(1)))
    );
    let _ = table.set("gold", Policies::from(policy("requests", 3, SECOND))).unwrap();
    assert_eq!(clone.pick(Some("gold")).policies().unwrap().as_slice()[0].window().unwrap(), SECOND);
    fn is_shared<T: Clone + Send + Sync + 'static>() {}
    is_shared::<(PolicyTable, Policies, Tier)>();
}

#[test]
fn draft_of_unlimited_tier_is_exempt() {
    let draft = |tier: Tier| Draft::check_against(PartitionKey::new("user", "a"), tier, 2);
    assert_eq!(draft(Tier::Unlimited), Draft::exempt());
    let limited = Draft::check_against(PartitionKey::new("user", "a"), policy("requests", 5, MINUTE), 2);
    assert_eq!(draft(requests(5).into()), limited);
    assert_ne!(limited, Draft::exempt());
}

#[test]
fn selectors_need_no_table() {
    let request = Request::new(());
    assert_eq!(policy::from_fn(|_| Tier::Unlimited).select(&(&request).into()), Tier::Unlimited);
    assert_eq!(requests(7).select(&(&request).into()), Tier::Limited(requests(7)));
}

#[tokio::test]
async fn table_on_limit_changes_at_run_time() {
    let table = PolicyTable::new(requests(3)).with("gold", requests(9));
    let site = Site::serve(app().layer(limits_with_table_on_limit(memory(), &table))).await;
    let left = |units| (200, format!(r#""requests";r={units};t=60"#));
    assert_eq!(summary(&site.get("/", &[ALICE]).await), left(2));
    // The address is one key for all tiers.
    assert_eq!(summary(&site.get("/", &[BOB, GOLD]).await), left(7));
    table.set("gold", requests(4)).unwrap();
    assert_eq!(summary(&site.get("/", &[ALICE, GOLD]).await), left(1));
    table.set_default(requests(2)).unwrap();
    assert_eq!(site.get("/", &[ALICE]).await.status, 429);
    table.remove("gold");
    assert_eq!(site.get("/", &[ALICE, GOLD]).await.status, 429);
    table.set_default(requests(4)).unwrap();
    assert_eq!(summary(&site.get("/", &[BOB]).await), left(0));
}

#[tokio::test]
async fn limit_without_chosen_policy_leaves_other_limits() {
    let backend = FakeBackend::admitting();
    let site = Site::serve(app().layer(limits_with_choice_on_limit(backend.clone()))).await;
    for path in ["/", "/search"] {
        assert_eq!(site.get(path, &[ALICE]).await.status, 200);
    }
    let own = || ("own".to_owned(), 1);
    assert_eq!(recorded_costs(&backend), [vec![own()], vec![own(), ("scan".to_owned(), 2)]]);
}

#[tokio::test]
async fn closure_adds_policy_to_policies_of_layer() {
    let backend = FakeBackend::admitting();
    let site = Site::serve(app().layer(limits_with_policy_by_path(backend.clone()))).await;
    for path in ["/", "/search"] {
        assert_eq!(site.get(path, &[ALICE]).await.status, 200);
    }
    let pairs = |path: &str, cost| vec![("own".to_owned(), 1), (path.to_owned(), cost)];
    assert_eq!(recorded_costs(&backend), [pairs("/", 1), pairs("/search", 3)]);
}

#[tokio::test]
async fn limit_without_chosen_policy_requires_its_key() {
    let backend = FakeBackend::admitting();
    let builder = || RateLimitLayer::builder(backend.clone()).key(api_key());
    let first = builder().policies_by(|_| Tier::Unlimited).build().unwrap();
    let further = limit(header("x-project").unwrap()).policies_by(|_| Tier::Unlimited);
    let further = builder().policy(policy("own", 9, MINUTE)).also(further).build().unwrap();
    assert_eq!(Site::serve(app().layer(first)).await.get("/", &[]).await.status, 400);
    assert_eq!(Site::serve(app().layer(further)).await.get("/", &[ALICE]).await.status, 400);
    assert_eq!(backend.checks(), []);
}

#[tokio::test]
async fn unlimited_tier_causes_no_check() {
    let backend = FakeBackend::admitting();
    let table = PolicyTable::new(requests(2)).with("gold", Tier::Unlimited);
    let builder = RateLimitLayer::builder(backend.clone()).key(api_key()).policies(by_tier(&table));
    let site = Site::serve(app().layer(builder.build().unwrap())).await;
    let answer = site.get("/", &[ALICE, GOLD]).await;
    assert_eq!((answer.status, answer.has_limit_fields(), backend.checks().len()), (200, false, 0));
    assert_eq!(summary(&site.get("/", &[ALICE]).await), (200, r#""requests";r=1;t=60"#.to_owned()));
    // The key is required nevertheless.
    assert_eq!(site.get("/", &[GOLD]).await.status, 400);
}

#[tokio::test]
async fn policy_of_layer_limits_unlimited_tier() {
    let table = PolicyTable::new(requests(9)).with("gold", Tier::Unlimited);
    let builder = RateLimitLayer::builder(memory()).policy(policy("burst", 2, SECOND)).key(api_key());
    let site = Site::serve(app().layer(builder.policies(by_tier(&table)).build().unwrap())).await;
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        let expected = (status, format!(r#""burst";r={left};t=1"#));
        assert_eq!(summary(&site.get("/", &[ALICE, GOLD]).await), expected);
    }
}

#[tokio::test]
async fn default_tier_becomes_unlimited_and_keeps_usage() {
    let table = PolicyTable::new(Tier::Unlimited).with("gold", requests(1));
    let limits = RateLimitLayer::builder(memory()).key(api_key()).policies(by_tier(&table)).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let gold = async || site.get("/", &[ALICE, GOLD]).await.status;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!([gold().await, gold().await], [200, 429]);
    assert_eq!(table.set("gold", Tier::Unlimited).unwrap(), Some(requests(1).into()));
    assert_eq!([gold().await, gold().await], [200, 200]);
    assert_eq!(table.set("gold", requests(1)).unwrap(), Some(Tier::Unlimited));
    assert_eq!(gold().await, 429);
    assert_eq!(table.remove("gold"), Some(requests(1).into()));
    assert_eq!(gold().await, 200);
}

#[tokio::test]
async fn route_table_limits_login_more_than_status() {
    let routes = PolicyTable::new(requests(5)).with("/users/{id}/login", policy("logins", 2, MINUTE));
    let limits = RateLimitLayer::builder(memory())
        .key(api_key())
        .policies(routes.choose_by(|head| head.extension::<MatchedPath>().map(MatchedPath::as_str)))
        .build()
        .unwrap();
    let app = Router::new()
        .route("/users/{id}/login", get(async || ""))
        .route("/status", get(async || ""))
        .route_layer(limits);
    let site = Site::serve(app).await;
    let status = async |path: &str| site.get(path, &[ALICE]).await.status;
    let logins =
        [status("/users/1/login").await, status("/users/2/login").await, status("/users/3/login").await];
    assert_eq!(logins, [200, 200, 429]);
    for expected in [200, 200, 200, 200, 200, 429] {
        assert_eq!(status("/status").await, expected);
    }
}

/// axum sets the matched path of nested routes, and not that of a nested service.
#[tokio::test]
async fn nested_service_has_default_of_route_table() {
    let routes = ["/api/users/{id}", "/files/{*path}", "/files/{name}"];
    let table = PolicyTable::new(policy("default", 9, MINUTE));
    let table = routes.into_iter().fold(table, |table, route| table.with(route, policy("route", 9, MINUTE)));
    let limits = RateLimitLayer::builder(memory())
        .key(key::matched_route().or(api_key()))
        .policies(table.choose_by(|head| head.extension::<MatchedPath>().map(MatchedPath::as_str)))
        .build()
        .unwrap();
    let users = Router::new().route("/users/{id}", get(async || ""));
    let files = Router::new().route("/{name}", get(async || ""));
    let site =
        Site::serve(Router::new().nest("/api", users).nest_service("/files", files).layer(limits)).await;
    for (path, policy) in [("/api/users/7", "route"), ("/files/a", "default")] {
        let answer = site.get(path, &[ALICE]).await;
        assert_eq!(answer.header("ratelimit-policy"), Some(&*format!("{policy:?};q=9;w=60")), "{path}");
    }
    let without_route = site.get("/files/a", &[]).await;
    assert_eq!(without_route.status, 400, "no matched route is a key");
}

#[tokio::test]
async fn selectors_of_one_layer_see_one_table() {
    let version = |quota| {
        let routes = Policies::from(policy("route", quota, MINUTE));
        PolicyTable::new(requests(quota)).with("route", routes)
    };
    let table = version(1);
    let other = table.clone();
    let limits = RateLimitLayer::builder(memory())
        .key(api_key())
        .policies(table.choose_by(|_| None))
        // The table changes between the two lookups of one request.
        .policies_by(move |_| {
            other.replace(version(2)).unwrap();
            Tier::Unlimited
        })
        .also(limit(peer_ip()).policies(table.choose_by(|_| Some("route"))))
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let policies = |quota| format!(r#""requests";q={quota};w=60, "route";q={quota};w=60"#);
    for quota in [1, 2] {
        let answer = site.get("/", &[ALICE]).await;
        assert_eq!(answer.header("ratelimit-policy"), Some(&*policies(quota)));
    }
}
