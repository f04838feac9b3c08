//! From a decision to what the client sees.
//!
//! The layer decides; what is said of it, and in which protocol, is said here and nowhere else.

use std::sync::Arc;

use crate::{
    backend::BackendError, cost::Costs, decision::Decision, error::ConfigError, key::KeyError,
    outage::Admission, settle::Reservation,
};

#[cfg(feature = "tonic")]
mod grpc;
mod headers;
mod http;
mod rejection;

#[cfg(feature = "tonic")]
pub use grpc::{Grpc, HttpOrGrpc};
pub use http::Http;
pub use rejection::{RefuseWith, WithRejection, refuse_with};

/// Speaks to a client about its limits, in the protocol of `Req`, `Res` and `Err`.
///
/// [`Http`] is the default; `Grpc` speaks gRPC. For a service that is no HTTP, implement it, or use
/// [`refuse_with`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not answer a `{Req}` with a `{Res}`",
    note = "`Http` needs a response body that is `From<Bytes>`; use `Grpc` for a tonic server, and `refuse_with` for a service that is no HTTP"
)]
pub trait Respond<Req, Res, Err> {
    /// Leaves in an admitted request, for the inner service, how it was admitted, and the reservation if the layer
    /// [settles](Self::settles).
    fn admit(&self, request: &mut Req, admission: &Admission, reservation: Option<&Reservation>);

    /// Answers a request that the inner service does not get.
    ///
    /// # Errors
    ///
    /// The error of the service, where that is how it refuses.
    fn refuse(&self, request: &Req, refusal: &Refusal) -> Result<Res, Err>;

    /// Tells in any answer what was decided, whoever made it: headers, extensions.
    fn annotate(&self, response: &mut Res, outcome: Outcome<'_>);

    /// Whether every counted request is a reservation, which may be settled afterwards. The backend must be one that
    /// [changes charges](crate::Backend::changes_charges) then. [`Settling`](crate::Settling) does.
    fn settles(&self) -> bool {
        false
    }

    /// What an admitted request has used, as far as the inner service's response tells. None if it tells nothing: then the
    /// charge stands, unless whoever holds the reservation settles it. It is asked if the layer [settles](Self::settles).
    fn used(&self, response: &Res) -> Option<Costs> {
        let _ = response;
        None
    }
}

/// Why a request is not let through. Only the first of these is the client's doing, and only it is a 429.
///
/// It is in the extensions of the response, whoever has made the body.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The quota is used up.
    Denied(Decision),
    /// The backend could not decide.
    Unavailable(BackendError),
    /// The backend could not decide, and the [local share](crate::OutageRule::Local) has no room. It is no denial, for nobody
    /// knows whether the quota is used up, and no wait is known.
    BeyondShare(BackendError),
    /// The request names nobody whose usage could be counted.
    NoKey(KeyError),
    /// What was to be asked for this request is no check: too many pairs, or one of them twice. It is a mistake in the
    /// server, and nobody was asked.
    Misconfigured(Arc<ConfigError>),
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// It was admitted, and this is how.
    Admitted(&'a Admission),
    /// It was refused.
    Refused(&'a Refusal),
}

impl<'a> Outcome<'a> {
    /// The decision, if the backend has made one.
    pub fn decision(self) -> Option<&'a Decision> {
        match self {
            Self::Admitted(admission) => admission.checked(),
            Self::Refused(Refusal::Denied(decision)) => Some(decision),
            Self::Refused(_) => None,
        }
    }
}
