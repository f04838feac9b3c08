//! Requests that wait for a limit in Redis.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tower_sliding_window::{Limiter, RedisBackend};

use super::{
    admin::Admin,
    rig::{LONG_DEADLINE, alice, policy},
};
use crate::support::server::{Engine, Server};

const WINDOW: Duration = Duration::from_millis(200);

/// Returns a limiter of 20 units per window, as in a process of its own. The deny cache is on.
fn process(server: &Server) -> Limiter {
    let builder = Limiter::builder(RedisBackend::lazy(&server.url()).unwrap());
    builder.deadline(LONG_DEADLINE).policy(policy("units", 20, WINDOW)).build().unwrap()
}

#[tokio::test]
async fn waiters_of_one_process_ask_redis_at_most_twice() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (limiter, order) = (process(&server), Arc::new(Mutex::new(Vec::new())));
        let _ = limiter.peek(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        let (start, mut waiters) = (Instant::now(), JoinSet::new());
        for i in 0..70 {
            let (limiter, order) = (limiter.clone(), order.clone());
            waiters.spawn(async move {
                let _ = limiter.wait(alice(), Duration::from_secs(60)).await.unwrap();
                order.lock().unwrap().push(i);
            });
        }
        waiters.join_all().await;

        // 20 units at once, and as many after each of two windows; 10 after the third.
        let took = start.elapsed();
        assert!(took >= 3 * WINDOW, "{engine:?}: 20 units in a window, but 70 in {took:?}");
        assert_eq!(*order.lock().unwrap(), (0..70).collect::<Vec<_>>(), "{engine:?}");
        let calls = admin.calls("evalsha").all + admin.calls("eval").all;
        assert!(
            (70..=140).contains(&calls),
            "{engine:?}: at most two checks of each waiter, not {calls} of 70"
        );
        assert_eq!(limiter.waiting(), 0, "{engine:?}: all waiters are admitted");
    }
}

#[tokio::test]
async fn waiters_of_two_processes_share_quota() {
    let server = Server::start(Engine::Redis);
    let processes = [process(&server), process(&server)];
    let (start, mut waiters) = (Instant::now(), JoinSet::new());
    for i in 0..60 {
        let limiter = processes[i % 2].clone();
        waiters.spawn(async move { limiter.wait(alice(), Duration::from_secs(60)).await.unwrap() });
    }
    let admissions = waiters.join_all().await;
    assert!(start.elapsed() >= 2 * WINDOW, "20 units in a window, but 60 in {:?}", start.elapsed());
    let mut instants: Vec<_> =
        admissions.iter().map(|admission| admission.decision().unwrap().at_micros()).collect();
    instants.sort_unstable();
    let window = WINDOW.as_micros() as u64;
    assert!(instants.windows(21).all(|some| some[20] - some[0] >= window), "{instants:?}");
}
