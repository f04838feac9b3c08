//! The cost of a check on Redis in the process, over the same client crate with a script that does nothing.
//!
//! Every scenario has 64 checks in flight on one thread, and runs against a server of its own. Instructions and
//! allocations are counted by valgrind in the process of the client. The latency of one check in flight and the throughput of many
//! are measured side by side, in rounds of which the median counts.
//!
//! valgrind has no SHA instructions, which nearly all CPUs of servers have. There, the name of a new key costs the SHA-256 of one block
//! in software; the table states it.

use std::{
    convert::Infallible,
    env,
    error::Error,
    future,
    hint::black_box,
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use http::{Request, Response, StatusCode};
use redis::{Client, Script, aio::MultiplexedConnection, cmd};
use sha2::{Digest, Sha256};
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{
    Algorithm, Limiter, PartitionKey, Policy, RateLimitLayer, RedisBackend, header,
    policy::Lease,
    redis::{Merging, RedisServers},
};

type Fallible<T> = Result<T, Box<dyn Error>>;

/// More keys than a run has checks, so that each check has another key.
const KEYS: usize = 10_000;
/// Keys that repeat.
const FEW_KEYS: usize = 100;
const IN_FLIGHT: usize = 64;
const FEW: usize = 50 * IN_FLIGHT;
const MANY: usize = 150 * IN_FLIGHT;

/// The scenarios that valgrind counts.
const SCENARIOS: [&str; 9] = [
    "bare",
    "hash",
    "limiter",
    "limiter-few-keys",
    "limiter-merged",
    "limiter-merged-few-keys",
    "inner",
    "layer",
    "layer-few-keys",
];
/// The checks before the first count of leased checks. The lease that they leave is larger than the number of checks that are counted.
const BEFORE_LEASED: usize = 20_000;

/// Measures everything and prints the tables.
pub fn report() -> Fallible<()> {
    let server = Server::start()?;
    let mut costs = SCENARIOS.iter().map(|scenario| Cost::of(scenario, &server.url));
    let mut next = || costs.next().ok_or("a scenario is missing")?;
    let (bare, hash) = (next()?, next()?);
    let (limiter, limiter_few, merged, merged_few) = (next()?, next()?, next()?, next()?);
    let (inner, layer, layer_few) = (next()?, next()?, next()?);
    println!(
        "\ncost of a check on Redis, {IN_FLIGHT} in flight on one thread, one policy, not merged unless stated"
    );
    println!("| scenario | instructions | over the bare call | allocations | over the bare call |");
    println!("| --- | --- | --- | --- | --- |");
    println!("| EVALSHA of `return 1` | {} | | {:.2} | |", bare.instructions, bare.allocations);
    for (name, keys, cost) in [
        ("limiter", KEYS, limiter),
        ("limiter", FEW_KEYS, limiter_few),
        ("limiter, merged", KEYS, merged),
        ("limiter, merged", FEW_KEYS, merged_few),
        ("layer, without the inner service and its request", KEYS, layer - inner),
        ("layer, without the inner service and its request", FEW_KEYS, layer_few - inner),
    ] {
        let over = cost - bare;
        println!(
            "| {name}, {keys} keys | {} | {} | {:.2} | {:.2} |",
            cost.instructions, over.instructions, cost.allocations, over.allocations
        );
    }
    println!("| SHA-256 in software, a part of each check whose key is new | {} | | | |", hash.instructions);
    let leased = Cost::of("leased", &server.url)?;
    println!(
        "\na check that is granted from a lease, key already made: {} instructions, {:.2} allocations",
        leased.instructions, leased.allocations
    );
    println!("\none check in flight, on one thread");
    println!("| scenario | p50 | over the bare call |");
    println!("| --- | --- | --- |");
    let [bare, limiter] = latencies(&server.url)?;
    println!("| EVALSHA of `return 1` | {bare:.1?} | |");
    println!("| limiter | {limiter:.1?} | {:.2} x |", limiter.as_secs_f64() / bare.as_secs_f64());
    println!("\nmany checks in flight, a runtime of two workers beside the server");
    println!("| in flight | EVALSHA of `return 1` | limiter |");
    println!("| --- | --- | --- |");
    for in_flight in [64, 256] {
        let [bare, limiter] = throughput(&server.url, in_flight)?;
        println!("| {in_flight} | {bare:.0} per second | {limiter:.0} per second |");
    }
    Ok(())
}

/// Runs a scenario, for valgrind.
pub fn run(scenario: &str, requests: usize, url: &str) -> Fallible<()> {
    let runtime = one_thread()?;
    runtime.block_on(async {
        match scenario {
            "bare" => bare(&bare_connection(url).await?, IN_FLIGHT, requests).await,
            "hash" => {
                // As long as the key of the other scenarios.
                let mut key = [0; 42];
                for number in 0..requests {
                    key[..8].copy_from_slice(&number.to_le_bytes());
                    black_box(Sha256::digest(key));
                }
                Ok(())
            }
            "limiter" | "limiter-few-keys" | "limiter-merged" | "limiter-merged-few-keys" => {
                let merging = if scenario.contains("merged") { Merging::On } else { Merging::Off };
                let keys = if scenario.ends_with("few-keys") { FEW_KEYS } else { KEYS };
                checks(&limiter(url, merging).await?, IN_FLIGHT, requests, keys).await
            }
            "leased" => leased(url, requests).await,
            "inner" => serve(inner(), requests, KEYS).await,
            "layer" | "layer-few-keys" => {
                let limits = RateLimitLayer::builder(backend(url, Merging::Off).await?)
                    .policy(policy()?)
                    .key(header("x-api-key")?)
                    .deadline(DEADLINE)
                    .build()?;
                let keys = if scenario == "layer" { KEYS } else { FEW_KEYS };
                serve(limits.layer(inner()), requests, keys).await
            }
            _ => Err(format!("unknown scenario {scenario:?}").into()),
        }
    })
}

/// The cost of one check.
#[derive(Clone, Copy)]
struct Cost {
    instructions: i64,
    allocations: f64,
}

impl Cost {
    fn of(scenario: &str, url: &str) -> Fallible<Self> {
        let each = |few: i64, many: i64| (many - few) as f64 / (MANY - FEW) as f64;
        let count = |tool, before, requests| valgrind(tool, before, scenario, requests, url);
        let instructions = |requests| count("--tool=callgrind", "Collected :", requests);
        let allocations = |requests| count("--tool=memcheck", "total heap usage:", requests);
        Ok(Self {
            instructions: each(instructions(FEW)?, instructions(MANY)?).round() as i64,
            allocations: each(allocations(FEW)?, allocations(MANY)?),
        })
    }
}

impl std::ops::Sub for Cost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            instructions: self.instructions - other.instructions,
            allocations: self.allocations - other.allocations,
        }
    }
}

