//! The stop signal of an example.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Returns a future that completes at Ctrl-C or SIGTERM, which Kubernetes, Docker and systemd send.
pub(crate) fn stop() -> Result<impl Future<Output = ()>, io::Error> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
