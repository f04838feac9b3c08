//! A simulation of several processes on one store, and the rules that every run must obey: random loads, latencies and clock rates,
//! crashes, lost replies, steps of the clock and lost data. The same seed replays the same load and the same faults. The order in which
//! tokio wakes waiting checks may differ.

use std::{
    cell::RefCell,
    fmt,
    future::pending,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{LocalSet, spawn_local},
    time::{Instant, sleep, timeout},
};
use tower_sliding_window::{
    Algorithm, Decision, Limiter, PartitionKey, Policy,
    backend::{Backend, BackendError, Check, Pair, Purpose, Refund},
    policy::Lease,
};

use super::store::{Fault, Moment, Store};

const MILLISECOND: Duration = Duration::from_millis(1);
const DEADLINE: Duration = Duration::from_millis(100);
/// Longer than a request and its reply take.
const ROUND_TRIP: Duration = Duration::from_millis(10);
const PROCESSES: u64 = 4;
/// The quota of a key that one process uses alone.
const OWN_QUOTA: u32 = 10_000;
/// A lease takes at most this part of the quota: an eighth.
const SHARE: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No window contains more than the quota. After a step of the clock and after lost data, at most the units that were leased at
    /// that moment are beyond it.
    QuotaHolds,
    /// Every leased unit is granted, returned, or counted as lost.
    UnitsAreAccounted,
    /// No lease is larger than its bound or than an eighth of the quota.
    LeaseWithinBound,
    /// The remaining quota includes the units that are left of the lease.
    RemainingIncludesLease,
    /// A reset ends the lease, and one that is requested.
    ResetEndsLease,
    /// Another quota ends the lease.
    QuotaChangeEndsLease,
    /// A shadow pair takes no leased units.
    ShadowPairUsesNoLease,
}

pub struct Violation {
    pub rule: Rule,
    what: String,
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// A small random generator (SplitMix64).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low` to `high`.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    quota: u32,
    window: Duration,
    precision: Duration,
    up_to: u32,
    /// Whether leases are requested before they are needed.
    is_ahead: bool,
    /// Whether processes crash, replies are lost and callers give up.
    faults: bool,
    /// Whether the store's clock is set forward and back, and the store loses data.
    steps: bool,
    /// Whether some checks are reservations. Their refunds would hide the returns of leased units.
    settles: bool,
}

impl Settings {
    fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        let precision = Duration::from_micros(random.within(20_000, 150_000));
        let steps = seed % 3 == 2;
        Self {
            quota: random.within(5, 400) as u32,
            window: precision * random.within(2, 8) as u32 + Duration::from_micros(random.within(0, 10_000)),
            precision,
            up_to: random.within(1, 60) as u32,
            is_ahead: seed / 6 % 2 == 1,
            faults: !seed.is_multiple_of(3),
            steps,
            settles: seed.is_multiple_of(2) && !steps,
        }
    }

    fn policy(&self, name: &str, quota: u32) -> Policy {
        let algorithm = Algorithm::SlidingBuckets { precision: self.precision };
        let policy = Policy::new(name, quota, self.window).unwrap().with_algorithm(algorithm).unwrap();
        let lease = Lease::up_to(self.up_to);
        policy.leased(if self.is_ahead { lease.ahead() } else { lease }).unwrap()
    }

    /// Returns the mean time between the requests of a process, by phases that repeat: a burst, which makes the next lease large; few
    /// requests, so that units are left at the end of a bucket; more than the quota, so that a unit that returns is used at once; and
    /// silence, so that nothing is used.
    fn gap(&self, now: Duration) -> Duration {
        let (window, precision) = (self.window, self.precision);
        let flood = window / self.quota;
        let phases = [
            (precision * 5 / 4, flood),
            (window * 2 / 3, precision / 4),
            (window, flood),
            (window + 2 * precision, window / 2),
        ];
        let round: Duration = phases.iter().map(|(length, _)| *length).sum();
        let mut left = Duration::from_micros((now.as_micros() % round.as_micros()) as u64);
        for (length, gap) in phases {
            if left < length {
                return gap;
            }
            left -= length;
        }
        flood
    }
}

/// A process: its connection to the store, and what the store has done for it.
#[derive(Clone)]
struct Process(Arc<Connection>);

struct Connection {
    store: Store,
    has_crashed: AtomicBool,
    /// The units of lease requests that are in flight, or whose replies were lost.
    unanswered: AtomicU64,
    refunded: AtomicU64,
    /// The largest request for more units than may be leased.
    above_bound: AtomicU64,
    /// The number of requests for units of the next bucket.
    ahead: AtomicU64,
}

