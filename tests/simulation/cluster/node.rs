//! The nodes of a simulated cluster: what each knows of the cluster, its data, and its replies. Decisions are made by the
//! reference model.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use redis::Script;
use tower_sliding_window::backend::{Check, Pair, Purpose};

use super::{
    plan::{Lie, NODES, Phase, Plan, SHARDS},
    record::{Event, Id, Ran, Record},
};
use crate::{
    contract::model::{Handle, Model},
    simulation::{
        plan::NUMBER,
        record::Verdict,
        resp,
        script::{self, Receipt, RefundOfPair, Run, ScriptCall, keys_and_arguments, text},
        server::{Execute, PORT, Session},
        store::{Clock, number},
    },
};

pub const SLOTS: usize = 16_384;

/// All nodes.
pub struct Cluster {
    pub nodes: Vec<Node>,
    /// What the nodes know that are not cut off.
    view: View,
    /// What the nodes knew at the start.
    first: View,
    /// The charges with a receipt, by slot, policy and receipt. As on a server, a later charge may have the same receipt.
    reserved: BTreeMap<(u16, String, Receipt), Reserved>,
    lineages: u64,
    serials: u64,
    plan: Plan,
    record: Record,
}

/// One node.
pub struct Node {
    pub is_down: bool,
    /// The instant until which the node executes no command.
    pub paused_until: Duration,
    /// The instant since which the node has been cut off from the others.
    isolated_since: Option<Duration>,
    /// What a node knows that is cut off.
    stale: Option<View>,
    lie: Option<Lie>,
    data: BTreeMap<u16, Data>,
    /// The hashes of the loaded scripts, and whether each is the merged script.
    scripts: HashMap<String, bool>,
    clock: Clock,
}

/// What a node knows of the cluster.
#[derive(Clone)]
struct View {
    shards: [Shard; SHARDS],
    /// The slots that are not with their first shard.
    moved: BTreeMap<u16, usize>,
    migration: Option<Migration>,
}

#[derive(Clone, Copy)]
struct Shard {
    primary: usize,
    epoch: u64,
}

#[derive(Clone, Copy)]
struct Migration {
    slot: u16,
    to: usize,
    phase: Phase,
}

/// The data of a slot.
#[derive(Default)]
struct Data {
    lineage: u64,
    model: Model,
    /// By policy: the generation and the next receipt of a pair since the last reset.
    receipts: BTreeMap<String, Receipt>,
    /// The serial number of the last reset. Earlier charges are gone.
    last_reset: u64,
    /// All changes, so that a replica can repeat them.
    log: Vec<Change>,
}

struct Change {
    at: Duration,
    serial: u64,
    now: u64,
    what: What,
}

enum What {
    Charge(Check),
    Settle(Check, Handle, u32),
    Reset,
}

struct Reserved {
    id: Id,
    pair: Pair,
    handle: Handle,
    /// Identifies the change that made the charge.
    serial: u64,
}

/// Returns the slot of a key that has a hash tag (Redis cluster specification).
pub fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        let step = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        (0..8).fold(crc ^ u16::from(byte) << 8, step)
    });
    crc % SLOTS as u16
}

impl View {
    fn shard(&self, slot: u16) -> usize {
        self.moved.get(&slot).copied().unwrap_or(usize::from(slot) * SHARDS / SLOTS)
    }

    fn primary(&self, slot: u16) -> usize {
        self.shards[self.shard(slot)].primary
    }

    fn next_epoch(&self) -> u64 {
        self.shards.iter().map(|shard| shard.epoch).max().unwrap_or(0) + 1
    }

    /// Returns the ranges of slots with their shards.
    fn ranges(&self) -> Vec<(u16, u16, usize)> {
        let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
        for slot in 0..SLOTS as u16 {
            match ranges.last_mut() {
                Some((_, last, shard)) if *shard == self.shard(slot) => *last = slot,
                _ => ranges.push((slot, slot, self.shard(slot))),
            }
        }
        ranges
    }
}

