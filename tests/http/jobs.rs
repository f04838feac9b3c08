//! A service without HTTP: every feature of a layer for requests of a custom type.

use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneService};
use tower_sliding_window::{
    Admission, Costs, Decision, Limiter, LimiterBuilder, MemoryBackend, OutageRule, PartitionKey, Policies,
    PolicyTable, RateLimitLayer, Rejection, Reservation, Wait,
    backend::{Backend, Pair, Purpose, Reason},
    by,
    key::KeyError,
    outage::{LocalDecision, Share, Unchecked},
    protocol::{AnyProtocol, By, Draft, Fits, IntoDraft, Protocol, RejectWith},
    settle::Settled,
    testing::{
        FakeAnswer::{Admit, Deny},
        FakeBackend, ManualClock,
    },
};

use super::{Later, MINUTE, SECOND, policy};

/// A job with the fields that the layer sets.
#[derive(Clone, Debug, Default)]
struct Job {
    tenant: &'static str,
    user: &'static str,
    tier: Option<&'static str>,
    rows: u32,
    decision: Option<Decision>,
    unchecked: Option<Unchecked>,
    local: Option<LocalDecision>,
    reservation: Option<Reservation>,
}

/// The response to a job.
#[derive(Clone, Debug, Default, PartialEq)]
struct Report {
    /// What the inner service found in the job: the remaining units of each policy.
    found: Vec<(String, u32)>,
    found_unchecked: bool,
    found_local: bool,
    /// What the layer added to the response.
    added: Vec<(String, u32)>,
    /// The tenant of a rejected job, and the reason.
    rejected: Option<(&'static str, &'static str)>,
}

/// The protocol of jobs: it rejects by the error of the service.
type ByJob = By<Job, RejectWith<Job, Report, &'static str>>;

/// Adds the decision to reports, which closures cannot, and leaves all else to another protocol.
#[derive(Clone, Debug)]
struct Reporting<P = ByJob>(P);

impl<P> AnyProtocol for Reporting<P> {}

impl<P: Fits<S>, S> Fits<S> for Reporting<P> {}

impl<P> Protocol<Job, Report, &'static str> for Reporting<P>
where
    P: Protocol<Job, Report, &'static str, Response = Report>,
{
    type Response = Report;

    fn plan(&self, job: &Job) -> Result<Draft, KeyError> {
        self.0.plan(job)
    }

    fn admit(&self, job: &mut Job, admission: &Admission) {
        self.0.admit(job, admission);
    }

    fn reject(&self, job: &Job, rejection: Rejection) -> Result<Report, &'static str> {
        let added = rejection.decision().map(remaining).unwrap_or_default();
        Ok(Report { added, ..self.0.reject(job, rejection)? })
    }

    fn respond(&self, report: Report, admission: Option<&Admission>) -> Report {
        let decision = admission.and_then(Admission::decision);
        let report = self.0.respond(report, admission);
        Report { added: decision.map(remaining).unwrap_or_default(), ..report }
    }
}

/// Leaves the admission in the job.
fn admit(job: &mut Job, admission: &Admission) {
    job.decision = admission.decision().cloned();
    job.unchecked = admission.unchecked().cloned();
    job.local = admission.local().cloned();
    job.reservation = admission.reservation().cloned();
}

/// Begins a protocol that leaves the admission in the job, and rejects by the error of the service.
fn by_job<T: IntoDraft>(plan: impl Fn(&Job) -> T + Send + Sync + 'static) -> ByJob {
    by(plan).admit_with(admit).reject_with(|_, rejection| Err(name(rejection)))
}

/// Builds a layer over this limiter.
fn layer<T: IntoDraft>(
    limiter: LimiterBuilder,
    plan: impl Fn(&Job) -> T + Send + Sync + 'static,
) -> RateLimitLayer<Reporting> {
    RateLimitLayer::new(limiter.build().unwrap(), Reporting(by_job(plan)))
}

