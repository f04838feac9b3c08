//! Services without HTTP, and custom backends.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sliding_window::{
    Decision, Limiter, MemoryBackend, OutageRule, PartitionKey, Policy, RateLimitLayer, Rejection, Status,
    Wait,
    backend::{Backend, BackendError, Check, Pair, Reason},
    by,
    key::MissingKey,
    protocol::Draft,
    testing::{FakeBackend, ManualClock},
};

use super::{
    Later, MINUTE, SECOND, api_key, policy,
    probe::{now, request_of},
};

#[derive(Debug)]
struct Job {
    tenant: &'static str,
    rows: u32,
}

#[derive(Debug, PartialEq, thiserror::Error)]
enum JobError {
    #[error("try again in {0:?}")]
    Busy(Duration),
    #[error("the job is too large")]
    TooLarge,
    #[error("the cause is unknown")]
    Unknown,
}

impl From<Rejection> for JobError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Denied(decision) => match decision.retry_after() {
                Wait::For(wait) => Self::Busy(wait),
                _ => Self::TooLarge,
            },
            _ => Self::Unknown,
        }
    }
}

/// Builds a layer that fails open and exempts requests without a key.
fn lenient_limits(backend: impl Backend) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE));
    builder.outage(OutageRule::FailOpen).key(api_key()).missing_key(MissingKey::Exempt).build().unwrap()
}

async fn run(backend: impl Backend, jobs: impl IntoIterator<Item = Job>) -> Vec<Result<String, JobError>> {
    let limiter = Limiter::builder(backend).policy(policy("rows", 100, MINUTE)).build().unwrap();
    let limits = RateLimitLayer::new(
        limiter,
        by(|job: &Job| match job.tenant {
            "root" => Draft::exempt(),
            tenant => Draft::check(PartitionKey::new("tenant", tenant), job.rows),
        }),
    );
    let inner = service_fn(async |job: Job| Ok(format!("{} rows of {}", job.rows, job.tenant)));
    let mut service = ServiceBuilder::new().layer(limits).service(inner);
    let mut answers = Vec::new();
    for job in jobs {
        answers.push(service.ready().await.unwrap().call(job).await);
    }
    answers
}

#[tokio::test]
async fn layer_rejects_job_by_error_of_service() {
    let jobs = || {
        [("acme", 60), ("acme", 60), ("acme", 40), ("acme", 101), ("other", 100), ("root", 1_000)]
            .map(|(tenant, rows)| Job { tenant, rows })
    };
    let memory = || MemoryBackend::new().with_clock(&ManualClock::new());
    let expected = [
        Ok("60 rows of acme".to_owned()),
        Err(JobError::Busy(MINUTE)),
        Ok("40 rows of acme".to_owned()),
        Err(JobError::TooLarge),
        Ok("100 rows of other".to_owned()),
        Ok("1000 rows of root".to_owned()),
    ];
    assert_eq!(run(memory(), jobs()).await, expected);
    assert_eq!(run(Later(memory()), jobs()).await, expected);

    let outage = run(FakeBackend::unavailable(Reason::Busy), [Job { tenant: "acme", rows: 1 }]).await;
    assert_eq!(outage, [Err(JobError::Unknown)]);
}

#[tokio::test]
async fn layer_passes_error_of_inner_service() {
    let limits = RateLimitLayer::builder(FakeBackend::admitting())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let inner =
        service_fn(async |_: Request<()>| Err::<Response<Bytes>, BoxError>("the service is broken".into()));
    let service = ServiceBuilder::new().layer(limits).service(inner);
    let error = service.oneshot(request_of("alice")).await.unwrap_err();
    assert_eq!(error.to_string(), "the service is broken");
}

#[tokio::test]
async fn layer_passes_inner_error_after_every_kind_of_admission() {
    let fails =
        |request: Request<()>| async move { Err::<Response<Bytes>, _>(request.uri().path().to_owned()) };
    for (backend, user) in [
        (FakeBackend::admitting(), "alice"),
        (FakeBackend::unavailable(Reason::Busy), "alice"),
        (FakeBackend::denying(SECOND), ""),
    ] {
        let immediate = lenient_limits(backend.clone()).layer(service_fn(fails));
        assert_eq!(immediate.oneshot(request_of(user)).await.unwrap_err(), "/");
        let delayed = lenient_limits(Later(backend)).layer(service_fn(fails));
        assert_eq!(delayed.oneshot(request_of(user)).await.unwrap_err(), "/");
    }
}

/// A custom backend with a fixed number of units, which never refill.
#[derive(Default)]
struct Budget(Mutex<HashMap<PartitionKey, u32>>);

