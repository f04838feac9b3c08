//! The recipe "Priorities" of the cookbook: two classes of requests on one usage, of which one leaves a headroom.

use std::{collections::VecDeque, convert::Infallible, env, time::Duration};

use http::{Request, Response};
use tower::Layer;
use tower::{ServiceExt, service_fn};
use tower_sliding_window::{
    Algorithm, Limiter, MemoryBackend, PartitionKey, Policy, PolicyTable, RateLimitLayer, RedisBackend,
    backend::Backend,
    extension, limit,
    policy::{PolicySelector, Rate},
    testing::ManualClock,
};

use super::now;
use crate::support::server::{Engine, Server};

const MINUTE: Duration = Duration::from_secs(60);

/// The quota, and the units that batch requests leave.
const QUOTA: u32 = 100;
const SHARE: u32 = 20;

/// `PRIORITY_DECISIONS` sets another number of decisions in memory.
fn decisions(usual: u64) -> u64 {
    env::var("PRIORITY_DECISIONS").map_or(usual, |decisions| decisions.parse().unwrap())
}

/// Returns numbers below a bound, which are the same in every run.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// What the interactive requests have used in the last window, by the instants of the store.
struct Share {
    units: u32,
    window: Duration,
    charges: VecDeque<(u64, u64)>,
}

impl Share {
    fn new(units: u32, window: Duration) -> Self {
        Self { units, window, charges: VecDeque::new() }
    }

    /// Returns what is left of the share in the window that ends at this instant.
    fn left(&mut self, at: u64) -> u64 {
        let window = self.window.as_micros() as u64;
        while self.charges.front().is_some_and(|(charged, _)| charged + window <= at) {
            self.charges.pop_front();
        }
        u64::from(self.units) - self.charges.iter().map(|(_, units)| units).sum::<u64>()
    }

    fn charge(&mut self, at: u64, units: u64) {
        self.charges.push_back((at, units));
    }
}

/// The admitted and the denied requests of each class.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    interactive: [u64; 2],
    batch: [u64; 2],
}

/// Sends batch requests at a hundred times their share, and interactive requests at all of theirs: whenever a unit of it is free, or
/// at random instants.
async fn run(
    batch: &Limiter,
    interactive: &Limiter,
    clock: &ManualClock,
    mut share: Share,
    decisions: u64,
) -> Outcome {
    let mut below = numbers(decisions);
    let mut outcome = Outcome::default();
    let key = || PartitionKey::new("database", "main");
    // The mean time between two batch requests of one unit.
    let gap = MINUTE.as_micros() as u64 / u64::from(100 * (QUOTA - SHARE));
    let mut is_eager = false;
    for decision in 0..decisions {
        if decision % 1_000 == 0 {
            is_eager = below(2) == 0;
        }
        let mut passed = below(2 * gap + 1);
        // Now and then, nothing is sent for about a window.
        if below(5_000) == 0 {
            passed += MINUTE.as_micros() as u64 + below(10_000_000);
        }
        let at = clock.now_micros() + passed;
        clock.set_micros(at);
        let left = share.left(at);
        if left > 0 && below(if is_eager { 2 } else { 100 }) == 0 {
            let cost = if below(8) == 0 { 1 + below(left) } else { 1 };
            let decision = interactive.check((key(), cost as u32)).await.unwrap();
            share.charge(at, cost);
            outcome.interactive[usize::from(!decision.is_admitted())] += 1;
        } else {
            let decision = batch.check((key(), 1)).await.unwrap();
            outcome.batch[usize::from(!decision.is_admitted())] += 1;
        }
    }
    outcome
}

/// Runs both classes on a backend. A share counts in this window.
async fn run_on<B: Backend + Clone>(
    backend: B,
    clock: &ManualClock,
    [batch, interactive]: [&Policy; 2],
    window: Duration,
    decisions: u64,
) -> Outcome {
    clock.set_micros(1_900_000_000_000_000);
    let limiter = |policy: &Policy| {
        let builder = Limiter::builder(backend.clone()).deny_cache(None).breaker(None);
        builder.deadline(Duration::from_secs(20)).policy(policy.clone()).build().unwrap()
    };
    run(&limiter(batch), &limiter(interactive), clock, Share::new(SHARE, window), decisions).await
}

fn policy(algorithm: Algorithm) -> Policy {
    Policy::new("requests", QUOTA, MINUTE).unwrap().with_algorithm(algorithm).unwrap()
}

/// The guarantee: as long as interactive requests use at most their share in each window, none of them is denied, regardless of the
/// number of batch requests.
#[test]
fn interactive_request_within_share_is_never_denied() {
    let decisions = decisions(100_000);
    let interactive = policy(Algorithm::SlidingLog);
    let batch = interactive.clone().headroom_percent(SHARE).unwrap();
    let clock = ManualClock::new();
    let run = |batch: &Policy| {
        let backend = MemoryBackend::new().with_clock(&clock);
        now(run_on(backend, &clock, [batch, &interactive], MINUTE, decisions))
    };
    let outcome = run(&batch);
    println!("{decisions} decisions in memory, admitted and denied: {outcome:?}");
    assert_eq!(outcome.interactive[1], 0, "{outcome:?}");
    assert!(
        outcome.interactive[0] > decisions / 10_000 && outcome.batch[1] > 20 * outcome.batch[0],
        "{outcome:?}"
    );

    // A single unit less is not enough.
    let greedy = interactive.clone().headroom_percent(SHARE - 1).unwrap();
    assert!(run(&greedy).interactive[1] > 0, "a batch of 81 units takes a unit of the share");
}

