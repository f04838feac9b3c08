//! The servers of a cluster, and which of them has which slots.
//!
//! The client crate's own cluster connection does not suit a limiter. It sends commands again after a loss, although they may
//! have run. While it refreshes its slots, one node that hangs delays the others. It does not report which node has replied, so
//! the clock of that node would remain unknown.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};

use futures_util::future::select_ok;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, pipe};
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use super::{
    endpoint::{Address, timed_out},
    server::{Server, Target},
    server_state::ServerState,
    slot_map::{self, SlotReport, Slots},
};
use crate::{
    backend::redis::error::{has_kind, requires_reconnect},
    foreign::contain,
    guard::{Guard, SharedProtection},
    lock::Lock,
    observe::ServerBreaker,
    single_flight::{Attempt, SingleFlight},
};

/// The time limit of a refresh of the slots.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of refreshes that a check waits for, if they are replaced or end with their runtime.
const MAX_REFRESHES: usize = 3;
/// The number of nodes that a refresh queries at the same time, at first.
const REFRESH_CONCURRENCY: usize = 3;
/// After each such time, a refresh queries as many nodes more. Nodes that hang do not delay it.
const REFRESH_STAGGER: Duration = Duration::from_millis(100);
/// The largest number of nodes that a refresh queries. The next refresh begins with others.
const MAX_QUERIED_NODES: usize = 12;
/// The largest number of reports that a refresh waits for.
const MAX_WANTED_REPORTS: usize = 3;
/// After the first report that counts, a refresh waits at most this long for others.
const REPORT_WAIT: Duration = Duration::from_millis(50);
/// The shortest time between the starts of two refreshes. It doubles with each refresh that finds no other slots, or fails, so that
/// many processes do not load a cluster of which a node has failed.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time for which a refresh that is needed is put off.
const MAX_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// A node that has refused a command is not believed for this long, unless it says that the cluster is ok.
const REFUSAL_AGE: Duration = Duration::from_secs(10);
/// The delay of a retry while the keys of a check are being migrated, so that some are here and some there.
const TRY_AGAIN_DELAY: Duration = Duration::from_millis(5);

/// A cluster.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    /// The nodes that the caller has named.
    seeds: Vec<Address>,
    has_streams: bool,
    /// Returns how to connect to the node at an address.
    target: Arc<dyn Fn(&Address) -> Target + Send + Sync>,
    protection: Arc<SharedProtection>,
    /// The guard of the look-ups of slots without a known owner. Its name has the addresses of the nodes that the caller has named.
    guard: Arc<Guard>,
    refreshes: SingleFlight<()>,
    state: Lock<ClusterState>,
}

#[derive(Default)]
struct ClusterState {
    servers: BTreeMap<Address, Server>,
    slots: Slots,
    /// The owners of single slots that have moved, with the instants of the redirects. They are newer than the last refresh.
    moved: HashMap<u16, (Address, Instant)>,
    /// The nodes that have answered CLUSTERDOWN, and when.
    refused: HashMap<Address, Instant>,
    /// A number by which different processes query different nodes first, at different times.
    rotation: usize,
    refresh_started: Option<Instant>,
    /// The time after that start in which no refresh starts.
    refresh_interval: Duration,
    /// The refreshes since the slots have changed.
    refreshes: u32,
    /// The error of the last refresh, if it has failed.
    refresh_error: Option<RedisError>,
}

/// What an update of the slots has changed.
#[derive(Default)]
struct ClusterUpdate {
    added: Vec<Server>,
    /// The nodes without slots.
    removed: Vec<Server>,
    /// The error of the refresh before, which is dropped with this.
    _error: Option<RedisError>,
}

impl ClusterUpdate {
    /// Reports the change. A subscriber, a recorder, and the error of a stream may use the cluster, so the caller holds no lock.
    fn report(self) {
        register(&self.added);
        for server in &self.removed {
            contain(|| server.guard().retire());
        }
    }
}

/// Registers the metrics of new nodes. The caller holds no lock. Others use the nodes, too, so a panic of the recorder ends here.
fn register(added: &[Server]) {
    for server in added {
        contain(|| server.guard().register());
    }
}

