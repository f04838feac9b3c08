//! Clients that learn from the answers of an API: header fields, the layer around a client, and the switches.

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    slice,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio::{runtime::Builder, time::timeout};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sliding_window::{
    Algorithm, Costs, Decision, Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, Rejection,
    Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason, Refund},
    by,
    learn::{Learned, Learning, Stated, StatedQuota},
    policy::{Period, Zone},
    protocol::Draft,
    settle::Unsettled,
    testing::{FakeAnswer, FakeBackend, ManualClock},
    wait::WaitLayer,
};

use super::{Later, MINUTE, SECOND, policy};
use crate::support::events::Events;

/// The `Date` of each response, and the same instant in Unix time.
const DATE: &str = "Wed, 25 Nov 2026 12:00:00 GMT";
const UNIX_TIME: u64 = 1_795_608_000;

/// More digits than fit.
const LARGE: &str = "99999999999999999999";

type Fields<'a> = &'a [(&'a str, &'a str)];

fn stated(status: u16, fields: Fields) -> Stated {
    let mut headers = HeaderMap::new();
    for (name, value) in fields.iter().chain(&[("date", DATE)]) {
        headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
    }
    Stated::from_http(StatusCode::from_u16(status).unwrap(), &headers)
}

fn quota(
    name: Option<&str>,
    [limit, window]: [Option<u64>; 2],
    remaining: u64,
    reset: Option<f64>,
) -> StatedQuota {
    let mut quota = StatedQuota::new(remaining);
    quota.name = name.map(str::to_owned);
    (quota.limit, quota.window) = (limit, window.map(Duration::from_secs));
    quota.reset = reset.map(Duration::from_secs_f64);
    quota
}