impl Data {
    /// Returns the receipt of the next charge of a pair. If the pair is empty, it begins with this generation.
    fn receipt(&mut self, policy: &str, generation: u64, at: u64) -> Receipt {
        let next = self.receipts.entry(policy.to_owned()).or_insert(Receipt { generation, at, ordinal: 0 });
        if next.at != at {
            (next.at, next.ordinal) = (at, 0);
        }
        next.ordinal += 1;
        Receipt { ordinal: next.ordinal - 1, ..*next }
    }

    fn change(&mut self, change: Change) -> Vec<Handle> {
        let handles = match &change.what {
            What::Charge(check) => self.model.check(change.now, check).1,
            What::Settle(check, handle, left) => {
                self.model.settle(change.now, check, &[*handle], &[*left]);
                Vec::new()
            }
            What::Reset => {
                self.model = Model::default();
                self.receipts.clear();
                self.last_reset = change.serial;
                Vec::new()
            }
        };
        self.log.push(change);
        handles
    }
}

impl Cluster {
    pub fn new(plan: Plan, record: Record) -> Self {
        let shards = [0, 1, 2].map(|shard| Shard { primary: shard, epoch: shard as u64 + 1 });
        let view = View { shards, moved: BTreeMap::new(), migration: None };
        let node = |offset| Node {
            is_down: false,
            paused_until: Duration::ZERO,
            isolated_since: None,
            stale: None,
            lie: None,
            data: BTreeMap::new(),
            scripts: HashMap::new(),
            clock: Clock { offset, drift: 0 },
        };
        let nodes = plan.clocks.map(node).into();
        Self {
            nodes,
            first: view.clone(),
            view,
            reserved: BTreeMap::new(),
            lineages: 0,
            serials: 0,
            plan,
            record,
        }
    }

    pub fn primary(&self, shard: usize) -> usize {
        self.view.shards[shard].primary
    }

    pub fn set_lie(&mut self, node: usize, lie: Option<Lie>) {
        self.nodes[node].lie = lie;
    }

    /// Cuts a node off from the other nodes.
    pub fn isolate(&mut self, node: usize, at: Duration) {
        self.nodes[node].isolated_since = Some(at);
        self.nodes[node].stale = Some(self.view.clone());
    }

    /// Ends all faults of a node. A node that is no longer a primary drops its data.
    pub fn rejoin(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        (this.isolated_since, this.stale, this.paused_until) = (None, None, Duration::ZERO);
        if self.view.shards.iter().all(|shard| shard.primary != node) {
            this.data.clear();
        }
    }

    pub fn restart(&mut self, node: usize, loses_data: bool) {
        self.nodes[node].is_down = false;
        self.nodes[node].scripts.clear();
        if loses_data {
            self.nodes[node].data.clear();
        }
        self.rejoin(node);
    }

    /// Promotes the replica of a shard whose primary has failed at an instant. Returns the new primary, or None if the primary
    /// has not failed.
    pub fn fail_over(&mut self, shard: usize, failed_at: Duration, at: Duration) -> usize {
        let old = self.primary(shard);
        let new = (old + SHARDS) % NODES;
        let replicated = failed_at.saturating_sub(self.plan.lag);
        let mut data = BTreeMap::new();
        for (slot, of_old) in &self.nodes[old].data {
            let mut of_new = Data { receipts: of_old.receipts.clone(), ..Data::default() };
            for change in of_old.log.iter().filter(|change| change.at <= replicated) {
                let what = match &change.what {
                    What::Charge(check) => What::Charge(check.clone()),
                    What::Settle(check, handle, left) => What::Settle(check.clone(), *handle, *left),
                    What::Reset => What::Reset,
                };
                of_new.change(Change { what, ..*change });
            }
            // The old primary may go on for a while, so the two always differ from now on.
            self.lineages += 1;
            of_new.lineage = self.lineages;
            data.insert(*slot, of_new);
        }
        self.nodes[new].data = data;
        if self.nodes[old].stale.is_none() {
            // The old primary learns of its successor when it is back.
            self.nodes[old].stale = Some(self.view.clone());
        }
        let epoch = self.view.next_epoch();
        self.view.shards[shard] = Shard { primary: new, epoch };
        self.record.note_at(at, Event::Promoted { shard, node: new });
        new
    }

