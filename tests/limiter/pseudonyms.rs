//! Pseudonyms of partition keys in events and lists.

use tower_sliding_window::{
    ConfigError, Limiter, LimiterBuilder, MemoryBackend, PartitionKey, Policy, RateLimitLayer,
    backend::{Backend, Pair},
    peer_ip,
    testing::ManualClock,
};

use super::{alice, policy};
use crate::{http::Later, support::events::Events};

const SECRET: &str = "a secret of 32 bytes, not random";

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

/// Builds a limiter with an enforced policy and one in shadow mode.
fn limiter(backend: impl Backend, change: impl Fn(LimiterBuilder) -> LimiterBuilder) -> Limiter {
    let builder = Limiter::builder(backend).policy(policy("two", 2)).policy(policy("canary", 1).shadow());
    change(builder).build().unwrap()
}

/// Returns the events of three requests of Alice: one is admitted, one would be denied in shadow mode, and one is denied.
async fn events_of_alice(limiter: &Limiter) -> Vec<String> {
    let (events, _guard) = Events::collect();
    for _ in 0..3 {
        let _ = limiter.check(alice()).await.unwrap();
    }
    events.take()
}

#[tokio::test]
async fn events_have_pseudonym_only_on_request() {
    for event in events_of_alice(&limiter(memory(), |builder| builder)).await {
        assert!(event.contains("DEBUG") && !event.contains("pseudonym"), "{event}");
    }
    let with_secret = |builder: LimiterBuilder| builder.pseudonyms(SECRET);
    for limiter in [limiter(memory(), with_secret), limiter(Later(memory()), with_secret)] {
        let events = events_of_alice(&limiter).await;
        let [shadow, denied] = &events[..] else { panic!("{events:?}") };
        let field = format!("pseudonym={:?}", limiter.pseudonym(&alice()).unwrap());
        assert!(shadow.contains("would have denied") && shadow.contains(&field), "{shadow}");
        assert!(denied.contains(r#"policy="two""#) && denied.contains(&field), "{denied}");
    }
}

/// With one policy, a memory decides without a list of pairs.
#[tokio::test]
async fn events_of_one_policy_have_pseudonym() {
    for is_shadow in [false, true] {
        let policy = if is_shadow { policy("one", 1).shadow() } else { policy("one", 1) };
        let limiter = Limiter::builder(memory()).policy(policy).pseudonyms(SECRET).build().unwrap();
        let events = events_of_alice(&limiter).await;
        assert_eq!(events.len(), 2);
        for event in events {
            assert!(event.contains(&limiter.pseudonym(&alice()).unwrap()), "{event}");
        }
    }
}

/// Each pair of a check has the pseudonym of its own key.
#[tokio::test]
async fn pseudonym_is_that_of_the_key_that_denies() {
    let limiter = Limiter::builder(memory()).without_policies().pseudonyms(SECRET).build().unwrap();
    let [bob, carol] = ["bob", "carol"].map(|name| PartitionKey::new("user", name));
    let (events, _guard) = Events::collect();
    let pairs = || {
        [
            Pair::new(alice(), policy("nine", 9), 1),
            Pair::new(bob.clone(), policy("canary", 1).shadow(), 1),
            Pair::new(carol.clone(), policy("two", 2), 1),
        ]
    };
    for _ in 0..3 {
        let _ = limiter.check(pairs()).await.unwrap();
    }
    let pseudonym = |key| limiter.pseudonym(key).unwrap();
    let [shadow, denied] = &events.take()[..] else { panic!("two events") };
    assert!(shadow.contains(&pseudonym(&bob)) && denied.contains(&pseudonym(&carol)), "{shadow}{denied}");
    let listed = [limiter.most_shadow_denied(9), limiter.most_denied(9)];
    assert_eq!(
        listed.map(|keys| keys[0].pseudonym.clone()),
        [&bob, &carol].map(|key| limiter.pseudonym(key))
    );
}

/// The event of a denial states the policy with the longest wait. A policy in flight, whose wait is not known, states one second.
#[tokio::test]
async fn pseudonym_belongs_to_policy_of_event() {
    let limiter = Limiter::builder(memory()).without_policies().pseudonyms(SECRET).build().unwrap();
    let bob = PartitionKey::new("user", "bob");
    let running = || Pair::new(alice(), Policy::in_flight("running", 1).unwrap(), 1);
    let daily = || Pair::new(bob.clone(), policy("daily", 1), 1);
    let _running = limiter.check([running(), daily()]).await.unwrap();
    for pairs in [[running(), daily()], [daily(), running()]] {
        let (events, _guard) = Events::collect();
        let _ = limiter.check(pairs).await.unwrap();
        let [denied] = &events.take()[..] else { panic!("one event") };
        let field = format!("pseudonym={:?}", limiter.pseudonym(&bob).unwrap());
        assert!(denied.contains(r#"policy="daily""#) && denied.contains(&field), "{denied}");
    }
    assert_eq!(limiter.most_denied(9).iter().map(|denied| denied.key.clone()).collect::<Vec<_>>(), [bob]);
}

#[tokio::test]
async fn pseudonym_of_key_includes_region_and_is_the_same_in_lists() {
    let in_region = |region| limiter(memory(), move |builder| builder.region(region).pseudonyms(SECRET));
    let (north, south) = (in_region("north"), in_region("south"));
    // A list keeps the digest of a long key.
    let long = PartitionKey::new("user", "x".repeat(300));
    for key in [alice(), long] {
        for _ in 0..3 {
            let _ = north.check(key.clone()).await.unwrap();
        }
        let pseudonym = north.pseudonym(&key);
        assert!(pseudonym.is_some() && pseudonym != south.pseudonym(&key));
        assert!(north.most_denied(9).iter().any(|denied| denied.pseudonym == pseudonym));
        assert!(north.most_shadow_denied(9).iter().any(|denied| denied.pseudonym == pseudonym));
    }
    let without = limiter(memory(), |builder| builder);
    for _ in 0..3 {
        let _ = without.check(alice()).await.unwrap();
    }
    assert_eq!((without.pseudonym(&alice()), without.most_denied(9)[0].pseudonym.clone()), (None, None));
}

#[tokio::test]
async fn layers_and_limiters_with_one_secret_have_equal_pseudonyms() {
    let layer = |secret: &str| {
        RateLimitLayer::builder(memory()).policy(policy("two", 2)).key(peer_ip()).pseudonyms(secret).build()
    };
    let of_layer = layer(SECRET).unwrap().limiter().pseudonym(&alice());
    let of_limiter = limiter(memory(), |builder| builder.namespace("other").pseudonyms(SECRET));
    assert_eq!(of_layer, of_limiter.pseudonym(&alice()));
    let error = layer("too short").unwrap_err();
    assert!(matches!(error, ConfigError::HashSecret { given: 9, min: 32, .. }), "{error:?}");
}
