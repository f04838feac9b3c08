//! A login of which only the failures count: three a minute from one address.
//!
//! ```text
//! cargo run --example login
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Form, Router, http::StatusCode, routing::post};
use serde::Deserialize;
use tokio::net::TcpListener;
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
    // Every login is charged when it arrives, so that a hundred at once are not a hundred guesses. A good one gets its
    // charge back; anything else, a login that was cut off included, keeps it.
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

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!(
        "listening on http://{address}\n  \
         curl -i -d user=alice -d password=sesame http://{address}/login   # as often as you like\n  \
         curl -i -d user=alice -d password=guess http://{address}/login    # three times a minute"
    );
    axum::serve(listener, app).with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await }).await?;
    // Nothing waits in memory. On Redis, this is where the last settlements are waited for.
    limiter.drain().await;
    Ok(())
}
