//! A Prometheus scrapes the example, in memory and on Redis, and a service with all features, before, during and after an outage of
//! Redis. Then each panel and each rule has data.

use std::{
    collections::BTreeSet,
    env,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::time::{sleep, timeout};
use tower_sliding_window::{PartitionKey, Reservation};

use crate::{
    example::process::Example,
    expressions::{Rule, dashboard, of_panel, panels, rules, selectors},
    http::wire::request,
    picture::{self, Span},
    prometheus::Prometheus,
    service::Service,
    support::server::{Engine, Server},
};

/// What an outage of the store must at least raise.
const EXPECTED_ALERTS: [&str; 5] = [
    "RateLimitBreakerOpen",
    "RateLimitStoreUnreachable",
    "RateLimitFailOpen",
    "RateLimitRequestsUnavailable",
    "RateLimitSettlementsLost",
];

/// Each phase lasts a few seconds. A busy machine needs longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// Names the folder of the picture. With it, each phase lasts at least this long.
const PICTURE: &str = "DASHBOARD_PICTURE";
const SHOWN_PHASE: Duration = Duration::from_secs(30);

/// Returns the seconds since the Unix epoch.
fn seconds_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

struct Rig {
    redis: Server,
    examples: [Example; 2],
    service: Service,
    round: usize,
}

impl Rig {
    async fn start() -> Self {
        let redis = Server::start(Engine::Redis);
        let examples = [Example::of("observability", None), Example::of("observability", Some(&redis.url()))];
        let service = Service::start(&redis.url()).await;
        Self { redis, examples, service, round: 0 }
    }

    /// Sends requests until a condition is met, which is checked twice a second, or until the deadline has passed. Returns whether
    /// it is met.
    async fn traffic_until(&mut self, mut is_met: impl FnMut() -> bool) -> bool {
        let (start, mut checked) = (Instant::now(), Instant::now());
        let least = if env::var_os(PICTURE).is_some() { SHOWN_PHASE } else { Duration::ZERO };
        while start.elapsed() < DEADLINE {
            self.round += 1;
            // Few: each denial is a log event of the example, and nothing reads them.
            if self.round.is_multiple_of(16) {
                timeout(DEADLINE, self.ask_examples()).await.expect("an answer of the examples");
            }
            timeout(DEADLINE, self.service.round(self.round)).await.expect("an answer of the service");
            sleep(Duration::from_millis(50)).await;
            if checked.elapsed() >= Duration::from_millis(500) {
                if start.elapsed() >= least && is_met() {
                    return true;
                }
                checked = Instant::now();
            }
        }
        false
    }

    /// Sends requests to the examples: of a client that is denied most of the time, and of others.
    async fn ask_examples(&self) {
        for example in &self.examples {
            for (path, key) in [("/users/7", "alice"), ("/search", &format!("key-{}", self.round / 48))] {
                request(example.address(), "GET", path, &[("x-api-key", key)]).await;
            }
        }
    }

    /// Stops Redis between a charge and its settlement, which is lost.
    async fn stop_redis(&mut self) {
        let reservation = self.reserve().await;
        self.redis.kill();
        reservation.settle(3);
    }

    /// Charges an estimate. On a busy machine, a check may miss its deadline.
    async fn reserve(&self) -> Reservation {
        for _ in 0..100 {
            if let Ok(reservation) =
                self.service.limiter.reserve((PartitionKey::new("user", "bob"), 10)).await
            {
                return reservation;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("no charge");
    }
}

/// Returns the panels and rules by their names, each with an expression that must have data.
fn expressions(rules: &[Rule]) -> Vec<(String, String)> {
    let dashboard = dashboard();
    let mut expressions = Vec::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        expressions
            .extend(of_panel(panel, &dashboard).into_iter().map(|expression| (title.to_owned(), expression)));
    }
    for rule in rules {
        let name = rule.name().to_owned();
        if rule.record.is_some() {
            expressions.extend([(name.clone(), name.clone()), (name, rule.expr.clone())]);
        } else {
            expressions.push((name, rule.compared().to_owned()));
        }
    }
    expressions
}

/// Returns selectors that each have data if every matcher of an expression selects something.
fn matched(expression: &str) -> Vec<String> {
    let mut matched = Vec::new();
    for selector in selectors(expression) {
        for matcher in &selector.matchers {
            let (label, values) = matcher.split_once('=').unwrap();
            for value in values.trim_start_matches('~').trim_matches('"').split('|') {
                let operator = if value == ".*" { "=~" } else { "=" };
                matched.push(format!("{}{{{label}{operator}\"{value}\"}}", selector.metric));
            }
        }
    }
    matched
}

/// Returns the names of the alerts that are pending or firing.
fn alerts(prometheus: &Prometheus) -> BTreeSet<String> {
    let alerts = prometheus.query("ALERTS");
    alerts.iter().map(|alert| alert["metric"]["alertname"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_has_data_for_each_panel_and_alert() {
    let mut rig = Rig::start().await;
    let jobs = [
        ("memory", rig.examples[0].address()),
        ("redis", rig.examples[1].address()),
        ("service", rig.service.address()),
    ];
    let prometheus = Prometheus::scraping(&jobs);
    // A rate needs two samples of each job.
    let has_rates =
        || prometheus.query("sum by (job) (rate(rate_limit_requests_total[1m]))").len() == jobs.len();
    let begin = seconds_now();
    assert!(rig.traffic_until(has_rates).await, "no rates of each job");

    rig.stop_redis().await;
    let stopped = seconds_now();
    let has_alerts = || {
        let alerts = alerts(&prometheus);
        EXPECTED_ALERTS.iter().all(|alert| alerts.contains(*alert))
    };
    let in_outage = rig.traffic_until(has_alerts).await;
    assert!(in_outage, "alerts in the outage: {:?}", alerts(&prometheus));
    println!("pending or firing in the outage: {:?}", alerts(&prometheus));

    rig.redis.restart();
    let outage = [stopped, seconds_now()];
    let rules = rules();
    let expressions = expressions(&rules);
    let mut empty = Vec::new();
    let has_data = || {
        empty.clear();
        let mut ask = |place: &str, expression: &str| {
            if prometheus.query(expression).is_empty() {
                empty.push(format!("{place}: {expression}"));
            }
        };
        for (place, expression) in &expressions {
            ask(place, expression);
            matched(expression).iter().for_each(|selector| ask(place, selector));
        }
        empty.is_empty() && prometheus.query("rate_limit_breaker_open > 0").is_empty()
    };
    let has_all = rig.traffic_until(has_data).await;
    assert!(has_all, "a circuit breaker is open, or there is no data:\n{}", empty.join("\n"));
    let places: BTreeSet<&str> = expressions.iter().map(|(place, _)| place.as_str()).collect();
    println!("{} panels and rules with {} expressions have data", places.len(), expressions.len());
    assert_rules_are_healthy(&prometheus, rules.len());
    if let Some(folder) = env::var_os(PICTURE) {
        // The first rates need some samples.
        let span = Span { begin: begin + 10.0, outage, end: seconds_now() };
        picture::write(&prometheus, &span, Path::new(&folder));
    }
}

fn assert_rules_are_healthy(prometheus: &Prometheus, expected: usize) {
    let groups = prometheus.api("rules");
    let groups = groups["groups"].as_array().unwrap();
    let rules: Vec<_> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert_eq!(rules.len(), expected);
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        for alert in rule["alerts"].as_array().into_iter().flatten() {
            let text = alert["annotations"].to_string();
            assert!(!text.contains("no value") && !text.contains("<error"), "{text}");
            println!("{}: {}", alert["state"], alert["annotations"]["summary"]);
        }
    }
}
