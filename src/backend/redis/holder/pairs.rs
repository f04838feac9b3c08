//! What this process holds of each pair, and which calls are due: a state machine that neither sends nor sleeps.
//!
//! | state of a unit | meaning | what ends it |
//! | --- | --- | --- |
//! | free | its index may be drawn | |
//! | waiting | its check has no reply yet | a reply; otherwise the deadline, from which on it is released |
//! | held | its request runs | the end of the request |
//! | releasing | a release is sent until it is confirmed | the confirmation, or one hold time |
//!
//! At most one call changes a pair at a time, so a release never overtakes a restoration.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    iter, mem,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    backend::{
        BackendError, Reason,
        redis::{
            keys::Keys,
            script::{
                acquisition::{HeldNumber, MAX_NUMBERS},
                hold::{HeldList, HoldChanges},
            },
        },
    },
    check::{Namespace, Pair},
    key::PartitionKey,
    policy::Policy,
};

/// The largest number of pairs in one call.
const MAX_PAIRS: usize = 64;
/// The largest number of releases and restorations in one call: about 0.2 ms of the server.
const MAX_CHANGES: usize = 256;
/// The largest number of indices of the renewed pairs in one call, beside its first pair: the server replies with all of them.
const MAX_INDICES: usize = 4_096;
/// The largest number of calls in flight for one slot, or for a server without slots.
const MAX_CALLS: usize = 8;
/// The pause after a call that has failed.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) type PairId = u64;

/// All pairs of which this process holds units.
#[derive(Default)]
pub(super) struct HeldPairs {
    by_key: HashMap<Keys, PairId>,
    pairs: HashMap<PairId, HeldPair>,
    groups: HashMap<u16, Group>,
    next_id: PairId,
    /// That of all pairs, so that a pair which is held again has other numbers than before.
    last_number: u32,
}

/// The pairs of one slot, or of a server without slots.
#[derive(Default)]
struct Group {
    /// The pairs that may have changes to send now.
    ready: VecDeque<PairId>,
    /// When each other pair has a change to send.
    timers: BTreeSet<(Instant, PairId)>,
    calls: usize,
    paused_until: Option<Instant>,
}

struct HeldPair {
    /// That of the numbers, and that of the entries.
    keys: Keys,
    slot: u16,
    namespace: Namespace,
    key: PartitionKey,
    policy: Policy,
    units: Vec<Unit>,
    free: BTreeSet<u32>,
    held: usize,
    /// The indices of the numbers to release, each with the instant from which on it is: those of ended requests, and those that only the
    /// store knows.
    releasing: BTreeSet<(Instant, u32)>,
    /// The indices of the numbers to restore.
    restoring: BTreeSet<u32>,
    /// The units that the entry had beyond its numbers at the last renewal: those of a number that another one has replaced.
    surplus: i32,
    /// The index of a charge which states that nothing else is held, until its outcome is known, and since when that of the last one is.
    /// Such a charge corrects the units of the entry.
    alone: Option<u32>,
    corrected: Instant,
    renew_at: Option<Instant>,
    /// A pair whose changes were not made pauses until then.
    not_before: Option<Instant>,
    /// When the last call was sent that has extended the entry.
    extended: Instant,
    is_in_call: bool,
    is_ready: bool,
    timer: Option<Instant>,
}

