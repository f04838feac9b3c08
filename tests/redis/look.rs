//! Looking at a server from outside.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use redis::{Connection, FromRedisValue, cmd, pipe};

use crate::support::server::Server;

/// A connection of its own, for looking.
pub struct Look(pub Connection);

/// How often a command was called, and how often it failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub all: u64,
    pub failed: u64,
}

/// Everything that is stored, and how many writes there have been.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    pub keys: Vec<String>,
    values: Vec<(Option<Vec<u8>>, i64)>,
    writes: u64,
}

impl State {
    pub fn of(look: &mut Look) -> Self {
        let keys = look.keys();
        let values = keys.iter().map(|key| look.whole_value(key)).collect();
        Self { keys, values, writes: look.writes() }
    }
}

impl Look {
    pub fn at(server: &Server) -> Self {
        Self(server.connection())
    }

    /// Runs a command, given as its words.
    pub fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_ask<T: FromRedisValue>(&mut self, words: &[&str]) -> redis::RedisResult<T> {
        cmd(words[0]).arg(&words[1..]).query(&mut self.0)
    }

    pub fn set(&mut self, option: &str, value: &str) {
        self.ask::<()>(&["CONFIG", "SET", option, value]);
    }

    /// A field of a section of INFO.
    pub fn info(&mut self, section: &str, field: &str) -> Option<String> {
        let info: String = self.ask(&["INFO", section]);
        let prefix = format!("{field}:");
        info.lines().find_map(|line| line.strip_prefix(&prefix)).map(|value| value.trim().to_owned())
    }

    pub fn number(&mut self, section: &str, field: &str) -> u64 {
        self.info(section, field).and_then(|value| value.parse().ok()).expect(field)
    }

    /// Waits until the replica of this server has what is stored here.
    pub fn replicate(&mut self) {
        // A server waits for what was written over the same connection, and for all before it.
        let tag = self.keys()[0].split_once('}').unwrap().0.to_owned();
        self.ask::<()>(&["SET", &format!("{tag}}}:seen"), "1", "PX", "60000"]);
        assert_eq!(self.ask::<u32>(&["WAIT", "1", "10000"]), 1, "it is not replicated");
    }

    /// Since the server started, or since `CONFIG RESETSTAT`.
    pub fn calls(&mut self, command: &str) -> Calls {
        let Some(stat) = self.info("commandstats", &format!("cmdstat_{command}")) else {
            return Calls::default();
        };
        let field = |name: &str| {
            let value = stat.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            value.expect(name).parse().unwrap()
        };
        Calls { all: field("calls"), failed: field("failed_calls") }
    }

    /// All keys of the database, in order.
    pub fn keys(&mut self) -> Vec<String> {
        let mut scan = redis::cmd("SCAN");
        let mut keys: Vec<String> = scan
            .cursor_arg(0)
            .arg("COUNT")
            .arg(1000)
            .clone()
            .iter(&mut self.0)
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        keys.sort();
        keys.dedup();
        keys
    }

    /// The only key there is.
    pub fn only_key(&mut self) -> String {
        let keys = self.keys();
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys.into_iter().next().unwrap()
    }

    /// The value as the server would move it elsewhere, and when it expires in milliseconds of Unix time.
    pub fn whole_value(&mut self, key: &str) -> (Option<Vec<u8>>, i64) {
        (self.ask(&["DUMP", key]), self.expires_at(key))
    }

    /// When a key expires, in milliseconds of Unix time; -1 if it never does, and -2 if there is none.
    pub fn expires_at(&mut self, key: &str) -> i64 {
        match self.try_ask(&["PEXPIRETIME", key]) {
            Ok(millis) => millis,
            Err(error) if error.to_string().contains("unknown command") => self.expires_at_by_the_clock(key),
            Err(error) => panic!("{error}"),
        }
    }

    /// The same of a server before Redis 7, which tells only how long it is until then: exact where that is told between two
    /// readings of one millisecond.
    fn expires_at_by_the_clock(&mut self, key: &str) -> i64 {
        let mut ask = pipe();
        ask.atomic().cmd("TIME").cmd("PTTL").arg(key).cmd("TIME");
        loop {
            type Time = (i64, i64);
            let (before, left, after): (Time, i64, Time) = ask.query(&mut self.0).unwrap();
            let [before, after] = [before, after].map(|(seconds, micros)| seconds * 1_000 + micros / 1_000);
            if left < 0 {
                return left;
            }
            if before == after {
                return before + left;
            }
        }
    }

    /// All bytes that a key takes.
    pub fn memory(&mut self, key: &str) -> u64 {
        self.ask(&["MEMORY", "USAGE", key, "SAMPLES", "0"])
    }

    /// The time to live; `None` if it is endless.
    pub fn time_to_live(&mut self, key: &str) -> Option<Duration> {
        u64::try_from(self.ask::<i64>(&["PTTL", key])).ok().map(Duration::from_millis)
    }

    /// How many writes the server has counted.
    pub fn writes(&mut self) -> u64 {
        self.number("persistence", "rdb_changes_since_last_save")
    }
}

/// Hears every command that a server runs.
pub struct Monitor(BufReader<TcpStream>);

/// A command that a script called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub command: String,
    /// Its first argument, if it has any.
    pub key: Option<String>,
}

impl Monitor {
    pub fn at(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    /// What scripts have called until now.
    pub fn called_by_scripts(&mut self, look: &mut Look) -> Vec<Called> {
        const END: &str = "that is all";
        look.ask::<String>(&["PING", END]);
        let mut called = Vec::new();
        loop {
            let line = self.line();
            if line.contains(END) {
                return called;
            }
            if line.contains(" lua] ") {
                let mut words = line.split('"').skip(1).step_by(2).map(str::to_owned);
                called.push(Called { command: words.next().unwrap().to_uppercase(), key: words.next() });
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }
}
