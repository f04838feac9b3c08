//! The figures of a day.

use crate::{
    api::{Logged, QUOTA, Sender},
    demand::{self, JOBS, Kind},
    simulation::{Outcome, World},
    time::{DAY, HOUR, MINUTE, MONDAY},
};

/// The figures of Monday.
pub(crate) struct Figures {
    /// The units that the API has served to the jobs.
    pub(crate) served: u32,
    /// The units that the stranger has left.
    pub(crate) available: u32,
    pub(crate) searches: u32,
    /// The first time of the day, in microseconds, at which not even a read was possible.
    pub(crate) gone_at: Option<u64>,
    /// The requests of each process that the API has rejected, until the first hour of Tuesday.
    pub(crate) rejected: [u32; JOBS.len()],
    /// The reads that a process did not send, because its limiter has denied them for longer than they wait.
    pub(crate) reads_lost: usize,
}

impl Figures {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let monday = MONDAY..MONDAY + DAY;
        let served = |sender: fn(Sender) -> bool| {
            let of_monday = outcome.log.iter().filter(|logged| monday.contains(&logged.at));
            of_monday.filter(move |logged| logged.is_served && sender(logged.sender))
        };
        let ours = || served(|sender| sender != Sender::Stranger);
        let units = |logged: &Logged| logged.cost;
        let of_stranger: u32 = served(|sender| sender == Sender::Stranger).map(units).sum();
        let mut rejected = [0; JOBS.len()];
        let mut reads_rejected = Vec::new();
        for logged in outcome.log.iter().filter(|logged| !logged.is_served) {
            // On the clock of the clients.
            let at = logged.at.saturating_add_signed(-outcome.ahead);
            if let Sender::Job(job) = logged.sender
                && at >= MONDAY
            {
                rejected[job] += 1;
                reads_rejected.extend((logged.cost == Kind::Read.cost()).then_some(at));
            }
        }
        let given_up =
            outcome.given_up.iter().filter(|(at, kind)| monday.contains(at) && *kind == Kind::Read);
        let missed = given_up.clone().map(|(at, _)| *at).chain(reads_rejected);
        Self {
            served: ours().map(units).sum(),
            available: QUOTA - of_stranger,
            searches: ours().filter(|logged| logged.cost == Kind::Search.cost()).count() as u32,
            gone_at: missed.min().map(|at| at - MONDAY),
            rejected,
            reads_lost: given_up.count(),
        }
    }

    /// Returns the time of day at which the quota is gone.
    pub(crate) fn gone_text(&self) -> String {
        let text = |at| format!("{:02}:{:02}", at / HOUR, at % HOUR / MINUTE);
        self.gone_at.map_or_else(|| "never".to_owned(), text)
    }

    /// Returns the share of the available units, in per cent, rounded down to a tenth.
    pub(crate) fn share_text(&self) -> String {
        let tenths = u64::from(self.served) * 1_000 / u64::from(self.available);
        format!("{}.{} %", tenths / 10, tenths % 10)
    }
}

/// What the columns of the table mean.
pub(crate) const LEGEND: &str = "gone at: when the first read finds no unit, in the zone of the API. share: of the units that the stranger leaves.
reads lost: of 2,880, those that the limiter has denied. rejected: by the API, with 429; at most so many of a process.";

/// Returns what both tables have in common.
pub(crate) fn heading(world: &World) -> String {
    let seconds = world.ahead as f64 / 1e6;
    let relation = if seconds < 0.0 { "behind" } else { "ahead of" };
    format!(
        "The API grants {QUOTA} units a day. Eight jobs want {}. Its clock is {:.1} s {relation} theirs.\n",
        demand::units_of_monday(&world.tasks),
        seconds.abs(),
    )
}

/// Returns the table of a day.
pub(crate) fn table(world: &World, outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "{:20}  gone at  served    share  searches  reads lost  rejected  of a process\n",
        world.name()
    );
    for outcome in outcomes {
        let figures = Figures::of(outcome);
        text += &format!(
            "{:20}  {:>7}  {:>6}  {:>7}  {:>8}  {:>10}  {:>8}  {:>12}\n",
            outcome.plan.name(),
            figures.gone_text(),
            figures.served,
            figures.share_text(),
            figures.searches,
            figures.reads_lost,
            figures.rejected.iter().sum::<u32>(),
            figures.rejected.iter().max().unwrap_or(&0),
        );
    }
    text
}