struct Unit {
    number: HeldNumber,
    state: UnitState,
    was_interrupted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnitState {
    Free,
    Waiting,
    /// Since this instant.
    Held(Instant),
    Releasing {
        from: Instant,
        until: Instant,
    },
}

/// A call that is due.
pub(crate) struct HoldCall {
    pub(crate) slot: u16,
    pub(crate) sent: Instant,
    /// How long it may take.
    pub(crate) timeout: Duration,
    pub(crate) pairs: Vec<(PairId, Keys, HoldChanges)>,
}

/// What a call has changed.
#[derive(Default)]
pub(super) struct HoldOutcome {
    pub(super) released: Vec<(Namespace, PartitionKey, Policy)>,
    /// The number of units that the store did not hold.
    pub(super) interrupted: u64,
}

impl HeldPairs {
    /// Draws a number of a pair for a check that is about to be sent. Also returns whether it is the only one.
    pub(super) fn draw(
        &mut self,
        keys: Keys,
        slot: u16,
        namespace: &Namespace,
        pair: &Pair,
    ) -> Result<(PairId, HeldNumber, bool), BackendError> {
        let id = match self.by_key.get(&keys) {
            Some(id) => *id,
            None => {
                self.next_id += 1;
                self.by_key.insert(keys.clone(), self.next_id);
                let held = HeldPair::new(keys, slot, namespace, pair);
                self.pairs.insert(self.next_id, held);
                self.next_id
            }
        };
        let Some(held) = self.pairs.get_mut(&id) else { return Err(BackendError::new(Reason::Other)) };
        // A reload may change the hold time.
        held.policy = pair.policy.clone();
        // A call may subtract what such a charge has corrected.
        let is_alone = held.free.len() == held.units.len() && !held.is_in_call;
        self.last_number = self.last_number.wrapping_add(1).max(1);
        let number = held.draw(self.last_number, pair.cost)?;
        if is_alone {
            (held.alone, held.surplus) = (Some(number.index), 0);
        }
        Ok((id, number, is_alone))
    }

    /// Notes that a check which was sent at this instant holds a number, with these units.
    pub(super) fn confirm(&mut self, id: PairId, index: u32, units: u32, sent: Instant) {
        self.change(id, |pair| {
            if sent >= pair.extended + pair.hold_time() {
                // The entry had ended before this check extended it.
                let held = pair.units.iter_mut().filter(|unit| matches!(unit.state, UnitState::Held(_)));
                held.for_each(|unit| unit.was_interrupted = true);
            }
            pair.resolve(index, Instant::now());
            let Some(unit) = pair.units.get_mut(index as usize) else { return };
            (unit.state, unit.number.units) = (UnitState::Held(Instant::now()), units);
            pair.held += 1;
            pair.extended = pair.extended.max(sent);
            let due = sent + pair.third();
            pair.renew_at = Some(pair.renew_at.map_or(due, |at| at.min(due)));
        });
    }

    /// Notes that a check holds nothing.
    pub(super) fn forget(&mut self, id: PairId, index: u32) {
        self.change(id, |pair| pair.make_free(index));
    }

    /// Releases a number, from this instant on.
    pub(super) fn release(&mut self, id: PairId, index: u32, from: Instant) {
        self.change(id, |pair| pair.release(index, from));
    }

    /// Returns whether the store may not have held a unit all the time.
    pub(super) fn was_interrupted(&self, id: PairId, index: u32) -> bool {
        self.pairs.get(&id).is_none_or(|pair| {
            let unit = pair.units.get(index as usize);
            unit.is_none_or(|unit| unit.was_interrupted) || Instant::now() >= pair.extended + pair.hold_time()
        })
    }

    /// Returns the calls that are due now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<HoldCall> {
        let (mut calls, mut unused) = (Vec::new(), Vec::new());
        let Self { pairs, groups, .. } = self;
        for (slot, group) in
            groups.iter_mut().filter(|(_, group)| group.paused_until.is_none_or(|until| until <= now))
        {
            group.paused_until = None;
            while let Some((_, id)) = group.timers.first().copied().filter(|(at, _)| *at <= now) {
                group.timers.pop_first();
                if let Some(pair) = pairs.get_mut(&id) {
                    pair.timer = None;
                    if !mem::replace(&mut pair.is_ready, true) {
                        group.ready.push_back(id);
                    }
                }
            }
            while group.calls < MAX_CALLS && !group.ready.is_empty() {
                let call = group.next_call(*slot, pairs, now, &mut unused);
                if !call.pairs.is_empty() {
                    group.calls += 1;
                    calls.push(call);
                }
            }
        }
        for id in unused {
            // It removes the pair.
            self.change(id, |_| {});
        }
        calls
    }

