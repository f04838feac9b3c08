//! A limited service, whose limits and backend the page changes while it runs.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    extract::{Query, Request, State},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use tokio::time::sleep;
use tower::ServiceExt;
use tower_sliding_window::{
    Algorithm, ConfigError, Decision, Limiter, OutageRule, PartitionKey, Policies, Policy, RateLimitLayer,
    Rejection,
    backend::Pair,
    header,
    hold::Hold,
    outage::{Breaker, LocalDecision, Share, Unchecked},
};

use crate::{
    body::{Body, whole},
    switch::{Mode, Switch},
};

/// The circuit breaker stays open for long enough to be seen. The default is 250 ms.
const BREAKER: Breaker = Breaker::new(5, Duration::from_secs(2));

/// The longest work of a request, in milliseconds.
const LONGEST_WORK: u32 = 60_000;

/// The limited service. Clones share it.
#[derive(Clone)]
pub(crate) struct Live(Arc<Inner>);

struct Inner {
    switch: Switch,
    /// The limits in force.
    limits: Mutex<Limits>,
}

#[derive(Clone)]
struct Limits {
    /// The page that has set them. Empty at the start.
    page: String,
    namespace: String,
    limiter: Limiter,
    policies: Vec<Policy>,
    service: Router,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the policies and the outage rule")]
pub(crate) struct Settings {
    policies: Policies,
    outage: Rule,
    /// The number of processes that share a quota in the local fallback.
    #[serde(deserialize_with = "processes")]
    processes: u32,
    /// Whether counting starts from zero.
    restart: bool,
    page: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rule {
    FailClosed,
    FailOpen,
    LocalFallback,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with the mode of the backend")]
pub(crate) struct BackendSettings {
    mode: Mode,
}

fn processes<'de, D: Deserializer<'de>>(given: D) -> Result<u32, D::Error> {
    whole("processes", &Value::deserialize(given)?, 1..=1_000)
}

impl Live {
    /// Creates the service with one policy.
    pub(crate) fn new(switch: Switch) -> Result<Self, ConfigError> {
        let policies = Policies::new([Policy::new("burst", 10, Duration::from_secs(10))?])?;
        let limits = Limits::new(&switch, &policies, OutageRule::default(), namespace(), String::new())?;
        Ok(Self(Arc::new(Inner { switch, limits: Mutex::new(limits) })))
    }

    fn limits(&self) -> Limits {
        self.0.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Limits {
    fn new(
        switch: &Switch,
        policies: &Policies,
        rule: OutageRule,
        namespace: String,
        page: String,
    ) -> Result<Self, ConfigError> {
        let mut layer = RateLimitLayer::builder(switch.clone())
            .key(header("x-api-key")?)
            .cost_by(|head| number(head.uri.query(), "cost").unwrap_or(1))
            .outage(rule)
            .breaker(BREAKER)
            .namespace(&namespace);
        for policy in policies.as_slice() {
            layer = layer.policy(policy.clone());
        }
        let layer = layer.build()?;
        let limiter = layer.limiter().clone();
        Ok(Self {
            page,
            namespace,
            limiter,
            policies: policies.as_slice().to_vec(),
            service: Router::new().route("/limited", get(answer)).layer(layer),
        })
    }
}

/// Returns a new namespace, so that counting starts from zero.
fn namespace() -> String {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("playground-{}-{}", since_epoch.as_micros(), std::process::id())
}

/// Returns a number of the query, such as the cost 3 of `?cost=3&ms=500`.
fn number(query: Option<&str>, name: &str) -> Option<u32> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name)?.1.parse().ok()
}

/// Handles an admitted request: reports why it was admitted. The work that the request has begun holds its units in flight.
async fn answer(request: Request) -> Json<Value> {
    let extensions = request.extensions();
    if let Some(hold) = extensions.get::<Hold>().cloned() {
        let work = number(request.uri().query(), "ms").unwrap_or_default().min(LONGEST_WORK);
        tokio::spawn(async move {
            sleep(Duration::from_millis(work.into())).await;
            drop(hold);
        });
    }
    Json(if let Some(unchecked) = extensions.get::<Unchecked>() {
        json!({ "admitted_by": "fail open", "error": unchecked.error().to_string() })
    } else if let Some(local) = extensions.get::<LocalDecision>() {
        let remaining = local.decision().statuses().iter().map(|status| status.remaining()).min();
        json!({ "admitted_by": "local fallback", "remaining": remaining, "error": local.error().to_string() })
    } else {
        let at_micros = extensions.get::<Decision>().map(Decision::at_micros);
        json!({ "admitted_by": "backend", "at_micros": at_micros })
    })
}

/// Passes a request through the layer in force. A denial states its time in a header that the layer does not write, as an
/// admission does in its body: concurrent responses arrive in any order.
pub(crate) async fn limited(State(live): State<Live>, request: Request) -> Response {
    let mut response = live.limits().service.oneshot(request).await.into_response();
    let denial = response.extensions().get().and_then(Rejection::decision);
    if let Some(at) = denial.map(|decision| HeaderValue::from(decision.at_micros())) {
        response.headers_mut().insert("x-decided-at-micros", at);
    }
    response
}

/// Replaces the policies and the outage rule. Usage is kept unless the page asks for a restart.
pub(crate) async fn set_limits(
    State(live): State<Live>,
    Body(settings): Body<Settings>,
) -> Result<(), (StatusCode, String)> {
    let bad_request = |error: ConfigError| (StatusCode::BAD_REQUEST, error.to_string());
    let rule = match settings.outage {
        Rule::FailClosed => OutageRule::FailClosed,
        Rule::FailOpen => OutageRule::FailOpen,
        Rule::LocalFallback => {
            OutageRule::LocalFallback(Share::among(settings.processes).map_err(bad_request)?)
        }
    };
    let namespace = if settings.restart { namespace() } else { live.limits().namespace };
    let Settings { policies, page, .. } = settings;
    let limits = Limits::new(&live.0.switch, &policies, rule, namespace, page).map_err(bad_request)?;
    *live.0.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    Ok(())
}

/// Stops the backend, or starts it again.
pub(crate) async fn set_backend(State(live): State<Live>, Body(settings): Body<BackendSettings>) {
    live.0.switch.set_mode(settings.mode);
}

/// The API key whose units in flight the page shows.
#[derive(Deserialize)]
pub(crate) struct Shown {
    #[serde(default)]
    key: String,
}

/// Returns the state of the backend and of the circuit breaker, the counters, and the units that requests of a key hold.
pub(crate) async fn state(State(live): State<Live>, Query(shown): Query<Shown>) -> Json<Value> {
    let Limits { page, limiter, policies, .. } = live.limits();
    let in_flight =
        policies.into_iter().filter(|policy| matches!(policy.algorithm(), Algorithm::InFlight { .. }));
    let held = held(&limiter, &shown.key, in_flight.collect()).await;
    let stats = limiter.stats();
    Json(json!({
        "page": page,
        "backend": live.0.switch.name(),
        "mode": live.0.switch.mode(),
        "breaker": stats.breakers.first().map(|breaker| breaker.state.to_string()),
        "admitted": stats.admitted,
        "denied": stats.denied,
        "denied_from_cache": stats.denied_from_cache,
        "unavailable": stats.unavailable,
        "held": held,
    }))
}

/// Returns the units that requests of a key hold, by the policy. Without a decision of the backend, they are not known.
async fn held(limiter: &Limiter, key: &str, policies: Vec<Policy>) -> Map<String, Value> {
    if policies.is_empty() {
        return Map::new();
    }
    let key = PartitionKey::header("x-api-key", key);
    // A check with a cost of 0 holds nothing.
    let pairs: Vec<_> = policies.into_iter().map(|policy| Pair::new(key.clone(), policy, 0)).collect();
    let Ok(decision) = limiter.check(pairs).await else { return Map::new() };
    let held = decision.statuses().iter().map(|status| {
        let quota = status.quota().unwrap_or_default();
        (status.policy().name().to_owned(), json!(quota.saturating_sub(status.remaining())))
    });
    held.collect()
}

/// Returns the time of the backend, in microseconds. The edges of calendar windows are multiples of the window.
pub(crate) async fn clock(State(live): State<Live>) -> Result<Json<Value>, (StatusCode, String)> {
    // A check with a cost of 0 records nothing.
    let decision = live.limits().limiter.check((PartitionKey::new("playground", "clock"), 0)).await;
    match decision {
        Ok(decision) => Ok(Json(json!({ "at_micros": decision.at_micros() }))),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
}
