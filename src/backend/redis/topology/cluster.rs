//! The servers of a cluster, and which of them has which slots.
//!
//! The client crate's own cluster connection does not suit a limiter. It sends commands again after a loss, although they may
//! have run. While it refreshes its slots, one node that hangs delays the others. It does not report which node has replied, so
//! the clock of that node would remain unknown.

use std::{
    collections::HashMap,
    io,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, cmd, from_redis_value};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    endpoint::{Address, Endpoint},
    node::{Node, Redirect},
    server::{Server, Target},
};
use crate::{
    backend::redis::error::requires_reconnect,
    outage::{Guard, SharedProtection},
};

/// The timeout of one node's reply to `CLUSTER SLOTS`.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of nodes that a refresh queries at the same time.
const REFRESH_CONCURRENCY: usize = 3;
/// The shortest time between the starts of two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// The delay of a retry while the keys of a check are being migrated, so that some are here and some there.
const TRY_AGAIN_DELAY: Duration = Duration::from_millis(5);

/// Ranges of slots in ascending order, each with its owner.
type Slots = Vec<(RangeInclusive<u16>, Address)>;

/// A cluster.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Shared>);

struct Shared {
    /// The nodes that the caller has named.
    seeds: Vec<Address>,
    nodes: Nodes,
    protection: Arc<SharedProtection>,
    /// The guard of the look-ups of slots without a known owner.
    guard: Arc<Guard>,
    state: Mutex<State>,
}

/// How to connect to the nodes.
pub(super) enum Nodes {
    /// As to this server, apart from the address.
    Endpoint(Endpoint),
    /// Over streams that the caller opens.
    Streams(Box<dyn Fn(&Address) -> Target + Send + Sync>),
}

impl Nodes {
    fn target(&self, address: &Address) -> Target {
        match self {
            Self::Endpoint(endpoint) => Target::Endpoint(endpoint.with_address(address)),
            Self::Streams(streams) => streams(address),
        }
    }
}

