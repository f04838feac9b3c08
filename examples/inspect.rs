//! Why is this customer limited? Looks at what the service in `axum.rs` has counted in Redis, or forgets it.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example inspect -- peek header:x-api-key alice
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example inspect -- peek header:x-api-key alice 5
//! REDIS_URL=redis://127.0.0.1:6379/ cargo run --example inspect -- reset peer-ip 192.0.2.1
//! ```
//!
//! A key is given as the service makes it: its kind and its value. Policies, namespace and, where there is one, the secret of
//! the hash must be those of the service, or it is another count that is looked at.

#[path = "common/policies.rs"]
mod policies;

use std::{env, error::Error, io::Write, process::ExitCode, time::Duration};

use policies::policies;
use tower_sliding_window::{Decision, Limiter, PartitionKey, RedisBackend, Wait};

const USAGE: &str = "usage: inspect peek <kind> <key> [<cost>] | inspect reset <kind> <key>";

/// An operator is more patient than a request.
const DEADLINE: Duration = Duration::from_secs(2);

enum Task {
    /// As a request of this cost would be answered.
    Peek(u32),
    Reset,
}

#[tokio::main]
async fn main() -> ExitCode {
    match inspect(env::args_os().skip(1).map(|argument| argument.into_string().ok()).collect()).await {
        Ok(text) => {
            // Whoever has closed our output does not want to read this.
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
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
    let url = match env::var("REDIS_URL") {
        Ok(url) => url,
        Err(env::VarError::NotPresent) => return Err("REDIS_URL: there is none to look at".into()),
        // The error would repeat the URL, and the URL may hold a password.
        Err(env::VarError::NotUnicode(_)) => return Err("REDIS_URL: it is not UTF-8".into()),
    };
    let backend = RedisBackend::connect(&url).await.map_err(|error| format!("REDIS_URL: {error}"))?;
    let builder = Limiter::builder(backend.clone()).deadline(DEADLINE);
    let limiter = policies()?.into_iter().fold(builder, |builder, policy| builder.policy(policy)).build()?;

    let key = PartitionKey::new(kind, value);
    let names = limiter.policies().iter().map(|policy| backend.key_name(limiter.namespace(), &key, policy));
    let names: Vec<String> = names.collect();
    match task {
        Task::Peek(cost) => Ok(told(&limiter.peek(key, cost).await?, &names, cost)),
        Task::Reset => {
            limiter.reset(key).await?;
            Ok(names.iter().map(|name| format!("forgotten: {name}\n")).collect())
        }
    }
}

fn told(decision: &Decision, names: &[String], cost: u32) -> String {
    let mut text = match decision.retry_after() {
        Wait::Never => format!("a request of cost {cost} is never admitted: it costs more than a quota\n"),
        wait if wait.is_zero() => format!("a request of cost {cost} is admitted, and leaves:\n"),
        Wait::For(wait) => format!("a request of cost {cost} is refused for {}:\n", seconds(wait)),
    };
    for (status, name) in decision.statuses().iter().zip(names) {
        text += &format!("{}: {} of {} left", status.policy().name(), status.remaining(), status.limit());
        if status.remaining() < status.limit() {
            text += &format!(
                ", more in {}, all in {}",
                seconds(status.next_after()),
                seconds(status.reset_after())
            );
        }
        text += match status.retry_after() {
            wait if wait.is_zero() => "",
            _ => "; this one refuses",
        };
        text += &format!("\n  {name}\n");
    }
    text
}

/// No shorter than it is.
fn seconds(wait: Duration) -> String {
    format!("{:.1} s", wait.as_millis().div_ceil(100) as f64 / 10.0)
}
