//! Constant costs, estimates and backends that do not suit the tiers of a policy table.

use std::{
    sync::{Arc, Barrier, mpsc},
    thread,
};

use axum::{Router, routing::get};
use tower_sliding_window::{
    ConfigError, Costs, Limiter, MemoryBackend, Policies, Policy, PolicyTable, RateLimitLayer,
    RateLimitLayerBuilder, RouteCosts, limit, peer_ip,
    policy::{Tier, from_fn},
    settle::by_hand,
    testing::ManualClock,
};

use super::{ALICE, Later, MINUTE, api_key, policy, wire::Site};

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

fn is_unknown(error: &ConfigError, expected: &str) -> bool {
    matches!(error, ConfigError::CostWithoutPolicy { name, .. } if name == expected)
}

#[test]
fn cost_that_no_tier_has_is_an_error() {
    let table = tokens_of_gold();
    let error = with_table(&table).policy(policy("burst", 5, MINUTE)).cost(tokens(5).policy("tokns", 5));
    assert_eq!(
        error.build().unwrap_err().to_string(),
        r#"cost for policy "tokns": no such policy; the policies are ["burst", "requests", "tokens"]"#
    );
    let routes = RouteCosts::new().get("/search", Costs::new().policy("tokns", 5)).unwrap();
    let error = with_table(&table).cost(routes).build().unwrap_err();
    assert!(error.to_string().starts_with(r#"cost for policy "tokns" of GET /search: no such"#), "{error}");
    // A name that only one tier has, or another limit or table of the layer.
    let address = || limit(peer_ip()).policy(policy("per-address", 9, MINUTE)).cost(tokens(5));
    let other = PolicyTable::new(Tier::Unlimited).with("uploads", policy("bytes", 9, MINUTE));
    let bytes = || Costs::new().policy("bytes", 5);
    for layer in [
        with_table(&table).cost(tokens(5)),
        with_table(&table).also(address()),
        with_table(&table).policies(other.choose_by(|head| Some(head.uri.path()))).cost(bytes()),
        with_table(&table).also(limit(peer_ip()).policies(other.choose_by(|_| None)).cost(tokens(5))),
        // Any other selector may have a policy of this name.
        with_table(&table).policies_by(|_| Tier::Unlimited).cost(bytes()),
        with_table(&table).also(limit(peer_ip()).policies(from_fn(|_| Tier::Unlimited))).cost(bytes()),
        with_table(&table).cost_by(move |_| bytes()),
    ] {
        layer.build().unwrap();
    }
}

#[tokio::test]
async fn replacement_that_loses_name_of_cost_is_an_error() {
    let table = tokens_of_gold();
    let limits = with_table(&table).cost(tokens(500)).build().unwrap();
    let site = Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await;
    let before = format!("{table:?}");
    let renamed = PolicyTable::new(requests()).with("gold", and("llm-tokens"));
    for (new, known) in
        [(renamed, r#"["llm-tokens", "requests"]"#), (PolicyTable::new(requests()), r#"["requests"]"#)]
    {
        let expected = format!(r#"cost for policy "tokens": no such policy; the policies are {known}"#);
        assert_eq!(table.replace(new).unwrap_err().to_string(), expected);
    }
    assert_eq!(format!("{table:?}"), before, "an invalid replacement has no effect");
    let answer = site.get("/", &[ALICE, ("x-tier", "gold")]).await;
    assert_eq!(answer.header("ratelimit"), Some(r#""requests";r=9;t=60, "tokens";r=500;t=60"#));
    // The last tier with tokens may leave, and come back.
    assert!(table.remove("gold").is_some());
    table.set("gold", and("llm-tokens")).unwrap();
    table.set_default(and("tokens")).unwrap();
    table.set_default(Tier::Unlimited).unwrap();
}

/// A policy of a layer, or of another table of the layer, keeps the name.
#[test]
fn replacement_may_lose_name_that_layer_keeps() {
    let (one, other) = (tokens_of_gold(), PolicyTable::new(Tier::Unlimited).with("batch", and("tokens")));
    let further = limit(peer_ip()).policies(other.choose_by(|_| None));
    let limits = with_table(&one).also(further).cost(tokens(500)).build().unwrap();
    one.replace(PolicyTable::new(requests())).unwrap();
    let error = other.replace(PolicyTable::new(requests())).unwrap_err();
    assert!(is_unknown(&error, "tokens"), "{error}");
    assert!(limits.same_body().is_ok());
    drop(limits);
    other.replace(PolicyTable::new(requests())).unwrap();

    let table = tokens_of_gold();
    let own = policy("all-tokens", 9_000, MINUTE);
    let costs = Costs::new().policy("all-tokens", 5);
    let _limits = with_table(&table).policy(own).cost(costs).build().unwrap();
    table.replace(PolicyTable::new(requests())).unwrap();
}

/// A table may be filled after the layer was built, tier by tier.
#[test]
fn empty_table_may_be_filled_later() {
    let table = PolicyTable::new(Tier::Unlimited);
    let _limits = with_table(&table).cost(tokens(500)).build().unwrap();
    table.set("free", requests()).unwrap();
    table.set("gold", and("tokens")).unwrap();
    // Without any policy, no cost is wrong.
    table.replace(PolicyTable::new(Tier::Unlimited)).unwrap();
    let error = table.replace(PolicyTable::new(requests())).unwrap_err();
    assert!(is_unknown(&error, "tokens"), "{error}");
}

/// Each replacement reads the other table.
#[test]
fn replacements_of_two_tables_do_not_block_each_other() {
    let tables =
        [tokens_of_gold(), PolicyTable::new(Tier::Unlimited).with("batch", policy("jobs", 9, MINUTE))];
    let further = limit(peer_ip()).policies(tables[1].choose_by(|_| None));
    let _limits = with_table(&tables[0]).also(further).cost(tokens(500)).build().unwrap();
    let (done, finished) = mpsc::channel();
    let start = Arc::new(Barrier::new(2));
    for table in tables {
        let (done, start) = (done.clone(), start.clone());
        thread::spawn(move || {
            start.wait();
            for _ in 0..100_000 {
                let _either = table.replace(PolicyTable::new(Tier::Unlimited));
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        finished.recv_timeout(MINUTE / 2).expect("a replacement waits for the other one");
    }
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
