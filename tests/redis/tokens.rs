//! Reservations as tokens on a real server: each is settled once, and no other process can change it.

use std::time::Duration;

use tower_sliding_window::{
    Costs, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend,
    backend::{Backend, Pair, Reason},
    redis::RedisServers,
    settle::{Settled, TokenError},
    testing::ManualClock,
};

use super::{
    admin::Admin,
    layout::write_charges_of_one,
    rig::{
        HOUR, LONG_DEADLINE, LONG_WINDOW, Random, alice, backend, concurrently, every_type, limiter, policy,
        remaining, with_manual_clock,
    },
};
use crate::support::{
    cluster::{Cluster, slot},
    server::{Engine, Server},
};

const SECRET: &str = "a secret of at least 32 bytes, or more";

const MICROSECOND: Duration = Duration::from_micros(1);

/// The longest calendar year: 366 days, and an hour for a change of the clocks.
const YEAR: Duration = Duration::from_secs((366 * 24 + 1) * 3_600);

/// The begin of a leap year, in microseconds of Unix time. Each calendar window and each bucket of an hour begins here too.
const LEAP_YEAR: u64 = 1_830_297_600_000_000;

fn with_secret(server: &Server, secret: Option<&str>) -> RedisBackend {
    let builder = RedisBackend::builder(RedisServers::single(server.url()));
    secret.into_iter().fold(builder, |builder, secret| builder.hash_secret(secret)).lazy().unwrap()
}

async fn token(limiter: &Limiter, cost: u32) -> String {
    limiter.reserve((alice(), cost)).await.unwrap().into_token().unwrap()
}

async fn settle_each_twice_at_once(engine: Engine, tokens: usize) {
    let server = Server::start(engine);
    // Two backends, as in two processes.
    let quota = policy("p", 10 * tokens as u32, LONG_WINDOW);
    let [one, other] = [(); 2].map(|()| with_secret(&server, Some(SECRET)));
    let [one, other] = [one, other].map(|backend| limiter(backend, [quota.clone()]));
    let mut counts = [0; 3];
    let mut made = 0;
    while made < tokens {
        let count = (tokens - made).min(100);
        let mut settlements = Vec::new();
        for _ in 0..count {
            let token = token(&one, 3).await;
            for limiter in [&one, &other] {
                let (limiter, token) = (limiter.clone(), token.clone());
                settlements.push(async move { limiter.settle_token(&token, 1).await });
            }
        }
        for settled in concurrently(settlements).await {
            counts[match settled.unwrap() {
                Settled::Done { .. } => 0,
                Settled::Already => 1,
                _ => 2,
            }] += 1;
        }
        made += count;
    }
    println!(
        "{engine:?}: {tokens} tokens, each settled by two backends at once: settled {}, already {}",
        counts[0], counts[1]
    );
    println!("{engine:?}: settled twice: {}", counts[0] - tokens);
    assert_eq!(counts, [tokens, tokens, 0], "each token is settled once");
    assert_eq!(remaining(&one).await, 9 * tokens as u32, "each token has refunded 2 of 3 units");
}

#[tokio::test]
async fn two_processes_settle_each_token_once() {
    settle_each_twice_at_once(Engine::Redis, 10_000).await;
    for engine in [Engine::Redis6, Engine::Redis8, Engine::Valkey] {
        settle_each_twice_at_once(engine, 500).await;
    }
}

#[tokio::test]
async fn changed_token_is_never_accepted_under_a_secret() {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(with_secret(&server, Some(SECRET)), [policy("p", 100, HOUR)]);
    let token = token(&limiter, 10).await;
    let (mut random, mut accepted) = (Random(7), 0);
    for _ in 0..100_000 {
        let mut changed = token.clone().into_bytes();
        // One to three bits.
        for _ in 0..1 + random.below(3) {
            let bit = random.below(8 * changed.len() as u64) as usize;
            changed[bit / 8] ^= 1 << (bit % 8);
        }
        let changed = String::from_utf8_lossy(&changed).into_owned();
        if changed == token {
            continue;
        }
        accepted += u32::from(!matches!(
            limiter.settle_token(&changed, 0).await,
            Err(TokenError::Invalid | TokenError::Version { .. } | TokenError::Secret)
        ));
    }
    println!("100,000 changes of a token under a secret: accepted {accepted}");
    assert_eq!((accepted, remaining(&limiter).await), (0, 90));
    for end in 0..token.len() {
        assert!(limiter.settle_token(&token[..end], 0).await.is_err(), "the first {end} characters");
    }
    assert!(matches!(limiter.settle_token(&token, 0).await, Ok(Settled::Done { .. })));
}

