//! The order of writes: if the user lacks permission for any one command of a call, every key stays valid.

use std::{collections::BTreeSet, slice, time::Duration};

use tower_sliding_window::{
    Algorithm, MemoryBackend, Policy, RedisBackend,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason, Refund},
    policy::{Period, Rate, Zone},
    testing::ManualClock,
};

use super::{
    access::{NEEDED, allow, url},
    admin::{Admin, Monitor},
    rig::{self, Reserved, policy},
};
use crate::support::server::{Engine, Server};

const WINDOW: Duration = Duration::from_secs(80);
const STEP: Duration = Duration::from_secs(1);
const QUOTA: u32 = 1_000;
const COST: u32 = 3;
const LEASED: u32 = 4;
/// What an injected clock adds to every time to live.
const EXTRA_TTL: Duration = Duration::from_secs(3_600);
/// More than the server's own clock moves between a call and the reading of the time to live.
const SLACK: Duration = Duration::from_secs(10);
/// Moves all keys nearer to their end, as if the server's own clock had moved with the injected one.
const SHORTEN_TTL: &str = "for _, key in ipairs(redis.call('KEYS', '*')) do \
    redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1]) end";

/// The refunds before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Refunded {
    Nothing,
    /// A part of a charge in the middle, and the charge behind it.
    Middle,
    /// The ten charges behind the oldest one.
    Oldest,
    /// The ten charges before the newest one.
    Newest,
    AllButNewest,
    All,
    /// Nothing. The newest charge is a debit beyond the quota.
    NothingOfDebit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Check(Purpose),
    Lease,
    /// The answer of an API to the newest charge.
    Answer,
    /// Refunds all or one of the units of the charge at a position.
    Refund(usize, bool),
    Reset,
}

/// A call, and the charges and refunds before it.
#[derive(Clone, Debug)]
struct Scenario {
    policies: Vec<Policy>,
    charges: usize,
    refunded: Refunded,
    /// The time between the last of the charges and the call.
    idle: Duration,
    call: Call,
}

impl Scenario {
    /// Returns what the state before the call depends on, besides the policies.
    fn preparation(&self) -> (usize, Refunded, Duration) {
        (self.charges, self.refunded, self.idle)
    }

    /// Charges and refunds, and then waits.
    async fn prepare(
        &self,
        backend: &impl Backend,
        clock: &ManualClock,
        mut admin: Option<&mut Admin>,
    ) -> Vec<Reserved> {
        let mut advance = |by: Duration| {
            clock.advance(by);
            if let Some(admin) = &mut admin {
                admin.query::<()>(&["EVAL", SHORTEN_TTL, "0", &by.as_millis().to_string()]);
            }
        };
        let mut reserved = Vec::new();
        for _ in 0..self.charges {
            reserved.push(rig::reserve(backend, &self.policies, 2).await);
            advance(STEP);
        }
        let (count, mut refunds) = (self.charges, Vec::new());
        match self.refunded {
            Refunded::Nothing => {}
            Refunded::Middle => {
                backend.refund(&reserved[count / 2].refund(1)).await.unwrap();
                refunds.push(count / 2 + 1);
            }
            Refunded::Oldest => refunds.extend(1..11),
            Refunded::Newest => refunds.extend(count - 11..count - 1),
            Refunded::AllButNewest => refunds.extend(0..count - 1),
            Refunded::All => refunds.extend(0..count),
            Refunded::NothingOfDebit => {
                let check = rig::check(&self.policies, QUOTA + 50, Purpose::Debit);
                let decision = backend.check(&check).await.unwrap();
                reserved.push(Reserved { check, decision });
            }
        }
        for index in refunds {
            backend.refund(&reserved[index].refund(0)).await.unwrap();
        }
        advance(self.idle);
        reserved
    }

    fn check(&self, purpose: Purpose, lease: u32) -> Check {
        let pairs = self.policies.iter().map(|policy| {
            let mut pair = Pair::new(rig::alice(), policy.clone(), COST);
            pair.lease = lease;
            pair
        });
        Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(purpose)
    }