fn name(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Denied(_) => "denied",
        Rejection::Unavailable(_) => "unavailable",
        Rejection::LocalFallbackDenied(_) => "local fallback denied",
        Rejection::Key(KeyError::Missing { .. }) => "missing key",
        Rejection::Key(KeyError::Malformed { .. }) => "malformed key",
        Rejection::Key(_) => "unknown key",
        Rejection::Misconfigured(_) => "misconfigured",
        _ => "other",
    }
}

fn tenant(job: &Job) -> PartitionKey {
    PartitionKey::new("tenant", job.tenant)
}

fn user(job: &Job) -> PartitionKey {
    PartitionKey::new("user", job.user)
}

fn costs(job: &Job) -> Costs {
    Costs::new().policy("rows", job.rows)
}

/// Builds a layer of two policies with a cost for each.
fn limits_with_costs(backend: impl Backend) -> RateLimitLayer<Reporting> {
    let limiter = Limiter::builder(backend).policy(policy("jobs", 3, MINUTE));
    layer(limiter.policy(policy("rows", 100, MINUTE)), |job| match job.tenant {
        "root" => Draft::exempt(),
        _ => Draft::check(tenant(job), costs(job)),
    })
}

/// Builds a layer that counts the tenant and the user.
fn limits_with_two_keys(backend: impl Backend) -> RateLimitLayer<Reporting> {
    let per_user = Policies::from(policy("per-user", 5, MINUTE));
    layer(Limiter::builder(backend).policy(policy("per-tenant", 10, MINUTE)), move |job| {
        Draft::check(tenant(job), 1).and(Draft::check_against(user(job), per_user.clone(), job.rows))
    })
}

/// Builds a layer whose policies come from a table, by the tier of the job.
fn limits_with_table(backend: impl Backend, table: &PolicyTable) -> RateLimitLayer<Reporting> {
    let table = table.clone();
    layer(Limiter::builder(backend).without_policies(), move |job| match job.tier {
        Some(tier) => Draft::check_against(tenant(job), table.pick(tier), 1),
        None => Draft::exempt(),
    })
}

/// Builds a layer with a rule for jobs without a tenant.
fn limits_for_missing_key(
    backend: impl Backend,
    rule: fn() -> Result<Draft, KeyError>,
) -> RateLimitLayer<Reporting> {
    layer(Limiter::builder(backend).policy(policy("jobs", 2, MINUTE)), move |job| match job.tenant {
        "" => rule(),
        "?" => Err(KeyError::malformed("tenant", "unknown sign")),
        _ => Ok(Draft::check(tenant(job), 1)),
    })
}

/// Builds a layer that fails open for small jobs and closed for others, and decides jobs without rows locally.
fn limits_with_outage_rule(backend: impl Backend) -> RateLimitLayer<Reporting> {
    let half = Share::among(2).unwrap();
    layer(Limiter::builder(backend).policy(policy("jobs", 3, MINUTE)), move |job| {
        Draft::check(tenant(job), 1).outage(match job.rows {
            0 => OutageRule::LocalFallback(half),
            1..10 => OutageRule::FailOpen,
            _ => OutageRule::FailClosed,
        })
    })
}

/// Builds a limiter of one hundred rows.
fn limiter_of_rows(backend: impl Backend) -> Limiter {
    Limiter::builder(backend).policy(policy("rows", 100, MINUTE)).build().unwrap()
}

/// Builds a layer that answers rejected jobs by a report.
fn limits_with_rejection(backend: impl Backend) -> RateLimitLayer<Reporting> {
    let limiter = Limiter::builder(backend).policy(policy("jobs", 3, MINUTE)).build().unwrap();
    let reject = |job: &Job, rejection: &Rejection| {
        Ok(Report { rejected: Some((job.tenant, name(rejection))), ..Report::default() })
    };
    RateLimitLayer::new(limiter, Reporting(by(tenant).admit_with(admit).reject_with(reject)))
}

/// Builds a layer whose plan decides everything by the job.
fn limits_with_plan(backend: impl Backend) -> RateLimitLayer<Reporting> {
    layer(Limiter::builder(backend).without_policies(), |job| match job.tenant {
        "root" => Ok(Draft::exempt()),
        "" => Err(KeyError::missing("")),
        _ => {
            let rows = Policies::from(policy("rows", 100, MINUTE));
            let pair = Pair::new(user(job), policy("per-user", 5, MINUTE), 2);
            Ok(Draft::check_against(tenant(job), rows, job.rows).and(Draft::pairs([pair])))
        }
    })
}

