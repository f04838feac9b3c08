//! What is known of one server: how far its clock is from ours, whether it is being taught a script, and since when it owes
//! an answer.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::broadcast::{self, error::TryRecvError},
    time::Instant,
};

/// How far two clocks drift apart at most, in parts of a second: 500 ppm, as fast as a kernel slews a clock that is to be set
/// right.
const DRIFT: u32 = 2_000;

/// After so long any reply is better than an old one: its server's clock may have been set back since.
const MEMORY: Duration = Duration::from_secs(10);

/// Who goes away sooner has not waited for an answer, and says nothing of the server: a client that has gone, or a question that
/// another server has answered first.
const MOMENT: Duration = Duration::from_millis(5);

/// What is known of one server. It is forgotten with the connection.
#[derive(Debug, Default)]
pub struct Node {
    seen: Mutex<Option<Reading>>,
    /// Since when it has not answered, if anything is asked.
    waiting: Mutex<Option<Instant>>,
    /// There while somebody sends it a text that it does not know. Those that wait go on in the order in which they came.
    teaching: Mutex<Option<broadcast::Receiver<()>>>,
    /// When it last learnt one.
    taught: Mutex<Option<Instant>>,
}

/// A reading of the server's clock that has come with a reply.
#[derive(Clone, Copy, Debug)]
struct Reading {
    server_micros: u64,
    received: Instant,
}

impl Reading {
    /// The least that the server's clock shows at this instant. The reply was under way for some time before it was received,
    /// so the clock is further on.
    fn at(self, instant: Instant) -> u64 {
        match instant.checked_duration_since(self.received) {
            Some(later) => self.server_micros.saturating_add(micros(later - later / DRIFT)),
            None => self.server_micros.saturating_sub(micros(self.received - instant)),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Something is asked of a node. Dropped before the answer is there, it may have run.
pub(crate) struct Asked<'a> {
    node: &'a Node,
    since: Instant,
    /// Told whether the node has been silent for long.
    unanswered: Option<&'a (dyn Fn(Duration) + Sync)>,
}

impl Node {
    /// The server's clock at this instant, or earlier. 0 if nothing is known of it: a check with this deadline is refused, and
    /// the refusal tells.
    pub(crate) fn clock_at(&self, instant: Instant) -> u64 {
        self.seen().map_or(0, |reading| reading.at(instant))
    }

    /// A reply has told this reading of the clock.
    pub(crate) fn has_told(&self, server_micros: u64, received: Instant) {
        let mut seen = self.seen();
        let told = Reading { server_micros, received };
        // The one that was shorter under way shows the later clock.
        let is_better = |old: Reading| {
            told.at(received) >= old.at(received) || received.duration_since(old.received) >= MEMORY
        };
        if seen.is_none_or(is_better) {
            *seen = Some(told);
        }
    }

    /// For somebody who has sent a script by its name at this instant, and it was not known. Waits for whoever teaches the
    /// server, or begins to: then what is returned has to be kept until it is done.
    pub(crate) async fn teach(&self, sent: Instant) -> Option<broadcast::Sender<()>> {
        let mut teaching = {
            let mut teaching = lock(&self.teaching);
            // Nothing is ever said: it is empty until the teacher is dropped.
            let told = teaching.as_mut().map(broadcast::Receiver::try_recv);
            match &*teaching {
                _ if lock(&self.taught).is_some_and(|taught| taught > sent) => return None,
                Some(other) if told == Some(Err(TryRecvError::Empty)) => other.resubscribe(),
                _ => {
                    let (teacher, others) = broadcast::channel(1);
                    *teaching = Some(others);
                    return Some(teacher);
                }
            }
        };
        let _ = teaching.recv().await;
        None
    }

    /// It knows the script now.
    pub(crate) fn note_taught(&self) {
        *lock(&self.taught) = Some(Instant::now());
    }

    pub(super) fn asks<'a>(&'a self, unanswered: &'a (dyn Fn(Duration) + Sync)) -> Asked<'a> {
        let since = Instant::now();
        lock(&self.waiting).get_or_insert(since);
        Asked { node: self, since, unanswered: Some(unanswered) }
    }

    fn seen(&self) -> MutexGuard<'_, Option<Reading>> {
        lock(&self.seen)
    }
}

impl Asked<'_> {
    /// The server has answered, or the connection is broken.
    pub(super) fn end(mut self) {
        *lock(&self.node.waiting) = None;
        self.unanswered = None;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(unanswered) = self.unanswered {
            let since = {
                let mut waiting = lock(&self.node.waiting);
                // Whether it would have been answered is not known.
                if *waiting == Some(self.since) && self.since.elapsed() < MOMENT {
                    *waiting = None;
                }
                *waiting
            };
            unanswered(since.map_or(Duration::ZERO, |since| since.elapsed()));
        }
    }
}

