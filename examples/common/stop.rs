//! The stop signal of an example.

use std::io;

/// Returns a future that completes at Ctrl-C or SIGTERM, which Kubernetes, Docker and systemd send.
#[cfg(unix)]
pub(crate) fn stop() -> Result<impl Future<Output = ()>, io::Error> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Returns a future that completes at Ctrl-C.
#[cfg(windows)]
pub(crate) fn stop() -> Result<impl Future<Output = ()>, io::Error> {
    let mut interrupt = tokio::signal::windows::ctrl_c()?;
    Ok(async move {
        interrupt.recv().await;
    })
}
