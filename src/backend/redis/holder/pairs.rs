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
    collections::{BTreeMap, BTreeSet, HashMap},
    iter, mem,
    sync::Arc,
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
};

/// The largest number of pairs in one call.
const MAX_PAIRS: usize = 64;
/// The largest number of releases and restorations in one call: about 2 ms of the server if it holds tens of thousands.
const MAX_CHANGES: usize = 256;
/// The largest number of indices of the renewed pairs in one call, beside its first pair: the server replies with all of them.
const MAX_INDICES: usize = 4_096;
/// The largest number of calls in flight for one slot, or for a server without slots.
const MAX_CALLS: usize = 8;
/// The pause after a call that has failed.
const PAUSE: Duration = Duration::from_millis(50);

/// All pairs of which this process holds units, each by its keys: that of the numbers, and that of the entries.
#[derive(Default)]
pub(super) struct HeldPairs {
    pairs: HashMap<Arc<Keys>, HeldPair>,
    groups: HashMap<u16, Group>,
    /// The groups of which a call is due, with when it is.
    due_groups: BTreeSet<(Instant, u16)>,
    /// That of all pairs, so that a pair which is held again has other numbers than before.
    last_number: u32,
}

/// The pairs of one slot, or of a server without slots.
#[derive(Default)]
struct Group {
    /// When each pair that is in no call has a change to send.
    timers: BTreeSet<(Instant, Arc<Keys>)>,
    calls: usize,
    paused_until: Option<Instant>,
}

/// What this process holds of one pair.
pub(super) struct HeldPair {
    slot: u16,
    namespace: Namespace,
    pair: Pair,
    /// By the index of their numbers.
    units: BTreeMap<u32, Unit>,
    /// The other indices, up to the largest that was in use.
    free: BTreeSet<u32>,
    /// The indices of the numbers to restore, and of those to release: those of ended requests, and those that only the store knows. Each
    /// with the instant of its unit.
    changing: BTreeSet<(Instant, u32)>,
    /// The units that the entry had beyond its numbers at the last renewal: those of a number that another one has replaced.
    surplus: i32,
    /// Since when the outcome of the first charge is known. It states that nothing else is held, and corrects the units of the entry.
    corrected: Option<Instant>,
    renew_at: Option<Instant>,
    /// A pair whose changes were not made pauses until then.
    not_before: Option<Instant>,
    /// When the last call was sent that has extended the entry, and the hold time that it had.
    extended: Instant,
    held_for: Duration,
    /// When a check was drawn that may have shortened the entry since the last renewal, and its hold time.
    shortened: Option<(Instant, Duration)>,
    is_in_call: bool,
}

struct Unit {
    number: HeldNumber,
    state: UnitState,
    /// Since when it is in its state. From when on it is released.
    at: Instant,
    was_interrupted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnitState {
    Waiting,
    Held,
    Releasing,
}

/// A call that is due.
pub(crate) struct HoldCall {
    pub(crate) slot: u16,
    pub(crate) sent: Instant,
    /// Until when it may take.
    pub(crate) end: Instant,
    pub(crate) pairs: Vec<(Arc<Keys>, HoldChanges)>,
}

/// What a call has changed.
#[derive(Default)]
pub(super) struct HoldOutcome {
    pub(super) released: Vec<(Namespace, Pair)>,
    /// The number of units that the store did not hold.
    pub(super) interrupted: u64,
}

impl HeldPairs {
    /// Draws a number of a pair for a check that is about to be sent. Also returns whether it is the only one.
    pub(super) fn draw(
        &mut self,
        keys: &Arc<Keys>,
        slot: u16,
        namespace: &Namespace,
        pair: &Pair,
    ) -> Result<(HeldNumber, bool), BackendError> {
        let held = self.pairs.entry(keys.clone()).or_insert_with(|| HeldPair {
            slot,
            namespace: namespace.clone(),
            pair: pair.clone(),
            units: BTreeMap::new(),
            free: BTreeSet::new(),
            changing: BTreeSet::new(),
            surplus: 0,
            corrected: None,
            renew_at: None,
            not_before: None,
            extended: Instant::now(),
            held_for: Duration::from_micros(pair.policy.window_micros()),
            shortened: None,
            is_in_call: false,
        });
        // A reload may change the hold time.
        held.pair.policy = pair.policy.clone();
        // A call may subtract what such a charge has corrected.
        let is_alone = held.units.is_empty() && !held.is_in_call;
        self.last_number = self.last_number.wrapping_add(1).max(1);
        let index = match held.free.pop_first() {
            Some(index) => index,
            None if held.units.len() < MAX_NUMBERS as usize => held.units.len() as u32,
            None => return Err(BackendError::new(Reason::Overloaded).not_sent("no number is free")),
        };
        let number = HeldNumber { index, number: self.last_number, units: pair.cost };
        held.units.insert(index, Unit::waiting(number));
        if held.hold_time() < held.held_for {
            self.change(keys, HeldPair::may_shorten);
        }
        Ok((number, is_alone))
    }

