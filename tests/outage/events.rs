//! The events of outages and overload: their number, and what they state.

use std::{
    future::Future,
    task::{Context, Waker},
};

use tokio::time::{Instant, advance, sleep};
use tower_sliding_window::{
    Limiter, MemoryBackend, OutageRule, PartitionKey, Wait,
    backend::{Reason, WhenFull},
    outage::{Breaker, Share},
    testing::FakeAnswer::{self, Admit, Hang, Unavailable},
    testing::FakeBackend,
};

use super::{MINUTE, OF_ONE_CHECK, SECOND, TICK, alice, deferred, outcome, policy};
use crate::support::events::Events;

const DOWN: FakeAnswer = Unavailable(Reason::Connection);
const FORBIDDEN: FakeAnswer = Unavailable(Reason::NoPermission);

fn script(answers: impl IntoIterator<Item = FakeAnswer>) -> Limiter {
    let breaker = Breaker::new(3, SECOND);
    deferred(&FakeBackend::scripted(answers)).breaker(breaker).build().unwrap()
}

async fn check(limiter: &Limiter, times: usize) {
    for _ in 0..times {
        let _ = limiter.check(alice()).await;
    }
}

/// Returns the level and the message of each event.
fn summary(events: &Events) -> Vec<String> {
    let short = |event: String| {
        let (level, rest) = event.split_once(' ').unwrap();
        let (_, message) = rest.split_once("message=").unwrap();
        let end = message.find([':', '=']).unwrap_or(message.len());
        format!("{level} {}", message[..end].trim())
    };
    events.take().into_iter().map(short).collect()
}

const OPENED: &str = "WARN circuit breaker opened";
const CLOSED: &str = "INFO circuit breaker closed";
const FAILED: &str = "WARN no rate limit decision";

#[tokio::test(start_paused = true)]
async fn failed_probes_cause_no_event() {
    let (events, _guard) = Events::collect();
    let limiter = script([vec![DOWN; 9], vec![Admit]].concat());
    check(&limiter, 2).await;
    assert_eq!(summary(&events), [""; 0], "two failures are no outage");
    check(&limiter, 20).await;
    assert_eq!(summary(&events), [OPENED], "one event when the breaker opens");
    for _ in 0..6 {
        advance(SECOND).await;
        check(&limiter, 3).await;
    }
    assert_eq!(summary(&events), [""; 0], "failed probes cause no event");
    advance(SECOND).await;
    check(&limiter, 3).await;
    let closed = events.text();
    assert!(closed.contains("open_for=7") && closed.contains("namespace tsw"), "{closed}");
    assert_eq!(summary(&events), [CLOSED], "one event when the breaker closes");
}

#[tokio::test(start_paused = true)]
async fn timeouts_below_threshold_cause_no_event() {
    let (events, _guard) = Events::collect();
    let limiter = deferred(&FakeBackend::hanging()).breaker(Breaker::new(100, SECOND)).build().unwrap();
    let start = Instant::now();
    while start.elapsed() < 2 * SECOND {
        assert_eq!(outcome(limiter.check(alice()).await), Err((Reason::Timeout, true)));
    }
    assert_eq!(summary(&events), [""; 0]);
}

/// A store that accepts no writes still denies, so a denial is no sign that it works again.
#[tokio::test(start_paused = true)]
async fn denied_probe_ends_no_outage_of_writes() {
    const DENY: FakeAnswer = FakeAnswer::Deny(Wait::For(MINUTE));
    for reason in [Reason::ReadOnly, Reason::OutOfMemory, Reason::NoPermission] {
        let (events, _guard) = Events::collect();
        let down = Unavailable(reason);
        let limiter = script([
            down,
            down,
            down,
            DENY,
            Unavailable(Reason::ForeignValue),
            down,
            DENY,
            DENY,
            Admit,
            DENY,
        ]);
        let is_of_outage = |event: &String| !event.starts_with("DEBUG") && event != "WARN foreign value";
        let warnings = || summary(&events).into_iter().filter(is_of_outage).collect::<Vec<_>>();
        check(&limiter, 3).await;
        assert_eq!(warnings(), [OPENED], "{reason:?}");
        advance(SECOND).await;
        assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "{reason:?}: the probe is denied");
        // The next checks are probes. The second one fails, and the breaker is open again.
        check(&limiter, 2).await;
        assert!(
            !limiter.check(alice()).await.unwrap_err().was_asked(),
            "{reason:?}: the failed probe opens the breaker again"
        );
        advance(SECOND).await;
        check(&limiter, 2).await;
        assert_eq!(warnings(), [""; 0], "{reason:?}");
        check(&limiter, 2).await;
        assert_eq!(warnings(), [CLOSED], "{reason:?}");
    }
    let (events, _guard) = Events::collect();
    let limiter = script([DOWN, DOWN, DOWN, DENY]);
    check(&limiter, 3).await;
    advance(SECOND).await;
    check(&limiter, 1).await;
    assert_eq!(summary(&events)[..2], [OPENED, CLOSED], "a denial ends an outage of the connection");
}

