//! A service without HTTP: everything that a layer can do for requests of the user's own type.

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    Admission, Backend, Builder, Costs, Decision, Draft, FakeBackend, KeyError, ManualClock, MemoryBackend,
    OutageRule, Outcome, Pair, PartitionKey, Plan, Policies, PolicyTable, Purpose, RateLimitLayer, Reason,
    Refusal, Reservation, Respond, Settled, Unchecked, Unkeyed, WithoutKey, by_hand, limit,
};

use super::{Later, MINUTE, SECOND, policy};

/// A job, and what the layer leaves in it.
#[derive(Clone, Debug, Default)]
struct Job {
    tenant: &'static str,
    user: &'static str,
    tier: Option<&'static str>,
    rows: u32,
    decision: Option<Decision>,
    unchecked: Option<Unchecked>,
    reservation: Option<Reservation>,
}

/// The response to a job.
#[derive(Clone, Debug, Default, PartialEq)]
struct Report {
    /// What the inner service found in the job: the remaining units of each policy.
    found: Vec<(String, u32)>,
    found_unchecked: bool,
    /// What the layer added to the response.
    added: Vec<(String, u32)>,
    rejected: Option<&'static str>,
}

/// Leaves the decision in jobs and reports, and rejects by the error of the service.
#[derive(Clone, Copy)]
struct Jobs;

impl Respond<Job, Report, &'static str> for Jobs {
    fn admit(&self, job: &mut Job, admission: &Admission, reservation: Option<&Reservation>) {
        match admission {
            Admission::Checked(decision) => job.decision = Some(decision.clone()),
            Admission::Unchecked(unchecked) => job.unchecked = Some(unchecked.clone()),
            _ => {}
        }
        job.reservation = reservation.cloned();
    }

    fn refuse(&self, _job: &Job, refusal: &Refusal) -> Result<Report, &'static str> {
        Err(name(refusal))
    }

    fn annotate(&self, report: &mut Report, outcome: Outcome<'_>) {
        report.added = outcome.decision().map(remaining).unwrap_or_default();
    }
}

fn name(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Denied(_) => "denied",
        Refusal::Unavailable(_) => "unavailable",
        Refusal::BeyondShare(_) => "beyond share",
        Refusal::NoKey(KeyError::Missing) => "missing key",
        Refusal::NoKey(KeyError::Malformed { .. }) => "malformed key",
        Refusal::NoKey(_) => "unknown key",
        Refusal::Misconfigured(_) => "misconfigured",
        _ => "other",
    }
}

