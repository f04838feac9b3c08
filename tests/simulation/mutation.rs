//! Mutations: deliberate bugs that the rules must detect.

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
pub enum Mutation {
    /// The server decides checks after their deadlines.
    ServerIgnoresDeadlines,
    /// The server reports a clock that is ahead of the clock of its decisions.
    ServerReportsClockAhead,
    /// The server admits one unit more than the quota.
    ServerExceedsQuota,
    /// The client repeats a check if the reply is slow.
    RepeatsCheck,
    /// The client repeats a refund after the reply.
    RefundsTwice,
    ReportsOutageAsDenial,
    ReportsOutageAsAdmission,
    AlwaysFailsOpen,
    /// A cancelled check continues and is not counted.
    ContinuesCancelledCheck,
    ExceedsDeadline,
    NeverReconnects,
    /// Every process uses the whole quota as its share.
    UsesWholeQuotaAsShare,
    /// Unused streams stay open.
    LeaksStreams,
}

/// The lead of the reported clock, in microseconds.
pub const CLOCK_LEAD: u64 = 80_000;

/// Returns a builder of a limiter with this mutation.
pub fn limiter(mutation: Option<Mutation>, backend: RedisBackend) -> LimiterBuilder {
    match mutation {
        Some(Mutation::RepeatsCheck) => Limiter::builder(RepeatsCheck(backend)),
        Some(Mutation::RefundsTwice) => Limiter::builder(RefundsTwice(backend)),
        Some(Mutation::ReportsOutageAsDenial) => Limiter::builder(DecidesOutage { backend, admits: false }),
        Some(Mutation::ReportsOutageAsAdmission) => Limiter::builder(DecidesOutage { backend, admits: true }),
        Some(Mutation::ContinuesCancelledCheck) => Limiter::builder(ContinuesCancelledCheck(backend)),
        Some(Mutation::ExceedsDeadline) => Limiter::builder(backend).deadline(2 * DEADLINE),
        _ => Limiter::builder(backend),
    }
}

/// Returns the outage rule that a limiter with this mutation uses.
pub fn outage(mutation: Option<Mutation>, configured: OutageRule) -> OutageRule {
    match (mutation, configured) {
        (Some(Mutation::UsesWholeQuotaAsShare), OutageRule::LocalFallback(_)) => {
            OutageRule::LocalFallback(Share::whole())
        }
        (Some(Mutation::AlwaysFailsOpen), _) => OutageRule::FailOpen,
        _ => configured,
    }
}

/// Returns an error if the mutation forbids another connection.
pub fn allow_connecting(mutation: Option<Mutation>, has_connected: &Arc<AtomicBool>) -> io::Result<()> {
    if mutation == Some(Mutation::NeverReconnects) && has_connected.swap(true, Ordering::SeqCst) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(())
}

struct RepeatsCheck(RedisBackend);

impl Backend for RepeatsCheck {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        match timeout(DEADLINE / 4, self.0.check(check)).await {
            Ok(Ok(decision)) => Ok(decision),
            _ => self.0.check(check).await,
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.0.refund(refund).await
    }
}

struct RefundsTwice(RedisBackend);

impl Backend for RefundsTwice {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.check(check).await
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.0.refund(refund).await?;
        self.0.refund(refund).await
    }
}

struct DecidesOutage {
    backend: RedisBackend,
    admits: bool,
}

impl Backend for DecidesOutage {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        if let Ok(Ok(decision)) = timeout(DEADLINE / 2, self.backend.check(check)).await {
            return Ok(decision);
        }
        let wait = if self.admits { Wait::ZERO } else { Wait::For(Duration::from_secs(1)) };
        let status = |pair| Status::new(pair, 0, wait, Duration::from_secs(1), Duration::from_secs(1));
        Ok(Decision::new(0, check.pairs().iter().map(status).collect::<Vec<_>>()))
    }
}

struct ContinuesCancelledCheck(RedisBackend);

impl Backend for ContinuesCancelledCheck {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let (backend, check) = (self.0.clone(), check.clone());
        let task = tokio::spawn(async move { backend.check(&check).await });
        task.await.unwrap_or_else(|_| Err(BackendError::new(Reason::Other)))
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.0.refund(refund).await
    }
}