#[tokio::test]
async fn token_of_other_settings_is_an_error_that_names_them() {
    let server = Server::start(Engine::Redis);
    let shop = |secret, namespace: &str, name: &str| {
        let builder = Limiter::builder(with_secret(&server, secret)).deadline(LONG_DEADLINE);
        builder.namespace(namespace).policy(policy(name, 100, HOUR)).build().unwrap()
    };
    for secret in [None, Some(SECRET)] {
        let token = token(&shop(secret, "shop", "pages-of-jobs"), 10).await;
        let error = async |limiter: Limiter, token: &str| {
            limiter.settle_token(token, 0).await.expect_err("other settings").to_string()
        };
        assert_eq!(
            error(shop(secret, "blog", "pages-of-jobs"), &token).await,
            r#"token of another namespace: this limiter has the namespace "blog""#
        );
        for other in [None, Some(SECRET), Some("another secret of at least 32 bytes")] {
            if other != secret {
                assert_eq!(
                    error(shop(other, "shop", "pages-of-jobs"), &token).await,
                    "token under another hash secret: both processes need the same one, or none"
                );
            }
        }
        assert_eq!(
            error(shop(secret, "shop", "sheets"), &token).await,
            r#"token of policy "pages-o": this limiter has no policy of this name, type and window, or time in which a full capacity returns; its policies are ["sheets"]"#
        );
        // The first six bits are the upper ones of the version, which is 1.
        let newer = format!("B{}", &token[1..]);
        assert_eq!(
            error(shop(secret, "shop", "pages-of-jobs"), &newer).await,
            "token of version 5: this release reads version 1; settle it with the release that made it"
        );
        let text = "invalid token: the text is not from `Reservation::into_token`, or it was changed";
        for invalid in
            ["", "token", "ä", &format!("{token} "), &format!("{token}AAAA"), &token.replace('_', "/")[1..]]
        {
            assert_eq!(error(shop(secret, "shop", "pages-of-jobs"), invalid).await, text, "{invalid:?}");
        }
        // Quotas may differ, and so may the length of a bucket's quota.
        let larger = Limiter::builder(with_secret(&server, secret)).namespace("shop").deadline(LONG_DEADLINE);
        let larger = larger.policy(policy("pages-of-jobs", 7, HOUR)).build().unwrap();
        assert!(matches!(larger.settle_token(&token, 0).await, Ok(Settled::Done { .. })));
    }
}

/// Settles tokens and reservations by the same amounts, and returns what remains after each.
async fn history(backend: impl Backend + Clone, clock: &ManualClock, policy: &Policy) -> Vec<[u32; 2]> {
    let mut history = Vec::new();
    let limiter = limiter(backend.clone(), [policy.clone()]);
    let keys = ["by token", "by handle"].map(|name| PartitionKey::new("user", name));
    for used in [0, 3, 10, 25] {
        let mut left = [0; 2];
        let [by_token, by_handle] = &keys;
        let token = limiter.reserve((by_token.clone(), 10)).await.unwrap().into_token().unwrap();
        let reservation = limiter.reserve((by_handle.clone(), 10)).await.unwrap();
        clock.advance(Duration::from_secs(1));
        assert!(matches!(limiter.settle_token(&token, used).await, Ok(Settled::Done { .. })));
        assert!(matches!(reservation.settle(used).await, Settled::Done { .. }));
        for _ in 0..2 {
            assert!(matches!(limiter.settle_token(&token, 0).await, Ok(Settled::Already)));
        }
        for (key, left) in keys.iter().zip(&mut left) {
            *left = limiter.peek((key.clone(), 0)).await.unwrap().statuses()[0].remaining();
        }
        history.push(left);
    }
    // After a reset, nothing is refunded, and an overage is charged.
    let token = async |cost| limiter.reserve((alice(), cost)).await.unwrap().into_token().unwrap();
    let (smaller, larger) = (token(5).await, token(5).await);
    limiter.reset(alice()).await.unwrap();
    assert!(matches!(limiter.settle_token(&smaller, 0).await, Ok(Settled::Done { .. })));
    assert!(matches!(limiter.settle_token(&larger, 8).await, Ok(Settled::Done { .. })));
    history.push([limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining(); 2]);
    // An expired token changes nothing, settled or not.
    let late = token(5).await;
    clock.advance(367 * 24 * HOUR);
    for token in [&late, &smaller] {
        assert!(matches!(limiter.settle_token(token, 30).await, Ok(Settled::Expired)));
    }
    history.push([limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining(); 2]);
    history
}

