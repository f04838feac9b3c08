//! Mistakes in a policy table, which show when it changes or when a request has an unknown tier.

use axum::{Router, routing::get};
use tower_sliding_window::{
    ConfigError, MemoryBackend, Policies, PolicyTable, RateLimitLayer, RateLimitLayerBuilder, RouteCosts,
    limit, peer_ip, policy::Tier, testing::ManualClock,
};

use super::{ALICE, MINUTE, api_key, policy, wire::Site};
use crate::support::events::Events;

/// The number of charges that a sliding log holds.
const FULL: u32 = 1 << 20;

fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new())).key(api_key())
}

/// Returns a builder whose layer chooses from a table by the tier that the client names in a header.
fn with_table(table: &PolicyTable) -> RateLimitLayerBuilder {
    builder().policies(table.choose_by(|head| head.header("x-tier")))
}

async fn serve(limits: RateLimitLayer) -> Site {
    Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await
}

/// Sends a request of this tier. Returns its status and its policies.
async fn send(site: &Site, tier: &str) -> (u16, String) {
    let answer = site.get("/", &[ALICE, ("x-tier", tier)]).await;
    (answer.status, answer.header("ratelimit-policy").unwrap_or_default().to_owned())
}

/// Makes the same change in every way that a table has. Returns the error of each.
fn errors_of_changes(table: &PolicyTable, tier: impl Into<Tier>) -> [String; 3] {
    let tier = tier.into();
    let before = format!("{table:?}");
    let new = PolicyTable::new(policy("other", 9, MINUTE)).with("gold", tier.clone());
    let errors = [
        table.set("gold", tier.clone()).unwrap_err(),
        table.set_default(tier).unwrap_err(),
        table.replace(new).unwrap_err(),
    ];
    assert!(errors.iter().all(|error| matches!(error, ConfigError::InvalidTier { .. })), "{errors:?}");
    assert_eq!(format!("{table:?}"), before, "an invalid change has no effect");
    errors.map(|error| error.to_string())
}

/// Returns what each of the three changes reports for this problem.
fn reported(problem: &str) -> [String; 3] {
    [r#"tier "gold""#, "default tier", r#"tier "gold""#].map(|tier| format!("{tier}: {problem}"))
}

#[tokio::test]
async fn change_that_repeats_policy_of_layer_is_an_error() {
    let (events, _guard) = Events::collect();
    let table = PolicyTable::new(policy("requests", 10, MINUTE)).lists_exceptions();
    let further = limit(peer_ip()).policy(policy("address", 50, MINUTE));
    let limits = with_table(&table).policy(policy("burst", 5, MINUTE)).also(further).build().unwrap();
    let site = serve(limits.clone()).await;
    for name in ["burst", "address"] {
        let problem = format!("policy {name:?} occurs twice: the policies of a limiter need different names");
        let tier = Policies::new([policy("requests", 9, MINUTE), policy(name, 9, MINUTE)]).unwrap();
        assert_eq!(errors_of_changes(&table, tier), reported(&problem));
    }
    let seven = Policies::new((0..7).map(|i| policy(&i.to_string(), 9, MINUTE))).unwrap();
    assert_eq!(errors_of_changes(&table, seven), reported("9 policies: a limiter needs 1 to 8 policies"));
    // The policies in force stay in force.
    let policies = r#""burst";q=5;w=60, "requests";q=10;w=60, "address";q=50;w=60"#;
    assert_eq!(send(&site, "gold").await, (200, policies.to_owned()));
    assert_eq!(events.take(), Vec::<String>::new());
}

#[test]
fn layer_with_table_that_repeats_its_policy_is_an_error() {
    let table = PolicyTable::new(policy("requests", 10, MINUTE)).with("gold", policy("burst", 9, MINUTE));
    let build = |table: &PolicyTable| with_table(table).policy(policy("burst", 5, MINUTE)).build();
    let error = build(&table).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"tier "gold": policy "burst" occurs twice: the policies of a limiter need different names"#
    );
    table.remove("gold");
    let limits = build(&table).unwrap();
    table.set("gold", policy("burst", 9, MINUTE)).unwrap_err();
    // A layer that is gone requires nothing.
    drop(limits);
    table.set("gold", policy("burst", 9, MINUTE)).unwrap();
}

#[tokio::test]
async fn change_below_constant_cost_is_an_error() {
    let table = PolicyTable::new(policy("requests", 10, MINUTE));
    let _limits = with_table(&table).cost(5).build().unwrap();
    let problem = r#"cost 5: it must be 0 to 4, the quota of policy "requests""#;
    assert_eq!(errors_of_changes(&table, policy("requests", 4, MINUTE)), reported(problem));
    table.set("gold", policy("requests", 5, MINUTE)).unwrap();
    table.set("internal", Tier::Unlimited).unwrap();
}

#[test]
fn change_may_exclude_some_requests_or_suit_one_limit() {
    let four = || policy("requests", 4, MINUTE);
    let changes = |change: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder| {
        let table = PolicyTable::new(policy("requests", 10, MINUTE));
        let limits = change(with_table(&table));
        let further = limit(peer_ip()).cost(2).policies(table.choose_by(|_| None));
        let of_one = limits.clone().build().unwrap();
        let fits_one = table.set("gold", four()).is_ok();
        drop(of_one);
        table.remove("gold");
        let _of_two = limits.also(further).build().unwrap();
        [fits_one, table.set("gold", four()).is_ok()]
    };
    assert_eq!(changes(|layer| layer.cost(5)), [false, true]);
    assert_eq!(changes(|layer| layer.cost_by(|_| 5)), [true, true]);
    // A tier may exclude a route.
    assert_eq!(changes(|layer| layer.cost(RouteCosts::new().route("/export", 5).unwrap())), [true, true]);
    assert_eq!(changes(|layer| layer.cost(5).settle_by(|_| Some(1)).clamp_estimates()), [true, true]);
}

