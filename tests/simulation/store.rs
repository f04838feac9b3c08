//! The state of the simulated server: its clock, its loaded scripts and its charges. It replies according to the contract in
//! `lua/README.md`, and decides with the reference model.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_sliding_window::{
    Policy,
    backend::{Check, Pair, Purpose},
};

use super::{
    mutation::{CLOCK_LEAD, Mutation},
    plan::NUMBER,
    record::{Event, Id, Record, Verdict},
    resp,
    script::{self, Receipt, RefundOfPair, Run, ScriptCall, text},
    server::{Execute, Session},
};
use crate::contract::model::{Handle, Model};

pub struct Store {
    model: Model,
    data_losses: u64,
    /// The charges with a receipt. The index is the ordinal of the receipt, and the generation is that of the check.
    reserved: Vec<Reserved>,
    /// The hashes of the loaded scripts, and whether each is the merged script.
    scripts: HashMap<String, bool>,
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
            scripts: HashMap::new(),
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
                if let Some(is_merged) = self.scripts.get(&*text(hash)?) {
                    return self.run(call, *is_merged);
                }
                self.record.note(Event::UnknownScript);
                Ok(resp::error("NOSCRIPT No matching script."))
            }
            [b"EVAL", script, ref call @ ..] => {
                let script = text(script)?;
                let is_merged = script.contains("decide_run");
                self.scripts.insert(redis::Script::new(&script).get_hash().to_owned(), is_merged);
                self.run(call, is_merged)
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

    fn run(&mut self, call: &[&[u8]], is_merged: bool) -> Result<Vec<u8>, String> {
        let call = if is_merged { ScriptCall::decode_merged(call) } else { ScriptCall::decode(call) };
        match call? {
            ScriptCall::Check { check, deadline, generation } => {
                self.check(check, deadline, generation).map(|(_, reply)| resp::bulk(&reply))
            }
            ScriptCall::Merged(runs) => self.merged(&runs),
            ScriptCall::Refund { refunds, deadline } => self.refund(&refunds, deadline),
            ScriptCall::Reset { .. } => Err("a reset".to_owned()),
        }
    }

    /// Decides the checks of a merged call one after another.
    fn merged(&mut self, runs: &[Run]) -> Result<Vec<u8>, String> {
        let now = self.now();
        let reading = self.reported(now).to_le_bytes();
        let checks = runs.iter().map(|run| run.deadlines.len()).sum();
        self.record.note(Event::Merged { checks });
        let decide = |run: &Run, deadline| self.check(run.check.clone(), deadline, run.generation);
        let reply = script::merged_reply(runs, decide)?;
        Ok(resp::bulk(&[&reading[..], &reply].concat()))
    }

    /// Decides a check. Returns the reply of the check script.
    fn check(
        &mut self,
        mut check: Check,
        deadline: u64,
        generation: u64,
    ) -> Result<(Verdict, Vec<u8>), String> {
        let (id, purpose) = (number(check.pairs()), check.purpose());
        let now = self.now();
        if now > deadline && self.mutation != Some(Mutation::ServerIgnoresDeadlines) {
            self.record.note(Event::Decided { id, reading: now, verdict: Verdict::DeadlineExceeded });
            return Ok((Verdict::DeadlineExceeded, self.reported(now).to_le_bytes().to_vec()));
        }
        if self.mutation == Some(Mutation::ServerExceedsQuota) {
            let mut pairs = check.pairs().to_vec();
            for pair in &mut pairs {
                pair.policy = policy(&pair.policy, pair.policy.quota().unwrap().saturating_add(1))?;
            }
            check = Check::new(pairs).map_err(|error| error.to_string())?.with_purpose(purpose);
        }
        let (decision, handles) = self.model.check(now, &check);
        let verdict = match (purpose, decision.is_admitted()) {
            (_, false) => Verdict::Denied,
            (Purpose::Overage, true) => Verdict::Overage,
            (_, true) => Verdict::Charged,
        };
        if purpose != Purpose::Peek {
            self.record.note(Event::Decided { id, reading: now, verdict });
        }
        let receipts = (purpose == Purpose::Reserve).then(|| {
            let mut receipts = self.reserve(id, generation, &check, &handles);
            // A shadow pair that denies has no charge.
            for (receipt, status) in receipts.iter_mut().zip(decision.statuses()) {
                if !status.retry_after().is_zero() {
                    *receipt = Receipt::default();
                }
            }
            receipts
        });
        Ok((verdict, script::reply(&decision, self.reported(now), receipts.as_deref())))
    }

    /// Returns the receipts for these charges, or zeros for a denied check.
    fn reserve(&mut self, id: Id, generation: u64, check: &Check, handles: &[Handle]) -> Vec<Receipt> {
        if handles.is_empty() {
            return vec![Receipt::default(); check.pairs().len()];
        }
        let reserved = check.pairs().iter().zip(handles).map(|(pair, handle)| {
            let data_losses = self.data_losses;
            self.reserved.push(Reserved { id, pair: pair.clone(), handle: *handle, generation, data_losses });
            Receipt { generation, at: 0, ordinal: self.reserved.len() as u32 - 1 }
        });
        reserved.collect()
    }

    fn refund(&mut self, refunds: &[RefundOfPair], deadline: u64) -> Result<Vec<u8>, String> {
        let now = self.now();
        if now > deadline && self.mutation != Some(Mutation::ServerIgnoresDeadlines) {
            return Ok(resp::bulk(&self.reported(now).to_le_bytes()));
        }
        for refund in refunds {
            let reserved = self.reserved.get(refund.receipt.ordinal as usize);
            let reserved = reserved.ok_or("no such receipt")?;
            let left = refund.left(&reserved.pair)?;
            if refund.receipt.generation != reserved.generation {
                return Err("a receipt of another generation".to_owned());
            }
            self.record.note(Event::Refunded { id: reserved.id, units: refund.units });
            if reserved.data_losses == self.data_losses {
                let check = Check::new([reserved.pair.clone()]).map_err(|error| error.to_string())?;
                self.model.settle(now, &check, &[reserved.handle], &[left]);
            }
        }
        Ok(resp::integer(self.reported(now) as i64))
    }
}

impl Execute for Arc<Mutex<Store>> {
    fn reply_to(&self, _: &mut Session, command: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        self.lock().unwrap().reply_to(command)
    }

    fn paused_until(&self) -> Duration {
        self.lock().unwrap().paused_until
    }

    fn note_unknown_command(&self, what: String) {
        self.lock().unwrap().record.note(Event::UnknownCommand(what));
    }
}

/// Returns the number of a check, which is the cost of its last pair.
pub fn number(pairs: &[Pair]) -> Id {
    pairs.iter().find(|pair| pair.policy.name() == NUMBER).map_or(0, |pair| pair.cost)
}

fn policy(like: &Policy, quota: u32) -> Result<Policy, String> {
    let policy = Policy::new(like.name(), quota, like.window().unwrap_or(Duration::from_millis(1)));
    policy.and_then(|policy| policy.with_algorithm(like.algorithm())).map_err(|error| error.to_string())
}