    /// Returns whether a check may have shortened the entry of a pair since the last renewal, so that the next one is due earlier.
    pub(super) fn may_be_shortened(&self, keys: &Arc<Keys>) -> bool {
        self.pairs.get(keys).is_some_and(|pair| pair.shortened.is_some())
    }

    /// Returns whether the store may not have held a unit all the time.
    pub(super) fn was_interrupted(&self, keys: &Arc<Keys>, index: u32) -> bool {
        self.pairs.get(keys).is_none_or(|pair| {
            let unit = pair.units.get(&index);
            unit.is_none_or(|unit| unit.was_interrupted) || Instant::now() >= pair.ends()
        })
    }

    /// Returns the calls that are due now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<HoldCall> {
        let slots: Vec<u16> =
            self.due_groups.iter().take_while(|(at, _)| *at <= now).map(|(_, slot)| *slot).collect();
        let mut calls = Vec::new();
        for slot in slots {
            calls.extend(iter::from_fn(|| self.next_call(slot, now)));
        }
        calls
    }

    /// Returns the next call of a group. `None` if none is due.
    fn next_call(&mut self, slot: u16, now: Instant) -> Option<HoldCall> {
        let group = self.groups.get(&slot)?;
        group.next_due().filter(|at| *at <= now)?;
        let next: Vec<(Instant, Arc<Keys>)> = group.timers.iter().take(MAX_PAIRS).cloned().collect();
        let mut call = HoldCall { slot, sent: now, end: now + Duration::from_secs(1), pairs: Vec::new() };
        let (mut room, mut indices) = (MAX_CHANGES, 0);
        for (at, keys) in next {
            let (is_due, has_renewals) = (at <= now, indices > 0);
            if room == 0 || indices >= MAX_INDICES || !is_due && !has_renewals {
                break;
            }
            self.change(&keys, |pair| {
                // Others are renewed earlier, so that fewer calls are needed.
                let renews = pair.renew_at.is_some_and(|due| due <= now || has_renewals);
                if renews {
                    indices += pair.units.len() + pair.free.len();
                }
                if renews || is_due {
                    pair.join(&keys, &mut call, &mut room, renews);
                }
            });
        }
        if call.pairs.is_empty() {
            return None;
        }
        self.change_group(slot, |group| group.calls += 1);
        Some(call)
    }

    /// Learns the outcome of a call: for each pair, the numbers that the store holds. The caller drops an error when it holds no lock.
    pub(super) fn complete(
        &mut self,
        call: &HoldCall,
        lists: &Result<Vec<Option<HeldList>>, BackendError>,
    ) -> HoldOutcome {
        let (mut outcome, now) = (HoldOutcome::default(), Instant::now());
        let failed = lists.as_ref().err().map(BackendError::reason);
        let lists = lists.iter().flatten().map(Option::as_ref).chain(iter::repeat(None));
        for ((keys, changes), list) in call.pairs.iter().zip(lists) {
            self.change(keys, |pair| {
                pair.is_in_call = false;
                if failed == Some(Reason::CrossSlot) {
                    // Now this is known to be a cluster.
                    pair.slot = keys.slot();
                }
                pair.not_before = list.is_none().then(|| now + PAUSE);
                if let Some(list) = list {
                    pair.complete(changes, list, call.sent, &mut outcome);
                }
            });
        }
        // Last, because a group without timers and calls is removed.
        self.change_group(call.slot, |group| {
            group.calls -= 1;
            group.paused_until = failed.map(|_| now + PAUSE);
        });
        outcome
    }

