//! A simulation of the units in flight of several processes on one store, and the rules that every run must obey: lost, delayed and
//! reordered messages, stopped and killed processes, lost data, and checks that run after their deadline. The same seed replays the same
//! run. The processes are the real [`HeldPairs`]; the store is a model of the scripts, which `lua/README.md` describes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    env, iter,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, advance};

use super::{
    super::{
        keys::{KeyNames, Keys},
        script::{
            acquisition::HeldNumber,
            hold::{HeldList, HoldChanges},
        },
    },
    LATENESS,
    pairs::{HeldPairs, HoldCall},
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Pair},
    key::PartitionKey,
    policy::Policy,
};

const PROCESSES: usize = 5;
const KEYS: usize = 3;
const LIMIT: u32 = 10;
const HOLD_TIME: Duration = Duration::from_secs(3);
/// Another hold time, which a process may have before or after a reload. A third of it is longer than the first one.
const LONG_HOLD_TIME: Duration = ms(12_000);
const DEADLINE: Duration = ms(100);
/// How much later than usual a late check runs.
const LATE: Duration = ms(300);
/// The longest way of a message. A reply takes as long.
const LATENCY: Duration = ms(40);
const ROUNDS: usize = 4;
/// The default number of seeds. `SIMULATION_SEEDS` sets another one, and `SIMULATION_SEED` runs one seed only.
const SEEDS: u64 = 60;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// At no instant, more than the limit run. Lost data and long stops permit it until the units are restored and the surplus has ended,
    /// and so does a check that runs after its deadline, which only a step of the clock permits.
    NeverTooMany,
    /// After a third of a hold time and two round trips without faults, the store holds exactly the units of the running requests.
    StoreAgrees,
    /// A hold time after its death, nothing of a process counts.
    DeadProcessHoldsNothing,
    /// A request whose unit was missing in the store can read this.
    InterruptionIsReported,
    /// Without lost data, long stops or an unreachable store, no unit is interrupted.
    NothingIsInterrupted,
}

/// What a run may contain beside lost messages, short stops and kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    Usual,
    LostData,
    LongStops,
    LateChecks,
    /// Processes change their hold time.
    Reloads,
}

impl Faults {
    fn longest_hold_time(self) -> Duration {
        if self == Self::Reloads { LONG_HOLD_TIME } else { HOLD_TIME }
    }

    /// Returns the time after which the store must agree with the processes: a third of a hold time and two round trips, and a pause in
    /// between.
    fn agrees_after(self) -> Duration {
        self.longest_hold_time() / 3 + ms(4 * 40 + 60)
    }
}

/// A bug, which the rules must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    ReleaseIsNotRepeated,
    ReleaseSubtractsWithoutNumber,
    RenewalMakesEntry,
    NoRenewal,
    ReleaseOfAnotherNumber,
    OvertakenCheckDropsNumbers,
    NoRestoring,
    NumbersAreUsedTwice,
    SurplusStays,
    UnknownOutcomeIsForgotten,
    UnknownNumbersStay,
}

/// A small random generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(1 + self.below(longest.as_micros() as u64))
    }
}

/// What the store holds of one pair for one process. Numbers outlive their entry.
#[derive(Clone, Default)]
struct Entry {
    ends: Option<Instant>,
    units: u32,
    numbers: BTreeMap<u32, HeldNumber>,
}

impl Entry {
    fn is_live(&self) -> bool {
        self.ends.is_some_and(|ends| ends > Instant::now())
    }

    fn live_units(&self) -> u32 {
        if self.is_live() { self.units } else { 0 }
    }
}

/// The model of the store: the entries of each key and process.
#[derive(Clone, Default)]
struct Store(BTreeMap<(usize, u64), Entry>);

impl Store {
    fn held(&self, key: usize) -> u32 {
        self.0.range((key, 0)..(key + 1, 0)).map(|(_, entry)| entry.live_units()).sum()
    }

