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
#[path = "../common/frame.rs"]
mod frame;
#[path = "../common/listen.rs"]
mod listen;
mod live;
mod page;
mod simulations;
mod switch;

use std::{env, error::Error, io::Write, path::Path, process::ExitCode};

use axum::{
    Router,
    routing::{get, post},
};
use listen::listen;
use live::Live;
use switch::{Store, Switch};
use tower_sliding_window::{MemoryBackend, RedisBackend};

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
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let store = match env::var("REDIS_URL") {
        Ok(url) => {
            let backend = RedisBackend::connect(&url).await.map_err(|error| format!("REDIS_URL: {error}"))?;
            Store::Redis(backend)
        }
        Err(env::VarError::NotPresent) => Store::Memory(MemoryBackend::new()),
        // The error would repeat the URL, and the URL may hold a password.
        Err(env::VarError::NotUnicode(_)) => return Err("REDIS_URL: the value is not UTF-8".into()),
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
