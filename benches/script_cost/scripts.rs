//! What is compared: the algorithms of the crate, and the usual designs beside them.

use std::time::Duration;

use redis::cmd;
use tower_sliding_window::{
    Algorithm, PartitionKey, Policy, RedisBackend,
    backend::{Backend, Check, Pair, Purpose, Refund},
    testing::ManualClock,
};

use crate::{measure::Wire, server::Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Design {
    Nothing,
    Gcra,
    Log,
    Buckets,
    Counter,
    Fixed,
    SortedSet,
    HashBuckets,
}

use Design::{Buckets, Counter, Fixed, Gcra, HashBuckets, Log, Nothing, SortedSet};

/// The scripts of the crate, put together as `src/backend/redis/script.rs` does it; see [`Texts::load`].
macro_rules! lua {
    ($($part:literal),*) => { concat!($(include_str!(concat!("../../lua/", $part)),)*) };
}

const CHECK: &str = lua!("clock.lua", "records.lua", "calendar.lua", "log.lua", "check.lua");
const CHECK_INJECTED: &str =
    lua!("clock_injected.lua", "records.lua", "calendar.lua", "log.lua", "check.lua");
const REFUND: &str = lua!("clock.lua", "records.lua", "refund.lua");

/// The names by which the server knows the scripts.
pub struct Texts {
    check: String,
    /// On a clock that comes with the arguments: for a past that would take too long to wait for.
    pub check_injected: String,
    pub refund: String,
    gcra: String,
    sorted_set: String,
    hash: String,
    nothing: String,
}

impl Design {
    pub const ALL: [Self; 8] = [Nothing, Gcra, Log, Buckets, Counter, Fixed, SortedSet, HashBuckets];

    pub fn name(self) -> &'static str {
        match self {
            Nothing => "return 1",
            Gcra => "GCRA",
            Log => "log",
            Buckets => "buckets",
            Counter => "counter",
            Fixed => "fixed",
            SortedSet => "sorted set",
            HashBuckets => "hash of 60",
        }
    }

    /// The last number of a pair's arguments: the precision of buckets, of which there are 60 in a window.
    pub fn shape(self, window: u64) -> i64 {
        match self {
            Buckets => window.div_ceil(60) as i64,
            Counter => -1,
            Fixed => -2,
            _ => 0,
        }
    }

    /// Whether it has sixty buckets in a window, and so wants one of at least 60 ms.
    pub fn has_buckets(self) -> bool {
        matches!(self, Buckets | HashBuckets)
    }
}

impl Texts {
    /// # Panics
    ///
    /// If what the crate itself sends is not what is measured here.
    pub fn load(server: &Server, wire: &mut Wire) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check_and_refund(&server.url()));
        let mut connection = server.connection();
        let texts = [CHECK, CHECK_INJECTED, REFUND];
        let hashes = texts.map(|text| redis::Script::new(text).get_hash().to_owned());
        let known: Vec<bool> =
            cmd("SCRIPT").arg("EXISTS").arg(&hashes).query(&mut connection).expect("it is asked");
        assert_eq!(known, [true; 3], "the crate sends other scripts than those that are measured");
        let [check, check_injected, refund] = hashes;
        cmd("FLUSHALL").exec(&mut connection).unwrap();

        let mut load = |text: &str| wire.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()]);
        Self {
            check,
            check_injected,
            refund,
            gcra: load(include_str!("gcra.lua")),
            sorted_set: load(include_str!("sorted_set.lua")),
            hash: load(include_str!("hash_buckets.lua")),
            nothing: load("return 1"),
        }
    }

    pub fn of(&self, design: Design) -> &str {
        match design {
            Nothing => &self.nothing,
            Gcra => &self.gcra,
            Log | Buckets | Counter | Fixed => &self.check,
            SortedSet => &self.sorted_set,
            HashBuckets => &self.hash,
        }
    }
}

/// Has the crate send each of its scripts once.
async fn check_and_refund(url: &str) {
    let backend = RedisBackend::connect(url).await.expect("the server of this benchmark answers");
    let policy = Policy::new("burst", 10, Duration::from_secs(1)).unwrap();
    let policy = policy.with_algorithm(Algorithm::SlidingLog).unwrap();
    let pair = Pair::new(PartitionKey::new("user", "alice"), policy, 2);
    let check = Check::new([pair]).unwrap().with_purpose(Purpose::Reserve);
    let decision = backend.check(&check).await.expect("a decision");
    backend.refund(&Refund::of(&check, decision.receipts(), &[1]).unwrap()).await.expect("a refund");
    backend.with_clock(&ManualClock::new()).check(&check).await.expect("a decision");
}
