//! Raw calls of the scripts, by their contract in `lua/README.md`: calls of a process that holds units arrive late, twice, or after
//! lost data; and a call arrives at the last instant of its deadline.

use std::collections::HashSet;

use redis::{RedisResult, Value, cmd};
use tower_sliding_window::{Policy, redis::Merging};

use super::{
    admin::{Admin, Monitor},
    rig::{HOUR, alice, concurrently, limiter, merging_backend, policy, with_manual_clock},
};
use crate::support::server::{Engine, Server};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_790_000_000 * SECOND;
const QUOTA: u32 = 10;
const HOLD_TIME: u64 = 30 * SECOND;

/// The unit of the number of a type, and what the parameter of an acquisition contains.
const TYPE_UNIT: u64 = 1 << 45;
const LOG: u64 = 0;
const BUCKETS: u64 = TYPE_UNIT;
const IN_FLIGHT: u64 = 7 * TYPE_UNIT;
const ACQUISITION: u64 = 1 << 44;
const ALONE: u64 = 1 << 43;
const UPPER_BYTES: u64 = 1 << 17;

const GENERATION: [u8; 7] = *b"life 01";

/// The verdict of an admitted pair.
const ADMIT: u8 = 0;

/// The identity of a process: the lower 6 bytes and the upper 2.
type Identity = (u64, u16);

const FIRST: Identity = (1, 5);

/// A number of a process, the index of its place, and whether the process holds nothing else.
struct HeldNumber {
    number: u32,
    index: u32,
    is_alone: bool,
}

/// What a call of the hold script changes of one pair.
#[derive(Default)]
struct HoldChanges<'a> {
    renews: bool,
    surplus: i32,
    /// An index and a number each.
    releases: &'a [(u32, u32)],
    /// An index, a number and its units each.
    restores: &'a [(u32, u32, u32)],
}

/// A server, and the hashes of the scripts with an injected clock that it has loaded.
struct RawCaller {
    admin: Admin,
    check: String,
    merged: String,
    refund: String,
    reset: String,
    hold: String,
    hold_time: u64,
    _server: Server,
}

fn six_bytes(number: u64) -> [u8; 6] {
    std::array::from_fn(|i| number.to_le_bytes()[i])
}

/// Returns the fields of a pair of a check.
fn fields(quota: u32, cost: u32, window: u64, typed_parameter: u64) -> Vec<u8> {
    let [quota, cost] = [quota, cost].map(u32::to_le_bytes);
    let [window, typed] = [window, typed_parameter].map(six_bytes);
    [&quota[..], &cost, &window, &typed].concat()
}

/// Returns the first argument of a check.
fn check_argument(deadline: u64, pairs: &[Vec<u8>]) -> Vec<u8> {
    [&deadline.to_le_bytes()[..], &pairs.concat(), &GENERATION].concat()
}

fn numbers_key((lower, upper): Identity, pair: &str) -> String {
    format!("={lower}.{upper}{pair}")
}

impl RawCaller {
    /// Learns the hash of each script from a call of a client.
    async fn start(engine: Engine) -> Self {
        let server = Server::start(engine);
        let (mut admin, mut monitor) = (Admin::at(&server), Monitor::at(&server));
        let mut last_script = || monitor.called_scripts(&mut admin).pop().unwrap();
        let (backend, clock) = with_manual_clock(&server).await;
        let in_flight = limiter(backend.clone(), [Policy::in_flight("exports", QUOTA).unwrap()]);
        let held = in_flight.check(alice()).await.unwrap();
        let check = last_script();
        drop(held);
        in_flight.drain().await;
        let hold = last_script();
        let of_log = limiter(backend, [policy("hourly", 100, HOUR)]);
        of_log.reserve(alice()).await.unwrap().settle(0).await;
        let refund = last_script();
        of_log.reset(alice()).await.unwrap();
        let reset = last_script();
        let merging = merging_backend(&server, Merging::On).with_clock(&clock);
        let merging = limiter(merging, [policy("hourly", 100, HOUR)]);
        let checks = (0..8).map(|_| {
            let merging = merging.clone();
            async move { merging.check(alice()).await.unwrap().is_admitted() }
        });
        concurrently(checks).await;
        let merged = last_script();
        let scripts = [&check, &merged, &refund, &reset, &hold];
        let different: HashSet<_> = scripts.iter().collect();
        assert_eq!(different.len(), scripts.len(), "{scripts:?}");
        admin.query::<()>(&["FLUSHALL"]);
        Self { admin, check, merged, refund, reset, hold, hold_time: HOLD_TIME, _server: server }
    }