#[tokio::test]
async fn tokens_settle_as_reservations_do() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        for policy in every_type(100, HOUR) {
            let (backend, clock) = with_manual_clock(&server).await;
            let on_redis = history(backend, &clock, &policy).await;
            let clock = ManualClock::new();
            let in_memory = history(MemoryBackend::new().with_clock(&clock), &clock, &policy).await;
            assert_eq!(on_redis, in_memory, "{engine:?}, {policy:?}");
            for [by_token, by_handle] in on_redis {
                assert_eq!(by_token, by_handle, "{engine:?}, {policy:?}");
            }
            Admin::at(&server).query::<()>(&["FLUSHALL"]);
        }
    }
}

/// Returns how long a token can be settled after a charge at the begin of a window and a bucket: as long as the charge may count.
fn settles_for(policy: &Policy) -> Duration {
    match policy.name() {
        // A charge counts in the next window too.
        "counter" | "tokens" => 2 * HOUR,
        // A bucket counts from its end.
        "buckets" => HOUR + HOUR / 8,
        "period" => YEAR,
        _ => HOUR,
    }
}

/// Settles a token of each type one microsecond before it expires, and at the instant at which it expires.
async fn settles_until_it_expires(backend: impl Backend + Clone, clock: &ManualClock, what: &str) {
    for policy in every_type(100, HOUR) {
        let (name, time) = (policy.name().to_owned(), settles_for(&policy));
        let limiter = limiter(backend.clone(), [policy]);
        for expires in [false, true] {
            let what = format!("{what}, {name}, expires: {expires}");
            limiter.reset(alice()).await.unwrap();
            clock.set_micros(LEAP_YEAR);
            let token = token(&limiter, 10).await;
            if name == "tokens" {
                // The units of a bucket return in their order, so those of the token remain the longest below others.
                let _ = limiter.debit((alice(), 190)).await.unwrap();
            }
            clock.advance(time - if expires { Duration::ZERO } else { MICROSECOND });
            let before = remaining(&limiter).await;
            let settled = limiter.settle_token(&token, 0).await.unwrap();
            assert_eq!(matches!(settled, Settled::Expired), expires, "{what}: {settled:?}");
            assert_eq!(matches!(settled, Settled::Done { .. }), !expires, "{what}: {settled:?}");
            // The longest year lasts an hour longer than this one.
            let is_left = expires || name == "period";
            assert_eq!(before == 100, is_left, "{what}: the charge counts: {before}");
            assert_eq!(remaining(&limiter).await, 100, "{what}");
            if expires {
                let settled = limiter.settle_token(&token, 30).await.unwrap();
                assert!(matches!(settled, Settled::Expired), "{what}: {settled:?}");
                assert_eq!(remaining(&limiter).await, 100, "{what}: no overage of an expired token");
            }
        }
    }
}

#[tokio::test]
async fn token_settles_exactly_until_its_charge_has_left() {
    let clock = ManualClock::new();
    settles_until_it_expires(MemoryBackend::new().with_clock(&clock), &clock, "memory").await;
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        settles_until_it_expires(backend, &clock, &format!("{engine:?}")).await;
    }
}

/// A second settlement has no effect until the window of the charge has passed. So the store must not forget the first one.
#[tokio::test]
async fn store_remembers_settled_token_until_charge_has_left() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let backend = backend(&server).await;
        for policy in every_type(100, HOUR) {
            admin.query::<()>(&["FLUSHALL"]);
            let (name, time) = (policy.name().to_owned(), settles_for(&policy));
            let limiter = limiter(backend.clone(), [policy]);
            let reservation = limiter.reserve((alice(), 10)).await.unwrap();
            let charged_at = Duration::from_micros(reservation.decision().unwrap().at_micros());
            let token = reservation.into_token().unwrap();
            assert!(matches!(limiter.settle_token(&token, 3).await, Ok(Settled::Done { .. })));
            let keys: Vec<String> = admin.keys().into_iter().filter(|key| key.contains("}!")).collect();
            let [key] = &keys[..] else { panic!("{engine:?}, {name}: {keys:?}") };
            let expires_at = Duration::from_millis(admin.expires_at(key).try_into().unwrap());
            let second = Duration::from_secs(1);
            // The charge is somewhere in its bucket.
            let earlier = if name == "buckets" { HOUR / 8 } else { Duration::ZERO };
            let valid = charged_at + time - earlier - second..=charged_at + time + second;
            assert!(valid.contains(&expires_at), "{engine:?}, {name}: {expires_at:?}, not {valid:?}");
        }
    }
}