fn builder(backend: impl Backend) -> Builder<Unkeyed, Jobs> {
    RateLimitLayer::builder(backend).respond(Jobs)
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
fn limits_with_costs(backend: impl Backend) -> RateLimitLayer<impl Plan<Job>, Jobs> {
    let builder = builder(backend).policy(policy("jobs", 3, MINUTE)).policy(policy("rows", 100, MINUTE));
    builder.key(tenant).cost(costs).exempt(|job: &Job| job.tenant == "root").build().unwrap()
}

/// Builds a layer that counts the tenant and the user.
fn limits_with_two_keys(backend: impl Backend) -> RateLimitLayer<impl Plan<Job>, Jobs> {
    builder(backend)
        .policy(policy("per-tenant", 10, MINUTE))
        .key(tenant)
        .also(limit(user).policy(policy("per-user", 5, MINUTE)).cost(|job: &Job| job.rows))
        .build()
        .unwrap()
}

/// Builds a layer whose policies come from a table, by the tier of the job.
fn limits_with_table(backend: impl Backend, table: &PolicyTable) -> RateLimitLayer<impl Plan<Job>, Jobs> {
    let table = table.clone();
    let by_tier = move |job: &Job| job.tier.map(|tier| table.pick(tier));
    builder(backend).key(tenant).policies(by_tier).build().unwrap()
}

/// Builds a layer with a rule for jobs without a tenant.
fn limits_without_key(backend: impl Backend, rule: WithoutKey) -> RateLimitLayer<impl Plan<Job>, Jobs> {
    let key = |job: &Job| match job.tenant {
        "" => Ok(None),
        "?" => Err(KeyError::Malformed { what: "tenant".to_owned(), why: "unknown sign".to_owned() }),
        tenant => Ok(Some(PartitionKey::new("tenant", tenant))),
    };
    builder(backend).policy(policy("jobs", 2, MINUTE)).key(key).without_key(rule).build().unwrap()
}

/// Builds a layer that fails open for small jobs and closed for others.
fn limits_with_outage_rule(backend: impl Backend) -> RateLimitLayer<impl Plan<Job>, Jobs> {
    let rule = |job: &Job| if job.rows < 10 { OutageRule::Admit } else { OutageRule::Refuse };
    builder(backend).policy(policy("jobs", 3, MINUTE)).key(tenant).outage_by(rule).build().unwrap()
}

/// Builds a layer whose inner service settles.
fn limits_settled_by_hand(
    backend: impl Backend,
) -> RateLimitLayer<impl Plan<Job>, impl Respond<Job, Report, &'static str>> {
    let builder = builder(backend).policy(policy("rows", 100, MINUTE)).key(tenant);
    builder.cost(|job: &Job| job.rows).settle(by_hand()).build().unwrap()
}

/// Builds a layer that answers rejected jobs by a report.
fn limits_with_rejection(
    backend: impl Backend,
) -> RateLimitLayer<impl Plan<Job>, impl Respond<Job, Report, &'static str>> {
    let reject = |refusal: &Refusal| Report { rejected: Some(name(refusal)), ..Report::default() };
    builder(backend).policy(policy("jobs", 3, MINUTE)).key(tenant).rejection(reject).build().unwrap()
}

/// Builds a layer whose plan decides everything by the job.
fn limits_with_plan(backend: impl Backend) -> RateLimitLayer<impl Plan<Job>, Jobs> {
    let plan = |job: &Job| match job.tenant {
        "root" => Ok(Draft::exempt()),
        "" => Err(KeyError::Missing),
        _ => {
            let rows = Policies::from(policy("rows", 100, MINUTE));
            let pair = Pair::new(user(job), policy("per-user", 5, MINUTE), 2);
            Ok(Draft::check_against(tenant(job), rows, job.rows).and(Draft::pairs([pair])))
        }
    };
    builder(backend).plan(plan).without_policies().build().unwrap()
}

fn job(tenant: &'static str, rows: u32) -> Job {
    Job { tenant, user: "alice", rows, ..Job::default() }
}

fn remaining(decision: &Decision) -> Vec<(String, u32)> {
    decision.statuses().iter().map(|it| (it.policy().name().to_owned(), it.remaining())).collect()
}

fn units<const N: usize>(of: [(&str, u32); N]) -> Vec<(String, u32)> {
    of.map(|(name, units)| (name.to_owned(), units)).into()
}

async fn work(job: Job) -> Result<Report, &'static str> {
    if job.tenant == "broken" {
        return Err("the inner service failed");
    }
    if let Some(reservation) = job.reservation {
        assert!(matches!(reservation.settle(job.rows / 2).await, Settled::Done));
    }
    let found = job.decision.as_ref().map(remaining).unwrap_or_default();
    Ok(Report { found, found_unchecked: job.unchecked.is_some(), ..Report::default() })
}

/// Runs these jobs one after the other.
async fn run<P, R>(
    limits: &RateLimitLayer<P, R>,
    jobs: impl IntoIterator<Item = Job>,
) -> Vec<Result<Report, &'static str>>
where
    P: Plan<Job>,
    R: Respond<Job, Report, &'static str>,
{
    let mut service = limits.layer(service_fn(work));
    let mut reports = Vec::new();
    for job in jobs {
        reports.push(service.ready().await.unwrap().call(job).await);
    }
    reports
}

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