impl Cluster {
    /// Returns a cluster. `target` returns how to connect to a node, which is over streams of the caller if `has_streams`.
    pub(super) fn new(
        seeds: Vec<Address>,
        has_streams: bool,
        target: impl Fn(&Address) -> Target + Send + Sync + 'static,
    ) -> Self {
        let kind = if has_streams { "cluster over custom streams" } else { "cluster" };
        let name = seeds.iter().fold(kind.to_owned(), |name, (host, port)| name + &format!(" {host}:{port}"));
        let protection = Arc::<SharedProtection>::default();
        let guard = Guard::new(protection.clone(), name);
        guard.register();
        Self(Arc::new(ClusterInner {
            guard,
            seeds,
            has_streams,
            target: Arc::new(target),
            protection,
            refreshes: SingleFlight::new(REFRESH_TIMEOUT),
            state: Lock::default(),
        }))
    }

    /// Returns the same cluster, with connections and slots of its own.
    pub(super) fn with_own_connections(&self) -> Self {
        let ClusterInner { seeds, has_streams, target, .. } = &*self.0;
        let target = target.clone();
        Self::new(seeds.clone(), *has_streams, move |address: &Address| target(address))
    }

    pub(super) fn has_streams(&self) -> bool {
        self.0.has_streams
    }

    pub(crate) fn guard(&self) -> &Arc<Guard> {
        &self.0.guard
    }

    /// Returns the circuit breaker of the look-ups, and that of each node in the order of the addresses.
    pub(super) fn breakers(&self) -> Vec<ServerBreaker> {
        let state = self.0.state.lock();
        // A refresh also queries nodes without slots, which decide no check.
        let owners = state.servers.iter().filter(|(address, _)| state.is_owner(address));
        let nodes: Vec<_> = owners.filter_map(|(_, server)| server.guard().breaker()).collect();
        let mut look_ups = self.guard().breaker();
        if let Some(look_ups) = &mut look_ups {
            // A look-up decides nothing by itself.
            look_ups.is_available &= nodes.is_empty() || nodes.iter().any(|node| node.is_available);
        }
        look_ups.into_iter().chain(nodes).collect()
    }

    /// Connects to at least one node.
    pub(super) async fn connect(&self) -> RedisResult<()> {
        self.refresh(true).await?;
        let servers: Vec<Server> = {
            let state = self.0.state.lock();
            if state.slots.is_empty() {
                return Err(state.owner_error());
            }
            state.servers.values().cloned().collect()
        };
        // There are slots, so there are owners.
        let attempts = servers.iter().map(|server| Box::pin(server.connection()));
        select_ok(attempts).await.map(drop)
    }

    /// Returns the number of nodes that own slots.
    pub(crate) fn primaries(&self) -> usize {
        let state = self.0.state.lock();
        state.servers.keys().filter(|address| state.is_owner(address)).count()
    }

    /// Returns the address of the owner of a slot, as far as it is known.
    pub(crate) fn primary_of(&self, slot: u16) -> Option<String> {
        self.0.state.lock().address(slot).map(|(host, port)| format!("{host}:{port}"))
    }

    /// Returns the owner of a slot if it is known and connected.
    pub(super) fn connected_owner(&self, slot: u16) -> Option<Server> {
        self.0.state.lock().owner(slot).filter(Server::is_connected)
    }

    /// Returns the owner of a slot, as far as it is known.
    pub(crate) async fn known_owner(&self, slot: u16) -> RedisResult<Option<Server>> {
        let Some(server) = self.0.state.lock().owner(slot) else { return Ok(None) };
        if !server.is_connected() {
            // Another node may have taken over its slots.
            self.refresh(false).await?;
        }
        Ok(Some(server))
    }

    /// Returns the owner of a slot. If it is not known, looks it up.
    pub(crate) async fn owner(&self, slot: u16) -> RedisResult<Server> {
        if let Some(server) = self.known_owner(slot).await? {
            return Ok(server);
        }
        self.refresh(true).await?;
        let state = self.0.state.lock();
        state.owner(slot).ok_or_else(|| state.owner_error())
    }

    /// Returns the server for a retry, after the server in the state `failed` has returned this error. None if a retry cannot
    /// succeed.
    pub(super) async fn redirect(
        &self,
        slot: u16,
        failed: &Arc<ServerState>,
        error: &RedisError,
    ) -> Option<RedisResult<Server>> {
        let is = |kind| has_kind(error, &[kind]);
        if is(ServerErrorKind::Moved) || is(ServerErrorKind::Ask) {
            let host = self.0.state.lock().address(slot).map(|(host, _)| host.clone());
            let address = error.redirect_node().and_then(|(address, _)| parse(address, host.as_deref()))?;
            if is(ServerErrorKind::Ask) {
                return Some(Ok(self.0.server(&address)));
            }
            let server = self.0.move_slot(slot, &address);
            // Usually other slots have moved too.
            return Some(self.refresh(false).await.map(|()| server));
        }
        if is(ServerErrorKind::TryAgain) {
            sleep(TRY_AGAIN_DELAY).await;
            return Some(self.owner(slot).await);
        }
        if is(ServerErrorKind::ClusterDown) {
            self.0.refuse(failed);
        }
        if requires_reconnect(error) || is(ServerErrorKind::ClusterDown) {
            self.refresh(true).await.ok()?;
            return Some(self.owner(slot).await);
        }
        None
    }