    async fn call(&self, backend: &impl Backend, reserved: &[Reserved]) -> Result<(), BackendError> {
        match self.call {
            Call::Check(purpose) => backend.check(&self.check(purpose, 0)).await.map(|_| ()),
            Call::Lease => backend.check(&self.check(Purpose::Lease, LEASED)).await.map(|_| ()),
            Call::Answer => {
                let at_micros = reserved.last().expect("a charge").decision.at_micros();
                let purpose = Purpose::leave_at_most(at_micros, u64::MAX);
                backend.check(&self.check(purpose, 0)).await.map(|_| ())
            }
            Call::Refund(index, all) => {
                backend.refund(&reserved[index].refund(u32::from(!all))).await.map(|_| ())
            }
            Call::Reset => backend.reset(&self.check(Purpose::Charge, 0)).await.map(|_| ()),
        }
    }

    /// Returns the decisions about each policy, without the call or after it.
    async fn reference(&self, is_called: bool) -> Vec<Vec<String>> {
        let clock = ManualClock::new();
        let backend = MemoryBackend::new().with_clock(&clock).keep_idle_for(EXTRA_TTL);
        let reserved = self.prepare(&backend, &clock, None).await;
        if is_called && self.call == Call::Lease {
            let _ = rig::reserve(&backend, &self.policies, COST + LEASED).await;
        } else if is_called {
            self.call(&backend, &reserved).await.unwrap();
        }
        let (at, mut decisions) = (clock.now_micros(), Vec::new());
        for index in 0..self.policies.len() {
            clock.set_micros(at);
            decisions.push(self.observe(&backend, &clock, &reserved, index).await.unwrap());
        }
        decisions
    }

    /// Returns the decisions of peeks, and of charges among refunds, about one policy.
    async fn observe(
        &self,
        backend: &impl Backend,
        clock: &ManualClock,
        reserved: &[Reserved],
        index: usize,
    ) -> Result<Vec<String>, BackendError> {
        let (policies, mut decisions) = (&self.policies[index..=index], Vec::new());
        let at = clock.now_micros();
        for step in 0..8 {
            clock.set_micros(at + step * (WINDOW.as_micros() as u64 / 4 + 7));
            for cost in [1, QUOTA - 50] {
                decisions.push(backend.check(&rig::check(policies, cost, Purpose::Peek)).await?);
            }
        }
        clock.set_micros(at);
        for step in 0..24 {
            if let Some(Reserved { decision, .. }) = reserved.get(3 * step) {
                let check = rig::check(policies, 2, Purpose::Reserve);
                let refund = Refund::new(&check, &decision.receipts()[index..=index], &[0]);
                backend.refund(&refund.unwrap()).await?;
            }
            decisions.push(backend.check(&rig::check(policies, 1, Purpose::Charge)).await?);
            clock.advance(WINDOW / 11);
        }
        Ok(decisions
            .iter()
            .map(|decision| format!("{} {:?}", decision.at_micros(), decision.statuses()))
            .collect())
    }
}

/// Returns the policies of each algorithm, and all together.
fn policies() -> Vec<(&'static str, Vec<Policy>)> {
    let precision = Duration::from_millis(500);
    let of = |name, algorithm| policy(name, QUOTA, WINDOW).with_algorithm(algorithm).unwrap();
    let all = [
        of("log", Algorithm::SlidingLog),
        of("buckets", Algorithm::SlidingBuckets { precision }),
        of("counter", Algorithm::SlidingCounter),
        of("fixed", Algorithm::FixedWindow),
        of("tokens", Algorithm::TokenBucket { rate: Rate::new(QUOTA, WINDOW) }),
        Policy::calendar_period("period", QUOTA, Period::Day, Zone::utc()).unwrap(),
    ];
    let [log, buckets, counter, fixed, tokens, period] = all.clone();
    vec![
        ("log", vec![log]),
        ("buckets", vec![buckets]),
        ("counter", vec![counter]),
        ("fixed window", vec![fixed]),
        ("token bucket", vec![tokens]),
        ("calendar period", vec![period]),
        ("all algorithms", all.to_vec()),
    ]
}

