//! How do only failed logins count?
//!
//! A login that counts failures: at most three per minute of one user, and ten from one address. The policies are hidden, so a
//! response does not show how many attempts are left.
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
//! curl -i -d user=ALICE -d password=guess http://127.0.0.1:3000/login     # 429: the same user
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/listen.rs"]
mod listen;
#[path = "common/stop.rs"]
mod stop;

use std::{error::Error, net::SocketAddr, process::ExitCode, time::Duration};

use axum::{
    Extension, Form, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use exit::exit;
use listen::listen;
use serde::Deserialize;
use stop::stop;
use tower_sliding_window::{
    Costs, Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, peer_ip,
    settle::{ActualCost, actual_cost},
};

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

async fn login(State(by_user): State<Limiter>, Form(login): Form<Login>) -> Response {
    // All spellings that the database takes for one user are one key. An unknown user counts, too.
    let user = PartitionKey::new("user", login.user.trim().to_lowercase());
    let free_for_address = Extension(ActualCost::new(Costs::new().policy("logins-of-address", 0)));
    // A reservation counts all attempts in progress, so a hundred concurrent logins are not a hundred guesses.
    let attempt = match by_user.reserve(user).await {
        Ok(attempt) => attempt,
        // Without the extension, the address pays for the rejection.
        Err(rejection) => return (free_for_address, rejection).into_response(),
    };
    // A service compares with a password hash here.
    if login.password != "sesame" {
        return (StatusCode::UNAUTHORIZED, "That is not the password.\n").into_response();
    }
    // A successful login gets a refund: for the user, and for the address. Every other login keeps its charge, for example an
    // interrupted one.
    attempt.settle(0);
    (free_for_address, format!("Hello, {}!\n", login.user)).into_response()
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (backend, minute) = (MemoryBackend::new(), Duration::from_secs(60));
    let by_user = Limiter::builder(backend.clone())
        .policy(Policy::new("logins-of-user", 3, minute)?.hidden())
        .build()?;
    let by_address = RateLimitLayer::builder(backend)
        .policy(Policy::new("logins-of-address", 10, minute)?.hidden())
        .key(peer_ip())
        .settle_by(actual_cost)
        .build()?;
    let limiters = [by_user.clone(), by_address.limiter().clone()];

    let app = Router::new()
        .route("/login", post(login))
        .layer(by_address)
        .with_state(by_user)
        // `peer_ip` reads the address from here.
        .into_make_service_with_connect_info::<SocketAddr>();

    let listener = listen().await?;
    let address = listener.local_addr()?;
    // A signal may arrive as soon as the lines below are printed.
    let stop = stop()?;
    println!(
        "listening on http://{address}\n  \
         curl -i -d user=alice -d password=sesame http://{address}/login   # not counted\n  \
         curl -i -d user=alice -d password=guess http://{address}/login    # three per minute"
    );
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    // In memory, no settlement is pending. On Redis, this waits for the last settlements.
    for limiter in limiters {
        limiter.drain().await;
    }
    Ok(())
}