    fn holds(&self, key: usize, holder: u64, number: HeldNumber) -> bool {
        let entry = self.0.get(&(key, holder)).filter(|entry| entry.is_live());
        entry.is_some_and(|entry| entry.numbers.get(&number.index) == Some(&number))
    }

    /// Decides a check, as `in_flight.lua` does.
    fn acquire(
        &mut self,
        key: usize,
        holder: u64,
        number: HeldNumber,
        is_alone: bool,
        hold_time: Duration,
        bug: Option<Bug>,
    ) -> bool {
        let mut entry = self.0.get(&(key, holder)).cloned().unwrap_or_default();
        let others = self.held(key) - entry.live_units();
        if !entry.is_live() {
            entry = Entry::default();
        } else if is_alone {
            let is_newer = |held: &HeldNumber| {
                bug != Some(Bug::OvertakenCheckDropsNumbers)
                    && held.number.wrapping_sub(number.number) < 1 << 31
            };
            entry.numbers.retain(|_, held| is_newer(held));
            entry.units = entry.numbers.values().map(|held| held.units).sum();
        }
        if others + entry.units + number.units > LIMIT {
            return false;
        }
        entry.ends = Some(Instant::now() + hold_time);
        entry.units += number.units;
        entry.numbers.insert(number.index, number);
        self.0.insert((key, holder), entry);
        true
    }

    /// Changes what a process holds of a key, as `hold.lua` does.
    fn change(&mut self, key: usize, holder: u64, changes: &HoldChanges, bug: Option<Bug>) -> HeldList {
        let entry = self.0.entry((key, holder)).or_default();
        let was_live = entry.is_live();
        if !was_live && bug != Some(Bug::RenewalMakesEntry) {
            *entry = Entry::default();
        }
        if bug != Some(Bug::SurplusStays) {
            entry.units = entry.units.saturating_add_signed(-changes.surplus);
        }
        for release in &changes.releases {
            let held = entry.numbers.get(&release.index).filter(|held| held.number == release.number);
            let units = held.map(|held| held.units);
            if units.is_some() {
                entry.numbers.remove(&release.index);
            }
            let counted = (bug == Some(Bug::ReleaseSubtractsWithoutNumber)).then_some(release.units);
            entry.units = entry.units.saturating_sub(units.or(counted).unwrap_or(0));
        }
        for restore in changes.restores.iter().filter(|_| bug != Some(Bug::NoRestoring)) {
            let before = entry.numbers.get(&restore.index).copied().unwrap_or_default();
            if before.number != restore.number {
                entry.numbers.insert(restore.index, *restore);
                entry.units = entry.units + restore.units - before.units;
            }
        }
        let extends = !changes.restores.is_empty()
            || changes.renews && (was_live || bug == Some(Bug::RenewalMakesEntry));
        if extends && bug != Some(Bug::NoRenewal) {
            entry.ends = Some(Instant::now() + Duration::from_micros(changes.hold_micros));
        }
        let numbers = entry.numbers.values().filter(|_| changes.renews).copied().collect();
        HeldList { units: entry.units, numbers }
    }
}

/// A check without a reply.
struct UnansweredCheck {
    key: usize,
    pair: Arc<Keys>,
    number: HeldNumber,
    sent: Instant,
    hold_time: Duration,
}

/// A running request, which holds units.
struct Running {
    key: usize,
    pair: Arc<Keys>,
    number: HeldNumber,
    /// Whether the store did not hold its units all the time.
    was_missing: bool,
}

/// One process. After it is killed, another one takes its place.
struct Process {
    id: u64,
    pairs: HeldPairs,
    hold_time: Duration,
    began: Instant,
    stopped_until: Instant,
    /// The checks without a reply, and the requests that run, by their number.
    waiting: HashMap<u64, UnansweredCheck>,
    running: HashMap<u64, Running>,
    calls: HashMap<u64, HoldCall>,
    polls_at: Option<Instant>,
    /// The keys of which the last call was lost. The next one arrives, so that a renewal is at most one call late.
    lost: BTreeSet<usize>,
    /// The index of each key.
    keys: HashMap<Keys, usize>,
}

