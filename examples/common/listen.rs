//! The listener of an example, on the port of the variable `PORT`.

use std::env;

use tokio::net::TcpListener;

/// Listens on 127.0.0.1. The default port is 3000, and 0 lets the operating system choose one.
pub(crate) async fn listen() -> Result<TcpListener, String> {
    let port = match env::var("PORT") {
        Err(env::VarError::NotPresent) => 3000,
        Ok(given) => {
            given.parse().map_err(|_| format!("PORT {given:?}: it must be a number from 0 to 65535"))?
        }
        Err(error) => return Err(format!("PORT: {error}")),
    };
    TcpListener::bind(("127.0.0.1", port)).await.map_err(|error| format!("PORT {port}: {error}"))
}
