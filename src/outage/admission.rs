//! How a request was let through: three types that nobody can take for each other.

use crate::{
    backend::{BackendError, Reason},
    decision::Decision,
};

/// How a request was let through.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Admission {
    /// The store has decided and charged it.
    Checked(Decision),
    /// The store could not, and the memory of this process did.
    Local(LocalDecision),
    /// Nobody has decided or charged it.
    Unchecked(Unchecked),
}

/// A request that was let through although it could not be checked: [`OutageRule::Admit`](crate::OutageRule::Admit).
///
/// It is in the extensions of the request and of the response, where a [`Decision`] would be otherwise. Where layers are
/// nested it says that at least one of them could not check.
#[derive(Clone, Debug)]
pub struct Unchecked(BackendError);

/// A request that was let through by the local share of every quota, for the store could not decide:
/// [`OutageRule::Local`](crate::OutageRule::Local).
///
/// It is in the extensions of the request and of the response, where a [`Decision`] would be otherwise.
#[derive(Clone, Debug)]
pub struct LocalDecision {
    decision: Decision,
    error: BackendError,
}

impl Unchecked {
    pub(crate) fn new(error: BackendError) -> Self {
        Self(error)
    }

    /// Why it could not be checked.
    pub fn error(&self) -> &BackendError {
        &self.0
    }

    /// Why it could not be checked, in a word.
    pub fn reason(&self) -> Reason {
        self.0.reason()
    }
}

impl LocalDecision {
    pub(crate) fn new(decision: Decision, error: BackendError) -> Self {
        Self { decision, error }
    }

    /// What was decided. Its policies have the share for a quota, and what it tells is true of this process only. A pair that
    /// costs nothing and whose share is 0 is left out.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Why the store could not decide.
    pub fn error(&self) -> &BackendError {
        &self.error
    }

    /// Why the store could not decide, in a word.
    pub fn reason(&self) -> Reason {
        self.error.reason()
    }
}

impl Admission {
    /// What the store has decided. None if it has not, whatever the memory said.
    pub fn checked(&self) -> Option<&Decision> {
        match self {
            Self::Checked(decision) => Some(decision),
            Self::Local(_) | Self::Unchecked(_) => None,
        }
    }

    /// Why the store has not decided. None if it has.
    pub fn error(&self) -> Option<&BackendError> {
        match self {
            Self::Checked(_) => None,
            Self::Local(local) => Some(local.error()),
            Self::Unchecked(unchecked) => Some(unchecked.error()),
        }
    }
}