enum Event {
    /// A request arrives at a process.
    Request(usize),
    CheckAtStore {
        process: u64,
        request: u64,
        key: usize,
        number: HeldNumber,
        is_alone: bool,
        hold_time: Duration,
        deadline: Instant,
        reply: Option<Duration>,
    },
    CheckReply {
        process: u64,
        request: u64,
        admitted: bool,
    },
    CheckDeadline {
        process: u64,
        request: u64,
    },
    RequestEnds {
        process: u64,
        request: u64,
    },
    CallAtStore {
        process: u64,
        call: u64,
        pairs: Vec<(usize, HoldChanges)>,
        deadline: Instant,
        reply: Option<Duration>,
    },
    CallReply {
        process: u64,
        call: u64,
        lists: Vec<Option<HeldList>>,
    },
    CallTimeout {
        process: u64,
        call: u64,
    },
    Poll(u64),
    Fault,
}

struct Simulation {
    random: Random,
    faults: Faults,
    bug: Option<Bug>,
    names: KeyNames,
    checks: Vec<Check>,
    store: Store,
    /// An earlier state of the store, for a failover.
    replica: Store,
    processes: Vec<Process>,
    dead: Vec<(u64, Instant)>,
    events: BTreeMap<(Instant, u64), Event>,
    next: u64,
    /// Whether messages are lost, processes fail and requests arrive.
    is_chaos: bool,
    /// The keys of which more than the limit may run, until no more do.
    excused: BTreeSet<usize>,
    excused_until: Instant,
    unreachable_until: Instant,
    /// Before the store and the processes are compared, no request ends from this instant on, so that no release is on its way.
    quiet_from: Option<Instant>,
    violations: Vec<(Rule, String)>,
    admitted: u64,
    interrupted: u64,
}

impl Simulation {
    fn new(seed: u64, faults: Faults, bug: Option<Bug>) -> Self {
        let policy = Policy::in_flight("exports", LIMIT).unwrap().hold_time(HOLD_TIME).unwrap();
        let check = |key| {
            let key = PartitionKey::new("tenant", format!("{key}"));
            Check::new([Pair::new(key, policy.clone(), 1)]).unwrap()
        };
        let mut simulation = Self {
            random: Random(seed),
            faults,
            bug,
            names: KeyNames::default(),
            checks: (0..KEYS).map(check).collect(),
            store: Store::default(),
            replica: Store::default(),
            processes: Vec::new(),
            dead: Vec::new(),
            events: BTreeMap::new(),
            next: 0,
            is_chaos: true,
            excused: BTreeSet::new(),
            excused_until: Instant::now(),
            unreachable_until: Instant::now(),
            quiet_from: None,
            violations: Vec::new(),
            admitted: 0,
            interrupted: 0,
        };
        for _ in 0..PROCESSES {
            let process = simulation.new_process();
            simulation.processes.push(process);
        }
        simulation
    }

    fn new_process(&mut self) -> Process {
        let id = self.random.next();
        let keys = |check: &Check| {
            let pair = &check.pairs()[0];
            self.names.keys(check.namespace(), iter::once((&pair.key, &pair.policy)), Some(id))
        };
        Process {
            keys: self.checks.iter().map(keys).zip(0..).collect(),
            id,
            pairs: HeldPairs::default(),
            hold_time: HOLD_TIME,
            began: Instant::now(),
            stopped_until: Instant::now(),
            waiting: HashMap::new(),
            running: HashMap::new(),
            calls: HashMap::new(),
            polls_at: None,
            lost: BTreeSet::new(),
        }
    }