#[derive(Default)]
struct State {
    servers: HashMap<Address, Server>,
    slots: Slots,
    /// The owners of single slots that have moved since the last refresh.
    moved: HashMap<u16, Address>,
    /// The refresh in progress.
    refresh: Option<watch::Receiver<()>>,
    refresh_started: Option<Instant>,
    /// The error of the last refresh, if it has failed.
    refresh_error: Option<RedisError>,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, nodes: Nodes) -> Self {
        let protection = Arc::<SharedProtection>::default();
        let guard = Guard::new(protection.clone());
        Self(Arc::new(Shared { seeds, nodes, protection, guard, state: Mutex::default() }))
    }

    pub(super) fn has_streams(&self) -> bool {
        matches!(self.0.nodes, Nodes::Streams(_))
    }

    pub(super) fn guard(&self) -> &Arc<Guard> {
        &self.0.guard
    }

    pub(super) fn seeds(&self) -> &[Address] {
        &self.0.seeds
    }

    /// Connects to at least one node.
    pub(super) async fn connect(&self) -> RedisResult<()> {
        self.refresh(true).await?;
        let servers: Vec<Server> = {
            let state = self.0.state();
            if state.slots.is_empty() {
                return Err(state.owner_error());
            }
            state.servers.values().cloned().collect()
        };
        let mut outcome = Ok(());
        let mut attempts: JoinSet<RedisResult<()>> =
            servers.into_iter().map(|server| async move { server.connection().await.map(drop) }).collect();
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok(Ok(())) => return Ok(()),
                Ok(error) => outcome = error,
                // The runtime is shutting down.
                Err(error) => outcome = Err(io::Error::other(error).into()),
            }
        }
        outcome
    }

    /// Returns the owner of a slot, as far as it is known.
    pub(super) async fn known_owner(&self, slot: u16) -> RedisResult<Option<Server>> {
        let Some(server) = self.0.state().owner(slot) else { return Ok(None) };
        if !server.is_connected() {
            // Another node may have taken over its slots.
            self.refresh(false).await?;
        }
        Ok(Some(server))
    }

    /// Returns the owner of a slot. If it is not known, looks it up.
    pub(super) async fn owner(&self, slot: u16) -> RedisResult<Server> {
        if let Some(server) = self.known_owner(slot).await? {
            return Ok(server);
        }
        self.refresh(true).await?;
        let state = self.0.state();
        state.owner(slot).ok_or_else(|| state.owner_error())
    }

    /// Returns the node for a retry, after a node has returned this error. None if a retry cannot succeed.
    pub(super) async fn redirect(&self, slot: u16, error: &RedisError) -> Option<RedisResult<Redirect>> {
        let is = |kind: ServerErrorKind| error.kind() == kind.into();
        if is(ServerErrorKind::Moved) || is(ServerErrorKind::Ask) {
            let host = self.0.state().host(slot);
            let address = error.redirect_node().and_then(|(address, _)| parse(address, host.as_deref()))?;
            if is(ServerErrorKind::Ask) {
                let server = self.0.server(&address);
                return Some(Ok(Redirect::to(Node::Server { server, is_asking: true })));
            }
            let server = self.0.move_slot(slot, &address);
            // Usually other slots have moved too.
            return Some(self.refresh(false).await.map(|()| Redirect::to(Node::of(server))));
        }
        if is(ServerErrorKind::TryAgain) {
            sleep(TRY_AGAIN_DELAY).await;
            return Some(self.owner(slot).await.map(|server| Redirect::to(Node::of(server))));
        }
        if requires_reconnect(error) || is(ServerErrorKind::ClusterDown) {
            self.refresh(true).await.ok()?;
            return Some(self.owner(slot).await.map(|server| Redirect::reconnect(Node::of(server))));
        }
        None
    }

    /// Starts a refresh of the slots, unless one is in progress or has started within [`REFRESH_INTERVAL`]. If `waits`, waits
    /// for the refresh in progress.
    async fn refresh(&self, waits: bool) -> RedisResult<()> {
        let runtime = Handle::try_current().map_err(|_| {
            RedisError::from((ErrorKind::Client, "missing tokio runtime: a connection needs one"))
        })?;
        let mut refresh = {
            let mut state = self.0.state();
            match &state.refresh {
                // The channel is closed when the refresh ends.
                Some(refresh) if refresh.has_changed().is_ok() => refresh.clone(),
                _ if state.refresh_started.is_some_and(|started| started.elapsed() < REFRESH_INTERVAL) => {
                    return Ok(());
                }
                _ => {
                    let (running, refresh) = watch::channel(());
                    state.refresh = Some(refresh.clone());
                    state.refresh_started = Some(Instant::now());
                    let shared = self.0.clone();
                    runtime.spawn(async move {
                        shared.refresh().await;
                        drop(running);
                    });
                    refresh
                }
            }
        };
        if waits {
            // No value is ever sent: this returns when the channel is closed.
            let _ = refresh.changed().await;
        }
        Ok(())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node at an address, which may be a new one.
    fn server(&self, address: &Address) -> Server {
        self.server_in(&mut self.state(), address)
    }

    fn server_in(&self, state: &mut State, address: &Address) -> Server {
        let new = || Server::new(self.nodes.target(address), self.protection.clone());
        state.servers.entry(address.clone()).or_insert_with(new).clone()
    }

    /// Records the new owner of a slot, and returns it. Both happen under one lock, so that a recorded owner always exists.
    fn move_slot(&self, slot: u16, address: &Address) -> Server {
        let mut state = self.state();
        state.moved.insert(slot, address.clone());
        self.server_in(&mut state, address)
    }

    /// Queries the nodes, a few at a time, until one returns the slots.
    async fn refresh(self: &Arc<Self>) {
        let mut nodes: Vec<Address> = self.state().servers.keys().cloned().collect();
        // The order of the map is random, so that different processes begin with different nodes.
        nodes.extend(self.seeds.iter().filter(|seed| !self.state().servers.contains_key(*seed)).cloned());
        let mut nodes = nodes.into_iter();
        let mut queries: JoinSet<RedisResult<Slots>> = JoinSet::new();
        loop {
            while queries.len() < REFRESH_CONCURRENCY
                && let Some(node) = nodes.next()
            {
                let server = self.server(&node);
                queries.spawn(async move {
                    let slots = timeout(REFRESH_TIMEOUT, query_slots(&server, &node.0)).await;
                    slots.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
                });
            }
            match queries.join_next().await {
                None => return,
                Some(Ok(Ok(slots))) => return self.update(slots),
                Some(Ok(Err(error))) => self.state().refresh_error = Some(error),
                // The runtime is shutting down.
                Some(Err(_)) => {}
            }
        }
    }

    /// Replaces the slots, adds the new nodes, and removes the nodes without slots.
    fn update(&self, slots: Slots) {
        let mut state = self.state();
        state.servers.retain(|address, _| slots.iter().any(|(_, owner)| owner == address));
        for (_, owner) in &slots {
            self.server_in(&mut state, owner);
        }
        state.slots = slots;
        state.moved.clear();
        state.refresh_error = None;
    }
}