impl Process {
    fn new(store: &Store) -> Self {
        let (store, zero) = (store.clone(), AtomicU64::default);
        let has_crashed = AtomicBool::default();
        let (unanswered, refunded, above_bound, ahead) = (zero(), zero(), zero(), zero());
        Self(Arc::new(Connection { store, has_crashed, unanswered, refunded, above_bound, ahead }))
    }

    async fn wait_if_crashed(&self) {
        if self.0.has_crashed.load(Ordering::SeqCst) {
            pending::<()>().await;
        }
    }
}

impl Backend for Process {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.wait_if_crashed().await;
        let Connection { store, unanswered, above_bound, .. } = &*self.0;
        let is_ahead = check.purpose() == Purpose::LeaseAhead;
        if check.purpose() != Purpose::Lease && !is_ahead {
            return store.check(check).await;
        }
        self.0.ahead.fetch_add(is_ahead.into(), Ordering::SeqCst);
        let units = |pair: &Pair| if is_ahead { pair.cost } else { pair.lease };
        for pair in check.pairs() {
            let bound = pair.policy.lease().unwrap().units().min(pair.policy.quota().unwrap() / SHARE);
            if units(pair) > bound {
                above_bound.fetch_max(units(pair).into(), Ordering::SeqCst);
            }
        }
        let asked: u64 = check.pairs().iter().map(|pair| u64::from(units(pair))).sum();
        // If the limiter drops this future, it stays so.
        unanswered.fetch_add(asked, Ordering::SeqCst);
        let answer = store.check(check).await;
        self.wait_if_crashed().await;
        unanswered.fetch_sub(asked, Ordering::SeqCst);
        answer
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.wait_if_crashed().await;
        let at = self.0.store.refund(refund).await;
        let units = refund.pairs().iter().map(|pair| u64::from(pair.units)).sum();
        self.0.refunded.fetch_add(units, Ordering::SeqCst);
        at
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        self.wait_if_crashed().await;
        self.0.store.reset(pairs).await
    }

    fn denials_hold(&self) -> bool {
        true
    }

    fn grants_leases(&self) -> bool {
        true
    }
}

/// A limiter of a process.
#[derive(Clone)]
struct Member {
    process: Process,
    limiter: Limiter,
}

impl Member {
    fn new(store: &Store, settings: Settings) -> Self {
        let process = Process::new(store);
        let builder = Limiter::builder(process.clone()).policy(settings.policy("hot", settings.quota));
        let limiter = builder.deadline(DEADLINE).breaker(None).build().unwrap();
        Self { process, limiter }
    }

    /// Returns the largest number of units that are leased and neither granted nor returned.
    fn outstanding(&self) -> u64 {
        let (stats, connection) = (self.limiter.stats(), &self.process.0);
        let charged = stats.leased_units + connection.unanswered.load(Ordering::SeqCst);
        charged - stats.leased_units_granted - connection.refunded.load(Ordering::SeqCst)
    }
}

/// What all tasks of a run share.
#[derive(Clone)]
struct World {
    settings: Settings,
    store: Store,
    /// The processes that have not crashed.
    members: Rc<RefCell<Vec<Member>>>,
    /// All admissions, with the units as finally settled.
    grants: Rc<RefCell<Vec<(Moment, u32)>>>,
    leased: Rc<RefCell<usize>>,
    /// The units that may be beyond the quota.
    allowance: Rc<RefCell<u64>>,
    violations: Rc<RefCell<Vec<Violation>>>,
}

/// The result of a run.
pub struct Run {
    /// The number of checks that were granted from leases.
    pub leased: usize,
    /// The number of requests for units of the next bucket, of the processes that have not crashed.
    pub ahead: u64,
    pub violations: Vec<Violation>,
}

/// Runs a seed with a clock of its own.
pub fn run(seed: u64) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(simulate(seed))
}

