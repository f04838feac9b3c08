//! Why is this customer limited? How do I reset a limit?
//!
//! Reports or resets the usage of one key that the service in `axum.rs` counts in Redis. A key is the kind and the value that the service
//! uses. The policies, the namespace and the secret of the hash, if any, must be those of the service. Otherwise the example reads the
//! usage of another key.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example inspect -- peek header:x-api-key alice 5
//! ```
//!
//! Expected output:
//!
//! ```text
//! a request of cost 5 is denied for 10.0 s:
//! burst: 0 of 10 left, more in 10.0 s, all in 10.0 s; this policy denies it
//!   tsw{sUf4v_gCbjNW6go3zDtxdy}Asburst
//! sustained: 20 of 30 left, more in 60.0 s, all in 60.0 s
//!   tsw{sUf4v_gCbjNW6go3zDtxdy}msustained
//! ```
//!
//! Type next:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example inspect -- reset header:x-api-key alice
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example inspect -- peek peer-ip 127.0.0.1
//! ```

#[path = "common/exit.rs"]
mod exit;
#[path = "common/policies.rs"]
mod policies;
#[path = "common/redis.rs"]
mod redis;

use std::{env, error::Error, io::Write, process::ExitCode, time::Duration};

use exit::exit;
use policies::{per_address, policies};
use redis::redis;
use tower_sliding_window::{Decision, Limiter, PartitionKey, Wait};

const USAGE: &str = "usage: inspect peek <kind> <key> [<cost>] | inspect reset <kind> <key>";

/// The deadline of a command, which is longer than that of a request.
const DEADLINE: Duration = Duration::from_secs(2);

enum Task {
    /// Reports the decision on a request of this cost.
    Peek(u32),
    Reset,
}

#[tokio::main]
async fn main() -> ExitCode {
    exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments = env::args_os().skip(1).map(|argument| argument.into_string().ok());
    let text = inspect(arguments.collect()).await?;
    // Ignores the error if standard output is closed.
    let _ = write!(std::io::stdout(), "{text}");
    Ok(())
}

async fn inspect(arguments: Option<Vec<String>>) -> Result<String, Box<dyn Error>> {
    let arguments = arguments.ok_or("an argument is not UTF-8")?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (task, kind, value) = match arguments[..] {
        ["peek", kind, value] => (Task::Peek(1), kind, value),
        ["peek", kind, value, cost] => {
            let cost = cost.parse().map_err(|_| format!("cost {cost:?}: it must be 0 to {}", u32::MAX))?;
            (Task::Peek(cost), kind, value)
        }
        ["reset", kind, value] => (Task::Reset, kind, value),
        _ => return Err(USAGE.into()),
    };
    let key = match kind {
        // The key of an IPv6 address is its network.
        "peer-ip" => PartitionKey::peer_ip(
            value.parse().map_err(|_| format!("peer-ip {value:?}: it must be an IP address"))?,
        ),
        _ => PartitionKey::new(kind, value),
    };
    let backend = redis().await?.ok_or("REDIS_URL: the variable is not set")?;
    let builder = Limiter::builder(backend.clone()).deadline(DEADLINE);
    // An address has a policy more than an API key.
    let per_address = (kind == "peer-ip").then(per_address).transpose()?;
    let policies = policies()?.into_iter().chain(per_address);
    let limiter = policies.fold(builder, |builder, policy| builder.policy(policy)).build()?;

    let names = limiter.policies().iter().map(|policy| backend.key_name(limiter.namespace(), &key, policy));
    let names: Vec<String> = names.collect();
    match task {
        Task::Peek(cost) => Ok(report(&limiter.peek((key, cost)).await?, &names, cost)),
        Task::Reset => {
            limiter.reset(key).await?;
            Ok(names.iter().map(|name| format!("reset: {name}\n")).collect())
        }
    }
}

fn report(decision: &Decision, names: &[String], cost: u32) -> String {
    let mut text = match decision.retry_after() {
        wait if wait.is_zero() => format!("a request of cost {cost} is admitted, and leaves:\n"),
        Wait::For(wait) => format!("a request of cost {cost} is denied for {}:\n", seconds(wait)),
        _ => format!("a request of cost {cost} is never admitted: its cost is above a quota\n"),
    };
    for (status, name) in decision.statuses().iter().zip(names) {
        let quota = status.quota().unwrap_or_default();
        text += &format!("{}: {} of {quota} left", status.policy().name(), status.remaining());
        if status.remaining() < quota {
            text += &format!(
                ", more in {}, all in {}",
                seconds(status.next_after()),
                seconds(status.reset_after())
            );
        }
        text += match status.retry_after() {
            wait if wait.is_zero() => "",
            _ => "; this policy denies it",
        };
        text += &format!("\n  {name}\n");
    }
    text
}

/// Formats a wait in seconds, rounded up.
fn seconds(wait: Duration) -> String {
    format!("{:.1} s", wait.as_millis().div_ceil(100) as f64 / 10.0)
}
