//! A backend without its type, so that the type goes no higher than here, and a guard or a deadline around what it does.

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
    deny_cache::{Denials, Inquiry},
    outage::{Guard, within},
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
    /// The decision, from a backend that never waits. None if this one has to, and then nothing was done.
    fn ask_now(&self, check: &Check) -> Option<Outcome<Decision>>;
    /// The decision of a backend that has to wait. Those who inquire learn from it.
    fn ask(self: Arc<Self>, check: Check, guard: Arc<Guard>, inquiry: Option<Inquiry>) -> Boxed<Decision>;
    fn forget(
        self: Arc<Self>,
        pairs: Check,
        deadline: Duration,
        denials: Option<Arc<Denials>>,
    ) -> Progress<()>;
    /// Does what can be done at once, and takes it out of the change.
    fn change_now(&self, change: &mut Change) -> Outcome<()>;
    fn change(self: Arc<Self>, change: Change, deadline: Duration) -> Boxed<()>;
    fn can_change(&self) -> bool;
    fn can_remember(&self) -> bool;
    fn name_of_store(&self) -> Option<String>;
}

impl<B: Backend> Engine for B {
    fn ask_now(&self, check: &Check) -> Option<Outcome<Decision>> {
        Some(complete(check, self.check_now(check)?))
    }

    fn ask(self: Arc<Self>, check: Check, guard: Arc<Guard>, inquiry: Option<Inquiry>) -> Boxed<Decision> {
        Box::pin(async move {
            let sent = inquiry.map(Inquiry::send);
            let check = check.with_deadline(guard.deadline());
            let outcome = guard.ask(async { complete(&check, self.check(&check).await) }).await;
            match sent {
                Some(sent) => sent.learn(&check, outcome),
                None => outcome,
            }
        })
    }

    fn forget(
        self: Arc<Self>,
        pairs: Check,
        deadline: Duration,
        denials: Option<Arc<Denials>>,
    ) -> Progress<()> {
        Progress::Later(Box::pin(async move {
            let forgotten = pairs.pairs().iter().map(|pair| (&pair.key, &pair.policy));
            let _evicting = denials.map(|denials| denials.evicting(forgotten));
            within(deadline, self.reset(&pairs)).await
        }))
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

    fn can_remember(&self) -> bool {
        self.denials_hold()
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

impl<T> Progress<T> {
    pub(crate) fn error(reason: Reason) -> Self {
        Self::Now(Some(Err(BackendError::new(reason))))
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