fn job(tenant: &'static str, rows: u32) -> Job {
    Job { tenant, user: "alice", rows, ..Job::default() }
}

fn remaining(decision: &Decision) -> Vec<(String, u32)> {
    let statuses = decision.statuses().iter();
    statuses.map(|status| (status.policy().name().to_owned(), status.remaining())).collect()
}

fn units<const N: usize>(of: [(&str, u32); N]) -> Vec<(String, u32)> {
    of.map(|(name, units)| (name.to_owned(), units)).into()
}

async fn work(job: Job) -> Result<Report, &'static str> {
    if job.tenant == "broken" {
        return Err("the inner service failed");
    }
    if let Some(reservation) = job.reservation {
        assert!(matches!(reservation.settle(job.rows / 2).await, Settled::Done { .. }));
    }
    let found = job.decision.as_ref().map(remaining).unwrap_or_default();
    let (found_unchecked, found_local) = (job.unchecked.is_some(), job.local.is_some());
    Ok(Report { found, found_unchecked, found_local, ..Report::default() })
}

/// Runs these jobs one after the other.
async fn run<P>(
    limits: &RateLimitLayer<P>,
    jobs: impl IntoIterator<Item = Job>,
) -> Vec<Result<Report, &'static str>>
where
    P: Protocol<Job, Report, &'static str, Response = Report>
        + Fits<BoxCloneService<Job, Report, &'static str>>,
{
    let mut service = limits.layer(BoxCloneService::new(service_fn(work)));
    let mut reports = Vec::new();
    for job in jobs {
        reports.push(service.ready().await.unwrap().call(job).await);
    }
    reports
}

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

fn recorded_pairs(backend: &FakeBackend) -> Vec<Vec<(String, PartitionKey, u32)>> {
    let pair = |pair: &Pair| (pair.policy.name().to_owned(), pair.key.clone(), pair.cost);
    backend.checks().iter().map(|check| check.pairs.iter().map(pair).collect()).collect()
}

#[tokio::test]
async fn inner_service_receives_decision_of_job() {
    let left = |jobs, rows| {
        let both = units([("jobs", jobs), ("rows", rows)]);
        Ok(Report { found: both.clone(), added: both, ..Report::default() })
    };
    let jobs = || [job("acme", 60), job("acme", 50), job("acme", 40), job("other", 0), job("acme", 0)];
    let expected = [left(2, 40), Err("denied"), left(1, 0), left(2, 100), left(0, 0)];
    assert_eq!(run(&limits_with_costs(memory()), jobs()).await, expected);
    assert_eq!(run(&limits_with_costs(Later(memory())), jobs()).await, expected);
}

#[tokio::test]
async fn exempt_job_passes_without_check() {
    let backend = FakeBackend::denying(SECOND);
    let reports = run(&limits_with_costs(backend.clone()), [job("root", 1_000), job("acme", 1)]).await;
    assert_eq!(reports, [Ok(Report::default()), Err("denied")]);
    assert_eq!(recorded_pairs(&backend).len(), 1);
}

#[tokio::test]
async fn layer_passes_error_of_inner_service() {
    for backend in [FakeBackend::admitting(), FakeBackend::unavailable(Reason::Busy)] {
        let limits = limits_with_outage_rule(backend);
        assert_eq!(run(&limits, [job("broken", 1)]).await, [Err("the inner service failed")]);
    }
}

#[tokio::test]
async fn two_keys_of_job_form_one_check() {
    let backend = FakeBackend::admitting();
    run(&limits_with_two_keys(backend.clone()), [job("acme", 4)]).await;
    let [tenant, user] =
        [("tenant", "acme"), ("user", "alice")].map(|(kind, value)| PartitionKey::new(kind, value));
    assert_eq!(
        recorded_pairs(&backend),
        [[("per-tenant".to_owned(), tenant, 1), ("per-user".to_owned(), user, 4)]]
    );

    let reports = run(&limits_with_two_keys(memory()), [job("a", 4), job("b", 4), job("b", 1)]).await;
    let left = |tenant, user| units([("per-tenant", tenant), ("per-user", user)]);
    let added: Vec<_> = reports.into_iter().map(|report| report.map(|report| report.added)).collect();
    assert_eq!(added, [Ok(left(9, 1)), Err("denied"), Ok(left(9, 0))]);
}

