//! Whether what has happened in a run may happen.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use tower_sliding_window::{OutageRule, outage::DenyCache};

use super::{
    plan::{DEADLINE, Plan, Step},
    record::{Answer, Entry, Event, Id, Ruling},
    run::TICK,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The store admits no more than the quota in any window.
    NeverTooMany,
    /// Nothing is charged after its deadline, except as far as the server's clock was set back.
    NothingLate,
    NothingTwice,
    /// Every caller is told something by the deadline.
    AnswerInTime,
    /// What is told to be a decision of the store is one: an outage is no denial, and no admission.
    OnlyTheStoreDecides,
    /// What happens in an outage is what its rule says.
    OutageAsSaid,
    /// Charges that nobody was told of are counted.
    UnansweredAreCounted,
    /// When nothing is broken any more, the store is soon asked again.
    Recovers,
    /// All shares together are no more than the quota.
    SharesFit,
    /// What is settled is settled once, or counted as lost.
    SettledOnce,
    /// Nothing stays open that is not used.
    NoStreamsLeft,
    /// The server understands what it is asked.
    Understood,
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

/// Two hosts may be a tick apart, and so may be a timer and its time.
const SLACK: Duration = TICK.saturating_mul(2);

/// How long it may take until the store decides again. The longest way: the breaker has just opened, and waits for 1 s; its
/// probe meets a connection that is dead, which is found out by it, or an attempt to connect that began before; and the
/// breaker waits for another second.
pub const RECOVERY: Duration = Duration::from_millis(2_500);

/// After so long nobody goes by what the server's clock has shown: a reading is kept for 10 s, and then until the next reply.
const MEMORY: Duration = Duration::from_secs(13);

struct Asked {
    at: Duration,
    client: usize,
    tenant: u64,
    cost: u32,
}

#[derive(Default)]
struct Seen {
    asked: BTreeMap<Id, Asked>,
    answered: BTreeMap<Id, (Duration, Answer)>,
    ruled: Vec<(Duration, Id, u64, Ruling)>,
    given_back: BTreeMap<Id, Vec<u32>>,
    settling: BTreeMap<Id, u32>,
    settled: BTreeMap<Id, bool>,
    /// When all data was lost.
    losses: Vec<Duration>,
    starts: Vec<Duration>,
    /// How far the server's clock was off from then on.
    offsets: Vec<(Duration, i64)>,
    ended: Vec<(usize, u64, u64, usize)>,
    misunderstood: Vec<String>,
}

impl Seen {
    fn of(entries: &[Entry]) -> Self {
        let mut seen = Self { offsets: vec![(Duration::ZERO, 0)], ..Self::default() };
        for Entry { at, event } in entries {
            let at = *at;
            match event.clone() {
                Event::Asked { id, client, tenant, cost } => {
                    seen.asked.insert(id, Asked { at, client, tenant, cost });
                }
                Event::Answered { id, answer } => {
                    seen.answered.insert(id, (at, answer));
                }
                Event::Ruled { id, reading, ruling } => seen.ruled.push((at, id, reading, ruling)),
                Event::GaveBack { id, units } => seen.given_back.entry(id).or_default().push(units),
                Event::Settling { id, used } => {
                    seen.settling.insert(id, used);
                }
                Event::Settled { id, is_done } => {
                    seen.settled.insert(id, is_done);
                }
                Event::Step(Step::Start { loses_data }) => {
                    seen.starts.push(at);
                    seen.losses.extend(loses_data.then_some(at));
                }
                Event::Step(Step::Clock(by)) => {
                    let before = seen.offsets.last().map_or(0, |(_, offset)| *offset);
                    seen.offsets.push((at, before + by));
                }
                Event::Ended { client, unanswered, lost_settlements, streams } => {
                    seen.ended.push((client, unanswered, lost_settlements, streams));
                }
                Event::Misunderstood(what) => seen.misunderstood.push(what),
                Event::Step(_) | Event::UnknownScript | Event::Connected { .. } => {}
            }
        }
        seen
    }

    fn rulings(&self, id: Id, wanted: Ruling) -> impl Iterator<Item = u64> {
        let of = move |(_, other, _, ruling): &&(_, Id, u64, Ruling)| *other == id && *ruling == wanted;
        self.ruled.iter().filter(of).map(|(_, _, reading, _)| *reading)
    }

    /// Whether the store has denied somebody the same, or less, at this reading of its clock, and no longer ago than that may be
    /// known.
    fn has_denied(&self, asked: &Asked, reading: u64) -> bool {
        let is_fresh = |other: &Asked| asked.at <= other.at + DenyCache::default().max_age;
        self.ruled.iter().any(|(_, id, made, ruling)| {
            (*made, *ruling) == (reading, Ruling::Denied)
                && self.asked.get(id).is_some_and(|other| {
                    is_fresh(other)
                        && (other.client, other.tenant) == (asked.client, asked.tenant)
                        && other.cost <= asked.cost
                })
        })
    }

    /// How much later than their deadlines checks may be charged at this instant: as much as the clock was set back since
    /// somebody can have read it.
    fn allowance(&self, at: Duration) -> Duration {
        let start = self.starts.iter().copied().filter(|start| *start <= at).max().unwrap_or_default();
        let start = start.max(at.saturating_sub(MEMORY));
        let now = self.offsets.iter().rfind(|(since, _)| *since <= at).map_or(0, |(_, offset)| *offset);
        let ends = self.offsets.iter().skip(1).map(|(since, _)| *since).chain([Duration::MAX]);
        let seen = self.offsets.iter().zip(ends).filter(|((since, _), end)| *since <= at && *end >= start);
        let most = seen.map(|((_, offset), _)| *offset).max().unwrap_or(now);
        Duration::from_micros((most - now).max(0) as u64)
    }
}

/// All that has happened and may not.
pub fn judge(plan: &Plan, entries: &[Entry]) -> Vec<Violation> {
    let seen = Seen::of(entries);
    let mut violations = Vec::new();
    let mut tell = |rule, what| violations.push(Violation { rule, what });
    for what in &seen.misunderstood {
        tell(Rule::Understood, what.clone());
    }
    for tenant in 0..plan.tenants {
        never_too_many(plan, &seen, tenant, &mut tell);
        shares_fit(plan, &seen, tenant, &mut tell);
    }
    charged_once_and_in_time(&seen, &mut tell);
    answered(plan, &seen, &mut tell);
    recovers(plan, &seen, &mut tell);
    counted(plan, &seen, &mut tell);
    settled(&seen, &mut tell);
    violations
}

/// The most units in any half-open window, of charges in the order of their instants.
fn most_in_a_window(window: u64, charges: &[(u64, u32)]) -> u32 {
    let from = |i: usize| {
        let end = charges[i].0 + window;
        charges[i..].iter().take_while(|(at, _)| *at < end).map(|(_, units)| units).sum()
    };
    (0..charges.len()).map(from).max().unwrap_or(0)
}

fn never_too_many(plan: &Plan, seen: &Seen, tenant: u64, tell: &mut impl FnMut(Rule, String)) {
    let (quota, window) = (plan.policy.quota(), plan.policy.window().as_micros() as u64);
    let (mut charges, mut last, mut losses) = (Vec::new(), 0, seen.losses.iter().peekable());
    let mut look = |charges: &mut Vec<(u64, u32)>| {
        let most = most_in_a_window(window, charges);
        if most > quota {
            tell(Rule::NeverTooMany, format!("{most} units of {quota} for tenant {tenant}"));
        }
        charges.clear();
    };
    for (at, id, reading, ruling) in &seen.ruled {
        let Some(asked) = seen.asked.get(id).filter(|asked| asked.tenant == tenant) else { continue };
        let units = match ruling {
            Ruling::Charged => {
                let back = seen.given_back.get(id).and_then(|back| back.first()).copied();
                asked.cost.saturating_sub(back.unwrap_or(0))
            }
            Ruling::Overage => 0,
            Ruling::Denied | Ruling::Late => continue,
        };
        // What stands there may have been lost, or is of another clock.
        let is_lost = losses.next_if(|loss| *loss <= at).is_some();
        if is_lost || last > reading + window {
            while losses.next_if(|loss| *loss <= at).is_some() {}
            look(&mut charges);
            last = 0;
        }
        last = last.max(*reading);
        charges.push((last, units));
    }
    look(&mut charges);
}

fn shares_fit(plan: &Plan, seen: &Seen, tenant: u64, tell: &mut impl FnMut(Rule, String)) {
    let (quota, window) = (plan.policy.quota(), plan.policy.window().as_micros() as u64);
    let mut local = Vec::new();
    for (id, (_, answer)) in &seen.answered {
        if let (Answer::Local { reading }, Some(asked)) = (answer, seen.asked.get(id))
            && asked.tenant == tenant
        {
            local.push((*reading, asked.cost));
        }
    }
    local.sort();
    let most = most_in_a_window(window, &local);
    if most > quota {
        tell(Rule::SharesFit, format!("{most} units of {quota} for tenant {tenant}"));
    }
}

fn charged_once_and_in_time(seen: &Seen, tell: &mut impl FnMut(Rule, String)) {
    let mut charged = BTreeSet::new();
    for (at, id, _, ruling) in &seen.ruled {
        if !matches!(ruling, Ruling::Charged | Ruling::Overage) {
            continue;
        }
        if !charged.insert((*id, *ruling == Ruling::Overage)) {
            tell(Rule::NothingTwice, format!("{ruling:?} {id} again at {at:?}"));
        }
        let Some(asked) = seen.asked.get(id).filter(|_| *ruling == Ruling::Charged) else { continue };
        let allowance = seen.allowance(*at);
        if *at > asked.at + DEADLINE + SLACK + allowance {
            let late = *at - asked.at - DEADLINE;
            tell(
                Rule::NothingLate,
                format!("{id} was charged at {at:?}, {late:?} late; {allowance:?} are allowed"),
            );
        }
    }
}

fn answered(plan: &Plan, seen: &Seen, tell: &mut impl FnMut(Rule, String)) {
    for (id, asked) in &seen.asked {
        let Some((at, answer)) = seen.answered.get(id) else {
            tell(Rule::AnswerInTime, format!("{id} was never answered"));
            continue;
        };
        if *at > asked.at + DEADLINE + SLACK {
            tell(Rule::AnswerInTime, format!("{id} was answered after {:?}: {answer:?}", *at - asked.at));
        }
        let is_made = match answer {
            Answer::Charged { reading } => seen.rulings(*id, Ruling::Charged).any(|made| made == *reading),
            Answer::Denied { reading } => seen.rulings(*id, Ruling::Denied).any(|made| made == *reading),
            Answer::Known { reading } => seen.has_denied(asked, *reading),
            _ => true,
        };
        if !is_made {
            tell(
                Rule::OnlyTheStoreDecides,
                format!("{id} was told {answer:?}, and the store knows nothing of it"),
            );
        }
        let is_by_rule = match answer {
            Answer::Local { .. } | Answer::BeyondShare(_) => {
                matches!(plan.rule, OutageRule::LocalFallback(_))
            }
            Answer::Unchecked(_) => plan.rule == OutageRule::FailOpen,
            _ => true,
        };
        if !is_by_rule {
            tell(Rule::OutageAsSaid, format!("{id} was told {answer:?} with {:?}", plan.rule));
        }
    }
}

fn recovers(plan: &Plan, seen: &Seen, tell: &mut impl FnMut(Rule, String)) {
    let mut by_client = vec![0; plan.clients];
    for (id, asked) in &seen.asked {
        if asked.at < plan.repaired + RECOVERY {
            continue;
        }
        match seen.answered.get(id) {
            Some((_, Answer::Charged { .. } | Answer::Denied { .. })) => by_client[asked.client] += 1,
            // What is known without asking shows nothing.
            Some((_, Answer::Gone | Answer::Known { .. })) => {}
            other => tell(Rule::Recovers, format!("{id}, asked at {:?}, was told {other:?}", asked.at)),
        }
    }
    for (client, decided) in by_client.iter().enumerate() {
        if *decided == 0 {
            tell(Rule::Recovers, format!("client {client} has no decision"));
        }
    }
}

fn counted(plan: &Plan, seen: &Seen, tell: &mut impl FnMut(Rule, String)) {
    let mut unknown = vec![0; plan.clients];
    for (_, id, _, ruling) in &seen.ruled {
        let told = matches!(seen.answered.get(id), Some((_, Answer::Charged { .. })));
        if let (Ruling::Charged, false, Some(asked)) = (ruling, told, seen.asked.get(id)) {
            unknown[asked.client] += 1;
        }
    }
    for (client, unanswered, lost, streams) in &seen.ended {
        if unknown[*client] > *unanswered {
            let stand = unknown[*client];
            let what = format!("{stand} charges of client {client} stand, and it counts {unanswered}");
            tell(Rule::UnansweredAreCounted, what);
        }
        let own = |id: &&Id| seen.asked.get(id).is_some_and(|asked| asked.client == *client);
        let not_done = seen.settled.iter().filter(|(_, is_done)| !**is_done).map(|(id, _)| id).filter(own);
        let not_done = not_done.count() as u64;
        if not_done != *lost {
            let what = format!("{not_done} settlements of client {client} were lost, and it counts {lost}");
            tell(Rule::SettledOnce, what);
        }
        if *streams > 1 {
            tell(Rule::NoStreamsLeft, format!("client {client} has {streams} open"));
        }
    }
}

fn settled(seen: &Seen, tell: &mut impl FnMut(Rule, String)) {
    for (id, asked) in &seen.asked {
        let used = seen.settling.get(id).copied().unwrap_or(asked.cost);
        let expected = (used < asked.cost).then(|| asked.cost - used);
        let back = seen.given_back.get(id).map_or(&[][..], Vec::as_slice);
        let more = seen.rulings(*id, Ruling::Overage).count();
        let is_done = seen.settled.get(id).copied();
        if seen.settling.contains_key(id) && is_done.is_none() {
            tell(Rule::SettledOnce, format!("{id} was never settled"));
        }
        // It may have run, even if nobody was told so.
        let may_have_run = back.len() <= 1
            && back.iter().all(|units| Some(*units) == expected)
            && more <= usize::from(used > asked.cost);
        let has_run = back.len() + more == usize::from(used != asked.cost);
        if !may_have_run || is_done == Some(true) && !has_run {
            let what =
                format!("{id} of {} units used {used}: {back:?} went back, {more} overages", asked.cost);
            tell(Rule::SettledOnce, what);
        }
    }
}
