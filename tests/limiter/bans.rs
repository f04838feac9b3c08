//! The recipes about bans and blocks of the cookbook, and the numbers in their text.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    routing::get,
};
use http::{Response, StatusCode};
use tokio::time::sleep;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    Head, Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, RedisBackend, Rejection,
    backend::Backend,
    settle::{ActualCost, actual_cost},
    testing::ManualClock,
};

use crate::{
    docs::read,
    redis_server::{admin::Admin, rig::LONG_DEADLINE},
    support::server::{Engine, Server},
};

const DAY: u64 = 24 * 3600;

/// A login from an address.
#[derive(Clone)]
struct Attempt {
    address: u32,
    user: u32,
    is_right: bool,
}

/// What one ban counts.
#[derive(Clone, Copy, Debug)]
enum By {
    Address,
    User,
    UserAndAddress,
}

impl By {
    fn key(self, head: &Head<'_>) -> PartitionKey {
        let Attempt { address, user, .. } = head.extension().expect("an attempt");
        let address = PartitionKey::new("address", address.to_string());
        let user = PartitionKey::new("user", user.to_string());
        match self {
            Self::Address => address,
            Self::User => user,
            Self::UserAndAddress => user.and(&address),
        }
    }
}

/// Returns the layer of the recipe.
fn bans(backend: impl Backend, by: By) -> RateLimitLayer {
    RateLimitLayer::builder(backend)
        .policy(Policy::new("failures-per-15-minutes", 10, Duration::from_secs(15 * 60)).unwrap().hidden())
        .policy(Policy::new("failures-per-day", 50, Duration::from_secs(DAY)).unwrap().hidden())
        .key_by(move |head| by.key(head))
        .settle_by(actual_cost)
        .deadline(LONG_DEADLINE)
        .build()
        .unwrap()
}

/// A login handler with bans.
struct Site<S> {
    service: S,
    clock: ManualClock,
}

/// Answers a right password with 200, and marks it as free.
async fn login(request: Request<()>) -> Result<Response<()>, Infallible> {
    let Attempt { is_right, .. } = request.extensions().get().expect("an attempt");
    let mut response = Response::new(());
    if *is_right {
        response.extensions_mut().insert(ActualCost::new(0));
    } else {
        *response.status_mut() = StatusCode::UNAUTHORIZED;
    }
    Ok(response)
}

fn request(address: u32, user: u32, is_right: bool) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(Attempt { address, user, is_right });
    request
}

macro_rules! site {
    ($by:expr) => {{
        let clock = ManualClock::new();
        clock.set_micros(1_900_000_000_000_000);
        let layer = bans(MemoryBackend::new().with_clock(&clock), $by);
        Site { service: layer.layer(service_fn(login)), clock }
    }};
}