#[tokio::test(start_paused = true)]
async fn flapping_breaker_causes_few_events() {
    let (events, _guard) = Events::collect();
    let limiter = script((0..100).flat_map(|_| [DOWN, DOWN, DOWN, Admit]));
    for _ in 0..20 {
        check(&limiter, 3).await;
        advance(SECOND).await;
        check(&limiter, 1).await;
        // The failures open the breaker only if the last answer is one deadline old.
        advance(SECOND / 5).await;
    }
    assert_eq!(summary(&events), [[OPENED, CLOSED]; 5].concat(), "at most ten events in a minute");
    advance(MINUTE).await;
    check(&limiter, 3).await;
    let text = events.text();
    assert!(text.contains("unlogged=15"), "{text}");
    assert_eq!(summary(&events), [OPENED], "after a minute, an event is logged again");
}

#[tokio::test(start_paused = true)]
async fn outage_after_flapping_causes_an_event() {
    let (events, _guard) = Events::collect();
    let flaps = (0..7).flat_map(|_| [DOWN, DOWN, DOWN, Admit]);
    let limiter = script(flaps.chain([DOWN; 100]).chain([Admit]));
    for _ in 0..7 {
        check(&limiter, 3).await;
        advance(SECOND).await;
        check(&limiter, 1).await;
        advance(SECOND / 5).await;
    }
    assert_eq!(summary(&events), [[OPENED, CLOSED]; 5].concat());
    check(&limiter, 3).await;
    for _ in 0..51 {
        advance(SECOND).await;
        check(&limiter, 2).await;
    }
    assert_eq!(summary(&events), [""; 0], "the events of this minute are used up");
    for _ in 0..46 {
        advance(SECOND).await;
        check(&limiter, 2).await;
    }
    let text = events.text();
    for part in ["reason=the store cannot be reached", "open_for=52s", "unlogged=2 "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(summary(&events), [OPENED], "after a minute, one event states the outage");
    advance(SECOND).await;
    check(&limiter, 1).await;
    assert_eq!(summary(&events), [CLOSED], "and one event states its end");
}

#[tokio::test(start_paused = true)]
async fn interrupted_failures_cause_one_event_per_minute() {
    for reason in [Reason::NoPermission, Reason::OutOfMemory, Reason::ReadOnly, Reason::Other] {
        let (events, _guard) = Events::collect();
        let limiter = script((0..100).flat_map(|_| [Unavailable(reason), Admit]));
        check(&limiter, 40).await;
        assert_eq!(summary(&events), [FAILED], "{reason:?}");
        advance(MINUTE).await;
        check(&limiter, 40).await;
        let text = events.text();
        assert!(text.contains("unlogged=19") && text.contains(&reason.to_string()), "{text}");
        assert_eq!(summary(&events), [FAILED], "{reason:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rare_failures_without_permission_cause_an_event() {
    let (events, _guard) = Events::collect();
    let limiter = script([FORBIDDEN; 9]);
    check(&limiter, 1).await;
    assert_eq!(summary(&events), [""; 0], "one failure causes no event");
    advance(SECOND).await;
    check(&limiter, 1).await;
    assert_eq!(summary(&events), [FAILED], "the second failure causes an event");
}

/// Denials in between keep the breaker closed.
#[tokio::test(start_paused = true)]
async fn failed_writes_among_denials_cause_an_event() {
    for reason in [Reason::NoPermission, Reason::OutOfMemory, Reason::ReadOnly, Reason::Other] {
        let (events, _guard) = Events::collect();
        let limiter = script((0..9).flat_map(|_| [Unavailable(reason), FakeAnswer::Deny(Wait::For(MINUTE))]));
        for key in 0..18_u8 {
            let _ = limiter.check(PartitionKey::new("user", [key])).await;
            advance(SECOND / 5).await;
        }
        let warnings: Vec<_> =
            summary(&events).into_iter().filter(|event| !event.starts_with("DEBUG")).collect();
        assert_eq!(warnings, [FAILED], "{reason:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_without_breaker_cause_one_event_per_minute() {
    let (events, _guard) = Events::collect();
    let limiter = deferred(&FakeBackend::unavailable(Reason::Busy)).breaker(None).build().unwrap();
    check(&limiter, 9).await;
    assert_eq!(summary(&events), [FAILED], "one event for many failures");
    advance(MINUTE).await;
    check(&limiter, 9).await;
    assert_eq!(summary(&events), [FAILED], "after a minute, an event is logged again");
}

#[tokio::test(start_paused = true)]
async fn overload_causes_one_event_per_minute() {
    let (events, _guard) = Events::collect();
    let limiter = deferred(&FakeBackend::hanging()).max_checks_in_flight(2).build().unwrap();
    for _ in 0..2 {
        let two = [limiter.check(alice()), limiter.check(alice())].map(tokio::spawn);
        sleep(TICK).await;
        check(&limiter, 5).await;
        let text = events.text();
        assert!(text.contains("max_checks_in_flight=2"), "{text}");
        assert_eq!(summary(&events), ["WARN overloaded"], "one event for many rejected checks");
        for one in two {
            one.abort();
        }
        advance(MINUTE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn late_answers_cause_one_event_per_minute() {
    let (events, _guard) = Events::collect();
    let limiter = script((0..20).flat_map(|_| [Hang, Admit]));
    for unlogged in ["unlogged=0", "unlogged=2"] {
        for _ in 0..3 {
            let late = tokio::spawn(limiter.check(alice()));
            sleep(SECOND / 20).await;
            assert!(limiter.check(alice()).await.unwrap().is_admitted());
            assert_eq!(outcome(late.await.unwrap()), Err((Reason::Overloaded, true)));
        }
        let text = events.text();
        assert!(text.contains("the server answers, but slowly") && text.contains(unlogged), "{text}");
        assert_eq!(summary(&events), ["WARN overloaded"], "one event for many late checks");
        advance(MINUTE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn busy_process_causes_an_event() {
    let (events, _guard) = Events::collect();
    let limiter = deferred(&FakeBackend::hanging()).breaker(None).build().unwrap();
    let mut crowd: Vec<_> = (0..100).map(|_| Box::pin(limiter.check(alice()))).collect();
    for check in &mut crowd {
        // The fake backend hangs at the second poll.
        for _ in 0..2 {
            assert!(check.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    }
    // No task runs until then.
    advance(SECOND / 10 + SECOND / 100).await;
    assert_eq!(outcome(crowd.remove(0).await), Err((Reason::Overloaded, true)));
    let text = events.text();
    assert!(text.contains("this process is busy"), "{text}");
    assert_eq!(summary(&events), ["WARN overloaded"]);
}

#[tokio::test(start_paused = true)]
async fn errors_of_one_check_cause_one_event_per_minute_and_reason() {
    let remedies = [
        (Reason::CrossSlot, "check each key on its own"),
        (Reason::Full, "a storage bound is reached"),
        (Reason::ForeignValue, "delete the key with `Limiter::reset`"),
        (Reason::Unsupported, "use a backend that changes charges"),
        (Reason::Misconfigured, "correct the mistake"),
    ];
    assert_eq!(remedies.map(|(reason, _)| reason), OF_ONE_CHECK);
    for (reason, remedy) in remedies {
        let (events, _guard) = Events::collect();
        let builder = deferred(&FakeBackend::unavailable(reason));
        let limiter = builder.pseudonyms("a secret of 32 bytes, not random").build().unwrap();
        let pseudonym = limiter.pseudonym(&alice()).unwrap();
        for unlogged in ["unlogged=0", "unlogged=8"] {
            check(&limiter, 9).await;
            let text = events.text();
            for part in
                ["policies=\"ten\"", "namespace tsw", &pseudonym, &reason.to_string(), remedy, unlogged]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(!text.contains("alice"), "an event hides the partition key");
            assert_eq!(summary(&events).len(), 1, "{reason:?}: one event for many checks");
            advance(MINUTE).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn full_memory_causes_one_event_per_minute() {
    let (events, _guard) = Events::collect();
    let memory = || MemoryBackend::with_max_keys(1).unwrap().when_full(WhenFull::Reject);
    let user = |i: u8| PartitionKey::new("user", [i]);
    let full = Limiter::builder(memory()).policy(policy("ten", 10)).build().unwrap();
    let local = deferred(&FakeBackend::unavailable(Reason::Full)).breaker(None).local_memory(memory());
    let local = local.outage(OutageRule::LocalFallback(Share::whole())).build().unwrap();
    let _ = local.admit(user(0)).await.unwrap();
    let _ = events.take();
    for _ in 0..2 {
        for i in 0..9 {
            let _ = full.check(user(i)).await;
        }
        assert_eq!(summary(&events), ["WARN a storage bound is reached"], "one event for many rejected keys");
        advance(MINUTE).await;
        for i in 1..9 {
            local.admit(user(i)).await.unwrap_err();
        }
        let local = ["WARN a storage bound is reached", "WARN the memory of the local fallback is full"];
        assert_eq!(summary(&events), local, "one event of each memory");
    }
}

#[tokio::test(start_paused = true)]
async fn denial_is_a_debug_event_and_peek_is_none() {
    let (events, _guard) = Events::collect();
    let backend =
        FakeBackend::scripted([FakeAnswer::Deny(Wait::For(7 * SECOND)), FakeAnswer::Deny(Wait::Never)]);
    let limiter = deferred(&backend).deny_cache(None).build().unwrap();
    let _ = limiter.check((alice(), 3)).await.unwrap();
    let _ = limiter.check((alice(), 2)).await.unwrap();
    let [first, second] = <[String; 2]>::try_from(events.take()).unwrap();
    for part in ["DEBUG", "message=denied", "policy=\"ten\"", "cost=3", "wait=7s", "cached=false"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(second.contains("wait=never"), "{second}");
    assert!(!format!("{first}{second}").contains("alice"), "an event hides the partition key");

    let denying = deferred(&FakeBackend::denying(SECOND)).build().unwrap();
    let _ = denying.peek(alice()).await.unwrap();
    assert_eq!(events.text(), "", "a denied peek causes no event");
    let _ = denying.check(alice()).await.unwrap();
    assert_eq!(events.take().len(), 1, "a denied check causes an event");
}
