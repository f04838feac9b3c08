//! A simulated process: a limiter and many concurrent callers.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_sliding_window::{
    Admission, Costs, Decision, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend, Rejection,
    protocol::Draft,
    redis::{Merging, RedisServers},
    settle::Settled,
    testing::ManualClock,
};
use turmoil::net::TcpStream;

use super::{
    mutation::{self, Mutation},
    plan::{DEADLINE, NUMBER, Plan, SERVER, SHARED},
    random::Random,
    record::{Event, Id, Outcome, Record},
    server::PORT,
};

#[derive(Clone)]
pub struct Client {
    pub number: usize,
    pub plan: Plan,
    pub mutation: Option<Mutation>,
    pub record: Record,
    /// The clock of all memory backends.
    pub clock: ManualClock,
}

/// How a caller uses the limiter.
#[derive(Clone, Copy)]
enum CallKind {
    /// Calls `admit`.
    Admit,
    /// Calls `admit` and cancels it after this time.
    Cancel(Duration),
    /// Calls `reserve`, and settles the reservation after this time with this usage.
    Reserve(Duration, u32),
}

#[derive(Clone, Copy)]
struct Call {
    id: Id,
    tenant: u64,
    cost: u32,
    kind: CallKind,
}

impl Client {
    pub async fn run(self) -> turmoil::Result {
        let streams = Arc::<AtomicUsize>::default();
        let backend = self.backend(streams.clone());
        let limiter = self.limiter(backend.clone());
        let mut random = Random::new(self.plan.seed ^ (self.number as u64 + 1) << 32);
        let mut callers = JoinSet::new();
        let mut started = 0;
        while turmoil::sim_elapsed().unwrap() < self.plan.last {
            sleep(random.millis(1..2 * self.plan.pause.as_millis() as u64)).await;
            // Sometimes many callers start at once.
            let is_burst = random.one_in(if self.plan.merges { 3 } else { 20 });
            for _ in 0..if is_burst { 8 } else { 1 } {
                started += 1;
                let new_call = self.new_call(&mut random, started);
                callers.spawn(self.clone().call(limiter.clone(), new_call));
            }
        }
        callers.join_all().await;
        limiter.drain().await;
        // Waits for the end of all checks in flight.
        sleep(2 * DEADLINE).await;
        self.record.note(Event::Stopped {
            client: self.number,
            unanswered: backend.unanswered_checks(),
            lost_settlements: limiter.lost_settlements(),
            streams: streams.load(Ordering::SeqCst),
        });
        Ok(())
    }

    fn backend(&self, streams: Arc<AtomicUsize>) -> RedisBackend {
        let (mutation, record, client) = (self.mutation, self.record.clone(), self.number);
        let has_connected = Arc::<AtomicBool>::default();
        let merging = if self.plan.merges { Merging::On } else { Merging::Off };
        let servers = RedisServers::streams(move || {
            let (streams, record, has_connected) = (streams.clone(), record.clone(), has_connected.clone());
            async move {
                mutation::allow_connecting(mutation, &has_connected)?;
                let stream = TcpStream::connect((SERVER, PORT)).await?;
                record.note(Event::Connected { client });
                streams.fetch_add(1, Ordering::SeqCst);
                Ok::<_, io::Error>(Counted {
                    stream,
                    streams,
                    is_kept: mutation == Some(Mutation::LeaksStreams),
                })
            }
        });
        RedisBackend::builder(servers).merging(merging).lazy().unwrap()
    }

    fn limiter(&self, backend: RedisBackend) -> Limiter {
        let number = Policy::new(NUMBER, u32::MAX, Duration::from_millis(1)).unwrap();
        // It would deny almost every check, and must not change any outcome.
        let canary = Policy::new("canary", 1, self.plan.window()).unwrap().shadow();
        let canary = Some(canary).filter(|_| !self.plan.merges);
        let limiter =
            mutation::limiter(self.mutation, backend).policy(self.plan.policy.clone()).policy(number);
        let limiter = canary.into_iter().fold(limiter, |limiter, canary| limiter.policy(canary));
        limiter
            .outage(mutation::outage(self.mutation, self.plan.rule))
            .local_memory(MemoryBackend::new().with_clock(&self.clock))
            .build()
            .unwrap()
    }

