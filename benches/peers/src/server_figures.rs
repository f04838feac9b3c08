//! Figures of the server: its CPU time, and the commands that it has executed for its clients.

use std::{collections::HashMap, error::Error};

use crate::server::Server;

pub fn flush(server: &Server) -> Result<(), Box<dyn Error>> {
    Ok(redis::cmd("FLUSHALL").arg("SYNC").query(&mut server.connection())?)
}

/// Returns a number from the server's INFO.
pub fn info(server: &Server, name: &str) -> Result<f64, Box<dyn Error>> {
    Ok(info_text(server, name)?.parse()?)
}

/// Returns a value from the server's INFO.
pub fn info_text(server: &Server, name: &str) -> Result<String, Box<dyn Error>> {
    let text: String = redis::cmd("INFO").query(&mut server.connection())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.ok_or_else(|| format!("INFO has no {name}"))?.trim().to_owned())
}

/// Returns the mean time of a script call since the last reset of the statistics, in microseconds.
pub fn micros_of_script(server: &Server) -> Result<f64, Box<dyn Error>> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connection())?;
    let (mut calls, mut micros) = (0.0, 0.0);
    for line in stats.lines().filter(|line| line.starts_with("cmdstat_eval")) {
        let field = |name: &str| -> Result<f64, Box<dyn Error>> {
            let value = line.split([':', ',']).find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            Ok(value.ok_or_else(|| format!("{line}: no {name}"))?.parse()?)
        };
        calls += field("calls")?;
        micros += field("usec")?;
    }
    Ok(micros / calls)
}

pub fn reset_stats(server: &Server) -> Result<(), Box<dyn Error>> {
    Ok(redis::cmd("CONFIG").arg("RESETSTAT").query(&mut server.connection())?)
}

/// The server at the beginning of a measurement.
pub struct Start {
    cpu: f64,
}

impl Start {
    pub fn now(server: &Server) -> Result<Self, Box<dyn Error>> {
        reset_stats(server)?;
        Ok(Self { cpu: cpu_seconds(server)? })
    }

    /// Returns the seconds of CPU time and the commands since then.
    pub fn elapsed(&self, server: &Server) -> Result<(f64, f64), Box<dyn Error>> {
        let cpu = cpu_seconds(server)? - self.cpu;
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connection())?;
        Ok((cpu, commands_of_clients(&stats)))
    }
}

fn cpu_seconds(server: &Server) -> Result<f64, Box<dyn Error>> {
    Ok(info(server, "used_cpu_user")? + info(server, "used_cpu_sys")?)
}

/// The commands of this program.
const OWN: [&str; 2] = ["info", "config|resetstat"];

/// The commands that scripts call and no client of this program sends. The server counts them like those of a client.
const IN_SCRIPTS: [&str; 9] =
    ["get", "set", "setrange", "lindex", "lset", "ltrim", "rpush", "pexpire", "unlink"];

/// Returns the number of commands that the limiter's client has sent, whatever they are: all that the server has executed, without
/// those of this program and those that scripts have called.
fn commands_of_clients(stats: &str) -> f64 {
    let calls: HashMap<&str, f64> = stats
        .lines()
        .filter_map(|line| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name, figures.split(',').next()?.parse().ok()?))
        })
        .collect();
    let sent = |name: &str| !OWN.contains(&name) && !IN_SCRIPTS.contains(&name) && name != "time";
    let (mut total, mut scripts) = (0.0, 0.0);
    for (name, calls) in calls.iter().filter(|(name, _)| sent(name)) {
        total += calls;
        scripts += if name.starts_with("eval") { *calls } else { 0.0 };
    }
    // A script of a limiter calls TIME once. What is beyond that was sent by a client.
    total + (calls.get("time").unwrap_or(&0.0) - scripts).max(0.0)
}