impl Backend for Budget {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        tokio::task::yield_now().await;
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [pair] = check.pairs() else {
            return Err(BackendError::with_source(Reason::Other, "a budget has one policy"));
        };
        let spent = spent.entry(pair.key.clone()).or_default();
        let fits = *spent + pair.cost <= pair.policy.quota().unwrap();
        let wait = if fits { Wait::ZERO } else { Wait::Never };
        *spent += if fits { pair.cost } else { 0 };
        Ok(Decision::new(0, [Status::new(pair, pair.policy.quota().unwrap() - *spent, wait, MINUTE, MINUTE)]))
    }
}

#[tokio::test]
async fn custom_backend_needs_one_async_method() {
    let limits =
        RateLimitLayer::builder(Budget::default()).policy(policy("budget", 3, MINUTE)).key(api_key()).cost(2);
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Bytes::new())));
    let mut service = ServiceBuilder::new().layer(limits.build().unwrap()).service(inner);
    let mut answers = Vec::new();
    for user in ["alice", "alice", "bob"] {
        let response = service.ready().await.unwrap().call(request_of(user)).await.unwrap();
        let ratelimit = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        answers.push((response.status().as_u16(), ratelimit, response.headers().contains_key("retry-after")));
    }
    let one_left = r#""budget";r=1;t=60"#.to_owned();
    assert_eq!(
        answers,
        [(200, one_left.clone(), false), (429, one_left.clone(), false), (200, one_left, false)]
    );
}

#[tokio::test]
async fn rejection_holds_source_of_custom_backend_error() {
    let limits = RateLimitLayer::builder(Budget::default())
        .policy(policy("one", 3, MINUTE))
        .policy(policy("two", 3, MINUTE))
        .key(api_key());
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Bytes::new())));
    let service = ServiceBuilder::new().layer(limits.build().unwrap()).service(inner);
    let response = service.oneshot(request_of("alice")).await.unwrap();
    assert_eq!(response.status(), 503);
    let Some(Rejection::Unavailable(error)) = response.extensions().get::<Rejection>() else {
        panic!("no rejection")
    };
    assert_eq!(error.to_string(), "no rate limit decision: the store failed");
    assert_eq!(std::error::Error::source(error).unwrap().to_string(), "a budget has one policy");
}

/// A faulty backend that decides the first policy only.
struct Careless;

impl Backend for Careless {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        Ok(Decision::new(0, [Status::new(&check.pairs()[0], 1, Wait::ZERO, SECOND, SECOND)]))
    }
}

#[tokio::test]
async fn decision_without_every_policy_rejects_request() {
    let limits = RateLimitLayer::builder(Careless)
        .policy(policy("one", 3, MINUTE))
        .policy(policy("two", 3, MINUTE))
        .key(api_key());
    let inner = service_fn(async |_: Request<()>| -> Result<Response<Bytes>, Infallible> {
        panic!("the inner service was called")
    });
    let service = ServiceBuilder::new().layer(limits.build().unwrap()).service(inner);
    assert_eq!(service.oneshot(request_of("alice")).await.unwrap().status(), 503);
}

/// A backend that repeats one decision, without other work.
struct Repeats(Decision);

impl Backend for Repeats {
    async fn check(&self, _check: &Check) -> Result<Decision, BackendError> {
        Ok(self.0.clone())
    }
    fn check_now(&self, _check: &Check) -> Option<Result<Decision, BackendError>> {
        Some(Ok(self.0.clone()))
    }
}

#[test]
fn request_allocates_only_pairs_of_its_check() {
    let [one, two] = [policy("one", 3, MINUTE), policy("two", 3, MINUTE)];
    let key = PartitionKey::new("tenant", "acme");
    let status = |policy: &Policy| {
        Status::new(&Pair::new(key.clone(), policy.clone(), 1), 2, Wait::ZERO, MINUTE, MINUTE)
    };
    let backend = Repeats(Decision::new(0, [status(&one), status(&two)]));
    let shared = key.clone();
    let limiter = Limiter::builder(backend).policy(one).policy(two).build().unwrap();
    let protocol = by(move |_: &u32| (shared.clone(), 7)).reject_with(|_, _| Err(()));
    let limits = RateLimitLayer::new(limiter, protocol);
    let mut service = limits.layer(service_fn(|number: u32| std::future::ready(Ok::<_, ()>(number))));
    // The first requests may allocate for one-time work, such as warnings.
    for _ in 0..2 {
        assert_eq!(now(now(service.ready()).unwrap().call(1)), Ok(1));
    }
    let counted = allocation_counter::measure(|| assert_eq!(now(service.call(1)), Ok(1)));
    assert_eq!(counted.count_total, 1);
}