    /// Returns when the next call is due. `None` if there is none.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due_groups.first().map(|(at, _)| *at)
    }

    /// Returns whether this process neither holds a unit, nor waits for one, nor releases one.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns when the last of the releases is given up. `None` if there are none.
    pub(super) fn last_release_ends(&self) -> Option<Instant> {
        let last = |pair: &HeldPair| {
            let releases = pair.units.values().filter(|unit| unit.state == UnitState::Releasing);
            releases.map(|unit| unit.at + pair.longest_hold_time()).max()
        };
        self.pairs.values().filter_map(last).max()
    }

    /// Changes a pair, and notes when it has changes to send. Removes it if nothing is left.
    pub(super) fn change(&mut self, keys: &Arc<Keys>, change: impl FnOnce(&mut HeldPair)) {
        let Some(pair) = self.pairs.get_mut(keys) else { return };
        let before = (pair.slot, pair.due_at());
        change(pair);
        let is_over = pair.units.is_empty() && !pair.is_in_call;
        let after = (pair.slot, pair.due_at().filter(|_| !is_over));
        if is_over {
            self.pairs.remove(keys);
        }
        if before == after {
            return;
        }
        if let (slot, Some(at)) = before {
            self.change_group(slot, |group| {
                group.timers.remove(&(at, keys.clone()));
            });
        }
        if let (slot, Some(at)) = after {
            self.change_group(slot, |group| {
                group.timers.insert((at, keys.clone()));
            });
        }
    }

    /// Changes a group, and notes when its next call is due. Removes it if nothing is left.
    fn change_group(&mut self, slot: u16, change: impl FnOnce(&mut Group)) {
        let group = self.groups.entry(slot).or_default();
        let before = group.next_due();
        change(group);
        let after = group.next_due();
        if group.calls == 0 && group.timers.is_empty() {
            self.groups.remove(&slot);
        }
        if before != after {
            before.map(|at| self.due_groups.remove(&(at, slot)));
            self.due_groups.extend(after.map(|at| (at, slot)));
        }
    }
}

impl Group {
    /// Returns when the next call is due. `None` if there is none, or if too many calls are in flight.
    fn next_due(&self) -> Option<Instant> {
        let (at, _) = self.timers.first().filter(|_| self.calls < MAX_CALLS)?;
        Some(self.paused_until.map_or(*at, |until| until.max(*at)))
    }
}

impl Unit {
    fn waiting(number: HeldNumber) -> Self {
        Self { number, state: UnitState::Waiting, at: Instant::now(), was_interrupted: false }
    }
}

impl HeldPair {
    fn hold_time(&self) -> Duration {
        Duration::from_micros(self.pair.policy.window_micros())
    }

    /// Returns the longest time that the entry may have left: a reload may have shortened the hold time since the entry was extended.
    fn longest_hold_time(&self) -> Duration {
        self.hold_time().max(self.held_for)
    }

    /// Returns when the entry ends at the earliest.
    fn ends(&self) -> Instant {
        let ends = self.extended + self.held_for;
        self.shortened.map_or(ends, |(drawn, hold_time)| ends.min(drawn + hold_time))
    }

    /// Notes that a check with a shorter hold time is about to be sent. If it charges, the entry of all units ends earlier, and if its
    /// reply is lost, nothing else states this.
    fn may_shorten(&mut self) {
        let (now, hold_time) = (Instant::now(), self.hold_time());
        self.shortened = Some((now, hold_time));
        self.renew_at = self.renew_at.map(|at| at.min(now + hold_time / 3));
    }

    /// Returns when the next renewal is due: at this instant, or earlier if a check may have shortened the entry.
    fn renewal_after_shortening(&self, due: Instant) -> Instant {
        self.shortened.map_or(due, |(drawn, hold_time)| due.min(drawn + hold_time / 3))
    }

    /// Notes that a call which was sent at this instant has extended the entry by a hold time.
    fn extend(&mut self, sent: Instant, hold_time: Duration) {
        if sent >= self.extended {
            (self.extended, self.held_for) = (sent, hold_time);
        }
    }

    /// Notes that the outcome of a charge is known from an instant on.
    fn resolve(&mut self, index: u32, from: Instant) {
        // The first charge has this index. Its outcome is known before another one has it.
        if index == 0 {
            self.corrected.get_or_insert(from);
        }
    }

