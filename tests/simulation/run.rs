//! One run: a simulated network, and what the plan does to it.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use tower_sliding_window::testing::ManualClock;
use turmoil::{Builder, Sim};

use super::{
    client::Client,
    plan::{Plan, SERVER, Step},
    plant::Bug,
    record::{Entry, Event, Record},
    server,
    store::Store,
};

/// How the network and the hosts in it go on: all of them by one tick, then all by the next.
pub const TICK: Duration = Duration::from_millis(1);

/// How long a message is under way, unless its link is slow.
const LATENCY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// What has happened in a run of this plan.
pub fn run(plan: &Plan, bug: Option<Bug>) -> Vec<Entry> {
    let record = Record::default();
    let store = Arc::new(Mutex::new(Store::new(plan.drift, bug, record.clone())));
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
    sim.host(SERVER, || server::serve(store.clone(), record.clone()));
    for number in 0..plan.clients {
        let (plan, record, clock) = (plan.clone(), record.clone(), clock.clone());
        sim.client(Plan::client(number), Client { number, plan, bug, record, clock }.live());
    }
    let mut steps = plan.steps.iter().peekable();
    loop {
        let now = sim.elapsed();
        while let Some((_, step)) = steps.next_if(|(at, _)| *at <= now) {
            record.note_at(now, Event::Step(step.clone()));
            take(step, plan, &mut sim, &store, now);
        }
        clock.set_micros(begin + now.as_micros() as u64);
        if sim.step().unwrap_or_else(|error| panic!("seed {}: {error}", plan.seed)) {
            // The tasks of a host panic in silence.
            assert!(!store.is_poisoned(), "seed {}: the server has panicked", plan.seed);
            return record.take();
        }
    }
}

fn take(step: &Step, plan: &Plan, sim: &mut Sim<'_>, store: &Mutex<Store>, now: Duration) {
    let store = || store.lock().unwrap();
    let name = |client: &usize| Plan::client(*client);
    match step {
        Step::Cut(client) => sim.partition(name(client), SERVER),
        Step::CutFrom(client) => sim.partition_oneway(name(client), SERVER),
        Step::CutTo(client) => sim.partition_oneway(SERVER, name(client)),
        Step::Mend(client) => sim.repair(name(client), SERVER),
        Step::Hold(client) => sim.hold(name(client), SERVER),
        Step::Release(client) => sim.release(name(client), SERVER),
        Step::Slow(client, latency) => sim.set_link_latency(name(client), SERVER, *latency),
        Step::Quick(client) => {
            sim.set_link_latency(name(client), SERVER, LATENCY.0);
            sim.set_link_max_message_latency(name(client), SERVER, LATENCY.1);
        }
        Step::Crash => sim.crash(SERVER),
        Step::Vanish => {
            let clients: Vec<String> = (0..plan.clients).map(Plan::client).collect();
            clients.iter().for_each(|client| sim.partition(&**client, SERVER));
            sim.crash(SERVER);
            clients.iter().for_each(|client| sim.repair(&**client, SERVER));
        }
        Step::Start { loses_data } => {
            store().start(*loses_data);
            sim.bounce(SERVER);
        }
        Step::Stop(time) => store().stopped_until = now + *time,
        Step::Clock(by) => store().set_clock(*by),
    }
}
