//! Every fault that can be made, under every rule, on real servers: what a request is told, how long it waits, what is charged,
//! and how long it takes until the store decides again.

use std::{
    cell::RefCell,
    thread,
    time::{Duration, Instant},
};

use http::{Request, StatusCode};
use redis::cmd;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, OutageRule, PartitionKey, RateLimitLayer, RedisBackend, backend::Reason, header,
};

use super::{Found, Marks, local, look, policy};
use crate::{
    redis_server::{
        look::Look,
        proxy::{Cut, Passing, Proxy},
        rig::idle,
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
/// A half of the quota.
const SHARE: u32 = 10;
/// A busy machine wakes late.
const MARGIN: Duration = Duration::from_millis(900);
/// How long until the store decides again, generously.
const RECOVERY: Duration = Duration::from_secs(5);
/// The same where Sentinels or nodes have to agree first.
const AGREEMENT: Duration = Duration::from_secs(30);

/// What a fault means to those who ask while it lasts.
enum Fault {
    /// There is no decision, for one of these reasons.
    Outage(&'static [Reason]),
    /// There is no decision for this key, whatever becomes of others.
    OfOneCheck(Reason),
    /// Nobody notices.
    Harmless,
}

/// A row of the matrix: a store, before and after.
struct Row {
    backend: RedisBackend,
    fault: Fault,
    /// Whether the store forgets what was charged.
    forgets: bool,
    /// Whether checks without an answer may have been charged.
    may_stand: bool,
    recovery: Duration,
}

type Limits = RateLimitLayer;

/// A layer for each rule, and a limiter to look at what it has counted.
struct Layers {
    layers: Vec<(OutageRule, Limiter, Limits)>,
}

impl Layers {
    fn on(backend: &RedisBackend) -> Self {
        let rules =
            [("refuse", OutageRule::FailClosed), ("admit", OutageRule::FailOpen), ("local", local(2))];
        let layers = rules.into_iter().map(|(namespace, rule)| {
            let policy = policy("twenty", QUOTA);
            let builder = RateLimitLayer::builder(backend.clone()).namespace(namespace).outage(rule);
            let layer = builder.policy(policy.clone()).key(header("x-api-key").unwrap()).cost(1).build();
            let look = Limiter::builder(backend.clone()).namespace(namespace).policy(policy);
            let look = look.deadline(Duration::from_secs(20)).breaker(None).build().unwrap();
            (rule, look, layer.unwrap())
        });
        Self { layers: layers.collect() }
    }
}

/// Asks once: the status, how it was let through or refused, and how long that took.
async fn ask(layer: &Limits) -> (StatusCode, Marks, Duration) {
    let request = Request::get("/").header("x-api-key", "alice").body(()).unwrap();
    let start = Instant::now();
    let response = layer.layer(service_fn(look)).oneshot(request).await.unwrap();
    let waited = start.elapsed();
    let marks = Marks::of(response.extensions());
    assert_eq!(response.status() == StatusCode::OK, response.extensions().get::<Found>().is_some());
    (response.status(), marks, waited)
}

/// Plays a fault: asks before it, while it lasts, and until the store decides again.
async fn play(row: Row, inject: impl AsyncFnOnce(), heal: impl AsyncFnOnce()) {
    let Row { backend, fault, forgets, may_stand, recovery } = row;
    let Layers { layers } = Layers::on(&backend);
    for (_, _, layer) in &layers {
        for _ in 0..BEFORE {
            let (status, marks, _) = ask(layer).await;
            assert!(status == StatusCode::OK && marks.decision, "{marks:?}");
        }
    }
    let unanswered = backend.unanswered_checks();

    inject().await;
    for (rule, _, layer) in &layers {
        let mut granted = 0;
        for i in 0..DURING {
            let (status, marks, waited) = ask(layer).await;
            assert!(waited < Limiter::DEFAULT_DEADLINE + MARGIN, "{rule:?}: {waited:?}");
            assert_ne!(status, StatusCode::TOO_MANY_REQUESTS, "an outage is no denial: {marks:?}");
            let reasons: &[Reason] = match &fault {
                Fault::Harmless => {
                    assert!(status == StatusCode::OK && marks.decision, "{rule:?} {i}: {marks:?}");
                    continue;
                }
                Fault::Outage(reasons) => reasons,
                Fault::OfOneCheck(reason) => std::slice::from_ref(reason),
            };
            let is_of_one = matches!(fault, Fault::OfOneCheck(_));
            let (expected, found) = match rule {
                OutageRule::FailOpen if !is_of_one => (StatusCode::OK, marks.unchecked),
                OutageRule::LocalFallback(_) if granted < SHARE => {
                    granted += 1;
                    (StatusCode::OK, marks.local)
                }
                _ => (StatusCode::SERVICE_UNAVAILABLE, marks.refusal.map(|(_, reason)| reason)),
            };
            assert_eq!(status, expected, "{rule:?} {i}: {marks:?}");
            assert!(found.is_some_and(|found| reasons.contains(&found)), "{rule:?} {i}: {marks:?}");
        }
    }
    let unanswered = backend.unanswered_checks() - unanswered;

    heal().await;
    let healed = Instant::now();
    let before = if forgets { 0 } else { BEFORE };
    let during = if matches!(fault, Fault::Harmless) { DURING } else { 0 };
    let mut standing = 0;
    for (rule, look, layer) in &layers {
        while !ask(layer).await.1.decision {
            assert!(healed.elapsed() < recovery, "{rule:?}: the store does not decide again");
            sleep(Duration::from_millis(10)).await;
        }
        let decision = look.peek(alice(), 0).await.unwrap();
        let used = QUOTA - decision.statuses()[0].remaining();
        let known = before + during + 1;
        assert!(used >= known, "{rule:?}: {used} of {known} are charged");
        standing += u64::from(used - known);
    }
    let bound = if may_stand { unanswered } else { 0 };
    assert!(standing <= bound, "{standing} charges stand, and {unanswered} checks were not answered");
}

/// Who the header of these requests names.
fn alice() -> PartitionKey {
    PartitionKey::new("header:x-api-key", "alice")
}

async fn backend(server: &Server) -> RedisBackend {
    RedisBackend::connect(&server.url()).await.unwrap()
}

fn outage(backend: RedisBackend, reasons: &'static [Reason]) -> Row {
    Row { backend, fault: Fault::Outage(reasons), forgets: false, may_stand: false, recovery: RECOVERY }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang() {
    let server = Server::start(Engine::Redis);
    let row = outage(backend(&server).await, &[Reason::Timeout, Reason::Connection]);
    play(row, async || server.signal(libc::SIGSTOP), async || server.signal(libc::SIGCONT)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_and_a_restart() {
    let server = RefCell::new(Server::start(Engine::Redis));
    let backend = RedisBackend::lazy(&server.borrow().url()).unwrap();
    let row = Row { forgets: true, ..outage(backend, &[Reason::Connection]) };
    let kill = async || {
        server.borrow_mut().kill();
        idle().await;
    };
    play(row, kill, async || server.borrow_mut().restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_and_a_restart_of_a_server_that_keeps_what_it_has() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = RefCell::new(Server::with_options(Engine::Redis, &options));
    let backend = RedisBackend::lazy(&server.borrow().url()).unwrap();
    let row = outage(backend, &[Reason::Connection]);
    let kill = async || {
        server.borrow_mut().kill();
        idle().await;
    };
    play(row, kill, async || server.borrow_mut().restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
    let row = outage(backend, &[Reason::Timeout, Reason::Connection]);
    play(row, async || proxy.pass(Passing::Nothing), async || proxy.pass(Passing::Everything)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_swallows_the_answers() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
    let row = Row { may_stand: true, ..outage(backend, &[Reason::Timeout, Reason::Connection]) };
    play(row, async || proxy.pass(Passing::Questions), async || proxy.pass(Passing::Everything)).await;
}

/// Each reply is cut in its middle, until a reply is to be had again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_in_the_middle_of_a_reply() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
    let row = Row { may_stand: true, ..outage(backend, &[Reason::Connection, Reason::Timeout]) };
    let cut = async || proxy.cut_every(Some(Cut::WithinReply));
    play(row, cut, async || proxy.cut_every(None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_demoted() {
    let server = Server::start(Engine::Redis);
    let row = outage(backend(&server).await, &[Reason::ReadOnly]);
    let demote = async || Look::at(&server).ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    play(row, demote, async || Look::at(&server).ask::<()>(&["REPLICAOF", "NO", "ONE"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_is_forgotten() {
    let server = Server::start(Engine::Redis);
    let row = Row { fault: Fault::Harmless, ..outage(backend(&server).await, &[]) };
    play(row, async || Look::at(&server).ask::<()>(&["SCRIPT", "FLUSH"]), async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_memory() {
    let server = Server::start(Engine::Redis);
    let row = outage(backend(&server).await, &[Reason::OutOfMemory]);
    let fill = async || Look::at(&server).set("maxmemory", "1");
    play(row, fill, async || Look::at(&server).set("maxmemory", "0")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_script_that_does_not_end() {
    let server = Server::with_options(Engine::Redis, &["--lua-time-limit", "20"]);
    let row = outage(backend(&server).await, &[Reason::Busy]);
    let look = RefCell::new(Look::at(&server));
    let other = RefCell::new(None);
    let block = async || {
        let mut connection = server.connection();
        let endless =
            thread::spawn(move || cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection));
        *other.borrow_mut() = Some(endless);
        while look.borrow_mut().try_ask::<String>(&["PING"]).is_ok() {}
    };
    let kill = async || {
        look.borrow_mut().ask::<()>(&["SCRIPT", "KILL"]);
        let endless = other.borrow_mut().take().unwrap();
        endless.join().unwrap().expect_err("it does not end by itself");
    };
    play(row, block, kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_that_is_taken_away_and_put_right() {
    let server = Server::start(Engine::Redis);
    let row = outage(backend(&server).await, &[Reason::NoPermission]);
    let take = async || Look::at(&server).ask::<()>(&["ACL", "SETUSER", "default", "-lset"]);
    play(row, take, async || Look::at(&server).ask::<()>(&["ACL", "SETUSER", "default", "+lset"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_changed_and_put_right() {
    let server = Server::start(Engine::Redis);
    let mut look = Look::at(&server);
    let limiter = "limiter on >secret ~* +@all".split(' ');
    let set: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(limiter).collect();
    look.ask::<()>(&set);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let row = outage(RedisBackend::connect(&url).await.unwrap(), &[Reason::NoPermission]);
    // Whoever is connected by the old one is thrown out.
    let look = RefCell::new(look);
    let change = async || {
        look.borrow_mut().ask::<()>(&["ACL", "DELUSER", "limiter"]);
        idle().await;
    };
    play(row, change, async || look.borrow_mut().ask::<()>(&set)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_a_foreign_value() {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let row = Row { fault: Fault::OfOneCheck(Reason::ForeignValue), forgets: true, ..outage(backend, &[]) };
    let names = RefCell::new(Vec::new());
    let spoil = async || {
        let mut look = Look::at(&server);
        *names.borrow_mut() = look.keys();
        for name in &*names.borrow() {
            look.ask::<()>(&["SET", name, "something else"]);
        }
    };
    play(row, spoil, async || Look::at(&server).ask::<()>(&["FLUSHALL"])).await;
}

/// The primary with this key, another one, and its slot.
fn places(cluster: &Cluster) -> (&Server, &Server, u16) {
    let slot = slot(&alice());
    let owner = usize::from(slot) * 3 / 16_384;
    (&cluster.primaries()[owner], &cluster.primaries()[(owner + 1) % 3], slot)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = RedisBackend::connect_cluster([cluster.nodes[0].url()]).await.unwrap();
    let row = Row { fault: Fault::Harmless, ..outage(backend, &[]) };
    let (from, to, slot) = places(&cluster);
    let id = |node: &Server| Look::at(node).ask::<String>(&["CLUSTER", "MYID"]);
    let slot = slot.to_string();
    let set_slot = |node: &Server, state: &str, id: &str| {
        Look::at(node).ask::<()>(&["CLUSTER", "SETSLOT", &slot, state, id]);
    };
    let migrate = async || {
        set_slot(to, "IMPORTING", &id(from));
        set_slot(from, "MIGRATING", &id(to));
        for key in Look::at(from).keys() {
            let port = to.port().to_string();
            Look::at(from).ask::<()>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    };
    let arrive = async || {
        for node in [to, from] {
            set_slot(node, "NODE", &id(to));
        }
    };
    play(row, migrate, arrive).await;
}

/// Keys that live in several slots are a cluster's ordinary case, and no fault to anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_several_slots() {
    use tower_sliding_window::limit;
    let cluster = Cluster::start(Engine::Redis);
    for rule in [OutageRule::FailClosed, OutageRule::FailOpen, local(2)] {
        // Each learns by itself that this is a cluster.
        let backend = RedisBackend::connect_cluster([cluster.nodes[0].url()]).await.unwrap();
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
            let response = layer.layer(service_fn(look)).oneshot(request).await.unwrap();
            assert!(Marks::of(response.extensions()).decision, "{rule:?} {i}: {response:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_failover_by_sentinels() {
    let watched = RefCell::new(Watched::start(Engine::Redis));
    let (url, sentinels) = (watched.borrow().url(), watched.borrow().sentinel_urls());
    let backend = RedisBackend::connect_sentinel(&url, sentinels).await.unwrap();
    let reasons = &[Reason::Connection, Reason::Timeout, Reason::Other, Reason::Busy];
    let row = Row { recovery: AGREEMENT, ..outage(backend, reasons) };
    let kill = async || {
        Look::at(&watched.borrow().primary).replicate();
        watched.borrow_mut().primary.kill();
        idle().await;
    };
    play(row, kill, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_failover_in_a_cluster() {
    let cluster = RefCell::new(Cluster::start(Engine::Redis));
    let backend = RedisBackend::lazy_cluster([cluster.borrow().nodes[4].url()]).unwrap();
    let reasons = &[Reason::Connection, Reason::Timeout, Reason::Busy];
    let row = Row { recovery: AGREEMENT, ..outage(backend, reasons) };
    let kill = async || {
        let owner = usize::from(slot(&alice())) * 3 / 16_384;
        Look::at(&cluster.borrow().nodes[owner]).replicate();
        cluster.borrow_mut().kill(owner);
        idle().await;
    };
    play(row, kill, async || ()).await;
}
