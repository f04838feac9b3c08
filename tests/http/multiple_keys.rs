//! Multiple keys in one check: the user, the address and the route.

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_sliding_window::{
    ConfigError, Costs, KeyExtractor, MemoryBackend, OutageRule, PartitionKey, Policies, PolicyTable,
    RateLimitLayer, RateLimitLayerBuilder, Rejection,
    backend::{Backend, Pair, Purpose, Reason},
    header,
    key::{self, MissingKey},
    limit, peer_ip,
    protocol::Draft,
    testing::{FakeBackend, ManualClock},
};

use super::{ALICE, BOB, MINUTE, api_key, policy, wire::Site};

/// Begins a layer that allows each user three requests.
fn per_user(backend: impl Backend) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(backend).policy(policy("per-user", 3, MINUTE)).key(api_key())
}

/// Builds a layer whose plan chooses pairs, policies and an outage rule by the path.
fn limits_with_plan(backend: impl Backend) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend).policy(policy("own", 9, MINUTE));
    let builder = builder.outage(OutageRule::FailClosed).namespace("shop").plan_by(|head| {
        let (alice, bob) = (key_of("user", "alice"), key_of("user", "bob"));
        let pair = |key: &PartitionKey, cost| Pair::new(key.clone(), policy("pairs", 9, MINUTE), cost);
        let own = Draft::check(alice.clone(), Costs::new().policy("own", 4));
        match head.uri.path() {
            // Two keys may share a policy.
            "/pairs" => Draft::pairs([pair(&alice, 2), pair(&bob, 0)]),
            "/own-and-pairs" => own.and(Draft::pairs([pair(&bob, 3)])),
            "/others" => Draft::check_against(bob, Policies::from(policy("others", 7, MINUTE)), 5),
            "/fail-open" => own.outage(OutageRule::FailOpen),
            "/pairs-fail-open" => Draft::pairs([pair(&alice, 1)]).outage(OutageRule::FailOpen),
            _ => own,
        }
    });
    builder.build().unwrap()
}

fn route() -> impl KeyExtractor {
    key::from_fn(|head| PartitionKey::new("route", head.uri.path()))
}

fn app() -> Router {
    Router::new().route("/a", get(async || "")).route("/b", get(async || ""))
}

fn key_of(kind: &str, value: &str) -> PartitionKey {
    PartitionKey::new(kind, value)
}

#[tokio::test]
async fn check_holds_policies_and_costs_of_every_key() {
    let backend = FakeBackend::admitting();
    let limits = per_user(backend.clone())
        .policy(policy("per-user-day", 100, 1440 * MINUTE))
        .cost(2)
        .also(limit(peer_ip()).policy(policy("per-address", 10, MINUTE)).cost_by(|_| 3))
        .also(limit(route()).policy(policy("per-route", 50, MINUTE)).policy(policy("slow", 60, 2 * MINUTE)))
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let answer = site.get("/a", &[ALICE]).await;
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some(
            r#""per-user";q=3;w=60, "per-user-day";q=100;w=86400, "per-address";q=10;w=60, "per-route";q=50;w=60, "slow";q=60;w=120"#
        )
    );
    let checks = backend.checks();
    assert_eq!(checks.len(), 1);
    let pairs: Vec<_> =
        checks[0].pairs.iter().map(|pair| (pair.policy.name(), &pair.key, pair.cost)).collect();
    let user = key_of("header:x-api-key", "alice");
    let (address, route) = (key_of("peer-ip", "127.0.0.1"), key_of("route", "/a"));
    assert_eq!(
        pairs,
        [
            ("per-user", &user, 2),
            ("per-user-day", &user, 2),
            ("per-address", &address, 3),
            ("per-route", &route, 1),
            ("slow", &route, 1)
        ]
    );
}