    fn violate(&mut self, rule: Rule, what: String) {
        self.violations.push((rule, what));
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.next += 1;
        self.events.insert((Instant::now() + after, self.next), event);
    }

    /// Returns the way of a message, or `None` if it is lost.
    fn way(&mut self, one_in: u64) -> Option<Duration> {
        let way = self.random.up_to(LATENCY);
        let is_lost =
            self.is_chaos && (self.random.one_in(one_in) || Instant::now() < self.unreachable_until);
        (!is_lost).then_some(way)
    }

    /// Returns a process that lives, unless it is stopped: then the event waits.
    fn process(&mut self, id: u64) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.id == id)
    }

    /// Runs until an instant.
    async fn run_until(&mut self, end: Instant) {
        while let Some((at, _)) =
            self.events.first_key_value().map(|(at, _)| *at).filter(|(at, _)| *at <= end)
        {
            if at > Instant::now() {
                advance(at - Instant::now()).await;
            }
            let Some((_, event)) = self.events.pop_first() else { break };
            self.handle(event);
            self.observe();
        }
        advance(end.saturating_duration_since(Instant::now())).await;
    }

    fn handle(&mut self, event: Event) {
        let receiver = match &event {
            Event::Request(index) => self.processes.get(*index).map(|process| process.id),
            Event::CheckReply { process, .. }
            | Event::CheckDeadline { process, .. }
            | Event::RequestEnds { process, .. }
            | Event::CallReply { process, .. }
            | Event::CallTimeout { process, .. }
            | Event::Poll(process) => Some(*process),
            Event::CheckAtStore { .. } | Event::CallAtStore { .. } | Event::Fault => None,
        };
        if let Some(id) = receiver {
            let Some(process) = self.process(id) else { return };
            if process.stopped_until > Instant::now() {
                let left = process.stopped_until - Instant::now();
                return self.schedule(left, event);
            }
        }
        match event {
            Event::Request(index) => self.request(index),
            event @ (Event::CheckAtStore { .. } | Event::CallAtStore { .. }) => self.handle_at_store(event),
            Event::CheckReply { process, request, admitted } => self.reply(process, request, admitted),
            Event::CheckDeadline { process: id, request } => {
                let bug = self.bug;
                let Some(process) = self.process(id) else { return };
                let Some(UnansweredCheck { pair, number, .. }) = process.waiting.remove(&request) else {
                    return;
                };
                if bug == Some(Bug::UnknownOutcomeIsForgotten) {
                    process.pairs.change(&pair, |pair| pair.make_free(number.index));
                } else {
                    process.pairs.change(&pair, |pair| pair.release(number.index, Instant::now() + LATENESS));
                }
            }
            Event::RequestEnds { .. } if self.quiet_from.is_some_and(|from| from <= Instant::now()) => {
                self.schedule(LATENCY, event);
            }
            Event::RequestEnds { process, request } => {
                let Some(process) = self.process(process) else { return };
                let Some(Running { pair, number, .. }) = process.running.remove(&request) else { return };
                process.pairs.change(&pair, |pair| pair.release(number.index, Instant::now()));
            }
            Event::CallReply { process, call, lists } => self.complete(process, call, Ok(lists)),
            Event::CallTimeout { process, call } => {
                self.complete(process, call, Err(BackendError::new(Reason::Timeout)))
            }
            Event::Poll(id) => {
                if let Some(process) = self.process(id) {
                    process.polls_at = None;
                }
            }
            Event::Fault => self.fault(),
        }
        if let Some(id) = receiver {
            self.poll(id);
        }
    }

    /// A message arrives at the store.
    fn handle_at_store(&mut self, event: Event) {
        match event {
            Event::CheckAtStore { process, request, key, number, is_alone, hold_time, deadline, reply }
                if Instant::now() <= deadline || self.faults == Faults::LateChecks =>
            {
                let admitted = self.store.acquire(key, process, number, is_alone, hold_time, self.bug);
                if let Some(way) = reply {
                    self.schedule(way, Event::CheckReply { process, request, admitted });
                }
            }
            Event::CallAtStore { process, call, pairs, deadline, reply } => {
                if Instant::now() > deadline {
                    return;
                }
                let (store, bug) = (&mut self.store, self.bug);
                let change =
                    |(key, changes): &(usize, HoldChanges)| Some(store.change(*key, process, changes, bug));
                let lists = pairs.iter().map(change).collect();
                if let Some(way) = reply {
                    self.schedule(way, Event::CallReply { process, call, lists });
                }
            }
            _ => {}
        }
    }

    /// A request asks the store for units.
    fn request(&mut self, index: usize) {
        if !self.is_chaos {
            return;
        }
        // The next check of a pair renews its entry, so a hold time that a lost check has shortened shows only if checks are rare.
        let gap = self.random.up_to(if self.faults == Faults::Reloads { ms(2_500) } else { ms(300) });
        self.schedule(gap, Event::Request(index));
        let (key, units) = (self.random.below(KEYS as u64) as usize, 1 + self.random.below(3) as u32);
        let check = &self.checks[key];
        let process = &mut self.processes[index];
        let hold_time = process.hold_time;
        let policy = Policy::in_flight("exports", LIMIT).unwrap().hold_time(hold_time).unwrap();
        let pair = Pair::new(check.pairs()[0].key.clone(), policy, units);
        let keys =
            self.names.keys(check.namespace(), iter::once((&pair.key, &pair.policy)), Some(process.id));
        let id = Arc::new(keys);
        let (mut number, is_alone) = process.pairs.draw(&id, 0, check.scope(), &pair).unwrap();
        self.next += 1;
        let (request, sent, process) = (self.next, Instant::now(), process.id);
        let waiting = UnansweredCheck { key, pair: id, number, sent, hold_time };
        self.process(process).unwrap().waiting.insert(request, waiting);
        let deadline = sent + DEADLINE;
        self.schedule(DEADLINE, Event::CheckDeadline { process, request });
        let late =
            if self.faults == Faults::LateChecks && self.random.one_in(10) { LATE } else { Duration::ZERO };
        if let Some(way) = self.way(10) {
            let reply = self.way(10);
            let is_used_twice = self.bug == Some(Bug::NumbersAreUsedTwice);
            let running = self.process(process).and_then(|of| of.running.values().find(|of| of.key == key));
            if let Some(Running { number: used, .. }) = running
                && is_used_twice
            {
                number = HeldNumber { units: number.units, ..*used };
            }
            self.schedule(
                way + late,
                Event::CheckAtStore { process, request, key, number, is_alone, hold_time, deadline, reply },
            );
        }
    }

    fn reply(&mut self, id: u64, request: u64, admitted: bool) {
        let lasts = self.random.up_to(ms(6_000)) / if self.random.one_in(2) { 20 } else { 1 };
        let Some(process) = self.process(id) else { return };
        let Some(UnansweredCheck { key, pair, number, sent, hold_time }) = process.waiting.remove(&request)
        else {
            return;
        };
        if !admitted {
            return process.pairs.change(&pair, |pair| pair.make_free(number.index));
        }
        process.pairs.change(&pair, |pair| pair.confirm(number.index, number.units, sent, hold_time));
        process.running.insert(request, Running { key, pair, number, was_missing: false });
        self.admitted += 1;
        self.schedule(lasts, Event::RequestEnds { process: id, request });
    }

    fn complete(&mut self, id: u64, call: u64, lists: Result<Vec<Option<HeldList>>, BackendError>) {
        let bug = self.bug;
        let Some(process) = self.process(id) else { return };
        let Some(mut call) = process.calls.remove(&call) else { return };
        let mut lists = lists;
        if bug == Some(Bug::ReleaseIsNotRepeated) && lists.is_err() {
            // As if the releases, and nothing else, were confirmed.
            call.pairs.iter_mut().for_each(|(_, changes)| changes.renews = false);
            lists = Ok(call.pairs.iter().map(|_| Some(HeldList { units: 0, numbers: Vec::new() })).collect());
        }
        if bug == Some(Bug::UnknownNumbersStay)
            && let Ok(lists) = &mut lists
        {
            // As if the store listed only what the process holds.
            for list in lists.iter_mut().flatten() {
                let is_held =
                    |number: &HeldNumber| process.running.values().any(|running| running.number == *number);
                list.numbers.retain(is_held);
                list.units = list.numbers.iter().map(|number| number.units).sum();
            }
        }
        let outcome = process.pairs.complete(&call, &lists);
        self.interrupted += outcome.interrupted;
    }

    /// Sends the calls of a process that are due.
    fn poll(&mut self, id: u64) {
        let Some(process) = self.process(id) else { return };
        for call in process.pairs.due(Instant::now()) {
            self.next += 1;
            let (number, deadline) = (self.next, call.end);
            let (bug, is_reachable) = (self.bug, Instant::now() >= self.unreachable_until);
            let Some(process) = self.process(id) else { return };
            let pairs = call.pairs.iter().map(|(keys, changes)| {
                let (key, mut changes) = (process.keys[&**keys], changes.clone());
                let mut others = process.running.values().filter(|request| request.key == key);
                if bug == Some(Bug::ReleaseOfAnotherNumber) {
                    for release in &mut changes.releases {
                        *release = others.next().map_or(*release, |of| of.number);
                    }
                }
                (key, changes)
            });
            let pairs: Vec<(usize, HoldChanges)> = pairs.collect();
            process.calls.insert(number, call);
            let keys: BTreeSet<usize> = pairs.iter().map(|(key, _)| *key).collect();
            let arrives = is_reachable && !process.lost.is_disjoint(&keys);
            process.lost.retain(|key| !keys.contains(key));
            self.schedule(deadline - Instant::now(), Event::CallTimeout { process: id, call: number });
            let way = if arrives { Some(self.random.up_to(LATENCY)) } else { self.way(12) };
            if way.is_none()
                && let Some(process) = self.process(id)
            {
                process.lost.extend(keys);
            }
            if let Some(way) = way {
                let reply = self.way(12);
                self.schedule(way, Event::CallAtStore { process: id, call: number, pairs, deadline, reply });
            }
        }
        let Some(process) = self.process(id) else { return };
        let Some(next) = process.pairs.next_due() else { return };
        if process.polls_at.is_none_or(|at| next < at) {
            process.polls_at = Some(next);
            let after = next.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
            self.schedule(after, Event::Poll(id));
        }
    }

    /// A fault happens, and the next one later.
    fn fault(&mut self) {
        if !self.is_chaos {
            return;
        }
        let gap = ms(300) + self.random.up_to(ms(1_500));
        self.schedule(gap, Event::Fault);
        let index = self.random.below(PROCESSES as u64) as usize;
        match (self.random.below(4), self.faults) {
            (0, _) => self.kill(index),
            (1 | 2, Faults::LongStops) => {
                let longest = HOLD_TIME * 2;
                if self.random.one_in(2) {
                    let until = Instant::now() + self.random.up_to(longest);
                    let process = &mut self.processes[index];
                    process.stopped_until = process.stopped_until.max(until);
                } else {
                    self.unreachable_until = Instant::now() + self.random.up_to(longest);
                }
                self.excuse(longest);
            }
            (1 | 2, Faults::LostData) => {
                match self.random.below(3) {
                    0 => self.store = Store::default(),
                    1 => std::mem::swap(&mut self.store, &mut self.replica),
                    _ => {
                        let key = self.random.below(KEYS as u64) as usize;
                        self.store.0.retain(|(of, _), _| *of != key);
                    }
                }
                self.excuse(self.faults.agrees_after() + HOLD_TIME / 2);
            }
            (1 | 2, Faults::Reloads) => {
                let hold_time = &mut self.processes[index].hold_time;
                *hold_time = if *hold_time == HOLD_TIME { LONG_HOLD_TIME } else { HOLD_TIME };
            }
            // The next renewal, and one that is lost, still arrive within the hold time.
            _ => {
                let time = self.random.up_to(HOLD_TIME / 4);
                let process = &mut self.processes[index];
                if process.stopped_until + HOLD_TIME <= Instant::now()
                    || process.stopped_until == process.began
                {
                    process.stopped_until = Instant::now() + time;
                }
            }
        }
        self.replica = self.store.clone();
    }

    fn kill(&mut self, index: usize) {
        let process = self.new_process();
        let dead = std::mem::replace(&mut self.processes[index], process);
        self.dead.push((dead.id, Instant::now()));
        self.schedule(ms(1), Event::Request(index));
    }

    fn excuse(&mut self, time: Duration) {
        self.excused.extend(0..KEYS);
        self.excused_until = self.excused_until.max(Instant::now() + time);
    }

    /// Checks what must hold at every instant.
    fn observe(&mut self) {
        if self.faults == Faults::LateChecks {
            self.excuse(Duration::ZERO);
        }
        let mut running = [0; KEYS];
        for process in &mut self.processes {
            for request in process.running.values_mut() {
                running[request.key] += request.number.units;
                request.was_missing |= !self.store.holds(request.key, process.id, request.number);
            }
        }
        for (key, units) in running.into_iter().enumerate() {
            if units <= LIMIT {
                if Instant::now() >= self.excused_until {
                    self.excused.remove(&key);
                }
            } else if !self.excused.contains(&key) {
                self.violate(Rule::NeverTooMany, format!("{units} of {LIMIT} units of key {key} run"));
            }
        }
    }

    /// Checks what must hold after a time without faults and new requests.
    fn check_agreement(&mut self) {
        let mut found = Vec::new();
        for process in &self.processes {
            for key in 0..KEYS {
                let of_key = process.running.values().filter(|request| request.key == key);
                let mut held: Vec<HeldNumber> = of_key.map(|request| request.number).collect();
                held.sort_by_key(|number| number.index);
                let entry = self.store.0.get(&(key, process.id)).filter(|entry| entry.is_live());
                let stored: Vec<HeldNumber> =
                    entry.map(|entry| entry.numbers.values().copied().collect()).unwrap_or_default();
                let units: u32 = held.iter().map(|number| number.units).sum();
                // Without a unit in flight, no renewal follows. What a late check, an older replica or a release that was given up has left
                // ends with the entry, or with the next charge.
                let is_left = !matches!(self.faults, Faults::Usual | Faults::Reloads) && held.is_empty();
                if (stored != held || entry.map_or(0, |entry| entry.units) != units) && !is_left {
                    let units = entry.map(|entry| entry.units);
                    found.push((
                        Rule::StoreAgrees,
                        format!("key {key}: the store has {units:?}: {stored:?}, and {held:?} run"),
                    ));
                }
            }
            for request in process.running.values() {
                if request.was_missing && !process.pairs.was_interrupted(&request.pair, request.number.index)
                {
                    found.push((Rule::InterruptionIsReported, format!("{:?} was missing", request.number)));
                }
            }
        }
        for (id, died) in &self.dead {
            let units: u32 =
                (0..KEYS).filter_map(|key| self.store.0.get(&(key, *id))).map(Entry::live_units).sum();
            // The last check may arrive at its deadline, or later in a run with late checks.
            let late = if self.faults == Faults::LateChecks { LATE + LATENCY } else { DEADLINE };
            if died.elapsed() > self.faults.longest_hold_time() + late && units > 0 {
                found.push((Rule::DeadProcessHoldsNothing, format!("{units} units of a dead process")));
            }
        }
        if matches!(self.faults, Faults::Usual | Faults::Reloads) && self.interrupted > 0 {
            found.push((Rule::NothingIsInterrupted, format!("{} units", self.interrupted)));
        }
        self.violations.extend(found);
    }
}

