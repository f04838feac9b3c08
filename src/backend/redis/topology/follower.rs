//! Following the primary behind Sentinels: the events of all known Sentinels, and their answers.
//!
//! The connections to the Sentinels have a thread of their own. They belong to no caller's runtime, and delay no check.

use std::{future::pending, pin::pin, sync::Arc, thread, time::Duration};

use futures_util::{
    StreamExt,
    future::{Either, select},
};
use redis::{Client, ConnectionInfo, RedisResult, aio::PubSubStream};
use tokio::{
    runtime,
    sync::{oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    endpoint::{Address, with_address},
    sentinel::{SentinelAnswer, Sentinels, agreed, candidates, query},
};
use crate::{backend::redis::tls, lock::Lock};

/// The backend queries each Sentinel again after this time, and connects again to one that does not answer.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time in which a Sentinel accepts a connection, and in which it answers.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The largest number of Sentinels besides those that the caller has named.
const MAX_DISCOVERED: usize = 16;
/// The events of a Sentinel that may be followed by another answer.
const EVENTS: [&str; 5] = [
    // The Sentinel that leads the failover.
    "+promoted-slave",
    "+failover-state-reconf-slaves",
    "+failover-end",
    // The other Sentinels, and at the end the first one.
    "+config-update-from",
    "+switch-master",
];

/// A thread that follows the primary. It ends when this is dropped.
#[derive(Default)]
pub(super) struct Follower(Lock<Option<oneshot::Sender<()>>>);

impl Follower {
    /// Starts the thread, unless it runs. It calls `follow` with the primary that a majority of the Sentinels names, after every
    /// answer. If the system has no further thread, the backend queries the Sentinels only when it connects.
    pub(super) fn start(
        &self,
        sentinels: &Arc<Sentinels>,
        follow: impl Fn(&Address) + Send + Sync + 'static,
    ) {
        let mut running = self.0.lock();
        if running.as_ref().is_some_and(|stop| !stop.is_closed()) {
            return;
        }
        let (stop, stopped) = oneshot::channel();
        let board = Arc::new(Board {
            sentinels: sentinels.clone(),
            follow: Box::new(follow),
            state: Lock::default(),
            events: watch::Sender::default(),
        });
        let started = thread::Builder::new().name("tsw-sentinels".to_owned()).spawn(move || {
            if let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() {
                runtime.block_on(select(stopped, pin!(board.watch_all())));
            }
        });
        *running = started.is_ok().then_some(stop);
    }
}

/// The last answers of the Sentinels.
struct Board {
    sentinels: Arc<Sentinels>,
    follow: Box<dyn Fn(&Address) + Send + Sync>,
    state: Lock<Vec<WatchedSentinel>>,
    /// Changes after each event of a Sentinel, and when a Sentinel is discovered.
    events: watch::Sender<()>,
}

/// A Sentinel to which the backend is connected, or connects.
struct WatchedSentinel {
    info: ConnectionInfo,
    /// The identity by which another Sentinel has reported it. None if the caller has named it.
    discovered: Option<String>,
    /// Whether the first attempt to query it has ended.
    was_queried: bool,
    /// Whether it has ever answered. A discovered Sentinel may have an address that this process cannot reach.
    has_answered: bool,
    /// The last answer, or `None` after a failure.
    answer: Option<SentinelAnswer>,
}

impl Board {
    /// Watches all known Sentinels. Never ends.
    async fn watch_all(self: Arc<Self>) {
        for info in &self.sentinels.named {
            self.state.lock().push(WatchedSentinel::new(info.clone(), None));
        }
        let (mut watches, mut started, mut events) = (JoinSet::new(), 0, self.events.subscribe());
        loop {
            let known = self.state.lock().len();
            for index in started..known {
                watches.spawn(self.clone().watch(index));
            }
            started = known;
            // The board has a sender, so that the channel stays open.
            if events.changed().await.is_err() {
                return;
            }
        }
    }

    /// Watches one Sentinel. Never ends.
    async fn watch(self: Arc<Self>, index: usize) {
        loop {
            // The error is that of a lost connection. Until the next answer, the Sentinel names no primary.
            let _ = self.query_repeatedly(index).await;
            self.record(index, None);
            sleep(INTERVAL).await;
        }
    }

    /// Queries a Sentinel at once, after each event of any Sentinel, and after each [`INTERVAL`], until it does not answer.
    async fn query_repeatedly(&self, index: usize) -> RedisResult<()> {
        let Some(info) = self.state.lock().get(index).map(|watched| watched.info.clone()) else {
            return Ok(());
        };
        let service = &self.sentinels.service;
        tls::prepare(info.addr());
        let client = Client::open(info)?;
        let Ok(connection) = timeout(TIMEOUT, client.get_multiplexed_async_connection()).await else {
            return Ok(());
        };
        let mut connection = connection?;
        // Without the permission to subscribe, the interval remains.
        let mut own_events = timeout(TIMEOUT, subscribe(&client)).await.ok().and_then(Result::ok);
        let mut events = self.events.subscribe();
        loop {
            events.mark_unchanged();
            let Ok(answer) = timeout(TIMEOUT, query(&mut connection, service)).await else { return Ok(()) };
            self.record(index, Some(answer?));
            let own_event = async {
                match &mut own_events {
                    Some(events) => next_event(events, service).await,
                    None => pending().await,
                }
            };
            match timeout(INTERVAL, select(pin!(own_event), pin!(events.changed()))).await {
                Ok(Either::Left((Some(()), _))) => self.events.send_replace(()),
                Ok(Either::Left((None, _))) => return Ok(()),
                Ok(Either::Right(_)) | Err(_) => {}
            }
        }
    }

    /// Records an answer, or that a Sentinel has failed. Follows the primary that a majority names.
    fn record(&self, index: usize, answer: Option<SentinelAnswer>) {
        let mut state = self.state.lock();
        let Some(watched) = state.get_mut(index) else { return };
        watched.was_queried = true;
        watched.answer = answer;
        watched.has_answered |= watched.own_answer().is_some();
        let has_discovered = self.discover(&mut state);
        let reported: Vec<_> = state.iter().filter(|watched| watched.counts(&state)).collect();
        let answers = candidates(reported.iter().filter_map(|watched| watched.own_answer()));
        let repeated = reported.iter().filter_map(|watched| watched.own_answer()).count() - answers.len();
        let primary = agreed(&answers, reported.len() - repeated).map(|primary| primary.address.clone());
        drop(state);
        if has_discovered {
            self.events.send_replace(());
        }
        if let Some(primary) = primary {
            (self.follow)(&primary);
        }
    }

    /// Adds the Sentinels that others report. Returns whether there are new ones.
    fn discover(&self, state: &mut Vec<WatchedSentinel>) -> bool {
        let is_named = |watched: &&WatchedSentinel| watched.discovered.is_none();
        // A Sentinel whose identity is not known yet would be added a second time, under the address that others report.
        let is_identified = |watched: &WatchedSentinel| {
            watched.was_queried && watched.answer.as_ref().is_none_or(|answer| answer.id.is_some())
        };
        if !state.iter().filter(is_named).all(is_identified) {
            return false;
        }
        let before = state.len();
        let reports: Vec<_> = state
            .iter()
            .filter_map(|watched| watched.answer.as_ref())
            .flat_map(|answer| answer.others.clone())
            .collect();
        for (id, address) in reports.clone() {
            // As to the first one, apart from the address.
            let Some(first) = self.sentinels.named.first() else { continue };
            let info = with_address(first, &address);
            let is_same = |watched: &WatchedSentinel| {
                let answered = watched.answer.as_ref().and_then(|answer| answer.id.as_ref());
                answered == Some(&id) || watched.info.addr() == info.addr()
            };
            // No Sentinel reports it, and it does not answer.
            let is_gone = |watched: &WatchedSentinel| {
                let own = watched.discovered.as_ref().filter(|_| watched.answer.is_none());
                own.is_some_and(|own| reports.iter().all(|(id, _)| id != own))
            };
            if let Some(moved) = state.iter().position(|watched| watched.discovered.as_ref() == Some(&id)) {
                state[moved].info = info;
            } else if let Some(same) = state.iter().position(is_same) {
                // A Sentinel that has lost its file has a new identity.
                state[same].discovered.iter_mut().for_each(|own| own.clone_from(&id));
            } else if state.len() < self.sentinels.named.len() + MAX_DISCOVERED {
                state.push(WatchedSentinel::new(info, Some(id)));
            } else if let Some(gone) = state.iter().position(is_gone) {
                state[gone] = WatchedSentinel::new(info, Some(id));
            }
        }
        let counting = state.iter().filter(|watched| watched.discovered.is_some() && watched.counts(state));
        *self.sentinels.discovered.lock() = counting.map(|watched| watched.info.clone()).collect();
        state.len() > before
    }
}

impl WatchedSentinel {
    fn new(info: ConnectionInfo, discovered: Option<String>) -> Self {
        Self { info, discovered, was_queried: false, has_answered: false, answer: None }
    }

    /// Returns the last answer, unless another Sentinel has given it: one that was at this place before.
    fn own_answer(&self) -> Option<&SentinelAnswer> {
        let is_own = |answered: &String| self.discovered.as_ref().is_none_or(|own| own == answered);
        self.answer.as_ref().filter(|answer| answer.id.as_ref().is_none_or(is_own))
    }

    /// Returns whether a majority contains this Sentinel: the caller has named it, or it has answered, and another one considers it
    /// up.
    fn counts(&self, all: &[Self]) -> bool {
        let Some(id) = &self.discovered else { return true };
        let mut reports =
            all.iter().filter_map(|watched| watched.answer.as_ref()).flat_map(|answer| &answer.others);
        self.has_answered && reports.any(|(other, _)| other == id)
    }
}

/// Subscribes to the events of a Sentinel.
async fn subscribe(client: &Client) -> RedisResult<PubSubStream> {
    let mut events = client.get_async_pubsub().await?;
    events.subscribe(&EVENTS).await?;
    Ok(events.into_on_message())
}

/// Waits for an event of the service. Returns None if the connection is lost.
async fn next_event(events: &mut PubSubStream, service: &str) -> Option<()> {
    loop {
        let text: String = events.next().await?.get_payload().unwrap_or_default();
        if text.split(' ').any(|word| word == service) {
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::redis::{
        tls::Tls,
        topology::{
            endpoint::{Endpoint, connection_info},
            sentinel::Candidate,
        },
    };

    /// Returns a board with one named Sentinel, and how often it has followed a primary.
    fn board() -> (Board, Arc<AtomicUsize>) {
        let tls = Tls::default();
        let named = vec![connection_info("redis://named:26379", &tls).unwrap()];
        let primary = Endpoint::from_url("redis://service", &tls).unwrap();
        let sentinels =
            Sentinels { named, discovered: Lock::default(), service: "service".to_owned(), primary };
        let state = sentinels.named.iter().map(|info| WatchedSentinel::new(info.clone(), None)).collect();
        let followed = Arc::<AtomicUsize>::default();
        let count = followed.clone();
        let follow = Box::new(move |_: &Address| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let events = watch::Sender::default();
        (Board { sentinels: Arc::new(sentinels), follow, state: Lock::new(state), events }, followed)
    }

    /// Returns an answer of the Sentinel with this identity, which considers others up.
    fn answer(id: &str, others: &[(&str, &str)]) -> Option<SentinelAnswer> {
        let others = others.iter().map(|(id, host)| ((*id).to_owned(), ((*host).to_owned(), 26379)));
        let candidate = Some(Candidate { epoch: 1, address: ("primary".to_owned(), 6379) });
        Some(SentinelAnswer { id: Some(id.to_owned()), candidate, others: others.collect() })
    }

    #[test]
    fn restarted_sentinel_with_new_identity_counts() {
        let (board, followed) = board();
        let follows = |index, answer| {
            let before = followed.load(Ordering::SeqCst);
            board.record(index, answer);
            followed.load(Ordering::SeqCst) > before
        };
        for [b, c] in [["b1", "c1"], ["b2", "c2"]] {
            board.record(0, answer("a", &[(b, "b"), (c, "c")]));
            for (index, own, other) in [(1, b, (c, "c")), (2, c, (b, "b"))] {
                board.record(index, answer(own, &[("a", "named"), other]));
            }
            // Each of the three is less than a majority.
            let all_fail = [1, 2].map(|index| follows(index, None));
            assert_eq!(all_fail, [true, false], "{b}");
            board.record(0, answer("a", &[]));
        }
        assert_eq!(board.state.lock().len(), 3);
    }

    #[test]
    fn new_sentinel_takes_place_of_one_that_is_gone() {
        let (board, _) = board();
        for n in 0..3 * MAX_DISCOVERED {
            let id = n.to_string();
            board.record(0, answer("a", &[(&id, &id)]));
        }
        let state = board.state.lock();
        assert_eq!(state.len(), 1 + MAX_DISCOVERED);
        let last = (3 * MAX_DISCOVERED - 1).to_string();
        assert!(state.iter().any(|watched| watched.discovered.as_ref() == Some(&last)));
    }

    /// A query that began before may still be answered.
    #[test]
    fn sentinel_that_has_lost_its_place_has_no_vote() {
        let (board, followed) = board();
        board.record(0, answer("a", &[("b", "b")]));
        board.state.lock()[1].discovered = Some("c".to_owned());
        board.record(0, answer("a", &[("c", "c")]));
        // Without an answer of the named Sentinel, a majority needs this vote.
        for (own, votes) in [("b", 0), ("c", 1)] {
            board.record(1, answer(own, &[("a", "named"), ("c", "c")]));
            let before = followed.load(Ordering::SeqCst);
            board.record(0, None);
            assert_eq!(followed.load(Ordering::SeqCst) - before, 0, "one of two is no majority");
            let counts = board.state.lock()[1].own_answer().is_some();
            assert_eq!(usize::from(counts), votes, "{own}");
            board.record(0, answer("a", &[("c", "c")]));
        }
    }
}