    /// Notes that a check which was sent at this instant holds a number, with these units, for its hold time. A newer check may have
    /// another one.
    pub(super) fn confirm(&mut self, index: u32, units: u32, sent: Instant, hold_time: Duration) {
        let now = Instant::now();
        if sent >= self.ends() {
            // The entry had ended before this check extended it.
            let held = self.units.values_mut().filter(|unit| unit.state == UnitState::Held);
            held.for_each(|unit| unit.was_interrupted = true);
        }
        self.resolve(index, now);
        let Some(unit) = self.units.get_mut(&index) else { return };
        (unit.state, unit.at, unit.number.units) = (UnitState::Held, now, units);
        self.extend(sent, hold_time);
        let due = self.renewal_after_shortening(sent + hold_time / 3);
        self.renew_at = Some(self.renew_at.map_or(due, |at| at.min(due)));
    }

    /// Notes that a number holds nothing.
    pub(super) fn make_free(&mut self, index: u32) {
        self.resolve(index, Instant::now());
        let Some(unit) = self.units.remove(&index) else { return };
        self.changing.remove(&(unit.at, index));
        self.free.insert(index);
    }

    /// Returns when the next call may change the pair. `None` while a call does, or if there is nothing to send.
    fn due_at(&self) -> Option<Instant> {
        let change = self.changing.first().map(|(at, _)| *at);
        let surplus = (self.surplus != 0).then_some(self.extended);
        let due =
            [self.renew_at, change, surplus].into_iter().flatten().min().filter(|_| !self.is_in_call)?;
        Some(self.not_before.map_or(due, |at| due.max(at)))
    }

    /// Adds the changes that are due to a call, if there are any.
    fn join(&mut self, keys: &Arc<Keys>, call: &mut HoldCall, room: &mut usize, renews: bool) {
        let (hold_time, longest) = (self.hold_time(), self.longest_hold_time());
        let due: Vec<(Instant, u32)> =
            self.changing.iter().take_while(|(at, _)| *at <= call.sent).take(*room).copied().collect();
        let (mut releases, mut restores) = (Vec::new(), Vec::new());
        for (at, index) in due {
            match self.units.get(&index) {
                Some(Unit { state: UnitState::Held, number, .. }) => restores.push(*number),
                // Its entry has ended.
                Some(_) if at + longest <= call.sent => self.make_free(index),
                unit => releases.extend(unit.map(|unit| unit.number)),
            }
        }
        *room -= releases.len() + restores.len();
        if releases.is_empty() && restores.is_empty() && self.surplus == 0 && !renews {
            return;
        }
        self.is_in_call = true;
        // It is subtracted at most once. If this call fails, the next renewal finds it again.
        let surplus = mem::take(&mut self.surplus);
        call.end = call.end.min(call.sent + hold_time / 6);
        let hold_micros = self.pair.policy.window_micros();
        call.pairs.push((keys.clone(), HoldChanges { hold_micros, renews, surplus, releases, restores }));
    }

    /// Releases a number, from this instant on.
    pub(super) fn release(&mut self, index: u32, from: Instant) {
        self.resolve(index, from);
        let Some(unit) = self.units.get_mut(&index) else { return };
        self.changing.remove(&(unit.at, index));
        (unit.state, unit.at) = (UnitState::Releasing, from);
        self.changing.insert((from, index));
    }