#[tokio::test]
async fn table_chooses_policies_of_job() {
    let backend = FakeBackend::admitting();
    let one = |quota| Policies::from(policy("jobs", quota, MINUTE));
    let table = PolicyTable::new(one(2)).with("gold", one(9));
    let limits = limits_with_table(backend.clone(), &table);
    let of_tier = |tier| Job { tier, ..job("acme", 1) };
    let added = async |tier| run(&limits, [of_tier(tier)]).await.remove(0).unwrap().added;
    assert_eq!(added(Some("gold")).await, units([("jobs", 8)]));
    assert_eq!(added(Some("silver")).await, units([("jobs", 1)]));
    table.set("gold", one(20)).unwrap();
    assert_eq!(added(Some("gold")).await, units([("jobs", 19)]));
    assert_eq!(added(None).await, units([]));
    assert_eq!(recorded_pairs(&backend).len(), 3, "a job without a policy causes no check");
}

#[tokio::test]
async fn plan_has_rule_for_missing_key_of_job() {
    type Rule = fn() -> Result<Draft, KeyError>;
    let shared: Rule = || Ok(Draft::check(PartitionKey::new("shared", "jobs"), 1));
    let rules: [(&str, Rule, [Option<&str>; 4]); 3] = [
        (
            "reject",
            || Err(KeyError::missing("")),
            [Some("missing key"), Some("missing key"), Some("missing key"), None],
        ),
        ("exempt", || Ok(Draft::exempt()), [None; 4]),
        ("shared", shared, [None, None, Some("denied"), None]),
    ];
    for (name, rule, expected) in rules {
        let limits = limits_for_missing_key(memory(), rule);
        let reports = run(&limits, ["", "", "", "acme"].map(|tenant| job(tenant, 1))).await;
        assert_eq!(reports.into_iter().map(Result::err).collect::<Vec<_>>(), expected, "{name}");
        assert_eq!(run(&limits, [job("?", 1)]).await, [Err("malformed key")], "{name}");
    }
}

#[tokio::test]
async fn outage_rule_depends_on_job() {
    for admitted in [1, 9] {
        let limits = limits_with_outage_rule(FakeBackend::unavailable(Reason::Busy));
        let jobs = [job("acme", admitted), job("acme", 10), job("acme", 0), job("acme", 0)];
        let unchecked = Report { found_unchecked: true, ..Report::default() };
        let local = Report { found_local: true, ..Report::default() };
        let expected = [Ok(unchecked), Err("unavailable"), Ok(local), Err("local fallback denied")];
        assert_eq!(run(&limits, jobs).await, expected);
    }
}

#[tokio::test]
async fn inner_service_settles_job_by_hand() {
    let planned = FakeBackend::admitting();
    let plan = |job: &Job| Draft::check(tenant(job), job.rows).reserve();
    let limits = RateLimitLayer::new(limiter_of_rows(planned.clone()), Reporting(by_job(plan)));
    let of_plan = run(&limits, [job("acme", 40)]).await;

    let settled = FakeBackend::admitting();
    let protocol = by_job(|job| (tenant(job), job.rows)).settle_by(|_: &Report| None::<u32>);
    let limits = RateLimitLayer::new(limiter_of_rows(settled.clone()), Reporting(protocol));
    let of_settle_by = run(&limits, [job("acme", 40)]).await;

    for (backend, reports) in [(planned, of_plan), (settled, of_settle_by)] {
        assert_eq!(reports[0].as_ref().unwrap().added, units([("rows", 60)]));
        assert_eq!(backend.checks()[0].purpose, Purpose::Reserve);
        let refunds: Vec<_> = backend.refunds().iter().map(|refund| refund.pairs[0].units).collect();
        assert_eq!(refunds, [20]);
    }
}

