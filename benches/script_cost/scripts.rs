//! The scripts that are compared: those of the crate, and common designs beside them.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use redis::cmd;
use tower_sliding_window::{
    Algorithm, PartitionKey, Policy, RedisBackend,
    backend::{Backend, Check, Pair, Purpose, Refund},
    testing::ManualClock,
};

use crate::{
    measure::{CALENDAR, Pipeline, TOKENS},
    server::Server,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Design {
    /// A script that does nothing.
    Nothing,
    Gcra,
    Log,
    Buckets,
    Counter,
    Fixed,
    Tokens,
    Calendar,
    SortedSet,
    HashBuckets,
}

use Design::{Buckets, Calendar, Counter, Fixed, Gcra, HashBuckets, Log, Nothing, SortedSet, Tokens};

/// The hashes of the loaded scripts.
pub struct Scripts {
    check: String,
    /// The check script on an injected clock.
    pub check_injected: String,
    pub refund: String,
    gcra: String,
    sorted_set: String,
    hash: String,
    nothing: String,
}

impl Design {
    pub const ALL: [Self; 10] =
        [Nothing, Gcra, Log, Buckets, Counter, Fixed, Tokens, Calendar, SortedSet, HashBuckets];

    pub fn name(self) -> &'static str {
        match self {
            Nothing => "return 1",
            Gcra => "GCRA",
            Log => "log",
            Buckets => "buckets",
            Counter => "counter",
            Fixed => "fixed",
            Tokens => "tokens",
            Calendar => "calendar",
            SortedSet => "sorted set",
            HashBuckets => "hash of 60",
        }
    }

    /// Returns whether the crate's own check script decides.
    pub fn is_of_crate(self) -> bool {
        matches!(self, Log | Buckets | Counter | Fixed | Tokens | Calendar)
    }

    /// Returns the type of the policy and its parameter, as the arguments of a pair have them: 60 buckets per window.
    pub fn typed_parameter(self, window: u64) -> u64 {
        match self {
            Buckets => (1 << 45) + window.div_ceil(60),
            Counter => 2 << 45,
            Fixed => 3 << 45,
            Tokens => TOKENS,
            Calendar => CALENDAR,
            _ => 0,
        }
    }

    /// Returns whether the design has 60 buckets per window. Such a window is at least 60 ms long.
    pub fn has_buckets(self) -> bool {
        matches!(self, Buckets | HashBuckets)
    }
}

impl Scripts {
    /// Loads all scripts. The crate loads its own, so the benchmark measures exactly what the crate sends.
    pub fn load(server: &Server, pipeline: &mut Pipeline) -> Self {
        let hashes = hashes_sent_by_crate(server);
        let [check, refund, _reset, check_injected] = hashes.try_into().expect("four scripts");
        pipeline.ask(&[b"FLUSHALL"]);
        let mut load = |text: &str| pipeline.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()]);
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
            Log | Buckets | Counter | Fixed | Tokens | Calendar => &self.check,
            SortedSet => &self.sorted_set,
            HashBuckets => &self.hash,
        }
    }
}

/// Calls each script of the crate once, and returns their hashes in this order, as the server's MONITOR shows them.
fn hashes_sent_by_crate(server: &Server) -> Vec<String> {
    const END: &str = "end of the calls";
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"MONITOR\r\n").expect("a write");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("+OK"));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(call_every_script(&server.url()));
    cmd("ECHO").arg(END).exec(&mut server.connection()).unwrap();

    let mut hashes = Vec::new();
    for line in lines.take_while(|line| !line.contains(END)) {
        let Some((_, arguments)) = line.split_once(r#""EVALSHA" ""#) else { continue };
        let hash = arguments.split('"').next().unwrap_or_default().to_owned();
        if !hashes.contains(&hash) {
            hashes.push(hash);
        }
    }
    hashes
}

/// Runs a check, a refund, a reset, and a check on an injected clock.
async fn call_every_script(url: &str) {
    let backend = RedisBackend::connect(url).await.expect("a connection");
    let policy = Policy::new("burst", 10, Duration::from_secs(1)).unwrap();
    let policy = policy.with_algorithm(Algorithm::SlidingLog).unwrap();
    let pair = Pair::new(PartitionKey::new("user", "alice"), policy, 2);
    let check = Check::new([pair]).unwrap().with_purpose(Purpose::Reserve);
    let decision = backend.check(&check).await.expect("a decision");
    backend.refund(&Refund::new(&check, decision.receipts(), &[1]).unwrap()).await.expect("a refund");
    backend.reset(&check).await.expect("a reset");
    let _ = backend.with_clock(&ManualClock::new()).check(&check).await.expect("a decision");
}