#[test]
fn http_fields_state_quotas() {
    let (epoch, millis) = ((UNIX_TIME + 90).to_string(), (UNIX_TIME * 1_000 + 2_500).to_string());
    let with_epoch =
        [("x-ratelimit-limit", "5000"), ("x-ratelimit-remaining", "4999"), ("x-ratelimit-reset", &*epoch)];
    let with_millis = [("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", &*millis)];
    let cases: Vec<(Fields, Vec<StatedQuota>)> = vec![
        (&[], vec![]),
        (
            // Drafts 8 to 11.
            &[
                ("ratelimit-policy", r#""burst";q=100;w=60, "daily";q=1000;w=86400;pk=:c2VjcmV0:"#),
                ("ratelimit", r#""burst";r=50;t=30"#),
                ("ratelimit", r#""daily";r=998"#),
            ],
            vec![
                quota(Some("burst"), [Some(100), Some(60)], 50, Some(30.0)),
                quota(Some("daily"), [Some(1000), Some(86_400)], 998, None),
            ],
        ),
        (&[("ratelimit", r#""next";a=5;w=3;c=1"#)], vec![quota(Some("next"), [None; 2], 5, Some(3.0))]),
        (
            // Draft 7.
            &[
                ("ratelimit", "limit=100, remaining=50, reset=5"),
                ("ratelimit-policy", "100;w=60, 1000;w=86400"),
            ],
            vec![quota(None, [Some(100), Some(60)], 50, Some(5.0))],
        ),
        (
            // Draft 6. Two windows have this quota.
            &[
                ("ratelimit-limit", "100"),
                ("ratelimit-remaining", "7"),
                ("ratelimit-reset", "5"),
                ("ratelimit-policy", "100;w=60, 100;w=86400"),
            ],
            vec![quota(None, [Some(100), None], 7, Some(5.0))],
        ),
        (&with_epoch, vec![quota(None, [Some(5_000), None], 4_999, Some(90.0))]),
        (
            &[
                ("x-ratelimit-limit-tokens", "90000"),
                ("x-ratelimit-remaining-tokens", "89000"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            vec![quota(Some("tokens"), [Some(90_000), None], 89_000, Some(360.0))],
        ),
        (
            &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "120ms")],
            vec![quota(Some("requests"), [None; 2], 0, Some(0.12))],
        ),
        // An instant that has passed.
        (
            &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1000000000")],
            vec![quota(None, [None; 2], 1, Some(0.0))],
        ),
        // Milliseconds of Unix time.
        (&with_millis, vec![quota(None, [None; 2], 1, Some(2.5))]),
        // The largest number of seconds, and the smallest one of milliseconds, which has passed.
        (
            &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "999999999999")],
            vec![quota(None, [None; 2], 1, Some((999_999_999_999 - UNIX_TIME) as f64))],
        ),
        (
            &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1000000000000")],
            vec![quota(None, [None; 2], 1, Some(0.0))],
        ),
        // What cannot be read is ignored.
        (&[("x-ratelimit-remaining", "598.0"), ("ratelimit-remaining", "1,000")], vec![]),
        (
            &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "2026-11-25T12:00:07Z")],
            vec![quota(None, [None; 2], 1, None)],
        ),
        (
            &[
                ("x-ratelimit-remaining", "-1"),
                ("ratelimit", "remaining=many"),
                ("ratelimit-remaining", "1.5"),
            ],
            vec![],
        ),
        (
            &[("ratelimit", r#""a";r=1, (7 8);r=2, 9;r=3, tok;r=4"#)],
            vec![quota(Some("a"), [None; 2], 1, None)],
        ),
        (&[("ratelimit", r#""unclosed;r=1"#), ("x-ratelimit-remainings", "5")], vec![]),
        (
            &[("x-ratelimit-remaining", "18446744073709551615"), ("x-ratelimit-reset", "1e300")],
            vec![quota(None, [None; 2], u64::MAX, None)],
        ),
        (&[("x-ratelimit-remaining", "99999999999999999999")], vec![]),
    ];
    for (fields, expected) in cases {
        let found = stated(200, fields);
        assert_eq!((found.is_denial, found.wait), (false, None));
        assert_eq!(found.quotas, expected, "{fields:?}");
    }
}

/// A cache repeats the quotas of an earlier request.
#[test]
fn quotas_of_cached_response_are_ignored() {
    let fields = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "7"), ("ratelimit", r#""a";r=1"#)];
    for (age, is_cached) in [("0", false), (" 00", false), ("1", true), ("86400", true), ("soon", true)] {
        let with_age = [&fields[..], &[("age", age)]].concat();
        let expected = if is_cached { vec![] } else { stated(200, &fields).quotas };
        assert_eq!(stated(200, &with_age).quotas, expected, "age: {age}");
        // The denial itself is known, but not its wait.
        let denied = stated(429, &with_age);
        assert_eq!((denied.is_denial, denied.wait.is_none()), (true, is_cached), "age: {age}");
    }
    let denied = stated(429, &[("age", "1"), ("retry-after", "5")]);
    assert_eq!((denied.is_denial, denied.wait), (true, Some(5 * SECOND)));
}

#[test]
fn members_beyond_bound_are_ignored() {
    let list = |parameters: &str| {
        let members: Vec<_> = (0..100).map(|i| format!("\"p{i}\";{parameters}")).collect();
        members.join(", ")
    };
    let (limits, policies) = (list("r=7"), list("q=9"));
    let quotas = stated(200, &[("ratelimit", &limits), ("ratelimit-policy", &policies)]).quotas;
    let expected: Vec<_> = (0..64).map(|i| quota(Some(&format!("p{i}")), [Some(9), None], 7, None)).collect();
    assert_eq!(quotas, expected);
    // A policy after the bound is unknown.
    let quotas = stated(200, &[("ratelimit", r#""p64";r=7"#), ("ratelimit-policy", &policies)]).quotas;
    assert_eq!(quotas, [quota(Some("p64"), [None; 2], 7, None)]);
}

#[test]
fn denials_state_wait() {
    let wait = |seconds| Some(Duration::from_secs_f64(seconds));
    let used_up = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "7"),
        ("x-ratelimit-remaining-tokens", "1"),
        ("x-ratelimit-reset-tokens", "99"),
    ];
    let cases = vec![
        (429, vec![], true, None),
        (429, vec![("retry-after", "3")], true, wait(3.0)),
        (429, vec![("retry-after", "Wed, 25 Nov 2026 12:01:30 GMT")], true, wait(90.0)),
        (429, vec![("retry-after", "Wed, 25 Nov 2026 11:00:00 GMT")], true, wait(0.0)),
        (429, vec![("retry-after", "1"), ("retry-after-ms", "250")], true, wait(0.25)),
        (429, vec![("retry-after", "soon")], true, None),
        (429, vec![("retry-after", "-1")], true, None),
        (429, vec![("retry-after", "NaN")], true, None),
        // More digits are no shorter wait.
        (429, vec![("retry-after", "18446744073709551615")], true, Some(Duration::MAX)),
        (429, vec![("retry-after", LARGE)], true, Some(Duration::MAX)),
        (429, vec![("retry-after-ms", LARGE), ("retry-after", "1")], true, Some(Duration::MAX)),
        (429, vec![("retry-after-ms", "-1"), ("retry-after", "1")], true, wait(1.0)),
        (429, used_up.to_vec(), true, wait(7.0)),
        // GitHub.
        (403, vec![("retry-after", "60"), ("x-ratelimit-remaining", "5")], true, wait(60.0)),
        (403, used_up.to_vec(), true, wait(7.0)),
        (403, vec![("x-ratelimit-remaining", "0")], true, None),
        (403, vec![], false, None),
        (403, vec![("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "7")], false, None),
        (403, vec![("retry-after", "soon")], false, None),
        (401, used_up.to_vec(), false, None),
        (500, vec![("retry-after", "3")], false, None),
        (503, vec![("retry-after", "3")], true, wait(3.0)),
        (503, used_up.to_vec(), false, None),
        (200, vec![("retry-after", "3")], false, None),
        (301, vec![("retry-after", "3")], false, None),
    ];
    for (status, fields, is_denial, wait) in cases {
        let found = stated(status, &fields);
        assert_eq!((found.is_denial, found.wait), (is_denial, wait), "{status} {fields:?}");
        assert_eq!(found.is_failure, status >= 500 && !is_denial, "{status} {fields:?}");
    }
    let draft_7 = format!("limit=100, remaining=0, reset={LARGE}");
    for fields in
        [&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", LARGE)][..], &[("ratelimit", &draft_7)]]
    {
        assert!(
            stated(429, fields).wait > Some(366 * 24 * 60 * MINUTE),
            "longer than any `max_wait`: {fields:?}"
        );
    }
}

fn api() -> PartitionKey {
    PartitionKey::new("api", "search")
}

fn learning() -> Learning {
    Learning::default()
}

/// Returns the settings of a limiter without a gate.
fn quotas_only() -> Learning {
    let mut learning = learning();
    (learning.obeys_waits, learning.backs_off) = (false, false);
    learning
}

/// Returns a limiter whose drafts choose all policies, and a draft without a gate.
fn chosen_by_draft() -> (Limiter, Draft) {
    let builder = Limiter::builder(MemoryBackend::new()).without_policies();
    (builder.learn(learning()).build().unwrap(), Draft::check_against(api(), policy("calls", 100, MINUTE), 1))
}

fn limiter(backend: MemoryBackend, policies: &[Policy], learning: Learning) -> Limiter {
    let builder = Limiter::builder(backend).policy(Policy::gate("api").unwrap()).learn(learning);
    policies.iter().fold(builder, |builder, policy| builder.policy(policy.clone())).build().unwrap()
}

fn remaining(limiter: &Limiter, name: &str) -> u32 {
    let decision = limiter.peek((api(), 0)).now().unwrap().unwrap();
    decision.statuses().iter().find(|status| status.policy().name() == name).unwrap().remaining()
}

fn blocked_for(limiter: &Limiter) -> Wait {
    limiter.peek(api()).now().unwrap().unwrap().statuses()[0].retry_after()
}

async fn learn(limiter: &Limiter, stated: &Stated) -> Learned {
    let admission = limiter.admit((api(), 1)).await.unwrap();
    limiter.learn(&admission, stated).await.unwrap()
}

/// An API with a quota of 20 calls in a calendar window of 10 s, of which another program has used 12.
async fn call_api(clock: &ManualClock, calls: &Mutex<(u64, u64, usize)>) -> Response<()> {
    let (mut calls, window) = (calls.lock().unwrap(), clock.now_micros() / 10_000_000);
    if calls.0 != window {
        (calls.0, calls.1) = (window, 12);
    }
    let reset = 10 - clock.now_micros() / 1_000_000 % 10;
    let response = Response::builder().header("ratelimit-policy", r#""default";q=20;w=10"#);
    if calls.1 == 20 {
        calls.2 += 1;
        return response.status(429).header("retry-after", reset).body(()).unwrap();
    }
    calls.1 += 1;
    response.header("ratelimit", format!(r#""default";r={};t={reset}"#, 20 - calls.1)).body(()).unwrap()
}

#[tokio::test]
async fn wait_layer_stays_within_quota_of_api() {
    let (clock, calls) = (ManualClock::new(), Arc::new(Mutex::new((0, 12, 0))));
    clock.advance(Duration::from_micros(10_000_000 - clock.now_micros() % 10_000_000));
    let calls_policy = policy("calls", 20, 10 * SECOND);
    let fixed = calls_policy.with_algorithm(tower_sliding_window::Algorithm::FixedWindow).unwrap();
    let backend = MemoryBackend::new().with_clock(&clock);
    // Each limiter is a process.
    let limiters: Vec<_> =
        (0..3).map(|_| limiter(backend.clone(), slice::from_ref(&fixed), learning())).collect();
    let service = || {
        let (clock, calls) = (clock.clone(), calls.clone());
        service_fn(move |_: Request<()>| {
            let (clock, calls) = (clock.clone(), calls.clone());
            async move { Ok::<_, Infallible>(call_api(&clock, &calls).await) }
        })
    };
    let mut clients: Vec<_> = limiters
        .iter()
        .map(|limiter| {
            let protocol = by(|_: &Request<()>| api())
                .learn_by(|response: &Response<()>| Stated::from_http(response.status(), response.headers()));
            let layer = WaitLayer::new(limiter.clone(), protocol).at_most(Duration::ZERO);
            ServiceBuilder::new().layer(layer).service(service())
        })
        .collect();
    let mut admitted = 0;
    for window in 0..5 {
        for call in 0..30 {
            let client = &mut clients[call % 3];
            match client.ready().await.unwrap().call(Request::new(())).await {
                Ok(response) => {
                    assert_eq!(response.status(), 200, "window {window}, call {call}");
                    admitted += 1;
                }
                Err(error) => assert!(matches!(error.rejection(), Some(Rejection::Denied(_)))),
            }
        }
        clock.advance(10 * SECOND);
    }
    assert_eq!((admitted, calls.lock().unwrap().2), (5 * 8, 0), "all that is left, and no 429");
}

#[tokio::test]
async fn layer_blocks_gate_after_denial_of_api() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    let calls = policy("calls", 100, MINUTE);
    let limits = limiter(backend.clone(), slice::from_ref(&calls), learning());
    let other_process = limiter(backend, &[calls], learning());
    let protocol = by(|_: &Request<()>| api())
        .learn_by(|response: &Response<()>| Stated::from_http(response.status(), response.headers()))
        .settle_by(|_: &Response<()>| Some(Costs::new().policy("calls", 1)))
        .reject_with(|_, _| Ok::<_, Infallible>(Response::new(())));
    let api = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::builder().status(503).header("retry-after", "5").body(()).unwrap())
    });
    let mut client = ServiceBuilder::new().layer(RateLimitLayer::new(limits, protocol)).service(api);
    assert_eq!(client.ready().await.unwrap().call(Request::new(())).await.unwrap().status(), 503);
    assert_eq!(blocked_for(&other_process), Wait::For(5 * SECOND));
}

/// A backend that takes a second for each check.
struct Slow(MemoryBackend);

impl Backend for Slow {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        tokio::time::sleep(SECOND).await;
        self.0.check(check).await
    }

    fn changes_charges(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn drain_waits_until_layer_has_learned() {
    let (memory, calls) = (MemoryBackend::new(), policy("calls", 100, MINUTE));
    let slow = Limiter::builder(Slow(memory.clone())).policy(calls.clone()).learn(quotas_only());
    let slow = slow.deadline(10 * SECOND).build().unwrap();
    let protocol =
        by(|_: &Request<()>| api()).learn_by(|_: &Response<()>| Stated::new([StatedQuota::new(7)]));
    let service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let mut client = ServiceBuilder::new().layer(WaitLayer::new(slow.clone(), protocol)).service(service);
    client.ready().await.unwrap().call(Request::new(())).await.unwrap();
    let other_process = limiter(memory, &[calls], learning());
    assert_eq!(remaining(&other_process, "calls"), 99);
    slow.drain().await;
    assert_eq!(remaining(&other_process, "calls"), 7);
}

/// A backend whose settlements take a second.
#[derive(Clone)]
struct SlowSettlements(MemoryBackend);

impl Backend for SlowSettlements {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        if check.purpose() == Purpose::Overage {
            tokio::time::sleep(SECOND).await;
        }
        self.0.check(check).await
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        tokio::time::sleep(SECOND).await;
        self.0.refund(refund).await
    }

    fn changes_charges(&self) -> bool {
        true
    }
}

/// Returns a limiter of tokens that learns, and that refunds what is not settled.
fn limiter_of_tokens(backend: impl Backend) -> Limiter {
    let builder = Limiter::builder(backend).policy(policy("tokens", 10_000, MINUTE));
    builder.learn(quotas_only()).unsettled(Unsettled::Refund).build().unwrap()
}

/// Asserts that an API and the store have the same units after each call, and that the API admits this many calls. The API has units left,
/// and each call has an estimate and an amount that it uses.
async fn assert_same_units(
    backend: impl Backend,
    clock: &ManualClock,
    left: u32,
    calls: &[[u32; 2]],
    admitted: usize,
) {
    let (limits, left) = (limiter_of_tokens(backend), Arc::new(Mutex::new((left, 0))));
    let of_api = left.clone();
    let service = service_fn(move |request: Request<[u32; 2]>| {
        let [_, used] = *request.body();
        let mut left = of_api.lock().unwrap();
        let is_admitted = used <= left.0;
        if is_admitted {
            *left = (left.0 - used, left.1 + 1);
        }
        let mut stated = StatedQuota::new(left.0.into());
        stated.name = Some("tokens".to_owned());
        async move { Ok::<_, Infallible>((is_admitted.then_some(used), Stated::new([stated]))) }
    });
    let protocol = by(|request: &Request<[u32; 2]>| (api(), request.body()[0]))
        // Without a settlement, the reservation is refunded.
        .settle_by(|(used, _): &(Option<u32>, Stated)| *used)
        .learn_by(|(_, stated): &(Option<u32>, Stated)| stated.clone());
    let layer = WaitLayer::new(limits.clone(), protocol).at_most(Duration::ZERO);
    let mut client = ServiceBuilder::new().layer(layer).service(service);
    for (i, call) in calls.iter().enumerate() {
        let response = client.ready().await.unwrap().call(Request::new(*call)).await;
        limits.drain().await;
        let decision = limits.peek((api(), 0)).await.unwrap();
        let (units, is_ok) = (decision.statuses()[0].remaining(), response.is_ok());
        assert_eq!(units, left.lock().unwrap().0, "call {i} of {calls:?}, admitted: {is_ok}");
        clock.advance(Duration::from_millis(10));
    }
    assert_eq!(left.lock().unwrap().1, admitted, "{calls:?}");
}

/// An answer states what remains after the amount used, and not after the estimate.
#[tokio::test(start_paused = true)]
async fn layer_learns_after_settlement() {
    let cases: [(u32, Vec<[u32; 2]>, usize); 5] = [
        // A stranger has used units, and the estimates are too high.
        (2_000, [100, 100, 1_300, 100, 100, 500].map(|used| [1_500, used]).to_vec(), 3),
        (7_000, vec![[4_000, 100]; 4], 4),
        // There is no stranger, and they are too low: an overage that was learned too would be charged twice.
        (10_000, vec![[100, 1_500]; 7], 6),
        (10_000, vec![[1_500, 100]; 7], 7),
        // The API denies all: nothing is settled, and the estimate is refunded.
        (50, vec![[1_500, 100]], 0),
    ];
    for (left, calls, admitted) in cases {
        let (clock, memory) = (ManualClock::new(), MemoryBackend::new());
        let memory = memory.with_clock(&clock);
        assert_same_units(memory.clone(), &clock, left, &calls, admitted).await;
        let (clock, memory) = (ManualClock::new(), MemoryBackend::new());
        let memory = memory.with_clock(&clock);
        assert_same_units(SlowSettlements(memory), &clock, left, &calls, admitted).await;
    }
}

#[tokio::test(start_paused = true)]
async fn learning_waits_for_settlement_that_has_begun() {
    for used in [100, 3_000] {
        let limits = limiter_of_tokens(SlowSettlements(MemoryBackend::new()));
        let admission = limits.admit(Draft::check(api(), 1_500).reserve()).await.unwrap();
        // It proceeds in the background.
        drop(admission.reservation().unwrap().settle(used));
        let learned = limits.learn(&admission, &Stated::new([StatedQuota::new(1_900)])).await.unwrap();
        assert_eq!(learned.charged[0].1, 10_000 - used - 1_900);
        let decision = limits.peek((api(), 0)).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 1_900, "{used} used");
    }
}

#[tokio::test]
async fn quota_belongs_to_policy_of_its_name_or_its_limit() {
    let per_minute = policy("requests", 100, MINUTE);
    let policies = [
        per_minute,
        policy("tokens", 1_000, MINUTE),
        policy("twin", 1_000, MINUTE),
        policy("day", 5_000, 1_440 * MINUTE),
    ];
    let cases = [
        // By name, whatever its limit is.
        (quota(Some("requests"), [Some(7), Some(1)], 30, None), Some("requests")),
        (quota(Some("tokens"), [None; 2], 30, None), Some("tokens")),
        // By limit, and by window if there is one.
        (quota(Some("default"), [Some(5_000), None], 30, None), Some("day")),
        (quota(None, [Some(100), Some(60)], 30, None), Some("requests")),
        (quota(None, [Some(100), Some(61)], 30, None), None),
        (quota(None, [Some(101), None], 30, None), None),
        // Two policies have this limit, and all have a remaining quota.
        (quota(None, [Some(1_000), None], 30, None), None),
        (quota(None, [None; 2], 30, None), None),
        (quota(Some("other"), [None; 2], 30, None), None),
        (quota(Some("other"), [None, Some(86_400)], 30, None), None),
    ];
    for (quota, expected) in cases {
        let limits = limiter(MemoryBackend::new(), &policies, learning());
        let learned = learn(&limits, &Stated::new([quota.clone()])).await;
        let names: Vec<_> = learned.charged.iter().map(|(policy, _)| policy.name().to_owned()).collect();
        assert_eq!(names, Vec::from_iter(expected), "{quota:?}");
        assert_eq!(learned.unmatched.is_empty(), expected.is_some());
        for policy in &policies {
            let left = if expected == Some(policy.name()) { 30 } else { policy.quota().unwrap() - 1 };
            assert_eq!(remaining(&limits, policy.name()), left, "{quota:?} {}", policy.name());
        }
    }
    // With two keys, it is not clear which one the API counts.
    let limits = limiter(MemoryBackend::new(), &[policy("calls", 100, MINUTE)], learning());
    let pair = |value: &str| Pair::new(PartitionKey::new("key", value), limits.policies()[1].clone(), 1);
    let admission = limits.admit(vec![pair("a"), pair("b")]).await.unwrap();
    let learned = limits.learn(&admission, &Stated::new([StatedQuota::new(0)])).await.unwrap();
    assert_eq!((learned.charged.len(), learned.unmatched.len()), (0, 1));
}

/// An API knows nothing of the headroom, and states what remains of the whole quota.
#[tokio::test]
async fn answer_leaves_headroom_in_reserve() {
    let (whole, backend) = (policy("calls", 100, MINUTE), MemoryBackend::new());
    let policies = [whole.clone(), whole.headroom_percent(20).unwrap()];
    let [interactive, batch] = policies.map(|policy| limiter(backend.clone(), &[policy], learning()));
    for (stated, left) in [
        (quota(Some("calls"), [Some(100), Some(60)], 70, None), 50),
        (quota(None, [Some(100), None], 60, None), 40),
        (quota(None, [None; 2], 30, None), 10),
    ] {
        let learned = learn(&batch, &Stated::new([stated.clone()])).await;
        assert_eq!(learned.unmatched, [], "{stated:?}");
        assert_eq!(
            [remaining(&batch, "calls"), remaining(&interactive, "calls")],
            [left, left + 20],
            "{stated:?}"
        );
    }
}

/// The clock of an API is behind: it has units of a period that ends, while this one has just begun.
#[tokio::test]
async fn answer_about_period_before_changes_nothing() {
    let day = 24 * 60 * MINUTE;
    let fixed = policy("fixed", 100, day).with_algorithm(Algorithm::FixedWindow).unwrap();
    let calendar = Policy::calendar_period("calendar", 100, Period::Day, Zone::utc()).unwrap();
    for (policy, is_charged) in [(fixed, false), (calendar, false), (policy("sliding", 100, day), true)] {
        let name = policy.name().to_owned();
        let clock = ManualClock::new();
        clock.set_micros((10_000 * day + SECOND).as_micros() as u64);
        let limits = limiter(MemoryBackend::new().with_clock(&clock), &[policy], learning());
        let stated = |remaining, reset| Stated::new([quota(None, [None; 2], remaining, Some(reset))]);
        let learned = learn(&limits, &stated(30, 0.5)).await;
        assert_eq!((learned.charged.is_empty(), learned.unmatched.len()), (!is_charged, 0), "{name}");
        clock.advance(SECOND);
        assert_eq!(learn(&limits, &stated(20, 86_000.0)).await.charged.len(), 1, "{name}");
        assert_eq!(remaining(&limits, &name), 20, "{name}");
    }
}

#[tokio::test]
async fn smallest_of_several_quotas_of_one_policy_counts() {
    let limits = limiter(MemoryBackend::new(), &[policy("calls", 100, MINUTE)], learning());
    let quotas = [50, 20, 70].map(StatedQuota::new);
    assert_eq!(learn(&limits, &Stated::new(quotas)).await.charged[0].1, 79);
    assert_eq!(remaining(&limits, "calls"), 20);
}

#[tokio::test]
async fn larger_remaining_quota_asks_no_store() {
    let backend = FakeBackend::admitting();
    let builder = Limiter::builder(backend.clone()).policy(policy("calls", 100, MINUTE));
    let limits = builder.policy(Policy::gate("api").unwrap()).learn(learning()).build().unwrap();
    let admission = limits.admit(api()).await.unwrap();
    for units in [99, 100, u64::MAX] {
        let learned = limits.learn(&admission, &Stated::new([StatedQuota::new(units)])).await.unwrap();
        assert_eq!(learned, Learned::default());
    }
    assert_eq!(backend.checks().len(), 1);
    let learned = limits.learn(&admission, &Stated::new([StatedQuota::new(98)])).await.unwrap();
    assert!(learned.charged.iter().all(|(_, units)| *units == 0), "a fake counts nothing: {learned:?}");
    assert!(matches!(backend.checks()[1].purpose, Purpose::LeaveAtMost { .. }));
}

#[tokio::test]
async fn each_switch_disables_its_behaviour() {
    let all = [(); 4].map(|()| learning());
    for (off, mut settings) in all.into_iter().enumerate() {
        (settings.obeys_waits, settings.obeys_quotas, settings.backs_off) = (off != 0, off != 1, off != 2);
        let limits = || limiter(MemoryBackend::new(), &[policy("calls", 100, MINUTE)], settings.clone());
        let waits = learn(&limits(), &Stated::default().denied(SECOND)).await.blocked_for;
        assert_eq!(waits, (off != 0).then_some(SECOND));
        let charged = learn(&limits(), &Stated::new([StatedQuota::new(9)])).await.charged;
        assert_eq!(charged.len(), usize::from(off != 1));
        let backoff = learn(&limits(), &Stated::default().denied(None)).await.blocked_for;
        assert_eq!(backoff.is_some(), off != 2);
    }
}

#[tokio::test]
async fn wait_of_answer_is_bounded() {
    let mut settings = learning();
    let limits = limiter(MemoryBackend::new(), &[], settings.clone());
    for stated in [Duration::MAX, Duration::from_secs(1 << 40)] {
        assert_eq!(
            learn(&limits, &Stated::default().denied(stated)).await.blocked_for,
            Some(Learning::DEFAULT_MAX_WAIT)
        );
        limits.unblock(api()).await.unwrap();
    }
    // Such a wait has passed, so it says nothing of the next request.
    let backoff = learn(&limits, &Stated::default().denied(Duration::ZERO)).await.blocked_for.unwrap();
    assert!((SECOND / 2..=SECOND).contains(&backoff), "{backoff:?}");

    settings.max_wait = Duration::from_millis(9);
    let built =
        Limiter::builder(MemoryBackend::new()).policy(policy("calls", 1, SECOND)).learn(settings).build();
    let text = built.unwrap_err().to_string();
    assert!(
        text.contains("learn: max_wait") && text.contains("9ms") && text.contains("10 ms to 366 days"),
        "{text}"
    );
}

#[tokio::test]
async fn backoff_doubles_with_each_denial_after_it() {
    let clock = ManualClock::new();
    let limits = limiter(MemoryBackend::new().with_clock(&clock), &[], learning());
    // A wait of zero is none.
    let denials = [None, Some(Duration::ZERO)].map(|wait| Stated::default().denied(wait));
    let assert_between = |wait: Duration, longest: Duration| {
        assert!(wait >= longest / 2 && wait <= longest, "{wait:?} is not half of {longest:?} to the whole");
    };
    for doublings in 0..15 {
        let longest = (SECOND * (1 << doublings)).min(Learning::DEFAULT_MAX_WAIT);
        let denied = &denials[doublings % 2];
        // Denials of requests that were admitted before the block belong to one attempt, however long the API takes.
        let first = limits.admit(api()).await.unwrap();
        clock.advance(2 * longest);
        let burst = [first, limits.admit(api()).await.unwrap()];
        for admission in burst {
            assert_between(limits.learn(&admission, denied).await.unwrap().blocked_for.unwrap(), longest);
        }
        clock.advance(2 * longest);
    }
    assert_eq!(learn(&limits, &Stated::default()).await, Learned::default());
    assert_between(learn(&limits, &denials[0]).await.blocked_for.unwrap(), SECOND);
}

/// Of two requests that the API has denied, only the second one is without a wait, and lengthens the backoff.
#[tokio::test]
async fn stated_wait_does_not_change_backoff() {
    let clock = ManualClock::new();
    let limits = limiter(MemoryBackend::new().with_clock(&clock), &[], learning());
    assert!(back_off(&limits, &api()).await <= SECOND);
    clock.advance(2 * SECOND);
    let [first, second] = [limits.admit(api()).await.unwrap(), limits.admit(api()).await.unwrap()];
    let stated = limits.learn(&first, &Stated::default().denied(10 * SECOND)).await.unwrap();
    assert_eq!(stated.blocked_for, Some(10 * SECOND));
    let backoff = limits.learn(&second, &Stated::default().denied(None)).await.unwrap().blocked_for.unwrap();
    assert!((SECOND..=2 * SECOND).contains(&backoff), "{backoff:?}");
}

/// Returns the wait of a gate after a denial without a wait. The request charges nothing else.
async fn back_off(limiter: &Limiter, key: &PartitionKey) -> Duration {
    let admission = limiter.admit(key).await.unwrap();
    let denied = Stated::default().denied(None);
    limiter.learn(&admission, &denied).await.unwrap().blocked_for.unwrap()
}

fn hosts(name: &str, number: usize) -> Vec<PartitionKey> {
    (0..number).map(|i| PartitionKey::new("host", format!("{name}{i}"))).collect()
}

#[tokio::test]
async fn thousand_keys_back_off_at_same_time() {
    let clock = ManualClock::new();
    let limits = limiter(MemoryBackend::new().with_clock(&clock), &[], learning());
    let hosts = hosts("", 1_000);
    let mut short = 0;
    for doublings in 0..7 {
        for host in &hosts {
            short += usize::from(back_off(&limits, host).await < SECOND * (1 << doublings) / 2);
        }
        clock.advance(100 * SECOND);
    }
    // Nine keys in one of 1,024 sets are rare.
    assert!(short < 50, "{short} of 7,000 waits are too short");
}

/// Others may own thousands of hosts that answer with 429.
#[tokio::test]
async fn backoffs_of_many_keys_hardly_change_others() {
    let clock = ManualClock::new();
    let limits = limiter(MemoryBackend::new().with_clock(&clock), &[], learning());
    let known = PartitionKey::new("host", "known");
    for _ in 0..9 {
        let wait = back_off(&limits, &known).await;
        clock.advance(wait + SECOND);
    }
    // More hosts than places: their waits grow, because each takes over denials of another one, but not beyond a bound.
    let mut longest = Duration::ZERO;
    for host in hosts("many", 100_000) {
        longest = longest.max(back_off(&limits, &host).await);
    }
    assert!(longest > 32 * SECOND && longest <= 64 * SECOND, "{longest:?}");
    for host in hosts("new", 50) {
        let first = back_off(&limits, &host).await;
        assert!(first > SECOND && first <= 64 * SECOND, "{first:?}");
    }
    let wait = back_off(&limits, &known).await;
    assert!(wait >= 256 * SECOND, "the denials of a key that matters more are kept: {wait:?}");
    clock.advance(128 * SECOND);
    for host in hosts("later", 50) {
        assert!(back_off(&limits, &host).await <= SECOND, "all others are over");
    }
}

/// One API has a gate for each cost, such as those for searches and for reads, and only one of them is denied.
#[tokio::test]
async fn success_through_another_gate_does_not_end_backoff() {
    let clock = ManualClock::new();
    let limits = limiter(MemoryBackend::new().with_clock(&clock), &[], learning());
    let learn = async |policy: Policy, stated: &Stated| {
        let admission = limits.admit([Pair::new(api(), policy, 1)]).await.unwrap();
        limits.learn(&admission, stated).await.unwrap()
    };
    let gate = |name: &str| Policy::gate(name).unwrap();
    for doublings in 0..6 {
        let longest = SECOND * (1 << doublings);
        let learned = learn(gate("no-searches"), &Stated::default().denied(None)).await;
        let wait = learned.blocked_for.unwrap();
        assert!(wait >= longest / 2 && wait <= longest, "{wait:?} is not half of {longest:?} to the whole");
        clock.advance(2 * longest);
        for other in [gate("no-reads"), policy("calls", 100, MINUTE)] {
            assert_eq!(learn(other, &Stated::default()).await, Learned::default());
        }
    }
}

/// A failure does not show whether the API admits requests.
#[tokio::test]
async fn failure_of_api_does_not_change_backoff() {
    let clock = ManualClock::new();
    let limits = limiter(MemoryBackend::new().with_clock(&clock), &[], learning());
    for doublings in 0..6 {
        let longest = SECOND * (1 << doublings);
        let wait = back_off(&limits, &api()).await;
        assert!(wait >= longest / 2 && wait <= longest, "{wait:?} is not half of {longest:?} to the whole");
        clock.advance(2 * longest);
        for status in [500, 502, 503] {
            assert_eq!(learn(&limits, &stated(status, &[])).await, Learned::default());
        }
    }
    for success in [200, 301, 403, 404] {
        assert_eq!(learn(&limits, &stated(success, &[])).await, Learned::default());
        assert!(back_off(&limits, &api()).await <= SECOND, "{success}");
        clock.advance(2 * SECOND);
    }
}

/// Each host has a gate, and all checks have the key of one tenant first.
#[tokio::test]
async fn success_of_another_host_does_not_end_backoff() {
    let clock = ManualClock::new();
    let limits = limiter(MemoryBackend::new().with_clock(&clock), &[], learning());
    let (calls, gate) = (policy("calls", 1_000_000, SECOND), Policy::gate("api").unwrap());
    let learn = async |host: &str, stated: &Stated| {
        let tenant = Pair::new(PartitionKey::new("tenant", "t"), calls.clone(), 1);
        let host = Pair::new(PartitionKey::new("host", host), gate.clone(), 1);
        let admission = limits.admit([tenant, host]).await.unwrap();
        limits.learn(&admission, stated).await.unwrap()
    };
    for doublings in 0..6 {
        let longest = SECOND * (1 << doublings);
        let wait = learn("a", &Stated::default().denied(None)).await.blocked_for.unwrap();
        assert!(wait >= longest / 2 && wait <= longest, "{wait:?} is not half of {longest:?} to the whole");
        clock.advance(2 * longest);
        // Some of these share the memory of the other host.
        for other in 0..200 {
            assert_eq!(learn(&other.to_string(), &Stated::default()).await, Learned::default());
        }
    }
    assert_eq!(learn("a", &Stated::default()).await, Learned::default());
    let wait = learn("a", &Stated::default().denied(None)).await.blocked_for.unwrap();
    assert!(wait <= SECOND, "a success of its own ends it: {wait:?}");
}

#[tokio::test]
async fn learning_without_its_setting_or_a_gate_is_misconfigured() {
    let calls = policy("calls", 100, MINUTE);
    let plain = Limiter::builder(MemoryBackend::new()).policy(calls).build().unwrap();
    let admission = plain.admit(api()).await.unwrap();
    let error = plain.learn(&admission, &Stated::default()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Misconfigured);
    let (without_gate, draft) = chosen_by_draft();
    let admission = without_gate.admit(draft).await.unwrap();
    let error = without_gate.learn(&admission, &Stated::default().denied(SECOND)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"no rate limit decision: misconfigured check: policies to block ["calls"]: it must be at least one gate"#
    );
    assert!(!error.was_asked());
    // An admission that the store has not made states nothing about it.
    let backend = FakeBackend::scripted([FakeAnswer::Unavailable(Reason::Timeout)]);
    let builder = Limiter::builder(backend).policy(Policy::gate("api").unwrap()).learn(learning());
    let open = builder.outage(tower_sliding_window::OutageRule::FailOpen).build().unwrap();
    assert_eq!(learn(&open, &Stated::default().denied(SECOND)).await, Learned::default());
}

/// Its keys are those of another namespace.
#[tokio::test]
async fn admission_of_another_limiter_is_misconfigured() {
    let (memory, calls) = (MemoryBackend::new(), policy("calls", 100, MINUTE));
    let builder =
        || Limiter::builder(memory.clone()).policy(calls.clone()).policy(Policy::gate("api").unwrap());
    let of_namespace = |name: &str| builder().namespace(name).learn(learning()).build().unwrap();
    let (limits, other) = (of_namespace("a"), of_namespace("b"));
    let without_learning = builder().namespace("b").build().unwrap();
    let other_store = Limiter::builder(MemoryBackend::new()).namespace("b").policy(calls.clone());
    let other_store = other_store.learn(quotas_only()).build().unwrap();
    let stated = Stated::new([StatedQuota::new(3)]).denied(SECOND);
    for admitted_by in [&limits, &without_learning, &other_store] {
        let admission = admitted_by.admit(api()).await.unwrap();
        let before = other.peek((api(), 0)).await.unwrap();
        let error = other.learn(&admission, &stated).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Misconfigured);
        assert!(format!("{error:?}").contains("by another limiter"), "{error:?}");
        let after = other.peek((api(), 0)).await.unwrap();
        assert_eq!(
            (before.statuses()[0].remaining(), before.is_admitted()),
            (after.statuses()[0].remaining(), true)
        );
        assert!(after.is_admitted());
    }
    // Another process has the same namespace of the same store.
    let admission = other.admit(api()).await.unwrap();
    assert_eq!(of_namespace("b").learn(&admission, &stated).await.unwrap().blocked_for, Some(SECOND));
}

/// A memory settles at once.
#[test]
fn learning_after_settlement_in_memory_needs_no_timer() {
    let limits = limiter_of_tokens(MemoryBackend::new());
    let runtime = Builder::new_current_thread().build().unwrap();
    let learned = runtime.block_on(async {
        let admission = limits.admit(Draft::check(api(), 1_500).reserve()).await.unwrap();
        drop(admission.reservation().unwrap().settle(100));
        limits.learn(&admission, &Stated::new([StatedQuota::new(1_900)])).await.unwrap()
    });
    assert_eq!(learned.charged[0].1, 8_000);
}

/// A call may run on another runtime than tokio.
#[test]
fn answer_outside_tokio_causes_event() {
    let (events, _guard) = Events::collect();
    let builder = Limiter::builder(Later(MemoryBackend::new())).policy(policy("calls", 100, MINUTE));
    let limits = builder.learn(quotas_only()).build().unwrap();
    let protocol =
        by(|_: &Request<()>| api()).learn_by(|_: &Response<()>| Stated::new([StatedQuota::new(7)]));
    let service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let layer = RateLimitLayer::new(limits, protocol.reject_with(|_, _| Ok(Response::new(()))));
    let client = ServiceBuilder::new().layer(layer).service(service);
    let mut call = pin!(client.oneshot(Request::new(())));
    let mut poll = || call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!((0..9).any(|_| poll()), "the response does not wait");
    let events = events.take();
    assert!(
        matches!(&events[..], [event] if event.contains("was not learned") && event.contains("tokio")),
        "{events:?}"
    );
}

/// Nothing can be blocked, but the rest of the answer is learned.
#[tokio::test]
async fn quota_is_learned_although_gate_is_missing() {
    let (limits, draft) = chosen_by_draft();
    let admission = limits.admit(draft.clone()).await.unwrap();
    let stated = Stated::new([StatedQuota::new(0)]).denied(SECOND);
    let error = limits.learn(&admission, &stated).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Misconfigured);
    assert_eq!(limits.peek(draft).await.unwrap().status("calls").unwrap().remaining(), 0);
}

/// The first denial of the API would otherwise show the mistake.
#[test]
fn limiter_that_learns_to_wait_needs_gate() {
    let build = |learning: Learning, gate: bool| {
        let builder = Limiter::builder(MemoryBackend::new()).policy(policy("calls", 100, MINUTE));
        let builder = if gate { builder.policy(Policy::gate("api").unwrap()) } else { builder };
        builder.learn(learning).build().map(drop)
    };
    for [obeys_waits, backs_off] in [[true, true], [true, false], [false, true]] {
        let mut learning = learning();
        (learning.obeys_waits, learning.backs_off) = (obeys_waits, backs_off);
        assert_eq!(
            build(learning.clone(), false).unwrap_err().to_string(),
            "learn: policies [\"calls\"]: it must be a list with a gate, such as `Policy::gate(\"api\")?`, unless \
             `obeys_waits` and `backs_off` are false; or, if requests choose their gates, call `without_policies()`"
        );
        build(learning, true).unwrap();
    }
    build(quotas_only(), false).unwrap();
    chosen_by_draft();
}

/// In an outage, each further check would take a deadline. Another error concerns one part of the answer.
#[tokio::test]
async fn outage_ends_learning_from_answer() {
    let quotas = Stated::new(["calls", "day"].map(|name| quota(Some(name), [None; 2], 7, None)));
    let denial = quotas.clone().denied(SECOND);
    let failing = |reason| FakeBackend::admitting().failing_settlements(reason);
    for (backend, has_gate, stated, reason, asked) in [
        (failing(Reason::Timeout), false, &quotas, Reason::Timeout, 1),
        (failing(Reason::Timeout), true, &denial, Reason::Timeout, 1),
        (failing(Reason::Overloaded), false, &quotas, Reason::Overloaded, 2),
        (FakeBackend::admitting(), false, &denial, Reason::Misconfigured, 2),
    ] {
        // The draft chooses the policies.
        let limits = Limiter::builder(backend.clone()).without_policies().learn(learning()).build().unwrap();
        let gate = has_gate.then(|| Policy::gate("api").unwrap());
        let policies = [policy("calls", 100, MINUTE), policy("day", 5_000, 1_440 * MINUTE)];
        let checks = policies.into_iter().chain(gate).map(|policy| Draft::check_against(api(), policy, 1));
        let draft = checks.reduce(Draft::and).unwrap();
        let admission = limits.admit(draft).await.unwrap();
        let error = limits.learn(&admission, stated).await.unwrap_err();
        let learning = &backend.checks()[1..];
        assert_eq!((error.reason(), learning.len()), (reason, asked), "gate: {has_gate}, {learning:?}");
    }
}

/// The runtime of an answer is not driven while another one drains.
#[test]
fn drain_ends_although_runtime_of_answer_is_not_driven() {
    let slow = Limiter::builder(Slow(MemoryBackend::new())).policy(policy("calls", 100, MINUTE));
    let slow = slow.learn(quotas_only()).deadline(10 * SECOND).build().unwrap();
    let protocol =
        by(|_: &Request<()>| api()).learn_by(|_: &Response<()>| Stated::new([StatedQuota::new(7)]));
    let service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    let mut client = ServiceBuilder::new().layer(WaitLayer::new(slow.clone(), protocol)).service(service);
    let runtime = || Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let undriven = runtime();
    undriven.block_on(async { client.ready().await.unwrap().call(Request::new(())).await.unwrap() });
    let drained = runtime().block_on(async { timeout(60 * SECOND, slow.drain()).await });
    assert!(drained.is_ok(), "two deadlines have passed");
}
