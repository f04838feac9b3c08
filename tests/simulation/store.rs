//! The state of the simulated server: its clock, its loaded scripts and its charges. It replies according to the contract in
//! `lua/README.md`, and decides with the reference model.

use std::{collections::HashSet, time::Duration};

use tower_sliding_window::{
    Algorithm, Decision, PartitionKey, Policy, Wait,
    backend::{Check, Pair, Purpose},
};

use super::{
    mutation::{CLOCK_LEAD, Mutation},
    plan::NUMBER,
    record::{Event, Id, Record, Verdict},
    resp,
};
use crate::contract::model::{Handle, Model};

pub struct Store {
    model: Model,
    data_losses: u64,
    /// The charges with a receipt. The index is the ordinal of the receipt, and the generation is that of the check.
    reserved: Vec<Reserved>,
    scripts: HashSet<String>,
    clock: Clock,
    /// The instant until which the server executes no command, in true time.
    pub paused_until: Duration,
    mutation: Option<Mutation>,
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
    /// The number of data losses before the charge.
    data_losses: u64,
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
    pub fn new(drift: i64, mutation: Option<Mutation>, record: Record) -> Self {
        Self {
            model: Model::default(),
            data_losses: 0,
            reserved: Vec::new(),
            scripts: HashSet::new(),
            clock: Clock { offset: 0, drift },
            paused_until: Duration::ZERO,
            mutation,
            record,
        }
    }

    /// Restarts the server, with or without its data.
    pub fn start(&mut self, loses_data: bool) {
        self.scripts.clear();
        self.paused_until = Duration::ZERO;
        if loses_data {
            self.data_losses += 1;
            self.model = Model::default();
        }
    }

    pub fn set_clock(&mut self, by: i64) {
        self.clock.offset += by;
    }

