//! The simulation of one client: eight processes, the API and the stranger, one event after the other on a clock that the events move.

use std::{collections::BTreeMap, error::Error};

use http::Response;
use tower_sliding_window::{Admission, MemoryBackend, testing::ManualClock};

use crate::{
    api::{Api, Logged, Sender},
    client::{Asked, Client, Plan},
    demand::{self, JOBS, Kind, Task, UNITS_OF_STRANGER},
    random::Random,
    time::{DAY, HOUR, MINUTE, MONDAY, SECOND},
};

/// A request gives up if its wait ends later than this.
const PATIENCE: u64 = 2 * MINUTE;
/// The simulation ends after the first hour of Tuesday, which shows whether the next day begins well.
const END: u64 = MONDAY + DAY + HOUR;

/// What all clients meet.
pub(crate) struct World {
    pub(crate) seed: u64,
    /// By how much the clock of the API is ahead of that of the clients, in microseconds.
    pub(crate) ahead: i64,
    pub(crate) tasks: Vec<Task>,
    /// When the stranger sends its requests.
    pub(crate) stranger: Vec<u64>,
}

/// What has happened to the requests of a client.
pub(crate) struct Outcome {
    pub(crate) plan: Plan,
    /// By how much the clock of the API is ahead, in microseconds.
    pub(crate) ahead: i64,
    /// The log of the API.
    pub(crate) log: Vec<Logged>,
    /// When the client has given up a request before it was sent, and what the request was.
    pub(crate) given_up: Vec<(u64, Kind)>,
}

/// A request of a task, by its index.
#[derive(Clone, Copy)]
struct Request {
    task: usize,
    index: u64,
    /// When it was due.
    due: u64,
}

enum Event {
    Ask(Request),
    Arrive(Request, Admission, u64),
    Answer(Request, Admission, Response<()>),
    OfStranger,
}

struct Simulation<'a> {
    world: &'a World,
    clock: ManualClock,
    clients: Vec<Client>,
    /// When each process has its next answer. It sends one request at a time.
    free_at: [u64; JOBS.len()],
    api: Api,
    random: Random,
    /// By their instant and their order.
    events: BTreeMap<(u64, u64), Event>,
    added: u64,
    given_up: Vec<(u64, Kind)>,
}

impl World {
    pub(crate) fn new(seed: u64, has_stranger: bool) -> Self {
        let mut random = Random::new(seed);
        let ahead = random.below(6 * SECOND).cast_signed() - (3 * SECOND).cast_signed();
        let tasks = demand::tasks(&mut random);
        let stranger = if has_stranger { demand::stranger(&mut random) } else { Vec::new() };
        Self { seed, ahead, tasks, stranger }
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.stranger.is_empty() { "no stranger" } else { "a stranger uses 30 %" }
    }

    /// Simulates a client.
    pub(crate) async fn run(&self, plan: Plan) -> Result<Outcome, Box<dyn Error>> {
        let clock = ManualClock::new();
        // Models Redis, which all processes share.
        let store = MemoryBackend::new().with_clock(&clock);
        let clients: Result<Vec<_>, _> = JOBS.iter().map(|_| Client::new(plan, &store)).collect();
        let mut simulation = Simulation {
            world: self,
            clock,
            clients: clients?,
            free_at: [0; JOBS.len()],
            api: Api::new(self.ahead),
            random: Random::new(self.seed ^ 1),
            events: BTreeMap::new(),
            added: 0,
            given_up: Vec::new(),
        };
        for (task, Task { begin, .. }) in self.tasks.iter().enumerate() {
            simulation.add(*begin, Event::Ask(Request { task, index: 0, due: *begin }));
        }
        for at in &self.stranger {
            simulation.add(*at, Event::OfStranger);
        }
        while let Some(((at, _), event)) = simulation.events.pop_first().filter(|((at, _), _)| *at < END) {
            simulation.clock.set_micros(at);
            simulation.handle(at, event).await?;
        }
        let Simulation { api, given_up, .. } = simulation;
        Ok(Outcome { plan, ahead: self.ahead, log: api.log, given_up })
    }
}

impl Simulation<'_> {
    fn add(&mut self, at: u64, event: Event) {
        self.added += 1;
        self.events.insert((at, self.added), event);
    }

    async fn handle(&mut self, now: u64, event: Event) -> Result<(), Box<dyn Error>> {
        match event {
            Event::Ask(request) => self.ask(now, request).await?,
            Event::Arrive(request, admission, answer_at) => {
                let Task { job, kind, .. } = self.task(request);
                let answer = self.api.answer(now, Sender::Job(job), kind.cost())?;
                self.add(answer_at, Event::Answer(request, admission, answer));
            }
            Event::Answer(request, admission, answer) => {
                self.clients[self.task(request).job].answered(&admission, &answer).await?;
                self.go_on(now, request, answer.status().is_success());
            }
            Event::OfStranger => drop(self.api.answer(now, Sender::Stranger, UNITS_OF_STRANGER)?),
        }
        Ok(())
    }

    async fn ask(&mut self, now: u64, request: Request) -> Result<(), Box<dyn Error>> {
        let Task { job, kind, .. } = self.task(request);
        if self.free_at[job] > now {
            self.add(self.free_at[job], Event::Ask(request));
            return Ok(());
        }
        match self.clients[job].ask(kind).await? {
            Asked::Admitted(admission) => {
                // It takes from 20 to 200 ms in each direction.
                let [there, back] = [(); 2].map(|()| 20_000 + self.random.below(180_000));
                self.free_at[job] = now + there + back;
                self.add(now + there, Event::Arrive(request, admission, now + there + back));
            }
            Asked::Denied(wait) => {
                let again_at = now + wait.as_micros() as u64;
                if again_at <= request.due + PATIENCE {
                    self.add(again_at, Event::Ask(request));
                } else {
                    self.given_up.push((now, kind));
                    self.go_on(now, request, false);
                }
            }
        }
        Ok(())
    }

    /// Goes on with the next request of a task.
    fn go_on(&mut self, now: u64, request: Request, is_served: bool) {
        let Task { kind, begin, count, interval, .. } = self.task(request);
        let index = request.index + 1;
        // Other days will have time for the other refreshes.
        let ends = index == count || (kind == Kind::Refresh && !is_served);
        if !ends {
            let due = now.max(begin + index * interval);
            self.add(due, Event::Ask(Request { index, due, ..request }));
        }
    }

    fn task(&self, request: Request) -> Task {
        self.world.tasks[request.task]
    }
}