async fn simulate(seed: u64) -> Run {
    let (settings, mut random) = (Settings::of(seed), Random(seed ^ 0x5eed));
    let latency = [(); 2].map(|()| Duration::from_micros(random.within(0, 3_000)));
    let store = Store::new().with_latency(latency[0], latency[1]);
    let store = store.with_drift(random.within(0, 1_000) as i64 - 500);
    let members: Vec<_> = (0..PROCESSES).map(|_| Member::new(&store, settings)).collect();
    let world = World {
        settings,
        store,
        members: Rc::new(RefCell::new(members)),
        grants: Rc::default(),
        leased: Rc::default(),
        allowance: Rc::default(),
        violations: Rc::default(),
    };
    let local = LocalSet::new();
    for number in 0..PROCESSES {
        local.spawn_local(world.clone().process(number as usize, Random(seed << 8 ^ number)));
    }
    if settings.steps {
        local.spawn_local(world.clone().steps(Random(seed << 8 ^ PROCESSES)));
    }
    local.await;
    let members = world.members.take();
    for member in &members {
        member.limiter.drain().await;
        world.check_units(member);
    }
    world.check_quota();
    let ahead = members.iter().map(|member| member.process.0.ahead.load(Ordering::SeqCst)).sum();
    Run { leased: world.leased.take(), ahead, violations: world.violations.take() }
}

impl World {
    fn report(&self, rule: Rule, what: impl fmt::Display) {
        self.violations.borrow_mut().push(Violation { rule, what: what.to_string() });
    }

    /// Sends requests, as one process.
    async fn process(self, number: usize, mut random: Random) {
        let (start, settings) = (Instant::now(), self.settings);
        let mut own_keys = 0;
        while start.elapsed() < 12 * settings.window {
            let gap = settings.gap(start.elapsed()).as_micros() as u64;
            sleep(Duration::from_micros(random.within(0, 2 * gap))).await;
            if settings.faults && random.one_in(100) {
                // The process crashes, with what it holds, and starts again.
                let new = Member::new(&self.store, settings);
                let old = std::mem::replace(&mut self.members.borrow_mut()[number], new);
                old.process.0.has_crashed.store(true, Ordering::SeqCst);
            }
            if settings.faults && random.one_in(50) {
                self.store.fail([[Fault::LostReply, Fault::Refused][random.within(0, 1) as usize]]);
            }
            let member = self.members.borrow()[number].clone();
            if random.one_in(20) {
                own_keys += 1;
                let key = PartitionKey::new("own", format!("{number} {own_keys}"));
                spawn_local(self.clone().use_own_key(member.limiter.clone(), key, random.clone()));
            }
            spawn_local(self.clone().request(member, random.clone()));
            random.next();
        }
        sleep(2 * DEADLINE + settings.precision).await;
    }

    /// Sets the clock of the store, and loses its data.
    async fn steps(self, mut random: Random) {
        let window = self.settings.window.as_micros() as u64;
        for _ in 0..3 {
            sleep(Duration::from_micros(random.within(2 * window, 3 * window))).await;
            let by = random.within(1, window / 2) as i64;
            match random.within(0, 2) {
                // It steps back by less than a window, so time stands still for the pairs.
                0 => self.store.shift_clock(-by),
                1 => {
                    self.allow();
                    self.store.shift_clock(by);
                }
                _ => {
                    self.allow();
                    self.store.lose(Pair::new(alice(), self.settings.policy("hot", 1), 1)).await;
                }
            }
        }
    }

    /// The units that are leased now may be beyond the quota.
    fn allow(&self) {
        let outstanding: u64 = self.members.borrow().iter().map(Member::outstanding).sum();
        *self.allowance.borrow_mut() += outstanding;
    }

    /// Sends a check, a reservation that is settled later, or a check that its caller drops.
    async fn request(self, Member { limiter, process }: Member, mut random: Random) {
        let (store, settings) = (&self.store, self.settings);
        let cost = random.within(1, 3) as u32;
        let patience = if settings.faults { random.within(1, 40_000) } else { 1_000_000 };
        let patience = Duration::from_micros(patience);
        let record = |decision: &Decision, units: u32| {
            // A leased decision is made now, and that of the store at its instant.
            let is_leased = decision.is_leased();
            let moment = if is_leased { store.moment() } else { store.moment_of(decision) };
            *self.leased.borrow_mut() += usize::from(is_leased);
            self.grants.borrow_mut().push((moment, units));
        };
        if process.0.has_crashed.load(Ordering::SeqCst) {
            return;
        }
        if settings.settles && random.one_in(4) {
            let used = random.within(0, u64::from(cost)) as u32;
            if let Ok(Ok(reservation)) = timeout(patience, limiter.reserve((alice(), cost))).await {
                record(reservation.decision().unwrap(), used);
                sleep(Duration::from_micros(random.within(0, 50_000))).await;
                reservation.settle(used).await;
            }
        } else if let Ok(Ok(decision)) = timeout(patience, limiter.check((alice(), cost))).await
            && decision.is_admitted()
        {
            record(&decision, cost);
        }
    }

