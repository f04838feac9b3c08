//! A run: a simulated network and the steps of the plan.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use tower_sliding_window::testing::ManualClock;
use turmoil::{Builder, Sim};

use super::{
    client::Client,
    mutation::Mutation,
    plan::{Plan, SERVER, Step},
    record::{Entry, Event, Record},
    server,
    store::Store,
};

/// The time step of the network and of all hosts.
pub const TICK: Duration = Duration::from_millis(1);

/// The shortest and the longest latency of a message, unless its connection is slow.
const LATENCY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Runs a plan and returns its events.
pub fn run(plan: &Plan, mutation: Option<Mutation>) -> Vec<Entry> {
    let record = Record::default();
    let store = Arc::new(Mutex::new(Store::new(plan.drift, mutation, record.clone())));
    let clock = ManualClock::new();
    let begin = clock.now_micros();
    let mut sim = Builder::new()
        .rng_seed(plan.seed)
        .epoch(UNIX_EPOCH)
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(60))
        .min_message_latency(LATENCY.0)
        .max_message_latency(LATENCY.1)
        .tcp_capacity(plan.capacity)
        .enable_random_order()
        .build();
    sim.host(SERVER, || server::serve(store.clone()));
    for number in 0..plan.clients {
        let (plan, record, clock) = (plan.clone(), record.clone(), clock.clone());
        sim.client(Plan::client(number), Client { number, plan, mutation, record, clock }.run());
    }
    let mut steps = plan.steps.iter().peekable();
    loop {
        let now = sim.elapsed();
        while let Some((_, step)) = steps.next_if(|(at, _)| *at <= now) {
            record.note_at(now, Event::Step(step.clone()));
            apply(step, plan, &mut sim, &store, now);
        }
        clock.set_micros(begin + now.as_micros() as u64);
        if sim.step().unwrap_or_else(|error| panic!("seed {}: {error}", plan.seed)) {
            // A panic of a task of a host is not reported.
            assert!(!store.is_poisoned(), "seed {}: the server has panicked", plan.seed);
            return record.take();
        }
    }
}

fn apply(step: &Step, plan: &Plan, sim: &mut Sim<'_>, store: &Mutex<Store>, now: Duration) {
    let store = || store.lock().unwrap();
    let name = |client: &usize| Plan::client(*client);
    match step {
        Step::Partition(client) => sim.partition(name(client), SERVER),
        Step::PartitionFromClient(client) => sim.partition_oneway(name(client), SERVER),
        Step::PartitionToClient(client) => sim.partition_oneway(SERVER, name(client)),
        Step::Repair(client) => sim.repair(name(client), SERVER),
        Step::Hold(client) => sim.hold(name(client), SERVER),
        Step::Release(client) => sim.release(name(client), SERVER),
        Step::Slow(client, latency) => sim.set_link_latency(name(client), SERVER, *latency),
        Step::RestoreLatency(client) => {
            sim.set_link_latency(name(client), SERVER, LATENCY.0);
            sim.set_link_max_message_latency(name(client), SERVER, LATENCY.1);
        }
        Step::Crash => sim.crash(SERVER),
        Step::CrashSilently => {
            let clients: Vec<String> = (0..plan.clients).map(Plan::client).collect();
            clients.iter().for_each(|client| sim.partition(&**client, SERVER));
            sim.crash(SERVER);
            clients.iter().for_each(|client| sim.repair(&**client, SERVER));
        }
        Step::Restart { loses_data } => {
            store().start(*loses_data);
            sim.bounce(SERVER);
        }
        Step::Pause(time) => store().paused_until = now + *time,
        Step::ShiftClock(by) => store().set_clock(*by),
    }
}
