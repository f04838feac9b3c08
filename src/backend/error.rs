//! Why there is no decision.

use std::{error::Error, fmt, sync::Arc};

/// There is no decision: the backend could not answer. This is an outage and never a denial.
///
/// Cloning is cheap.
#[derive(Clone, Debug)]
pub struct BackendError {
    reason: Reason,
    was_asked: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// Why a backend could not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No answer within the deadline. The charge may stand.
    Timeout,
    /// The check came to the store after its deadline, or the store's clock had just been set forward. Nothing was charged.
    Late,
    /// The store cannot be reached, or the connection broke. If it broke while the check was under way, its charge may
    /// stand.
    Connection,
    /// The store takes no writes: it is a replica, has too few replicas, or cannot write to its disk.
    ReadOnly,
    /// The store has no memory left.
    OutOfMemory,
    /// The store's user lacks a permission, or its password was refused.
    NoPermission,
    /// The store is busy: with another script, with loading its data, or with a change of its topology.
    Busy,
    /// The keys of the check live on different nodes of a cluster.
    CrossSlot,
    /// A bound is reached: on the partition keys of a memory backend, on the records of one log, or on the settlements
    /// that wait.
    Full,
    /// What is stored under a key of the check was not written by this version of this crate.
    ForeignValue,
    /// The store answered something that is no answer.
    BrokenReply,
    /// The backend can do nothing but charge.
    Unsupported,
    /// Too many checks are under way. The store was not asked.
    Shed,
    /// Anything else.
    Other,
}

impl BackendError {
    /// An error without a source.
    pub fn new(reason: Reason) -> Self {
        Self { reason, was_asked: true, source: None }
    }

    /// An error with its source.
    pub fn with_source(reason: Reason, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { reason, was_asked: true, source: Some(Arc::from(source.into())) }
    }

    /// Why there is no decision.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// False where the store was not asked for this decision, so that no charge of it can stand: too many checks were under
    /// way, or the [`Breaker`](crate::Breaker) was open, and the reason is that of the failure that has opened it.
    pub fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// The same of a check for which nobody was asked.
    pub(crate) fn unasked(self) -> Self {
        Self { was_asked: false, ..self }
    }
}

impl Reason {
    /// Whether this is an error of one check, or of one key, while the store answers others: `CrossSlot`, `Full`,
    /// `ForeignValue` and `Unsupported`. All others, those that nobody knows among them, are taken for an outage of the store.
    ///
    /// The [`Breaker`](crate::Breaker) does not open for these, or a single key would shut off all others; and
    /// [`OutageRule::Admit`](crate::OutageRule::Admit) does not admit for them.
    pub fn is_of_one_check(self) -> bool {
        match self {
            Self::CrossSlot | Self::Full | Self::ForeignValue | Self::Unsupported => true,
            Self::Timeout
            | Self::Late
            | Self::Connection
            | Self::ReadOnly
            | Self::OutOfMemory
            | Self::NoPermission
            | Self::Busy
            | Self::BrokenReply
            | Self::Shed
            | Self::Other => false,
        }
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rate limit cannot be decided: {}", self.reason)?;
        if !self.was_asked && self.reason != Reason::Shed {
            f.write_str("; it was not asked again yet")?;
        }
        Ok(())
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "no answer within the deadline",
            Self::Late => "the check came too late",
            Self::Connection => "the store cannot be reached",
            Self::ReadOnly => "the store takes no writes",
            Self::OutOfMemory => "the store is out of memory",
            Self::NoPermission => "the store refuses its user",
            Self::Busy => "the store is busy",
            Self::CrossSlot => "the keys live on different nodes",
            Self::Full => "a bound on what is stored is reached",
            Self::ForeignValue => "a key holds a foreign value",
            Self::BrokenReply => "the store's answer cannot be read",
            Self::Unsupported => "the backend can do nothing but charge",
            Self::Shed => "too many checks are under way",
            Self::Other => "the store failed",
        })
    }
}
