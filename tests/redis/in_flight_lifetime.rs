//! How long units in flight count, and how long their keys live: entries of other hold times, and a clock that goes back.

use std::{collections::HashMap, time::Duration};

use tokio::runtime::Runtime;
use tower_sliding_window::{Decision, Limiter, Policy, RedisBackend, backend::Pair, testing::ManualClock};

use super::{
    admin::Admin,
    rig::{Random, alice},
};
use crate::support::server::{Engine, Server};

const QUOTA: u32 = 6;
const STEPS: u64 = 1_000;

/// So long that no entry is renewed: renewals have a clock of their own.
const HOLD_SECONDS: [u64; 4] = [300, 2_400, 3_000, 3_600];
/// How far the clock may go back at most: less than each hold time.
const BACK_SECONDS: u64 = 299;

const SECOND: u64 = 1_000_000;
/// How much longer than an entry a key may live, and how much longer each key lives under an injected clock.
const LONGEST_LIFE: u64 = (HOLD_SECONDS[3] + BACK_SECONDS) * SECOND * 4 / 3;
const EXTRA_LIFE: u64 = 3_600 * SECOND;
/// The time between a command and the look at its keys.
const LATENESS: u64 = SECOND;

/// The expiries of the keys by the injected clock.
struct Expiries {
    admin: Admin,
    by_key: HashMap<String, u64>,
}

impl Expiries {
    /// Notes the expiries that a script has set since the last look, and takes them away.
    fn note(&mut self, now: u64, what: &str) {
        for key in self.admin.keys() {
            if let Some(left) = self.admin.time_to_live(&key) {
                self.admin.query::<()>(&["PERSIST", &key]);
                let left = (left.as_micros() as u64 + LATENESS).saturating_sub(EXTRA_LIFE);
                assert!(left <= LONGEST_LIFE + LATENESS, "{what}: {key} lives for {left} us");
                self.by_key.insert(key, now + left);
            } else {
                assert!(self.by_key.contains_key(&key), "{what}: {key} would live forever");
            }
        }
    }

    fn delete_expired(&mut self, now: u64) {
        for (key, _) in self.by_key.extract_if(|_, expiry| *expiry <= now) {
            self.admin.query::<()>(&["DEL", &key]);
        }
    }

    /// Asserts that the entries and the numbers of each process live until its entry ends.
    fn assert_late_enough(&self, ends: &[u64], what: &str) {
        let (numbers, entries): (Vec<_>, Vec<_>) = self.by_key.iter().partition(|(key, _)| key.contains('='));
        // The numbers do not state whose they are: as many live long enough as there are processes.
        for end in ends {
            assert!(entries.iter().any(|(_, expiry)| *expiry >= end), "{what}: the entries expire too early");
            let enough = numbers.iter().filter(|(_, expiry)| *expiry >= end).count();
            let needed = ends.iter().filter(|other| *other >= end).count();
            assert!(
                enough >= needed,
                "{what}: the numbers of {enough} of {needed} processes live long enough"
            );
        }
    }
}

/// What a process holds: its charges, and when the entry of all of them ends.
struct Process {
    limiter: Limiter,
    ends: u64,
    live: Vec<(u32, Decision)>,
    /// Those that an entry held which has ended.
    ended: Vec<Decision>,
}

impl Process {
    async fn new(server: &Server, clock: &ManualClock) -> Self {
        let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(clock);
        let limiter = Limiter::builder(backend).without_policies().deadline(Duration::from_secs(5));
        Self { limiter: limiter.build().unwrap(), ends: 0, live: Vec::new(), ended: Vec::new() }
    }

    async fn acquire(&self, units: u32, hold_seconds: u64) -> Decision {
        let exports = Policy::in_flight("exports", QUOTA).unwrap();
        let exports = exports.hold_time(Duration::from_secs(hold_seconds)).unwrap();
        self.limiter.check([Pair::new(alice(), exports, units)]).await.unwrap()
    }

    async fn release(&self, decision: Decision) {
        drop(decision);
        self.limiter.drain().await;
    }

    fn held(&self) -> u32 {
        self.live.iter().map(|(units, _)| units).sum()
    }
}