    /// Releases a number that only the store knows, unless its place is in use.
    fn release_unknown(&mut self, number: HeldNumber, from: Instant) {
        let index = number.index;
        if index >= MAX_NUMBERS || self.units.contains_key(&index) {
            return;
        }
        let first_unused = (self.units.len() + self.free.len()) as u32;
        self.free.extend(first_unused..=index);
        self.free.remove(&index);
        self.units.insert(index, Unit::waiting(number));
        self.release(index, from);
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
            let unit = self.units.get(&number.index).filter(|unit| unit.number == *number);
            if unit.is_some_and(|unit| unit.state == UnitState::Releasing) {
                self.make_free(number.index);
                outcome.released.push((self.namespace.clone(), self.pair.clone()));
            }
        }
        for HeldNumber { index, .. } in &changes.restores {
            if let Some(unit) = self.units.get(index).filter(|unit| unit.state == UnitState::Held) {
                self.changing.remove(&(unit.at, *index));
            }
        }
        if !changes.renews {
            return;
        }
        self.extend(sent, Duration::from_micros(changes.hold_micros));
        let listed: i64 = numbers.iter().map(|number| i64::from(number.units)).sum();
        if self.corrected.is_some_and(|at| at < sent) {
            self.surplus = (i64::from(*units) - listed).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        }
        for listed in numbers {
            self.release_unknown(*listed, sent);
        }
        let is_listed = |number: &HeldNumber| {
            let found = numbers.binary_search_by_key(&number.index, |listed| listed.index);
            found.is_ok_and(|i| numbers[i].number == number.number)
        };
        // Not by the hold time of a newer check that may have been denied.
        let extended = sent + Duration::from_micros(changes.hold_micros) / 3;
        self.shortened = self.shortened.filter(|(drawn, _)| *drawn >= sent);
        let renew_at = self.renewal_after_shortening(extended.min(self.extended + self.held_for / 3));
        self.renew_at = None;
        for unit in self.units.values_mut().filter(|unit| unit.state == UnitState::Held) {
            self.renew_at = Some(renew_at);
            // A unit that was confirmed later may be missing in the reply.
            if unit.at < sent
                && !is_listed(&unit.number)
                && self.changing.insert((unit.at, unit.number.index))
            {
                unit.was_interrupted = true;
                outcome.interrupted += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::redis::keys::KeyNames, check::Check, key::PartitionKey, policy::Policy};

    /// What a process holds of one pair.
    struct Drawn {
        pairs: HeldPairs,
        keys: Arc<Keys>,
    }

    impl Drawn {
        fn new() -> Self {
            let check = Self::check(Duration::from_secs(30));
            let pair = &check.pairs()[0];
            let keys =
                KeyNames::default().keys(check.namespace(), iter::once((&pair.key, &pair.policy)), Some(1));
            Self { pairs: HeldPairs::default(), keys: Arc::new(keys) }
        }

        fn check(hold_time: Duration) -> Check {
            let policy = Policy::in_flight("exports", 10).unwrap().hold_time(hold_time).unwrap();
            Check::new([Pair::new(PartitionKey::new("tenant", "acme"), policy, 1)]).unwrap()
        }

        /// Draws a number for a check with this hold time. Returns its index.
        fn draw(&mut self, hold_time: Duration) -> u32 {
            let check = Self::check(hold_time);
            self.pairs.draw(&self.keys, 0, check.scope(), &check.pairs()[0]).unwrap().0.index
        }
    }

    /// Its reply may be lost, and then nothing else states that the entry of all units ends earlier.
    #[tokio::test(start_paused = true)]
    async fn check_with_shorter_hold_time_brings_renewal_forward() {
        let second = Duration::from_secs(1);
        let mut drawn = Drawn::new();
        let began = Instant::now();
        let held = drawn.draw(30 * second);
        let Drawn { pairs, keys } = &mut drawn;
        pairs.change(keys, |pair| pair.confirm(held, 1, began, 30 * second));
        assert_eq!(pairs.next_due(), Some(began + 10 * second));

        let unknown = drawn.draw(3 * second);
        let Drawn { pairs, keys } = &mut drawn;
        pairs.change(keys, |pair| pair.release(unknown, began + 5 * second));
        assert_eq!(pairs.next_due(), Some(began + second));
        tokio::time::advance(3 * second - Duration::from_millis(1)).await;
        assert!(!pairs.was_interrupted(keys, held));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(pairs.was_interrupted(keys, held), "no renewal has arrived");

        let sent = Instant::now();
        let call = pairs.due(sent).pop().unwrap();
        let number = pairs.pairs[keys].units[&held].number;
        let list = HeldList { units: 1, numbers: vec![number] };
        pairs.complete(&call, &Ok(vec![Some(list)]));
        assert!(!pairs.was_interrupted(keys, held));
        // The renewal has the new hold time.
        assert_eq!(pairs.next_due(), Some(sent + second));
    }

    #[tokio::test(start_paused = true)]
    async fn check_before_first_confirmation_brings_renewal_forward() {
        let second = Duration::from_secs(1);
        let mut drawn = Drawn::new();
        let (long, short) = (drawn.draw(30 * second), drawn.draw(3 * second));
        let began = Instant::now();
        drawn.pairs.change(&drawn.keys, |pair| pair.confirm(long, 1, began, 30 * second));
        drawn.pairs.change(&drawn.keys, |pair| pair.make_free(short));
        assert_eq!(drawn.pairs.next_due(), Some(began + second));
    }
}