#[tokio::test]
async fn denial_by_one_key_charges_no_key() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limits =
        per_user(backend).also(limit(peer_ip()).policy(policy("per-address", 5, MINUTE))).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let mut answers = Vec::new();
    for user in [ALICE, ALICE, ALICE, ALICE, BOB, BOB, BOB] {
        let answer = site.get("/a", &[user]).await;
        let violated =
            if answer.status == 429 { answer.json()["violated-policies"].to_string() } else { String::new() };
        let limits = answer.header("ratelimit").unwrap().to_owned();
        answers.push((answer.status, limits, violated));
    }
    let expected = |status, user, address, violated: &str| {
        (status, format!(r#""per-user";r={user};t=60, "per-address";r={address};t=60"#), violated.to_owned())
    };
    assert_eq!(
        answers,
        [
            expected(200, 2, 4, ""),
            expected(200, 1, 3, ""),
            expected(200, 0, 2, ""),
            // A denial by the policy of the user charges the address nothing.
            expected(429, 0, 2, r#"["per-user"]"#),
            expected(200, 2, 1, ""),
            expected(200, 1, 0, ""),
            expected(429, 1, 0, r#"["per-address"]"#),
        ]
    );
}

#[tokio::test]
async fn exemption_covers_all_keys_and_missing_key_only_itself() {
    let backend = FakeBackend::admitting();
    let project = || limit(header("x-project").unwrap()).policy(policy("per-project", 5, MINUTE));
    let limits = per_user(backend.clone())
        .missing_key(MissingKey::Exempt)
        .also(project().missing_key(MissingKey::Exempt))
        .also(limit(peer_ip()).policy(policy("per-address", 5, MINUTE)))
        .exempt(|head| head.uri.path() == "/b")
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let project_x = ("x-project", "x");
    for (path, headers) in
        [("/a", &[ALICE][..]), ("/a", &[project_x]), ("/a", &[]), ("/b", &[ALICE, project_x])]
    {
        assert_eq!(site.get(path, headers).await.status, 200);
    }
    let checks = backend.checks();
    let names: Vec<Vec<_>> =
        checks.iter().map(|check| check.pairs.iter().map(|pair| pair.policy.name()).collect()).collect();
    assert_eq!(
        names,
        [vec!["per-user", "per-address"], vec!["per-project", "per-address"], vec!["per-address"]]
    );

    // By default, one missing key rejects the request.
    let limits = per_user(backend.clone()).also(project()).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    assert_eq!(site.get("/a", &[ALICE]).await.status, 400);
    assert_eq!(backend.checks().len(), 3);
}

#[tokio::test]
async fn request_without_any_key_causes_no_check() {
    let backend = FakeBackend::admitting();
    let limits = per_user(backend.clone())
        .missing_key(MissingKey::Exempt)
        .also(
            limit(header("x-project").unwrap())
                .policy(policy("p", 5, MINUTE))
                .missing_key(MissingKey::Exempt),
        )
        .build()
        .unwrap();
    let answer = Site::serve(app().layer(limits)).await.get("/a", &[]).await;
    assert_eq!((answer.status, answer.has_limit_fields(), backend.checks().len()), (200, false, 0));
}

fn text(built: Result<RateLimitLayer, ConfigError>) -> String {
    built.map(drop).unwrap_err().to_string()
}

#[test]
fn builder_rejects_invalid_policies_of_keys() {
    let fake = FakeBackend::admitting;
    let same_name = per_user(fake()).also(limit(peer_ip()).policy(policy("per-user", 9, MINUTE)));
    assert!(text(same_name.build()).starts_with(r#"policy "per-user" occurs twice"#));
    let among_others = per_user(fake())
        .also(limit(peer_ip()).policy(policy("p", 9, MINUTE)))
        .also(limit(route()).policy(policy("p", 9, MINUTE)));
    assert!(text(among_others.build()).starts_with(r#"policy "p" occurs twice"#));
    let many = |count: u32| {
        (0..count).fold(limit(peer_ip()), |limit, i| limit.policy(policy(&i.to_string(), 9, MINUTE)))
    };
    per_user(fake()).also(many(7)).build().unwrap();
    assert_eq!(text(per_user(fake()).also(many(8)).build()), "9 policies: a limiter needs 1 to 8 policies");
    let none = "a further limit has no policy: write `limit(key).policy(Policy::new(..)?)`";
    assert_eq!(text(per_user(fake()).also(many(0)).build()), none);
    let no_policy_of_the_first = RateLimitLayer::builder(fake()).key(api_key()).also(many(1));
    assert!(text(no_policy_of_the_first.build()).starts_with("no policy"));
}

/// Sends a request whose plan is this draft, and returns its status, its cause and the number of checks.
async fn planned(draft: Draft) -> (StatusCode, Option<String>, usize) {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone()).plan_by(move |_| draft.clone());
    let app = app().layer(limits.build().unwrap());
    let response = app.oneshot(Request::get("/a").body(Body::empty()).unwrap()).await.unwrap();
    let cause = match response.extensions().get::<Rejection>() {
        Some(Rejection::Misconfigured(error)) => Some(error.to_string()),
        None => None,
        other => panic!("{other:?}"),
    };
    (response.status(), cause, backend.checks().len())
}

#[tokio::test]
async fn invalid_draft_rejects_and_exempt_draft_admits_request() {
    let pair = |name: &str| Pair::new(key_of("user", "alice"), policy(name, 9, MINUTE), 1);
    let pairs = |count: u32| (0..count).map(|i| pair(&i.to_string())).collect::<Vec<_>>();
    let set = |count: u32| Policies::new(pairs(count).into_iter().map(|pair| pair.policy)).unwrap();
    let wrong = StatusCode::INTERNAL_SERVER_ERROR;

    let (status, cause, checks) = planned(Draft::pairs(pairs(9))).await;
    assert_eq!((status, checks), (wrong, 0));
    assert!(cause.unwrap().starts_with("check of 9 pairs"));
    let (status, cause, checks) = planned(Draft::pairs([pair("a"), pair("a")])).await;
    assert_eq!((status, checks), (wrong, 0));
    assert!(cause.unwrap().starts_with(r#"policy "a" occurs twice"#));
    let nine = Draft::check_against(key_of("user", "a"), set(8), 1).and(Draft::pairs(pairs(1)));
    assert_eq!(planned(nine).await.0, wrong);
    // A list that is empty by a mistake does not exempt the request.
    for draft in
        [Draft::pairs([]), Draft::pairs([]).and(Draft::exempt()), Draft::exempt().and(Draft::pairs([]))]
    {
        let (status, cause, checks) = planned(draft.outage(OutageRule::FailOpen)).await;
        assert_eq!((status, checks), (wrong, 0));
        assert!(cause.unwrap().starts_with("check of 0 pairs"));
    }
    // A limiter without policies admits no request.
    let (status, cause, checks) = planned(Draft::check(key_of("user", "alice"), 1)).await;
    assert_eq!((status, checks), (wrong, 0));
    assert!(cause.unwrap().starts_with("no policy"));

    for (draft, checks) in [
        (Draft::exempt(), 0),
        (Draft::pairs([]).shadow(), 0),
        (Draft::exempt().and(Draft::exempt()), 0),
        (Draft::check_against(key_of("user", "a"), set(1), 1).and(Draft::pairs([])), 1),
        (Draft::pairs(pairs(8)), 1),
        (Draft::exempt().and(Draft::check_against(key_of("user", "a"), set(8), Costs::new())), 1),
    ] {
        assert_eq!(planned(draft).await, (StatusCode::OK, None, checks));
    }
}

#[tokio::test]
async fn joined_drafts_form_one_check_in_order() {
    let backend = FakeBackend::admitting();
    let key = |value: &str| key_of("user", value);
    let builder = RateLimitLayer::builder(backend.clone()).policy(policy("first", 9, MINUTE));
    let builder = builder.plan_by(move |_| {
        let set = |name: &str| Policies::from(policy(name, 9, MINUTE));
        let second = Draft::check_against(key("b"), set("second"), Costs::new().policy("second", 4));
        let third = Draft::check_against(key("c"), set("third"), 5);
        Draft::check(key("a"), 3).and(second.and(third))
    });
    let site = Site::serve(app().layer(builder.build().unwrap())).await;
    assert_eq!(site.get("/a", &[]).await.status, 200);
    let checks = backend.checks();
    let pairs: Vec<_> =
        checks[0].pairs.iter().map(|pair| (pair.policy.name(), pair.key.clone(), pair.cost)).collect();
    assert_eq!(pairs, [("first", key("a"), 3), ("second", key("b"), 4), ("third", key("c"), 5)]);
}

#[tokio::test]
async fn limit_counts_alone_beside_exempt_plan() {
    let builder = || RateLimitLayer::builder(FakeBackend::admitting()).plan_by(|_| Draft::exempt());
    let limits = builder().also(limit(api_key()).policy(policy("p", 3, MINUTE))).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let answer = site.get("/a", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("ratelimit")), (200, Some(r#""p";r=2;t=60"#)));
    assert_eq!(site.get("/a", &[]).await.status, 400);
    assert!(text(builder().also(limit(api_key())).build()).starts_with("a further limit has no policy"));
}

#[tokio::test]
async fn limit_adds_policies_of_request_to_plan() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("own", 9, MINUTE))
        .plan_by(|_| (key_of("user", "alice"), 4))
        .also(limit(route()).policies_by(|_| policy("per-route", 9, MINUTE)))
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    let answer = site.get("/a", &[]).await;
    assert_eq!(answer.header("ratelimit"), Some(r#""own";r=5;t=60, "per-route";r=8;t=60"#));
    let keys: Vec<_> = backend.checks()[0].pairs.iter().map(|pair| pair.key.clone()).collect();
    assert_eq!(keys, [key_of("user", "alice"), key_of("route", "/a")]);
}

/// A plan replaces the first limit, and the others are checked as without it.
#[test]
fn further_limit_beside_plan_is_validated() {
    let table = PolicyTable::new(policy("p", 5, MINUTE));
    let builders = || {
        let builder = || RateLimitLayer::builder(FakeBackend::admitting());
        [builder().plan_by(|_| Draft::exempt()), builder().key(api_key()).policy(policy("own", 9, MINUTE))]
    };
    for builder in builders() {
        let also = limit(api_key()).policy(policy("p", 5, MINUTE)).cost(10);
        let error = builder.also(also).build().unwrap_err();
        assert!(matches!(&error, ConfigError::CostAboveQuota { policy, .. } if policy == "p"), "{error}");
    }
    for builder in builders() {
        let chosen = limit(api_key()).policies(table.choose_by(|_| Some("gold"))).cost(4);
        let _layer = builder.also(chosen).build().unwrap();
        let error = table.set("gold", policy("p", 3, MINUTE)).unwrap_err();
        assert!(matches!(error, ConfigError::InvalidTier { .. }), "{error}");
    }
}

fn any_path() -> Router {
    Router::new().fallback(async || "")
}

#[tokio::test]
async fn plan_chooses_pairs_and_policies_by_request() {
    let backend = FakeBackend::admitting();
    let site = Site::serve(any_path().layer(limits_with_plan(backend.clone()))).await;
    let mut limits = Vec::new();
    for path in ["/pairs", "/own-and-pairs", "/others", "/"] {
        let answer = site.get(path, &[]).await;
        assert_eq!(answer.status, 200, "{path}");
        limits.push(answer.header("ratelimit").unwrap().split(", ").count());
    }
    assert_eq!(limits, [2, 2, 1, 1]);
    let checks = backend.checks();
    assert!(checks.iter().all(|check| check.namespace == "shop"));
    let recorded_pairs = |check: usize| {
        let pair = |pair: &Pair| (pair.policy.name().to_owned(), pair.key.clone(), pair.cost);
        let mut pairs: Vec<_> = checks[check].pairs.iter().map(pair).collect();
        pairs.sort_by(|one, other| one.0.cmp(&other.0));
        pairs
    };
    let pair = |policy: &str, user: &str, cost| (policy.to_owned(), key_of("user", user), cost);
    assert_eq!(recorded_pairs(0), [pair("pairs", "alice", 2), pair("pairs", "bob", 0)]);
    assert_eq!(recorded_pairs(1), [pair("own", "alice", 4), pair("pairs", "bob", 3)]);
    assert_eq!(recorded_pairs(2), [pair("others", "bob", 5)]);
    assert_eq!(recorded_pairs(3), [pair("own", "alice", 4)]);
}

#[tokio::test]
async fn plan_chooses_outage_rule_by_request() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let site = Site::serve(any_path().layer(limits_with_plan(backend.clone()))).await;
    for (path, status) in
        [("/", 503), ("/pairs", 503), ("/others", 503), ("/fail-open", 200), ("/pairs-fail-open", 200)]
    {
        assert_eq!(site.get(path, &[]).await.status, status, "{path}");
    }
    assert_eq!(backend.checks().len(), 5);
}

#[tokio::test]
async fn pairs_share_usage_with_policies_of_layer() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let site = Site::serve(any_path().layer(limits_with_plan(backend))).await;
    for left in [5, 1] {
        let answer = site.get("/", &[]).await;
        assert_eq!(answer.header("ratelimit"), Some(&*format!(r#""own";r={left};t=60"#)));
    }
    // Alice has too few units left, so the layer does not charge Bob.
    assert_eq!(site.get("/own-and-pairs", &[]).await.status, 429);
    let answer = site.get("/pairs", &[]).await;
    assert_eq!(answer.header("ratelimit"), Some(r#""pairs";r=7;t=60, "pairs";r=9;t=60"#));
}

#[tokio::test]
async fn plan_of_pairs_keeps_settings_of_layer() {
    let status = async |backend: &FakeBackend| {
        let pair = Pair::new(key_of("user", "alice"), policy("pairs", 9, MINUTE), 4);
        let limits = RateLimitLayer::builder(backend.clone())
            .plan_by(move |_| Draft::pairs([pair.clone()]))
            .outage_by(|_| OutageRule::FailOpen)
            .settle_by(|_| Some(1))
            .build()
            .unwrap();
        Site::serve(app().layer(limits)).await.get("/a", &[]).await.status
    };
    assert_eq!(status(&FakeBackend::unavailable(Reason::Connection)).await, 200);
    let backend = FakeBackend::admitting();
    assert_eq!(status(&backend).await, 200);
    assert_eq!(backend.checks()[0].purpose, Purpose::Reserve);
    assert_eq!(backend.refunds()[0].pairs[0].units, 3);
}

#[tokio::test]
async fn joined_draft_reserves_if_one_part_reserves() {
    let draft =
        |user: &str| Draft::check_against(key_of("user", user), Policies::from(policy(user, 9, MINUTE)), 1);
    for (draft, purpose) in [
        (draft("a").and(draft("b")), Purpose::Charge),
        (draft("a").reserve().and(draft("b")), Purpose::Reserve),
        (draft("a").and(draft("b").reserve()), Purpose::Reserve),
        (draft("a").and(Draft::exempt().reserve()), Purpose::Reserve),
    ] {
        let backend = FakeBackend::admitting();
        let limits = RateLimitLayer::builder(backend.clone()).plan_by(move |_| draft.clone());
        let site = Site::serve(app().layer(limits.build().unwrap())).await;
        assert_eq!(site.get("/a", &[]).await.status, 200);
        assert_eq!(backend.checks()[0].purpose, purpose);
    }
}

#[tokio::test]
async fn two_keys_with_one_policy_name_cause_server_error() {
    let wrong = (StatusCode::INTERNAL_SERVER_ERROR, 0);
    let draft = |user: &str, quota| {
        Draft::check_against(key_of("user", user), Policies::from(policy("p", quota, MINUTE)), 1)
    };
    for other in [draft("bob", 9), draft("bob", 8), draft("alice", 8)] {
        let (status, cause, checks) = planned(draft("alice", 9).and(other)).await;
        assert_eq!((status, checks), wrong);
        assert!(cause.unwrap().starts_with(r#"policy "p" occurs twice"#));
    }

    let backend = FakeBackend::admitting();
    let chosen = limit(peer_ip()).policies_by(|_| policy("per-user", 9, MINUTE));
    let site = Site::serve(app().layer(per_user(backend.clone()).also(chosen).build().unwrap())).await;
    assert_eq!((site.get("/a", &[ALICE]).await.status, backend.checks().len()), (500, 0));
}
