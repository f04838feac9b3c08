//! One process of the client: its policies, and what it does with the answers of the API.

use std::{error::Error, time::Duration};

use http::Response;
use tower_sliding_window::{
    Admission, Algorithm, ConfigError, Limiter, MemoryBackend, PartitionKey, Policies, Policy, Rejection,
    learn::{Learning, Stated},
    policy::{Anchor, Period, Zone},
    protocol::Draft,
};

use crate::{api::QUOTA, demand::Kind};

const HOUR: Duration = Duration::from_secs(3_600);

/// How the client limits its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    FixedDay,
    SlidingDay,
    CalendarDay,
    Learning,
}

/// One process. All processes count in one store.
pub(crate) struct Client {
    limiter: Limiter,
    policies: [Policies; Kind::ALL.len()],
    learns: bool,
}

/// The outcome of a request before it is sent.
pub(crate) enum Asked {
    Admitted(Admission),
    /// How long the request has to wait.
    Denied(Duration),
}

impl Plan {
    pub(crate) const ALL: [Self; 4] = [Self::FixedDay, Self::SlidingDay, Self::CalendarDay, Self::Learning];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FixedDay => "fixed day in UTC",
            Self::SlidingDay => "sliding day",
            Self::CalendarDay => "day of the API",
            Self::Learning => "the same, learning",
        }
    }

    /// Returns the policies of each kind of request.
    fn policies(self) -> Result<[Policies; Kind::ALL.len()], ConfigError> {
        let day = Policy::new("daily", QUOTA, 24 * HOUR)?;
        let same = |policy: Policy| Kind::ALL.map(|_| policy.clone().into());
        match self {
            Self::FixedDay => return Ok(same(day.with_algorithm(Algorithm::FixedWindow)?)),
            Self::SlidingDay => return Ok(same(day)),
            Self::CalendarDay | Self::Learning => {}
        }
        // The clock of the API may be behind by some seconds, so this day begins a minute later.
        let day = Policy::calendar_period("daily", QUOTA, Period::Day, Zone::new("America/Los_Angeles")?)?
            .anchored(Anchor::default().at(0, 1))?;
        // All kinds count on one day. A search leaves a quarter of it to the others, and a refresh the last 1 % to the reads.
        let mut searches = vec![day.clone().headroom_percent(25)?, Policy::new("searches", 300, HOUR)?];
        let mut reads = vec![day.clone()];
        let mut refreshes = vec![day.headroom_percent(1)?];
        if self == Self::Learning {
            // A read may fit when a search does not.
            searches.push(Policy::gate("no-searches")?);
            reads.push(Policy::gate("no-reads")?);
            refreshes.push(Policy::gate("no-reads")?);
        }
        Ok([Policies::new(searches)?, Policies::new(reads)?, Policies::new(refreshes)?])
    }
}

impl Client {
    pub(crate) fn new(plan: Plan, store: &MemoryBackend) -> Result<Self, ConfigError> {
        let mut learning = Learning::default();
        // The API states waits until the end of its day.
        learning.max_wait = 25 * HOUR;
        let limiter =
            Limiter::builder(store.clone()).namespace("day").without_policies().learn(learning).build()?;
        Ok(Self { limiter, policies: plan.policies()?, learns: plan == Plan::Learning })
    }

    /// Asks the limiter. A program without simulated time calls [`Limiter::wait`], or adds a `WaitLayer` to its HTTP client.
    pub(crate) async fn ask(&self, kind: Kind) -> Result<Asked, Box<dyn Error>> {
        let policies = self.policies[kind as usize].clone();
        let draft = Draft::check_against(PartitionKey::new("account", "ours"), policies, kind.cost());
        match self.limiter.admit(draft).await {
            Ok(admission) => Ok(Asked::Admitted(admission)),
            Err(Rejection::Denied(decision)) => {
                let wait = decision.retry_after().duration();
                Ok(Asked::Denied(wait.ok_or("a request costs more than its quota")?))
            }
            Err(rejection) => Err(rejection.into()),
        }
    }

    /// Reads the answer of the API to an admitted request.
    pub(crate) async fn answered(
        &self,
        admission: &Admission,
        answer: &Response<()>,
    ) -> Result<(), Box<dyn Error>> {
        if self.learns {
            let stated = Stated::from_http(answer.status(), answer.headers());
            self.limiter.learn(admission, &stated).await?;
        }
        Ok(())
    }
}
