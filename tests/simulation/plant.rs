//! Bugs that are planted, to see that they are found.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::timeout;
use tower_sliding_window::{
    Decision, Limiter, LimiterBuilder, OutageRule, RedisBackend, Status, Wait,
    backend::{Backend, BackendError, Check, Reason, Refund},
    outage::Share,
};

use super::plan::DEADLINE;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// The server decides whatever comes, however late it is.
    ServerIgnoresDeadlines,
    /// The server tells a clock that is ahead of the one it decides by, so that its clients know it too well.
    ServerTellsALaterClock,
    /// The server has room for a unit more than the quota.
    ServerAdmitsOneMore,
    /// A question is put again when its answer takes long.
    AsksAgain,
    /// Units are given back again when the answer is there.
    GivesBackTwice,
    OutageIsADenial,
    OutageIsAnAdmission,
    AlwaysAdmitsInAnOutage,
    /// The question goes on when nobody waits any more, and is not counted.
    AsksBehindTheBack,
    WaitsLonger,
    NeverConnectsAgain,
    /// Every process takes itself for the only one.
    TakesTheWholeShare,
    /// Streams stay open when nobody uses them.
    KeepsStreams,
}

/// How much the clock is ahead that such a server tells, in microseconds.
pub const AHEAD: u64 = 80_000;

/// How a limiter begins that has this bug or none.
pub fn limiter(bug: Option<Bug>, backend: RedisBackend) -> LimiterBuilder {
    match bug {
        Some(Bug::AsksAgain) => Limiter::builder(AsksAgain(backend)),
        Some(Bug::GivesBackTwice) => Limiter::builder(GivesBackTwice(backend)),
        Some(Bug::OutageIsADenial) => Limiter::builder(Decides { backend, admits: false }),
        Some(Bug::OutageIsAnAdmission) => Limiter::builder(Decides { backend, admits: true }),
        Some(Bug::AsksBehindTheBack) => Limiter::builder(AsksBehindTheBack(backend)),
        Some(Bug::WaitsLonger) => Limiter::builder(backend).deadline(2 * DEADLINE),
        _ => Limiter::builder(backend),
    }
}

/// The outage rule that is followed where this one is said.
pub fn outage(bug: Option<Bug>, said: OutageRule) -> OutageRule {
    match (bug, said) {
        (Some(Bug::TakesTheWholeShare), OutageRule::LocalFallback(_)) => {
            OutageRule::LocalFallback(Share::whole())
        }
        (Some(Bug::AlwaysAdmitsInAnOutage), _) => OutageRule::FailOpen,
        _ => said,
    }
}

/// Allows to connect, or only once.
pub fn allow_connecting(bug: Option<Bug>, has_connected: &Arc<AtomicBool>) -> io::Result<()> {
    if bug == Some(Bug::NeverConnectsAgain) && has_connected.swap(true, Ordering::SeqCst) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(())
}

struct AsksAgain(RedisBackend);

impl Backend for AsksAgain {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        match timeout(DEADLINE / 4, self.0.check(check)).await {
            Ok(Ok(decision)) => Ok(decision),
            _ => self.0.check(check).await,
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        self.0.refund(refund).await
    }
}

struct GivesBackTwice(RedisBackend);

impl Backend for GivesBackTwice {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.check(check).await
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        self.0.refund(refund).await?;
        self.0.refund(refund).await
    }
}

struct Decides {
    backend: RedisBackend,
    admits: bool,
}

impl Backend for Decides {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        if let Ok(Ok(decision)) = timeout(DEADLINE / 2, self.backend.check(check)).await {
            return Ok(decision);
        }
        let wait = if self.admits { Wait::ZERO } else { Wait::For(Duration::from_secs(1)) };
        let status = |pair| Status::new(pair, 0, wait, Duration::from_secs(1), Duration::from_secs(1));
        Ok(Decision::new(0, check.pairs().iter().map(status).collect::<Vec<_>>()))
    }
}

struct AsksBehindTheBack(RedisBackend);

impl Backend for AsksBehindTheBack {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let (backend, check) = (self.0.clone(), check.clone());
        let asked = tokio::spawn(async move { backend.check(&check).await });
        asked.await.unwrap_or_else(|_| Err(BackendError::new(Reason::Other)))
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        self.0.refund(refund).await
    }
}