impl State {
    fn address(&self, slot: u16) -> Option<&Address> {
        let of_range = || {
            let range = self.slots.partition_point(|(slots, _)| *slots.end() < slot);
            self.slots.get(range).filter(|(slots, _)| slots.contains(&slot)).map(|(_, owner)| owner)
        };
        self.moved.get(&slot).or_else(of_range)
    }

    fn owner(&self, slot: u16) -> Option<Server> {
        self.servers.get(self.address(slot)?).cloned()
    }

    /// Returns why a slot has no known owner: the last refresh has failed, or no node has the slot.
    fn owner_error(&self) -> RedisError {
        self.refresh_error.clone().unwrap_or_else(|| {
            RedisError::from((
                ErrorKind::ClusterConnectionNotFound,
                "no cluster node has the slot of this key",
            ))
        })
    }

    fn host(&self, slot: u16) -> Option<String> {
        self.address(slot).map(|(host, _)| host.clone())
    }
}

/// Queries a node for the slots (`CLUSTER SLOTS`).
async fn query_slots(server: &Server, host: &str) -> RedisResult<Slots> {
    let mut command = cmd("CLUSTER");
    command.arg("SLOTS");
    let reply = server.connection().await?.send(&command).await?;
    parse_slots(reply, host)
        .ok_or_else(|| RedisError::from((ErrorKind::UnexpectedReturnType, "invalid reply to CLUSTER SLOTS")))
}

/// Parses the reply to `CLUSTER SLOTS`. Returns None if the reply is invalid or empty.
fn parse_slots(reply: Value, host: &str) -> Option<Slots> {
    let ranges: Vec<Vec<Value>> = from_redis_value(reply).ok()?;
    let mut slots = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut range = range.into_iter();
        let first: u16 = from_redis_value(range.next()?).ok()?;
        let last: u16 = from_redis_value(range.next()?).ok()?;
        // The primary comes first. More fields follow its port.
        let mut primary = from_redis_value::<Vec<Value>>(range.next()?).ok()?.into_iter();
        let named: Option<String> = from_redis_value(primary.next()?).ok()?;
        let port: u16 = from_redis_value(primary.next()?).ok()?;
        let named = named.filter(|named| !named.is_empty() && named != "?");
        // A node that does not know its own host omits it: the host is the one of this connection.
        slots.push((first..=last, (named.unwrap_or_else(|| host.to_owned()), port)));
    }
    slots.sort_unstable_by_key(|(slots, _)| *slots.start());
    (!slots.is_empty()).then_some(slots)
}

/// Parses the address of a redirect, `host:port`. An empty host means the host of the server that has redirected.
fn parse(address: &str, host: Option<&str>) -> Option<Address> {
    let (named, port) = address.rsplit_once(':')?;
    let named = named.trim_start_matches('[').trim_end_matches(']');
    let host = if named.is_empty() || named == "?" { host? } else { named };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_address_may_omit_its_host() {
        let parse = |text| parse(text, Some("here")).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(parse("10.0.0.1:7000").as_deref(), Some("10.0.0.1 7000"));
        assert_eq!(parse("::1:7000").as_deref(), Some("::1 7000"));
        assert_eq!(parse("[::1]:7000").as_deref(), Some("::1 7000"));
        assert_eq!(parse("node-1.example:7000").as_deref(), Some("node-1.example 7000"));
        assert_eq!(parse(":7000").as_deref(), Some("here 7000"));
        assert_eq!(parse("?:7000").as_deref(), Some("here 7000"), "a node that has no name yet");
        for bad in ["", "host", "host:", "host:x", "host:70000"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