    /// Starts a refresh of the slots, unless one is in progress or has started a short time ago. If `waits`, waits for the refresh in
    /// progress.
    async fn refresh(&self, waits: bool) -> RedisResult<()> {
        let runtime = Handle::try_current()
            .map_err(|_| (ErrorKind::Client, "missing tokio runtime: a connection needs one"))?;
        for _ in 0..MAX_REFRESHES {
            let waiter = {
                let mut state = self.0.state.lock();
                let now = Instant::now();
                match self.0.refreshes.current() {
                    Some(waiter) => waiter,
                    None if state.has_refreshed(now) => return Ok(()),
                    None => {
                        let (refresh, waiter) = self.0.refreshes.join();
                        if let Some(refresh) = refresh {
                            state.start_refresh(now);
                            let shared = self.0.clone();
                            runtime.spawn(async move {
                                shared.refresh(&refresh).await;
                                refresh.finish(());
                            });
                        }
                        waiter
                    }
                }
            };
            if !waits || waiter.outcome().await.is_some() {
                break;
            }
        }
        Ok(())
    }
}

impl ClusterInner {
    /// Returns the node at an address, which may be a new one.
    fn server(&self, address: &Address) -> Server {
        let mut added = Vec::new();
        let server = self.server_in(&mut self.state.lock(), address, &mut added);
        register(&added);
        server
    }

    /// Returns the node at an address. Adds a new one to `added`: the caller registers it when the lock is free.
    fn server_in(&self, state: &mut ClusterState, address: &Address, added: &mut Vec<Server>) -> Server {
        let new = || {
            let (host, port) = address;
            Server::new((self.target)(address), self.protection.clone(), format!("{host}:{port}"))
        };
        let add = || {
            let server = new();
            added.push(server.clone());
            server
        };
        state.servers.entry(address.clone()).or_insert_with(add).clone()
    }

    /// Records that a node has refused a command with CLUSTERDOWN.
    fn refuse(&self, failed: &Arc<ServerState>) {
        let mut state = self.state.lock();
        let address = state.servers.iter().find(|(_, server)| server.has_state(failed));
        if let Some(address) = address.map(|(address, _)| address.clone()) {
            state.refused.insert(address, Instant::now());
        }
    }

    /// Records the new owner of a slot, and returns it. Both happen under one lock, so that a recorded owner always exists.
    fn move_slot(&self, slot: u16, address: &Address) -> Server {
        let (mut state, mut added) = (self.state.lock(), Vec::new());
        // A redirect to a node that refuses commands may come from a node that is out of date.
        if !state.has_refused(address) {
            state.moved.insert(slot, (address.clone(), Instant::now()));
            state.refresh_soon();
        }
        let server = self.server_in(&mut state, address, &mut added);
        drop(state);
        register(&added);
        server
    }