    /// Returns the reply to a command, or an error text if the client must not send this command.
    pub fn reply_to(&mut self, command: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        match words[..] {
            [b"HELLO", b"3", ..] => Ok(resp::map("server", "redis")),
            [b"CLIENT", b"SETINFO" | b"SETNAME", ..] => Ok(resp::simple("OK")),
            [b"TIME"] => {
                let now = self.reported(self.now());
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

    fn reported(&self, now: u64) -> u64 {
        if self.mutation == Some(Mutation::ServerReportsClockAhead) { now + CLOCK_LEAD } else { now }
    }

    /// Runs a script call: the number of keys, the keys and the arguments.
    fn run(&mut self, call: &[&[u8]]) -> Result<Vec<u8>, String> {
        let (count, rest) = call.split_first().ok_or("no number of keys")?;
        let count = text(count)?.parse().map_err(|_| "no number of keys")?;
        let (keys, arguments) = rest.split_at_checked(count).ok_or("too few keys")?;
        let keys = keys.iter().map(|key| text(key)).collect::<Result<Vec<_>, _>>()?;
        match arguments {
            // The lengths of refunds and checks never coincide.
            [refund] if refund.len() == 33 * count => self.refund(&keys, refund),
            [check] if check.len() == 20 * count + 15 => self.check(&keys, check, Purpose::Charge),
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
        let (deadline, generation) = (fields.take(8)?, fields.take(7)?);
        fields.end()?;
        let id = number(&pairs);
        let now = self.now();
        if now > deadline && self.mutation != Some(Mutation::ServerIgnoresDeadlines) {
            self.record.note(Event::Decided { id, reading: now, verdict: Verdict::DeadlineExceeded });
            return Ok(resp::bulk(&self.reported(now).to_le_bytes()));
        }
        if self.mutation == Some(Mutation::ServerExceedsQuota) {
            for pair in &mut pairs {
                pair.policy = policy(&pair.policy, pair.policy.quota().saturating_add(1))?;
            }
        }
        let check = Check::new(pairs).map_err(|error| error.to_string())?.with_purpose(purpose);
        let (decision, handles) = self.model.check(now, &check);
        let verdict = match (purpose, decision.is_admitted()) {
            (_, false) => Verdict::Denied,
            (Purpose::Overage, true) => Verdict::Overage,
            (_, true) => Verdict::Charged,
        };
        if purpose != Purpose::Peek {
            self.record.note(Event::Decided { id, reading: now, verdict });
        }
        let receipts = (purpose == Purpose::Reserve).then(|| self.reserve(id, generation, &check, &handles));
        Ok(resp::bulk(&reply(&decision, self.reported(now), receipts.as_deref())))
    }

    /// Returns the generations and the ordinals of the receipts for these charges, or zeros for a denied check.
    fn reserve(&mut self, id: Id, generation: u64, check: &Check, handles: &[Handle]) -> Vec<(u64, u64)> {
        if handles.is_empty() {
            return vec![(0, 0); check.pairs().len()];
        }
        let reserved = check.pairs().iter().zip(handles).map(|(pair, handle)| {
            let data_losses = self.data_losses;
            self.reserved.push(Reserved { id, pair: pair.clone(), handle: *handle, generation, data_losses });
            (generation, self.reserved.len() as u64 - 1)
        });
        reserved.collect()
    }

    fn refund(&mut self, keys: &[String], argument: &[u8]) -> Result<Vec<u8>, String> {
        let mut fields = Fields(argument);
        let now = self.now();
        for key in keys {
            let (units, window, shape) = (fields.take(4)? as u32, fields.take(6)?, fields.take_signed(6)?);
            let (generation, _instant, ordinal) = (fields.take(7)?, fields.take(7)?, fields.take(3)?);
            let reserved = self.reserved.get(ordinal as usize).ok_or("no such receipt")?;
            let pair_of_key = pair(key, reserved.pair.policy.quota(), 0, window, shape)?;
            let left = reserved.pair.cost.checked_sub(units).ok_or("more than was charged")?;
            if pair_of_key.key != reserved.pair.key
                || pair_of_key.policy.name() != reserved.pair.policy.name()
            {
                return Err("a receipt of another pair".to_owned());
            }
            if generation != reserved.generation {
                return Err("a receipt of another generation".to_owned());
            }
            self.record.note(Event::Refunded { id: reserved.id, units });
            if reserved.data_losses == self.data_losses {
                let check = Check::new([reserved.pair.clone()]).map_err(|error| error.to_string())?;
                self.model.settle(now, &check, &[reserved.handle], &[left]);
            }
        }
        fields.end()?;
        Ok(resp::integer(self.reported(now) as i64))
    }
}

/// Returns the number of a check, which is the cost of its last pair.
fn number(pairs: &[Pair]) -> Id {
    pairs.iter().find(|pair| pair.policy.name() == NUMBER).map_or(0, |pair| pair.cost)
}

fn reply(decision: &Decision, reading: u64, receipts: Option<&[(u64, u64)]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, status) in decision.statuses().iter().enumerate() {
        let (verdict, retry) = match status.retry_after() {
            Wait::Never => (2, Duration::ZERO),
            Wait::For(Duration::ZERO) => (0, Duration::ZERO),
            Wait::For(wait) => (1, wait),
        };
        bytes.extend(reading.to_le_bytes());
        bytes.push(verdict);
        bytes.extend(status.remaining().to_le_bytes());
        for wait in [retry, status.next_after(), status.reset_after()] {
            bytes.extend((wait.as_micros() as u64).to_le_bytes());
        }
        if let Some(receipts) = receipts {
            let (generation, ordinal) = receipts[i];
            bytes.extend(&generation.to_le_bytes()[..7]);
            bytes.extend([0; 7]);
            bytes.extend(&ordinal.to_le_bytes()[..3]);
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
    let (kind, label) = match shape {
        0 => (Algorithm::SlidingLog, "log"),
        -1 => (Algorithm::SlidingCounter, "counter"),
        -2 => (Algorithm::FixedWindow, "fixed"),
        precision => {
            (Algorithm::SlidingBuckets { precision: Duration::from_micros(precision as u64) }, "buckets")
        }
    };
    let precision = precision.iter().map(|precision| precision.parse().ok()).collect::<Vec<Option<i64>>>();
    let fits = if shape > 0 { precision == [Some(shape)] } else { precision.is_empty() };
    if algorithm != label || in_key.parse() != Ok(window) || !fits {
        return Err(format!("the key {key} for a window of {window} and the shape {shape}"));
    }
    let policy = Policy::new(name, quota, Duration::from_micros(window));
    let policy = policy.and_then(|policy| policy.with_algorithm(kind)).map_err(|error| error.to_string())?;
    Ok(Pair::new(PartitionKey::new("hash", hash), policy, cost))
}

fn policy(like: &Policy, quota: u32) -> Result<Policy, String> {
    let policy = Policy::new(like.name(), quota, like.window());
    policy.and_then(|policy| policy.with_algorithm(like.algorithm())).map_err(|error| error.to_string())
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
}

/// A reader of consecutive little-endian numbers.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take(&mut self, bytes: usize) -> Result<u64, String> {
        let (field, rest) = self.0.split_at_checked(bytes).ok_or("the argument is too short")?;
        self.0 = rest;
        Ok(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn take_signed(&mut self, bytes: usize) -> Result<i64, String> {
        let unused = 64 - 8 * bytes as u32;
        Ok((self.take(bytes)? << unused) as i64 >> unused)
    }

    fn end(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err("the argument is too long".to_owned()) }
    }
}
