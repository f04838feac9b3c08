//! The life of a limiter: conflicting policies when it begins, and limiters that are built and dropped again and again, as by a
//! layer that is built for each request.

#[cfg(feature = "tracing")]
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

#[cfg(feature = "tracing")]
use tokio::time::Instant;

#[cfg(feature = "tracing")]
use super::{conflicts, events};
#[cfg(feature = "tracing")]
use crate::lock::Lock;
use crate::{check::Namespace, policy::Policy};

/// The time in which limiters are counted. A limiter that lives longer is not counted.
#[cfg(feature = "tracing")]
const PERIOD: Duration = Duration::from_secs(60);

/// The number of limiters that is logged.
#[cfg(feature = "tracing")]
const MAX_DROPPED: u32 = 20;

/// A bound for a process that uses very many stores.
#[cfg(feature = "tracing")]
const MAX_PLACES: usize = 1_024;

/// The limiters that were dropped, by store and namespace.
#[cfg(feature = "tracing")]
static DROPPED: Lock<Option<HashMap<Box<str>, Dropped>>> = Lock::new(None);

#[cfg(feature = "tracing")]
struct Dropped {
    since: Instant,
    limiters: u32,
    is_logged: bool,
}

/// Is dropped with its limiter.
pub(crate) struct Lifetime {
    /// The store and the namespace.
    #[cfg(feature = "tracing")]
    place: Box<str>,
    #[cfg(feature = "tracing")]
    built: Instant,
    #[cfg(feature = "tracing")]
    alive: Arc<()>,
}

/// Registers the policies of a new limiter, and warns once per policy about a conflicting policy of another limiter that is
/// alive: the same name, store and namespace, but a different quota, window or algorithm. The limiter keeps the returned value.
#[cfg_attr(not(feature = "tracing"), allow(unused_variables))]
pub(crate) fn new_limits(store: &str, namespace: &Namespace, policies: &[Policy], place: &str) -> Lifetime {
    let lifetime = Lifetime::new(place);
    #[cfg(feature = "tracing")]
    for [earlier, new] in conflicts::register(store, namespace, policies, lifetime.alive()) {
        events::conflicting_policies(&earlier, &new);
    }
    lifetime
}

impl Lifetime {
    #[cfg_attr(not(feature = "tracing"), allow(unused_variables))]
    fn new(place: &str) -> Self {
        Self {
            #[cfg(feature = "tracing")]
            place: place.into(),
            #[cfg(feature = "tracing")]
            built: Instant::now(),
            #[cfg(feature = "tracing")]
            alive: Arc::default(),
        }
    }

    #[cfg(feature = "tracing")]
    fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }
}

/// Warns, once for each store and namespace, about the 20th limiter in a minute that has lived for less than a minute.
#[cfg(feature = "tracing")]
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
            events::dropped_again(&self.place, MAX_DROPPED);
        }
    }
}