    /// Queries several nodes at the same time, and merges their reports. Ends when enough nodes have reported.
    async fn refresh(self: &Arc<Self>, refresh: &Attempt<()>) {
        let started = Instant::now();
        let (nodes, wanted) = self.nodes_to_query();
        let mut nodes = nodes.into_iter();
        let mut queries: JoinSet<(Address, RedisResult<SlotReport>)> = JoinSet::new();
        let (mut reports, mut counted, mut error) = (Vec::new(), 0, None);
        let (mut concurrency, mut next_stagger) = (REFRESH_CONCURRENCY, started + REFRESH_STAGGER);
        let mut end = started + REFRESH_TIMEOUT;
        while counted < wanted {
            while queries.len() < concurrency
                && let Some(node) = nodes.next()
            {
                let server = self.server(&node);
                queries.spawn(async move {
                    let report = query(&server, &node.0).await;
                    (node, report)
                });
            }
            match timeout_at(end.min(next_stagger), queries.join_next()).await {
                Ok(None) => break,
                Ok(Some(Ok((node, Ok(report))))) => {
                    if self.state.lock().believes(&node, &report) {
                        counted += 1;
                        end = end.min(Instant::now() + REPORT_WAIT);
                    }
                    reports.push((node, report));
                }
                Ok(Some(Ok((_, Err(failure))))) => error = Some(failure),
                // The runtime is shutting down.
                Ok(Some(Err(_))) => {}
                Err(_) if Instant::now() >= end => break,
                Err(_) => {
                    concurrency += REFRESH_CONCURRENCY;
                    next_stagger += REFRESH_STAGGER;
                }
            }
        }
        let mut state = self.state.lock();
        // A replaced refresh that comes late supplies the slots only while there are none.
        if !refresh.is_current() && !state.slots.is_empty() {
            return;
        }
        state.rotation = state.rotation.wrapping_add(started.elapsed().as_nanos() as usize);
        if reports.is_empty() {
            let replaced = state.refresh_error.replace(error.unwrap_or_else(|| self.timed_out()));
            drop(state);
            drop(replaced);
            return;
        }
        let update = self.update(&mut state, &reports, started);
        let has_owners = slot_map::is_complete(&state.slots);
        drop(state);
        update.report();
        if has_owners {
            // Without a look-up, no check would close the breaker of the look-ups.
            self.guard.answered();
        }
    }

    /// Returns the error of a refresh that no node has answered.
    fn timed_out(&self) -> RedisError {
        let target = self.seeds.first().map(|seed| (self.target)(seed));
        timed_out(target.as_ref().and_then(Target::endpoint), REFRESH_TIMEOUT)
    }

    /// Returns the nodes that a refresh queries, and how many of them must report.
    fn nodes_to_query(&self) -> (Vec<Address>, usize) {
        let state = self.state.lock();
        let mut nodes: Vec<Address> = state.servers.keys().cloned().collect();
        let primaries = nodes.len();
        if primaries > 0 {
            nodes.rotate_left(state.rotation % primaries);
        }
        nodes.extend(self.seeds.iter().filter(|seed| !state.servers.contains_key(*seed)).cloned());
        let known = if primaries > 0 { primaries } else { nodes.len() };
        nodes.sort_by_key(|node| {
            (state.has_refused(node), !state.servers.get(node).is_some_and(Server::is_connected))
        });
        nodes.truncate(MAX_QUERIED_NODES);
        (nodes, (known / 2 + 1).min(MAX_WANTED_REPORTS))
    }

    /// Updates the slots, adds the new nodes, and removes the nodes without slots.
    fn update(
        &self,
        state: &mut ClusterState,
        reports: &[(Address, SlotReport)],
        started: Instant,
    ) -> ClusterUpdate {
        for (node, report) in reports {
            if report.is_ok == Some(true) && state.refused.get(node).is_some_and(|refused| *refused < started)
            {
                state.refused.remove(node);
            }
        }
        state.refused.retain(|_, refused| refused.elapsed() < REFUSAL_AGE);
        let mut believed: Vec<&SlotReport> = reports
            .iter()
            .filter(|(node, report)| state.believes(node, report))
            .map(|(_, report)| report)
            .collect();
        let mut needs_two = false;
        if believed.is_empty() {
            // No node says that the cluster is ok. Nodes that have refused a command, and that the user may not query, may have
            // a new map: a slot moves if two of them agree. The map so far is as good as the other reports, but better than none.
            needs_two = !state.slots.is_empty();
            let unknown = reports.iter().filter(|(_, report)| !needs_two || report.is_ok.is_none());
            believed = unknown.map(|(_, report)| report).collect();
            if believed.is_empty() {
                return ClusterUpdate::default();
            }
        }
        let has_refused = |owner: &Address| needs_two || state.has_refused(owner);
        let slots = slot_map::merge(&believed, &state.slots, has_refused);
        if slots != state.slots {
            state.slots = slots;
            state.refresh_soon();
        }
        // A redirect since the start of the refresh is newer.
        state.moved.retain(|_, (_, moved)| *moved >= started);
        let servers = mem::take(&mut state.servers);
        let (servers, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            servers.into_iter().partition(|(address, _)| state.is_owner(address));
        state.servers = servers;
        let owners: Vec<Address> = state.slots.iter().map(|(_, owner)| owner.clone()).collect();
        let mut added = Vec::new();
        for owner in &owners {
            self.server_in(state, owner, &mut added);
        }
        ClusterUpdate { added, removed: removed.into_values().collect(), _error: state.refresh_error.take() }
    }
}

impl ClusterState {
    /// Returns whether a refresh has started such a short time ago that no other one starts now.
    fn has_refreshed(&self, now: Instant) -> bool {
        self.refresh_started.is_some_and(|started| now < started + self.refresh_interval)
    }