#[tokio::test]
async fn tier_whose_log_may_be_full_causes_one_warning() {
    let (events, _guard) = Events::collect();
    let table = PolicyTable::new(policy("requests", FULL, MINUTE)).lists_exceptions();
    let site = serve(with_table(&table).build().unwrap()).await;
    assert_eq!(send(&site, "gold").await.0, 200);
    assert_eq!(events.take(), Vec::<String>::new());
    for _ in 0..2 {
        table.replace(PolicyTable::new(policy("requests", FULL + 1, MINUTE))).unwrap();
        for _ in 0..2 {
            assert_eq!(send(&site, "gold").await.0, 200);
        }
        let [event] = &events.take()[..] else { panic!("one event") };
        for part in
            ["WARN", "may become full", "default tier: cost 1", "allows 1048577 charges", "SlidingBuckets"]
        {
            assert!(event.contains(part), "{event}");
        }
    }
    // The table of a new layer, too.
    let site = serve(with_table(&table).build().unwrap()).await;
    assert_eq!(send(&site, "gold").await.0, 200);
    assert_eq!(events.take().len(), 1);
}

/// A tier that is no longer in force has no problem.
#[tokio::test]
async fn change_ends_problem_of_earlier_tier() {
    let (events, _guard) = Events::collect();
    let (small, large) = (policy("requests", FULL, MINUTE), policy("requests", FULL + 1, MINUTE));
    let table = PolicyTable::new(small.clone()).lists_exceptions();
    let site = serve(with_table(&table).build().unwrap()).await;
    let previous = table.replace(PolicyTable::new(large.clone()).with("gold", large.clone())).unwrap();
    table.replace(previous).unwrap();
    assert_eq!(send(&site, "gold").await.0, 200);
    table.set("gold", large.clone()).unwrap();
    table.set("gold", small.clone()).unwrap();
    assert_eq!(send(&site, "gold").await.0, 200);
    table.set("gold", large.clone()).unwrap();
    table.remove("gold");
    assert_eq!(send(&site, "gold").await.0, 200);
    assert_eq!(events.take(), Vec::<String>::new());
    // A change of another tier does not end a problem.
    table.set_default(large).unwrap();
    table.set("gold", small).unwrap();
    assert_eq!(send(&site, "gold").await.0, 200);
    assert_eq!(events.take().len(), 1);
}

/// Returns the events of three requests of this tier, which have the default of the table.
async fn events_of_tier(site: &Site, tier: &str, events: &Events) -> Vec<String> {
    for _ in 0..3 {
        assert_eq!(send(site, tier).await, (200, r#""requests";q=1000;w=60"#.to_owned()));
    }
    events.take()
}

#[tokio::test]
async fn unknown_tier_has_default_and_causes_one_warning() {
    let (events, _guard) = Events::collect();
    let table = || {
        PolicyTable::new(policy("requests", 1_000, MINUTE)).with("gold", policy("requests", 2_000, MINUTE))
    };
    let in_force = table();
    let site = serve(with_table(&in_force).build().unwrap()).await;
    assert_eq!(send(&site, "gold").await, (200, r#""requests";q=2000;w=60"#.to_owned()));
    // A request without a name has the default, and is no mistake.
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(events.take(), Vec::<String>::new());
    let is_warning = |events: Vec<String>| {
        let [event] = &events[..] else { panic!("one event: {events:?}") };
        // The name may be that of a tenant.
        event.contains("WARN")
            && event.contains("unknown tier")
            && event.contains(r#"default="requests""#)
            && !event.contains("glod")
    };
    assert!(is_warning(events_of_tier(&site, "glod", &events).await));
    assert!(events_of_tier(&site, "another", &events).await.is_empty());
    // A new set of policies may have a new mistake.
    in_force.replace(table()).unwrap();
    assert!(is_warning(events_of_tier(&site, "glod", &events).await));
    in_force.set("silver", policy("requests", 5, MINUTE)).unwrap();
    assert!(events_of_tier(&site, "glod", &events).await.is_empty());
    in_force.remove("gold");
    assert!(is_warning(events_of_tier(&site, "gold", &events).await));
}

#[tokio::test]
async fn table_of_exceptions_warns_of_no_name() {
    let (events, _guard) = Events::collect();
    let table = PolicyTable::new(policy("requests", 1_000, MINUTE)).lists_exceptions();
    let site = serve(with_table(&table).build().unwrap()).await;
    for _ in 0..2 {
        assert!(events_of_tier(&site, "acme", &events).await.is_empty());
        table.replace(PolicyTable::new(policy("requests", 1_000, MINUTE))).unwrap();
    }
}

/// The default states what an unknown tier has. A client that invents tiers has no other limit.
#[tokio::test]
async fn unknown_tiers_share_the_default() {
    let (events, _guard) = Events::collect();
    let table = PolicyTable::new(policy("requests", 2, MINUTE)).with("internal", Tier::Unlimited);
    let site = serve(with_table(&table).build().unwrap()).await;
    let mut statuses = Vec::new();
    for tier in ["a", "b", "c", "d"] {
        statuses.push(send(&site, tier).await.0);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    table.replace(PolicyTable::new(Tier::Unlimited)).unwrap();
    events.take();
    assert_eq!(send(&site, "a").await, (200, String::new()));
    let [event] = &events.take()[..] else { panic!("one event") };
    assert!(event.contains("unknown tier") && event.contains(r#"default="unlimited""#), "{event}");
}