    /// Moves the slot of a route to a shard, or its keys. Returns whether the slot moves.
    pub fn migrate(&mut self, slot: u16, to: usize, phase: Phase) -> bool {
        let from = self.view.shard(slot);
        let [old, new] = [from, to].map(|shard| self.primary(shard));
        let is_able =
            |node: &Node| !node.is_down && node.stale.is_none() && node.paused_until == Duration::ZERO;
        let continues =
            self.view.migration.is_some_and(|migration| migration.slot == slot && migration.to == to);
        let is_able = from != to && [old, new].iter().all(|node| is_able(&self.nodes[*node]));
        match phase {
            Phase::KeysMoving if !is_able || self.view.migration.is_some() => return false,
            Phase::KeysMoved | Phase::Moved if !continues => return false,
            Phase::KeysMoved if !is_able => {
                self.view.migration = None;
                return false;
            }
            _ => {}
        }
        self.view.migration = (phase != Phase::Moved).then_some(Migration { slot, to, phase });
        if phase == Phase::KeysMoved
            && let Some(data) = self.nodes[old].data.remove(&slot)
        {
            self.nodes[new].data.insert(slot, data);
        }
        if phase == Phase::Moved {
            self.view.moved.insert(slot, to);
            self.view.shards[to].epoch = self.view.next_epoch();
        }
        true
    }

    fn now(&self, node: usize) -> u64 {
        self.nodes[node].clock.reading(turmoil::sim_elapsed().unwrap())
    }

    /// Returns what a node knows.
    fn view(&self, node: usize) -> &View {
        self.nodes[node].stale.as_ref().unwrap_or(&self.view)
    }

    /// Returns whether a node is cut off and knows it.
    fn is_cut_off(&self, node: usize) -> bool {
        let now = turmoil::sim_elapsed().unwrap();
        self.nodes[node].isolated_since.is_some_and(|since| now > since + self.plan.node_timeout)
    }

    fn reply_to(
        &mut self,
        node: usize,
        session: &mut Session,
        command: &[Vec<u8>],
    ) -> Result<Vec<u8>, String> {
        let is_asking = std::mem::take(&mut session.is_asking);
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        match words[..] {
            [b"HELLO", b"3", ..] => Ok(resp::map("server", "redis")),
            [b"CLIENT", b"SETINFO" | b"SETNAME", ..] => Ok(resp::simple("OK")),
            [b"TIME"] => {
                let now = self.now(node);
                let parts = [now / 1_000_000, now % 1_000_000];
                Ok(resp::array(&parts.map(|part| resp::bulk(part.to_string().as_bytes()))))
            }
            [b"ASKING"] => {
                session.is_asking = true;
                Ok(resp::simple("OK"))
            }
            [b"CLUSTER", b"SLOTS"] => Ok(self.cluster_slots(node)),
            [b"CLUSTER", b"INFO" | b"NODES"] if !self.plan.has_permissions => {
                Ok(resp::error("NOPERM User limiter has no permissions to run this command"))
            }
            [b"CLUSTER", b"INFO"] => Ok(self.cluster_info(node)),
            [b"CLUSTER", b"NODES"] => Ok(self.cluster_nodes(node)),
            [b"EVALSHA", hash, ref call @ ..] => {
                let (keys, _) = keys_and_arguments(call)?;
                self.note_asked(&keys, call)?;
                if let Some(error) = self.refuse(node, is_asking, &keys) {
                    return Ok(error);
                }
                match self.nodes[node].scripts.get(&*text(hash)?) {
                    Some(is_merged) => self.run(node, call, *is_merged),
                    None => Ok(resp::error("NOSCRIPT No matching script.")),
                }
            }
            [b"EVAL", script, ref call @ ..] => {
                let (keys, _) = keys_and_arguments(call)?;
                let script = text(script)?;
                let is_merged = script.contains("decide_run");
                self.note_asked(&keys, call)?;
                if let Some(error) = self.refuse(node, is_asking, &keys) {
                    return Ok(error);
                }
                self.nodes[node].scripts.insert(Script::new(&script).get_hash().to_owned(), is_merged);
                self.run(node, call, is_merged)
            }
            _ => Err(format!(
                "{:?}",
                command.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>()
            )),
        }
    }