/// Runs a seed. Returns the violated rules and the number of admitted requests.
fn run(seed: u64, faults: Faults, bug: Option<Bug>) -> (Vec<(Rule, String)>, u64) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut simulation = Simulation::new(seed, faults, bug);
        for _ in 0..ROUNDS {
            simulation.is_chaos = true;
            for process in 0..PROCESSES {
                simulation.schedule(ms(1), Event::Request(process));
            }
            simulation.schedule(ms(500), Event::Fault);
            let end = Instant::now() + HOLD_TIME * 3;
            simulation.run_until(end).await;
            simulation.is_chaos = false;
            // What was lost before is repeated at the latest after the time of a call, and stopped processes go on.
            let resumed = simulation.processes.iter().map(|process| process.stopped_until).max();
            let calm = resumed.max(Some(Instant::now())).unwrap_or_else(Instant::now) + HOLD_TIME / 6;
            simulation.quiet_from = Some(calm + faults.agrees_after() - 5 * LATENCY);
            simulation.run_until(calm + faults.agrees_after()).await;
            simulation.check_agreement();
            simulation.quiet_from = None;
        }
        (simulation.violations, simulation.admitted)
    })
}

fn seeds() -> std::ops::Range<u64> {
    let variable = |name| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    match variable("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SIMULATION_SEEDS").unwrap_or(SEEDS),
    }
}