    fn start_refresh(&mut self, now: Instant) {
        let is_next = self.refresh_started.is_some_and(|started| now < started + 2 * MAX_REFRESH_INTERVAL);
        // Without slots, nothing works.
        if !is_next || self.slots.is_empty() {
            self.refreshes = 0;
        }
        let interval = (REFRESH_INTERVAL * (1 << self.refreshes.min(4))).min(MAX_REFRESH_INTERVAL);
        // Half of it to the whole, so that processes do not refresh at the same times.
        let interval = interval * (64 + (self.rotation % 65) as u32) / 128;
        self.refresh_interval = interval.max(REFRESH_INTERVAL);
        self.refreshes = self.refreshes.saturating_add(1);
        self.refresh_started = Some(now);
    }

    /// Lets a refresh start after the shortest time: the slots are changing.
    fn refresh_soon(&mut self) {
        (self.refresh_interval, self.refreshes) = (REFRESH_INTERVAL, 0);
    }

    fn address(&self, slot: u16) -> Option<&Address> {
        let moved = self.moved.get(&slot).map(|(owner, _)| owner);
        moved.or_else(|| slot_map::owner(&self.slots, slot))
    }

    fn has_refused(&self, node: &Address) -> bool {
        self.refused.get(node).is_some_and(|refused| refused.elapsed() < REFUSAL_AGE)
    }

    /// Returns whether a node's report counts: it says that the cluster is ok, or it has not refused a command.
    fn believes(&self, node: &Address, report: &SlotReport) -> bool {
        report.is_ok.unwrap_or_else(|| !self.has_refused(node))
    }

    fn is_owner(&self, node: &Address) -> bool {
        self.slots.iter().any(|(_, owner)| owner == node)
            || self.moved.values().any(|(owner, _)| owner == node)
    }

    fn owner(&self, slot: u16) -> Option<Server> {
        self.servers.get(self.address(slot)?).cloned()
    }

