//! The life of a limiter: conflicting policies when it begins, and limiters that are built and dropped again and again, as by a
//! layer that is built for each request.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{IS_LOGGED, conflicts, events};
use crate::{check::Namespace, foreign::contain, lock::Lock, policy::Policy};

/// The time in which limiters are counted. A limiter that lives longer is not counted.
const PERIOD: Duration = Duration::from_secs(60);

/// The number of limiters that is logged.
const MAX_DROPPED: u32 = 20;

/// A bound for a process that uses very many stores.
const MAX_PLACES: usize = 1_024;

/// The limiters that were dropped, by store and namespace.
static DROPPED: Lock<Option<HashMap<Box<str>, Dropped>>> = Lock::new(None);

struct Dropped {
    since: Instant,
    limiters: u32,
    is_logged: bool,
}

/// Is dropped with its limiter.
pub(crate) struct Lifetime {
    /// The store and the namespace.
    place: Box<str>,
    built: Instant,
    alive: Arc<()>,
}

/// Registers the policies of a new limiter, and warns once per policy about a conflicting policy of another limiter that is
/// alive: the same name, store and namespace, but a different quota, window or algorithm. The limiter keeps the returned value.
pub(crate) fn new_limits(
    store: &str,
    namespace: &Namespace,
    policies: &[Policy],
    place: &str,
) -> Option<Lifetime> {
    if !IS_LOGGED {
        return None;
    }
    let lifetime = Lifetime { place: place.into(), built: Instant::now(), alive: Arc::default() };
    for [earlier, new] in conflicts::register(store, namespace, policies, Arc::downgrade(&lifetime.alive)) {
        events::conflicting_policies(&earlier, &new);
    }
    Some(lifetime)
}

/// Warns, once for each store and namespace, about the 20th limiter in a minute that has lived for less than a minute.
impl Drop for Lifetime {
    fn drop(&mut self) {
        let now = Instant::now();
        if now - self.built >= PERIOD {
            return;
        }
        let is_over = |dropped: &Dropped| now - dropped.since >= PERIOD;
        let is_logged = {
            let mut places = DROPPED.lock();
            let places = places.get_or_insert_default();
            if places.len() >= MAX_PLACES {
                places.retain(|_, dropped| !is_over(dropped));
            }
            if places.len() >= MAX_PLACES {
                places.clear();
            }
            let new = Dropped { since: now, limiters: 0, is_logged: false };
            let dropped = places.entry(self.place.clone()).or_insert(new);
            if is_over(dropped) {
                (dropped.since, dropped.limiters) = (now, 0);
            }
            dropped.limiters += 1;
            dropped.limiters == MAX_DROPPED && !std::mem::replace(&mut dropped.is_logged, true)
        };
        if is_logged {
            contain(|| events::dropped_again(&self.place, MAX_DROPPED));
        }
    }
}
