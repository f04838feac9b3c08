//! A backend without its type, so that the type goes no higher than here, and one deadline around what it does.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, Purpose, Refund},
    decision::Decision,
};

pub(crate) type Outcome<T> = Result<T, BackendError>;
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// Something that the backend was asked.
pub(crate) enum Progress<T> {
    /// Done; empty when the outcome was taken.
    Now(Option<Outcome<T>>),
    Later(Boxed<T>),
}

/// What a settlement changes: nothing more where both are gone.
pub(crate) struct Change {
    pub(crate) refund: Option<Refund>,
    pub(crate) overage: Option<Check>,
}

pub(crate) trait Engine: Send + Sync {
    fn ask(self: Arc<Self>, check: Check, deadline: Duration) -> Progress<Decision>;
    fn forget(self: Arc<Self>, pairs: Check, deadline: Duration) -> Progress<()>;
    /// Does what can be done at once, and takes it out of the change.
    fn change_now(&self, change: &mut Change) -> Outcome<()>;
    fn change(self: Arc<Self>, change: Change, deadline: Duration) -> Boxed<()>;
    fn can_change(&self) -> bool;
    fn name_of_store(&self) -> Option<String>;
}

impl<B: Backend> Engine for B {
    fn ask(self: Arc<Self>, check: Check, deadline: Duration) -> Progress<Decision> {
        match self.check_now(&check) {
            Some(outcome) => Progress::Now(Some(complete(&check, outcome))),
            None => Progress::Later(Box::pin(within(deadline, async move {
                let outcome = self.check(&check).await;
                complete(&check, outcome)
            }))),
        }
    }

    fn forget(self: Arc<Self>, pairs: Check, deadline: Duration) -> Progress<()> {
        Progress::Later(Box::pin(within(deadline, async move { self.reset(&pairs).await })))
    }

    fn change_now(&self, change: &mut Change) -> Outcome<()> {
        let mut outcome = Ok(());
        if let Some(refund) = change.refund.take() {
            match self.refund_now(&refund) {
                Some(done) => outcome = done,
                None => change.refund = Some(refund),
            }
        }
        if let Some(overage) = change.overage.take() {
            match self.check_now(&overage) {
                Some(done) => outcome = outcome.and(complete(&overage, done).map(drop)),
                None => change.overage = Some(overage),
            }
        }
        outcome
    }

    fn change(self: Arc<Self>, change: Change, deadline: Duration) -> Boxed<()> {
        Box::pin(async move {
            let mut outcome = Ok(());
            if let Some(refund) = change.refund {
                outcome = within(deadline, self.refund(&refund)).await;
            }
            // What was used beyond the charge is charged, whatever became of what goes back elsewhere.
            if let Some(overage) = change.overage {
                let done = within(deadline, self.check(&overage)).await;
                outcome = outcome.and(complete(&overage, done).map(drop));
            }
            outcome
        })
    }

    fn can_change(&self) -> bool {
        self.changes_charges()
    }

    fn name_of_store(&self) -> Option<String> {
        self.store()
    }
}

/// Refuses a decision that does not speak of every pair, for it would admit what it has not looked at; and one that does
/// not say where every charge of a reservation stands, for it could not be settled.
fn complete(check: &Check, outcome: Outcome<Decision>) -> Outcome<Decision> {
    outcome.and_then(|decision| {
        let pairs = check.pairs().len();
        let reserved = check.purpose() == Purpose::Reserve && decision.is_admitted();
        if decision.statuses().len() == pairs && (!reserved || decision.receipts().len() == pairs) {
            Ok(decision)
        } else {
            Err(BackendError::new(Reason::BrokenReply))
        }
    })
}

async fn within<T>(deadline: Duration, asked: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    // Without a runtime there is no timer, and asking for one would panic.
    if tokio::runtime::Handle::try_current().is_err() {
        return asked.await;
    }
    tokio::time::timeout(deadline, asked).await.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)))
}

impl<T> Progress<T> {
    pub(crate) fn error(reason: Reason) -> Self {
        Self::Now(Some(Err(BackendError::new(reason))))
    }

    /// The outcome, if it is there already; or else what is still under way.
    pub(crate) fn now(self) -> Result<Outcome<T>, Self> {
        match self {
            Self::Now(Some(outcome)) => Ok(outcome),
            other => Err(other),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<T>> {
        match self {
            Self::Now(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            Self::Later(asked) => {
                let outcome = std::task::ready!(asked.as_mut().poll(cx));
                *self = Self::Now(None);
                Poll::Ready(outcome)
            }
        }
    }
}
