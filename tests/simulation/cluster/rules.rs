//! The rules that every run must obey.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use tower_sliding_window::{OutageRule, backend::Purpose, outage::DenyCacheConfig};

use super::{
    health::Health,
    plan::{DEADLINE, NODES, Plan},
    record::{Entry, Event, Id, Outcome, Ran, Started, Stopped},
    run::slots_of,
};
use crate::simulation::{record::Verdict, run::TICK};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// No slot admits more than the quota in any window, with amounts as finally settled.
    QuotaHolds,
    /// No check is charged after its deadline.
    NoChargeAfterDeadline,
    /// No check is charged twice in a slot.
    NoDoubleCharge,
    /// Every caller gets an outcome by the deadline.
    OutcomeByDeadline,
    /// A decision comes from the nodes. An outage is neither a denial nor an admission.
    DecisionsComeFromNodes,
    /// An outage follows the outage rule.
    OutageRuleHolds,
    /// All slots of a check are charged, or none. Each exception is counted.
    AllOrNothing,
    /// Fail open keeps the charges of the slots that were charged.
    FailOpenKeepsCharges,
    /// If a slot denies, the check is denied.
    DenialWins,
    /// If a slot cannot be asked, the others are asked.
    HealthySlotsAreAsked,
    /// All slots are asked at the same time.
    SlotsAreAskedAtOnce,
    /// After a denial, a check across slots peeks before it charges.
    PeeksAfterDenial,
    /// A check of a healthy node is decided during a fault of another node.
    HealthyNodesDecide,
    /// After the last fault all checks are decided within the recovery time.
    Recovers,
    /// A settlement and a reset reach every healthy slot at once.
    ChangesReachHealthySlots,
    /// Every reservation is settled once, or counted as lost.
    SettledOnce,
    /// No connection to a healthy node is dropped.
    HealthyConnectionsStay,
    /// No unused stream stays open.
    NoStreamLeak,
    /// The nodes know every command.
    NoUnknownCommand,
}

#[derive(Clone, PartialEq)]
pub struct Violation {
    pub rule: Rule,
    pub what: String,
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// Two hosts may differ by one tick, and a timer may be one tick late.
const SLACK: Duration = TICK.saturating_mul(3);

/// The longest time from the end of all faults until all checks are decided.
pub const RECOVERY: Duration = Duration::from_millis(2_500);

/// The time after which replies that were held have arrived.
const HELD: Duration = Duration::from_millis(250);

/// A younger connection may be one of two that were opened at the same time.
const ESTABLISHED: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Events {
    started: BTreeMap<Id, (Duration, Started)>,
    outcomes: BTreeMap<Id, (Duration, Outcome)>,
    ran: BTreeMap<Id, Vec<(Duration, Ran)>>,
    /// All checks and resets that were executed, in their order.
    in_order: Vec<Executed>,
    /// The first arrival of each check in each slot.
    asked: BTreeMap<(Id, u16), Duration>,
    refunds: BTreeMap<(Id, u16), Vec<Refunded>>,
    settling: BTreeMap<Id, (Duration, u32)>,
    settled: BTreeMap<Id, bool>,
    resetting: Vec<(Duration, usize, Vec<u16>)>,
    resets: Vec<(Duration, u16)>,
    stopped: Vec<Stopped>,
    connections: Vec<Connection>,
    open_streams: BTreeMap<(usize, usize), usize>,
    unknown_commands: Vec<String>,
}

enum Executed {
    Check(Duration, Ran),
    Reset { node: usize, slot: u16 },
}

#[derive(Clone, Copy)]
struct Refunded {
    at: Duration,
    units: u32,
    is_rollback: bool,
}

struct Connection {
    client: usize,
    node: usize,
    from: Duration,
    to: Option<Duration>,
}

impl Events {
    fn of(entries: &[Entry]) -> Self {
        let mut events = Self::default();
        for Entry { at, event } in entries {
            let at = *at;
            match event.clone() {
                Event::Started(started) => drop(events.started.insert(started.id, (at, started))),
                Event::Completed { id, outcome } => drop(events.outcomes.insert(id, (at, outcome))),
                Event::Settling { id, used } => drop(events.settling.insert(id, (at, used))),
                Event::Settled { id, is_done } => drop(events.settled.insert(id, is_done)),
                Event::Resetting { client, slots } => events.resetting.push((at, client, slots)),
                Event::Asked { id, slot } => {
                    events.asked.entry((id, slot)).or_insert(at);
                }
                Event::Ran(ran) => {
                    events.ran.entry(ran.id).or_default().push((at, ran));
                    events.in_order.push(Executed::Check(at, ran));
                }
                Event::Refunded { id, slot, units, is_rollback, .. } => {
                    let refunds = events.refunds.entry((id, slot)).or_default();
                    refunds.push(Refunded { at, units, is_rollback });
                }
                Event::Reset { node, slot } => {
                    events.resets.push((at, slot));
                    events.in_order.push(Executed::Reset { node, slot });
                }
                Event::Connected { client, node } => {
                    // Commands without a reply may keep a stream open that has been replaced.
                    events.end_connection(client, node, at);
                    *events.open_streams.entry((client, node)).or_default() += 1;
                    events.connections.push(Connection { client, node, from: at, to: None });
                }
                Event::Disconnected { client, node } => {
                    let open = events.open_streams.entry((client, node)).or_default();
                    *open -= 1;
                    if *open == 0 {
                        events.end_connection(client, node, at);
                    }
                }
                Event::Stopped(stopped) => events.stopped.push(stopped),
                Event::UnknownCommand(what) => events.unknown_commands.push(what),
                Event::Step(..) | Event::Promoted { .. } | Event::Merged { .. } | Event::Refused { .. } => {}
            }
        }
        events
    }

