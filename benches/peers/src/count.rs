//! Instructions of a request, counted by callgrind.
//!
//! A child process runs each scenario twice, with different numbers of requests. The difference divided by the number of further
//! requests is the cost of one request, without start-up.

use std::{env, error::Error, process::Command};

/// Runs this program under callgrind with these arguments and a number of requests. Returns the instructions of one request.
pub fn instructions(args: &[String], few: usize, many: usize) -> Result<i64, Box<dyn Error>> {
    let total = |requests: usize| -> Result<i64, Box<dyn Error>> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(env::current_exe()?)
            .args(args)
            .arg(requests.to_string())
            .output()
            .map_err(|error| {
                format!("valgrind: {error}; install it, for example with `apt-get install valgrind`")
            })?;
        let text = String::from_utf8_lossy(&output.stderr);
        let line =
            text.lines().find_map(|line| line.split_once("Collected :")).filter(|_| output.status.success());
        let (_, collected) = line.ok_or_else(|| format!("valgrind has counted nothing:\n{text}"))?;
        Ok(collected.trim().parse()?)
    };
    Ok((total(many)? - total(few)?) / (many - few) as i64)
}