#[tokio::test]
async fn interactive_request_within_share_is_admitted_by_redis() {
    let interactive = policy(Algorithm::SlidingLog);
    let batch = interactive.clone().headroom_percent(SHARE).unwrap();
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let clock = ManualClock::new();
        let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
        let outcome = run_on(backend, &clock, [&batch, &interactive], MINUTE, 20_000).await;
        println!("20000 decisions of {engine:?}, admitted and denied: {outcome:?}");
        assert_eq!(outcome.interactive[1], 0, "{engine:?}: {outcome:?}");
        assert!(outcome.batch[1] > 20 * outcome.batch[0], "{engine:?}: {outcome:?}");
    }
}

/// A charge of sliding buckets counts for up to a precision longer.
#[test]
fn interactive_share_of_buckets_counts_for_precision_longer() {
    let precision = Duration::from_secs(5);
    let interactive = policy(Algorithm::SlidingBuckets { precision });
    let batch = interactive.clone().headroom_percent(SHARE).unwrap();
    let clock = ManualClock::new();
    let run = |window| {
        let backend = MemoryBackend::new().with_clock(&clock);
        now(run_on(backend, &clock, [&batch, &interactive], window, 50_000))
    };
    assert_eq!(run(MINUTE + precision).interactive[1], 0);
    assert!(run(MINUTE).interactive[1] > 0, "the window alone is too short");
}

/// Two capacities with one rate: interactive requests have the difference at once, and then the whole rate.
#[test]
fn interactive_bucket_has_difference_and_whole_rate() {
    let bucket = |capacity| Policy::token_bucket("requests", capacity, Rate::per_minute(QUOTA)).unwrap();
    let clock = ManualClock::new();
    clock.set_micros(1_900_000_000_000_000);
    let limiter =
        |backend: &MemoryBackend, policy| Limiter::builder(backend.clone()).policy(policy).build().unwrap();
    let backend = MemoryBackend::new().with_clock(&clock);
    let [batch, interactive] = [QUOTA - SHARE, QUOTA].map(|capacity| limiter(&backend, bucket(capacity)));
    // The share is another bucket, which only interactive requests use.
    let share = limiter(&MemoryBackend::new().with_clock(&clock), bucket(SHARE));
    let key = || PartitionKey::new("database", "main");
    let (mut below, mut admitted) = (numbers(7), [0_u32; 2]);
    for decision in 0..50_000 {
        clock.set_micros(clock.now_micros() + below(15_000));
        let cost = 1 + below(3) as u32;
        if decision % 3 == 0 && now(share.check((key(), cost))).unwrap().is_admitted() {
            assert!(now(interactive.check((key(), cost))).unwrap().is_admitted(), "decision {decision}");
            admitted[0] += cost;
        } else {
            admitted[1] += u32::from(now(batch.check((key(), 1))).unwrap().is_admitted());
        }
    }
    assert!(admitted[0] > 20 && admitted[1] > 20, "{admitted:?}");
}

/// As the authentication has verified it.
#[derive(Clone)]
struct Caller {
    organization: u64,
    team: u64,
    user: u64,
    is_batch: bool,
}

/// Returns the policy of a level for both classes.
fn level(name: &str, quota: u32) -> impl PolicySelector + use<> {
    let policy = Policy::new(name, quota, MINUTE).unwrap();
    let classes = PolicyTable::new(policy.clone()).with("batch", policy.headroom_percent(20).unwrap());
    classes
        .choose_by(|head| head.extension::<Caller>().is_some_and(|caller| caller.is_batch).then_some("batch"))
}

/// The layer of the guide, with three levels. A level has room for the shares of two of the level below.
#[tokio::test]
async fn interactive_request_within_share_of_each_level_is_admitted() {
    let clock = ManualClock::new();
    clock.set_micros(1_900_000_000_000_000);
    let team = extension("team", |caller: &Caller| format!("{}/{}", caller.organization, caller.team));
    let layer = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policies(level("organization", 400))
        .key(extension("organization", |caller: &Caller| caller.organization.to_string()))
        .also(limit(team).policies(level("team", 200)))
        .also(
            limit(extension("user", |caller: &Caller| caller.user.to_string())).policies(level("user", 100)),
        )
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(()))));
    let mut below = numbers(3);
    // Of each level, the shares of its members: two organizations with two teams each, of three users.
    let share = |quota: u32| Share::new(quota / 5, MINUTE);
    let mut shares: [Vec<Share>; 3] = [
        (0..2).map(|_| share(400)).collect(),
        (0..4).map(|_| share(200)).collect(),
        (0..12).map(|_| share(100)).collect(),
    ];
    let mut statuses = [[0_u32; 2]; 2];
    for _ in 0..40_000 {
        let at = clock.now_micros() + below(4_000);
        clock.set_micros(at);
        let user = below(12);
        let places = [user / 6, user / 3, user];
        let has_share = (0..3).all(|level| shares[level][places[level] as usize].left(at) > 0);
        let is_batch = !has_share || below(20) > 0;
        if !is_batch {
            for level in 0..3 {
                shares[level][places[level] as usize].charge(at, 1);
            }
        }
        let [organization, team, user] = places;
        let mut request = Request::new(());
        request.extensions_mut().insert(Caller { organization, team, user, is_batch });
        let response = service.clone().oneshot(request).await.unwrap();
        statuses[usize::from(is_batch)][usize::from(response.status() != 200)] += 1;
    }
    let [interactive, batch] = statuses;
    assert!(interactive[0] > 200 && interactive[1] == 0, "interactive requests: {interactive:?}");
    assert!(batch[1] > 10 * batch[0], "batch requests: {batch:?}");
}