    fn end_connection(&mut self, client: usize, node: usize, at: Duration) {
        let connections = self.connections.iter_mut();
        connections
            .filter(|other| (other.client, other.node) == (client, node) && other.to.is_none())
            .for_each(|connection| connection.to = Some(at));
    }

    fn ran(&self, id: Id) -> &[(Duration, Ran)] {
        self.ran.get(&id).map_or(&[], Vec::as_slice)
    }

    fn refunds(&self, id: Id, slot: u16) -> &[Refunded] {
        self.refunds.get(&(id, slot)).map_or(&[], Vec::as_slice)
    }

    /// Returns the charges of a check.
    fn charges(&self, id: Id) -> impl Iterator<Item = &(Duration, Ran)> {
        self.ran(id).iter().filter(|(_, ran)| ran.verdict == Verdict::Charged && ran.purpose != Purpose::Peek)
    }

    /// Returns whether the deny cache may deny a check that starts at this instant: a node has denied a pair of the check within
    /// the maximum age, and the same or a smaller cost then or before. The denial of a larger cost confirms earlier ones. If a node
    /// gives no answer, a denial is known until its wait has passed, which is at most a window, and so is a denial of a check that has
    /// ended meanwhile.
    ///
    /// If a check refreshes a cached denial and gets no reply, the cache denies it, or the outage rule applies if the denial has
    /// expired meanwhile. The charges are rolled back in both cases.
    fn may_have_cached_denial(&self, plan: &Plan, at: Duration, end: Duration, started: &Started) -> bool {
        let (max_age, is_outage) = (DenyCacheConfig::default().max_age, at < plan.repaired + RECOVERY);
        let known_for = if is_outage { max_age.max(plan.route.window().unwrap()) } else { max_age };
        let latest = if is_outage { end } else { at };
        let oldest = at.saturating_sub(known_for + DEADLINE);
        let denied = |of: u16| {
            self.in_order.iter().filter_map(move |executed| match executed {
                Executed::Check(decided, ran) if ran.verdict == Verdict::Denied && ran.slot == of => {
                    let (_, other) = self.started.get(&ran.id)?;
                    let is_same = (other.client, other.limiter) == (started.client, started.limiter);
                    is_same.then_some((*decided, other.cost))
                }
                _ => None,
            })
        };
        started.slots.iter().any(|slot| {
            denied(*slot).filter(|(newest, _)| (oldest..=latest).contains(newest)).any(|(newest, _)| {
                denied(*slot).any(|(decided, cost)| decided <= newest && cost <= started.cost)
            })
        })
    }

    fn is_rolled_back(&self, id: Id, slot: u16) -> bool {
        self.refunds(id, slot).iter().any(|refund| refund.is_rollback)
    }

