//! Constant costs, estimates and backends that do not suit the tiers of a policy table.

use axum::{Router, routing::get};
use tower_sliding_window::{
    ConfigError, Costs, Limiter, MemoryBackend, Policies, Policy, PolicyTable, RateLimitLayer,
    RateLimitLayerBuilder, RouteCosts, limit, peer_ip,
    policy::{Tier, from_fn},
    settle::by_hand,
    testing::ManualClock,
};

use super::{ALICE, Later, MINUTE, api_key, policy, wire::Site};
use crate::support::events::Events;

fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new())).key(api_key())
}

/// Returns a builder whose layer chooses from a table by the tier that the client names in a header.
fn with_table(table: &PolicyTable) -> RateLimitLayerBuilder {
    builder().policies(table.choose_by(|head| head.header("x-tier")))
}

fn requests() -> Policy {
    policy("requests", 10, MINUTE)
}

/// Returns a policy of this name beside that of the requests.
fn and(name: &str) -> Policies {
    Policies::new([requests(), policy(name, 1_000, MINUTE)]).unwrap()
}

/// Returns a table in which only the tier "gold" has tokens.
fn tokens_of_gold() -> PolicyTable {
    PolicyTable::new(requests()).lists_exceptions().with("gold", and("tokens"))
}

fn tokens(units: u32) -> Costs {
    Costs::new().policy("tokens", units)
}

/// Returns the problem of each warning about the name of a cost.
fn unknown_names(events: &Events) -> Vec<String> {
    let is_about_name = |event: &String| event.contains("no tier of the policy tables has");
    events.take().into_iter().filter(is_about_name).collect()
}

/// Returns the warnings of a new layer about the names of its costs, after two requests.
async fn warnings_of(layer: RateLimitLayerBuilder) -> Vec<String> {
    let (events, _guard) = Events::collect();
    let site = Site::serve(Router::new().route("/", get(async || "")).layer(layer.build().unwrap())).await;
    for _ in 0..2 {
        assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    }
    unknown_names(&events)
}

