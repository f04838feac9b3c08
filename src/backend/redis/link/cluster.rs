//! The servers of a cluster, and which of them has which keys.
//!
//! The client crate's own cluster connection does not do for a limiter: what it sends again after a loss may have run, one node
//! that hangs keeps it from answering for the others while it looks for the slots, and it does not tell which node has
//! answered, so that nothing could be known of that node's clock.

use std::{
    collections::HashMap,
    io,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redis::{
    ConnectionAddr, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, cmd, from_redis_value,
};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    Line,
    server::{Place, Reach, Server, ServerLine},
};
use crate::backend::redis::error::condemns;

/// How long one node may take to tell where the slots are.
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);
/// How many nodes are asked for the slots at once.
const LOOK_AT_ONCE: usize = 3;
/// How long nobody looks for the slots again.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How long a check waits whose keys are just being moved, some here and some there.
const MOVING: Duration = Duration::from_millis(5);

/// A host and a port.
type Address = (String, u16);

/// Ranges of slots in their order, and who has each.
type Slots = Vec<(RangeInclusive<u16>, Address)>;

/// The cluster, as it is known.
#[derive(Clone)]
pub(super) struct Cluster(Arc<Shared>);

struct Shared {
    /// Where to look first, and how all nodes are connected to.
    seeds: Vec<Address>,
    reach: Reach,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    servers: HashMap<Address, Server>,
    slots: Slots,
    /// The owners of single slots that have moved since.
    moved: HashMap<u16, Address>,
    looking: Option<watch::Receiver<()>>,
    looked: Option<Instant>,
    /// Why the last look was in vain, if it was.
    failed: Option<RedisError>,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, reach: Reach) -> Self {
        Self(Arc::new(Shared { seeds, reach, known: Mutex::default() }))
    }

    pub(super) fn seeds(&self) -> &[Address] {
        &self.0.seeds
    }

    /// Whether somebody of the cluster answers.
    pub(super) async fn connected(&self) -> RedisResult<()> {
        self.look(true).await?;
        let servers: Vec<Server> = {
            let known = self.0.known();
            if known.slots.is_empty() {
                return Err(known.no_owner());
            }
            known.servers.values().cloned().collect()
        };
        let mut outcome = Ok(());
        let mut asked: JoinSet<RedisResult<()>> =
            servers.into_iter().map(|server| async move { server.line().await.map(drop) }).collect();
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(())) => return Ok(()),
                Ok(error) => outcome = error,
                // The runtime is ending.
                Err(error) => outcome = Err(io::Error::other(error).into()),
            }
        }
        outcome
    }

    pub(super) async fn line(&self, slot: u16) -> RedisResult<ServerLine> {
        let mut owner = self.0.known().owner(slot);
        if owner.is_none() {
            self.look(true).await?;
            owner = self.0.known().owner(slot);
        }
        let server = owner.ok_or_else(|| self.0.known().no_owner())?;
        if !server.is_up() {
            // Somebody else may have its slots by now.
            self.look(false).await?;
        }
        server.line().await
    }

    pub(super) async fn elsewhere(
        &self,
        slot: u16,
        line: &ServerLine,
        error: &RedisError,
    ) -> Option<RedisResult<ServerLine>> {
        let is = |kind: ServerErrorKind| error.kind() == kind.into();
        if is(ServerErrorKind::Moved) || is(ServerErrorKind::Ask) {
            let host = self.0.known().host(slot);
            let address = error.redirect_node().and_then(|(address, _)| parse(address, host.as_deref()))?;
            if is(ServerErrorKind::Ask) {
                let server = self.0.server(&address);
                return Some(server.line().await.map(ServerLine::asking));
            }
            let server = self.0.has_moved(slot, &address);
            // As a rule not only this one has.
            let looking = self.look(false).await;
            return Some(match looking {
                Ok(()) => server.line().await,
                Err(error) => Err(error),
            });
        }
        if is(ServerErrorKind::TryAgain) {
            sleep(MOVING).await;
            return Some(self.line(slot).await);
        }
        if condemns(error) || is(ServerErrorKind::ClusterDown) {
            self.look(true).await.ok()?;
            return line.unless_same(self.line(slot).await);
        }
        None
    }

    /// Has somebody look where the slots are, unless that was done a moment ago, and perhaps waits for it.
    async fn look(&self, waits: bool) -> RedisResult<()> {
        let runtime = Handle::try_current()
            .map_err(|_| RedisError::from((ErrorKind::Client, "a connection needs a tokio runtime")))?;
        let mut looking = {
            let mut known = self.0.known();
            match &known.looking {
                // Nobody who has ended says so.
                Some(looking) if looking.has_changed().is_ok() => looking.clone(),
                _ if known.looked.is_some_and(|looked| looked.elapsed() < LOOK_PAUSE) => return Ok(()),
                _ => {
                    let (looker, looking) = watch::channel(());
                    known.looking = Some(looking.clone());
                    known.looked = Some(Instant::now());
                    let shared = self.0.clone();
                    runtime.spawn(async move {
                        shared.look().await;
                        drop(looker);
                    });
                    looking
                }
            }
        };
        if waits {
            // Nothing is ever said; it is done when the looker is gone.
            let _ = looking.changed().await;
        }
        Ok(())
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node at this address, which nobody may have known.
    fn server(&self, address: &Address) -> Server {
        self.server_among(&mut self.known(), address)
    }

    fn server_among(&self, known: &mut Known, address: &Address) -> Server {
        let new = || Server::new(Place::At(self.reach.to(address)));
        known.servers.entry(address.clone()).or_insert_with(new).clone()
    }

    /// The node at this address, which has the slot from now on. Nobody sees the one without the other.
    fn has_moved(&self, slot: u16, address: &Address) -> Server {
        let mut known = self.known();
        known.moved.insert(slot, address.clone());
        self.server_among(&mut known, address)
    }

    /// Asks the nodes, a few at a time, until one tells where the slots are.
    async fn look(self: &Arc<Self>) {
        let mut nodes: Vec<Address> = self.known().servers.keys().cloned().collect();
        // In whatever order they are in the map: no node is asked by everybody first.
        nodes.extend(self.seeds.iter().filter(|seed| !self.known().servers.contains_key(*seed)).cloned());
        let mut nodes = nodes.into_iter();
        let mut asked: JoinSet<RedisResult<Slots>> = JoinSet::new();
        loop {
            while asked.len() < LOOK_AT_ONCE
                && let Some(node) = nodes.next()
            {
                let server = self.server(&node);
                asked.spawn(async move {
                    let told = timeout(LOOK_TIMEOUT, slots(&server, &node.0)).await;
                    told.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
                });
            }
            match asked.join_next().await {
                None => return,
                Some(Ok(Ok(slots))) => return self.learn(slots),
                Some(Ok(Err(error))) => self.known().failed = Some(error),
                // The runtime is ending.
                Some(Err(_)) => {}
            }
        }
    }

    fn learn(&self, slots: Slots) {
        let mut known = self.known();
        known.servers.retain(|address, _| slots.iter().any(|(_, owner)| owner == address));
        for (_, owner) in &slots {
            let new = || Server::new(Place::At(self.reach.to(owner)));
            known.servers.entry(owner.clone()).or_insert_with(new);
        }
        known.slots = slots;
        known.moved.clear();
        known.failed = None;
    }
}

