//! What the simulated server knows: its clock, the scripts that it was taught, and what was charged. It answers by the
//! contract in `lua/README.md`, and decides by the reference model.

use std::{collections::HashSet, time::Duration};

use tower_sliding_window::{
    Algorithm, Decision, PartitionKey, Policy, Wait,
    backend::{Check, Pair, Purpose},
};

use super::{
    plan::NUMBER,
    plant::{AHEAD, Bug},
    record::{Event, Id, Record, Ruling},
    resp,
};
use crate::contract::model::{Handle, Model};

pub struct Store {
    model: Model,
    /// How often all data was lost.
    generation: u64,
    /// The charges that a receipt was given for; its ordinal is the index.
    reserved: Vec<Reserved>,
    scripts: HashSet<String>,
    clock: Clock,
    /// Until then nothing is done, in true time.
    pub stopped_until: Duration,
    bug: Option<Bug>,
    record: Record,
}

/// The server's own clock.
pub struct Clock {
    /// In microseconds.
    pub offset: i64,
    /// In millionths.
    pub drift: i64,
}

struct Reserved {
    id: Id,
    pair: Pair,
    handle: Handle,
    generation: u64,
}

/// The year 2023.
const BEGIN: i64 = 1_700_000_000_000_000;

impl Clock {
    pub fn reading(&self, at: Duration) -> u64 {
        let true_micros = at.as_micros() as i64;
        (BEGIN + self.offset + true_micros + true_micros * self.drift / 1_000_000) as u64
    }
}

impl Store {
    pub fn new(drift: i64, bug: Option<Bug>, record: Record) -> Self {
        Self {
            model: Model::default(),
            generation: 0,
            reserved: Vec::new(),
            scripts: HashSet::new(),
            clock: Clock { offset: 0, drift },
            stopped_until: Duration::ZERO,
            bug,
            record,
        }
    }

    /// The server ends and begins again. It remembers its data, or nothing.
    pub fn start(&mut self, loses_data: bool) {
        self.scripts.clear();
        self.stopped_until = Duration::ZERO;
        if loses_data {
            self.generation += 1;
            self.model = Model::default();
        }
    }

    pub fn set_clock(&mut self, by: i64) {
        self.clock.offset += by;
    }

    /// The reply to a command; what is wrong with it if it is none that the client may send.
    pub fn answer(&mut self, command: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        match words[..] {
            [b"HELLO", b"3", ..] => Ok(resp::map("server", "redis")),
            [b"CLIENT", b"SETINFO" | b"SETNAME", ..] => Ok(resp::simple("OK")),
            [b"TIME"] => {
                let now = self.told(self.now());
                let parts = [now / 1_000_000, now % 1_000_000];
                Ok(resp::array(&parts.map(|part| resp::bulk(part.to_string().as_bytes()))))
            }
            [b"EVALSHA", hash, ref call @ ..] => {
                if self.scripts.contains(&*text(hash)?) {
                    return self.run(call);
                }
                self.record.note(Event::UnknownScript);
                Ok(resp::error("NOSCRIPT No matching script."))
            }
            [b"EVAL", script, ref call @ ..] => {
                self.scripts.insert(redis::Script::new(&text(script)?).get_hash().to_owned());
                self.run(call)
            }
            _ => Err(format!(
                "{:?}",
                command.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>()
            )),
        }
    }

    fn now(&self) -> u64 {
        self.clock.reading(turmoil::sim_elapsed().unwrap())
    }

    fn told(&self, now: u64) -> u64 {
        if self.bug == Some(Bug::ServerTellsALaterClock) { now + AHEAD } else { now }
    }

    /// Number of keys, keys, arguments.
    fn run(&mut self, call: &[&[u8]]) -> Result<Vec<u8>, String> {
        let (count, rest) = call.split_first().ok_or("no number of keys")?;
        let count = text(count)?.parse().map_err(|_| "no number of keys")?;
        let (keys, arguments) = rest.split_at_checked(count).ok_or("too few keys")?;
        let keys = keys.iter().map(|key| text(key)).collect::<Result<Vec<_>, _>>()?;
        match arguments {
            // No number of pairs is as long in both.
            [refund] if refund.len() == 33 * count => self.give_back(&keys, refund),
            [check] if check.len() == 20 * count + 8 => self.check(&keys, check, Purpose::Charge),
            [check, b"r"] => self.check(&keys, check, Purpose::Reserve),
            [check, b"o"] => self.check(&keys, check, Purpose::Overage),
            [check, b"p"] => self.check(&keys, check, Purpose::Peek),
            _ => Err(format!("{} arguments for {count} keys", arguments.len())),
        }
    }

    fn check(&mut self, keys: &[String], argument: &[u8], purpose: Purpose) -> Result<Vec<u8>, String> {
        let mut fields = Fields(argument);
        let mut pairs = Vec::new();
        for key in keys {
            let (quota, cost) = (fields.take(4)?, fields.take(4)?);
            let (window, shape) = (fields.take(6)?, fields.take_signed(6)?);
            pairs.push(pair(key, quota as u32, cost as u32, window, shape)?);
        }
        let deadline = fields.take(8)?;
        fields.end()?;
        let id = number(&pairs);
        let now = self.now();
        if now > deadline && self.bug != Some(Bug::ServerIgnoresDeadlines) {
            self.record.note(Event::Ruled { id, reading: now, ruling: Ruling::Late });
            return Ok(resp::bulk(&self.told(now).to_le_bytes()));
        }
        if self.bug == Some(Bug::ServerAdmitsOneMore) {
            for pair in &mut pairs {
                pair.policy = policy(&pair.policy, pair.policy.quota().saturating_add(1))?;
            }
        }
        let check = Check::new(pairs).map_err(|error| error.to_string())?.with_purpose(purpose);
        let (decision, handles) = self.model.check(now, &check);
        let ruling = match (purpose, decision.is_admitted()) {
            (_, false) => Ruling::Denied,
            (Purpose::Overage, true) => Ruling::Overage,
            (_, true) => Ruling::Charged,
        };
        if purpose != Purpose::Peek {
            self.record.note(Event::Ruled { id, reading: now, ruling });
        }
        let receipts = (purpose == Purpose::Reserve).then(|| self.reserve(id, &check, &handles));
        Ok(resp::bulk(&reply(&decision, self.told(now), receipts.as_deref())))
    }

