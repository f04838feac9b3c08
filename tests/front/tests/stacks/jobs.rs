//! Services without HTTP.

use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{Limiter, PartitionKey, RateLimitLayer, Rejection, by, protocol::By};

use crate::support::limiters;

struct Job {
    tenant: &'static str,
    rows: u32,
}

const JOB: Job = Job { tenant: "acme", rows: 1 };

/// A layer for jobs as the field of a struct.
struct Workers {
    limits: RateLimitLayer<By<Job>>,
}

impl Workers {
    fn new(limiter: Limiter) -> Self {
        let by_tenant = by(|job: &Job| (PartitionKey::new("tenant", job.tenant), job.rows));
        Self { limits: RateLimitLayer::new(limiter, by_tenant) }
    }
}

#[derive(Debug, PartialEq)]
enum JobError {
    Limited,
}

impl From<Rejection> for JobError {
    fn from(_: Rejection) -> Self {
        Self::Limited
    }
}

#[tokio::test]
async fn rejection_becomes_boxed_error() {
    for (limiter, verdicts) in limiters() {
        let work = service_fn(async |job: Job| Ok::<_, BoxError>(job.rows));
        let mut workers = Workers::new(limiter).limits.layer(work);
        for is_admitted in verdicts {
            match workers.ready().await.unwrap().call(JOB).await {
                Ok(rows) => assert!(is_admitted && rows == 1),
                Err(error) => assert!(!is_admitted && error.is::<Rejection>()),
            }
        }
    }
}

#[tokio::test]
async fn rejection_becomes_own_error() {
    for (limiter, verdicts) in limiters() {
        let work = service_fn(async |job: Job| Ok::<_, JobError>(job.rows));
        let mut workers = Workers::new(limiter).limits.layer(work);
        for is_admitted in verdicts {
            let result = workers.ready().await.unwrap().call(JOB).await;
            assert_eq!(result, if is_admitted { Ok(1) } else { Err(JobError::Limited) });
        }
    }
}

#[tokio::test]
async fn rejection_becomes_response() {
    for (limiter, verdicts) in limiters() {
        let by_tenant = by(|job: &Job| PartitionKey::new("tenant", job.tenant));
        let by_tenant = by_tenant.reject_with(|job, _| Ok(100 * job.rows));
        let work = service_fn(async |job: Job| Ok::<_, std::convert::Infallible>(job.rows));
        let mut workers = RateLimitLayer::new(limiter, by_tenant).layer(work);
        for is_admitted in verdicts {
            let rows = workers.ready().await.unwrap().call(JOB).await.unwrap();
            assert_eq!(rows, if is_admitted { 1 } else { 100 });
        }
    }
}
