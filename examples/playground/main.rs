//! How do the algorithms differ? What does a limit do, also in an outage? A page in the browser
//!
//! The page compares the algorithms on one trace, and sends requests through a real layer.
//!
//! ```text
//! cargo run --example playground
//! REDIS_URL=redis://127.0.0.1:6379/ PORT=8080 cargo run --example playground
//! ```
//!
//! Expected output:
//!
//! ```text
//! listening on http://127.0.0.1:3000
//!   open this address in a browser
//! ```
//!
//! Type next:
//!
//! ```text
//! cargo run --example playground -- charts src/guide/pictures    # makes the charts of the guide
//! ```

mod body;
mod charts;
mod compare;
#[path = "../common/exit.rs"]
mod exit;
#[path = "../common/frame.rs"]
mod frame;
#[path = "../common/listen.rs"]
mod listen;
mod live;
mod page;
#[path = "../common/redis.rs"]
mod redis;
mod simulations;
mod switch;

use std::{env, error::Error, io::Write, path::Path, process::ExitCode};

use axum::{
    Router,
    routing::{get, post},
};
use exit::exit;
use listen::listen;
use live::Live;
use redis::redis;
use switch::{Store, Switch};
use tower_sliding_window::MemoryBackend;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let done = match &arguments[..] {
        [] => serve().await,
        [command, folder] if command == "charts" => {
            charts::write(Path::new(folder)).await.map_err(Into::into)
        }
        _ => Err("usage: playground [charts <folder>]".into()),
    };
    exit(done)
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let store = match redis().await? {
        Some(backend) => Store::Redis(backend),
        None => Store::Memory(MemoryBackend::new()),
    };
    let app = Router::new()
        .merge(page::routes())
        .route("/api/compare", post(compare::compare))
        .route("/api/limits", post(live::set_limits))
        .route("/api/backend", post(live::set_backend))
        .route("/api/state", get(live::state))
        .route("/api/clock", get(live::clock))
        // The limited service: the requests of the page pass through the layer.
        .route("/limited", get(live::limited))
        .with_state(Live::new(Switch::new(store))?);

    // Other machines must not be able to change the limits or to stop the backend.
    let listener = listen().await?;
    let text = format!("listening on http://{}\n  open this address in a browser", listener.local_addr()?);
    // Ignores the error if standard output is closed.
    let _ = writeln!(std::io::stdout(), "{text}");
    axum::serve(listener, app).await?;
    Ok(())
}