    /// Learns the outcome of a call: for each pair, the numbers that the store holds.
    pub(super) fn complete(
        &mut self,
        call: HoldCall,
        lists: Result<Vec<Option<HeldList>>, BackendError>,
    ) -> HoldOutcome {
        let (mut outcome, now) = (HoldOutcome::default(), Instant::now());
        let failed = lists.as_ref().err().map(BackendError::reason);
        if let Some(group) = self.groups.get_mut(&call.slot) {
            group.calls -= 1;
            group.paused_until = failed.map(|_| now + PAUSE);
        }
        let lists = lists.unwrap_or_default().into_iter().chain(iter::repeat_with(|| None));
        for ((id, _, changes), list) in call.pairs.into_iter().zip(lists) {
            self.change(id, |pair| {
                pair.is_in_call = false;
                if failed == Some(Reason::CrossSlot) {
                    // Now this is known to be a cluster.
                    pair.slot = pair.keys.slot();
                }
                match list {
                    Some(list) => {
                        pair.not_before = None;
                        pair.complete(&changes, &list, call.sent, &mut outcome);
                    }
                    None => pair.not_before = Some(now + PAUSE),
                }
            });
        }
        outcome
    }

    /// Returns when the next call is due. `None` if there is none.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = self.groups.values().filter(|group| group.calls < MAX_CALLS).filter_map(|group| {
            let timer = group.timers.first().map(|(at, _)| *at);
            let ready = (!group.ready.is_empty()).then(Instant::now);
            let due = timer.into_iter().chain(ready).min()?;
            Some(group.paused_until.map_or(due, |until| due.max(until)))
        });
        due.min()
    }

    /// Returns whether this process neither holds a unit, nor waits for one, nor releases one.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns when the last of the releases is given up. `None` if there are none.
    pub(super) fn last_release_ends(&self) -> Option<Instant> {
        let last = |pair: &HeldPair| Some(pair.releasing.last()?.0 + pair.hold_time());
        self.pairs.values().filter_map(last).max()
    }

    /// Returns whether a release is not confirmed yet.
    pub(super) fn is_releasing(&self) -> bool {
        self.pairs.values().any(|pair| !pair.releasing.is_empty())
    }

    /// Changes a pair, and notes when it has changes to send. Removes it if nothing is left.
    fn change(&mut self, id: PairId, change: impl FnOnce(&mut HeldPair)) {
        let Self { by_key, pairs, groups, .. } = self;
        let Some(pair) = pairs.get_mut(&id) else { return };
        let slot = pair.slot;
        change(pair);
        if let Some(timer) = pair.timer.take()
            && let Some(group) = groups.get_mut(&slot)
        {
            group.timers.remove(&(timer, id));
        }
        if pair.is_unused() {
            by_key.remove(&pair.keys);
            pairs.remove(&id);
        } else if !pair.is_in_call && !pair.is_ready {
            let group = groups.entry(pair.slot).or_default();
            match pair.due_at() {
                Some(at) if at <= Instant::now() => {
                    pair.is_ready = true;
                    group.ready.push_back(id);
                }
                Some(at) => {
                    pair.timer = Some(at);
                    group.timers.insert((at, id));
                }
                None => {}
            }
        }
        if groups
            .get(&slot)
            .is_some_and(|group| group.calls == 0 && group.ready.is_empty() && group.timers.is_empty())
        {
            groups.remove(&slot);
        }
    }
}

