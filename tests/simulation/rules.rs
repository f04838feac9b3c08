//! The rules that every run must obey.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use tower_sliding_window::{OutageRule, outage::DenyCacheConfig, policy::Rate};

use super::{
    plan::{DEADLINE, Plan, Step},
    record::{Entry, Event, Id, Outcome, Verdict},
    run::TICK,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The store admits at most the quota in every window, and a token bucket at most its capacity and its rate.
    QuotaHolds,
    /// No check is charged after its deadline, unless the server's clock was set back.
    NoChargeAfterDeadline,
    /// No check is charged twice.
    NoDoubleCharge,
    /// Every caller gets an outcome by the deadline.
    OutcomeByDeadline,
    /// A decision comes from the store. An outage is neither a denial nor an admission.
    DecisionsComeFromStore,
    /// An outage follows the outage rule.
    OutageRuleHolds,
    /// The client counts the charges without a response.
    UnansweredChecksAreCounted,
    /// After the last fault the store decides again within the recovery time.
    Recovers,
    /// All local shares together are at most the quota.
    SharesStayWithinQuota,
    /// Every reservation is settled once, or counted as lost.
    SettledOnce,
    /// No unused stream stays open.
    NoStreamLeak,
    /// The server knows every command.
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
const SLACK: Duration = TICK.saturating_mul(2);

/// The longest time until the store decides again. In the worst case the breaker has just opened and waits for 1 s. Its probe
/// meets a dead connection or an old connection attempt. Then the breaker waits for another second.
pub const RECOVERY: Duration = Duration::from_millis(2_500);

/// The time after which no client uses an old reading of the server's clock. A client keeps a reading for 10 s, and then until
/// the next reply.
const MEMORY: Duration = Duration::from_secs(13);

struct Started {
    at: Duration,
    client: usize,
    tenant: u64,
    cost: u32,
}

#[derive(Default)]
struct Events {
    started: BTreeMap<Id, Started>,
    outcomes: BTreeMap<Id, (Duration, Outcome)>,
    decided_checks: Vec<(Duration, Id, u64, Verdict)>,
    refunded: BTreeMap<Id, Vec<u32>>,
    /// The first refund of each check.
    refunded_at: BTreeMap<Id, Duration>,
    settling: BTreeMap<Id, u32>,
    settled: BTreeMap<Id, bool>,
    /// The instants of data losses.
    losses: Vec<Duration>,
    starts: Vec<Duration>,
    /// The offsets of the server's clock, each with its first instant.
    offsets: Vec<(Duration, i64)>,
    stopped: Vec<(usize, u64, u64, usize)>,
    unknown_commands: Vec<String>,
}

impl Events {
    fn of(entries: &[Entry]) -> Self {
        let mut events = Self { offsets: vec![(Duration::ZERO, 0)], ..Self::default() };
        for Entry { at, event } in entries {
            let at = *at;
            match event.clone() {
                Event::Started { id, client, tenant, cost } => {
                    events.started.insert(id, Started { at, client, tenant, cost });
                }
                Event::Completed { id, outcome } => {
                    events.outcomes.insert(id, (at, outcome));
                }
                Event::Decided { id, reading, verdict } => {
                    events.decided_checks.push((at, id, reading, verdict))
                }
                Event::Refunded { id, units } => {
                    events.refunded.entry(id).or_default().push(units);
                    events.refunded_at.entry(id).or_insert(at);
                }
                Event::Settling { id, used } => {
                    events.settling.insert(id, used);
                }
                Event::Settled { id, is_done } => {
                    events.settled.insert(id, is_done);
                }
                Event::Step(Step::Restart { loses_data }) => {
                    events.starts.push(at);
                    events.losses.extend(loses_data.then_some(at));
                }
                Event::Step(Step::ShiftClock(by)) => {
                    let before = events.offsets.last().map_or(0, |(_, offset)| *offset);
                    events.offsets.push((at, before + by));
                }
                Event::Stopped { client, unanswered, lost_settlements, streams } => {
                    events.stopped.push((client, unanswered, lost_settlements, streams));
                }
                Event::UnknownCommand(what) => events.unknown_commands.push(what),
                Event::Step(_) | Event::UnknownScript | Event::Merged { .. } | Event::Connected { .. } => {}
            }
        }
        events
    }

    fn verdicts(&self, id: Id, wanted: Verdict) -> impl Iterator<Item = u64> {
        let of = move |(_, other, _, verdict): &&(_, Id, u64, Verdict)| *other == id && *verdict == wanted;
        self.decided_checks.iter().filter(of).map(|(_, _, reading, _)| *reading)
    }

    /// Returns whether a cached denial is correct. The store must have denied the pair at this reading of its clock, and this
    /// denial must not have reached its maximum age, or its wait, if the store gives no answer. It may be the denial of a larger cost, which confirms earlier ones. The store
    /// must also have denied the same or a smaller cost, then or before.
    fn has_matching_denial(&self, plan: &Plan, started: &Started, reading: u64) -> bool {
        let is_outage = started.at < plan.repaired + RECOVERY;
        let max_age = DenyCacheConfig::default().max_age;
        let known_for = if is_outage { max_age.max(DEADLINE + plan.longest_wait()) } else { max_age };
        let is_fresh = |other: &Started| started.at <= other.at + known_for;
        let denied = || {
            self.decided_checks
                .iter()
                .filter(|(.., verdict)| *verdict == Verdict::Denied)
                .filter_map(|(at, id, decided, _)| Some((*at, *decided, self.started.get(id)?)))
        };
        let is_of_pair = |other: &Started| (other.client, other.tenant) == (started.client, started.tenant);
        denied().any(|(newest, decided, other)| {
            decided == reading
                && is_of_pair(other)
                && is_fresh(other)
                && denied()
                    .any(|(at, _, other)| at <= newest && is_of_pair(other) && other.cost <= started.cost)
        })
    }

    /// Returns how long after its deadline a check may be charged at this instant. It is the time by which the clock was set back
    /// since a client may have read it.
    fn allowance(&self, at: Duration) -> Duration {
        let start = self.starts.iter().copied().filter(|start| *start <= at).max().unwrap_or_default();
        let start = start.max(at.saturating_sub(MEMORY));
        let now = self.offsets.iter().rfind(|(since, _)| *since <= at).map_or(0, |(_, offset)| *offset);
        let ends = self.offsets.iter().skip(1).map(|(since, _)| *since).chain([Duration::MAX]);
        let valid = self.offsets.iter().zip(ends).filter(|((since, _), end)| *since <= at && *end >= start);
        let most = valid.map(|((_, offset), _)| *offset).max().unwrap_or(now);
        Duration::from_micros((most - now).max(0) as u64)
    }
}

/// Returns all violations of the rules.
pub fn check_rules(plan: &Plan, entries: &[Entry]) -> Vec<Violation> {
    let events = Events::of(entries);
    let mut violations = Vec::new();
    let mut report = |rule, what| violations.push(Violation { rule, what });
    for what in &events.unknown_commands {
        report(Rule::NoUnknownCommand, what.clone());
    }
    for tenant in 0..plan.tenants {
        check_quota(plan, &events, tenant, &mut report);
        check_shares(plan, &events, tenant, &mut report);
    }
    check_charges(&events, &mut report);
    check_outcomes(plan, &events, &mut report);
    check_recovery(plan, &events, &mut report);
    check_counters(plan, &events, &mut report);
    check_settlements(&events, &mut report);
    violations
}

/// A charge, as finally settled.
struct Settled {
    /// The instant of its decision, on the clock of its record.
    at: u64,
    /// The same in true time.
    since: Duration,
    units: u32,
    /// The units that were refunded, and when.
    refund: Option<(Duration, u32)>,
}

/// Returns the violation of the guarantee by charges in the order of their instants.
fn exceeds(plan: &Plan, charges: &[Settled]) -> Option<String> {
    let quota = plan.policy.quota().unwrap();
    if let Some(rate) = plan.rate() {
        return exceeds_rate(quota, rate, charges);
    }
    let window = plan.window().as_micros() as u64;
    let from = |i: usize| {
        let end = charges[i].at + window;
        charges[i..].iter().take_while(|charge| charge.at < end).map(|charge| charge.units).sum()
    };
    let most: u32 = (0..charges.len()).map(from).max().unwrap_or(0);
    (most > quota).then(|| format!("{most} units of {quota}"))
}

/// The guarantee of a token bucket: an interval of the length `d` has at most the capacity and the units that return in `d`. Refunds in
/// the interval of charges before it may add their units.
fn exceeds_rate(capacity: u32, rate: Rate, charges: &[Settled]) -> Option<String> {
    let period = rate.period().as_micros();
    let most = |from: usize| {
        let first = &charges[from];
        let refunds = charges[..from].iter().filter_map(|charge| charge.refund);
        let refunded: u32 = refunds.filter(|(at, _)| *at >= first.since).map(|(_, units)| units).sum();
        let mut units = 0;
        charges[from..].iter().find_map(|charge| {
            units += charge.units;
            let passed = charge.at - first.at;
            let returned = u128::from(passed) * u128::from(rate.units());
            (u128::from(units) * period > u128::from(capacity + refunded) * period + returned)
                .then(|| format!("{units} units in {passed} us of {capacity} at {rate:?}"))
        })
    };
    (0..charges.len()).find_map(most)
}

fn check_quota(plan: &Plan, events: &Events, tenant: u64, report: &mut impl FnMut(Rule, String)) {
    let window = plan.window().as_micros() as u64;
    let (mut charges, mut last, mut losses) = (Vec::new(), 0, events.losses.iter().peekable());
    let mut check_burst = |charges: &mut Vec<Settled>| {
        if let Some(what) = exceeds(plan, charges) {
            report(Rule::QuotaHolds, format!("{what} for tenant {tenant}"));
        }
        charges.clear();
    };
    for (at, id, reading, verdict) in &events.decided_checks {
        let Some(started) = events.started.get(id).filter(|started| started.tenant == tenant) else {
            continue;
        };
        let refund = events.refunded.get(id).and_then(|refunds| refunds.first()).copied();
        let units = match verdict {
            Verdict::Charged => started.cost.saturating_sub(refund.unwrap_or(0)),
            Verdict::Overage => 0,
            Verdict::Denied | Verdict::DeadlineExceeded => continue,
        };
        // The data may have been lost, or the record may be of another clock.
        let is_lost = losses.next_if(|loss| *loss <= at).is_some();
        if is_lost || last > reading + window {
            while losses.next_if(|loss| *loss <= at).is_some() {}
            check_burst(&mut charges);
            last = 0;
        }
        last = last.max(*reading);
        let refund = events.refunded_at.get(id).copied().zip(refund);
        charges.push(Settled { at: last, since: *at, units, refund });
    }
    check_burst(&mut charges);
}

fn check_shares(plan: &Plan, events: &Events, tenant: u64, report: &mut impl FnMut(Rule, String)) {
    let mut local = Vec::new();
    for (id, (since, outcome)) in &events.outcomes {
        if let (Outcome::Local { reading }, Some(started)) = (outcome, events.started.get(id))
            && started.tenant == tenant
        {
            local.push(Settled { at: *reading, since: *since, units: started.cost, refund: None });
        }
    }
    local.sort_by_key(|charge| charge.at);
    if let Some(what) = exceeds(plan, &local) {
        report(Rule::SharesStayWithinQuota, format!("{what} for tenant {tenant}"));
    }
}

fn check_charges(events: &Events, report: &mut impl FnMut(Rule, String)) {
    let mut charged = BTreeSet::new();
    for (at, id, _, verdict) in &events.decided_checks {
        if !matches!(verdict, Verdict::Charged | Verdict::Overage) {
            continue;
        }
        if !charged.insert((*id, *verdict == Verdict::Overage)) {
            report(Rule::NoDoubleCharge, format!("{verdict:?} {id} twice at {at:?}"));
        }
        let Some(started) = events.started.get(id).filter(|_| *verdict == Verdict::Charged) else { continue };
        let allowance = events.allowance(*at);
        if *at > started.at + DEADLINE + SLACK + allowance {
            let delay = *at - started.at - DEADLINE;
            report(
                Rule::NoChargeAfterDeadline,
                format!(
                    "{id} was charged at {at:?}, {delay:?} after its deadline; {allowance:?} are allowed"
                ),
            );
        }
    }
}

fn check_outcomes(plan: &Plan, events: &Events, report: &mut impl FnMut(Rule, String)) {
    for (id, started) in &events.started {
        let Some((at, outcome)) = events.outcomes.get(id) else {
            report(Rule::OutcomeByDeadline, format!("{id} has no outcome"));
            continue;
        };
        if *at > started.at + DEADLINE + SLACK {
            report(
                Rule::OutcomeByDeadline,
                format!("{id} has an outcome after {:?}: {outcome:?}", *at - started.at),
            );
        }
        let is_in_store = match outcome {
            Outcome::Charged { reading } => {
                events.verdicts(*id, Verdict::Charged).any(|decided| decided == *reading)
            }
            Outcome::Denied { reading } => {
                events.verdicts(*id, Verdict::Denied).any(|decided| decided == *reading)
            }
            Outcome::CacheHit { reading } => events.has_matching_denial(plan, started, *reading),
            _ => true,
        };
        if !is_in_store {
            report(
                Rule::DecisionsComeFromStore,
                format!("{id} has the outcome {outcome:?}, but the store has no such decision"),
            );
        }
        let is_by_rule = match outcome {
            Outcome::Local { .. } | Outcome::LocalFallbackDenied(_) => {
                matches!(plan.rule, OutageRule::LocalFallback(_))
            }
            Outcome::Unchecked(_) => plan.rule == OutageRule::FailOpen,
            _ => true,
        };
        if !is_by_rule {
            report(Rule::OutageRuleHolds, format!("{id} has the outcome {outcome:?} with {:?}", plan.rule));
        }
    }
}

fn check_recovery(plan: &Plan, events: &Events, report: &mut impl FnMut(Rule, String)) {
    let mut by_client = vec![0; plan.clients];
    for (id, started) in &events.started {
        if started.at < plan.repaired + RECOVERY {
            continue;
        }
        match events.outcomes.get(id) {
            Some((_, Outcome::Charged { .. } | Outcome::Denied { .. })) => by_client[started.client] += 1,
            // A cache hit does not show that the store decides.
            Some((_, Outcome::Cancelled | Outcome::CacheHit { .. })) => {}
            other => report(
                Rule::Recovers,
                format!("{id}, started at {:?}, has the outcome {other:?}", started.at),
            ),
        }
    }
    for (client, decided) in by_client.iter().enumerate() {
        if *decided == 0 {
            report(Rule::Recovers, format!("client {client} has no decision"));
        }
    }
}

fn check_counters(plan: &Plan, events: &Events, report: &mut impl FnMut(Rule, String)) {
    let mut unknown = vec![0; plan.clients];
    for (_, id, _, verdict) in &events.decided_checks {
        let is_reported = matches!(events.outcomes.get(id), Some((_, Outcome::Charged { .. })));
        if let (Verdict::Charged, false, Some(started)) = (verdict, is_reported, events.started.get(id)) {
            unknown[started.client] += 1;
        }
    }
    for (client, unanswered, lost, streams) in &events.stopped {
        if unknown[*client] > *unanswered {
            let unreported = unknown[*client];
            let what = format!(
                "client {client} has {unreported} charges without a response, but counts {unanswered}"
            );
            report(Rule::UnansweredChecksAreCounted, what);
        }
        let own = |id: &&Id| events.started.get(id).is_some_and(|started| started.client == *client);
        let not_done = events.settled.iter().filter(|(_, is_done)| !**is_done).map(|(id, _)| id).filter(own);
        let not_done = not_done.count() as u64;
        if not_done != *lost {
            let what = format!("client {client} lost {not_done} settlements, but counts {lost}");
            report(Rule::SettledOnce, what);
        }
        if *streams > 1 {
            report(Rule::NoStreamLeak, format!("client {client} has {streams} open streams"));
        }
    }
}

fn check_settlements(events: &Events, report: &mut impl FnMut(Rule, String)) {
    for (id, started) in &events.started {
        let used = events.settling.get(id).copied().unwrap_or(started.cost);
        let expected = (used < started.cost).then(|| started.cost - used);
        let refunds = events.refunded.get(id).map_or(&[][..], Vec::as_slice);
        let more = events.verdicts(*id, Verdict::Overage).count();
        let is_done = events.settled.get(id).copied();
        if events.settling.contains_key(id) && is_done.is_none() {
            report(Rule::SettledOnce, format!("{id} was never settled"));
        }
        // The server may have executed a settlement without a reply.
        let may_have_run = refunds.len() <= 1
            && refunds.iter().all(|units| Some(*units) == expected)
            && more <= usize::from(used > started.cost);
        let has_run = refunds.len() + more == usize::from(used != started.cost);
        if !may_have_run || is_done == Some(true) && !has_run {
            let what =
                format!("{id} of {} units used {used}: {refunds:?} refunded, {more} overages", started.cost);
            report(Rule::SettledOnce, what);
        }
    }
}
