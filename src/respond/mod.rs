//! From a decision to what the client sees.
//!
//! The layer decides; what is said of it, and in which protocol, is said here and nowhere else.

use crate::{backend::BackendError, decision::Decision, key::KeyError};

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
    /// Leaves the decision in an admitted request, for the inner service.
    fn admit(&self, request: &mut Req, decision: &Decision);

    /// Answers a request that the inner service does not get.
    ///
    /// # Errors
    ///
    /// The error of the service, where that is how it refuses.
    fn refuse(&self, request: &Req, refusal: &Refusal) -> Result<Res, Err>;

    /// Tells in any answer what was decided, whoever made it: headers, extensions.
    fn annotate(&self, response: &mut Res, outcome: Outcome<'_>);
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
    /// The request names nobody whose usage could be counted.
    NoKey(KeyError),
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// It was admitted.
    Admitted(&'a Decision),
    /// It was refused.
    Refused(&'a Refusal),
}

impl<'a> Outcome<'a> {
    /// The decision, if there is one.
    pub fn decision(self) -> Option<&'a Decision> {
        match self {
            Self::Admitted(decision) | Self::Refused(Refusal::Denied(decision)) => Some(decision),
            Self::Refused(_) => None,
        }
    }
}