    /// Uses a key that no other task uses, and then resets it, changes its quota, or checks it as a shadow.
    async fn use_own_key(self, limiter: Limiter, key: PartitionKey, mut random: Random) {
        let pair = |quota| Pair::new(key.clone(), self.settings.policy("own", quota), 1);
        let check = |pair: Pair| limiter.check([pair]);
        let bucket = |at| at / self.settings.precision.as_micros() as u64;
        let (begun, mut is_leased) = (bucket(self.store.now_micros()), false);
        let shift = self.store.shift();
        for used in 1..=random.within(4, 12) as u32 {
            let Ok(decision) = check(pair(OWN_QUOTA)).await else { return };
            let remaining = decision.statuses()[0].remaining();
            // At the end of the bucket, units may be on their way to the store. After a step of its clock, the end is not known.
            let soon = self.store.now_micros() + ROUND_TRIP.as_micros() as u64;
            if bucket(soon) != begun || self.store.shift() != shift {
                return;
            }
            is_leased |= decision.is_leased();
            // The lost reply to a lease ahead is not that of a check.
            if remaining < OWN_QUOTA - used && self.settings.is_ahead && self.settings.faults {
                return;
            }
            if remaining != OWN_QUOTA - used {
                self.report(Rule::RemainingIncludesLease, format!("{remaining} after {used} units"));
            }
        }
        if !is_leased {
            return;
        }
        match random.within(0, 2) {
            0 => {
                let delay = random.within(0, 4) as u32 * MILLISECOND;
                let reset = async {
                    sleep(delay).await;
                    limiter.reset([pair(OWN_QUOTA)]).await
                };
                // Until then, other checks request leases.
                let checks = async {
                    loop {
                        let _ = check(pair(OWN_QUOTA)).await;
                        sleep(MILLISECOND).await;
                    }
                };
                let reset = tokio::select! {
                    biased;
                    reset = reset => reset,
                    () = checks => return,
                };
                if reset.is_ok() && check(pair(OWN_QUOTA)).await.is_ok_and(|decision| decision.is_leased()) {
                    self.report(Rule::ResetEndsLease, "a check after a reset is leased");
                }
            }
            1 => {
                let decision = check(pair(OWN_QUOTA + 1)).await;
                if decision.is_ok_and(|decision| decision.is_leased()) {
                    self.report(Rule::QuotaChangeEndsLease, "a check of another quota is leased");
                }
            }
            _ => {
                let decision = check(pair(OWN_QUOTA).shadow()).await;
                if decision.is_ok_and(|decision| decision.is_leased()) {
                    self.report(Rule::ShadowPairUsesNoLease, "a check of a shadow pair is leased");
                }
            }
        }
    }

    /// Checks the units of a process that has returned all leases.
    fn check_units(&self, member: &Member) {
        let (stats, connection) = (member.limiter.stats(), &member.process.0);
        let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let (unanswered, refunded) = (load(&connection.unanswered), load(&connection.refunded));
        let (returned, lost) = (stats.leased_units_returned, stats.leased_units_lost);
        let charged = stats.leased_units + unanswered;
        let is_accounted = charged == stats.leased_units_granted + returned + lost;
        let is_refunded = (returned..=returned + lost).contains(&refunded) || self.settings.settles;
        if !is_accounted || !is_refunded {
            let what = format!("{unanswered} without an answer, {refunded} refunded: {stats:?}");
            self.report(Rule::UnitsAreAccounted, what);
        }
        let above = load(&connection.above_bound);
        if above > 0 {
            self.report(Rule::LeaseWithinBound, format!("{above} units: {:?}", self.settings));
        }
    }

    fn check_quota(&self) {
        let (window, allowed) = (self.settings.window.as_micros() as u64, self.allowance.take());
        let mut grants = self.grants.take();
        grants.sort_unstable();
        for grants in grants.chunk_by(|(a, _), (b, _)| a.losses == b.losses) {
            let most = most(grants, window);
            if u64::from(most) > u64::from(self.settings.quota) + allowed {
                let what = format!("{most} units in a window, {allowed} are allowed: {:?}", self.settings);
                self.report(Rule::QuotaHolds, what);
            }
        }
    }
}

/// Returns the largest number of units in a half-open window. The admissions are in the order of their instants.
fn most(grants: &[(Moment, u32)], window: u64) -> u32 {
    let (mut most, mut units, mut first) = (0, 0, 0);
    for (moment, cost) in grants {
        units += cost;
        while grants[first].0.at + window <= moment.at {
            units -= grants[first].1;
            first += 1;
        }
        most = most.max(units);
    }
    most
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}
