//! The error of a backend that makes no decision.

use std::{error::Error, fmt, sync::Arc};

/// The error of a backend that makes no decision. It is never a denial. [`Reason::is_outage`] states whether it is an outage.
///
/// Cloning is cheap.
#[derive(Clone)]
pub struct BackendError(Arc<Failure>);

/// The contents of an error. Results of checks are moved often, so the error itself is one word.
#[derive(Clone)]
struct Failure {
    reason: Reason,
    /// Why the store was not asked. `None` if it was.
    not_sent: Option<&'static str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The reason why a backend made no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The backend did not answer within the deadline. The charge may stand.
    Timeout,
    /// The check reached the store after its deadline, or the clock of the store was stepped forward. Nothing was charged.
    DeadlineExceeded,
    /// The store cannot be reached, or the connection was lost. If it was lost while the check was in progress, the charge may
    /// stand.
    Connection,
    /// The store accepts no writes: it is a replica, has too few replicas, or cannot write to its disk.
    ReadOnly,
    /// The store is out of memory.
    OutOfMemory,
    /// The user of the store lacks a permission, or its password is wrong.
    NoPermission,
    /// The store is busy with another script, with loading its data, or with a change of the cluster topology.
    Busy,
    /// The keys of the check are in different slots of a cluster.
    CrossSlot,
    /// A bound is reached: on the partition keys of a memory backend that can evict none, on the tokens or the answers of an API that a
    /// memory backend remembers, on the records of one log, or on the settlement queue.
    Full,
    /// A key of the check contains a value that this version of the crate has not written.
    ForeignValue,
    /// The reply of the store cannot be read.
    BrokenReply,
    /// The backend can only charge.
    Unsupported,
    /// The check cannot be made: it has no policies, too many pairs, the same pair twice, or a key that cannot be read. Or nothing can be
    /// blocked or learned: no policy is a gate, or the limiter does not learn. This is a mistake in the server, and the store was not
    /// asked. The text of the error and its source state the mistake.
    Misconfigured,
    /// More checks are in flight than are decided within the deadline: the store was not asked, or it answers other checks and has
    /// not answered this one in time. Or too many requests wait. This is no outage of the store, so no outage rule admits the request.
    Overloaded,
    /// Any other reason.
    Other,
}

impl BackendError {
    /// Creates an error without a source.
    pub fn new(reason: Reason) -> Self {
        Self(Arc::new(Failure { reason, not_sent: None, source: None }))
    }

    /// Creates an error with a source.
    pub fn with_source(reason: Reason, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Arc::new(Failure { reason, not_sent: None, source: Some(Arc::from(source.into())) }))
    }

    /// Returns the reason.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// Returns false if the store was not asked, so that no charge can stand: too many checks were in flight, this limiter could not make
    /// the check ([`Reason::Misconfigured`]), the backend cannot ([`Reason::Unsupported`]), or the [`Breaker`](crate::outage::Breaker) was
    /// open. In that last case, the reason is that of the failure that has opened it.
    pub fn was_asked(&self) -> bool {
        self.0.not_sent.is_none()
    }

    /// Creates the error of a call that the backend cannot make, and for which it is not asked.
    pub(crate) fn unsupported() -> Self {
        Self::new(Reason::Unsupported).not_sent("the store was not asked")
    }

    /// Marks the error of a check for which the store was not asked, for this reason.
    pub(crate) fn not_sent(mut self, why: &'static str) -> Self {
        Arc::make_mut(&mut self.0).not_sent = Some(why);
        self
    }
}

