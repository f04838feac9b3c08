//! What happens when the store cannot answer: to a request, to those behind it, and to the store itself.

mod breaker;
mod configuration;
mod matrix;
mod rules;
mod settling;
mod shares;
mod shedding;
mod soak;

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use tower_sliding_window::{
    Decision, Limiter, LimiterBuilder, OutageRule, PartitionKey, Policy, Rejection,
    backend::{Backend, BackendError, Reason},
    outage::{LocalDecision, Unchecked},
    testing::FakeBackend,
};

use crate::http::Later;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// The resolution of tokio's timer.
const TICK: Duration = Duration::from_millis(1);

const REASONS: [Reason; 14] = [
    Reason::Timeout,
    Reason::DeadlineExceeded,
    Reason::Connection,
    Reason::ReadOnly,
    Reason::OutOfMemory,
    Reason::NoPermission,
    Reason::Busy,
    Reason::CrossSlot,
    Reason::Full,
    Reason::ForeignValue,
    Reason::BrokenReply,
    Reason::Unsupported,
    Reason::Overloaded,
    Reason::Other,
];
const OF_ONE_CHECK: [Reason; 4] =
    [Reason::CrossSlot, Reason::Full, Reason::ForeignValue, Reason::Unsupported];

fn policy(name: &str, quota: u32) -> Policy {
    Policy::new(name, quota, MINUTE).unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

/// A limiter of ten units that asks a backend which does not answer at once.
fn later(backend: &FakeBackend) -> LimiterBuilder {
    on(Later(backend.clone()))
}

fn on(backend: impl Backend) -> LimiterBuilder {
    Limiter::builder(backend).policy(policy("ten", 10))
}

/// What a check became.
fn told(outcome: Result<Decision, BackendError>) -> Result<bool, (Reason, bool)> {
    outcome.map(|it| it.is_admitted()).map_err(|error| (error.reason(), error.was_asked()))
}

/// How a request was let through, as its extensions say, or those of its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    decision: bool,
    local: Option<Reason>,
    unchecked: Option<Reason>,
    refusal: Option<(&'static str, Reason)>,
}

impl Marks {
    fn of(extensions: &Extensions) -> Self {
        let refusal = extensions.get::<Rejection>().map(|refusal| match refusal {
            Rejection::Unavailable(error) => ("unavailable", error.reason()),
            Rejection::LocalFallbackDenied(error) => ("beyond share", error.reason()),
            other => panic!("{other:?}"),
        });
        Self {
            decision: extensions.get::<Decision>().is_some(),
            local: extensions.get::<LocalDecision>().map(LocalDecision::reason),
            unchecked: extensions.get::<Unchecked>().map(Unchecked::reason),
            refusal,
        }
    }
}

/// An inner service that answers with what it found in its request.
#[derive(Clone)]
struct Found(Marks);

async fn look(request: Request<()>) -> Result<Response<Bytes>, Infallible> {
    let mut response = Response::new(Bytes::new());
    response.extensions_mut().insert(Found(Marks::of(request.extensions())));
    Ok(response)
}

fn local(processes: u32) -> OutageRule {
    OutageRule::LocalFallback(tower_sliding_window::outage::Share::among(processes).unwrap())
}