const ALL_FAULTS: [Faults; 5] =
    [Faults::Usual, Faults::LostData, Faults::LongStops, Faults::LateChecks, Faults::Reloads];

#[test]
fn holders_obey_all_rules_under_fault_injection() {
    let mut admitted = 0;
    for seed in seeds() {
        for faults in ALL_FAULTS {
            let (violations, of_run) = run(seed, faults, None);
            assert!(
                violations.is_empty(),
                "SIMULATION_SEED={seed} replays this run with {faults:?}: {violations:#?}"
            );
            admitted += of_run;
        }
    }
    println!("{admitted} requests were admitted");
    assert!(admitted > 100 * (seeds().end - seeds().start), "the processes do some work");
}

#[test]
fn rules_find_each_planted_bug() {
    let bugs = [
        (Bug::ReleaseIsNotRepeated, Faults::Usual, Rule::StoreAgrees),
        (Bug::ReleaseSubtractsWithoutNumber, Faults::Usual, Rule::NeverTooMany),
        (Bug::RenewalMakesEntry, Faults::LongStops, Rule::InterruptionIsReported),
        (Bug::NoRenewal, Faults::Usual, Rule::NeverTooMany),
        (Bug::ReleaseOfAnotherNumber, Faults::Usual, Rule::NeverTooMany),
        (Bug::OvertakenCheckDropsNumbers, Faults::Usual, Rule::NeverTooMany),
        (Bug::NoRestoring, Faults::LostData, Rule::StoreAgrees),
        (Bug::NumbersAreUsedTwice, Faults::Usual, Rule::NothingIsInterrupted),
        (Bug::SurplusStays, Faults::LateChecks, Rule::StoreAgrees),
        (Bug::UnknownOutcomeIsForgotten, Faults::Usual, Rule::StoreAgrees),
        (Bug::UnknownNumbersStay, Faults::LateChecks, Rule::StoreAgrees),
    ];
    for (bug, faults, rule) in bugs {
        let found = (0..400)
            .find(|seed| run(*seed, faults, Some(bug)).0.iter().any(|(violated, _)| *violated == rule));
        println!("{bug:?}: {rule:?} at seed {found:?}");
        assert!(found.is_some(), "{rule:?} must find {bug:?}");
    }
}