impl Group {
    /// Returns the next call. It has no pairs if none is due. Adds the pairs of which nothing is left to `unused`.
    fn next_call(
        &mut self,
        slot: u16,
        pairs: &mut HashMap<PairId, HeldPair>,
        now: Instant,
        unused: &mut Vec<PairId>,
    ) -> HoldCall {
        let mut call = HoldCall { slot, sent: now, timeout: Duration::from_secs(1), pairs: Vec::new() };
        let (mut room, mut indices) = (MAX_CHANGES, 0);
        while call.pairs.len() < MAX_PAIRS && room > 0 && indices < MAX_INDICES {
            let Some(id) = self.ready.pop_front() else { break };
            let Some(pair) = pairs.get_mut(&id) else { continue };
            pair.is_ready = false;
            if pair.is_in_call {
                // Its end makes it ready again.
                continue;
            }
            let is_due = pair.renew_at.is_some_and(|at| at <= now);
            pair.join(id, &mut call, &mut room, is_due);
            indices += if is_due { pair.units.len() } else { 0 };
            if pair.is_unused() {
                unused.push(id);
            } else if !pair.is_in_call
                && let Some(at) = pair.due_at()
            {
                pair.timer = Some(at);
                self.timers.insert((at, id));
            }
        }
        if call.pairs.iter().any(|(_, _, changes)| changes.renews) {
            // Others are renewed earlier, so that fewer calls are needed.
            let next: Vec<(Instant, PairId)> =
                self.timers.iter().take(MAX_PAIRS - call.pairs.len()).copied().collect();
            for (at, id) in next {
                let renewed =
                    pairs.get_mut(&id).filter(|pair| pair.renew_at.is_some() && indices < MAX_INDICES);
                if let Some(pair) = renewed {
                    indices += pair.units.len();
                    self.timers.remove(&(at, id));
                    pair.timer = None;
                    pair.join(id, &mut call, &mut room, true);
                }
            }
        }
        call
    }
}

impl HeldPair {
    fn new(keys: Keys, slot: u16, namespace: &Namespace, pair: &Pair) -> Self {
        Self {
            keys,
            slot,
            namespace: namespace.clone(),
            key: pair.key.clone(),
            policy: pair.policy.clone(),
            units: Vec::new(),
            free: BTreeSet::new(),
            held: 0,
            releasing: BTreeSet::new(),
            restoring: BTreeSet::new(),
            surplus: 0,
            alone: None,
            corrected: Instant::now(),
            renew_at: None,
            not_before: None,
            extended: Instant::now(),
            is_in_call: false,
            is_ready: false,
            timer: None,
        }
    }

    fn hold_time(&self) -> Duration {
        Duration::from_micros(self.policy.window_micros())
    }

    fn third(&self) -> Duration {
        self.hold_time() / 3
    }

    fn draw(&mut self, number: u32, units: u32) -> Result<HeldNumber, BackendError> {
        let index = match self.free.pop_first() {
            Some(index) => index,
            None if self.units.len() < MAX_NUMBERS as usize => self.units.len() as u32,
            None => return Err(BackendError::new(Reason::Overloaded)),
        };
        let number = HeldNumber { index, number, units };
        let unit = Unit { number, state: UnitState::Waiting, was_interrupted: false };
        match self.units.get_mut(index as usize) {
            Some(free) => *free = unit,
            None => self.units.push(unit),
        }
        Ok(number)
    }

    /// Notes that the outcome of a charge is known from an instant on.
    fn resolve(&mut self, index: u32, from: Instant) {
        if self.alone == Some(index) {
            (self.alone, self.corrected) = (None, from);
        }
    }

    fn make_free(&mut self, index: u32) {
        self.resolve(index, Instant::now());
        let Some(unit) = self.units.get_mut(index as usize) else { return };
        if let UnitState::Releasing { from, .. } = unit.state {
            self.releasing.remove(&(from, index));
        }
        unit.state = UnitState::Free;
        self.free.insert(index);
    }

    fn is_unused(&self) -> bool {
        self.free.len() == self.units.len() && self.releasing.is_empty() && !self.is_in_call
    }

    /// Returns when there is something to send.
    fn due_at(&self) -> Option<Instant> {
        let release = self.releasing.first().map(|(from, _)| *from);
        let restore = (!self.restoring.is_empty() || self.surplus != 0).then_some(self.extended);
        let due = [self.renew_at, release, restore].into_iter().flatten().min()?;
        Some(self.not_before.map_or(due, |at| due.max(at)))
    }

