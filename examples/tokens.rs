//! A language model with limits of requests and tokens per minute, by tiers that change at run time.
//!
//! ```text
//! cargo run --example tokens
//! ```

use std::{env, error::Error, time::Duration};

use axum::{
    Extension, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{post, put},
};
use tokio::net::TcpListener;
use tower_sliding_window::{
    ConfigError, Costs, Head, MemoryBackend, Policies, Policy, PolicyTable, RateLimitLayer, header,
    settle::{ActualCost, actual_cost},
};

/// Returns the policies of a tier: its requests and its tokens per minute.
fn tier(requests: u32, tokens: u32) -> Result<Policies, ConfigError> {
    let minute = Duration::from_secs(60);
    Policies::new([Policy::new("requests", requests, minute)?, Policy::new("tokens", tokens, minute)?])
}

/// Returns the tier of a client. A real service reads it from a request extension that its authentication sets.
fn tier_of<'a>(head: &Head<'a>) -> Option<&'a str> {
    (head.headers.get("x-api-key")? == "alice").then_some("gold")
}

/// Returns the estimate that the layer reserves: the tokens that the client allows. It is at least 1, because the store
/// always admits a cost of 0.
fn estimate(head: &Head<'_>) -> Costs {
    let given = head.headers.get("x-max-tokens").and_then(|tokens| tokens.to_str().ok()?.parse().ok());
    Costs::new().policy("requests", 1).policy("tokens", given.unwrap_or(100).max(1))
}

/// The model: it repeats the prompt, and counts each word as a token. The layer settles the estimate by this count.
async fn chat(prompt: String) -> (Extension<ActualCost>, String) {
    let tokens = prompt.split_whitespace().count() as u32;
    let used = Costs::new().policy("tokens", tokens);
    (Extension(ActualCost::new(used)), format!("{prompt}\n({tokens} tokens)\n"))
}

async fn change(State(tiers): State<PolicyTable>, Path((name, tokens)): Path<(String, u32)>) -> StatusCode {
    match tier(60, tokens) {
        Ok(policies) => {
            tiers.set(name, policies);
            StatusCode::NO_CONTENT
        }
        Err(_) => StatusCode::BAD_REQUEST,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tiers = PolicyTable::new(tier(5, 200)?).with("gold", tier(60, 10_000)?);
    let limits = RateLimitLayer::builder(MemoryBackend::new())
        .key(header("x-api-key")?)
        .policies(tiers.choose_by(tier_of))
        .cost_by(estimate)
        .settle_by(actual_cost)
        .build()?;
    let limiter = limits.limiter().clone();

    let app = Router::new()
        .route("/chat", post(chat))
        .layer(limits)
        .route("/tiers/{name}/{tokens}", put(change))
        .with_state(tiers);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!(
        "listening on http://{address}\n  \
         curl -i -H 'x-api-key: bob' -d 'three words only' http://{address}/chat\n  \
         curl -i -H 'x-api-key: bob' -H 'x-max-tokens: 500' -d 'more than bob ever has' http://{address}/chat\n  \
         curl -i -H 'x-api-key: alice' -H 'x-max-tokens: 500' -d 'alice has more' http://{address}/chat\n  \
         curl -i -X PUT http://{address}/tiers/gold/400   # reduces the quota of alice"
    );
    axum::serve(listener, app).with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await }).await?;
    // In memory, no settlement is pending. On Redis, this waits for the last settlements.
    limiter.drain().await;
    Ok(())
}