/// Returns scenarios of every length of a log, with many that call the same commands.
fn candidates(name: &str, policies: &[Policy]) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    let mut add = |charges, refunded, idle, call| {
        let idle = Duration::from_secs(idle);
        scenarios.push(Scenario { policies: policies.to_vec(), charges, refunded, idle, call });
    };
    let lengths: Vec<usize> = match name {
        "log" | "buckets" => (0..20).chain(70..92).collect(),
        _ => vec![0, 1, 9, 41, 80, 81],
    };
    let purposes = [Purpose::Charge, Purpose::Reserve, Purpose::Overage, Purpose::Peek];
    let mut calls: Vec<Call> = purposes.map(Call::Check).into();
    match name {
        "buckets" => calls.push(Call::Lease),
        "all algorithms" => calls.truncate(1),
        _ => {}
    }
    // An answer is about one pair.
    if name != "all algorithms" {
        calls.push(Call::Answer);
    }
    for call in calls {
        // There is an answer to a charge.
        for charges in lengths.iter().filter(|charges| call != Call::Answer || **charges > 0) {
            for idle in [0, 5, 9, 200] {
                add(*charges, Refunded::Nothing, idle, call);
            }
            if *charges > 60 {
                add(*charges, Refunded::Middle, 0, call);
                add(*charges, Refunded::Middle, 9, call);
            }
        }
        add(3, Refunded::All, 0, call);
        add(60, Refunded::All, 0, call);
    }
    for charges in [1, 2, 12, 20, 29, 30, 70, 75] {
        for index in BTreeSet::from([0, 1, charges / 2, charges - 1]) {
            for all in [false, true] {
                add(charges, Refunded::Nothing, 0, Call::Refund(index.min(charges - 1), all));
            }
        }
        if charges >= 12 {
            add(charges, Refunded::Oldest, 0, Call::Refund(0, true));
            add(charges, Refunded::Newest, 0, Call::Refund(charges - 1, true));
            add(charges, Refunded::AllButNewest, 0, Call::Refund(charges - 1, true));
        }
        if charges >= 70 {
            add(charges, Refunded::Middle, 0, Call::Refund(charges / 2, false));
        }
        add(charges, Refunded::Nothing, 0, Call::Reset);
    }
    for all in [false, true] {
        add(0, Refunded::NothingOfDebit, 0, Call::Refund(0, all));
    }
    // Those with the same charges and refunds follow each other.
    scenarios.sort_by_key(Scenario::preparation);
    scenarios
}

/// A server, and a user whose permissions change.
struct Rig {
    server: Server,
    admin: Admin,
    clock: ManualClock,
    begin: u64,
    backend: RedisBackend,
}

/// The keys before a call, with their times to live and their serialized values.
type Snapshot = Vec<(String, i64, Vec<u8>)>;

impl Rig {
    fn start(engine: Engine) -> Self {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        allow(&mut admin, "~tsw{*", NEEDED);
        let clock = ManualClock::new();
        let backend = RedisBackend::lazy(&url(&server, "limiter:secret", "")).unwrap().with_clock(&clock);
        Self { server, admin, begin: clock.now_micros(), clock, backend }
    }

    async fn prepare(&mut self, scenario: &Scenario) -> Vec<Reserved> {
        self.admin.query::<()>(&["FLUSHALL"]);
        self.clock.set_micros(self.begin);
        scenario.prepare(&self.backend, &self.clock, Some(&mut self.admin)).await
    }

    fn snapshot(&mut self) -> Snapshot {
        let keys = self.admin.keys();
        let dump = |key: String| {
            (self.admin.query(&["PTTL", &key]), self.admin.query::<Vec<u8>>(&["DUMP", &key]), key)
        };
        keys.into_iter().map(dump).map(|(ttl, value, key)| (key, ttl, value)).collect()
    }

    fn restore(&mut self, snapshot: &Snapshot) {
        self.admin.query::<()>(&["FLUSHALL"]);
        for (key, ttl, value) in snapshot {
            redis::cmd("RESTORE").arg(key).arg(ttl).arg(value).exec(&mut self.admin.0).unwrap();
        }
    }

    /// Returns the commands of the call, in order.
    async fn commands(
        &mut self,
        monitor: &mut Monitor,
        scenario: &Scenario,
        reserved: &[Reserved],
    ) -> Vec<String> {
        monitor.script_calls(&mut self.admin);
        scenario.call(&self.backend, reserved).await.unwrap();
        monitor.script_calls(&mut self.admin).into_iter().map(|call| call.command).collect()
    }

