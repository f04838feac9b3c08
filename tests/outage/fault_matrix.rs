//! The fault matrix: every injected fault under every outage rule, on real servers. Each test checks the responses, the waits, the
//! charges and the recovery.

use std::{
    cell::RefCell,
    thread,
    time::{Duration, Instant},
};

use http::{Request, StatusCode};
use redis::cmd;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, OutageRule, PartitionKey, RateLimitLayer, RedisBackend, backend::Reason, header,
    redis::RedisServers,
};

use super::{Marks, RequestMarks, echo_marks, local, marks, policy};
use crate::{
    redis_server::{
        admin::Admin,
        proxy::{Cut, Passing, Proxy},
        rig::{TIMEOUT, idle},
    },
    support::{
        cluster::{Cluster, slot},
        sentinel::Watched,
        server::{Engine, Server},
    },
};

const QUOTA: u32 = 20;
const BEFORE: u32 = 2;
const DURING: u32 = 12;
/// The local share: a half of the quota.
const SHARE: u32 = 10;
/// A busy machine exceeds the default deadline of 100 ms.
const DEADLINE: Duration = Duration::from_secs(1);

/// The effect of a fault on requests.
enum Fault {
    /// The store returns no decision, for one of these reasons.
    Outage(&'static [Reason]),
    /// The store returns no decision for this key. Other keys may get decisions.
    OneCheck(Reason),
    /// The fault affects no request.
    Harmless,
}

/// A scenario of the matrix: a store and the expected effect of a fault.
struct Scenario {
    backend: RedisBackend,
    fault: Fault,
    /// Whether the store loses all charges.
    loses_data: bool,
    /// Whether a check without a reply may have charged.
    may_charge: bool,
}

type Limits = RateLimitLayer;

/// A layer for each rule, and a limiter that reads its usage.
struct Layers {
    layers: Vec<(OutageRule, Limiter, Limits)>,
}

impl Layers {
    fn on(backend: &RedisBackend) -> Self {
        let rules = [("closed", OutageRule::FailClosed), ("open", OutageRule::FailOpen), ("local", local(2))];
        let layers = rules.into_iter().map(|(namespace, rule)| {
            let policy = policy("twenty", QUOTA);
            let builder = RateLimitLayer::builder(backend.clone()).namespace(namespace).outage(rule);
            let builder = builder.policy(policy.clone()).deadline(DEADLINE);
            let layer = builder.key(header("x-api-key").unwrap()).cost(1).build();
            let reader = Limiter::builder(backend.clone()).namespace(namespace).policy(policy);
            let reader = reader.deadline(Duration::from_secs(20)).breaker(None).build().unwrap();
            (rule, reader, layer.unwrap())
        });
        Self { layers: layers.collect() }
    }
}

/// Sends one request. Returns the status and the marks. The response does not wait until the fault ends.
async fn send(layer: &Limits) -> (StatusCode, Marks) {
    let request = Request::get("/").header("x-api-key", "alice").body(()).unwrap();
    let response = timeout(TIMEOUT, layer.layer(service_fn(echo_marks)).oneshot(request)).await;
    let response = response.expect("a response while the fault lasts").unwrap();
    let marks = marks(&response);
    let has_reached_handler = response.extensions().get::<RequestMarks>().is_some();
    assert_eq!(
        has_reached_handler,
        response.status() == StatusCode::OK,
        "only an admitted request: {marks:?}"
    );
    (response.status(), marks)
}

/// Injects a fault. Sends requests before it, during it, and after it until the store decides again.
async fn run_scenario(scenario: Scenario, inject: impl AsyncFnOnce(), heal: impl AsyncFnOnce()) {
    let Scenario { backend, fault, loses_data, may_charge } = scenario;
    let Layers { layers } = Layers::on(&backend);
    for (_, _, layer) in &layers {
        for _ in 0..BEFORE {
            let (status, marks) = send(layer).await;
            assert!(status == StatusCode::OK && marks.decision, "a decision before the fault: {marks:?}");
        }
    }
    let unanswered = backend.unanswered_checks();

    inject().await;
    for (rule, _, layer) in &layers {
        let mut granted = 0;
        for i in 0..DURING {
            let (status, marks) = send(layer).await;
            assert_ne!(status, StatusCode::TOO_MANY_REQUESTS, "an outage is no denial: {marks:?}");
            let reasons: &[Reason] = match &fault {
                Fault::Harmless => {
                    assert!(status == StatusCode::OK && marks.decision, "{rule:?} {i}: {marks:?}");
                    continue;
                }
                Fault::Outage(reasons) => reasons,
                Fault::OneCheck(reason) => std::slice::from_ref(reason),
            };
            let is_of_one = matches!(fault, Fault::OneCheck(_));
            let (expected, found) = match rule {
                OutageRule::FailOpen if !is_of_one => (StatusCode::OK, marks.unchecked),
                OutageRule::LocalFallback(_) if granted < SHARE => {
                    granted += 1;
                    (StatusCode::OK, marks.local)
                }
                _ => (StatusCode::SERVICE_UNAVAILABLE, marks.rejection.map(|(_, reason)| reason)),
            };
            assert_eq!(status, expected, "{rule:?} {i}: {marks:?}");
            assert!(found.is_some_and(|found| reasons.contains(&found)), "{rule:?} {i}: {marks:?}");
        }
    }
    let unanswered = backend.unanswered_checks() - unanswered;

    heal().await;
    let healed = Instant::now();
    let before = if loses_data { 0 } else { BEFORE };
    let during = if matches!(fault, Fault::Harmless) { DURING } else { 0 };
    let mut unreported = 0;
    for (rule, reader, layer) in &layers {
        while !send(layer).await.1.decision {
            assert!(healed.elapsed() < TIMEOUT, "{rule:?}: the store does not decide again");
            // The breaker probes the store at its own pace.
            sleep(Duration::from_millis(10)).await;
        }
        let decision = reader.peek((alice(), 0)).await.unwrap();
        let used = QUOTA - decision.statuses()[0].remaining();
        let charged = before + during + 1;
        assert!(used >= charged, "{rule:?}: the usage is {used}, but {charged} units were charged");
        unreported += u64::from(used - charged);
    }
    let bound = if may_charge { unanswered } else { 0 };
    assert!(
        unreported <= bound,
        "{unreported} charges without a response, but {unanswered} checks without a reply"
    );
}

/// Returns the partition key of the requests.
fn alice() -> PartitionKey {
    PartitionKey::new("header:x-api-key", "alice")
}

async fn backend(server: &Server) -> RedisBackend {
    RedisBackend::connect(&server.url()).await.unwrap()
}

fn outage(backend: RedisBackend, reasons: &'static [Reason]) -> Scenario {
    Scenario { backend, fault: Fault::Outage(reasons), loses_data: false, may_charge: false }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_hang_triggers_outage_rules() {
    let server = Server::start(Engine::Redis);
    let scenario = outage(backend(&server).await, &[Reason::Timeout, Reason::Connection]);
    run_scenario(scenario, async || server.signal(libc::SIGSTOP), async || server.signal(libc::SIGCONT))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_crash_triggers_outage_rules() {
    let server = RefCell::new(Server::start(Engine::Redis));
    let backend = RedisBackend::lazy(&server.borrow().url()).unwrap();
    let scenario = Scenario { loses_data: true, ..outage(backend, &[Reason::Connection]) };
    let kill = async || {
        server.borrow_mut().kill();
        idle().await;
    };
    run_scenario(scenario, kill, async || server.borrow_mut().restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_of_persistent_server_keeps_charges() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = RefCell::new(Server::with_options(Engine::Redis, &options));
    let backend = RedisBackend::lazy(&server.borrow().url()).unwrap();
    let scenario = outage(backend, &[Reason::Connection]);
    let kill = async || {
        server.borrow_mut().kill();
        idle().await;
    };
    run_scenario(scenario, kill, async || server.borrow_mut().restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_traffic_triggers_outage_rules() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
    let scenario = outage(backend, &[Reason::Timeout, Reason::Connection]);
    run_scenario(scenario, async || proxy.pass(Passing::Nothing), async || proxy.pass(Passing::Everything))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_replies_trigger_outage_rules() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
    let scenario = Scenario { may_charge: true, ..outage(backend, &[Reason::Timeout, Reason::Connection]) };
    run_scenario(scenario, async || proxy.pass(Passing::Questions), async || proxy.pass(Passing::Everything))
        .await;
}

/// The proxy cuts the connection within each reply until recovery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_within_reply_triggers_outage_rules() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
    let scenario = Scenario { may_charge: true, ..outage(backend, &[Reason::Connection, Reason::Timeout]) };
    let cut = async || proxy.cut_every(Some(Cut::WithinReply));
    run_scenario(scenario, cut, async || proxy.cut_every(None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_triggers_outage_rules() {
    let server = Server::start(Engine::Redis);
    let scenario = outage(backend(&server).await, &[Reason::ReadOnly]);
    let demote = async || Admin::at(&server).query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    run_scenario(scenario, demote, async || Admin::at(&server).query::<()>(&["REPLICAOF", "NO", "ONE"]))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_affects_no_request() {
    let server = Server::start(Engine::Redis);
    let scenario = Scenario { fault: Fault::Harmless, ..outage(backend(&server).await, &[]) };
    run_scenario(scenario, async || Admin::at(&server).query::<()>(&["SCRIPT", "FLUSH"]), async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_limit_triggers_outage_rules() {
    let server = Server::start(Engine::Redis);
    let scenario = outage(backend(&server).await, &[Reason::OutOfMemory]);
    let fill = async || Admin::at(&server).set("maxmemory", "1");
    run_scenario(scenario, fill, async || Admin::at(&server).set("maxmemory", "0")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_script_triggers_outage_rules() {
    let server = Server::with_options(Engine::Redis, &["--lua-time-limit", "20"]);
    let scenario = outage(backend(&server).await, &[Reason::Busy]);
    let admin = RefCell::new(Admin::at(&server));
    let other = RefCell::new(None);
    let block = async || {
        let mut connection = server.connection();
        let endless =
            thread::spawn(move || cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection));
        *other.borrow_mut() = Some(endless);
        while admin.borrow_mut().try_query::<String>(&["PING"]).is_ok() {}
    };
    let kill = async || {
        admin.borrow_mut().query::<()>(&["SCRIPT", "KILL"]);
        let endless = other.borrow_mut().take().unwrap();
        endless.join().unwrap().expect_err("only SCRIPT KILL ends the script");
    };
    run_scenario(scenario, block, kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permission_triggers_outage_rules() {
    let server = Server::start(Engine::Redis);
    let scenario = outage(backend(&server).await, &[Reason::NoPermission]);
    let take = async || Admin::at(&server).query::<()>(&["ACL", "SETUSER", "default", "-lset"]);
    run_scenario(scenario, take, async || {
        Admin::at(&server).query::<()>(&["ACL", "SETUSER", "default", "+lset"])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_user_triggers_outage_rules() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    let limiter = "limiter on >secret ~* +@all".split(' ');
    let set: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(limiter).collect();
    admin.query::<()>(&set);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let scenario = outage(RedisBackend::connect(&url).await.unwrap(), &[Reason::NoPermission]);
    // Redis closes the connections of a deleted user.
    let admin = RefCell::new(admin);
    let change = async || {
        admin.borrow_mut().query::<()>(&["ACL", "DELUSER", "limiter"]);
        idle().await;
    };
    run_scenario(scenario, change, async || admin.borrow_mut().query::<()>(&set)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_never_fails_open() {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let scenario =
        Scenario { fault: Fault::OneCheck(Reason::ForeignValue), loses_data: true, ..outage(backend, &[]) };
    let names = RefCell::new(Vec::new());
    let spoil = async || {
        let mut admin = Admin::at(&server);
        *names.borrow_mut() = admin.keys();
        for name in &*names.borrow() {
            admin.query::<()>(&["SET", name, "something else"]);
        }
    };
    run_scenario(scenario, spoil, async || Admin::at(&server).query::<()>(&["FLUSHALL"])).await;
}

/// Returns the primary that owns the key, another primary, and the slot of the key.
fn primaries(cluster: &Cluster) -> (&Server, &Server, u16) {
    let slot = slot(&alice());
    let owner = usize::from(slot) * 3 / 16_384;
    (&cluster.primaries()[owner], &cluster.primaries()[(owner + 1) % 3], slot)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_migration_affects_no_request() {
    let cluster = Cluster::start(Engine::Redis);
    let backend =
        RedisBackend::builder(RedisServers::cluster([cluster.nodes[0].url()])).connect().await.unwrap();
    let scenario = Scenario { fault: Fault::Harmless, ..outage(backend, &[]) };
    let (from, to, slot) = primaries(&cluster);
    let id = |node: &Server| Admin::at(node).query::<String>(&["CLUSTER", "MYID"]);
    let slot = slot.to_string();
    let set_slot = |node: &Server, state: &str, id: &str| {
        Admin::at(node).query::<()>(&["CLUSTER", "SETSLOT", &slot, state, id]);
    };
    let migrate = async || {
        set_slot(to, "IMPORTING", &id(from));
        set_slot(from, "MIGRATING", &id(to));
        for key in Admin::at(from).keys() {
            let port = to.port().to_string();
            Admin::at(from).query::<()>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    };
    let arrive = async || {
        for node in [to, from] {
            set_slot(node, "NODE", &id(to));
        }
    };
    run_scenario(scenario, migrate, arrive).await;
}

/// In Redis Cluster the keys of a check may be in several slots. This is no fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_several_slots_cause_no_outage() {
    use tower_sliding_window::limit;
    let cluster = Cluster::start(Engine::Redis);
    for rule in [OutageRule::FailClosed, OutageRule::FailOpen, local(2)] {
        // Each backend detects the cluster.
        let backend =
            RedisBackend::builder(RedisServers::cluster([cluster.nodes[0].url()])).connect().await.unwrap();
        let layer = RateLimitLayer::builder(backend)
            .policy(policy("twenty", QUOTA))
            .outage(rule)
            .key(header("x-api-key").unwrap())
            .also(limit(header("x-other").unwrap()).policy(policy("other", QUOTA)))
            .build()
            .unwrap();
        for i in 0..6 {
            let request = Request::get("/").header("x-api-key", "alice").header("x-other", i.to_string());
            let request = request.body(()).unwrap();
            let response = layer.layer(service_fn(echo_marks)).oneshot(request).await.unwrap();
            assert!(marks(&response).decision, "{rule:?} {i}: {response:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn sentinel_failover_triggers_outage_rules() {
    let watched = RefCell::new(Watched::start(Engine::Redis));
    let (url, sentinels) = (watched.borrow().url(), watched.borrow().sentinel_urls());
    let backend = RedisBackend::builder(RedisServers::sentinel(&url, sentinels)).connect().await.unwrap();
    let reasons = &[Reason::Connection, Reason::Timeout, Reason::Other, Reason::Busy];
    let scenario = Scenario { ..outage(backend, reasons) };
    let kill = async || {
        Admin::at(&watched.borrow().primary).replicate();
        watched.borrow_mut().primary.kill();
        idle().await;
    };
    run_scenario(scenario, kill, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn cluster_failover_triggers_outage_rules() {
    let cluster = RefCell::new(Cluster::start(Engine::Redis));
    let backend =
        RedisBackend::builder(RedisServers::cluster([cluster.borrow().nodes[4].url()])).lazy().unwrap();
    let reasons = &[Reason::Connection, Reason::Timeout, Reason::Busy];
    let scenario = Scenario { ..outage(backend, reasons) };
    let owner = usize::from(slot(&alice())) * 3 / 16_384;
    // The failover must not end the outage before all requests are sent.
    let forbid_failover = |forbid| {
        Admin::at(&cluster.borrow().replicas()[owner]).set("cluster-replica-no-failover", forbid);
    };
    let kill = async || {
        forbid_failover("yes");
        Admin::at(&cluster.borrow().nodes[owner]).replicate();
        cluster.borrow_mut().kill(owner);
        idle().await;
    };
    run_scenario(scenario, kill, async || forbid_failover("no")).await;
}
