//! A process that asks: its limiter, and many callers who do not wait for each other.

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
    Admission, Costs, Decision, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend, Rejection, settle::Settled,
    testing::ManualClock,
};
use turmoil::net::TcpStream;

use super::{
    chance::Chance,
    plan::{DEADLINE, NUMBER, Plan, SERVER, SHARED},
    plant::{self, Bug},
    record::{Answer, Event, Id, Record},
    server::PORT,
};

#[derive(Clone)]
pub struct Client {
    pub number: usize,
    pub plan: Plan,
    pub bug: Option<Bug>,
    pub record: Record,
    /// That of all memories.
    pub clock: ManualClock,
}

/// How a caller asks.
#[derive(Clone, Copy)]
enum Manner {
    Admits,
    /// And goes away after so long.
    GoesAway(Duration),
    /// And settles after so long what was used.
    Reserves(Duration, u32),
}

#[derive(Clone, Copy)]
struct Question {
    id: Id,
    tenant: u64,
    cost: u32,
    manner: Manner,
}

impl Client {
    pub async fn live(self) -> turmoil::Result {
        let streams = Arc::<AtomicUsize>::default();
        let backend = self.backend(streams.clone());
        let limiter = self.limiter(backend.clone());
        let mut chance = Chance::new(self.plan.seed ^ (self.number as u64 + 1) << 32);
        let mut callers = JoinSet::new();
        let mut asked = 0;
        while turmoil::sim_elapsed().unwrap() < self.plan.last {
            sleep(chance.millis(1..2 * self.plan.pause.as_millis() as u64)).await;
            // Now and then many ask at once.
            for _ in 0..if chance.one_in(20) { 8 } else { 1 } {
                asked += 1;
                let question = self.question(&mut chance, asked);
                callers.spawn(self.clone().call(limiter.clone(), question));
            }
        }
        callers.join_all().await;
        limiter.drain().await;
        // What is under way ends.
        sleep(2 * DEADLINE).await;
        self.record.note(Event::Ended {
            client: self.number,
            unanswered: backend.unanswered_checks(),
            lost_settlements: limiter.lost_settlements(),
            streams: streams.load(Ordering::SeqCst),
        });
        Ok(())
    }

    fn backend(&self, streams: Arc<AtomicUsize>) -> RedisBackend {
        let (bug, record, client) = (self.bug, self.record.clone(), self.number);
        let has_connected = Arc::<AtomicBool>::default();
        RedisBackend::over_streams(move || {
            let (streams, record, has_connected) = (streams.clone(), record.clone(), has_connected.clone());
            async move {
                plant::allow_connecting(bug, &has_connected)?;
                let stream = TcpStream::connect((SERVER, PORT)).await?;
                record.note(Event::Connected { client });
                streams.fetch_add(1, Ordering::SeqCst);
                Ok::<_, io::Error>(Counted { stream, streams, is_kept: bug == Some(Bug::KeepsStreams) })
            }
        })
    }

    fn limiter(&self, backend: RedisBackend) -> Limiter {
        let number = Policy::new(NUMBER, u32::MAX, Duration::from_millis(1)).unwrap();
        plant::limiter(self.bug, backend)
            .policy(self.plan.policy.clone())
            .policy(number)
            .outage(plant::outage(self.bug, self.plan.rule))
            .local_memory(MemoryBackend::new().with_clock(&self.clock))
            .build()
            .unwrap()
    }

    fn question(&self, chance: &mut Chance, asked: u32) -> Question {
        let cost = chance.between(1..5) as u32;
        let manner = match chance.between(0..8) {
            0 => Manner::GoesAway(chance.millis(0..60)),
            1 | 2 => Manner::Reserves(chance.millis(0..200), chance.between(0..2 * u64::from(cost)) as u32),
            _ => Manner::Admits,
        };
        let id = (self.number as u32 + 1) * 1_000_000 + asked;
        Question { id, tenant: chance.between(0..self.plan.tenants), cost, manner }
    }

    async fn call(self, limiter: Limiter, question: Question) {
        let Question { id, tenant, cost, manner } = question;
        let (key, costs) = (Plan::tenant(tenant), Costs::new().policy(SHARED, cost).policy(NUMBER, id));
        self.record.note(Event::Asked { id, client: self.number, tenant, cost });
        let answer = match manner {
            Manner::Admits => told(limiter.admit(key, costs).await),
            Manner::GoesAway(after) => {
                let verdict = timeout(after, limiter.admit(key, costs)).await;
                verdict.map_or(Answer::Gone, told)
            }
            Manner::Reserves(after, used) => {
                return self.reserve(limiter, question, key, costs, (after, used)).await;
            }
        };
        self.record.note(Event::Answered { id, answer });
    }

    async fn reserve(
        self,
        limiter: Limiter,
        Question { id, cost, .. }: Question,
        key: PartitionKey,
        costs: Costs,
        (after, used): (Duration, u32),
    ) {
        let outcome = limiter.reserve(key, costs).await;
        let (answer, reservation) = match outcome {
            Ok(reservation) => {
                let reading = reservation.decision().unwrap().at_micros();
                (Answer::Charged { reading }, Some(reservation))
            }
            Err(rejection) => (rejected(rejection), None),
        };
        self.record.note(Event::Answered { id, answer });
        let Some(reservation) = reservation else { return };
        sleep(after).await;
        self.record.note(Event::Settling { id, used });
        let mut used_of = Costs::new().policy(SHARED, used);
        if used > cost {
            // What is charged then has the number of the check, too.
            used_of = used_of.policy(NUMBER, 2 * id);
        }
        let is_done = matches!(reservation.settle(used_of).await, Settled::Done);
        self.record.note(Event::Settled { id, is_done });
    }
}

fn told(outcome: Result<Admission, Rejection>) -> Answer {
    let admission = match outcome {
        Ok(admission) => admission,
        Err(rejection) => return rejected(rejection),
    };
    match (admission.decision(), admission.local(), admission.unchecked()) {
        (Some(decision), None, None) => Answer::Charged { reading: decision.at_micros() },
        (None, Some(local), None) => Answer::Local { reading: local.decision().at_micros() },
        (None, None, Some(unchecked)) => Answer::Unchecked(unchecked.reason()),
        _ => panic!("{admission:?}"),
    }
}

fn rejected(rejection: Rejection) -> Answer {
    match rejection {
        Rejection::Denied(decision) => denied(&decision),
        Rejection::LocalFallbackDenied(error) => Answer::BeyondShare(error.reason()),
        Rejection::Unavailable(error) => Answer::Unavailable(error.reason()),
        other => panic!("{other:?}"),
    }
}

fn denied(decision: &Decision) -> Answer {
    let reading = decision.at_micros();
    if decision.is_cached() { Answer::Known { reading } } else { Answer::Denied { reading } }
}

/// A stream that is counted as long as it is open.
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