impl Known {
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

    /// Why a slot has no owner: nobody has told who has which, or nobody has it.
    fn no_owner(&self) -> RedisError {
        self.failed.clone().unwrap_or_else(|| {
            RedisError::from((ErrorKind::ClusterConnectionNotFound, "no node has the slot of this key"))
        })
    }

    fn host(&self, slot: u16) -> Option<String> {
        self.address(slot).map(|(host, _)| host.clone())
    }
}

impl Reach {
    /// The same for another node.
    fn to(&self, (host, port): &Address) -> Self {
        let address = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.clone(), *port),
        };
        Self { info: self.info.clone().set_addr(address), ..self.clone() }
    }
}

/// Where the slots are, as this node says (`CLUSTER SLOTS`).
async fn slots(server: &Server, host: &str) -> RedisResult<Slots> {
    let mut command = cmd("CLUSTER");
    command.arg("SLOTS");
    let reply = server.line().await?.send(&command).await?;
    ranges(reply, host).ok_or_else(|| {
        RedisError::from((ErrorKind::UnexpectedReturnType, "a node does not know who has the slots"))
    })
}

/// None if this is an answer of no use.
fn ranges(reply: Value, host: &str) -> Option<Slots> {
    let ranges: Vec<Vec<Value>> = from_redis_value(reply).ok()?;
    let mut slots = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut range = range.into_iter();
        let first: u16 = from_redis_value(range.next()?).ok()?;
        let last: u16 = from_redis_value(range.next()?).ok()?;
        // The primary comes first, and behind its port is more.
        let mut primary = from_redis_value::<Vec<Value>>(range.next()?).ok()?.into_iter();
        let named: Option<String> = from_redis_value(primary.next()?).ok()?;
        let port: u16 = from_redis_value(primary.next()?).ok()?;
        let named = named.filter(|named| !named.is_empty() && named != "?");
        // A node that does not know its name leaves it out: it is where it was found.
        slots.push((first..=last, (named.unwrap_or_else(|| host.to_owned()), port)));
    }
    slots.sort_unstable_by_key(|(slots, _)| *slots.start());
    (!slots.is_empty()).then_some(slots)
}

/// An address as a server tells it, `host:port`; the host is left out where it is that of the server.
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
    fn an_address_may_leave_out_its_host() {
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