    /// The ordinals of receipts for these charges; zeros if nothing was charged.
    fn reserve(&mut self, id: Id, check: &Check, handles: &[Handle]) -> Vec<u64> {
        if handles.is_empty() {
            return vec![0; check.pairs().len()];
        }
        let reserved = check.pairs().iter().zip(handles).map(|(pair, handle)| {
            let generation = self.generation;
            self.reserved.push(Reserved { id, pair: pair.clone(), handle: *handle, generation });
            self.reserved.len() as u64 - 1
        });
        reserved.collect()
    }

    fn give_back(&mut self, keys: &[String], argument: &[u8]) -> Result<Vec<u8>, String> {
        let mut fields = Fields(argument);
        let now = self.now();
        for key in keys {
            let (units, window, shape) = (fields.take(4)? as u32, fields.take(6)?, fields.take_signed(6)?);
            let _generation_and_instant = (fields.take(7)?, fields.take(7)?);
            let ordinal = fields.take(3)?;
            let reserved = self.reserved.get(ordinal as usize).ok_or("no such receipt")?;
            let named = pair(key, reserved.pair.policy.quota(), 0, window, shape)?;
            let left = reserved.pair.cost.checked_sub(units).ok_or("more than was charged")?;
            if named.key != reserved.pair.key || named.policy.name() != reserved.pair.policy.name() {
                return Err("a receipt of another pair".to_owned());
            }
            self.record.note(Event::GaveBack { id: reserved.id, units });
            if reserved.generation == self.generation {
                let check = Check::new([reserved.pair.clone()]).map_err(|error| error.to_string())?;
                self.model.settle(now, &check, &[reserved.handle], &[left]);
            }
        }
        fields.end()?;
        Ok(resp::integer(1))
    }
}

/// The number of a check is the cost of its last pair.
fn number(pairs: &[Pair]) -> Id {
    pairs.iter().find(|pair| pair.policy.name() == NUMBER).map_or(0, |pair| pair.cost)
}

fn reply(decision: &Decision, told: u64, receipts: Option<&[u64]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, status) in decision.statuses().iter().enumerate() {
        let (verdict, retry) = match status.retry_after() {
            Wait::Never => (2, Duration::ZERO),
            Wait::For(Duration::ZERO) => (0, Duration::ZERO),
            Wait::For(wait) => (1, wait),
        };
        bytes.extend(told.to_le_bytes());
        bytes.push(verdict);
        bytes.extend(status.remaining().to_le_bytes());
        for wait in [retry, status.next_after(), status.reset_after()] {
            bytes.extend((wait.as_micros() as u64).to_le_bytes());
        }
        if let Some(receipts) = receipts {
            bytes.extend([0; 14]);
            bytes.extend(&receipts[i].to_le_bytes()[..3]);
        }
    }
    bytes
}

/// `namespace:version:{hash}:policy:algorithm:window[:precision]`
fn pair(key: &str, quota: u32, cost: u32, window: u64, shape: i64) -> Result<Pair, String> {
    let parts: Vec<&str> = key.split(':').collect();
    let [_, "1", hash, name, algorithm, in_key, ref precision @ ..] = parts[..] else {
        return Err(format!("the key {key}"));
    };
    let (known, says) = match shape {
        0 => (Algorithm::SlidingLog, "log"),
        -1 => (Algorithm::SlidingCounter, "counter"),
        -2 => (Algorithm::FixedWindow, "fixed"),
        precision => {
            (Algorithm::SlidingBuckets { precision: Duration::from_micros(precision as u64) }, "buckets")
        }
    };
    let precision = precision.iter().map(|precision| precision.parse().ok()).collect::<Vec<Option<i64>>>();
    let fits = if shape > 0 { precision == [Some(shape)] } else { precision.is_empty() };
    if algorithm != says || in_key.parse() != Ok(window) || !fits {
        return Err(format!("the key {key} for a window of {window} and the shape {shape}"));
    }
    let policy = Policy::new(name, quota, Duration::from_micros(window));
    let policy = policy.and_then(|policy| policy.with_algorithm(known)).map_err(|error| error.to_string())?;
    Ok(Pair::new(PartitionKey::new("hash", hash), policy, cost))
}

fn policy(like: &Policy, quota: u32) -> Result<Policy, String> {
    let policy = Policy::new(like.name(), quota, like.window());
    policy.and_then(|policy| policy.with_algorithm(like.algorithm())).map_err(|error| error.to_string())
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
}

/// Little-endian numbers, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take(&mut self, bytes: usize) -> Result<u64, String> {
        let (field, rest) = self.0.split_at_checked(bytes).ok_or("the argument ends too soon")?;
        self.0 = rest;
        Ok(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn take_signed(&mut self, bytes: usize) -> Result<i64, String> {
        let unused = 64 - 8 * bytes as u32;
        Ok((self.take(bytes)? << unused) as i64 >> unused)
    }

    fn end(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err("the argument goes on".to_owned()) }
    }
}