    fn new_call(&self, random: &mut Random, started: u32) -> Call {
        let cost = random.between(1..5) as u32;
        let kind = match random.between(0..8) {
            0 => CallKind::Cancel(random.millis(0..60)),
            1 | 2 => CallKind::Reserve(random.millis(0..200), random.between(0..2 * u64::from(cost)) as u32),
            _ => CallKind::Admit,
        };
        let id = (self.number as u32 + 1) * 1_000_000 + started;
        Call { id, tenant: random.between(0..self.plan.tenants), cost, kind }
    }

    async fn call(self, limiter: Limiter, new_call: Call) {
        let Call { id, tenant, cost, kind } = new_call;
        let (key, costs) = (Plan::tenant(tenant), Costs::new().policy(SHARED, cost).policy(NUMBER, id));
        self.record.note(Event::Started { id, client: self.number, tenant, cost });
        let outcome = match kind {
            CallKind::Admit => outcome_of(limiter.admit((key, costs)).await),
            CallKind::Cancel(after) => {
                let result = timeout(after, limiter.admit((key, costs))).await;
                result.map_or(Outcome::Cancelled, outcome_of)
            }
            CallKind::Reserve(after, used) => {
                return self.reserve(limiter, new_call, key, costs, (after, used)).await;
            }
        };
        self.record.note(Event::Completed { id, outcome });
    }

    async fn reserve(
        self,
        limiter: Limiter,
        Call { id, cost, .. }: Call,
        key: PartitionKey,
        costs: Costs,
        (after, used): (Duration, u32),
    ) {
        let result = limiter.admit(Draft::check(key, costs).reserve()).await;
        let reservation = result.as_ref().ok().and_then(|admission| admission.reservation().cloned());
        self.record.note(Event::Completed { id, outcome: outcome_of(result) });
        // Only the store shows what a settlement changes.
        let Some(reservation) = reservation.filter(|reservation| reservation.decision().is_some()) else {
            return;
        };
        sleep(after).await;
        self.record.note(Event::Settling { id, used });
        let mut used_of = Costs::new().policy(SHARED, used);
        if used > cost {
            // The overage also needs the number of the check.
            used_of = used_of.policy(NUMBER, 2 * id);
        }
        let is_done = matches!(reservation.settle(used_of).await, Settled::Done { .. });
        self.record.note(Event::Settled { id, is_done });
    }
}

pub fn outcome_of(result: Result<Admission, Rejection>) -> Outcome {
    let admission = match result {
        Ok(admission) => admission,
        Err(rejection) => return rejected(rejection),
    };
    match (admission.decision(), admission.local(), admission.unchecked()) {
        (Some(decision), None, None) => Outcome::Charged { reading: decision.at_micros() },
        (None, Some(local), None) => Outcome::Local { reading: local.decision().at_micros() },
        (None, None, Some(unchecked)) => Outcome::Unchecked(unchecked.reason()),
        _ => panic!("{admission:?}"),
    }
}

pub fn rejected(rejection: Rejection) -> Outcome {
    match rejection {
        Rejection::Denied(decision) => denied(&decision),
        Rejection::LocalFallbackDenied(error) => Outcome::LocalFallbackDenied(error.reason()),
        Rejection::Unavailable(error) => Outcome::Unavailable(error.reason()),
        other => panic!("{other:?}"),
    }
}

fn denied(decision: &Decision) -> Outcome {
    let reading = decision.at_micros();
    if decision.is_cached() { Outcome::CacheHit { reading } } else { Outcome::Denied { reading } }
}

/// A stream that is counted while it is open.
struct Counted {
    stream: TcpStream,
    streams: Arc<AtomicUsize>,
    is_kept: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !self.is_kept {
            self.streams.fetch_sub(1, Ordering::SeqCst);
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
