//! An administrative connection that inspects and configures a server.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use redis::{Connection, FromRedisValue, cmd, pipe};

use crate::support::server::Server;

/// A connection that only the test uses, not the backend under test.
pub struct Admin(pub Connection);

/// The number of calls of a command, and how many of them failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub all: u64,
    pub failed: u64,
}

/// All stored data, and the number of writes.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    pub keys: Vec<String>,
    values: Vec<(Option<Vec<u8>>, i64)>,
    writes: u64,
}

impl State {
    pub fn of(admin: &mut Admin) -> Self {
        let keys = admin.keys();
        let values = keys.iter().map(|key| admin.value_and_expiry(key)).collect();
        Self { keys, values, writes: admin.writes() }
    }
}

impl Admin {
    pub fn at(server: &Server) -> Self {
        Self(server.connection())
    }

    /// Runs a command, given as its words. Panics if the command fails.
    pub fn query<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        self.try_query(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Runs a command, given as its words.
    pub fn try_query<T: FromRedisValue>(&mut self, words: &[&str]) -> redis::RedisResult<T> {
        cmd(words[0]).arg(&words[1..]).query(&mut self.0)
    }

    /// Sets an option of the server's configuration.
    pub fn set(&mut self, option: &str, value: &str) {
        self.query::<()>(&["CONFIG", "SET", option, value]);
    }

    /// Returns a field of a section of INFO.
    pub fn info(&mut self, section: &str, field: &str) -> Option<String> {
        let info: String = self.query(&["INFO", section]);
        let prefix = format!("{field}:");
        info.lines().find_map(|line| line.strip_prefix(&prefix)).map(|value| value.trim().to_owned())
    }

    /// Returns a numeric field of a section of INFO.
    pub fn number(&mut self, section: &str, field: &str) -> u64 {
        self.info(section, field).and_then(|value| value.parse().ok()).expect(field)
    }

    /// Waits until the replica of this server has all data of this server.
    pub fn replicate(&mut self) {
        // WAIT covers the writes of this connection and all earlier writes.
        let tag = self.keys()[0].split_once('}').unwrap().0.to_owned();
        self.query::<()>(&["SET", &format!("{tag}}}:seen"), "1", "PX", "60000"]);
        assert_eq!(self.query::<u32>(&["WAIT", "1", "10000"]), 1, "the replica does not have the data");
    }

    /// Returns the calls of a command since the server started, or since `CONFIG RESETSTAT`.
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

    /// Returns all keys of the database, sorted.
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

    /// Returns the key of a database that has exactly one.
    pub fn only_key(&mut self) -> String {
        let keys = self.keys();
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys.into_iter().next().unwrap()
    }

    /// Returns the serialized value (DUMP) and the expiry in milliseconds of Unix time.
    pub fn value_and_expiry(&mut self, key: &str) -> (Option<Vec<u8>>, i64) {
        (self.query(&["DUMP", key]), self.expires_at(key))
    }

    /// Returns the expiry in milliseconds of Unix time: -1 for a key without expiry, -2 for no key.
    pub fn expires_at(&mut self, key: &str) -> i64 {
        match self.try_query(&["PEXPIRETIME", key]) {
            Ok(millis) => millis,
            Err(error) if error.to_string().contains("unknown command") => self.expires_at_from_pttl(key),
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the expiry from a server before Redis 7, which has no PEXPIRETIME. It is exact: both clock readings around
    /// PTTL are in the same millisecond.
    fn expires_at_from_pttl(&mut self, key: &str) -> i64 {
        let mut pipeline = pipe();
        pipeline.atomic().cmd("TIME").cmd("PTTL").arg(key).cmd("TIME");
        loop {
            type Time = (i64, i64);
            let (before, left, after): (Time, i64, Time) = pipeline.query(&mut self.0).unwrap();
            let [before, after] = [before, after].map(|(seconds, micros)| seconds * 1_000 + micros / 1_000);
            if left < 0 {
                return left;
            }
            if before == after {
                return before + left;
            }
        }
    }

    /// Returns the memory of a key in bytes.
    pub fn memory(&mut self, key: &str) -> u64 {
        self.query(&["MEMORY", "USAGE", key, "SAMPLES", "0"])
    }

    /// Returns the time to live: `None` for a key without one.
    pub fn time_to_live(&mut self, key: &str) -> Option<Duration> {
        u64::try_from(self.query::<i64>(&["PTTL", key])).ok().map(Duration::from_millis)
    }

    /// Returns the number of writes that the server has counted.
    pub fn writes(&mut self) -> u64 {
        self.number("persistence", "rdb_changes_since_last_save")
    }
}

/// A MONITOR connection, which receives every command that a server runs.
pub struct Monitor(BufReader<TcpStream>);

/// A command that a script called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall {
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
        assert_eq!(monitor.read_line(), "+OK", "the server accepts MONITOR");
        monitor
    }

    /// Returns the commands that scripts have called since the last call of this function or of `called_scripts`.
    pub fn script_calls(&mut self, admin: &mut Admin) -> Vec<ScriptCall> {
        let lines = self.lines(admin).into_iter().filter(|line| line.contains(" lua] "));
        let call = |line: String| {
            let mut words = line.split('"').skip(1).step_by(2).map(str::to_owned);
            ScriptCall { command: words.next().unwrap().to_uppercase(), key: words.next() }
        };
        lines.map(call).collect()
    }

    /// Returns the hashes of the scripts that clients have called since the last call of this function or of `script_calls`.
    pub fn called_scripts(&mut self, admin: &mut Admin) -> Vec<String> {
        let lines = self.lines(admin).into_iter();
        let hash = |line: String| {
            let mut words = line.split('"').skip(1).step_by(2);
            words.next().filter(|word| word.eq_ignore_ascii_case("EVALSHA"))?;
            words.next().map(str::to_owned)
        };
        lines.filter_map(hash).collect()
    }

    /// Returns the lines of all commands since the last call of this function.
    fn lines(&mut self, admin: &mut Admin) -> Vec<String> {
        const END: &str = "end of monitor";
        admin.query::<String>(&["PING", END]);
        let mut lines = Vec::new();
        loop {
            let line = self.read_line();
            if line.contains(END) {
                return lines;
            }
            lines.push(line);
        }
    }

    fn read_line(&mut self) -> String {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }
}
