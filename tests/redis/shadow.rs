//! Shadow pairs in Redis: the arguments of the script, and records, permissions and servers that fail.

use tower_sliding_window::{
    Decision, Policy,
    backend::{Backend, Check, Pair, Purpose, Reason},
};

use super::{
    access::{NEEDED, allow, url},
    admin::Admin,
    rig::{HOUR, alice, backend, every_type, policy, reason, with_manual_clock},
};
use crate::support::server::{Engine, Server};

fn check(policies: &[&Policy], purpose: Purpose) -> Check {
    let pairs = policies.iter().map(|policy| Pair::new(alice(), (*policy).clone(), 1));
    Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(purpose)
}

fn names(decision: &Decision) -> Vec<&str> {
    decision.statuses().iter().map(|status| status.policy().name()).collect()
}

#[tokio::test]
async fn shadow_pairs_share_the_call_of_their_check() {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let (ten, canary) = (policy("ten", 10, HOUR), policy("canary", 1, HOUR).shadow());
    let _ = backend.check(&check(&[&ten], Purpose::Charge)).await.unwrap();
    let mut admin = Admin::at(&server);
    let calls = admin.calls("evalsha").all;
    for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek, Purpose::Overage] {
        let decision = backend.check(&check(&[&canary, &ten], purpose)).await.unwrap();
        assert!(decision.is_admitted(), "a shadow policy denies no check: {decision:?}");
        assert_eq!(names(&decision), ["canary", "ten"], "the statuses are in the order of the policies");
    }
    assert_eq!(admin.calls("evalsha").all - calls, 4, "one call for each check");
}

#[tokio::test]
async fn foreign_value_leaves_out_its_shadow_pair() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        let (ten, other) = (policy("ten", 10, HOUR), policy("other", 10, HOUR).shadow());
        for enforced in &every_type(10, HOUR) {
            let canary = enforced.clone().shadow();
            let key = backend.key_name("tsw", &alice(), &canary);
            let is_list = ["log", "buckets"].contains(&canary.name());
            // A value of another type, and one of another layout.
            for command in ["SADD", if is_list { "RPUSH" } else { "SET" }] {
                admin.query::<()>(&["FLUSHALL"]);
                admin.query::<redis::Value>(&[command, &key, "7"]);
                let before: Vec<u8> = admin.query(&["DUMP", &key]);
                for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek, Purpose::Overage] {
                    let mixed = backend.check(&check(&[&canary, &ten, &other], purpose)).await.unwrap();
                    assert!(mixed.is_admitted(), "{engine:?} {purpose:?}: the enforcing pairs have room");
                    assert_eq!(names(&mixed), ["ten", "other"], "{engine:?} {purpose:?}");
                    assert_eq!(
                        mixed.policies().count(),
                        3,
                        "{engine:?} {purpose:?}: the decision names all policies"
                    );
                    assert_eq!(
                        mixed.receipts().len(),
                        if purpose == Purpose::Reserve { 3 } else { 0 },
                        "{engine:?} {purpose:?}: only a reservation has receipts"
                    );
                    let shadows = backend.check(&check(&[&canary, &other], purpose)).await.unwrap();
                    assert!(shadows.is_admitted(), "{engine:?} {purpose:?}: shadow pairs deny no check");
                    assert_eq!(
                        names(&shadows),
                        ["other"],
                        "{engine:?} {purpose:?}: the failed pair has no status"
                    );
                }
                // Three of the four purposes charge.
                let peek = backend.check(&check(&[&ten, &other], Purpose::Peek)).await.unwrap();
                let remaining: Vec<_> = peek.statuses().iter().map(|status| status.remaining()).collect();
                assert_eq!(
                    remaining,
                    [10 - 3 - 1, 10 - 6 - 1],
                    "{engine:?}: three of the four purposes charge the other pairs"
                );
                assert_eq!(
                    admin.query::<Vec<u8>>(&["DUMP", &key]),
                    before,
                    "{engine:?}: the foreign value is unchanged"
                );
                // In an enforcing pair, it is an error.
                let outcome = backend.check(&check(&[enforced], Purpose::Charge)).await;
                assert_eq!(
                    reason(outcome),
                    Reason::ForeignValue,
                    "{engine:?}: an enforcing pair reports the foreign value"
                );
            }
        }
    }
}

#[tokio::test]
async fn missing_permission_for_shadow_rejects_no_check() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    // Sliding counters and fixed windows need further commands.
    let of_logs = NEEDED.into_iter().filter(|command| !["get", "set", "setrange"].contains(command));
    allow(&mut admin, "~tsw{*", of_logs);
    let backend = tower_sliding_window::RedisBackend::lazy(&url(&server, "limiter:secret", "")).unwrap();
    let ten = policy("ten", 10, HOUR);
    let fixed =
        policy("canary", 10, HOUR).with_algorithm(tower_sliding_window::Algorithm::FixedWindow).unwrap();
    let fixed = fixed.shadow();
    let mixed = backend.check(&check(&[&fixed, &ten], Purpose::Charge)).await.unwrap();
    assert_eq!((mixed.is_admitted(), names(&mixed)), (true, vec!["ten"]), "the enforcing pair decides");
    // A check of shadow pairs only shows the problem of the server.
    let shadows = backend.check(&check(&[&fixed], Purpose::Charge)).await;
    assert_eq!(reason(shadows), Reason::NoPermission, "shadow pairs alone report the problem");
}

#[tokio::test]
async fn replica_decides_no_shadow_pair() {
    let (primary, replica) = (Server::start(Engine::Redis), Server::start(Engine::Redis));
    let port = primary.port().to_string();
    Admin::at(&replica).query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    let backend = backend(&replica).await;
    let canary = policy("canary", 10, HOUR).shadow();
    assert_eq!(
        reason(backend.check(&check(&[&canary], Purpose::Charge)).await),
        Reason::ReadOnly,
        "a replica accepts no charge"
    );
}
