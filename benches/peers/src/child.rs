//! The child process that runs under valgrind: one subject with one load.

use std::{error::Error, mem};

use crate::{
    count::counted,
    drive::{Counted, InFlight, Load},
    limit::Limit,
    limiters::Bare,
    runtime,
    services::visit,
    subject::Subject,
};

/// What the child process runs.
#[derive(Clone, Debug)]
pub struct Child {
    /// The `Debug` name of a [`Subject`] or a [`Bare`].
    pub name: String,
    /// Of a Redis server, for a load that is in flight. Empty in memory.
    pub url: String,
    pub load: Load,
}

impl Child {
    pub const COMMAND: &str = "run";

    pub fn args(&self) -> Vec<String> {
        let Load { limit: Limit { policies, denies }, requests, made, clients, keys, warm_up } = self.load;
        let numbers = [policies, usize::from(denies), requests, made, clients, keys, warm_up];
        let texts = [Self::COMMAND.to_owned(), self.name.clone(), self.url.clone()];
        texts.into_iter().chain(numbers.map(|number| number.to_string())).collect()
    }

    /// Reads the arguments after the command.
    pub fn parse(args: &[String]) -> Result<Self, Box<dyn Error>> {
        let [name, url, numbers @ ..] = args else { return Err("no name and URL".into()) };
        let numbers = numbers.iter().map(|number| number.parse()).collect::<Result<Vec<usize>, _>>()?;
        let [policies, denies, requests, made, clients, keys, warm_up] = numbers[..] else {
            return Err("not seven numbers".into());
        };
        let limit = Limit { policies, denies: denies == 1 };
        let load = Load { limit, requests, made, clients, keys, warm_up };
        Ok(Self { name: name.clone(), url: url.clone(), load })
    }

    pub fn run(&self) -> Result<(), Box<dyn Error>> {
        let (load, url) = (self.load, self.url.as_str());
        if let Some(bare) = Bare::parse(&self.name) {
            let (_, limiter) = bare.run(load.limit, load.requests, load.keys)?;
            mem::forget(limiter);
            return Ok(());
        }
        let subject = Subject::parse(&self.name).ok_or_else(|| format!("unknown subject {}", self.name))?;
        let runtime = runtime(1)?;
        if url.is_empty() {
            return runtime.block_on(visit(subject, load.limit, url, Counted(load)));
        }
        let phases = runtime.block_on(visit(subject, load.limit, url, InFlight(load)))?;
        runtime.block_on(phases.warm_up);
        counted(|| runtime.block_on(phases.measured));
        Ok(())
    }
}
