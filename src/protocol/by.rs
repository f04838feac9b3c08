//! Services that are not HTTP.

use std::{fmt, sync::Arc};

use tower_service::Service;

use super::{AnyProtocol, Fits, Protocol};
use crate::{
    cost::{Costs, IntoUsed},
    key::KeyError,
    learn::Stated,
    limiter::{Admission, Draft, IntoDraft, Rejection},
};

type PlanFn<Req> = dyn Fn(&Req) -> Result<Draft, KeyError> + Send + Sync;
type AdmitFn<Req> = dyn Fn(&mut Req, &Admission) + Send + Sync;

/// The protocol of a service that is not HTTP, from closures. [`by`] returns it.
///
/// `R` is how it rejects: [`AsError`] or [`RejectWith`]. `S` is how it settles, and `L` how it learns: `()` for not at all, or
/// [`ByResponse`].
pub struct By<Req, R = AsError, S = (), L = ()> {
    plan: Arc<PlanFn<Req>>,
    admit: Arc<AdmitFn<Req>>,
    reject: R,
    settle: S,
    learn: L,
}

/// Rejects with the error of the service, which must implement `From<Rejection>`.
#[derive(Clone, Copy, Debug)]
pub struct AsError;

/// Rejects with the result of a closure. Made by [`By::reject_with`].
pub struct RejectWith<Req, Res, Err>(Arc<RejectWithFn<Req, Res, Err>>);

type RejectWithFn<Req, Res, Err> = dyn Fn(&Req, &Rejection) -> Result<Res, Err> + Send + Sync;

/// Settles or learns by a closure over the response. Made by [`By::settle_by`] and [`By::learn_by`].
pub struct ByResponse<Res, T>(Arc<ReadFn<Res, T>>);

type ReadFn<Res, T> = dyn Fn(&Res) -> Option<T> + Send + Sync;

