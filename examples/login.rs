//! How do only failed logins count?
//!
//! A login that counts failures: at most three per minute from one address.
//!
//! ```text
//! cargo run --example login
//! ```
//!
//! Expected output:
//!
//! ```text
//! listening on http://127.0.0.1:3000
//!   curl -i -d user=alice -d password=sesame http://127.0.0.1:3000/login   # not counted
//!   curl -i -d user=alice -d password=guess http://127.0.0.1:3000/login    # three per minute
//! ```
//!
//! Type next:
//!
//! ```text
//! curl -i -d user=alice -d password=sesame http://127.0.0.1:3000/login    # 200, and charges nothing
//! curl -i -d user=alice -d password=guess http://127.0.0.1:3000/login     # 401 three times, then 429
//! ```

#[path = "common/listen.rs"]
mod listen;

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Form, Router, http::StatusCode, routing::post};
use listen::listen;
use serde::Deserialize;
use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

async fn login(Form(login): Form<Login>) -> (StatusCode, String) {
    if login.password == "sesame" {
        (StatusCode::OK, format!("Hello, {}!\n", login.user))
    } else {
        (StatusCode::UNAUTHORIZED, "That is not the password.\n".to_owned())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The layer charges every login on arrival, so a hundred concurrent logins are not a hundred guesses. A successful
    // login gets a refund. Every other login, such as an interrupted one, keeps its charge.
    let limits = RateLimitLayer::builder(MemoryBackend::new())
        .policy(Policy::new("failed-logins", 3, Duration::from_secs(60))?)
        .key(peer_ip())
        .settle_by(|response| response.status.is_success().then_some(0))
        .build()?;
    let limiter = limits.limiter().clone();

    let app = Router::new()
        .route("/login", post(login))
        .layer(limits)
        // `peer_ip` reads the address from here.
        .into_make_service_with_connect_info::<SocketAddr>();

    let listener = listen().await?;
    let address = listener.local_addr()?;
    println!(
        "listening on http://{address}\n  \
         curl -i -d user=alice -d password=sesame http://{address}/login   # not counted\n  \
         curl -i -d user=alice -d password=guess http://{address}/login    # three per minute"
    );
    axum::serve(listener, app).with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await }).await?;
    // In memory, no settlement is pending. On Redis, this waits for the last settlements.
    limiter.drain().await;
    Ok(())
}