#[tokio::test]
async fn layer_settles_job_by_report() {
    let backend = FakeBackend::admitting();
    // Without `admit_with`, the inner service has no reservation to settle.
    let protocol = by(|job: &Job| (tenant(job), Costs::new().policy("rows", job.rows)))
        .settle_by(|report: &Report| report.found.is_empty().then(|| Costs::new().policy("rows", 10)))
        .reject_with(|_, rejection| Err(name(rejection)));
    let limits = RateLimitLayer::new(limiter_of_rows(backend.clone()), Reporting(protocol));
    let reports = run(&limits, [job("acme", 40), job("broken", 40), job("acme", 5)]).await;
    assert_eq!(reports[0].as_ref().unwrap().added, units([("rows", 60)]));
    assert_eq!(reports[1], Err("the inner service failed"));
    let refunds: Vec<_> = backend.refunds().iter().map(|refund| refund.pairs[0].units).collect();
    assert_eq!(refunds, [30]);
    let purposes: Vec<_> =
        backend.checks().iter().map(|check| (check.purpose, check.pairs[0].cost)).collect();
    let reserve = |cost| (Purpose::Reserve, cost);
    assert_eq!(purposes, [reserve(40), reserve(40), reserve(5), (Purpose::Overage, 5)]);
}

#[tokio::test]
async fn rejection_becomes_report_of_job() {
    let rejected = async |backend: FakeBackend| {
        run(&limits_with_rejection(backend), [job("acme", 1)]).await.remove(0).unwrap()
    };
    let denied = rejected(FakeBackend::denying(SECOND)).await;
    assert_eq!((denied.rejected, denied.added), (Some(("acme", "denied")), units([("jobs", 0)])));
    let outage = rejected(FakeBackend::unavailable(Reason::Busy)).await;
    assert_eq!((outage.rejected, outage.added), (Some(("acme", "unavailable")), units([])));
    let admitted = rejected(FakeBackend::admitting()).await;
    assert_eq!((admitted.rejected, admitted.found), (None, units([("jobs", 2)])));
}

#[tokio::test]
async fn plan_decides_everything_by_job() {
    let backend = FakeBackend::admitting();
    let limits = limits_with_plan(backend.clone());
    let reports = run(&limits, [job("root", 1), job("", 1), job("acme", 7)]).await;
    assert_eq!(reports[0], Ok(Report::default()));
    assert_eq!(reports[1], Err("missing key"));
    assert!(reports[2].is_ok());
    let checks = recorded_pairs(&backend);
    assert_eq!(checks.len(), 1);
    let mut pairs = checks[0].clone();
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    let [tenant, user] =
        [("tenant", "acme"), ("user", "alice")].map(|(kind, value)| PartitionKey::new(kind, value));
    assert_eq!(pairs, [("per-user".to_owned(), user, 2), ("rows".to_owned(), tenant, 7)]);
}

#[tokio::test]
async fn clone_of_protocol_keeps_every_closure() {
    let backend = FakeBackend::scripted([Admit, Deny(Wait::For(SECOND))]);
    let plan = |job: &Job| match job.tenant {
        "root" => Draft::exempt(),
        _ => Draft::check(tenant(job), job.rows),
    };
    // Without a reservation in the job, the layer settles it.
    let protocol = by(plan)
        .admit_with(|job: &mut Job, admission| job.decision = admission.decision().cloned())
        .settle_by(|report: &Report| report.found.first().map(|(_, left)| left / 2))
        .reject_with(|_, rejection| Err(name(rejection)));
    let clone = protocol.clone();
    drop(protocol);
    let limits = RateLimitLayer::new(limiter_of_rows(backend.clone()), Reporting(clone));
    let reports = run(&limits, [job("root", 9), job("acme", 40), job("acme", 40)]).await;
    let left = || units([("rows", 60)]);
    let settled = Report { found: left(), added: left(), ..Report::default() };
    assert_eq!(reports, [Ok(Report::default()), Ok(settled), Err("denied")]);
    assert_eq!(backend.refunds()[0].pairs[0].units, 10);
}
