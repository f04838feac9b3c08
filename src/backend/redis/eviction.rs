//! Whether the server throws limits away when its memory is full: asked once a connection, told once.
//!
//! Nobody waits for it, and nothing depends on it. A user who may not ask is not told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{ConnectionAddr, aio::MultiplexedConnection, cmd};
use tokio::time::timeout;

use crate::observe;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Has an eye on the server of one backend.
#[derive(Default)]
pub(super) struct Watch(Arc<AtomicBool>);

impl Watch {
    /// Asks the server of a new connection, in a task of its own.
    pub(super) fn look(&self, connection: &MultiplexedConnection, address: &ConnectionAddr) {
        if !observe::IS_HEARD || self.0.load(Ordering::Relaxed) {
            return;
        }
        let (told, mut connection, address) = (self.0.clone(), connection.clone(), address.to_string());
        tokio::spawn(async move {
            let mut ask = cmd("INFO");
            ask.arg("memory");
            let Ok(Ok(info)) = timeout(PATIENCE, ask.query_async::<String>(&mut connection)).await else {
                return;
            };
            if let Some(policy) = evicting(&info)
                && !told.swap(true, Ordering::Relaxed)
            {
                observe::evicts(&address, policy);
            }
        });
    }
}

/// The policy by which a server evicts keys that have a time to live, as all of ours have, if it does. None if this is not told.
fn evicting(info: &str) -> Option<&str> {
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let limit: u64 = field("maxmemory")?.parse().ok()?;
    let policy = field("maxmemory_policy")?;
    let evicts = policy.starts_with("allkeys-") || policy.starts_with("volatile-");
    (limit > 0 && evicts).then_some(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_evicts_is_known_from_a_bound_and_a_policy() {
        let info = |limit: &str, policy: &str| {
            format!("# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_human:1M\r\nmaxmemory_policy:{policy}\r\n")
        };
        for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu"] {
            assert_eq!(evicting(&info("1048576", policy)), Some(policy));
            assert_eq!(evicting(&info("0", policy)), None);
        }
        for (limit, policy) in
            [("1048576", "noeviction"), ("", "allkeys-lru"), ("many", "allkeys-lru"), ("1", "")]
        {
            assert_eq!(evicting(&info(limit, policy)), None, "{limit} {policy}");
        }
        for info in ["", "maxmemory:1", "maxmemory_policy:allkeys-lru", "maxmemory_human:1M"] {
            assert_eq!(evicting(info), None, "{info}");
        }
    }
}
