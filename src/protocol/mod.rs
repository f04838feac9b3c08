//! Protocols: the seam between the limiter and the requests and responses of a service.
//!
//! [`Http`], the default, limits every service from `http::Request` to `http::Response`; a [`RateLimitLayerBuilder`](crate::RateLimitLayerBuilder) makes
//! it. [`by`] limits any other service. Implement [`Protocol`] only if neither fits.

mod body;
mod by;
mod http;
mod nested;
mod peer;
mod tables;

pub use body::LimitedBody;
pub use by::{AsError, By, ByResponse, RejectWith, by};
pub(crate) use http::{HeadFn, HttpOptions};
pub use http::{Http, SameBody};
pub(crate) use peer::Peers;
pub(crate) use tables::Tables;

pub use crate::limiter::{Draft, IntoDraft};
use crate::{
    key::KeyError,
    learn::Stated,
    limiter::{Admission, Rejection},
};

/// A [`Protocol`] of any requests: [`by`], or your own protocol that implements this trait too. So the compiler reports a mistake at the
/// line that makes the layer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a protocol",
    label = "expected a protocol, such as `by(|request: &Request<_>| PartitionKey::new(..))`",
    note = "if it is a closure, write `by(|request: &Request| ..)`; if it is a key for HTTP, call `RateLimitLayer::builder(limiter).key(..)`",
    note = "around a client, `by(|request: &Request<_>| ..)` returns the key of a request; a key extractor reads what a server receives",
    note = "for a protocol of your own, write `impl AnyProtocol for {Self} {{}}`"
)]
pub trait AnyProtocol {}

/// A protocol that fits a service, as far as that is known when a layer is added to the service. So the compiler reports a mistake
/// at the line of the layer, and not where the service is used.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not known to fit the service `{S}`",
    note = "for a protocol of your own, write `impl<S> Fits<S> for {Self} {{}}`"
)]
pub trait Fits<S> {}

/// Connects the limiter to a service from `Req` to `Res` with the error `Err`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot limit a service from `{Req}` to `{Res}` with the error `{Err}`",
    note = "`Http`, the default, limits every service from `http::Request<_>` to `http::Response<_>`",
    note = "for any other service, write `RateLimitLayer::new(limiter, by(|request: &Request| ..))`; it rejects with the service's error, which must implement `From<Rejection>`, or as `.reject_with(..)` states"
)]
pub trait Protocol<Req, Res, Err> {
    /// The response of the limited service.
    type Response;

    /// Returns the keys, costs and policies to check for a request.
    ///
    /// # Errors
    ///
    /// Returns a [`KeyError`] if the request has no key that can be read. The layer then rejects it.
    fn plan(&self, request: &Req) -> Result<Draft, KeyError>;

    /// Returns the matched route of a request, such as `/users/{id}`, for the label of a
    /// [metric](crate::guide::observability#metrics). It must not be a path or another value that a client can invent. The default
    /// is `None`.
    fn route<'a>(&self, request: &'a Req) -> Option<&'a str> {
        let _ = request;
        None
    }

    /// Passes the admission to the inner service, for example in the request's extensions.
    fn admit(&self, request: &mut Req, admission: &Admission) {
        let _ = (request, admission);
    }

    /// Returns what the response of the inner service states about the limits of an API, if the layer [learns](crate::learn) from it.
    /// The layer learns after [`respond`](Self::respond), and after the settlement that has begun there. The default is `None`.
    fn stated(&self, response: &Res) -> Option<Stated> {
        let _ = response;
        None
    }

    /// Builds the response of a rejected request, which the inner service does not receive.
    ///
    /// # Errors
    ///
    /// Returns the error of the service, if that is how it rejects.
    fn reject(&self, request: &Req, rejection: Rejection) -> Result<Self::Response, Err>;

    /// Converts the response of the inner service. The admission is `None` for an exempt request. If it has a
    /// [reservation](Admission::reservation), this is the place to settle it.
    fn respond(&self, response: Res, admission: Option<&Admission>) -> Self::Response;
}
