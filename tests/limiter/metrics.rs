//! The metrics of a limiter, and what counts as near the limit.

use std::time::Duration;

use tokio::time::{advance, sleep};
use tower_sliding_window::{
    Costs, Decision, Limiter, MemoryBackend, OutageRule, PartitionKey, Policy, Status, Wait,
    backend::{Backend, BackendError, Check, Pair, Reason, WhenFull},
    key::KeyError,
    observe,
    outage::{Breaker, Share},
    protocol::Draft,
    testing::{
        FakeAnswer::{Admit, Deny, Unavailable},
        FakeBackend, ManualClock,
    },
};

use super::{alice, now, policy, stats::Remote};
use crate::{
    http::{MINUTE, SECOND},
    support::scrape::{Scrape, recorder},
};

/// A backend that admits after 30 ms.
struct Slow;

impl Backend for Slow {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        sleep(Duration::from_millis(30)).await;
        let admits = |pair| Status::new(pair, 1, Wait::ZERO, Duration::ZERO, Duration::ZERO);
        Ok(Decision::new(0, check.pairs().iter().map(admits).collect::<Vec<_>>()))
    }
}

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

#[test]
fn decisions_count_by_policy_and_outcome() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let builder = Limiter::builder(memory()).policy(policy("small", 5)).policy(policy("large", 100));
    let limiter = builder.policy(policy("free", 1)).build().unwrap();
    // All series of the policies exist before the first check.
    let first = Scrape::of(&recorder.handle());
    assert!(first.has(r#"decisions_total{policy="large",outcome="denied"}"#), "{first:?}");
    let costs = || Costs::new().policy("free", 0).policy("small", 2);
    let _ = now(limiter.peek((alice(), costs()))).unwrap();
    let verdicts = [(); 4].map(|()| now(limiter.check((alice(), costs()))).unwrap().is_admitted());
    assert_eq!(verdicts, [true, true, false, false]);
    let scrape = Scrape::of(&recorder.handle());
    let decisions = [
        (r#"policy="free",outcome="admitted""#, 2.0),
        (r#"policy="large",outcome="admitted""#, 2.0),
        (r#"policy="small",outcome="admitted""#, 2.0),
        (r#"policy="small",outcome="denied""#, 2.0),
    ];
    assert_eq!(scrape.non_zero("decisions_total"), decisions);
    let units = [(r#"policy="large""#, 2.0), (r#"policy="small""#, 4.0)];
    assert_eq!(scrape.non_zero("charged_units_total"), units);
    // The second admission uses 4 of 5 units. The policy without a charge is not near its limit.
    assert_eq!(scrape.non_zero("near_limit_total"), [(r#"policy="small""#, 1.0)]);
    assert_eq!(limiter.stats().near_limit, 1);
}

#[test]
fn shadow_policy_has_an_outcome_of_its_own() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let builder = Limiter::builder(memory()).policy(policy("enforced", 5));
    let limiter = builder.policy(policy("trial", 3).shadow()).build().unwrap();
    let verdicts = [(); 3].map(|()| now(limiter.check((alice(), 2))).unwrap().is_admitted());
    assert_eq!(verdicts, [true, true, false]);
    let scrape = Scrape::of(&recorder.handle());
    let decisions = [
        (r#"policy="enforced",outcome="admitted""#, 2.0),
        (r#"policy="enforced",outcome="denied""#, 1.0),
        (r#"policy="trial",outcome="admitted""#, 1.0),
        (r#"policy="trial",outcome="shadow_denied""#, 1.0),
    ];
    assert_eq!(scrape.non_zero("decisions_total"), decisions);
    let units = [(r#"policy="enforced""#, 4.0), (r#"policy="trial""#, 2.0)];
    assert_eq!(scrape.non_zero("charged_units_total"), units);
    // The shadow policy was not charged by the second check.
    assert_eq!(scrape.non_zero("near_limit_total"), [(r#"policy="enforced""#, 1.0)]);
}

#[test]
fn denied_keys_count_by_beginning_of_pseudonym() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let builder = |secret: Option<&str>| {
        let builder = Limiter::builder(memory()).policy(policy("one", 1));
        secret.into_iter().fold(builder, |builder, secret| builder.pseudonyms(secret)).build().unwrap()
    };
    let plain = builder(None);
    // The metrics of two limiters, such as those of two processes, add up.
    let limiters = [(); 2].map(|()| builder(Some("a secret of 32 bytes, not random")));
    for limiter in limiters.iter().chain([&plain]) {
        let verdicts = [(); 4].map(|()| now(limiter.check(alice())).unwrap().is_admitted());
        assert_eq!(verdicts, [true, false, false, false]);
        // A key that is denied once has no series.
        let _ = now(limiter.check((PartitionKey::new("user", "bob"), 2))).unwrap();
    }
    let pseudonym = limiters[0].pseudonym(&alice()).unwrap();
    let series = format!(r#"pseudonym="{}""#, &pseudonym[..3]);
    let scrape = Scrape::of(&recorder.handle());
    assert_eq!(scrape.non_zero("denied_keys_total"), [(&*series, 4.0)]);
}

#[test]
fn near_limit_counts_from_chosen_fraction() {
    let near = |fraction: f64, cost: u32| {
        let builder = Limiter::builder(memory()).policy(policy("p", 10)).near_limit(fraction);
        let limiter = builder.build().unwrap();
        let checks = 10 / cost + 1;
        let admitted = (0..checks).filter(|_| now(limiter.check((alice(), cost))).unwrap().is_admitted());
        assert_eq!(admitted.count(), 10 / cost as usize);
        limiter.stats().near_limit
    };
    assert_eq!([near(1.0, 1), near(0.91, 1), near(0.9, 1), near(0.3, 1)], [1, 1, 2, 8]);
    assert_eq!([near(0.8, 4), near(0.81, 4), near(1e-300, 4)], [1, 0, 2]);
    let limiter = Limiter::builder(memory()).policy(policy("p", 10)).build().unwrap();
    let _ = now(limiter.check((alice(), 10))).unwrap();
    // A check that charges nothing is not near the limit.
    assert!(now(limiter.check((alice(), 0))).unwrap().is_admitted());
    assert_eq!(limiter.stats().near_limit, 1);
}

#[tokio::test(start_paused = true)]
async fn time_and_deny_cache_hits_are_measured() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let slow = Limiter::builder(Slow).policy(policy("p", 10)).build().unwrap();
    for _ in 0..3 {
        let _ = slow.check(alice()).await.unwrap();
    }
    // What needs no waiting has no time.
    let memory = Limiter::builder(MemoryBackend::new()).policy(policy("p", 10)).build().unwrap();
    let _ = memory.check(alice()).await.unwrap();
    let scrape = Scrape::of(&recorder.handle());
    assert_eq!(scrape.get("check_duration_seconds_count"), 3.0, "{scrape:?}");
    let seconds = scrape.get("check_duration_seconds_sum");
    assert!((0.09..0.1).contains(&seconds), "{seconds}");

    let cached = Remote(FakeBackend::scripted([Deny(Wait::For(MINUTE))]));
    let cached = Limiter::builder(cached).policy(policy("cached", 10)).build().unwrap();
    for _ in 0..3 {
        assert!(!cached.check(alice()).await.unwrap().is_admitted());
    }
    let scrape = Scrape::of(&recorder.handle());
    let denied = |outcome| scrape.get(&format!(r#"decisions_total{{policy="cached",outcome="{outcome}"}}"#));
    assert_eq!((denied("denied"), denied("denied_from_cache")), (1.0, 2.0));
    assert_eq!(scrape.get("deny_cache_hits_total"), 2.0);
    assert_eq!(scrape.get("check_duration_seconds_count"), 4.0);
}

#[tokio::test(start_paused = true)]
async fn outage_counts_reasons_and_opens_gauge() {
    const OPEN: &str = r#"breaker_open{server="custom backend, namespace tsw"}"#;
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let limiter = |answers: &[_]| {
        let backend = Remote(FakeBackend::scripted(answers.iter().copied()));
        let breaker = Breaker::new(3, SECOND);
        Limiter::builder(backend).policy(policy("p", 10)).breaker(breaker).build().unwrap()
    };
    let (down, full) = (Unavailable(Reason::Connection), Unavailable(Reason::Full));
    let scrape = || Scrape::of(&recorder.handle());
    let one = limiter(&[full, down, down, down, down, Admit]);
    // A rate needs a value of 0 before the first failures.
    for reason in Reason::ALL {
        let series = format!(r#"unavailable_checks_total{{reason="{}"}}"#, reason.name());
        assert!(scrape().has(&series), "{series}");
    }
    one.check(alice()).await.unwrap_err();
    // A breaker opens only if the last answer is one deadline old.
    advance(SECOND).await;
    for _ in 0..5 {
        one.check(alice()).await.unwrap_err();
    }
    let reasons = [(r#"reason="connection""#, 5.0), (r#"reason="full""#, 1.0)];
    assert_eq!(scrape().non_zero("unavailable_checks_total"), reasons);
    assert_eq!(scrape().get(r#"decisions_total{policy="p",outcome="unavailable"}"#), 6.0);
    // The store was not asked while the breaker was open.
    assert_eq!(scrape().get("check_duration_seconds_count"), 4.0);
    assert_eq!(scrape().get(OPEN), 1.0);
    // The breakers of one server in several backends add up.
    let two = limiter(&[down]);
    for _ in 0..3 {
        two.check(alice()).await.unwrap_err();
    }
    assert_eq!(scrape().get(OPEN), 2.0);
    // A server that no longer exists is not open.
    drop(two);
    assert_eq!(scrape().get(OPEN), 1.0);
    // A failed probe changes nothing.
    advance(SECOND).await;
    one.check(alice()).await.unwrap_err();
    assert_eq!(scrape().get(OPEN), 1.0);
    advance(SECOND).await;
    let _ = one.check(alice()).await.unwrap();
    assert_eq!((scrape().has(OPEN), scrape().get(OPEN)), (true, 0.0));
    // Those that have opened both, and the probe.
    assert_eq!(scrape().get(&OPEN.replace("breaker_open", "server_failures_total")), 7.0);
}

/// A recorder with an idle timeout removes a gauge, as does a new recorder.
#[tokio::test(start_paused = true)]
async fn failed_probe_opens_gauge_of_new_recorder() {
    const OPEN: &str = r#"breaker_open{server="custom backend, namespace tsw"}"#;
    let recorders = [recorder(), recorder()];
    let open = || recorders.each_ref().map(|recorder| Scrape::of(&recorder.handle()).get(OPEN));
    let down = Unavailable(Reason::Connection);
    let backend = Remote(FakeBackend::scripted([down, down, down, Admit]));
    let breaker = Breaker::new(1, SECOND);
    let guard = metrics::set_default_local_recorder(&recorders[0]);
    let limiter = Limiter::builder(backend).policy(policy("p", 10)).breaker(breaker).build().unwrap();
    limiter.check(alice()).await.unwrap_err();
    assert_eq!(open(), [1.0, 0.0]);
    drop(guard);
    let _guard = metrics::set_default_local_recorder(&recorders[1]);
    for _ in 0..2 {
        advance(SECOND).await;
        limiter.check(alice()).await.unwrap_err();
        assert_eq!(open(), [0.0, 1.0]);
    }
    advance(SECOND).await;
    let _ = limiter.check(alice()).await.unwrap();
    assert_eq!(open(), [0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn checks_that_cannot_be_made_have_no_decision() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    // This backend can only charge.
    let limiter = Limiter::builder(Slow).policy(policy("p", 10)).build().unwrap();
    let twice = || vec![Pair::new(alice(), policy("p", 10), 1); 2];
    let in_flight = || vec![Pair::new(alice(), Policy::in_flight("jobs", 2).unwrap(), 1)];
    let unsupported = [
        limiter.reserve(alice()).await.unwrap_err().error().cloned().unwrap(),
        limiter.take_up_to(alice(), 3).await.unwrap_err().error().cloned().unwrap(),
        limiter.admit(Draft::check(alice(), 1).reserve()).await.unwrap_err().error().cloned().unwrap(),
        limiter.check(in_flight()).await.unwrap_err(),
        // Neither a peek nor a reset counts.
        limiter.peek(alice()).await.unwrap_err(),
        limiter.reset(alice()).await.unwrap_err(),
    ];
    for error in unsupported {
        assert_eq!((error.reason(), error.was_asked()), (Reason::Unsupported, false), "{error}");
    }
    let error = limiter.check(twice()).await.unwrap_err();
    assert_eq!((error.reason(), error.was_asked()), (Reason::Misconfigured, false));
    limiter.admit(twice()).await.unwrap_err();
    limiter.peek(twice()).await.unwrap_err();
    // A check counts once, and one with another part as this part.
    let nothing = || Draft::pairs(vec![]).shadow();
    limiter.admit(Draft::pairs(twice()).and(nothing())).await.unwrap_err();
    let _ = limiter.admit(Draft::check(alice(), 1).and(nothing())).await.unwrap();
    // A client may cause this error.
    limiter.check(Err::<PartitionKey, _>(KeyError::missing("x-api-key"))).await.unwrap_err();
    let scrape = Scrape::of(&recorder.handle());
    let reasons = [(r#"reason="misconfigured""#, 3.0), (r#"reason="unsupported""#, 4.0)];
    assert_eq!(scrape.non_zero("unavailable_checks_total"), reasons);
    let of_policies = [
        (r#"policy="jobs",outcome="unavailable""#, 1.0),
        (r#"policy="p",outcome="admitted""#, 1.0),
        (r#"policy="p",outcome="unavailable""#, 3.0),
    ];
    assert_eq!(scrape.non_zero("decisions_total"), of_policies);
    let stats = limiter.stats();
    assert_eq!(stats.reasons, [(Reason::Unsupported, 4), (Reason::Misconfigured, 3)]);
    assert_eq!(stats.unavailable, 7);
}

/// Such a draft passes uncounted, and has no decision either.
#[test]
fn mistake_in_shadow_draft_counts_as_misconfigured() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let limiter = Limiter::builder(memory()).policy(policy("p", 10)).build().unwrap();
    let nothing = || Draft::pairs(vec![]).shadow();
    let twice = || Draft::pairs(vec![Pair::new(alice(), policy("p", 10), 1); 2]).shadow();
    let drafts = [nothing(), twice(), Draft::exempt(), Draft::check(alice(), 1).and(nothing())];
    let misconfigured = drafts.map(|draft| {
        let _ = now(limiter.admit(draft)).unwrap();
        Scrape::of(&recorder.handle()).get(r#"unavailable_checks_total{reason="misconfigured"}"#)
    });
    assert_eq!(misconfigured, [1.0, 2.0, 2.0, 2.0], "an exempt request and a check are no mistakes");
    let stats = limiter.stats();
    assert_eq!((stats.reasons, stats.admitted), (vec![(Reason::Misconfigured, 2)], 1));
}

#[tokio::test(start_paused = true)]
async fn admissions_without_store_count_by_outcome() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let share = OutageRule::LocalFallback(Share::among(1).unwrap());
    for (rule, in_stats) in
        [(OutageRule::FailOpen, [4, 0]), (share, [0, 4]), (OutageRule::FailClosed, [0, 0])]
    {
        let backend = Remote(FakeBackend::unavailable(Reason::Connection));
        let limiter = Limiter::builder(backend).policy(policy("p", 10)).outage(rule).build().unwrap();
        let series = r#"undecided_admissions_total{outcome="unchecked"}"#;
        assert!(Scrape::of(&recorder.handle()).has(series));
        let _ = limiter.admit(alice()).await;
        let _ = limiter.wait(alice(), SECOND).await;
        let _ = limiter.reserve(alice()).await;
        let _ = limiter.take_up_to(alice(), 2).await;
        // No rule admits these, or applies to them.
        let _ = limiter.check(alice()).await;
        limiter.admit(vec![Pair::new(alice(), policy("p", 10), 1); 2]).await.unwrap_err();
        if rule == share {
            limiter.admit((alice(), 9)).await.unwrap_err();
        }
        let stats = limiter.stats();
        assert_eq!([stats.unchecked, stats.local_fallback], in_stats, "{rule:?}");
    }
    let outcomes = [(r#"outcome="local_fallback""#, 4.0), (r#"outcome="unchecked""#, 4.0)];
    assert_eq!(Scrape::of(&recorder.handle()).non_zero("undecided_admissions_total"), outcomes);
}

#[tokio::test]
async fn settlements_and_evictions_are_counted() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let remote = || FakeBackend::admitting();
    for (backend, amounts) in
        [(remote(), &[0, 1, 2][..]), (remote().failing_settlements(Reason::Connection), &[0, 1])]
    {
        let limiter = Limiter::builder(Remote(backend)).policy(policy("p", 10)).build().unwrap();
        for amount in amounts {
            limiter.reserve(alice()).await.unwrap().settle(*amount).await;
        }
    }
    let memory = MemoryBackend::with_max_keys(8).unwrap().when_full(WhenFull::Evict);
    let limiter = Limiter::builder(memory.clone()).policy(policy("p", 10)).build().unwrap();
    for i in 0..20 {
        let _ = limiter.check((super::stats::user(i), 2)).await.unwrap();
    }
    let scrape = Scrape::of(&recorder.handle());
    // The amount 1 equals the charge, so there is nothing to lose.
    let outcomes = [(r#"outcome="done""#, 4.0), (r#"outcome="lost""#, 1.0)];
    assert_eq!(scrape.non_zero("settlements_total"), outcomes);
    assert!(memory.evicted_keys() > 0);
    assert_eq!(scrape.get("evicted_keys_total"), memory.evicted_keys() as f64);
    assert_eq!(scrape.get("evicted_units_total"), memory.evicted_units() as f64);
}

#[test]
fn metrics_follow_recorder_that_is_installed_later() {
    let limiter = Limiter::builder(memory()).policy(policy("p", 10)).build().unwrap();
    let _ = now(limiter.check(alice())).unwrap();
    for checks in [2, 3] {
        let recorder = recorder();
        let _guard = metrics::set_default_local_recorder(&recorder);
        for _ in 0..checks {
            let _ = now(limiter.check(alice())).unwrap();
        }
        let scrape = Scrape::of(&recorder.handle());
        let admitted = scrape.get(r#"decisions_total{policy="p",outcome="admitted"}"#);
        assert_eq!(admitted, f64::from(checks));
    }
}

#[test]
fn building_limiter_describes_metrics() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let _limiter = Limiter::builder(memory()).policy(policy("p", 10)).build().unwrap();
    let text = recorder.handle().render();
    assert!(text.contains("# HELP rate_limit_decisions_total Decisions, by policy and outcome."), "{text}");
    assert!(text.contains("# TYPE rate_limit_decisions_total counter"), "{text}");
}

#[test]
fn description_reaches_recorder_that_is_installed_later() {
    let limiter = Limiter::builder(memory()).policy(policy("p", 10)).build().unwrap();
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    observe::describe_metrics();
    let _ = now(limiter.check(alice())).unwrap();
    let text = recorder.handle().render();
    assert!(text.contains("# HELP rate_limit_decisions_total Decisions, by policy and outcome."), "{text}");
}
