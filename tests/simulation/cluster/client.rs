//! A simulated process: two limiters over one backend, and many concurrent callers.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Admission, Costs, Limiter, MemoryBackend, OutageRule, PartitionKey, Policy, RateLimitLayer, RedisBackend,
    Rejection,
    backend::Pair,
    by,
    outage::Share,
    protocol::{By, Draft, RejectWith},
    redis::{Merging, RedisServers},
    settle::Settled,
    testing::ManualClock,
};
use turmoil::net::TcpStream;

use super::{
    node::slot,
    plan::{ADDRESS, DEADLINE, NODES, Plan, ROUTE},
    record::{Event, Outcome, Record, Started, Stopped},
    run::Swallowed,
};
use crate::simulation::{
    client::{outcome_of, rejected},
    plan::NUMBER,
    random::Random,
    server::PORT,
};

/// The time after which an impatient caller gives up.
const QUICKLY: Duration = Duration::from_millis(6);

#[derive(Clone)]
pub struct Client {
    pub number: usize,
    pub plan: Plan,
    pub record: Record,
    /// The clock of all memory backends.
    pub clock: ManualClock,
    pub swallowed: Swallowed,
}

/// A request to the layer.
#[derive(Clone)]
struct Request {
    draft: Draft,
    admission: Option<Admission>,
}

type Layers = RateLimitLayer<By<Request, RejectWith<Request, Request, Rejection>>>;

/// What a process shares.
#[derive(Clone)]
struct Process {
    client: Client,
    backend: RedisBackend,
    limiters: [Limiter; 2],
    layers: [Layers; 2],
}

/// A call of the limiter.
#[derive(Clone)]
struct Call {
    started: Started,
    keys: Vec<(PartitionKey, Policy)>,
    /// When the reservation is settled, and the units used.
    settles: Option<(Duration, u32)>,
}

impl Client {
    pub async fn run(self) -> turmoil::Result {
        let streams = Arc::<AtomicUsize>::default();
        let backend = self.backend(streams.clone());
        let limiters = [self.limiter(backend.clone()), self.limiter(backend.clone())];
        let layers = limiters.clone().map(|limiter| {
            let protocol = by(|request: &Request| request.draft.clone())
                .admit_with(|request: &mut Request, admission| request.admission = Some(admission.clone()))
                .reject_with(|_, rejection| Err(rejection.clone()));
            RateLimitLayer::new(limiter, protocol)
        });
        let process = Process { client: self.clone(), backend: backend.clone(), limiters, layers };
        let mut random = Random::new(self.plan.seed ^ (self.number as u64 + 1) << 32);
        let pause = self.plan.pauses[self.number].as_millis() as u64;
        let (mut callers, mut started) = (JoinSet::new(), 0);
        loop {
            sleep(random.millis(1..2 * pause)).await;
            let now = turmoil::sim_elapsed().unwrap();
            if now >= self.plan.last {
                break;
            }
            if let Some((_, end)) = self.plan.idle.iter().find(|(begin, end)| (*begin..*end).contains(&now)) {
                sleep(*end - now).await;
                // The callers give up at once.
                for _ in 0..8 {
                    started += 1;
                    let mut call = process.new_call(&mut random, started);
                    (call.started.cancelled_after, call.started.reserves) = (Some(QUICKLY), false);
                    call.settles = None;
                    callers.spawn(process.clone().call(call));
                }
            }
            if random.one_in(30) {
                started += 2;
                let [first, second] =
                    [started - 1, started].map(|number| process.new_call(&mut random, number));
                callers.spawn(process.clone().renew(first, second));
            }
            if random.one_in(60) {
                callers.spawn(process.clone().reset(process.keys(&mut random)));
            }
            // Sometimes several callers start at once.
            let (one_in, callers_at_once) = if self.plan.merges { (10, 6) } else { (20, 4) };
            for _ in 0..if random.one_in(one_in) { callers_at_once } else { 1 } {
                started += 1;
                let call = process.new_call(&mut random, started);
                callers.spawn(process.clone().call(call));
            }
        }
        callers.join_all().await;
        for limiter in &process.limiters {
            limiter.drain().await;
        }
        // Waits for the end of all checks in flight.
        sleep(2 * DEADLINE).await;
        self.record.note(Event::Stopped(Stopped {
            client: self.number,
            unanswered: backend.unanswered_checks(),
            lost_rollbacks: backend.lost_rollbacks(),
            lost_settlements: process.limiters.iter().map(Limiter::lost_settlements).sum(),
            streams: streams.load(Ordering::SeqCst),
        }));
        Ok(())
    }

