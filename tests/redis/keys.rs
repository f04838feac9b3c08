//! Names of stored keys, and the secrecy of partition keys.

use std::{error::Error, time::Duration};

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use tower_sliding_window::{
    Algorithm, ConfigError, Limiter, PartitionKey, Policy, RedisBackend,
    backend::{Backend, Check, Pair, Purpose, Reason},
    redis::RedisServers,
};

use super::{
    admin::Admin,
    rig::{
        self, HOUR, LONG_DEADLINE, alice, backend, every_algorithm, every_type, limiter, policy, remaining,
    },
};
use crate::support::{
    cluster::Cluster,
    events::Events,
    key_name::KeyName,
    server::{Engine, Server},
};

const SECRET: &str = "7f0d1c0ffee7f0d1c0ffee7f0d1c0ffe";

fn secret_backend(url: &str, secret: &str) -> Result<RedisBackend, ConfigError> {
    RedisBackend::builder(RedisServers::single(url)).hash_secret(secret).lazy()
}

#[tokio::test]
async fn stored_keys_match_key_name() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        for secret in [None, Some(SECRET)] {
            admin.query::<()>(&["FLUSHALL"]);
            let builder = RedisBackend::builder(RedisServers::single(server.url()));
            let builder = secret.into_iter().fold(builder, |builder, secret| builder.hash_secret(secret));
            let backend = builder.lazy().unwrap();
            let policies = every_type(10, HOUR);
            for namespace in ["tsw", "shop:eu"] {
                let builder = Limiter::builder(backend.clone()).namespace(namespace);
                let builder = policies.iter().fold(builder, |builder, policy| builder.policy(policy.clone()));
                let limiter = builder.deadline(LONG_DEADLINE).build().unwrap();
                assert_eq!(limiter.namespace(), namespace, "the limiter reports its namespace");
                let _ = limiter.check(alice()).await.unwrap();
            }
            let name = |namespace| {
                let backend = &backend;
                policies.each_ref().map(|policy| backend.key_name(namespace, &alice(), policy))
            };
            let mut expected = [name("tsw"), name("shop:eu")].concat();
            expected.sort();
            assert_eq!(admin.keys(), expected, "{engine:?}");
        }
    }
}

/// Windows that a user writes, and any others.
fn any_window() -> impl Strategy<Value = u64> {
    let unit = prop::sample::select(vec![1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000]);
    let day = 86_400_000_000_u64;
    let round = (1_u64..=366, unit).prop_map(move |(number, unit)| (number * unit).min(366 * day));
    prop_oneof![round, 1_000..=366 * day]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    /// So two pairs that differ in any part have different keys, whatever characters the namespace and the name contain.
    #[test]
    fn key_name_states_every_part(
        namespace in "[!-z|~]{1,64}",
        key in any::<u128>(),
        name in "[ -~]{1,64}",
        algorithm in 0..5_usize,
        window in any_window(),
        share in 1_u64..=4_096,
    ) {
        let [window, precision] = [window, window.div_ceil(share).max(1_000)].map(Duration::from_micros);
        let algorithm = [
            Algorithm::SlidingLog,
            Algorithm::SlidingBuckets { precision },
            Algorithm::SlidingCounter,
            Algorithm::FixedWindow,
            KeyName::TOKEN_BUCKET,
        ][algorithm];
        let policy = policy(&name, 10, window).with_algorithm(algorithm).unwrap();
        let key = PartitionKey::new("user", key.to_string());
        let backend = RedisBackend::lazy("redis://127.0.0.1/").unwrap();
        let text = backend.key_name(&namespace, &key, &policy);

        let hash = u128::from_be_bytes(*Sha256::digest(key.as_bytes()).first_chunk().unwrap());
        let window = policy.window();
        let expected = KeyName { namespace, version: 2, hash, window, algorithm, policy: name };
        prop_assert_eq!(KeyName::parse(&text), Some(expected), "{}", text);
    }
}