#[tokio::test]
async fn cost_that_no_tier_has_causes_one_warning() {
    let table = tokens_of_gold();
    let costs = tokens(5).policy("tokns", 5);
    let [event] = &warnings_of(with_table(&table).policy(policy("burst", 5, MINUTE)).cost(costs)).await[..]
    else {
        panic!("one event")
    };
    let known =
        r#"cost for policy "tokns": no such policy; the policies are ["burst", "requests", "tokens"]"#;
    assert!(event.contains("WARN") && event.contains(known), "{event}");
    let routes = RouteCosts::new().get("/search", Costs::new().policy("tokns", 5)).unwrap();
    let [event] = &warnings_of(with_table(&table).cost(routes)).await[..] else { panic!("one event") };
    assert!(event.contains(r#"cost for policy "tokns" of GET /search: no such"#), "{event}");
}

#[tokio::test]
async fn name_of_any_policy_of_layer_causes_no_warning() {
    let table = tokens_of_gold();
    let address = || limit(peer_ip()).policy(policy("per-address", 9, MINUTE)).cost(tokens(5));
    let other = PolicyTable::new(Tier::Unlimited).with("uploads", policy("bytes", 9, MINUTE));
    let bytes = || Costs::new().policy("bytes", 5);
    for layer in [
        // A name that only one tier has, or another limit or table of the layer.
        with_table(&table).cost(tokens(5)),
        with_table(&table).also(address()),
        with_table(&table).policies(other.choose_by(|head| Some(head.uri.path()))).cost(bytes()),
        with_table(&table).also(limit(peer_ip()).policies(other.choose_by(|_| None)).cost(tokens(5))),
        // Any other selector may have a policy of this name.
        with_table(&table).policies_by(|_| Tier::Unlimited).cost(bytes()),
        with_table(&table).also(limit(peer_ip()).policies(from_fn(|_| Tier::Unlimited))).cost(bytes()),
        with_table(&table).cost_by(move |_| bytes()),
        // The tiers may follow.
        with_table(&PolicyTable::new(Tier::Unlimited)).cost(tokens(5)),
    ] {
        assert_eq!(warnings_of(layer).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn replacement_that_loses_name_of_cost_causes_one_warning() {
    let (events, _guard) = Events::collect();
    let table = tokens_of_gold();
    let limits = with_table(&table).cost(tokens(5)).build().unwrap();
    let site = Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await;
    let send_two = async || {
        for _ in 0..2 {
            assert_eq!(site.get("/", &[ALICE, ("x-tier", "gold")]).await.status, 200);
        }
        unknown_names(&events)
    };
    assert_eq!(send_two().await, Vec::<String>::new());
    let renamed = || PolicyTable::new(requests()).with("gold", and("llm-tokens"));
    for _ in 0..2 {
        let before = table.replace(renamed()).unwrap();
        let [event] = &send_two().await[..] else { panic!("one event") };
        assert!(event.contains(r#"cost for policy "tokens""#) && event.contains("llm-tokens"), "{event}");
        table.replace(before).unwrap();
    }
    // The last tier with tokens may leave.
    table.replace(tokens_of_gold()).unwrap();
    assert_eq!(send_two().await, Vec::<String>::new());
    table.remove("gold");
    assert_eq!(send_two().await, Vec::<String>::new());
}

#[test]
fn estimate_of_zero_for_tier_is_an_error() {
    let settling = |table: &PolicyTable| with_table(table).settle_by(by_hand);
    let free = || Costs::new().policy("requests", 1).policy("tokens", 0);
    let is_zero = |error: ConfigError| {
        let text = error.to_string();
        assert!(matches!(error, ConfigError::InvalidTier { .. }), "{text}");
        text.contains(r#": cost 0 for policy "tokens" in a layer that settles"#)
    };
    for costs in [free(), Costs::new().policy("requests", 1).otherwise(0)] {
        let error = settling(&tokens_of_gold()).cost(costs.clone()).build().unwrap_err();
        assert!(error.to_string().starts_with(r#"tier "gold": "#), "{error}");
        assert!(is_zero(error));
        // Without a settlement, a policy may be free.
        with_table(&tokens_of_gold()).cost(costs).build().unwrap();
    }
    let otherwise = Costs::new().policy("requests", 1).otherwise(0);
    let table = PolicyTable::new(requests());
    let limits = settling(&table).cost(otherwise.clone()).build().unwrap();
    assert!(is_zero(table.set("gold", and("tokens")).unwrap_err()));
    assert!(is_zero(table.set_default(and("tokens")).unwrap_err()));
    assert!(is_zero(table.replace(tokens_of_gold()).unwrap_err()));
    drop(limits);
    // Some routes may be free, and so may the policies of one of several limits.
    let further = limit(peer_ip()).policies(table.choose_by(|_| None));
    let _one =
        settling(&table).cost(RouteCosts::new().route("/", otherwise.clone()).unwrap()).build().unwrap();
    let _two = settling(&table).cost(otherwise).also(further).build().unwrap();
    table.set("gold", and("tokens")).unwrap();
}

#[test]
fn tier_in_flight_needs_backend_that_holds_units() {
    let exports = || Policy::in_flight("exports", 2).unwrap();
    let table = PolicyTable::new(requests()).with("gold", exports());
    let layer = |table: &PolicyTable, backend: bool| {
        let limiter = match backend {
            true => Limiter::builder(MemoryBackend::new()).without_policies().build().unwrap(),
            false => Limiter::builder(Later(MemoryBackend::new())).without_policies().build().unwrap(),
        };
        RateLimitLayer::builder(limiter).key(api_key()).policies(table.choose_by(|_| None)).build()
    };
    let problem =
        |tier| format!(r#"{tier}: policy "exports": the backend holds no units of policies in flight"#);
    assert_eq!(layer(&table, false).unwrap_err().to_string(), problem(r#"tier "gold""#));
    drop(layer(&table, true).unwrap());
    table.remove("gold");
    let _limits = layer(&table, false).unwrap();
    for (error, tier) in [
        (table.set("gold", exports()).unwrap_err(), r#"tier "gold""#),
        (table.set_default(exports()).unwrap_err(), "default tier"),
        (table.replace(PolicyTable::new(exports())).unwrap_err(), "default tier"),
    ] {
        assert_eq!(error.to_string(), problem(tier));
    }
}
