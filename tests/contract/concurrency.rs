//! Linearizability: one order of the checks explains the decisions of concurrent clients.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Runtime, sync::Barrier, task::JoinSet};
use tower_sliding_window::{
    Algorithm, Decision, MemoryBackend, Policy, RedisBackend,
    backend::{Backend, Check, Pair, Purpose},
    policy::Rate,
};

use super::{distinct_keys, history::TwoKeys, invariants::same_decision, model::Model};
use crate::support::server::{Engine, Server};

pub const CLIENTS: usize = 8;
pub const CHECKS: usize = 300;

/// Returns the check of a client in a round. The checks have costs of 0 to 3, one key or both, and every algorithm, so that
/// some are admitted and some are denied, also on a slow machine.
pub fn check([a, b]: &TwoKeys, client: usize, round: usize) -> Check {
    let policy = |name: &str, quota, millis, algorithm| {
        let policy = Policy::new(name, quota, Duration::from_millis(millis)).unwrap();
        policy.with_algorithm(algorithm).unwrap()
    };
    let precision = Duration::from_millis(7);
    let [log, buckets, counter, fixed, tokens] = [
        policy("log", 7, 12, Algorithm::SlidingLog),
        policy("buckets", 25, 200, Algorithm::SlidingBuckets { precision }),
        policy("counter", 20, 10, Algorithm::SlidingCounter),
        policy("fixed", 9, 4, Algorithm::FixedWindow),
        policy("tokens", 12, 1, Algorithm::TokenBucket { rate: Rate::new(700, Duration::from_millis(60)) }),
    ];
    let cost = ((client + round) % 4) as u32;
    let mut pairs = vec![Pair::new(a.clone(), log.clone(), cost), Pair::new(a.clone(), buckets, cost)];
    if round.is_multiple_of(2) {
        pairs.extend([Pair::new(a.clone(), fixed.clone(), 1), Pair::new(a.clone(), tokens, cost)]);
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

/// Runs one client on each backend concurrently, and returns all checks and decisions.
pub async fn run_clients<B: Backend>(
    backends: Vec<B>,
    check: impl Fn(usize, usize) -> Check + Clone + Send + 'static,
) -> Vec<(Check, Decision)> {
    let barrier = Arc::new(Barrier::new(backends.len()));
    let mut clients = JoinSet::new();
    for (client, backend) in backends.into_iter().enumerate() {
        let (barrier, check) = (barrier.clone(), check.clone());
        clients.spawn(async move {
            barrier.wait().await;
            let mut decisions = Vec::new();
            for round in 0..CHECKS {
                let check = check(client, round);
                let decision = backend.check(&check).await.unwrap();
                decisions.push((check, decision));
            }
            decisions
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// Sorts the decisions by their instants. Among decisions of one instant, the reference model must explain some order.
pub fn assert_one_order_explains(mut decisions: Vec<(Check, Decision)>) {
    let admitted = decisions.iter().filter(|(_, decision)| decision.is_admitted()).count();
    assert!(
        admitted > 50 && decisions.len() - admitted > 50,
        "{admitted} admitted of {}: the test needs admissions and denials",
        decisions.len()
    );

    decisions.sort_by_key(|(_, decision)| decision.at_micros());
    let mut model = Model::default();
    let mut rest = &mut decisions[..];
    while let Some((_, first)) = rest.first() {
        let at = first.at_micros();
        let together = rest.iter().take_while(|(_, decision)| decision.at_micros() == at).count();
        // The next decision is one that the model explains: first of all one that changes no usage, because it may be explained
        // only now. If two charges fit, their `remaining` shows the order.
        let explained = (0..together).filter(|i| same_decision(&model.peek(at, &rest[*i].0), &rest[*i].1));
        let next = explained.min_by_key(|i| charges(&rest[*i]));
        let next = next.unwrap_or_else(|| panic!("no order explains {:#?}", &rest[..together]));
        rest.swap(0, next);
        let _ = model.check(at, &rest[0].0);
        rest = &mut rest[1..];
    }
}

/// Returns whether a check has changed the usage of a pair.
fn charges((check, decision): &(Check, Decision)) -> bool {
    decision.is_admitted()
        && check.purpose() != Purpose::Peek
        && check.pairs().iter().any(|pair| pair.cost > 0)
}

#[test]
fn one_order_explains_memory_decisions() {
    let backend = MemoryBackend::new();
    let two_keys = distinct_keys().next().unwrap();
    let mixed = move |client, round| check(&two_keys, client, round);
    let decisions = Runtime::new().unwrap().block_on(run_clients(vec![backend; CLIENTS], mixed));
    assert_eq!(decisions.len(), CLIENTS * CHECKS, "every check has a decision");
    assert_one_order_explains(decisions);
}

#[test]
fn one_order_explains_server_decisions() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let decisions = Runtime::new().unwrap().block_on(async {
            let mut backends = Vec::new();
            for _ in 0..CLIENTS {
                backends.push(RedisBackend::connect(&server.url()).await.unwrap());
            }
            let two_keys = distinct_keys().next().unwrap();
            run_clients(backends, move |client, round| check(&two_keys, client, round)).await
        });
        assert_eq!(decisions.len(), CLIENTS * CHECKS, "every check has a decision");
        assert_one_order_explains(decisions);
    }
}
