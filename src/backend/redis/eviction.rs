//! A warning for servers that evict keys when their memory is full: one query per connection, one warning per backend.
//!
//! No check waits for it. If the user may not call INFO, there is no warning.

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

/// The timeout of the query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// The check of the servers of a backend, and whether it has warned. Clones share it.
#[derive(Clone, Default)]
pub(super) struct EvictionCheck(Arc<AtomicBool>);

impl EvictionCheck {
    /// Queries the server of a new connection, in a task of its own.
    pub(super) fn start(&self, connection: &MultiplexedConnection, address: &ConnectionAddr) {
        if !observe::IS_LOGGED || self.0.load(Ordering::Relaxed) {
            return;
        }
        let (has_warned, mut connection, address) = (self.0.clone(), connection.clone(), address.to_string());
        tokio::spawn(async move {
            let mut query = cmd("INFO");
            query.arg("memory");
            let reply = timeout(QUERY_TIMEOUT, query.query_async::<String>(&mut connection)).await;
            let Ok(Ok(info)) = reply else { return };
            if let Some(policy) = eviction_policy(&info)
                && !has_warned.swap(true, Ordering::Relaxed)
            {
                observe::evicts(&address, policy);
            }
        });
    }
}

/// Returns the policy by which a server evicts keys with a time to live, as all keys of this backend. None if the server does not
/// evict them, or does not report its policy.
pub(super) fn eviction_policy(info: &str) -> Option<&str> {
    let max_memory: u64 = info_field(info, "maxmemory")?.parse().ok()?;
    let policy = info_field(info, "maxmemory_policy")?;
    let evicts = policy.starts_with("allkeys-") || policy.starts_with("volatile-");
    (max_memory > 0 && evicts).then_some(policy)
}

/// Returns a field of the reply to INFO.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_needs_a_memory_limit_and_a_policy() {
        let info = |limit: &str, policy: &str| {
            format!("# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_human:1M\r\nmaxmemory_policy:{policy}\r\n")
        };
        for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu"] {
            assert_eq!(eviction_policy(&info("1048576", policy)), Some(policy));
            assert_eq!(eviction_policy(&info("0", policy)), None);
        }
        for (limit, policy) in
            [("1048576", "noeviction"), ("", "allkeys-lru"), ("many", "allkeys-lru"), ("1", "")]
        {
            assert_eq!(eviction_policy(&info(limit, policy)), None, "{limit} {policy}");
        }
        for info in ["", "maxmemory:1", "maxmemory_policy:allkeys-lru", "maxmemory_human:1M"] {
            assert_eq!(eviction_policy(info), None, "{info}");
        }
    }
}
