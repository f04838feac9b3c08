//! Outages of the store: outage rules, local fallback, circuit breaker and load shedding.

mod breaker;
mod configuration;
mod events;
mod fault_matrix;
mod load_shedding;
mod local_fallback;
mod rules;
mod settlement;
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

const OF_ONE_CHECK: [Reason; 5] =
    [Reason::CrossSlot, Reason::Full, Reason::ForeignValue, Reason::Unsupported, Reason::Misconfigured];

fn policy(name: &str, quota: u32) -> Policy {
    Policy::new(name, quota, MINUTE).unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

/// Builds a limiter of ten units on a backend that never answers immediately.
fn deferred(backend: &FakeBackend) -> LimiterBuilder {
    on(Later(backend.clone()))
}

fn on(backend: impl Backend) -> LimiterBuilder {
    Limiter::builder(backend).policy(policy("ten", 10))
}

/// Returns the verdict of a check, or the reason of its error and whether the store received the check.
fn outcome(outcome: Result<Decision, BackendError>) -> Result<bool, (Reason, bool)> {
    outcome.map(|it| it.is_admitted()).map_err(|error| (error.reason(), error.was_asked()))
}

/// The rate limit extensions of a request or a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    decision: bool,
    local: Option<Reason>,
    unchecked: Option<Reason>,
    rejection: Option<(&'static str, Reason)>,
}

impl Marks {
    fn of(extensions: &Extensions) -> Self {
        let rejection = extensions.get::<Rejection>().map(|rejection| match rejection {
            Rejection::Unavailable(error) => ("unavailable", error.reason()),
            Rejection::LocalFallbackDenied(error) => ("local fallback denied", error.reason()),
            other => panic!("{other:?}"),
        });
        Self {
            decision: extensions.get::<Decision>().is_some(),
            local: extensions.get::<LocalDecision>().map(LocalDecision::reason),
            unchecked: extensions.get::<Unchecked>().map(Unchecked::reason),
            rejection,
        }
    }
}

/// Returns the marks of a response of [`echo_marks`], and whether its request had a decision.
fn marks<B>(response: &Response<B>) -> Marks {
    let request = response.extensions().get::<RequestMarks>();
    let of_response = Marks::of(response.extensions());
    Marks { decision: request.is_some_and(|RequestMarks(request)| request.decision), ..of_response }
}

/// The marks of a request, which the inner service puts into its response.
#[derive(Clone)]
struct RequestMarks(Marks);

/// An inner service that returns the marks of its request.
async fn echo_marks(request: Request<()>) -> Result<Response<Bytes>, Infallible> {
    let mut response = Response::new(Bytes::new());
    response.extensions_mut().insert(RequestMarks(Marks::of(request.extensions())));
    Ok(response)
}

fn local(processes: u32) -> OutageRule {
    OutageRule::LocalFallback(tower_sliding_window::outage::Share::among(processes).unwrap())
}