/// Settles the tokens of reservations that have charged nothing to a policy, and more than that was used.
async fn settle_more_than_nothing(backend: impl Backend + Clone, what: &str) {
    for policy in every_type(100, HOUR) {
        let name = policy.name().to_owned();
        let limiter = limiter(backend.clone(), [policy, self::policy("charged", 100, HOUR)]);
        for (cost, others) in [(0, 0), (0, 10), (10, 0)] {
            limiter.reset(alice()).await.unwrap();
            let costs = Costs::new().policy(name.clone(), cost).policy("charged", others);
            let token = limiter.reserve((alice(), costs)).await.unwrap().into_token().unwrap();
            let what = format!("{what}, {name}, {cost} and {others} units");
            let settled = limiter.settle_token(&token, 5).await.unwrap();
            assert!(matches!(settled, Settled::Done { .. }), "{what}: {settled:?}");
            let settled = limiter.settle_token(&token, 50).await.unwrap();
            assert!(matches!(settled, Settled::Already), "{what}: {settled:?}");
            let decision = limiter.peek((alice(), 0)).await.unwrap();
            let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
            assert_eq!(left, [95, 95], "{what}");
        }
    }
}

#[tokio::test]
async fn token_of_uncharged_reservation_settles_to_overage() {
    let clock = ManualClock::new();
    settle_more_than_nothing(MemoryBackend::new().with_clock(&clock), "memory").await;
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, _clock) = with_manual_clock(&server).await;
        settle_more_than_nothing(backend, &format!("{engine:?}")).await;
    }
}

#[tokio::test]
async fn token_with_overage_on_full_log_changes_nothing() {
    const MAX_RECORDS: u64 = 1 << 20;
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let mut admin = Admin::at(&server);
        let limiter = limiter(backend, [policy("log", u32::MAX, HOUR), policy("other", 100, HOUR)]);
        let token = token(&limiter, 10).await;
        let log = admin.keys().into_iter().find(|key| key.ends_with("log")).unwrap();
        let now = clock.now_micros();
        // The oldest record leaves in a second.
        let oldest = now - (HOUR - Duration::from_secs(1)).as_micros() as u64;
        let instants: Vec<u64> = (0..MAX_RECORDS).map(|i| if i == 0 { oldest } else { now }).collect();
        write_charges_of_one(&mut admin.0, &log, &instants);
        let stored = |admin: &mut Admin| {
            let keys = admin.keys();
            keys.into_iter().map(|key| (admin.value_and_expiry(&key), key)).collect::<Vec<_>>()
        };
        let before = stored(&mut admin);
        let used = || Costs::new().policy("log", 12).policy("other", 3);
        for _ in 0..2 {
            let settled = limiter.settle_token(&token, used()).await;
            let is_full =
                matches!(&settled, Err(TokenError::Backend(error)) if error.reason() == Reason::Full);
            assert!(is_full, "{engine:?}: {settled:?}");
            assert!(stored(&mut admin) == before, "{engine:?}: nothing has changed");
        }
        clock.advance(Duration::from_secs(1));
        let settled = limiter.settle_token(&token, used()).await;
        assert!(matches!(settled, Ok(Settled::Done { .. })), "{engine:?}: {settled:?}");
        assert!(matches!(limiter.settle_token(&token, used()).await, Ok(Settled::Already)), "{engine:?}");
        let decision = limiter.peek((alice(), 0)).await.unwrap();
        let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
        assert_eq!(left, [u32::MAX - (MAX_RECORDS as u32 - 1) - 2, 97], "{engine:?}");
    }
}

