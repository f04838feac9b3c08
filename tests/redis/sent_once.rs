//! A check that may have run is never sent again: retried, one request would be charged twice. Nor is a refund.

use redis::{
    Client,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use tower_sliding_window::{
    Limiter, RedisBackend,
    backend::{Backend, Reason},
};

use super::{
    look::Look,
    proxy::{Cut, Proxy},
    rig::{
        HOUR, LONG, alice, backend, every_algorithm, idle, limiter, peek, policy, reason, remaining, reserve,
    },
};
use crate::support::server::{Engine, Server};

/// One charge through a line that breaks after the server has run it.
async fn one_charge_with_a_cut(limiter: &Limiter, proxy: &Proxy, server: &Server, cut: Cut) {
    let direct = super::rig::limiter(backend(server).await, [policy("hourly", 100, HOUR)]);
    let before = remaining(&direct).await;
    let mut look = Look::at(server);
    look.ask::<()>(&["CONFIG", "RESETSTAT"]);

    proxy.cut_next(cut);
    assert_eq!(reason(limiter.check(alice(), 7).await), Reason::Connection, "{cut:?}");
    assert!(proxy.has_cut());
    idle().await;
    assert_eq!(look.calls("evalsha").all + look.calls("eval").all, 1, "{cut:?}");
    assert_eq!(remaining(&direct).await, before - 7, "{cut:?}: the charge stands, once");

    let next = limiter.check(alice(), 1).await.unwrap();
    assert_eq!(next.statuses()[0].remaining(), before - 8, "{cut:?}: the line is whole again");
}

#[tokio::test]
async fn a_check_whose_reply_is_lost_is_charged_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let proxy = Proxy::before(&server).await;
        let backend = RedisBackend::connect(&proxy.url()).await.unwrap();
        let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        for cut in Cut::ALL {
            one_charge_with_a_cut(&limiter, &proxy, &server, cut).await;
        }
    }
}

#[tokio::test]
async fn a_check_whose_reply_is_lost_without_resp3_is_charged_once() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let backend = RedisBackend::connect(&format!("{}?protocol=resp2", proxy.url())).await.unwrap();
    let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
    limiter.check(alice(), 1).await.unwrap();
    for cut in Cut::ALL {
        one_charge_with_a_cut(&limiter, &proxy, &server, cut).await;
    }
}

#[tokio::test]
async fn a_check_whose_reply_is_lost_by_a_connection_manager_is_charged_once() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let client = Client::open(proxy.url()).unwrap();
    let manager = ConnectionManager::new_with_config(client, ConnectionManagerConfig::new()).await.unwrap();
    let limiter = limiter(RedisBackend::from_connection(manager), [policy("hourly", 100, HOUR)]);
    limiter.check(alice(), 1).await.unwrap();
    for cut in Cut::ALL {
        one_charge_with_a_cut(&limiter, &proxy, &server, cut).await;
    }
}

/// The text is sent after the hash was not known; of the two, only one can run.
#[tokio::test]
async fn a_check_whose_script_was_unknown_and_whose_reply_is_lost_is_charged_once() {
    let server = Server::start(Engine::Redis);
    let proxy = Proxy::before(&server).await;
    let through = RedisBackend::connect(&proxy.url()).await.unwrap();
    let through = limiter(through, [policy("hourly", 100, HOUR)]);
    let direct = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
    let mut look = Look::at(&server);

    // The answer that it is unknown is lost: nothing has run.
    proxy.cut_next(Cut::WithinReply);
    assert_eq!(reason(through.check(alice(), 7).await), Reason::Connection);
    idle().await;
    assert_eq!(look.calls("eval").all, 0);
    assert_eq!(look.keys(), [""; 0]);

    assert!(through.check(alice(), 7).await.unwrap().is_admitted());
    assert_eq!(remaining(&direct).await, 93);
}

/// Done twice, it would give back more than there was to give.
#[tokio::test]
async fn a_refund_whose_reply_is_lost_is_done_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let proxy = Proxy::before(&server).await;
        let (through, direct) = (RedisBackend::connect(&proxy.url()).await.unwrap(), backend(&server).await);
        let policies = every_algorithm(100, LONG);
        let mut look = Look::at(&server);
        // The server knows the script from the first one.
        let first = reserve(&direct, &policies, 2).await;
        direct.refund(&first.refund(0)).await.unwrap();
        for (i, cut) in (1..).zip(Cut::ALL) {
            let reserved = reserve(&direct, &policies, 10).await;
            // Connected, and idle.
            peek(&through, &policies, 0).await;
            look.ask::<()>(&["CONFIG", "RESETSTAT"]);

            proxy.cut_next(cut);
            let error = through.refund(&reserved.refund(7)).await.unwrap_err();
            assert_eq!(error.reason(), Reason::Connection, "{engine:?} {cut:?}");
            assert!(proxy.has_cut());
            idle().await;
            assert_eq!(look.calls("evalsha").all + look.calls("eval").all, 1, "{engine:?} {cut:?}");
            for status in peek(&through, &policies, 0).await.statuses() {
                assert_eq!(status.remaining(), 100 - 7 * i, "{engine:?} {cut:?}: {status:?}");
            }
        }
    }
}
