//! Deadlines: a future runs until an instant, and a little longer.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use crate::error::{BackendError, Reason};

/// How often other tasks run after a deadline, before a check gives up. A reply that this process has received, and not read yet, passes
/// through the task of the connection and that of a merged call.
pub(crate) const LAST_TURNS: u32 = 2;

/// Runs a future until the deadline. A large future is best passed as a pinned reference, so that it is not copied.
pub(crate) async fn before<T>(
    deadline: Instant,
    asked: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let outcome = until(deadline, asked).await;
    outcome.unwrap_or_else(|| Err(BackendError::new(Reason::Timeout)))
}

/// Runs a future until an instant, if there is one. Returns `None` if the instant comes first, and the future has not ended after the
/// [last turns](LAST_TURNS) either. Outside tokio, the instant has no effect.
pub(crate) async fn until<T>(end: impl Into<Option<Instant>>, future: impl Future<Output = T>) -> Option<T> {
    // Without a runtime there is no timer, and creating one would panic.
    let end = end.into().filter(|_| tokio::runtime::Handle::try_current().is_ok());
    let Some(end) = end else { return Some(future.await) };
    let mut future = pin!(future);
    if let Ok(output) = timeout_at(end, &mut future).await {
        return Some(output);
    }
    // The last turn is that of a future that counts the turns itself.
    for _ in 0..=LAST_TURNS {
        // The runtime polls the sockets before it wakes this task.
        yield_now().await;
        if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
            return Some(output);
        }
    }
    None
}
