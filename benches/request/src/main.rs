//! The cost of a request in the process: instructions over the inner service, counted by callgrind.
//!
//! ```text
//! cargo run --release -p request-bench
//! ```
//!
//! It needs valgrind and redis-server. `cargo run --release -p request-bench redis` measures the checks on Redis only.
//!
//! Each scenario runs twice, with a different number of requests. The difference divided by the number of further requests is the
//! cost of one request, without start-up. Requests are built before the first count.

use std::{convert::Infallible, env, error::Error, future, pin::pin, process::Command, task, time::Duration};

use http::{Request, Response, StatusCode};
use tower::{Layer, Service};
use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, header};

mod redis;

const SCENARIOS: [&str; 4] = ["inner", "admitted", "denied", "check"];
const FEW: u32 = 1_000;
const MANY: u32 = 3_000;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [backend] if backend == "redis" => return redis::report(),
        [scenario, requests] => return run(scenario, requests.parse()?),
        [scenario, requests, url] => return redis::run(scenario, requests.parse()?, url),
        _ => {}
    }
    let counts = SCENARIOS.map(count);
    let [inner, admitted, denied, check] = counts;
    let (inner, admitted, denied, check) = (inner?, admitted?, denied?, check?);
    println!("instructions of a request, memory backend, header key, one policy");
    println!("| scenario | instructions | over the inner service |");
    println!("| --- | --- | --- |");
    println!("| inner service | {inner} | |");
    println!("| admitted | {admitted} | {} |", admitted - inner);
    println!("| denied | {denied} | {} |", denied - inner);
    println!("| `Limiter::check` alone, key already made | {check} | |");
    redis::report()
}

/// Counts the instructions of one request.
fn count(scenario: &str) -> Result<i64, Box<dyn Error>> {
    let few = total(scenario, FEW)?;
    let many = total(scenario, MANY)?;
    Ok((many - few) / i64::from(MANY - FEW))
}

fn total(scenario: &str, requests: u32) -> Result<i64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe()?)
        .args([scenario, &requests.to_string()])
        .output()
        .map_err(|error| {
            format!("valgrind: {error}; install it, for example with `apt-get install valgrind`")
        })?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, collected) = line.ok_or_else(|| format!("valgrind has counted nothing:\n{text}"))?;
    Ok(collected.trim().parse()?)
}

fn run(scenario: &str, requests: u32) -> Result<(), Box<dyn Error>> {
    // A sliding log holds as many charges.
    let quota = if scenario == "denied" { 1 } else { 1 << 20 };
    let policy = Policy::new("burst", quota, Duration::from_secs(3600))?;
    if scenario == "check" {
        return check(policy, requests);
    }
    let limits =
        RateLimitLayer::builder(MemoryBackend::new()).policy(policy).key(header("x-api-key")?).build()?;
    let inner = tower::service_fn(|_: Request<()>| future::ready(Ok::<_, Infallible>(Response::new(()))));
    let request = || Request::get("/").header("x-api-key", "alice").body(());
    let built = (0..requests).map(|_| request()).collect::<Result<Vec<_>, _>>()?;
    match scenario {
        "inner" => serve(inner, built, StatusCode::OK),
        "admitted" => serve(limits.layer(inner), built, StatusCode::OK),
        "denied" => serve(limits.layer(inner), built, StatusCode::TOO_MANY_REQUESTS),
        _ => return Err(format!("unknown scenario {scenario:?}").into()),
    }
    Ok(())
}

/// Checks one key. Every future is ready when it is polled first.
fn check(policy: Policy, checks: u32) -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
    let (key, mut cx) = (PartitionKey::new("user", "alice"), task::Context::from_waker(task::Waker::noop()));
    for _ in 0..checks {
        let decided = pin!(limiter.check(key.clone())).poll(&mut cx);
        assert!(matches!(decided, task::Poll::Ready(Ok(decision)) if decision.is_admitted()));
    }
    Ok(())
}

/// Calls the service. Every future is ready when it is polled first, and every response after the first one has this status.
fn serve<S, B>(mut service: S, requests: Vec<Request<()>>, status: StatusCode)
where
    S: Service<Request<()>, Response = Response<B>>,
{
    let mut cx = task::Context::from_waker(task::Waker::noop());
    for (number, request) in requests.into_iter().enumerate() {
        assert!(service.poll_ready(&mut cx).is_ready());
        let task::Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut cx) else {
            panic!("a service in memory waits or fails");
        };
        assert!(number == 0 || response.status() == status, "{}", response.status());
    }
}
