//! How do policies come from a file, and change without a restart?
//!
//! The service loads a changed file, and drops no request.
//!
//! ```text
//! cargo run --example reload
//! POLICIES=/etc/service/policies.toml PORT=8080 cargo run --example reload
//! ```
//!
//! Expected output:
//!
//! ```text
//! listening on http://127.0.0.1:3000
//!   curl -i http://127.0.0.1:3000/login    # five in 15 minutes
//!   curl -i http://127.0.0.1:3000/health   # unlimited
//!   edit <folder of the crate>/examples/policies.toml and try again
//! ```
//!
//! Type next:
//!
//! ```text
//! curl -i http://127.0.0.1:3000/login    # ratelimit-policy: "logins";q=5;w=900
//! sed -i 's/quota = 5/quota = 9/' examples/policies.toml
//! curl -i http://127.0.0.1:3000/login    # ratelimit-policy: "logins";q=9;w=900, and the usage is kept
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/listen.rs"]
mod listen;
#[path = "common/stop.rs"]
mod stop;

use std::{
    env,
    error::Error,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use axum::{Router, extract::MatchedPath, routing::get};
use exit::exit;
use listen::listen;
use stop::stop;
use tokio::time::sleep;
use tower_sliding_window::{MemoryBackend, PolicyTable, RateLimitLayer, peer_ip};

/// The time between two looks at the file.
const POLL: Duration = Duration::from_millis(250);

/// Loads the file each time that its text has changed.
///
/// Replace the file by renaming a complete one, as most editors do. Otherwise, this may load a file that is half written.
async fn reload(file: PathBuf, policies: PolicyTable, text: String) {
    let mut last = Ok(text);
    loop {
        sleep(POLL).await;
        let text = fs::read_to_string(&file).map_err(|error| error.to_string());
        if text == last {
            continue;
        }
        last = text;
        let changed =
            last.clone().map_err(Box::<dyn Error>::from).and_then(|text| Ok(toml::from_str(&text)?));
        match changed.and_then(|changed| Ok(policies.replace(changed)?)) {
            Ok(_) => println!("loaded {}", file.display()),
            // The policies in force stay in force.
            Err(error) => eprintln!("{}: {error}", file.display()),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policies.toml");
    let file = env::var_os("POLICIES").map_or(default, PathBuf::from);
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let policies: PolicyTable =
        toml::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    // All other routes have the default.
    let policies = policies.lists_exceptions();

    let limits = RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .policies(policies.choose_by(|head| head.extension::<MatchedPath>().map(MatchedPath::as_str)))
        .build()?;
    let app = Router::new()
        .route("/", get(async || "Hello!\n"))
        .route("/login", get(async || "Welcome!\n"))
        .route("/health", get(async || "ok\n"))
        // The router sets the matched path before its layers run.
        .route_layer(limits)
        .into_make_service_with_connect_info::<SocketAddr>();

    let listener = listen().await?;
    let address = listener.local_addr()?;
    // A signal may arrive as soon as the lines below are printed.
    let stop = stop()?;
    println!(
        "listening on http://{address}\n  \
         curl -i http://{address}/login    # five in 15 minutes\n  \
         curl -i http://{address}/health   # unlimited\n  \
         edit {} and try again",
        file.display()
    );
    tokio::spawn(reload(file, policies, text));
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    Ok(())
}
