//! Lost replies: the backend never retries a check or refund that may have run. A retry could charge one request twice.

use redis::{
    Client,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use tower_sliding_window::{
    Limiter, RedisBackend,
    backend::{Backend, Reason},
    redis::RedisServers,
};

use super::{
    admin::Admin,
    proxy::{Cut, Proxy},
    rig::{
        HOUR, LONG_WINDOW, alice, backend, every_algorithm, idle, limiter, peek, policy, reason, remaining,
        reserve,
    },
};
use crate::support::{
    scrape::{Scrape, recorder},
    server::{Engine, Server},
};

/// Makes one charge through a connection that breaks after the server has run the script. Asserts that it is charged once.
async fn assert_charged_once(limiter: &Limiter, proxy: &Proxy, server: &Server, cut: Cut) {
    let direct = super::rig::limiter(backend(server).await, [policy("hourly", 100, HOUR)]);
    let before = remaining(&direct).await;
    let mut admin = Admin::at(server);
    admin.query::<()>(&["CONFIG", "RESETSTAT"]);

    proxy.cut_next(cut);
    assert_eq!(reason(limiter.check((alice(), 7)).await), Reason::Connection, "{cut:?}");
    assert!(proxy.has_cut(), "{cut:?}: the reply was cut");
    idle().await;
    assert_eq!(admin.calls("evalsha").all + admin.calls("eval").all, 1, "{cut:?}");
    assert_eq!(remaining(&direct).await, before - 7, "{cut:?}: charged exactly once");

    let next = limiter.check(alice()).await.unwrap();
    assert_eq!(next.statuses()[0].remaining(), before - 8, "{cut:?}: the backend has reconnected");
}

#[tokio::test]
async fn check_with_lost_reply_is_charged_once() {
    for engine in Engine::ALL {
        let recorder = recorder();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let unanswered = || Scrape::of(&recorder.handle()).get("unanswered_checks_total");
        let server = Server::start(engine);
        let proxy = Proxy::before(&server).await;
        let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
        let limiter = limiter(backend.clone(), [policy("hourly", 100, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        for cut in Cut::ALL {
            assert_charged_once(&limiter, &proxy, &server, cut).await;
        }
        assert!(unanswered() >= 1.0, "{engine:?}");
        assert_eq!(unanswered(), backend.unanswered_checks() as f64, "{engine:?}");
    }
}

#[tokio::test]
async fn resp2_check_with_lost_reply_is_charged_once() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&format!("{}?protocol=resp2", proxy.url())).await.unwrap();
    let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
    let _ = limiter.check(alice()).await.unwrap();
    for cut in Cut::ALL {
        assert_charged_once(&limiter, &proxy, &server, cut).await;
    }
}

#[tokio::test]
async fn connection_manager_check_is_charged_once() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let client = Client::open(proxy.url()).unwrap();
    let manager = ConnectionManager::new_with_config(client, ConnectionManagerConfig::new()).await.unwrap();
    let limiter = limiter(
        RedisBackend::builder(RedisServers::connection(manager)).lazy().unwrap(),
        [policy("hourly", 100, HOUR)],
    );
    let _ = limiter.check(alice()).await.unwrap();
    for cut in Cut::ALL {
        assert_charged_once(&limiter, &proxy, &server, cut).await;
    }
}

/// The backend sends the script text only after the NOSCRIPT reply. If that reply is lost, no script has run.
#[tokio::test]
async fn check_with_lost_noscript_reply_charges_nothing() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let proxied = limiter(RedisBackend::lazy(&proxy.url()).unwrap(), [policy("hourly", 100, HOUR)]);
    // The client has a connection, and the server does not know the script.
    proxied.reset(alice()).await.unwrap();
    let direct = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
    let mut admin = Admin::at(&server);
    admin.query::<()>(&["SCRIPT", "FLUSH"]);
    admin.query::<()>(&["CONFIG", "RESETSTAT"]);

    // The NOSCRIPT reply is lost: no script has run.
    proxy.cut_next(Cut::WithinReply);
    assert_eq!(reason(proxied.check((alice(), 7)).await), Reason::Connection, "the connection was lost");
    idle().await;
    assert_eq!(admin.calls("eval").all, 0, "the backend sends no script after a lost reply");
    assert_eq!(admin.keys(), [""; 0], "no script has run");

    assert!(proxied.check((alice(), 7)).await.unwrap().is_admitted(), "the backend has reconnected");
    assert_eq!(remaining(&direct).await, 93, "only the second check is charged");
}

/// A retry would refund more units than the reservation has.
#[tokio::test]
async fn refund_with_lost_reply_is_applied_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let proxy = Proxy::before(&server).await;
        let (proxied, direct) = (RedisBackend::connect(&proxy.url()).await.unwrap(), backend(&server).await);
        let policies = every_algorithm(100, LONG_WINDOW);
        let mut admin = Admin::at(&server);
        // The first refund loads the script.
        let first = reserve(&direct, &policies, 2).await;
        direct.refund(&first.refund(0)).await.unwrap();
        for (i, cut) in (1..).zip(Cut::ALL) {
            let reserved = reserve(&direct, &policies, 10).await;
            // This connection is open and idle.
            let _ = peek(&proxied, &policies, 0).await;
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);

            proxy.cut_next(cut);
            let error = proxied.refund(&reserved.refund(7)).await.unwrap_err();
            assert_eq!(error.reason(), Reason::Connection, "{engine:?} {cut:?}");
            assert!(proxy.has_cut(), "{engine:?} {cut:?}: the reply was cut");
            idle().await;
            assert_eq!(admin.calls("evalsha").all + admin.calls("eval").all, 1, "{engine:?} {cut:?}");
            for status in peek(&proxied, &policies, 0).await.statuses() {
                assert_eq!(status.remaining(), 100 - 7 * i, "{engine:?} {cut:?}: {status:?}");
            }
        }
    }
}