fn asked(backend: &FakeBackend) -> Vec<Vec<(String, PartitionKey, u32)>> {
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
    assert_eq!(asked(&backend).len(), 1);
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
        [("tenant", "acme"), ("user", "alice")].map(|(kind, it)| PartitionKey::new(kind, it));
    assert_eq!(asked(&backend), [[("per-tenant".to_owned(), tenant, 1), ("per-user".to_owned(), user, 4)]]);

    let reports = run(&limits_with_two_keys(memory()), [job("a", 4), job("b", 4), job("b", 1)]).await;
    let left = |tenant, user| units([("per-tenant", tenant), ("per-user", user)]);
    let added: Vec<_> = reports.into_iter().map(|report| report.map(|it| it.added)).collect();
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
    table.set("gold", one(20));
    assert_eq!(added(Some("gold")).await, units([("jobs", 19)]));
    assert_eq!(added(None).await, units([]));
    assert_eq!(asked(&backend).len(), 3, "a job without a policy passes uncounted");
}

#[tokio::test]
async fn rule_without_key_covers_jobs() {
    let shared = WithoutKey::Share(PartitionKey::new("shared", "jobs"));
    for (rule, expected) in [
        (WithoutKey::Refuse, [Some("missing key"), Some("missing key"), Some("missing key"), None]),
        (WithoutKey::Exempt, [None; 4]),
        (shared, [None, None, Some("denied"), None]),
    ] {
        let limits = limits_without_key(memory(), rule.clone());
        let reports = run(&limits, ["", "", "", "acme"].map(|tenant| job(tenant, 1))).await;
        assert_eq!(reports.into_iter().map(Result::err).collect::<Vec<_>>(), expected, "{rule:?}");
        assert_eq!(run(&limits, [job("?", 1)]).await, [Err("malformed key")], "{rule:?}");
    }
}

#[tokio::test]
async fn outage_rule_depends_on_job() {
    for admitted in [1, 9] {
        let limits = limits_with_outage_rule(FakeBackend::unavailable(Reason::Busy));
        let reports = run(&limits, [job("acme", admitted), job("acme", 10)]).await;
        let unchecked = Report { found_unchecked: true, ..Report::default() };
        assert_eq!(reports, [Ok(unchecked), Err("unavailable")]);
    }
}

#[tokio::test]
async fn inner_service_settles_job_by_hand() {
    let backend = FakeBackend::admitting();
    let limits = limits_settled_by_hand(backend.clone());
    let reports = run(&limits, [job("acme", 40)]).await;
    assert_eq!(reports[0].as_ref().unwrap().added, units([("rows", 60)]));
    assert_eq!(backend.checks()[0].purpose, Purpose::Reserve);
    let refunds: Vec<_> = backend.refunds().iter().map(|refund| refund.pairs[0].units).collect();
    assert_eq!(refunds, [20]);
}

#[tokio::test]
async fn rejection_becomes_report_of_job() {
    let rejected = async |backend: FakeBackend| {
        run(&limits_with_rejection(backend), [job("acme", 1)]).await.remove(0).unwrap()
    };
    let denied = rejected(FakeBackend::denying(SECOND)).await;
    assert_eq!((denied.rejected, denied.added), (Some("denied"), units([("jobs", 0)])));
    let outage = rejected(FakeBackend::unavailable(Reason::Busy)).await;
    assert_eq!((outage.rejected, outage.added), (Some("unavailable"), units([])));
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
    let checks = asked(&backend);
    assert_eq!(checks.len(), 1);
    let mut pairs = checks[0].clone();
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    let [tenant, user] =
        [("tenant", "acme"), ("user", "alice")].map(|(kind, it)| PartitionKey::new(kind, it));
    assert_eq!(pairs, [("per-user".to_owned(), user, 2), ("rows".to_owned(), tenant, 7)]);
}