// Nothing that holds a lock here can panic half-way, or wait.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MILLI: u64 = 1_000;

    /// A server whose clock is this far from ours, and a way that takes so long.
    fn tell(node: &Node, clock: u64, way: Duration) {
        node.has_told(clock, Instant::now() + way);
    }

    #[test]
    fn of_an_unknown_clock_nothing_is_in_time() {
        assert_eq!(Node::default().clock_at(Instant::now() + SECOND), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_is_never_taken_for_later_than_it_is_and_the_shortest_way_tells_it_best() {
        let node = Node::default();
        let start = Instant::now();
        // It showed 10 s when we began, and the reply was under way for 40 ms, then 5, then 70.
        for way in [40, 5, 70].map(Duration::from_millis) {
            tell(&node, 10_000_000, way);
            let seen = node.clock_at(start);
            assert!(seen <= 10_000_000, "{seen}");
        }
        assert_eq!(node.clock_at(start), 10_000_000 - 5 * MILLI);
        // The clocks may drift apart: a two-thousandth of what has passed is left out.
        let later = start + Duration::from_millis(5) + 100 * SECOND;
        assert_eq!(node.clock_at(later), 110_000_000 - 50 * MILLI);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_forward_is_known_at_once_and_one_that_is_set_back_in_ten_seconds() {
        let node = Node::default();
        tell(&node, 100_000_000, Duration::ZERO);
        tell(&node, 160_000_000, Duration::ZERO);
        assert_eq!(node.clock_at(Instant::now()), 160_000_000);
        for second in 1..10 {
            tokio::time::advance(SECOND).await;
            tell(&node, 50_000_000 + second * 1_000_000, Duration::ZERO);
            assert!(node.clock_at(Instant::now()) > 160_000_000, "{second}");
        }
        tokio::time::advance(SECOND).await;
        tell(&node, 60_000_000, Duration::ZERO);
        assert_eq!(node.clock_at(Instant::now()), 60_000_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_silent_only_to_those_who_wait() {
        let (node, silence) = (Node::default(), Mutex::new(Duration::ZERO));
        let unanswered = |so_far| *lock(&silence) = so_far;
        let ask_for = async |patience| {
            let asked = node.asks(&unanswered);
            tokio::time::advance(patience).await;
            drop(asked);
            *lock(&silence)
        };
        for _ in 0..3 {
            assert_eq!(ask_for(Duration::from_millis(1)).await, Duration::ZERO);
            tokio::time::advance(SECOND).await;
        }
        assert_eq!(ask_for(100 * MOMENT).await, 100 * MOMENT);
        // Since then it owes an answer, and who looks in for a moment sees that.
        tokio::time::advance(SECOND).await;
        assert!(ask_for(Duration::from_millis(1)).await > SECOND);
        node.asks(&unanswered).end();
        assert_eq!(ask_for(Duration::from_millis(1)).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn one_teaches_and_the_others_wait_for_it_however_it_ends() {
        let node = Node::default();
        let sent = Instant::now();
        let teacher = node.teach(sent).await.expect("the first one teaches");
        let mut other = Box::pin(node.teach(sent));
        assert!(tokio::time::timeout(SECOND, &mut other).await.is_err(), "it waits");
        // It has gone without having taught.
        drop(teacher);
        assert!(other.await.is_none());
        let teacher = node.teach(sent).await.expect("somebody else teaches");
        tokio::time::advance(SECOND).await;
        node.note_taught();
        drop(teacher);
        assert!(node.teach(sent).await.is_none(), "it was not known when this was sent, and is now");
        tokio::time::advance(SECOND).await;
        assert!(node.teach(Instant::now()).await.is_some(), "it is forgotten again");
    }
}
