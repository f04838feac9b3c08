//! Waiting in front of a client: each request is sent at the instant at which its limit admits it.
//!
//! [`WaitLayer`] suits every client that is a tower service, such as `reqwest::Client`, the client of `hyper-util`, or a channel of
//! tonic. To wait without a service, use [`Limiter::wait`](crate::Limiter::wait), which also states the order of requests and when
//! a request gives up. For details, see [the guide](crate::guide::waiting).

mod error;
mod layer;
mod when_denied;

pub use error::WaitError;
pub use layer::WaitLayer;
pub use when_denied::{DenyAtOnce, WaitAtMost, WhenDenied};