    fn backend(&self, streams: Arc<AtomicUsize>) -> RedisBackend {
        let (record, client, swallowed) = (self.record.clone(), self.number, self.swallowed.clone());
        let connect = move |host: String, port| {
            let (streams, record, swallowed) = (streams.clone(), record.clone(), swallowed.clone());
            async move {
                let node = (0..NODES).find(|node| Plan::node(*node) == host);
                let node = node.ok_or(io::ErrorKind::NotFound)?;
                if swallowed.lock().unwrap().contains(&(client, node)) {
                    return std::future::pending().await;
                }
                let stream = TcpStream::connect((host, port)).await?;
                record.note(Event::Connected { client, node });
                streams.fetch_add(1, Ordering::SeqCst);
                Ok::<_, io::Error>(Counted { stream, streams, record, client, node })
            }
        };
        let seeds = (0..NODES).map(|node| (Plan::node(node), PORT));
        let merging = if self.plan.merges { Merging::On } else { Merging::Off };
        let servers = RedisServers::cluster_streams(seeds, connect);
        RedisBackend::builder(servers).merging(merging).lazy().unwrap()
    }

    fn limiter(&self, backend: RedisBackend) -> Limiter {
        let builder = Limiter::builder(backend).deadline(DEADLINE).without_policies();
        builder.local_memory(MemoryBackend::new().with_clock(&self.clock)).build().unwrap()
    }
}

impl Process {
    fn keys(&self, random: &mut Random) -> Vec<(PartitionKey, Policy)> {
        let plan = &self.client.plan;
        // The first address is in most checks.
        let address = match plan.over_limit {
            Some(client) if client == self.client.number => 0,
            _ if random.one_in(3) => 0,
            _ => random.between(1..plan.addresses),
        };
        let mut keys = vec![(Plan::address(address), plan.address.clone())];
        if plan.routes > 0 && random.one_in(2) {
            let route = (Plan::route(random.between(0..plan.routes)), plan.route.clone());
            keys.insert(random.between(0..2) as usize, route);
        }
        keys
    }

    fn slots(&self, keys: &[(PartitionKey, Policy)]) -> Vec<u16> {
        keys.iter().map(|(key, policy)| slot(&self.backend.key_name("tsw", key, policy))).collect()
    }

    fn new_call(&self, random: &mut Random, number: u32) -> Call {
        let Client { number: client, plan, .. } = &self.client;
        let keys = self.keys(random);
        let share = Share::among(plan.clients as u32).unwrap();
        let rules = [OutageRule::FailClosed, OutageRule::FailOpen, OutageRule::LocalFallback(share)];
        let rule = random.one_of(&rules);
        let cost = random.between(1..4) as u32;
        let cancelled_after = random.one_in(8).then(|| random.millis(0..60));
        let reserves = cancelled_after.is_none() && random.one_in(4);
        let settles =
            reserves.then(|| (random.millis(0..200), random.between(0..2 * u64::from(cost)) as u32));
        let id = (*client as u32 + 1) * 1_000_000 + number;
        let slots = self.slots(&keys);
        let limiter = random.between(0..2) as usize;
        let started = Started { id, client: *client, limiter, rule, reserves, cost, slots, cancelled_after };
        Call { started, keys, settles }
    }