/// A name of up to 30 bytes takes 32 bytes of Redis.
#[test]
fn key_of_short_policy_has_at_most_30_bytes() {
    let backend = RedisBackend::lazy("redis://127.0.0.1/").unwrap();
    let length = |policy: Policy| backend.key_name("tsw", &alice(), &policy).len();
    for (unit, windows) in [(1, 1..=35), (60, 1..=35), (3_600, 1..=23), (86_400, 1..=35)] {
        for window in windows.map(|window| Duration::from_secs(unit * window)) {
            for algorithm in [
                Algorithm::SlidingLog,
                Algorithm::SlidingCounter,
                Algorithm::FixedWindow,
                KeyName::TOKEN_BUCKET,
            ] {
                let policy = policy("a", 10, window).with_algorithm(algorithm).unwrap();
                assert!(length(policy) <= 30, "{window:?}, {algorithm:?}");
            }
        }
    }
    for (window, precision) in [(60, 1), (3_600, 60), (3_600, 1), (86_400, 60), (86_400, 3_600)] {
        let [window, precision] = [window, precision].map(Duration::from_secs);
        let buckets = Algorithm::SlidingBuckets { precision };
        assert!(length(policy("a", 10, window).with_algorithm(buckets).unwrap()) <= 30, "{window:?}");
    }
}

#[tokio::test]
async fn hash_secret_separates_counts() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let with_secret = async |secret: &str| {
            let backend = secret_backend(&server.url(), secret).unwrap();
            limiter(backend, [policy("hourly", 10, HOUR)])
        };
        let (one, same) = (with_secret(SECRET).await, with_secret(SECRET).await);
        let other = with_secret(&SECRET.replace('7', "8")).await;
        let none = limiter(backend(&server).await, [policy("hourly", 10, HOUR)]);
        let _ = one.check((alice(), 3)).await.unwrap();
        let mut counts = Vec::new();
        for limiter in [&one, &same, &other, &none] {
            counts.push(remaining(limiter).await);
        }
        assert_eq!(counts, [7, 7, 10, 10], "{engine:?}");

        same.reset(alice()).await.unwrap();
        assert_eq!(remaining(&one).await, 10, "{engine:?}");
        assert_eq!(
            Admin::at(&server).keys(),
            [""; 0],
            "{engine:?}: a reset with the same secret deletes the key"
        );
    }
}

/// The hash with the secret determines the names of the keys, and so their slots.
#[tokio::test]
async fn check_with_hash_secret_is_split_by_slot() {
    let cluster = Cluster::start(Engine::Redis);
    let connection = cluster.connection().await;
    let backend =
        RedisBackend::builder(RedisServers::connection(connection)).hash_secret(SECRET).lazy().unwrap();
    let hourly = policy("hourly", 10, HOUR);
    for i in 0..20 {
        let key = |name: &str| PartitionKey::new("key", format!("{name} {i}"));
        let pairs = ["a", "b", "c", "d"].map(|name| Pair::new(key(name), hourly.clone(), 4));
        let check = Check::new(pairs).unwrap();
        for expected in [6, 2] {
            let decision = backend.check(&check).await.unwrap();
            assert!(decision.statuses().iter().all(|status| status.remaining() == expected), "{decision:?}");
        }
        assert!(
            !backend.check(&check).await.unwrap().is_admitted(),
            "{i}: two units remain in each slot, and the cost is 4"
        );
        backend.reset(&check).await.unwrap();
    }
    assert_eq!(backend.lost_rollbacks(), 0, "every rollback has run");
}

/// Without a secret, a client computes the slot of its key as the server does, and invents keys until one is in the victim's slot.
#[tokio::test]
async fn hash_secret_hides_slot_of_key() {
    const KEYS: usize = 6;
    let url = "redis://127.0.0.1/";
    let hourly = policy("hourly", 10, HOUR);
    let slot = |backend: &RedisBackend, user: &str| {
        let name = backend.key_name("tsw", &PartitionKey::new("header:x-api-key", user), &hourly);
        let (_, tag) = name.split_once('{').unwrap();
        crc16::State::<crc16::XMODEM>::calculate(tag.split_once('}').unwrap().0.as_bytes()) % 16_384
    };
    let (public, secret) = (RedisBackend::lazy(url).unwrap(), secret_backend(url, SECRET).unwrap());
    let victim = slot(&public, "victim");
    let invented = (0..2_000_000).map(|i| format!("invented {i}"));
    let chosen: Vec<_> = invented.filter(|user| slot(&public, user) == victim).take(KEYS).collect();
    assert_eq!(chosen.len(), KEYS, "a client finds a key after some 16,384 attempts");

    // The client does not know the secret. By chance, one key in 16,384 is in the slot of another.
    let victim = slot(&secret, "victim");
    let found = chosen.iter().filter(|user| slot(&secret, user) == victim).count();
    assert_eq!(found, 0, "keys that a client has chosen are in the victim's slot: {chosen:?}");
}