    /// Returns the units of a charge that stay after settlement and rollback.
    fn final_units(&self, id: Id, slot: u16) -> u32 {
        let cost = self.started.get(&id).map_or(0, |(_, started)| started.cost);
        // A second refund must not count: it would hide that too many units were admitted.
        let refunded = self.refunds(id, slot).first().map_or(0, |refund| refund.units);
        cost.saturating_sub(refunded)
    }
}

type Report<'a> = dyn FnMut(Rule, String) + 'a;

/// Returns all violations of the rules.
pub fn check_rules(plan: &Plan, entries: &[Entry]) -> Vec<Violation> {
    let (events, health) = (Events::of(entries), Health::of(plan, entries));
    let mut violations = Vec::new();
    let report: &mut Report<'_> = &mut |rule, what| violations.push(Violation { rule, what });
    for what in &events.unknown_commands {
        report(Rule::NoUnknownCommand, what.clone());
    }
    check_quota(plan, &events, report);
    check_charges(&events, report);
    for (id, (at, started)) in &events.started {
        let Some((end, outcome)) = events.outcomes.get(id) else {
            report(Rule::OutcomeByDeadline, format!("{id} has no outcome"));
            continue;
        };
        let check = Checked { at: *at, started, end: *end, outcome: *outcome };
        check_outcome(plan, &events, &check, report);
        check_denial(&health, &events, &check, report);
        check_health(&health, &events, &check, report);
        check_slots(&health, &events, &check, report);
        if *at >= plan.repaired + RECOVERY && check.is_outage() {
            report(Rule::Recovers, format!("{check:?}"));
        }
    }
    check_peeks(&events, report);
    check_standing(plan, &health, &events, report);
    check_settlements(&health, &events, report);
    check_resets(&health, &events, report);
    check_connections(&health, &events, report);
    violations
}

/// A check and its outcome.
#[derive(Debug)]
struct Checked<'a> {
    at: Duration,
    started: &'a Started,
    end: Duration,
    outcome: Outcome,
}

impl Checked<'_> {
    fn is_outage(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Unchecked(_)
                | Outcome::Local { .. }
                | Outcome::LocalFallbackDenied(_)
                | Outcome::Unavailable(_)
        )
    }
}

/// Returns the largest number of units in a half-open window. The charges are in the order of their instants.
fn most_in_a_window(window: u64, charges: &[(u64, u32)]) -> u32 {
    let from = |i: usize| {
        let end = charges[i].0 + window;
        charges[i..].iter().take_while(|(at, _)| *at < end).map(|(_, units)| units).sum()
    };
    (0..charges.len()).map(from).max().unwrap_or(0)
}

fn check_quota(plan: &Plan, events: &Events, report: &mut Report<'_>) {
    let window = plan.route.window().unwrap().as_micros() as u64;
    for (slot, quota) in slots_of(plan) {
        // Data that was lost and data after a reset are separate.
        let mut charges: BTreeMap<(u64, usize), Vec<(u64, u32)>> = BTreeMap::new();
        let mut check_burst = |charges: &mut Vec<(u64, u32)>| {
            let most = most_in_a_window(window, charges);
            if most > quota {
                report(Rule::QuotaHolds, format!("{most} units of {quota} in slot {slot}"));
            }
            charges.clear();
        };
        for executed in &events.in_order {
            match executed {
                Executed::Reset { node, slot: of } if *of == slot => {
                    for (_, charges) in charges.iter_mut().filter(|((_, of), _)| of == node) {
                        check_burst(charges);
                    }
                }
                Executed::Check(_, ran)
                    if ran.slot == slot
                        && ran.verdict == Verdict::Charged
                        && ran.purpose != Purpose::Peek =>
                {
                    let of_data = charges.entry((ran.lineage, ran.node)).or_default();
                    of_data.push((ran.reading, events.final_units(ran.id, slot)));
                }
                _ => {}
            }
        }
        charges.values_mut().for_each(&mut check_burst);
    }
}

fn check_charges(events: &Events, report: &mut Report<'_>) {
    let mut charged = BTreeSet::new();
    for executed in &events.in_order {
        let Executed::Check(at, ran) = executed else { continue };
        let is_overage = ran.verdict == Verdict::Overage;
        if ran.purpose == Purpose::Peek || !(is_overage || ran.verdict == Verdict::Charged) {
            continue;
        }
        if !charged.insert((ran.id, ran.slot, is_overage)) {
            report(Rule::NoDoubleCharge, format!("{ran:?} at {at:?}"));
        }
        let late = events.started.get(&ran.id).filter(|(start, _)| *at > *start + DEADLINE + SLACK);
        if !is_overage && late.is_some() {
            report(Rule::NoChargeAfterDeadline, format!("{ran:?} at {at:?}"));
        }
    }
}