    async fn call(self, call: Call) {
        let Call { started, keys, settles } = call;
        let Started { id, limiter, cost, rule, reserves, cancelled_after, .. } = started;
        let number = number_policy();
        let pairs = keys.into_iter().flat_map(|(key, policy)| {
            [Pair::new(key.clone(), policy, cost), Pair::new(key, number.clone(), id)]
        });
        let draft = Draft::pairs(pairs.collect::<Vec<_>>()).outage(rule);
        let draft = if reserves { draft.reserve() } else { draft };
        let record = &self.client.record;
        record.note(Event::Started(started));
        let service = self.layers[limiter].layer(service_fn(async |request: Request| Ok(request)));
        let response = service.oneshot(Request { draft, admission: None });
        let result: Result<Request, Rejection> = match cancelled_after {
            Some(after) => match timeout(after, response).await {
                Ok(result) => result,
                Err(_) => return record.note(Event::Completed { id, outcome: Outcome::Cancelled }),
            },
            None => response.await,
        };
        let admission = match result {
            Ok(request) => request.admission.unwrap(),
            Err(rejection) => return record.note(Event::Completed { id, outcome: rejected(rejection) }),
        };
        let outcome = outcome_of(Ok(admission.clone()));
        record.note(Event::Completed { id, outcome });
        let (Some((after, used)), Outcome::Charged { .. }) = (settles, outcome) else { return };
        let reservation = admission.reservation().unwrap();
        sleep(after).await;
        record.note(Event::Settling { id, used });
        let mut used_of = Costs::new();
        for policy in [ROUTE, ADDRESS] {
            used_of = used_of.policy(policy, used);
        }
        if used > cost {
            // The overage also needs the number of the check.
            used_of = used_of.policy(NUMBER, 2 * id);
        }
        let is_done = matches!(reservation.settle(used_of).await, Settled::Done { .. });
        record.note(Event::Settled { id, is_done });
    }

    /// Reserves, resets and reserves again at the same time, so that all happen in one microsecond of the server's clock. Then
    /// settles the first reservation.
    async fn renew(self, mut first: Call, mut second: Call) {
        let (key, policy) = first.keys.swap_remove(0);
        let slots = self.slots(&[(key.clone(), policy.clone())]);
        for call in [&mut first, &mut second] {
            let started = &mut call.started;
            (started.limiter, started.rule) = (0, OutageRule::FailClosed);
            (started.reserves, started.cancelled_after, started.slots) = (true, None, slots.clone());
            started.cost = 4;
        }
        let ids = [first.started.id, second.started.id];
        let reserve = async |started: Started| {
            let (id, number) = (started.id, number_policy());
            self.client.record.note(Event::Started(started));
            let pairs = [Pair::new(key.clone(), policy.clone(), 4), Pair::new(key.clone(), number, id)];
            let result = self.limiters[0].admit(Draft::pairs(pairs).reserve()).await;
            let reservation = result.as_ref().ok().and_then(|admission| admission.reservation().cloned());
            self.client.record.note(Event::Completed { id, outcome: outcome_of(result) });
            reservation.filter(|reservation| reservation.decision().is_some())
        };
        let reset = self.clone().reset(vec![(key.clone(), policy.clone())]);
        let (reservation, (), _) = tokio::join!(reserve(first.started), reset, reserve(second.started));
        let Some(reservation) = reservation else { return };
        self.client.record.note(Event::Settling { id: ids[0], used: 0 });
        let used = Costs::new().policy(policy.name().to_owned(), 0);
        let is_done = matches!(reservation.settle(used).await, Settled::Done { .. });
        self.client.record.note(Event::Settled { id: ids[0], is_done });
    }

    async fn reset(self, keys: Vec<(PartitionKey, Policy)>) {
        let slots = self.slots(&keys);
        let pairs: Vec<Pair> = keys.into_iter().map(|(key, policy)| Pair::new(key, policy, 0)).collect();
        self.client.record.note(Event::Resetting { client: self.client.number, slots });
        // A reset may fail during a fault.
        let _ = self.limiters[0].reset(pairs).await;
    }
}

fn number_policy() -> Policy {
    Policy::new(NUMBER, u32::MAX, Duration::from_millis(1)).unwrap()
}

/// A stream that is counted while it is open.
struct Counted {
    stream: TcpStream,
    streams: Arc<AtomicUsize>,
    record: Record,
    client: usize,
    node: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::SeqCst);
        // At the end of a run there is no simulated time.
        if turmoil::sim_elapsed().is_some() {
            self.record.note(Event::Disconnected { client: self.client, node: self.node });
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
