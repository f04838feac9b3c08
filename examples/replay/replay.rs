//! One replay of a log: from its lines to the counts.

use std::time::Duration;

use http::Request as HttpRequest;
use tower_sliding_window::ConfigError;

use crate::{
    demand::Demand,
    denials::Denials,
    log::{self, Lines},
    order::Order,
    plan::Plan,
    quota::Kept,
    requests::{Names, Request},
    service::Service,
    tally::Tally,
};

/// How many lines of a list are named.
const NAMED: usize = 5;

pub(crate) struct Replay<'a> {
    plan: &'a Plan,
    service: Service,
    denials: Option<Denials>,
    order: Order,
    /// Whether the requests are kept for further replays.
    keeps: bool,
    pub(crate) names: Names,
    pub(crate) tally: Tally,
    pub(crate) demand: Demand,
    pub(crate) kept: Vec<Kept>,
    pub(crate) skipped: Named,
    pub(crate) late: Named,
    pub(crate) without_key: Named,
}

/// Counts lines, and names the first ones.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) count: u64,
    /// The number of a line, and the reason.
    pub(crate) first: Vec<(u64, String)>,
}

impl Named {
    fn add(&mut self, line: u64, reason: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push((line, reason()));
        }
    }
}

impl<'a> Replay<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        reorder: Duration,
        denials: Option<Denials>,
        keeps: bool,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            plan,
            service: Service::new(plan.policies.iter().cloned())?,
            denials,
            order: Order::new(reorder),
            keeps,
            names: Names::default(),
            tally: Tally::new(&plan.policies),
            demand: Demand::new(&plan.policies)?,
            kept: Vec::new(),
            skipped: Named::default(),
            late: Named::default(),
            without_key: Named::default(),
        })
    }

    /// Replays all lines.
    pub(crate) fn run(&mut self, mut lines: Lines) -> Result<(), String> {
        let mut request = HttpRequest::new(());
        while let Some((number, line)) = lines.next()? {
            let logged = line.and_then(|line| log::read(line, self.plan, &mut request));
            match logged {
                Err(reason) => self.skipped.add(number, || reason),
                Ok(log::Logged { key: None, .. }) => {
                    self.without_key.add(number, || format!("no value of {}", self.plan.key.join(" and ")));
                }
                Ok(log::Logged { at_micros, key: Some(key) }) => {
                    let what = self.names.what(key, self.plan.costs.cost(&request));
                    if self.order.add(at_micros, number, what) {
                        self.late.add(number, || log::time_text(at_micros));
                    }
                    while let Some(request) = self.order.next() {
                        self.decide(request)?;
                    }
                }
            }
        }
        while let Some(request) = self.order.rest() {
            self.decide(request)?;
        }
        self.denials.take().map_or(Ok(()), Denials::finish)
    }

    fn decide(&mut self, request: Request) -> Result<(), String> {
        let Self { service, names, tally, demand, denials, .. } = self;
        match service.decide(request.at_micros, request.what, names) {
            Ok(decision) => {
                tally.add(request, &decision, &self.plan.policies);
                if let Some(denials) = denials
                    && !decision.is_admitted()
                {
                    denials.write(request, names.key(request.what), &decision)?;
                }
            }
            Err(_) => tally.undecided(request),
        }
        demand.add(request, names);
        if self.keeps {
            self.kept.push(Kept { at_micros: request.at_micros, what: request.what });
        }
        Ok(())
    }
}