/// Limits any service by a closure that returns the partition key and the cost of a request.
///
/// The closure names the type of the request, and cannot be async. It returns a [`PartitionKey`](crate::PartitionKey) for a cost of 1, `(key,
/// cost)` with a `u32` or [`Costs`], a [`Draft`] for exemptions, several keys, or policies of its own, or a `Result` of one of
/// these with [`KeyError`].
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, by};
///
/// struct Job { tenant: String, rows: u32 }
///
/// let limiter = Limiter::builder(MemoryBackend::new())
///     .policy(Policy::new("rows", 1_000, Duration::from_secs(1))?)
///     .build()?;
/// let limits = RateLimitLayer::new(limiter, by(|job: &Job| (PartitionKey::new("tenant", &job.tenant), job.rows)));
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// With an exemption, two keys, a response for rejected jobs, and the rows settled that the job has actually read:
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{
///     Costs, Decision, Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, by, protocol::Draft,
/// };
///
/// struct Job { tenant: String, database: String, rows: u32, decision: Option<Decision> }
/// enum Report { Done { rows: u32 }, Rejected(String) }
///
/// let second = Duration::from_secs(1);
/// let per_database = Policy::new("jobs", 5, second)?;
/// let protocol = by(move |job: &Job| match &*job.tenant {
///     "root" => Draft::exempt(),
///     tenant => Draft::check(PartitionKey::new("tenant", tenant), job.rows).and(Draft::check_against(
///         PartitionKey::new("database", &job.database),
///         per_database.clone(),
///         1,
///     )),
/// })
/// .admit_with(|job, admission| job.decision = admission.decision().cloned())
/// .settle_by(|report: &Report| match report {
///     Report::Done { rows } => Some(Costs::new().policy("rows", *rows)),
///     Report::Rejected(_) => None,
/// })
/// .reject_with(|_, rejection| Ok::<_, std::io::Error>(Report::Rejected(rejection.to_string())));
///
/// let limiter = Limiter::builder(MemoryBackend::new()).policy(Policy::new("rows", 1_000, second)?).build()?;
/// let limits = RateLimitLayer::new(limiter, protocol);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
pub fn by<Req, T: IntoDraft>(plan: impl Fn(&Req) -> T + Send + Sync + 'static) -> By<Req> {
    let plan = Arc::new(move |request: &Req| plan(request).into_draft());
    By { plan, admit: Arc::new(|_, _| {}), reject: AsError, settle: (), learn: () }
}

impl<Req, R, S, L> By<Req, R, S, L> {
    /// Passes the admission to the inner service: the closure writes the decision or the reservation into the request.
    pub fn admit_with(self, admit: impl Fn(&mut Req, &Admission) + Send + Sync + 'static) -> Self {
        Self { admit: Arc::new(admit), ..self }
    }

    /// Rejects with the response or the error that the closure returns. Without it, the error of the service must implement
    /// `From<Rejection>`. The closure cannot be async.
    ///
    /// Around a client whose error belongs to another crate, [box the error](crate::guide::waiting#limit-a-client-reqwest-hyper-tonic) instead.
    pub fn reject_with<Res, Err>(
        self,
        reject: impl Fn(&Req, &Rejection) -> Result<Res, Err> + Send + Sync + 'static,
    ) -> By<Req, RejectWith<Req, Res, Err>, S, L> {
        let Self { plan, admit, settle, learn, .. } = self;
        By { plan, admit, reject: RejectWith(Arc::new(reject)), settle, learn }
    }

    /// Settles every charge by the amount that the closure returns for the response. `None` leaves the charge. To settle by
    /// hand, return `None` and take the reservation with [`admit_with`](Self::admit_with).
    ///
    /// The limiter's backend must be able to [change charges](crate::backend::Backend::changes_charges). Otherwise, no
    /// counted request gets a decision: the reason is [`Reason::Unsupported`](crate::backend::Reason::Unsupported).
    pub fn settle_by<Res, U: IntoUsed>(
        self,
        used: impl Fn(&Res) -> U + Send + Sync + 'static,
    ) -> By<Req, R, ByResponse<Res, Costs>, L> {
        let Self { plan, admit, reject, learn, .. } = self;
        let settle = ByResponse(Arc::new(move |response: &Res| used(response).into_used()));
        By { plan, admit, reject, settle, learn }
    }

    /// Learns from every response, as [`Limiter::learn`](crate::Limiter::learn) does: the closure returns what it states. It proceeds in the
    /// background, after the settlement, and does not delay the response. The limiter must [learn](crate::LimiterBuilder::learn).
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower_sliding_window::{PartitionKey, by, learn::Stated};
    ///
    /// let host = by(|request: &Request<String>| PartitionKey::new("host", request.uri().host().unwrap_or_default()))
    ///     .learn_by(|response: &Response<String>| Stated::from_http(response.status(), response.headers()));
    /// ```
    pub fn learn_by<Res>(
        self,
        stated: impl Fn(&Res) -> Stated + Send + Sync + 'static,
    ) -> By<Req, R, S, ByResponse<Res, Stated>> {
        let Self { plan, admit, reject, settle, .. } = self;
        let learn = ByResponse(Arc::new(move |response: &Res| Some(stated(response))));
        By { plan, admit, reject, settle, learn }
    }
}

impl<Req, R, S, L> AnyProtocol for By<Req, R, S, L> {}

impl<Inner, Req, S, L> Fits<Inner> for By<Req, AsError, S, L>
where
    Inner: Service<Req>,
    AsError: Reject<Req, Inner::Response, Inner::Error>,
{
}

impl<Inner, Req, Res, Err, S, L> Fits<Inner> for By<Req, RejectWith<Req, Res, Err>, S, L> {}

/// How a rejection becomes the result of the service. Sealed.
#[diagnostic::on_unimplemented(
    message = "a rejection cannot become the result of a service from `{Req}` to `{Res}` with the error `{Err}`",
    label = "the error of the service, `{Err}`, does not implement `From<Rejection>`, or `.reject_with(..)` returns another type",
    note = "implement `From<Rejection>` for `{Err}`, or choose the result with `by(..).reject_with(|request, rejection| ..)`, which returns a `Result<{Res}, {Err}>`",
    note = "if the error belongs to another crate, box it inside the limit: `.layer(limits).map_err(BoxError::from)` in a `ServiceBuilder`; to wait in place of a rejection, use `WaitLayer`"
)]
pub trait Reject<Req, Res, Err> {
    fn reject(&self, request: &Req, rejection: Rejection) -> Result<Res, Err>;
}

