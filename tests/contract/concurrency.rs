//! One order: whatever many clients are told at once, one after the other explains it.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Runtime, sync::Barrier, task::JoinSet};
use tower_sliding_window::{
    Algorithm, Decision, MemoryBackend, Policy, RedisBackend,
    backend::{Backend, Check, Pair, Purpose},
};

use super::{couples, history::Couple, invariants::says_the_same, model::Model};
use crate::support::server::{Engine, Server};

pub const CLIENTS: usize = 8;
pub const CHECKS: usize = 300;

/// What one client of several does: checks at costs 0 to 3 of one key or of both, counted in every way, so that admissions
/// and denials mix.
pub fn check([a, b]: &Couple, client: usize, round: usize) -> Check {
    let policy = |name: &str, quota, millis, algorithm| {
        let policy = Policy::new(name, quota, Duration::from_millis(millis)).unwrap();
        policy.with_algorithm(algorithm).unwrap()
    };
    let precision = Duration::from_millis(7);
    let [log, buckets, counter, fixed] = [
        policy("log", 7, 3, Algorithm::SlidingLog),
        policy("buckets", 25, 50, Algorithm::SlidingBuckets { precision }),
        policy("counter", 20, 10, Algorithm::SlidingCounter),
        policy("fixed", 9, 4, Algorithm::FixedWindow),
    ];
    let cost = ((client + round) % 4) as u32;
    let mut pairs = vec![Pair::new(a.clone(), log.clone(), cost), Pair::new(a.clone(), buckets, cost)];
    if round.is_multiple_of(2) {
        pairs.push(Pair::new(a.clone(), fixed.clone(), 1));
    }
    if round.is_multiple_of(3) {
        pairs.extend([Pair::new(b.clone(), log, 1), Pair::new(b.clone(), counter.clone(), cost)]);
    }
    if round.is_multiple_of(5) {
        pairs = vec![Pair::new(b.clone(), counter, 1), Pair::new(a.clone(), fixed, cost)];
    }
    let purpose = match round % 7 {
        5 => Purpose::Peek,
        6 => Purpose::Reserve,
        _ => Purpose::Charge,
    };
    Check::new(pairs).unwrap().with_purpose(purpose)
}

/// What they are told, each by a backend of its own, by checks of a client and a round.
pub async fn clients_at_once<B: Backend>(
    backends: Vec<B>,
    check: impl Fn(usize, usize) -> Check + Clone + Send + 'static,
) -> Vec<(Check, Decision)> {
    let barrier = Arc::new(Barrier::new(backends.len()));
    let mut clients = JoinSet::new();
    for (client, backend) in backends.into_iter().enumerate() {
        let (barrier, check) = (barrier.clone(), check.clone());
        clients.spawn(async move {
            barrier.wait().await;
            let mut told = Vec::new();
            for round in 0..CHECKS {
                let check = check(client, round);
                let decision = backend.check(&check).await.unwrap();
                told.push((check, decision));
            }
            told
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// Orders what was told by the clock; among equal readings some order has to explain it.
pub fn one_order_explains(mut told: Vec<(Check, Decision)>) {
    let admitted = told.iter().filter(|(_, decision)| decision.is_admitted()).count();
    assert!(
        admitted > 50 && told.len() - admitted > 50,
        "{admitted} admitted of {}: nothing is shown",
        told.len()
    );

    told.sort_by_key(|(_, decision)| decision.at_micros());
    let mut model = Model::default();
    let mut rest = &mut told[..];
    while let Some((_, first)) = rest.first() {
        let at = first.at_micros();
        let together = rest.iter().take_while(|(_, decision)| decision.at_micros() == at).count();
        // Which of those at one instant came next? One that the model explains: a denial or a peek changes nothing, and of two
        // admissions that both fit, the `remaining` tells the order.
        let next = (0..together).find(|i| says_the_same(&model.peek(at, &rest[*i].0), &rest[*i].1));
        let next = next.unwrap_or_else(|| panic!("no order explains {:#?}", &rest[..together]));
        rest.swap(0, next);
        model.check(at, &rest[0].0);
        rest = &mut rest[1..];
    }
}

#[test]
fn one_order_explains_what_threads_are_told_by_memory() {
    let backend = MemoryBackend::new();
    let couple = couples().next().unwrap();
    let mixed = move |client, round| check(&couple, client, round);
    let told = Runtime::new().unwrap().block_on(clients_at_once(vec![backend; CLIENTS], mixed));
    assert_eq!(told.len(), CLIENTS * CHECKS);
    one_order_explains(told);
}

#[test]
fn one_order_explains_what_connections_are_told_by_a_server() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let told = Runtime::new().unwrap().block_on(async {
            let mut backends = Vec::new();
            for _ in 0..CLIENTS {
                backends.push(RedisBackend::connect(&server.url()).await.unwrap());
            }
            let couple = couples().next().unwrap();
            clients_at_once(backends, move |client, round| check(&couple, client, round)).await
        });
        assert_eq!(told.len(), CLIENTS * CHECKS);
        one_order_explains(told);
    }
}