    /// Adds the changes that are due to a call, if there are any.
    fn join(&mut self, id: PairId, call: &mut HoldCall, room: &mut usize, renews: bool) {
        let mut releases = Vec::new();
        let due: Vec<u32> = self
            .releasing
            .iter()
            .take_while(|(from, _)| *from <= call.sent)
            .map(|(_, index)| *index)
            .take(*room)
            .collect();
        for index in due {
            match self.units.get(index as usize) {
                Some(Unit { state: UnitState::Releasing { until, .. }, .. }) if *until <= call.sent => {
                    // Its entry has ended.
                    self.make_free(index);
                }
                Some(unit) => releases.push(unit.number),
                None => {}
            }
        }
        *room -= releases.len();
        let restored = self.restoring.iter().filter_map(|index| self.units.get(*index as usize));
        let restores: Vec<HeldNumber> = restored.map(|unit| unit.number).take(*room).collect();
        *room -= restores.len();
        if releases.is_empty() && restores.is_empty() && self.surplus == 0 && !renews {
            return;
        }
        self.is_in_call = true;
        // It is subtracted at most once. If this call fails, the next renewal finds it again.
        let surplus = mem::take(&mut self.surplus);
        call.timeout = call.timeout.min(self.hold_time() / 6);
        let hold_micros = self.policy.window_micros();
        call.pairs.push((
            id,
            self.keys.clone(),
            HoldChanges { hold_micros, renews, surplus, releases, restores },
        ));
    }

    /// Releases a number, from this instant on.
    fn release(&mut self, index: u32, from: Instant) {
        self.resolve(index, from);
        let until = from + self.hold_time();
        let Some(unit) = self.units.get_mut(index as usize) else { return };
        self.held -= usize::from(matches!(unit.state, UnitState::Held(_)));
        unit.state = UnitState::Releasing { from, until };
        self.releasing.insert((from, index));
        self.restoring.remove(&index);
    }

    /// Releases a number that only the store knows, unless its place is in use.
    fn release_unknown(&mut self, number: HeldNumber, from: Instant) {
        if number.index >= MAX_NUMBERS {
            return;
        }
        for index in self.units.len() as u32..=number.index {
            let number = HeldNumber { index, ..HeldNumber::default() };
            self.units.push(Unit { number, state: UnitState::Free, was_interrupted: false });
            self.free.insert(index);
        }
        if self.free.remove(&number.index)
            && let Some(unit) = self.units.get_mut(number.index as usize)
        {
            unit.number = number;
            self.release(number.index, from);
        }
    }

    /// Learns from the reply to changes that were sent at this instant.
    fn complete(
        &mut self,
        changes: &HoldChanges,
        HeldList { units, numbers }: &HeldList,
        sent: Instant,
        outcome: &mut HoldOutcome,
    ) {
        for number in &changes.releases {
            let unit = self.units.get(number.index as usize).filter(|unit| unit.number == *number);
            if matches!(unit, Some(Unit { state: UnitState::Releasing { .. }, .. })) {
                self.make_free(number.index);
                outcome.released.push((self.namespace.clone(), self.key.clone(), self.policy.clone()));
            }
        }
        for number in &changes.restores {
            self.restoring.remove(&number.index);
        }
        if !changes.renews {
            return;
        }
        self.extended = self.extended.max(sent);
        let listed: i64 = numbers.iter().map(|number| i64::from(number.units)).sum();
        if self.alone.is_none() && self.corrected < sent {
            self.surplus = i32::try_from(i64::from(*units) - listed).unwrap_or_default();
        }
        for listed in numbers {
            let unit = self.units.get(listed.index as usize);
            if unit.is_none_or(|unit| unit.state == UnitState::Free) {
                self.release_unknown(*listed, sent);
            }
        }
        let is_listed = |number: &HeldNumber| {
            let found = numbers.binary_search_by_key(&number.index, |listed| listed.index);
            found.is_ok_and(|i| numbers[i].number == number.number)
        };
        for unit in &mut self.units {
            // A unit that was confirmed later may be missing in the reply.
            if matches!(unit.state, UnitState::Held(since) if since < sent)
                && !is_listed(&unit.number)
                && !self.restoring.contains(&unit.number.index)
            {
                unit.was_interrupted = true;
                outcome.interrupted += 1;
                self.restoring.insert(unit.number.index);
            }
        }
        self.renew_at = (self.held > 0).then(|| sent + self.third());
    }
}