#[tokio::test]
async fn token_of_several_policies_has_stated_size_and_bytes() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, every_type(100, HOUR));
        let token = token(&limiter, 10).await;
        assert_eq!(token.len(), 32 + 64 * 6);
        assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        // Some policies have used more, and others less.
        let used = Costs::from(10).policy("log", 3).policy("buckets", 30).policy("tokens", 12);
        assert!(matches!(limiter.settle_token(&token, used.clone()).await, Ok(Settled::Done { .. })));
        assert!(matches!(limiter.settle_token(&token, used).await, Ok(Settled::Already)));
        let decision = limiter.peek((alice(), 0)).await.unwrap();
        let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
        assert_eq!(left[..4], [97, 70, 90, 90]);
        assert!((88..90).contains(&left[4]), "{left:?}");
        assert_eq!(left[5], 90);
        let mut admin = Admin::at(&server);
        let remembered: Vec<String> = admin.keys().into_iter().filter(|key| key.contains("}!")).collect();
        assert_eq!(remembered.len(), 2, "each four policies remember their part");
        for key in &remembered {
            let bytes: u64 = admin.query(&["MEMORY", "USAGE", key]);
            let left: i64 = admin.query(&["PTTL", key]);
            println!("{engine:?}: a settled token takes {bytes} bytes: {key}");
            assert!((64..=104).contains(&bytes), "{bytes} bytes");
            // The calendar year is the longest: 366 days, and an hour for a change of the clocks.
            assert!((1..=(366 * 24 + 1) * 3_600_000).contains(&left), "{left} ms");
        }
    }
}

#[tokio::test]
async fn token_settles_eight_policies() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let policies: [Policy; 8] = std::array::from_fn(|i| policy(&i.to_string(), 10, HOUR));
        let limiter = limiter(backend(&server).await, policies);
        let token = token(&limiter, 10).await;
        let settled = limiter.settle_token(&token, 0).await;
        assert!(matches!(settled, Ok(Settled::Done { .. })), "{engine:?}: {settled:?}");
        let decision = limiter.peek((alice(), 0)).await.unwrap();
        let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
        assert_eq!(left, [10; 8], "{engine:?}");
    }
}

#[tokio::test]
async fn token_can_be_settled_after_a_foreign_value() {
    let server = Server::start(Engine::Redis);
    let (backend, _clock) = with_manual_clock(&server).await;
    let limiter = limiter(backend, [policy("one", 100, HOUR), policy("two", 100, HOUR)]);
    let mut admin = Admin::at(&server);
    for (one, two) in [(3, 30), (30, 3), (3, 3), (30, 30)] {
        let token = token(&limiter, 10).await;
        for broken in ["one", "two"] {
            let key = admin.keys().into_iter().find(|key| key.ends_with(broken)).unwrap();
            admin.query::<()>(&["RENAME", &key, "kept"]);
            admin.query::<()>(&["SET", &key, "foreign"]);
            let used = Costs::new().policy("one", one).policy("two", two);
            let error = limiter.settle_token(&token, used).await.unwrap_err();
            assert!(matches!(error, TokenError::Backend(error) if error.reason() == Reason::ForeignValue));
            admin.query::<()>(&["RENAME", "kept", &key]);
        }
        let used = Costs::new().policy("one", one).policy("two", two);
        assert!(matches!(limiter.settle_token(&token, used).await, Ok(Settled::Done { .. })));
        let decision = limiter.peek((alice(), 0)).await.unwrap();
        let left: Vec<u32> = decision.statuses().iter().map(|status| status.remaining()).collect();
        assert_eq!(left, [100 - one, 100 - two], "nothing was changed before");
        limiter.reset(alice()).await.unwrap();
    }
}

#[tokio::test]
async fn each_slot_of_a_token_settles_once() {
    let cluster = Cluster::start(Engine::Redis);
    let servers = RedisServers::cluster([cluster.nodes[0].url()]);
    let backend = RedisBackend::builder(servers).hash_secret(SECRET).connect().await.unwrap();
    let pages = policy("pages", 100, HOUR);
    let builder = Limiter::builder(backend).deadline(LONG_DEADLINE).policy(pages.clone());
    let limiter = builder.build().unwrap();
    let keys = ["a", "b", "c"].map(|name| PartitionKey::new("user", name));
    assert_ne!(slot(&keys[0]), slot(&keys[1]));
    let pairs = keys.clone().map(|key| Pair::new(key, pages.clone(), 10));
    let token = limiter.reserve(pairs).await.unwrap().into_token().unwrap();
    let settlements = [(); 8].map(|()| {
        let (limiter, token) = (limiter.clone(), token.clone());
        async move { limiter.settle_token(&token, 4).await.unwrap() }
    });
    let settled = concurrently(settlements).await;
    assert!(settled.iter().any(|settled| matches!(settled, Settled::Done { .. })));
    assert!(matches!(limiter.settle_token(&token, 4).await, Ok(Settled::Already)));
    for key in keys {
        let left = limiter.peek((key, 0)).await.unwrap().statuses()[0].remaining();
        assert_eq!(left, 96, "each slot refunds once");
    }
}
