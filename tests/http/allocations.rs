//! The memory that a request in memory allocates, beside the maps of `http`.

use std::{convert::Infallible, future::ready, time::Duration};

use allocation_counter::measure;
use http::{HeaderName, HeaderValue, Request, Response};
use tower::{Layer, Service, service_fn};
use tower_sliding_window::{
    Limiter, MemoryBackend, PartitionKey, RateLimitLayer, RateLimitLayerBuilder, testing::ManualClock,
};

use super::{MINUTE, SECOND, api_key, policy, probe::now};
use crate::support::events::Events;

/// More requests than a log has room for when it is created, and fewer than it has room for then.
const REQUESTS: usize = 40;

fn request() -> Request<()> {
    Request::get("/").header("x-api-key", "alice").body(()).unwrap()
}

/// Returns the allocations of a request of one policy beside the maps: the fewest of some requests, because some also enlarge the
/// log. Each request is this long after the one before.
fn allocations(quota: u32, interval: Duration) -> u64 {
    fewest_allocations(quota, interval, |builder| builder) - of_maps()
}

/// Returns the fewest allocations of a request, with those of the maps.
fn fewest_allocations(
    quota: u32,
    interval: Duration,
    configure: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
) -> u64 {
    let _no_events = Events::ignore();
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    let builder = RateLimitLayer::builder(backend).policy(policy("p", quota, MINUTE)).key(api_key());
    let limits = configure(builder).build();
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
    let mut service = limits.unwrap().layer(inner);
    let counted = (0..REQUESTS).map(|_| {
        clock.advance(interval);
        let request = request();
        measure(|| drop(now(service.call(request)))).count_total
    });
    counted.min().unwrap()
}

/// Returns the allocations of the maps of an extension and two fields whose values are not copied.
fn of_maps() -> u64 {
    let (mut request, mut response) = (request(), Response::new(()));
    let counted = measure(|| {
        request.extensions_mut().insert(());
        for name in ["ratelimit-policy", "ratelimit"].map(HeaderName::from_static) {
            response.headers_mut().insert(name, HeaderValue::from_static("p"));
        }
    });
    // An empty value in the extensions needs no memory.
    counted.count_total + 1
}

/// The value of `RateLimit`. A decision of one policy and a short partition key need no memory of the heap.
#[test]
fn admitted_request_allocates_once() {
    assert_eq!(allocations(1_000_000, Duration::ZERO), 1);
}

/// The map of the extensions, its table, and the decision.
#[test]
fn omitted_decision_saves_three_allocations() {
    let [usual, omitted] = [|builder| builder, RateLimitLayerBuilder::omit_decision].map(
        |configure: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder| {
            fewest_allocations(1_000_000, Duration::ZERO, configure)
        },
    );
    assert_eq!(usual - omitted, 3);
}

/// Two values, the body and a copy of the response for the other denials of the second.
#[test]
fn first_denial_of_second_allocates_eight_times() {
    assert_eq!(allocations(1, SECOND), 8, "two values, a body, and a copy of the response");
}

/// The response to the second denial of a second is a copy of the first one.
#[test]
fn repeated_denial_allocates_nothing() {
    assert_eq!(allocations(1, Duration::ZERO), 0);
}

#[test]
fn check_of_limiter_allocates_nothing() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limiter = Limiter::builder(backend).policy(policy("p", 1_000, MINUTE)).build().unwrap();
    let key = PartitionKey::new("user", "alice");
    let counted = (0..REQUESTS).map(|_| {
        let key = key.clone();
        measure(|| assert!(now(limiter.check(key)).unwrap().is_admitted())).count_total
    });
    assert_eq!(counted.min(), Some(0));
}

/// A body may add an amount per token of a model.
#[test]
fn addition_to_meter_allocates_nothing() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limiter = Limiter::builder(backend).policy(policy("tokens", 1_000, MINUTE)).build().unwrap();
    let meter = now(limiter.reserve(PartitionKey::new("user", "alice"))).unwrap().meter();
    assert_eq!(measure(|| meter.add_to("tokens", 3)).count_total, 0);
    assert_eq!(meter.added("tokens"), Some(3));
}