impl<S, B> Site<S>
where
    S: Service<Request<()>, Response = Response<B>> + Clone,
    S::Error: std::fmt::Debug,
{
    /// Returns the status, and the wait in seconds of a rejection.
    async fn log_in(&self, address: u32, user: u32, is_right: bool) -> (u16, u64) {
        let response = self.service.clone().oneshot(request(address, user, is_right)).await.unwrap();
        let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
        (response.status().as_u16(), wait.unwrap_or(0))
    }

    /// Returns whether a wrong password was compared.
    async fn guesses(&self, address: u32, user: u32) -> bool {
        self.log_in(address, user, false).await.0 == 401
    }

    /// Returns whether the right password is admitted.
    async fn enters(&self, address: u32, user: u32) -> bool {
        self.log_in(address, user, true).await.0 == 200
    }

    fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

/// Returns the guesses of a day that are admitted, one each ten seconds.
async fn guesses_of_a_day(by: By, attempts: impl Fn(u64) -> (u32, u32)) -> u32 {
    let site = site!(by);
    let mut admitted = 0;
    for number in 0..DAY / 10 {
        let (address, user) = attempts(number);
        admitted += u32::from(site.guesses(address, user).await);
        site.wait(10);
    }
    admitted
}

#[tokio::test]
async fn guesses_of_a_day_are_those_of_the_text() {
    let table = [
        // One address and one user.
        (By::Address, [50, 50, 5_000]),
        (By::User, [50, 5_000, 50]),
        (By::UserAndAddress, [50, 5_000, 5_000]),
    ];
    for (by, expected) in table {
        let one = guesses_of_a_day(by, |_| (1, 1)).await;
        let of_100_users = guesses_of_a_day(by, |number| (1, number as u32 % 100)).await;
        let from_100_addresses = guesses_of_a_day(by, |number| (number as u32 % 100, 1)).await;
        assert_eq!([one, of_100_users, from_100_addresses], expected, "{by:?}");
    }
}

/// The attacker obeys `Retry-After`, so it takes each unit as soon as it returns. Another user, address, or both log in each minute.
#[tokio::test]
async fn attacker_locks_out_those_of_the_text() {
    // The address and the user of the victim. Those of the attacker's guesses are 1.
    let victims = [(1, 1), (1, 2), (2, 1), (2, 2)];
    let table = [
        (By::Address, [false, false, true, true]),
        (By::User, [false, true, false, true]),
        (By::UserAndAddress, [false, true, true, true]),
    ];
    for (by, expected) in table {
        let site = site!(by);
        let (mut next_guess, mut requests, mut guesses) = (0, [0; 3], [0; 3]);
        let mut entered = [[0_u32; 4]; 3];
        for second in 0..3 * DAY {
            let day = (second / DAY) as usize;
            if second == next_guess {
                let (status, wait) = site.log_in(1, 1, false).await;
                requests[day] += 1;
                guesses[day] += u32::from(status == 401);
                next_guess = second + wait.max(1);
            }
            if second % 60 == 30 {
                for (place, (address, user)) in victims.iter().enumerate() {
                    entered[day][place] += u32::from(site.enters(*address, *user).await);
                }
            }
            site.wait(1);
        }
        let always = expected.map(|enters| if enters { 1_440 } else { 0 });
        println!("{by:?}: {requests:?} requests, {guesses:?} guesses, logins {entered:?}");
        assert_eq!(entered[1..], [always, always], "{by:?}: the logins of the second and the third day");
        assert_eq!(guesses, [50; 3], "{by:?}");
        assert!(requests.iter().all(|requests| *requests <= 110), "{by:?}: {requests:?}");
    }
}

/// Without further guesses, a ban ends when the first failure has left the window.
#[tokio::test]
async fn ban_ends_when_first_failure_leaves_window() {
    let site = site!(By::Address);
    for failure in 0..10 {
        assert!(site.guesses(1, failure).await, "ten failures are admitted");
        site.wait(6);
    }
    assert_eq!(site.log_in(1, 99, true).await, (429, 14 * 60), "one minute has passed");
    site.wait(14 * 60 - 1);
    assert!(!site.enters(1, 99).await, "the first failure is in the window");
    site.wait(1);
    assert!(site.enters(1, 99).await, "the first failure has left the window");
}

/// Logins in progress are counted until they succeed.
#[tokio::test]
async fn logins_in_progress_of_one_address_are_counted() {
    let layer = bans(MemoryBackend::new(), By::Address);
    let slow = layer.layer(service_fn(async |request: Request<()>| {
        tokio::task::yield_now().await;
        login(request).await
    }));
    let logins = (0..11).map(|user| slow.clone().oneshot(request(1, user, true)));
    let responses = futures_util::future::join_all(logins).await.into_iter().map(Result::unwrap);
    let (entered, rejected): (Vec<_>, Vec<_>) = responses.partition(|response| response.status() == 200);
    assert_eq!(entered.len(), 10, "of eleven at the same time");
    assert_eq!(rejected[0].headers()["retry-after"], "900", "the wait of a failure");
    assert_eq!(slow.oneshot(request(1, 10, true)).await.unwrap().status(), 200, "a moment later");
}

/// The calls and the bytes of the text.
#[tokio::test]
async fn bans_cost_calls_and_bytes_of_the_text() {
    let text = read("src/guide/cookbook.md");
    let stated = |before: &str| -> u64 {
        let number = text.split_once(before).unwrap_or_else(|| panic!("the text has {before:?}")).1;
        let digits: String = number.chars().take_while(|c| c.is_ascii_digit() || *c == ',').collect();
        digits.replace(',', "").parse().expect("a number")
    };
    // The text states those of Redis 7 with its own allocator. The others take fewer, but the tests build Redis 6 and Valkey with the
    // allocator of glibc, which sometimes gives a block of 16 bytes more: a remainder that is too small for a block of its own.
    let is_near = |engine, bytes: u64, stated: u64| match engine {
        Engine::Redis => bytes <= stated && bytes * 10 > stated * 9,
        _ => bytes * 10 <= stated * 11,
    };
    let [at_first, at_most] = [stated("its first failure takes "), stated("50 failures take ")];
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let clock = ManualClock::new();
        clock.set_micros(1_900_000_000_000_000);
        let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
        let layer = bans(backend, By::Address);
        let site = Site { service: layer.layer(service_fn(login)), clock };
        let bytes = |admin: &mut Admin| admin.keys().iter().map(|key| admin.memory(key)).sum::<u64>();
        // The server gets the scripts of the check and of the refund.
        assert!(site.enters(1, 1).await);
        layer.limiter().drain().await;
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        for login in 1..=20 {
            assert!(site.enters(1, 1).await);
            layer.limiter().drain().await;
            assert_eq!(
                admin.calls("evalsha").all,
                2 * login,
                "{engine:?}: a success is a check and a refund"
            );
        }
        let bytes_of_success = bytes(&mut admin);
        println!("{engine:?}: {bytes_of_success} bytes after successful logins");
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        for failure in 1..=50 {
            assert!(site.guesses(1, 1).await, "{engine:?}: failure {failure}");
            assert_eq!(admin.calls("evalsha").all, failure, "{engine:?}: a failure is a check");
            if failure == 1 {
                let bytes = bytes(&mut admin);
                println!("{engine:?}: {bytes} bytes after the first failure");
                for bytes in [bytes_of_success, bytes] {
                    assert!(is_near(engine, bytes, at_first), "{engine:?}: {bytes} bytes");
                }
            }
            // Nine of the short window remain.
            site.wait(100);
        }
        let bytes = bytes(&mut admin);
        println!("{engine:?}: {bytes} bytes after 50 failures, in {} keys", admin.keys().len());
        assert!(is_near(engine, bytes, at_most), "{engine:?}: {bytes} bytes");
        assert!(!site.guesses(1, 1).await, "{engine:?}: the quota of a day is used");
    }
}