/// Runs a scenario under a tool of valgrind, and returns the number after this text.
fn valgrind(tool: &str, before: &str, scenario: &str, requests: usize, url: &str) -> Fallible<i64> {
    let mut command = Command::new("valgrind");
    if tool.ends_with("callgrind") {
        command.arg("--callgrind-out-file=/dev/null");
    }
    command.arg(tool).arg(env::current_exe()?).args([scenario, &requests.to_string(), url]);
    let output = command.output().map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let after = text.lines().find_map(|line| line.split_once(before)).filter(|_| output.status.success());
    let number = after.and_then(|(_, number)| number.split_whitespace().next());
    let number = number.ok_or_else(|| format!("valgrind has counted nothing:\n{text}"))?;
    Ok(number.replace(',', "").parse()?)
}

/// A Redis server that ends with this value.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start() -> Fallible<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--dir", "/tmp"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("redis-server: {error}"))?;
        let server = Self { process, url: format!("redis://127.0.0.1:{port}/") };
        let client = Client::open(&*server.url)?;
        for _ in 0..100 {
            if client.get_connection().is_ok() {
                return Ok(server);
            }
            sleep(Duration::from_millis(20));
        }
        Err("redis-server does not answer".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn one_thread() -> Fallible<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// A client under valgrind is too slow for the default.
const DEADLINE: Duration = Duration::from_secs(10);

fn policy() -> Fallible<Policy> {
    // A sliding log holds as many charges.
    Ok(Policy::new("burst", 1 << 20, Duration::from_secs(1))?)
}

async fn backend(url: &str, merging: Merging) -> Fallible<RedisBackend> {
    Ok(RedisBackend::builder(RedisServers::single(url)).merging(merging).connect().await?)
}

async fn limiter(url: &str, merging: Merging) -> Fallible<Limiter> {
    let backend = backend(url, merging).await?;
    let limiter = Limiter::builder(backend).policy(policy()?).deadline(DEADLINE).build()?;
    let _ = limiter.check(PartitionKey::new("header:x-api-key", "first")).await?;
    Ok(limiter)
}

fn key(number: usize) -> String {
    format!("key-{:06}", number % KEYS)
}

/// Sends this number of checks with a limiter.
async fn checks(limiter: &Limiter, in_flight: usize, requests: usize, keys: usize) -> Fallible<()> {
    // The keys are made before, as the names of the bare call are.
    drive(
        in_flight,
        requests,
        |number| key(number % keys),
        |keys| {
            let limiter = limiter.clone();
            async move {
                for key in keys {
                    let checked = limiter.check(PartitionKey::new("header:x-api-key", key)).await;
                    assert!(checked.is_ok_and(|decision| decision.is_admitted()));
                }
            }
        },
    )
    .await
}

/// Checks one key, whose units are leased.
async fn leased(url: &str, checks: usize) -> Fallible<()> {
    // Each lease has as many units as all earlier checks of its bucket.
    let precision = Duration::from_secs(3_600);
    let policy =
        Policy::new("hot", u32::MAX, precision)?.with_algorithm(Algorithm::SlidingBuckets { precision })?;
    let policy = policy.leased(Lease::up_to(u32::MAX))?;
    let backend = backend(url, Merging::default()).await?;
    let limiter = Limiter::builder(backend).policy(policy).deadline(DEADLINE).build()?;
    let key = PartitionKey::new("header:x-api-key", std::process::id().to_string());
    for number in 0..BEFORE_LEASED + checks {
        let decision = limiter.check(key.clone()).await?;
        assert!(decision.is_admitted() && (decision.is_leased() || number < BEFORE_LEASED));
    }
    Ok(())
}

/// Sends this number of scripts that do nothing, with arguments as long as those of a check.
async fn bare(
    (connection, hash): &(MultiplexedConnection, Arc<str>),
    in_flight: usize,
    requests: usize,
) -> Fallible<()> {
    drive(in_flight, requests, name, |names| {
        let (mut connection, hash) = (connection.clone(), hash.clone());
        async move {
            for name in names {
                bare_call(&mut connection, &hash, &name).await;
            }
        }
    })
    .await
}

async fn bare_connection(url: &str) -> Fallible<(MultiplexedConnection, Arc<str>)> {
    let mut connection = Client::open(url)?.get_multiplexed_async_connection().await?;
    cmd("SCRIPT").arg("LOAD").arg("return 1").query_async::<()>(&mut connection).await?;
    Ok((connection, Script::new("return 1").get_hash().into()))
}

/// Returns a name as long as that of a key in Redis.
fn name(number: usize) -> String {
    format!("tsw{{{:022}}}sburst", number % KEYS)
}

async fn bare_call(connection: &mut MultiplexedConnection, hash: &str, name: &str) {
    let mut call = cmd("EVALSHA");
    // One pair of 20 bytes, a deadline and a generation.
    call.arg(hash).arg(1).arg(name).arg(&[0_u8; 35][..]);
    let reply: Result<i64, _> = call.query_async(connection).await;
    assert_eq!(reply.ok(), Some(1));
}

type Inner = fn(Request<()>) -> future::Ready<Result<Response<()>, Infallible>>;

fn inner() -> tower::util::ServiceFn<Inner> {
    tower::service_fn((|_| future::ready(Ok(Response::new(())))) as Inner)
}

/// Sends this number of requests to a service, which must admit all of them.
async fn serve<S, B>(service: S, requests: usize, keys: usize) -> Fallible<()>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send,
{
    let request = |number| {
        let mut request = Request::new(());
        if let Ok(value) = key(number % keys).parse() {
            request.headers_mut().insert("x-api-key", value);
        }
        request
    };
    drive(IN_FLIGHT, requests, request, |requests| {
        let mut service = service.clone();
        async move {
            for request in requests {
                let ready = service.ready().await.expect("ready");
                let response = ready.call(request).await.expect("a response");
                assert_eq!(response.status(), StatusCode::OK);
            }
        }
    })
    .await
}

/// Runs this number of tasks, and makes the items of each before.
async fn drive<T, F>(
    tasks: usize,
    items: usize,
    item: impl Fn(usize) -> T,
    run: impl Fn(Vec<T>) -> F,
) -> Fallible<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let each = items / tasks;
    let items = |task: usize| (0..each).map(|n| item(task * KEYS / tasks + n)).collect();
    let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(run(items(task)))).collect();
    for task in running {
        task.await?;
    }
    Ok(())
}