fn check_outcome(plan: &Plan, events: &Events, check: &Checked<'_>, report: &mut Report<'_>) {
    let Checked { at, started, end, outcome } = check;
    let ran = events.ran(started.id);
    if *end > *at + DEADLINE + SLACK {
        report(Rule::OutcomeByDeadline, format!("{check:?}"));
    }
    let is_by_rule = match outcome {
        Outcome::Local { .. } | Outcome::LocalFallbackDenied(_) => {
            matches!(started.rule, OutageRule::LocalFallback(_))
        }
        Outcome::Unchecked(_) => started.rule == OutageRule::FailOpen,
        _ => true,
    };
    if !is_by_rule {
        report(Rule::OutageRuleHolds, format!("{check:?}"));
    }
    let charged_in = |slot: &u16| events.charges(started.id).any(|(_, ran)| ran.slot == *slot);
    let is_from_nodes = match outcome {
        Outcome::Charged { reading } => {
            started.slots.iter().all(charged_in) && ran.iter().any(|(_, ran)| ran.reading == *reading)
        }
        Outcome::Denied { .. } => ran.iter().any(|(_, ran)| ran.verdict == Verdict::Denied),
        Outcome::CacheHit { .. } => events.may_have_cached_denial(plan, *at, *end, started),
        _ => true,
    };
    if !is_from_nodes {
        report(Rule::DecisionsComeFromNodes, format!("{check:?}: {ran:?}"));
    }
}

/// A denial that has arrived decides the check.
fn check_denial(health: &Health, events: &Events, check: &Checked<'_>, report: &mut Report<'_>) {
    if !check.is_outage() && !matches!(check.outcome, Outcome::Charged { .. }) {
        return;
    }
    for (at, ran) in events.ran(check.started.id) {
        if ran.verdict == Verdict::Denied
            && health.has_replied(check.started.client, ran.node, *at, check.end)
        {
            report(Rule::DenialWins, format!("{check:?}, but {ran:?} at {at:?}"));
        }
    }
}

/// The slots of healthy nodes are asked, and a check of one healthy node is decided.
fn check_health(health: &Health, events: &Events, check: &Checked<'_>, report: &mut Report<'_>) {
    if !check.is_outage() {
        return;
    }
    let Checked { at, started, end, .. } = check;
    let is_healthy = |slot: &u16, to| health.node(started.client, *slot, *at, to).is_some();
    if let [slot] = &started.slots[..] {
        if is_healthy(slot, *end) {
            report(Rule::HealthyNodesDecide, format!("{check:?}"));
        }
        return;
    }
    for slot in &started.slots {
        let was_asked = events.asked.contains_key(&(started.id, *slot));
        if is_healthy(slot, *at + DEADLINE / 2) && !was_asked {
            report(Rule::HealthySlotsAreAsked, format!("slot {slot} of {check:?}"));
        }
    }
}

/// A check asks all slots at the same time.
fn check_slots(health: &Health, events: &Events, check: &Checked<'_>, report: &mut Report<'_>) {
    let Checked { at, started, .. } = check;
    let slots = started.slots.iter().map(|slot| {
        let node = health.node(started.client, *slot, *at, *at + DEADLINE / 2)?;
        let asked = events.asked.get(&(started.id, *slot))?;
        let is_connected = |connection: &&Connection| {
            let Connection { client, node: other, from, to } = connection;
            (*client, *other) == (started.client, node) && from < at && to.is_none_or(|to| to > *at)
        };
        events.connections.iter().find(is_connected)?;
        Some(*asked > *at + health.latency(started.client, node) + SLACK)
    });
    let late: Option<Vec<bool>> = slots.collect();
    if started.slots.len() > 1 && late.is_some_and(|late| late.contains(&true)) {
        report(Rule::SlotsAreAskedAtOnce, format!("{check:?}: {:?}", events.ran(started.id)));
    }
}