/// Rejected requests are answered from the deny cache.
#[tokio::test]
async fn banned_address_causes_few_calls() {
    let server = Server::start(Engine::Redis);
    let layer = bans(RedisBackend::connect(&server.url()).await.unwrap(), By::Address);
    let service = layer.layer(service_fn(login));
    let mut admin = Admin::at(&server);
    // A new connection verifies the scripts.
    admin.query::<()>(&["CONFIG", "RESETSTAT"]);
    let start = std::time::Instant::now();
    for attempt in 0..10_000 {
        let response = service.clone().oneshot(request(1, attempt, false)).await.unwrap();
        assert_eq!(response.status().as_u16(), if attempt < 10 { 401 } else { 429 });
    }
    let calls = admin.calls("evalsha").all;
    println!("{calls} calls for 10 failures and 9,990 rejected requests in {:?}", start.elapsed());
    assert!(calls <= 10 + 4 * (start.elapsed().as_secs() + 1), "{calls} calls");
}

/// The middleware of the recipe "Block a client for longer after a denial". It counts the blocks.
async fn block_after_denial(
    State((limiter, blocks)): State<(Limiter, Arc<AtomicUsize>)>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let response = next.run(request).await;
    let denial = response.extensions().get::<Rejection>().and_then(Rejection::decision);
    let violates = |name| denial.is_some_and(|denial| denial.violated().any(|policy| policy.name() == name));
    if violates("requests") && !violates("blocked") {
        blocks.fetch_add(1, Ordering::Relaxed);
        limiter.block(PartitionKey::new("user", "alice"), Duration::from_secs(2)).await.unwrap();
    }
    response
}

/// Requests go on during the block. The process has cached the first denial, which the gate has no part in.
#[tokio::test]
async fn further_requests_do_not_prolong_the_block() {
    let server = Server::start(Engine::Redis);
    let limits = RateLimitLayer::builder(RedisBackend::connect(&server.url()).await.unwrap())
        .policy(Policy::new("requests", 3, Duration::from_secs(1)).unwrap())
        .policy(Policy::gate("blocked").unwrap())
        .key_by(|_| PartitionKey::new("user", "alice"))
        .deadline(LONG_DEADLINE)
        .build()
        .unwrap();
    let (limiter, blocks) = (limits.limiter().clone(), Arc::new(AtomicUsize::new(0)));
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(limits)
        .layer(from_fn_with_state((limiter, blocks.clone()), block_after_denial));
    let send = async || app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    while send().await.status() == StatusCode::OK {}
    let mut cached = 0;
    loop {
        let response = send().await;
        let denial = response.extensions().get::<Rejection>().and_then(Rejection::decision);
        let Some(denial) = denial else { break };
        cached += usize::from(denial.is_cached());
        // Otherwise, the block might never end.
        assert_eq!(blocks.load(Ordering::Relaxed), 1);
        sleep(Duration::from_millis(10)).await;
    }
    assert!(cached > 0, "the deny cache has answered");
}
