//! The demand: what the eight jobs want of the API, and what a stranger takes. It is the same for every client.

use crate::{
    random::Random,
    time::{DAY, HOUR, MINUTE, MONDAY, SECOND, SUNDAY},
};

/// The jobs, and by how many hours the clocks of their regions are ahead of the zone of the API.
pub(crate) const JOBS: [(&str, u64); 8] = [
    ("tokyo", 17),
    ("singapore", 16),
    ("dubai", 12),
    ("berlin", 9),
    ("london", 8),
    ("sao paulo", 5),
    ("new york", 3),
    ("los angeles", 0),
];

/// The requests and the units of the stranger: 30 % of the quota.
const OF_STRANGER: u32 = 300;
pub(crate) const UNITS_OF_STRANGER: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Search,
    /// The state of an entry. It is of no use later.
    Read,
    /// A read of an old entry, which any other day can do as well.
    Refresh,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Search, Self::Read, Self::Refresh];

    pub(crate) fn cost(self) -> u32 {
        match self {
            Self::Search => 100,
            Self::Read | Self::Refresh => 1,
        }
    }
}

/// Requests of one job in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    /// The index of the job.
    pub(crate) job: usize,
    pub(crate) kind: Kind,
    pub(crate) begin: u64,
    pub(crate) count: u64,
    /// The time between two requests, in microseconds.
    pub(crate) interval: u64,
}

/// Returns the tasks from Sunday until the first hour of Tuesday.
pub(crate) fn tasks(random: &mut Random) -> Vec<Task> {
    let mut tasks = vec![
        // The index of Tokyo is built anew: 6,000 units on Sunday evening.
        Task { job: 0, kind: Kind::Search, begin: SUNDAY + 20 * HOUR, count: 60, interval: 3 * MINUTE },
        // The bug: in Dubai, a search never reaches its last page. 4,000 units in ten minutes.
        Task { job: 2, kind: Kind::Search, begin: MONDAY + 175 * MINUTE, count: 40, interval: 15 * SECOND },
    ];
    let hours = (SUNDAY..=MONDAY + DAY).step_by(HOUR as usize);
    for (hour, (job, (_, ahead))) in
        hours.flat_map(|hour| JOBS.iter().enumerate().map(move |job| (hour, job)))
    {
        // The schedules meet at the full hour, up to two seconds apart.
        let begin = hour + random.below(2 * SECOND);
        tasks.push(Task { job, kind: Kind::Read, begin, count: 15, interval: 4 * MINUTE });
        let of_day = (hour - SUNDAY) / HOUR % 24;
        let working_hours = 8..18;
        if hour >= MONDAY && working_hours.contains(&((of_day + ahead) % 24)) {
            tasks.push(Task { job, kind: Kind::Search, begin, count: 2, interval: 0 });
        }
        if hour == MONDAY + 22 * HOUR {
            let begin = begin + 30 * MINUTE;
            tasks.push(Task { job, kind: Kind::Refresh, begin, count: 300, interval: 18 * SECOND });
        }
    }
    tasks
}

/// Returns when the stranger sends its requests: at any time of Monday.
pub(crate) fn stranger(random: &mut Random) -> Vec<u64> {
    (0..OF_STRANGER).map(|_| MONDAY + random.below(DAY)).collect()
}

/// Returns the units of all requests of Monday.
pub(crate) fn units_of_monday(tasks: &[Task]) -> u64 {
    let of_monday = tasks.iter().filter(|task| (MONDAY..MONDAY + DAY).contains(&task.begin));
    of_monday.map(|task| task.count * u64::from(task.kind.cost())).sum()
}
