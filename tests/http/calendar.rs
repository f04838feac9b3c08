//! Calendar periods over HTTP: the header fields, and the anchor of each customer.

use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Decision, Limiter, MemoryBackend, PartitionKey, Policies, Policy, RateLimitLayer, extension,
    policy::{Anchor, Period, Zone},
    protocol::Draft,
    testing::ManualClock,
};

use crate::support::events::Events;

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone)]
struct Customer {
    name: &'static str,
    billing_day: u8,
}

fn monthly() -> Policy {
    Policy::calendar_period("monthly", 2, Period::Month, Zone::utc()).unwrap()
}

/// Returns a memory backend on a clock at 9 September 2001, 00:00 UTC.
fn backend() -> (MemoryBackend, ManualClock) {
    let clock = ManualClock::new();
    clock.set_micros(11_574 * 86_400_000_000);
    (MemoryBackend::new().with_clock(&clock), clock)
}

#[tokio::test]
async fn closure_chooses_anchor_of_each_customer() {
    let (backend, clock) = backend();
    let limits = RateLimitLayer::builder(backend)
        .policies(monthly().anchored_by(|head| {
            let customer = head.extension::<Customer>()?;
            (customer.billing_day > 0).then(|| Anchor::day(customer.billing_day))
        }))
        .key(extension("customer", |customer: &Customer| customer.name.to_owned()))
        .build()
        .unwrap();
    let (events, _guard) = Events::collect();
    let send = async |name, billing_day| {
        let service = limits.layer(service_fn(async |_: Request<String>| {
            Ok::<_, std::convert::Infallible>(Response::new(String::new()))
        }));
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(Customer { name, billing_day });
        service.oneshot(request).await.unwrap()
    };
    let field = |response: &Response<_>, name| response.headers()[name].to_str().unwrap().to_owned();
    // The days until the next 17th, 1st, last day of the month, and 1st for the anchor of the policy.
    for (name, billing_day, days) in [("a", 17, 8), ("b", 1, 22), ("c", 31, 21), ("d", 0, 22), ("e", 255, 21)]
    {
        let response = send(name, billing_day).await;
        assert_eq!(response.status(), 200);
        let seconds = days * 86_400;
        assert_eq!(field(&response, "ratelimit"), format!(r#""monthly";r=1;t={seconds}"#), "{name}");
        assert_eq!(field(&response, "ratelimit-policy"), r#""monthly";q=2"#, "a period has no `w`");
        assert_eq!(send(name, billing_day).await.status(), 200);
        let denied = send(name, billing_day).await;
        assert_eq!(
            (denied.status().as_u16(), field(&denied, "retry-after")),
            (429, seconds.to_string()),
            "{name}"
        );
    }
    clock.advance(8 * DAY);
    assert_eq!([send("a", 17).await.status(), send("b", 1).await.status()].map(|it| it.as_u16()), [200, 429]);
    assert!(!events.text().contains("WARN"), "the anchors of customers do not conflict: {}", events.text());
}

#[tokio::test]
async fn limiter_takes_anchored_policy_of_each_call() {
    let (backend, clock) = backend();
    let limiter = Limiter::builder(backend).without_policies().build().unwrap();
    let check = async |day| -> Decision {
        let policy = monthly().anchored(Anchor::day(day)).unwrap();
        let draft = Draft::check_against(PartitionKey::new("user", "alice"), Policies::from(policy), 1);
        limiter.check(draft).await.unwrap()
    };
    assert_eq!(check(10).await.statuses()[0].next_after(), DAY);
    assert_eq!(check(10).await.statuses()[0].remaining(), 0);
    clock.advance(DAY);
    assert!(check(10).await.is_admitted());
}