    /// Makes the call without permission for a command, and then gives the permission back. Returns what is wrong with a key.
    async fn deny(
        &mut self,
        scenario: &Scenario,
        reserved: &[Reserved],
        command: &str,
        references: &[Vec<Vec<String>>; 2],
    ) -> Result<(), String> {
        let at = self.clock.now_micros();
        self.admin.query::<()>(&["ACL", "SETUSER", "limiter", &format!("-{command}")]);
        let outcome = scenario.call(&self.backend, reserved).await.map_err(|error| error.reason());
        self.admin.query::<()>(&["ACL", "SETUSER", "limiter", &format!("+{command}")]);
        if outcome != Err(Reason::NoPermission) {
            return Err(format!("the call returned {outcome:?}"));
        }
        let ttl_of = |admin: &mut Admin, name: &str| {
            // The key of the newest answer has the same name.
            let key = admin.keys().into_iter().find(|key| key.ends_with(name) && !key.contains("}~"));
            key.map(|key| admin.time_to_live(&key))
        };
        for (index, policy) in scenario.policies.iter().enumerate() {
            self.clock.set_micros(at);
            let peeked = self.backend.check(&rig::check(slice::from_ref(policy), 0, Purpose::Peek)).await;
            let reset_after = match &peeked {
                Ok(decision) => decision.statuses()[0].reset_after(),
                Err(error) => return Err(format!("dead: {error}")),
            };
            match ttl_of(&mut self.admin, policy.name()) {
                None | Some(Some(_)) if reset_after.is_zero() => {}
                Some(Some(ttl)) if ttl + SLACK >= reset_after + EXTRA_TTL => {}
                ttl => {
                    return Err(format!("the time to live is {ttl:?}, and usage ends after {reset_after:?}"));
                }
            }
            match scenario.observe(&self.backend, &self.clock, reserved, index).await {
                Err(error) => return Err(format!("dead: {error}")),
                Ok(decisions) if references.iter().any(|reference| reference[index] == decisions) => {}
                Ok(decisions) => {
                    let differs = |i: &usize| references.iter().all(|all| all[index][*i] != decisions[*i]);
                    let first = (0..decisions.len())
                        .find(differs)
                        .map(|i| (i, &decisions[i], &references[0][index][i]));
                    return Err(format!("wrong usage of {}: {first:?}", policy.name()));
                }
            }
        }
        self.clock.set_micros(at);
        Ok(())
    }
}

/// Returns the first scenario of each call, each kind of refunds before it, and each sequence of commands.
async fn scenarios() -> Vec<(String, Scenario, BTreeSet<String>)> {
    let mut rig = Rig::start(Engine::Redis);
    let mut monitor = Monitor::at(&rig.server);
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    for (name, policies) in policies() {
        // The state before the call of the last scenario.
        let mut prepared: Option<(_, u64, Snapshot, Vec<Reserved>)> = None;
        for scenario in candidates(name, &policies) {
            let (_, at, snapshot, reserved) = match prepared.take() {
                Some(same @ (preparation, ..)) if preparation == scenario.preparation() => same,
                _ => {
                    let reserved = rig.prepare(&scenario).await;
                    (scenario.preparation(), rig.clock.now_micros(), rig.snapshot(), reserved)
                }
            };
            rig.restore(&snapshot);
            rig.clock.set_micros(at);
            let mut commands = rig.commands(&mut monitor, &scenario, &reserved).await;
            prepared = Some((scenario.preparation(), at, snapshot, reserved));
            // A call reads and changes different numbers of blocks.
            commands.dedup();
            let call = match scenario.call {
                Call::Refund(_, all) => format!("Refund({all})"),
                call => format!("{call:?}"),
            };
            let kind = format!("{name}, {call} after {:?}: {}", scenario.refunded, commands.join(" "));
            if seen.insert(kind.clone()) {
                found.push((kind, scenario, commands.into_iter().collect()));
            }
        }
    }
    found
}

#[tokio::test]
async fn denied_command_leaves_every_key_valid() {
    let scenarios = scenarios().await;
    let (mut combinations, mut failures) = (0, Vec::new());
    let mut references = Vec::new();
    for (_, scenario, _) in &scenarios {
        references.push([scenario.reference(false).await, scenario.reference(true).await]);
    }
    for engine in Engine::ALL {
        let mut rig = Rig::start(engine);
        for ((kind, scenario, commands), references) in scenarios.iter().zip(&references) {
            let reserved = rig.prepare(scenario).await;
            let (at, snapshot) = (rig.clock.now_micros(), rig.snapshot());
            for command in commands {
                combinations += 1;
                rig.restore(&snapshot);
                rig.clock.set_micros(at);
                if let Err(problem) = rig.deny(scenario, &reserved, command, references).await {
                    failures.push(format!("{engine:?}, {kind}, without {command}: {problem}"));
                }
            }
        }
    }
    println!("{combinations} combinations in {} scenarios, {} failures", scenarios.len(), failures.len());
    assert!(failures.is_empty(), "{} of {combinations}:\n{}", failures.len(), failures.join("\n"));
    assert!(combinations >= 3 * 52, "only {combinations} combinations");
}