    /// Returns why a slot has no known owner: the last refresh has failed, or no node has the slot.
    fn owner_error(&self) -> RedisError {
        let text = "no cluster node has the slot of this key";
        let no_owner = || RedisError::from((ErrorKind::ClusterConnectionNotFound, text));
        self.refresh_error.clone().unwrap_or_else(no_owner)
    }
}

/// Queries a node for its view of the cluster. The user needs the permission for the slots only.
async fn query(server: &Server, host: &str) -> RedisResult<SlotReport> {
    let mut commands = pipe();
    for subcommand in ["SLOTS", "INFO", "NODES"] {
        commands.cmd("CLUSTER").arg(subcommand);
    }
    let mut replies = server.connection().await?.send_all(&commands).await?.into_iter();
    let mut next = || replies.next().unwrap_or_else(|| Err(RedisError::from((ErrorKind::Parse, "no reply"))));
    let (slots, info, nodes) = (next()?, next(), next());
    SlotReport::parse(slots, info, nodes, host)
        .ok_or_else(|| RedisError::from((ErrorKind::UnexpectedReturnType, "invalid reply to CLUSTER SLOTS")))
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
    use std::ops::Range;

    use redis::Value;

    use super::*;
    use crate::backend::redis::{slot::SLOTS, tls::Tls, topology::endpoint::Endpoint};

    fn cluster() -> Cluster {
        let endpoint = Endpoint::from_url("redis://127.0.0.1/", &Tls::default()).unwrap();
        Cluster::new(Vec::new(), false, move |_| Target::Endpoint(Box::new(endpoint.clone())))
    }

    /// A node that is out of date names the old owner, which has refused a command.
    #[test]
    fn redirect_to_refused_node_leaves_the_map() {
        let cluster = cluster();
        let [old, new] = ["old", "new"].map(|host| (host.to_owned(), 6379));
        cluster.0.move_slot(7, &new);
        cluster.0.state.lock().refused.insert(old.clone(), Instant::now());
        cluster.0.move_slot(7, &old);
        assert_eq!(cluster.0.state.lock().address(7), Some(&new));
        cluster.0.state.lock().refused.clear();
        cluster.0.move_slot(7, &old);
        assert_eq!(cluster.0.state.lock().address(7), Some(&old));
    }

    #[test]
    fn refreshes_that_find_the_same_slots_become_rare() {
        let owner = ("node".to_owned(), 7_000);
        let slots = || vec![(0..=SLOTS - 1, owner.clone())];
        let mut state = ClusterState { slots: slots(), ..ClusterState::default() };
        let begin = Instant::now();
        // Whether a refresh is needed in each of these milliseconds, and which of them start one.
        let starts = |state: &mut ClusterState, milliseconds: Range<u64>| -> Vec<u64> {
            let starts = |&milli: &u64| {
                let now = begin + Duration::from_millis(milli);
                let starts = !state.has_refreshed(now);
                if starts {
                    state.start_refresh(now);
                }
                starts
            };
            milliseconds.filter(starts).collect()
        };
        let of_outage = starts(&mut state, 0..10_000);
        assert_eq!(of_outage[..2], [0, 100]);
        assert!((12..=26).contains(&of_outage.len()), "{of_outage:?}");
        assert!(
            of_outage.windows(2).all(|pair| (100..=1_000).contains(&(pair[1] - pair[0]))),
            "{of_outage:?}"
        );
        state.refresh_soon();
        let after_change = starts(&mut state, 10_000..10_101);
        assert!(!after_change.is_empty());
        // A later outage.
        assert_eq!(starts(&mut state, 20_000..20_150), [20_000, 20_100]);
        // Without slots.
        state.slots.clear();
        assert!(starts(&mut state, 30_000..40_000).len() >= 99);
    }

    /// Returns a cluster whose refreshes have become rare.
    fn unchanged_for_long() -> Cluster {
        let cluster = cluster();
        let mut state = cluster.0.state.lock();
        state.slots = vec![(0..=9, ("old".to_owned(), 6_379))];
        (0..9).for_each(|_| state.start_refresh(Instant::now()));
        assert!(state.refresh_interval > REFRESH_INTERVAL);
        drop(state);
        cluster
    }

    /// Returns the report of a node, which names the owner of ten slots.
    fn report(owner: &str) -> SlotReport {
        let text = |text: &str| Value::BulkString(text.into());
        let slots = [Value::Int(0), Value::Int(9), Value::Array(vec![text(owner), Value::Int(6_379)])];
        let slots = Value::Array(vec![Value::Array(slots.into())]);
        let unknown = Err(RedisError::from((ErrorKind::Client, "not permitted")));
        SlotReport::parse(slots, Ok(text("cluster_state:ok")), unknown, "host").unwrap()
    }

    /// Otherwise, a recorder with a lock of its own, under which another thread reads the stats, would stop all checks.
    #[cfg(feature = "metrics")]
    #[test]
    fn recorder_of_new_node_may_read_the_cluster() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        use crate::foreign::hooked_recorder::HookedRecorder;

        let (cluster, registered) = (cluster(), Arc::new(AtomicUsize::new(0)));
        let (read, count) = (cluster.clone(), registered.clone());
        let recorder = HookedRecorder::new(move |_| {
            assert!(read.0.state.try_lock().is_some());
            count.fetch_add(1, Ordering::SeqCst);
        });
        metrics::with_local_recorder(&recorder, || {
            let address = |host: &str| (host.to_owned(), 6_379);
            cluster.0.server(&address("a"));
            cluster.0.move_slot(10, &address("b"));
            // Each node has two metrics.
            assert_eq!(registered.load(Ordering::SeqCst), 4);
            let mut state = cluster.0.state.lock();
            let update = cluster.0.update(&mut state, &[(address("c"), report("c"))], Instant::now());
            assert_eq!((update.added.len(), update.removed.len()), (1, 2));
        });
        assert_eq!(registered.load(Ordering::SeqCst), 4, "the caller registers the third one");
    }

    #[test]
    fn change_of_slots_permits_next_refresh() {
        let new = ("new".to_owned(), 6_379);
        let cluster = unchanged_for_long();
        cluster.0.move_slot(7, &new);
        assert_eq!(cluster.0.state.lock().refresh_interval, REFRESH_INTERVAL);
        for (owner, permits) in [("old", false), ("new", true)] {
            let cluster = unchanged_for_long();
            let mut state = cluster.0.state.lock();
            let reports = [(new.clone(), report(owner))];
            let _ = cluster.0.update(&mut state, &reports, Instant::now());
            assert_eq!(state.refresh_interval == REFRESH_INTERVAL, permits, "{owner}");
        }
    }

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
