//! Refusals that the user makes.

use super::{Outcome, Refusal, Respond};
use crate::{cost::Costs, outage::Admission, settle::Reservation};

/// Refuses by a closure and says everything else as `R` does, so the headers stay; made by
/// [`Builder::rejection`](crate::Builder::rejection).
#[derive(Clone, Copy, Debug)]
pub struct WithRejection<F, R> {
    reject: F,
    others: R,
}

/// Refuses by a closure and says nothing else; made by [`refuse_with`].
#[derive(Clone, Copy, Debug)]
pub struct RefuseWith<F>(F);

/// Answers for a service that is no HTTP: the closure makes the response, or the service's error, of a refused request.
/// Nothing is added to requests and responses that pass.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, PartitionKey, Policy, RateLimitLayer, Refusal, refuse_with};
///
/// struct Job { tenant: String }
///
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("jobs", 10, Duration::from_secs(1))?)
///     .key(|job: &Job| PartitionKey::new("tenant", &job.tenant))
///     .respond(refuse_with(|refusal: &Refusal| Err::<(), _>(format!("{refusal:?}"))))
///     .build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
pub fn refuse_with<F, Res, Err>(refuse: F) -> RefuseWith<F>
where
    F: Fn(&Refusal) -> Result<Res, Err>,
{
    RefuseWith(refuse)
}

impl<F, R> WithRejection<F, R> {
    pub(crate) fn new(reject: F, others: R) -> Self {
        Self { reject, others }
    }
}

impl<Req, Res, Err, F, R> Respond<Req, Res, Err> for WithRejection<F, R>
where
    F: Fn(&Refusal) -> Res,
    R: Respond<Req, Res, Err>,
{
    fn admit(&self, request: &mut Req, admission: &Admission, reservation: Option<&Reservation>) {
        self.others.admit(request, admission, reservation);
    }

    fn refuse(&self, _request: &Req, refusal: &Refusal) -> Result<Res, Err> {
        Ok((self.reject)(refusal))
    }

    fn annotate(&self, response: &mut Res, outcome: Outcome<'_>) {
        self.others.annotate(response, outcome);
    }

    fn settles(&self) -> bool {
        self.others.settles()
    }

    fn used(&self, response: &Res) -> Option<Costs> {
        self.others.used(response)
    }
}

impl<Req, Res, Err, F> Respond<Req, Res, Err> for RefuseWith<F>
where
    F: Fn(&Refusal) -> Result<Res, Err>,
{
    fn admit(&self, _request: &mut Req, _admission: &Admission, _reservation: Option<&Reservation>) {}

    fn refuse(&self, _request: &Req, refusal: &Refusal) -> Result<Res, Err> {
        (self.0)(refusal)
    }

    fn annotate(&self, _response: &mut Res, _outcome: Outcome<'_>) {}
}