/// Acquires and releases with changing hold times. After each step, all that counts has keys that live long enough.
async fn compare(engine: Engine, seed: u64) {
    let (server, clock, mut random) = (Server::start(engine), ManualClock::new(), Random(seed));
    let mut expiries = Expiries { admin: Admin::at(&server), by_key: HashMap::new() };
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Process::new(&server, &clock).await);
    }
    let (mut last_write, mut admitted, mut denied, mut behind) = (0, 0, 0, 0);
    for step in 0..STEPS {
        let what = format!("{engine:?}, seed {seed}, step {step}");
        let mut now = clock.now_micros();
        // Units that count no longer cannot come back, because the last write was after their end.
        if now == last_write && random.below(4) == 0 {
            now -= random.below(BACK_SECONDS * SECOND);
        } else {
            let longest = [1, 30, 300, 1_500][random.below(4) as usize];
            now += random.below(longest * SECOND);
        }
        clock.set_micros(now);
        expiries.delete_expired(now);
        let gone_back = last_write.saturating_sub(now);
        behind += u64::from(gone_back > 0);
        for process in processes.iter_mut().filter(|process| process.ends.saturating_sub(gone_back) <= now) {
            process.ended.extend(process.live.drain(..).map(|(_, decision)| decision));
        }
        let held: u32 = processes.iter().map(Process::held).sum();
        let index = random.below(3) as usize;
        if random.below(2) == 0 && !processes[index].live.is_empty() {
            let process = &mut processes[index];
            let (_, ended) = process.live.swap_remove(random.below(process.live.len() as u64) as usize);
            process.release(ended).await;
        } else {
            let (units, hold_seconds) = (1 + random.below(3) as u32, HOLD_SECONDS[random.below(4) as usize]);
            let decision = processes[index].acquire(units, hold_seconds).await;
            let has_room = held + units <= QUOTA;
            assert_eq!(decision.is_admitted(), has_room, "{what}: {held} held");
            if has_room {
                admitted += 1;
                // Each entry has as much time left as at the last write.
                processes
                    .iter_mut()
                    .for_each(|process| process.ends = process.ends.saturating_sub(gone_back));
                processes[index].ends = now + hold_seconds * SECOND;
                processes[index].live.push((units, decision));
                last_write = now;
            } else {
                denied += 1;
            }
        }
        expiries.note(now, &what);
        let live = processes.iter().filter(|process| !process.live.is_empty());
        expiries.assert_late_enough(&live.map(|process| process.ends).collect::<Vec<_>>(), &what);
    }
    let least = STEPS / 20;
    assert!(admitted > least && denied > least && behind > least, "{admitted}, {denied}, {behind}");
}

#[test]
fn units_of_any_hold_time_count_until_their_entry_ends() {
    for engine in Engine::ALL {
        Runtime::new().unwrap().block_on(compare(engine, 1));
    }
}

#[test]
fn clock_that_goes_back_extends_no_unit_beyond_its_hold_time() {
    const START: u64 = 1_790_000_000 * SECOND;
    for engine in Engine::ALL {
        let (server, clock) = (Server::start(engine), ManualClock::new());
        Runtime::new().unwrap().block_on(async {
            let (first, second) = (Process::new(&server, &clock).await, Process::new(&server, &clock).await);
            let is_admitted = async |units: u32, at: u64| {
                clock.set_micros(at);
                let decision = second.acquire(units, 300).await;
                let is_admitted = decision.is_admitted();
                second.release(decision).await;
                is_admitted
            };
            clock.set_micros(START);
            let held = first.acquire(QUOTA, 300).await;
            // A denial writes nothing, so the entry has 300 s left at the last write.
            assert!(!is_admitted(1, START - 300 * SECOND).await, "{engine:?}: the whole hold time is left");
            assert!(!is_admitted(1, START + 300 * SECOND - 1).await, "{engine:?}: 1 us is left");
            // What was written more than a hold time later is of another clock.
            assert!(is_admitted(1, START - 300 * SECOND - 1).await, "{engine:?}: the value is foreign");
            first.release(held).await;

            // What the longest entry had left counts, not only the hold time of the holder that reads.
            clock.set_micros(START);
            Admin::at(&server).query::<()>(&["FLUSHALL"]);
            let held = first.acquire(QUOTA, 3_600).await;
            assert!(
                !is_admitted(1, START - 3_600 * SECOND).await,
                "{engine:?}: the hold time of the other holder"
            );
            assert!(is_admitted(1, START - 3_600 * SECOND - 1).await, "{engine:?}: the value is foreign");
            first.release(held).await;

            clock.set_micros(START);
            Admin::at(&server).query::<()>(&["FLUSHALL"]);
            let held = first.acquire(QUOTA - 1, 300).await;
            // This write is 100 s before the other one, and so is the new end of its entry.
            assert!(is_admitted(1, START - 100 * SECOND).await, "{engine:?}");
            assert!(!is_admitted(2, START + 200 * SECOND - 1).await, "{engine:?}: 1 us is left");
            assert!(is_admitted(2, START + 200 * SECOND).await, "{engine:?}: the entry has ended");
            first.release(held).await;
        });
    }
}