/// Returns the median latency of the bare call and of the limiter. Both take turns.
fn latencies(url: &str) -> Fallible<[Duration; 2]> {
    const CALLS: usize = 20_000;
    one_thread()?.block_on(async {
        let (mut connection, hash) = bare_connection(url).await?;
        let limiter = limiter(url, Merging::default()).await?;
        let mut took = [Vec::with_capacity(CALLS), Vec::with_capacity(CALLS)];
        for number in 0..CALLS {
            let name = name(number);
            let key = PartitionKey::new("header:x-api-key", key(number));
            let started = Instant::now();
            bare_call(&mut connection, &hash, &name).await;
            took[0].push(started.elapsed());
            let started = Instant::now();
            let _ = limiter.check(key).await?;
            took[1].push(started.elapsed());
        }
        Ok(took.map(|mut took| *took.select_nth_unstable(CALLS / 2).1))
    })
}

/// Returns the calls per second of the bare call and of the limiter: the median of five rounds that take turns.
fn throughput(url: &str, in_flight: usize) -> Fallible<[f64; 2]> {
    const CALLS: usize = 50_000;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let limiter = limiter(url, Merging::default()).await?;
        let connection = bare_connection(url).await?;
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..5 {
            let started = Instant::now();
            bare(&connection, in_flight, CALLS).await?;
            rates[0].push(CALLS as f64 / started.elapsed().as_secs_f64());
            let started = Instant::now();
            checks(&limiter, in_flight, CALLS, KEYS).await?;
            rates[1].push(CALLS as f64 / started.elapsed().as_secs_f64());
        }
        Ok(rates.map(|mut rates| *rates.select_nth_unstable_by(2, f64::total_cmp).1))
    })
}