    fn call(&mut self, script: &str, keys: &[&str], arguments: &[Vec<u8>], now: u64) -> RedisResult<Value> {
        let mut command = cmd("EVALSHA");
        command.arg(script).arg(keys.len()).arg(keys).arg(arguments).arg(now);
        command.query(&mut self.admin.0)
    }

    fn bytes(&mut self, script: &str, keys: &[&str], arguments: &[Vec<u8>], now: u64) -> Vec<u8> {
        let reply = self.call(script, keys, arguments, now).unwrap();
        let Value::BulkString(bytes) = reply else { panic!("{reply:?}") };
        bytes
    }

    /// Charges the pair "p", which is in flight. Returns its remaining units.
    fn charge(&mut self, now: u64, holder: Identity, place: &HeldNumber, units: u32) -> u32 {
        let HeldNumber { number, index, is_alone } = *place;
        let (lower, upper) = holder;
        let alone = if is_alone { ALONE } else { 0 };
        let parameter = ACQUISITION + alone + u64::from(upper) * UPPER_BYTES + u64::from(index);
        let pairs = [
            fields(number, 0, lower, IN_FLIGHT + parameter),
            fields(QUOTA, units, self.hold_time, IN_FLIGHT),
        ];
        let (check, numbers) = (self.check.clone(), numbers_key(holder, "p"));
        let arguments = [check_argument(now, &pairs), Vec::new(), Vec::new(), Vec::new()];
        let reply = self.bytes(&check, &[&numbers, "p"], &arguments, now);
        let status = &reply[37..];
        assert_eq!((status.len(), status[8]), (37, ADMIT), "the charge fits");
        u32::from_le_bytes(*status[9..].first_chunk().unwrap())
    }

    /// Returns the remaining units of the pair "p".
    fn remaining(&mut self, now: u64) -> u32 {
        self.charge(now, (u64::from(u32::MAX), 0), &HeldNumber { number: 1, index: 0, is_alone: false }, 0)
    }

    /// Calls the hold script for these pairs. Returns the reply after the clock reading.
    fn hold_pairs(&mut self, now: u64, holder: Identity, pairs: &[(&str, HoldChanges<'_>)]) -> Vec<u8> {
        let numbers: Vec<String> = pairs.iter().map(|(pair, _)| numbers_key(holder, pair)).collect();
        let keys: Vec<&str> =
            numbers.iter().zip(pairs).flat_map(|(numbers, (pair, _))| [numbers, *pair]).collect();
        let (lower, upper) = holder;
        let first = [&now.to_le_bytes()[..], &six_bytes(lower), &upper.to_le_bytes()].concat();
        let changes = pairs.iter().map(|(_, changes)| self.changes(changes));
        let arguments: Vec<Vec<u8>> = std::iter::once(first).chain(changes).collect();
        let hold = self.hold.clone();
        self.bytes(&hold, &keys, &arguments, now).split_off(8)
    }

    fn changes(&self, changes: &HoldChanges<'_>) -> Vec<u8> {
        let HoldChanges { renews, surplus, releases, restores } = changes;
        let mut packed =
            [&six_bytes(self.hold_time)[..], &[u8::from(*renews)], &surplus.to_le_bytes()].concat();
        packed.extend((releases.len() as u16).to_le_bytes());
        for (index, number) in *releases {
            packed.extend([&index.to_le_bytes()[..3], &number.to_le_bytes()].concat());
        }
        for (index, number, units) in *restores {
            packed.extend([&index.to_le_bytes()[..3], &number.to_le_bytes(), &units.to_le_bytes()].concat());
        }
        packed
    }

    /// Changes what the first process holds of the pair "p". Returns the units of its entry.
    fn hold(&mut self, now: u64, changes: HoldChanges<'_>) -> u32 {
        let reply = self.hold_pairs(now, FIRST, &[("p", changes)]);
        assert_eq!(reply[0], 1, "the changes are made");
        u32::from_le_bytes(*reply[1..].first_chunk().unwrap())
    }

    /// Releases a number of the first process. Returns the units of its entry.
    fn release(&mut self, now: u64, index: u32, number: u32) -> u32 {
        self.hold(now, HoldChanges { releases: &[(index, number)], ..HoldChanges::default() })
    }

    /// Restores a number of the first process. Returns the units of its entry.
    fn restore(&mut self, now: u64, index: u32, number: u32, units: u32) -> u32 {
        self.hold(now, HoldChanges { restores: &[(index, number, units)], ..HoldChanges::default() })
    }
}

fn only(number: u32) -> HeldNumber {
    HeldNumber { number, index: 0, is_alone: true }
}

/// Returns a number beside others of its process.
fn beside(number: u32, index: u32) -> HeldNumber {
    HeldNumber { number, index, is_alone: false }
}

#[tokio::test]
async fn holders_differ_in_each_part_of_their_identities() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        assert_eq!(raw.charge(START, (1, 5), &only(1), 3), 7, "{engine:?}");
        assert_eq!(raw.charge(START + 1, (1, 6), &only(1), 2), 5, "{engine:?}: the same lower bytes");
        assert_eq!(raw.charge(START + 2, (2, 5), &only(1), 2), 3, "{engine:?}: the same upper bytes");
        assert_eq!(raw.charge(START + 3, (1, 5), &beside(2, 1), 1), 2, "{engine:?}: the first holder again");
        // It renews its entry, and keeps those of the others.
        let renewal = HoldChanges { renews: true, ..HoldChanges::default() };
        assert_eq!(raw.hold(START + 4, renewal), 4, "{engine:?}");
        assert_eq!(raw.remaining(START + 5), 2, "{engine:?}");
    }
}