    fn note_asked(&self, keys: &[String], call: &[&[u8]]) -> Result<(), String> {
        let [key, ..] = keys else { return Ok(()) };
        let note = |check: &Check| {
            self.record.note(Event::Asked { id: number(check.pairs()), slot: slot(key) });
        };
        // The node need not know the script. A merged call is too long for a check.
        match ScriptCall::decode(call).or_else(|_| ScriptCall::decode_merged(call))? {
            ScriptCall::Check { check, .. } => note(&check),
            ScriptCall::Merged(runs) => runs.iter().for_each(|run| note(&run.check)),
            ScriptCall::Refund { .. } | ScriptCall::Reset { .. } => {}
        }
        Ok(())
    }

    /// Returns the error of a node that does not execute a command with these keys.
    fn refuse(&self, node: usize, is_asking: bool, keys: &[String]) -> Option<Vec<u8>> {
        let slot = slot(keys.first()?);
        let refused = |code, error: String| {
            self.record.note(Event::Refused { node, slot, code });
            Some(resp::error(&error))
        };
        if keys.iter().any(|key| self::slot(key) != slot) {
            return Some(resp::error("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        if self.is_cut_off(node) {
            return refused("CLUSTERDOWN", "CLUSTERDOWN The cluster is down".to_owned());
        }
        let view = self.view(node);
        let migration = view.migration.filter(|migration| migration.slot == slot);
        let (owner, target) =
            (view.primary(slot), migration.map(|migration| view.shards[migration.to].primary));
        let moving = migration.map(|migration| migration.phase);
        let try_again = || "TRYAGAIN Multiple keys request during rehashing of slot".to_owned();
        let address = |node: usize| format!("{slot} {}:{PORT}", Plan::node(node));
        if node == owner {
            return match (moving, target) {
                (Some(Phase::KeysMoving), _) => refused("TRYAGAIN", try_again()),
                (Some(Phase::KeysMoved), Some(target)) => refused("ASK", format!("ASK {}", address(target))),
                _ => None,
            };
        }
        if target == Some(node) && is_asking {
            return match moving {
                Some(Phase::KeysMoved) => None,
                _ => refused("TRYAGAIN", try_again()),
            };
        }
        refused("MOVED", format!("MOVED {}", address(owner)))
    }

    /// Executes a change of the data of a slot.
    fn change(&mut self, node: usize, slot: u16, now: u64, what: What) -> (u64, Vec<Handle>) {
        self.serials += 1;
        let serial = self.serials;
        let at = turmoil::sim_elapsed().unwrap();
        (serial, self.data(node, slot).change(Change { at, serial, now, what }))
    }

    fn data(&mut self, node: usize, slot: u16) -> &mut Data {
        let lineages = &mut self.lineages;
        let new = || {
            *lineages += 1;
            Data { lineage: *lineages, ..Data::default() }
        };
        self.nodes[node].data.entry(slot).or_insert_with(new)
    }

    fn run(&mut self, node: usize, call: &[&[u8]], is_merged: bool) -> Result<Vec<u8>, String> {
        let (keys, _) = keys_and_arguments(call)?;
        let slot = slot(keys.first().ok_or("no key")?);
        match decode(call, is_merged)? {
            ScriptCall::Check { check, deadline, generation } => {
                let (_, reply) = self.check(node, slot, check, (deadline, generation));
                Ok(resp::bulk(&reply))
            }
            ScriptCall::Merged(runs) => {
                let checks = runs.iter().map(|run| run.deadlines.len()).sum();
                self.record.note(Event::Merged { checks });
                let decide = |run: &Run, deadline| {
                    Ok(self.check(node, slot, run.check.clone(), (deadline, run.generation)))
                };
                let reply = script::merged_reply(&runs, decide)?;
                Ok(resp::bulk(&[&self.now(node).to_le_bytes()[..], &reply].concat()))
            }
            ScriptCall::Refund { deadline, .. } | ScriptCall::Reset { deadline }
                if self.now(node) > deadline =>
            {
                Ok(resp::bulk(&self.now(node).to_le_bytes()))
            }
            ScriptCall::Refund { refunds, .. } => self.refund(node, slot, &refunds),
            ScriptCall::Reset { .. } => {
                let now = self.now(node);
                self.change(node, slot, now, What::Reset);
                self.record.note(Event::Reset { node, slot });
                Ok(resp::integer(now as i64))
            }
        }
    }

    /// Decides a check. Returns the reply of the check script.
    fn check(
        &mut self,
        node: usize,
        slot: u16,
        check: Check,
        (deadline, generation): (u64, u64),
    ) -> (Verdict, Vec<u8>) {
        let (id, purpose, now) = (number(check.pairs()), check.purpose(), self.now(node));
        let lineage = self.data(node, slot).lineage;
        let ran = |verdict| Event::Ran(Ran { id, node, slot, lineage, reading: now, purpose, verdict });
        if now > deadline {
            self.record.note(ran(Verdict::DeadlineExceeded));
            return (Verdict::DeadlineExceeded, now.to_le_bytes().to_vec());
        }
        let decision = self.data(node, slot).model.peek(now, &check);
        let is_admitted = decision.is_admitted();
        let verdict = match (purpose, is_admitted) {
            (_, false) => Verdict::Denied,
            (Purpose::Overage, true) => Verdict::Overage,
            (_, true) => Verdict::Charged,
        };
        self.record.note(ran(verdict));
        let (mut serial, mut handles) = (0, Vec::new());
        if is_admitted && purpose != Purpose::Peek {
            (serial, handles) = self.change(node, slot, now, What::Charge(check.clone()));
        }
        let receipts = (purpose == Purpose::Reserve).then(|| {
            let pairs = check.pairs().iter().enumerate();
            let receipts = pairs.map(|(i, pair)| {
                let Some(handle) = handles.get(i) else { return Receipt::default() };
                let policy = pair.policy.name();
                let receipt = self.data(node, slot).receipt(policy, generation, now);
                let reserved = Reserved { id, pair: pair.clone(), handle: *handle, serial };
                self.reserved.insert((slot, policy.to_owned(), receipt), reserved);
                receipt
            });
            receipts.collect::<Vec<_>>()
        });
        (verdict, script::reply(&decision, now, receipts.as_deref()))
    }

    fn refund(&mut self, node: usize, slot: u16, refunds: &[RefundOfPair]) -> Result<Vec<u8>, String> {
        let now = self.now(node);
        let mut noted = None;
        let mut is_rollback = false;
        for refund in refunds {
            let policy = refund.policy()?;
            let reserved = self.reserved.get(&(slot, policy, refund.receipt)).ok_or("no such receipt")?;
            let left = refund.left(&reserved.pair)?;
            if reserved.pair.policy.name() == NUMBER {
                is_rollback = true;
            } else {
                noted = Some((reserved.id, refund.units));
            }
            let (serial, handle) = (reserved.serial, reserved.handle);
            let check = Check::new([reserved.pair.clone()]).map_err(|error| error.to_string())?;
            // A failover may have lost the charge.
            let Data { log, last_reset, .. } = self.data(node, slot);
            let is_known = log.binary_search_by_key(&serial, |change| change.serial).is_ok();
            if is_known && serial > *last_reset {
                self.change(node, slot, now, What::Settle(check, handle, left));
            }
        }
        if let Some((id, units)) = noted {
            self.record.note(Event::Refunded { id, node, slot, units, is_rollback });
        }
        Ok(resp::integer(now as i64))
    }

    /// Returns the map that a node reports, and the name of a node that does not exist.
    fn reported(&self, node: usize) -> (&View, impl Fn(usize) -> String) {
        let lie = self.nodes[node].lie;
        let view = if lie.is_some() { &self.first } else { self.view(node) };
        // The second shard is on a node that does not exist.
        let name = move |node: usize| match lie {
            Some(Lie::MissingNode) if node == 1 => "missing-node".to_owned(),
            _ => Plan::node(node),
        };
        (view, name)
    }

    fn cluster_slots(&self, node: usize) -> Vec<u8> {
        let (view, name) = self.reported(node);
        let server = |node: usize| {
            let id = resp::bulk(node_id(node).as_bytes());
            resp::array(&[resp::bulk(name(node).as_bytes()), resp::integer(i64::from(PORT)), id])
        };
        let ranges = view.ranges().into_iter().map(|(first, last, shard)| {
            let primary = view.shards[shard].primary;
            let [first, last] = [first, last].map(|slot| resp::integer(i64::from(slot)));
            resp::array(&[first, last, server(primary), server((primary + SHARDS) % NODES)])
        });
        resp::array(&ranges.collect::<Vec<_>>())
    }

    fn cluster_info(&self, node: usize) -> Vec<u8> {
        let is_ok = self.nodes[node].lie.is_some() || !self.is_cut_off(node);
        let (view, _) = self.reported(node);
        let epoch = view.next_epoch() - 1;
        let state = if is_ok { "ok" } else { "fail" };
        let info = format!(
            "cluster_enabled:1\r\ncluster_state:{state}\r\ncluster_slots_assigned:16384\r\ncluster_known_nodes:{NODES}\r\n\
             cluster_size:{SHARDS}\r\ncluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\n"
        );
        resp::bulk(info.as_bytes())
    }

    fn cluster_nodes(&self, node: usize) -> Vec<u8> {
        let (view, name) = self.reported(node);
        let mut lines = String::new();
        for other in 0..NODES {
            let (id, host) = (node_id(other), name(other));
            let shard = other % SHARDS;
            let Shard { primary, epoch } = view.shards[shard];
            let myself = if other == node { "myself," } else { "" };
            let (role, of) =
                if primary == other { ("master", "-".to_owned()) } else { ("slave", node_id(primary)) };
            let ranges = view.ranges().into_iter().filter(|range| primary == other && range.2 == shard);
            let slots: Vec<String> = ranges
                .map(
                    |(first, last, _)| {
                        if first == last { format!("{first}") } else { format!("{first}-{last}") }
                    },
                )
                .collect();
            let slots = slots.join(" ");
            lines +=
                &format!("{id} {host}:{PORT}@1{PORT} {myself}{role} {of} 0 0 {epoch} connected {slots}\n");
        }
        resp::bulk(lines.as_bytes())
    }
}

fn decode(call: &[&[u8]], is_merged: bool) -> Result<ScriptCall, String> {
    if is_merged { ScriptCall::decode_merged(call) } else { ScriptCall::decode(call) }
}

fn node_id(node: usize) -> String {
    format!("{:040x}", node + 1)
}

/// One node, as its connections see it.
#[derive(Clone)]
pub struct NodeHandle {
    pub number: usize,
    pub cluster: Arc<Mutex<Cluster>>,
}

impl NodeHandle {
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }
}

impl Execute for NodeHandle {
    fn reply_to(&self, session: &mut Session, command: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        self.cluster().reply_to(self.number, session, command)
    }

    fn paused_until(&self) -> Duration {
        self.cluster().nodes[self.number].paused_until
    }

    fn note_unknown_command(&self, what: String) {
        self.cluster().record.note(Event::UnknownCommand(what));
    }
}