/// How a protocol settles by a response, or learns from it: not at all by default. Sealed.
#[diagnostic::on_unimplemented(
    message = "`.settle_by(..)` or `.learn_by(..)` cannot read a response of the type `{Res}`",
    label = "the closure takes another type",
    note = "write `by(..).settle_by(|response: &{Res}| ..)`, and `.learn_by(|response: &{Res}| ..)`"
)]
pub trait ReadResponse<Res, T> {
    const READS: bool = false;

    fn read(&self, _response: &Res) -> Option<T> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<Req, Res, Err: From<Rejection>> Reject<Req, Res, Err> for AsError {
    fn reject(&self, _request: &Req, rejection: Rejection) -> Result<Res, Err> {
        Err(rejection.into())
    }
}

impl<Req, Res, Err> Reject<Req, Res, Err> for RejectWith<Req, Res, Err> {
    fn reject(&self, request: &Req, rejection: Rejection) -> Result<Res, Err> {
        (self.0)(request, &rejection)
    }
}

impl<Res, T> ReadResponse<Res, T> for () {}

impl<Res, T> ReadResponse<Res, T> for ByResponse<Res, T> {
    const READS: bool = true;

    fn read(&self, response: &Res) -> Option<T> {
        (self.0)(response)
    }
}

impl<Req, Res, Err, R, S, L> Protocol<Req, Res, Err> for By<Req, R, S, L>
where
    R: Reject<Req, Res, Err>,
    S: ReadResponse<Res, Costs>,
    L: ReadResponse<Res, Stated>,
{
    type Response = Res;

    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        let mut draft = (self.plan)(request)?;
        draft.reserves |= S::READS;
        Ok(draft)
    }

    fn admit(&self, request: &mut Req, admission: &Admission) {
        (self.admit)(request, admission);
    }

    fn stated(&self, response: &Res) -> Option<Stated> {
        self.learn.read(response)
    }

    fn reject(&self, request: &Req, rejection: Rejection) -> Result<Res, Err> {
        self.reject.reject(request, rejection)
    }

    fn respond(&self, response: Res, admission: Option<&Admission>) -> Res {
        if let Some(reservation) = admission.and_then(Admission::reservation)
            && let Some(used) = self.settle.read(&response)
        {
            // It proceeds in the background and does not delay the response.
            drop(reservation.settle(used));
        }
        response
    }
}

impl<Req, R: Clone, S: Clone, L: Clone> Clone for By<Req, R, S, L> {
    fn clone(&self) -> Self {
        let (plan, admit, learn) = (self.plan.clone(), self.admit.clone(), self.learn.clone());
        Self { plan, admit, reject: self.reject.clone(), settle: self.settle.clone(), learn }
    }
}

impl<Req, Res, Err> Clone for RejectWith<Req, Res, Err> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Res, T> Clone for ByResponse<Res, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Req, R, S, L> fmt::Debug for By<Req, R, S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By").finish_non_exhaustive()
    }
}

impl<Req, Res, Err> fmt::Debug for RejectWith<Req, Res, Err> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectWith").finish_non_exhaustive()
    }
}

impl<Res, T> fmt::Debug for ByResponse<Res, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByResponse").finish_non_exhaustive()
    }
}