/// While a pair was denied within the maximum age of a denial, a check across slots peeks first.
fn check_peeks(events: &Events, report: &mut Report<'_>) {
    let max_age = DenyCacheConfig::default().max_age;
    // The last denial that a limiter of a client knows of, by slot: when it was decided and known, and the cost.
    let mut denials: BTreeMap<(usize, usize, u16), (Duration, Duration, u32)> = BTreeMap::new();
    let mut by_end: Vec<_> =
        events.outcomes.iter().map(|(id, (end, outcome))| (*end, *id, *outcome)).collect();
    by_end.sort_by_key(|(end, id, _)| (*end, *id));
    // While a cancelled check waits for late replies, the process learns no denial of any of its pairs. The nodes show only the
    // rollbacks of those that were charged.
    let cancelled: Vec<_> = by_end
        .iter()
        .filter(|(_, id, outcome)| {
            matches!(outcome, Outcome::Cancelled) && events.charges(*id).next().is_some()
        })
        .map(|(end, id, _)| (*id, *end))
        .collect();
    let mut by_end = by_end.into_iter().peekable();
    for (id, (at, started)) in by_start(&events.started) {
        while let Some((end, other, outcome)) = by_end.next_if(|(end, ..)| *end + SLACK <= at) {
            let Some((_, other_started)) = events.started.get(&other) else { continue };
            for (decided, ran) in events.ran(other) {
                let key = (other_started.client, other_started.limiter, ran.slot);
                match ran.verdict {
                    Verdict::Denied if matches!(outcome, Outcome::Denied { .. }) => {
                        denials.insert(key, (*decided, end, other_started.cost));
                    }
                    // An admission shows that there is room again.
                    Verdict::Charged => drop(denials.remove(&key)),
                    _ => {}
                }
            }
        }
        let is_known = |slot: &u16| {
            denials.get(&(started.client, started.limiter, *slot)).is_some_and(|(decided, known, cost)| {
                // Settlements, rollbacks and resets of the process invalidate what it knows.
                let own =
                    |id: &Id| events.started.get(id).is_some_and(|(_, other)| other.client == started.client);
                let is_changed = |from: Duration| {
                    events.refunds.iter().any(|((id, of), refunds)| {
                        of == slot && own(id) && refunds.iter().any(|refund| refund.at + DEADLINE >= from)
                    }) || cancelled.iter().any(|(id, end)| {
                        let is_of_slot =
                            events.started.get(id).is_some_and(|(_, other)| other.slots.contains(slot));
                        is_of_slot && own(id) && end <= known && *end + HELD >= from
                    }) || events.resets.iter().any(|(reset, of)| of == slot && *reset + DEADLINE >= from)
                };
                *cost <= started.cost && at + SLACK < *decided + max_age && !is_changed(*decided)
            })
        };
        if started.slots.len() < 2 || !started.slots.iter().any(is_known) {
            continue;
        }
        let mut peeked = BTreeSet::new();
        for (_, ran) in events.ran(id) {
            if ran.purpose == Purpose::Peek {
                peeked.insert(ran.slot);
            } else if matches!(ran.verdict, Verdict::Charged) && !peeked.contains(&ran.slot) {
                report(Rule::PeeksAfterDenial, format!("{started:?} at {at:?}: {:?}", events.ran(id)));
            }
        }
    }
}

fn by_start(started: &BTreeMap<Id, (Duration, Started)>) -> Vec<(Id, (Duration, &Started))> {
    let mut all: Vec<_> = started.iter().map(|(id, (at, started))| (*id, (*at, started))).collect();
    all.sort_by_key(|(id, (at, _))| (*at, *id));
    all
}

/// A charge stands if and only if the check was admitted. Each exception is counted.
fn check_standing(plan: &Plan, health: &Health, events: &Events, report: &mut Report<'_>) {
    // By client: the charges that stand without an admission, and those among them whose reply has arrived.
    let (mut standing, mut answered) = (vec![0; plan.clients], vec![Vec::new(); plan.clients]);
    for (id, (start, started)) in &events.started {
        let Some((end, outcome)) = events.outcomes.get(id) else { continue };
        let is_admitted = matches!(outcome, Outcome::Charged { .. });
        let is_denied = events.ran(*id).iter().any(|(_, ran)| ran.verdict == Verdict::Denied);
        for (at, ran) in events.charges(*id) {
            let is_rolled_back = events.is_rolled_back(*id, ran.slot);
            if is_admitted && is_rolled_back {
                report(Rule::AllOrNothing, format!("{started:?} was admitted and rolled back: {ran:?}"));
            }
            if matches!(outcome, Outcome::Unchecked(_))
                && is_rolled_back
                && !is_denied
                && !events.may_have_cached_denial(plan, *start, *start, started)
            {
                report(Rule::FailOpenKeepsCharges, format!("{started:?}: {ran:?}"));
            }
            let is_kept = matches!(outcome, Outcome::Unchecked(_)) && started.slots.len() > 1;
            if is_admitted || is_kept || is_rolled_back {
                continue;
            }
            standing[started.client] += 1;
            if health.has_replied(started.client, ran.node, *at, *end) {
                answered[started.client].push((*id, *outcome, *ran));
            }
        }
    }
    for stopped in &events.stopped {
        let (standing, answered) = (standing[stopped.client], &answered[stopped.client]);
        if standing > stopped.unanswered + stopped.lost_rollbacks {
            report(Rule::AllOrNothing, format!("{standing} charges stand, but {stopped:?}"));
        }
        if answered.len() as u64 > stopped.lost_rollbacks {
            report(Rule::AllOrNothing, format!("{stopped:?}, but these charges stand: {answered:?}"));
        }
        if stopped.streams > NODES {
            report(Rule::NoStreamLeak, format!("{stopped:?}"));
        }
    }
}