/// The charge that was sent first arrives last, when its process holds more. An older number is of lost data.
#[tokio::test]
async fn overtaken_charge_keeps_newer_numbers() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &beside(1, 0), 1);
        for (number, index) in [(3, 1), (4, 2), (5, 3)] {
            raw.charge(START + 1, FIRST, &beside(number, index), 2);
        }
        assert_eq!(raw.charge(START + 2, FIRST, &only(2), 1), 3, "{engine:?}: number 1 does not count");
        assert_eq!(raw.remaining(START + 3), 3, "{engine:?}");
        for (number, index, left) in [(3, 1, 5), (5, 3, 3), (4, 2, 1), (2, 0, 0)] {
            assert_eq!(raw.release(START + 4, index, number), left, "{engine:?}: number {number}");
        }
        assert_eq!(raw.remaining(START + 5), QUOTA, "{engine:?}");
    }
}

#[tokio::test]
async fn charge_after_lost_numbers_counts_alone() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &only(1), 3);
        raw.admin.query::<()>(&["DEL", &numbers_key(FIRST, "p")]);
        assert_eq!(raw.charge(START + 1, FIRST, &only(2), 1), 9, "{engine:?}");
        assert_eq!(raw.release(START + 2, 0, 2), 0, "{engine:?}");
    }
}

#[tokio::test]
async fn number_restored_twice_counts_once() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &only(1), 1);
        raw.charge(START + 1, FIRST, &beside(2, 1), 3);
        assert_eq!(raw.restore(START + 2, 1, 2, 3), 4, "{engine:?}: it was not lost");
        assert_eq!(raw.restore(START + 3, 2, 3, 2), 6, "{engine:?}: it was lost");
        assert_eq!(raw.restore(START + 4, 2, 3, 2), 6, "{engine:?}: the call arrives twice");
        // The other number of this place has ended.
        assert_eq!(raw.restore(START + 5, 1, 7, 1), 4, "{engine:?}: it replaces another number");
        assert_eq!(raw.remaining(START + 6), 6, "{engine:?}");
    }
}

#[tokio::test]
async fn restoration_after_lost_numbers_counts_alone() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &only(1), 3);
        raw.admin.query::<()>(&["DEL", &numbers_key(FIRST, "p")]);
        assert_eq!(raw.restore(START + 1, 0, 1, 3), 3, "{engine:?}");
        assert_eq!(raw.release(START + 2, 0, 1), 0, "{engine:?}");
        assert_eq!(raw.remaining(START + 3), QUOTA, "{engine:?}");
    }
}

#[tokio::test]
async fn surplus_sent_twice_leaves_no_negative_units() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &only(1), 3);
        for left in [1, 0] {
            let surplus = HoldChanges { surplus: 2, ..HoldChanges::default() };
            assert_eq!(raw.hold(START + 1, surplus), left, "{engine:?}");
        }
        assert_eq!(raw.release(START + 2, 0, 1), 0, "{engine:?}");
        assert_eq!(raw.remaining(START + 3), QUOTA, "{engine:?}");
    }
}