#[tokio::test]
async fn short_hash_secret_is_an_error() {
    let error = secret_backend("redis://127.0.0.1/", "s3cret").unwrap_err();
    assert!(matches!(error, ConfigError::HashSecret { given: 6, min: 32, .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("s3cret"), "the error hides the secret");
}

/// Returns `Display` and `Debug` of an error and of all its sources.
fn chain(error: &dyn Error) -> String {
    let mut text = format!("{error:?} {error}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

#[test]
fn servers_print_no_url() {
    let url = |host: &str| format!("redis://user:pa55word@{host}:6379");
    let servers = [
        RedisServers::single(url("primary")),
        RedisServers::sentinel(url("primary"), [url("one"), url("two")]),
        RedisServers::cluster([url("one"), url("two"), url("three")]),
    ];
    let texts = servers.map(|servers| format!("{servers:?}"));
    assert_eq!(
        texts,
        [
            "RedisServers { single: 1, .. }",
            "RedisServers { sentinels: 2, .. }",
            "RedisServers { nodes: 3, .. }"
        ]
    );
}

/// No `Debug` output, error or log event contains the partition key, the secret or the password.
#[tokio::test]
async fn output_reveals_no_key_secret_or_password() {
    const KEY: &str = "alice@example.org";
    const PASSWORD: &str = "pa55word";
    for engine in Engine::ALL {
        let (events, _guard) = Events::collect();
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        admin.set("requirepass", PASSWORD);
        let url = format!("redis://:{PASSWORD}@127.0.0.1:{}/", server.port());
        let backend = secret_backend(&url, SECRET).unwrap();
        let [log, ..] = every_algorithm(3, HOUR);
        let key = || PartitionKey::new("user", KEY).and(&PartitionKey::new("peer-ip", KEY));
        let check = Check::new([Pair::new(key(), log.clone(), 1)]).unwrap();
        let check = check.with_purpose(Purpose::Reserve);
        let reserved = rig::Reserved { decision: backend.check(&check).await.unwrap(), check };
        let limiter = limiter(backend.clone(), [log.clone()]);
        let reserve = limiter.reserve(key()).await.unwrap();
        let mut printed = format!(
            "{backend:?} {:?} {:?} {:?} {:?} {limiter:?} {reserve:?} {:?}",
            key(),
            reserved.check,
            reserved.decision,
            reserved.refund(0),
            limiter.check(key())
        );
        drop(reserve);

        // A cost above the quota, a repeated pair, a foreign value, a lost settlement, a wrong password, a dead server.
        printed += &format!("{:?}", limiter.check((key(), 9)).await);
        let repeated = [Pair::new(key(), log.clone(), 1), Pair::new(key(), log.clone(), 1)];
        printed += &chain(&Check::new(repeated).unwrap_err());
        admin.query::<()>(&["SET", &backend.key_name("tsw", &key(), &log), "foreign"]);
        let error = limiter.check(key()).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ForeignValue, "{engine:?}: the key has a foreign value");
        printed += &chain(&error);
        admin.query::<()>(&["FLUSHALL"]);
        let lost = limiter.reserve((key(), 2)).await.unwrap();
        admin.set("requirepass", "another");
        admin.query::<()>(&["SET", &backend.key_name("tsw", &key(), &log), "foreign"]);
        lost.settle(1);
        limiter.drain().await;
        let wrong = RedisBackend::connect(&url).await.unwrap_err();
        printed += &chain(&wrong);
        drop(server);
        printed += &chain(&RedisBackend::connect(&url).await.unwrap_err());
        // The backend notices that the connection was closed.
        rig::idle().await;
        printed += &chain(&limiter.check(key()).await.unwrap_err());
        printed += &events.text();

        assert!(
            printed.contains("user=..") && printed.contains("is above the quota"),
            "{engine:?}: {printed}"
        );
        for hidden in [KEY, "alice", "example.org", PASSWORD, SECRET] {
            assert!(!printed.contains(hidden), "{engine:?}: {hidden} in {printed}");
        }
    }
}