fn check_settlements(health: &Health, events: &Events, report: &mut Report<'_>) {
    for (id, (at, used)) in &events.settling {
        let Some((_, started)) = events.started.get(id) else { continue };
        let expected = started.cost.saturating_sub(*used);
        let is_done = events.settled.get(id).copied();
        if is_done.is_none() {
            report(Rule::SettledOnce, format!("{started:?} was never settled"));
        }
        for slot in &started.slots {
            let refunds = events.refunds(*id, *slot);
            let overages = events.ran(*id).iter();
            let overages: Vec<Duration> = overages
                .filter(|(_, ran)| ran.verdict == Verdict::Overage && ran.slot == *slot)
                .map(|(at, _)| *at)
                .collect();
            let changes = refunds.len() + overages.len();
            let is_valid = refunds.iter().all(|refund| refund.units == expected && !refund.is_rollback)
                && overages.len() <= usize::from(*used > started.cost)
                && changes <= usize::from(*used != started.cost);
            let is_complete = changes == usize::from(*used != started.cost);
            if !is_valid || is_done == Some(true) && !is_complete {
                let what = format!("{started:?} used {used} in slot {slot}: {changes} changes");
                report(Rule::SettledOnce, what);
            }
            let limit = *at + DEADLINE / 2;
            if *used != started.cost && health.node(started.client, *slot, *at, limit).is_some() {
                let arrived = refunds.iter().map(|refund| refund.at).chain(overages).any(|at| at <= limit);
                if !arrived {
                    let what = format!("{started:?} used {used} at {at:?}: slot {slot}");
                    report(Rule::ChangesReachHealthySlots, what);
                }
            }
        }
    }
    for ((id, slot), refunds) in &events.refunds {
        if !events.settling.contains_key(id) && refunds.iter().any(|refund| !refund.is_rollback) {
            report(Rule::SettledOnce, format!("{id} was refunded in slot {slot}, but not settled"));
        }
    }
    for stopped in &events.stopped {
        let own =
            |id: &Id| events.started.get(id).is_some_and(|(_, started)| started.client == stopped.client);
        let lost = events.settled.iter().filter(|(id, is_done)| own(id) && !**is_done).count() as u64;
        if lost != stopped.lost_settlements {
            report(Rule::SettledOnce, format!("{lost} settlements are lost, but {stopped:?}"));
        }
    }
}

fn check_resets(health: &Health, events: &Events, report: &mut Report<'_>) {
    for (at, client, slots) in &events.resetting {
        let limit = *at + DEADLINE / 2;
        for slot in slots.iter().filter(|slot| health.node(*client, **slot, *at, limit).is_some()) {
            let arrived = |(reset, of): &(Duration, u16)| of == slot && (*at..=limit).contains(reset);
            if !events.resets.iter().any(arrived) {
                let what = format!("the reset of slots {slots:?} at {at:?} by client {client}: slot {slot}");
                report(Rule::ChangesReachHealthySlots, what);
            }
        }
    }
}

fn check_connections(health: &Health, events: &Events, report: &mut Report<'_>) {
    for Connection { client, node, from, to } in &events.connections {
        if let Some(to) = to
            && *to > *from + ESTABLISHED
            && health.keeps_connection(*client, *node, *from, *to, HELD)
        {
            let what = format!("client {client} to node {node}, from {from:?} to {to:?}");
            report(Rule::HealthyConnectionsStay, what);
        }
    }
}