#[tokio::test]
async fn late_release_keeps_next_number_of_its_place() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &only(1), 3);
        raw.charge(START + 1, FIRST, &beside(2, 1), 1);
        assert_eq!(raw.release(START + 2, 0, 1), 1, "{engine:?}");
        raw.charge(START + 3, FIRST, &beside(3, 0), 2);
        assert_eq!(raw.release(START + 4, 0, 1), 3, "{engine:?}: the call arrives twice");
        assert_eq!(raw.release(START + 5, 0, 3), 1, "{engine:?}");
        assert_eq!(raw.remaining(START + 6), 9, "{engine:?}");
    }
}

/// The reader has a longer hold time than what any entry has left.
#[tokio::test]
async fn clock_that_goes_back_keeps_unit_near_its_end() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &only(1), 3);
        raw.hold_time = SECOND;
        raw.charge(START + 29 * SECOND, (2, 5), &only(1), 1);
        raw.hold_time = HOLD_TIME;
        assert_eq!(raw.remaining(START + 27 * SECOND), 6, "{engine:?}: each entry has a second left");
    }
}

#[tokio::test]
async fn foreign_pair_shifts_no_reply_of_another_pair() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        raw.charge(START, FIRST, &only(1), 3);
        raw.admin.query::<()>(&["SET", "foreign", "7"]);
        let renewal = || HoldChanges { renews: true, ..HoldChanges::default() };
        let reply = raw.hold_pairs(START + 1, FIRST, &[("foreign", renewal()), ("p", renewal())]);
        // The place of number 1, and room: 65 bytes.
        let numbers = [&[1, 0, 0, 0, 3, 0, 0, 0][..], &[0; 57]].concat();
        let of_pair = [&[1, 3, 0, 0, 0, numbers.len() as u8, 0, 0, 0][..], &numbers].concat();
        assert_eq!(reply, [vec![0; 9], of_pair].concat(), "{engine:?}");
    }
}

#[tokio::test]
async fn lease_of_two_pairs_has_units_of_each() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        let pair = fields(100, 1, 60 * SECOND, BUCKETS + SECOND);
        let units = [5_u32, 9].map(u32::to_le_bytes).concat();
        let arguments = [check_argument(START, &[pair.clone(), pair]), b"l".to_vec(), Vec::new(), units];
        let check = raw.check.clone();
        let reply = raw.bytes(&check, &["a", "b"], &arguments, START);
        let leased: Vec<&[u8]> = reply.chunks(reply.len() / 2).map(|status| &status[54..]).collect();
        assert_eq!(leased, [[5, 0, 0, 0], [9, 0, 0, 0]], "{engine:?}");
    }
}

/// The deadline is the last instant at which a script may change something.
#[tokio::test]
async fn scripts_decide_at_the_instant_of_the_deadline() {
    for engine in Engine::ALL {
        let mut raw = RawCaller::start(engine).await;
        let (log, empty) = (fields(100, 1, 60 * SECOND, LOG), Vec::new);
        let refunded =
            [&1_u32.to_le_bytes()[..], &six_bytes(60 * SECOND), &six_bytes(LOG), &[0; 17]].concat();
        let changes = raw.changes(&HoldChanges::default());
        for (is_exceeded, now) in [(false, START), (true, START + 1)] {
            let deadline = START.to_le_bytes();
            let run = [&[1, 1][..], &check_argument(START, std::slice::from_ref(&log))].concat();
            let mut reply = |script: fn(&RawCaller) -> &String, keys: &[&str], arguments: &[Vec<u8>]| {
                let script = script(&raw).clone();
                raw.call(&script, keys, arguments, now).unwrap()
            };
            let check = [check_argument(START, std::slice::from_ref(&log)), empty(), empty(), empty()];
            let reading = Value::BulkString(now.to_le_bytes().to_vec());
            let replies = [
                reply(|raw| &raw.check, &["a"], &check),
                reply(|raw| &raw.refund, &["a"], &[[&deadline[..], &refunded].concat()]),
                reply(|raw| &raw.reset, &["a"], &[deadline.to_vec()]),
                reply(|raw| &raw.hold, &["=a", "+a"], &[[&deadline[..], &[0; 8]].concat(), changes.clone()]),
            ];
            for (i, reply) in replies.into_iter().enumerate() {
                assert_eq!(reply == reading, is_exceeded, "{engine:?}: script {i}: {reply:?}");
            }
            let merged = reply(|raw| &raw.merged, &["b"], &[run, empty()]);
            let Value::BulkString(merged) = merged else { panic!("{merged:?}") };
            // The number of checks whose deadline is exceeded, and that of admitted ones.
            assert_eq!(merged[8..10], [u8::from(is_exceeded), u8::from(!is_exceeded)], "{engine:?}");
        }
    }
}
