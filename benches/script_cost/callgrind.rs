//! A Redis server under callgrind, which counts the instructions of its script calls.

use std::{fs, process::Command};

use tempfile::TempDir;

use crate::{
    measure::Pipeline,
    server::{Engine, Server},
};

const MISSING_SYMBOLS: &str = "callgrind does not find the functions `evalShaCommand` and `echoCommand` of the Redis server; set \
    TEST_REDIS_SERVER to a program that was linked with -rdynamic, as the Makefile of Redis does";

/// A server that counts what `EVALSHA` runs, and nothing else: neither timers, nor the network, nor the parser of commands.
pub struct Counting {
    pub pipeline: Pipeline,
    folder: TempDir,
    /// The number of files that callgrind has written.
    files: usize,
    _server: Server,
}

impl Counting {
    /// Starts the server. Returns an error if valgrind is missing, or if the program of the server does not name its functions.
    pub fn start() -> Result<Self, String> {
        Command::new("valgrind").arg("--version").output().map_err(|error| {
            format!("cannot run valgrind: {error}; install it, for example with `apt-get install valgrind`")
        })?;
        let folder = tempfile::tempdir().map_err(|error| format!("no folder for callgrind: {error}"))?;
        let out = format!("--callgrind-out-file={}", folder.path().join("out").display());
        let launcher = [
            // The allocator must not return memory to the operating system: it does this at any time.
            "env",
            "MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1",
            "JE_MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1",
            // Callgrind finds a function by its symbol. An ECHO writes the instructions since the one before it.
            "valgrind",
            "--tool=callgrind",
            &out,
            "--toggle-collect=evalShaCommand",
            "--dump-before=echoCommand",
        ];
        let server = Server::launched_by(&launcher, Engine::Redis, &["--hz", "1"]);
        let mut counting = Self { pipeline: Pipeline::connect(&server), folder, files: 0, _server: server };
        let hash = counting.load("return 1");
        counting.pipeline.ask(&[b"EVALSHA", hash.as_bytes(), b"0"]);
        match counting.count() {
            Ok(0.0) => Err(MISSING_SYMBOLS.to_owned()),
            Ok(_) => Ok(counting),
            Err(error) => Err(error),
        }
    }

    /// Loads a script, and returns its hash.
    pub fn load(&mut self, text: &str) -> String {
        self.pipeline.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()])
    }

    /// Starts a new interpreter, without the garbage of earlier calls. All scripts must be loaded again.
    pub fn restart_interpreter(&mut self) {
        self.pipeline.ask(&[b"SCRIPT", b"FLUSH", b"SYNC"]);
    }

    /// Returns the instructions of all script calls since the last call of this function.
    pub fn count(&mut self) -> Result<f64, String> {
        self.pipeline.ask(&[b"ECHO", b""]);
        self.files += 1;
        let file = fs::read_to_string(self.folder.path().join(format!("out.{}", self.files)));
        let total =
            |file: &str| file.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok());
        file.ok().and_then(|file| total(&file)).ok_or_else(|| MISSING_SYMBOLS.to_owned())
    }
}