impl Reason {
    /// All reasons.
    pub const ALL: &'static [Self] = &[
        Self::Timeout,
        Self::DeadlineExceeded,
        Self::Connection,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::NoPermission,
        Self::Busy,
        Self::CrossSlot,
        Self::Full,
        Self::ForeignValue,
        Self::BrokenReply,
        Self::Unsupported,
        Self::Misconfigured,
        Self::Overloaded,
        Self::Other,
    ];

    /// Returns a short name for labels and fields, such as `"deadline_exceeded"`. It never changes. [`Display`](fmt::Display)
    /// writes a sentence instead.
    pub fn name(self) -> &'static str {
        self.name_and_text().0
    }

    /// Returns whether this is an error of one check or one key, while the store answers others: `CrossSlot`, `Full`,
    /// `ForeignValue`, `Unsupported` and `Misconfigured`.
    ///
    /// The [`Breaker`](crate::outage::Breaker) does not open for them: otherwise a single key could disable all others.
    /// [`OutageRule::FailOpen`](crate::OutageRule::FailOpen) does not admit for them.
    pub fn is_of_one_check(self) -> bool {
        matches!(
            self,
            Self::CrossSlot | Self::Full | Self::ForeignValue | Self::Unsupported | Self::Misconfigured
        )
    }

    /// Returns whether this is an outage of the store: every reason except those of [one check](Self::is_of_one_check) and
    /// `Overloaded`. [`OutageRule::FailOpen`](crate::OutageRule::FailOpen) admits only in an outage.
    pub fn is_outage(self) -> bool {
        !self.is_of_one_check() && self != Self::Overloaded
    }

    fn name_and_text(self) -> (&'static str, &'static str) {
        match self {
            Self::Timeout => ("timeout", "the store did not answer within the deadline"),
            Self::DeadlineExceeded => {
                ("deadline_exceeded", "deadline exceeded: the check reached the store too late")
            }
            Self::Connection => ("connection", "the store cannot be reached"),
            Self::ReadOnly => ("read_only", "the store accepts no writes"),
            Self::OutOfMemory => ("out_of_memory", "the store is out of memory"),
            Self::NoPermission => {
                ("no_permission", "the user of the store lacks a permission, or its password is wrong")
            }
            Self::Busy => ("busy", "the store is busy"),
            Self::CrossSlot => ("cross_slot", "the keys are in different slots of the cluster"),
            Self::Full => ("full", "a storage bound is reached"),
            Self::ForeignValue => ("foreign_value", "a key contains a foreign value"),
            Self::BrokenReply => ("broken_reply", "the reply of the store cannot be read"),
            Self::Unsupported => ("unsupported", "the backend can only charge"),
            Self::Misconfigured => ("misconfigured", "misconfigured check"),
            Self::Overloaded => ("overloaded", "overloaded: too many checks in flight"),
            Self::Other => ("other", "the store failed"),
        }
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { reason, source, .. } = &*self.0;
        f.debug_struct("BackendError")
            .field("reason", reason)
            .field("was_asked", &self.was_asked())
            .field("source", source)
            .finish()
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no rate limit decision: {}", self.reason())?;
        match (self.reason(), self.0.not_sent) {
            // The reason alone does not state the mistake.
            (Reason::Misconfigured, _) => self.0.source.iter().try_for_each(|cause| write!(f, ": {cause}")),
            (Reason::Overloaded, None) => f.write_str(" (the store answers other checks)"),
            (Reason::Overloaded, Some(_)) | (_, None) => Ok(()),
            (_, Some(why)) => write!(f, " ({why})"),
        }
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name_and_text().1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misconfigured_check_names_its_mistake() {
        let error = BackendError::with_source(Reason::Misconfigured, "no gate");
        assert_eq!(error.to_string(), "no rate limit decision: misconfigured check: no gate");
        assert!(!error.not_sent("misconfigured").was_asked());
        let bare = BackendError::new(Reason::Misconfigured);
        assert_eq!(bare.to_string(), "no rate limit decision: misconfigured check");
    }

    #[test]
    fn list_of_reasons_has_each_reason_once() {
        // Counters are indexed by the discriminant. `Other` is the last reason.
        assert!(Reason::ALL.iter().enumerate().all(|(i, reason)| *reason as usize == i));
        assert_eq!(Reason::ALL.last(), Some(&Reason::Other));
    }
}
