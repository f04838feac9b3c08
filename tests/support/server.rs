//! Servers that a test starts on free loopback ports. They end when the test ends, even if it is killed. The tests end no
//! other process.

use std::{
    collections::{BTreeSet, hash_map::RandomState},
    fs,
    hash::{BuildHasher, Hasher},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use redis::{Client, Connection};
use tempfile::TempDir;

/// A program that speaks the Redis protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Redis 7.0, packaged by Debian.
    Redis,
    /// Redis 6.2.
    Redis6,
    /// Redis 8.0, packaged by the next release of Debian.
    Redis8,
    Valkey,
}

/// A server that the test has started.
pub struct Server {
    engine: Engine,
    /// The command that runs the program, such as a tool that counts its instructions. Empty if the program runs alone.
    launcher: Vec<String>,
    /// The arguments before the port, which select the kind of server.
    kind: Vec<String>,
    options: Vec<String>,
    port: u16,
    directory: TempDir,
    running: Option<Running>,
}

/// A shell that supervises the server. The shell kills the server when its standard input closes. That happens at the
/// latest when this process ends, even if it is killed.
struct Running {
    watchdog: Child,
    process: u32,
}

const WATCHDOG: &str = r#"
    # An interrupt ends the tests, which closes the standard input.
    trap '' INT TERM HUP
    "$0" "$@" >>log 2>&1 &
    server=$!
    read -r _
    # Suppresses the shell's message about the killed process.
    { kill -9 $server; wait $server; } 2>/dev/null
"#;

impl Engine {
    pub const ALL: [Self; 4] = [Self::Redis, Self::Redis6, Self::Redis8, Self::Valkey];

    /// Returns the path of the program.
    ///
    /// # Panics
    ///
    /// If the program is missing. A test that needs it must not pass without it. The message says how to get it.
    fn program(self) -> PathBuf {
        let (variable, name) = match self {
            Self::Redis => ("TEST_REDIS_SERVER", "redis-server"),
            Self::Redis6 => ("TEST_REDIS6_SERVER", "redis6-server"),
            Self::Redis8 => ("TEST_REDIS8_SERVER", "redis8-server"),
            Self::Valkey => ("TEST_VALKEY_SERVER", "valkey-server"),
        };
        let configured = std::env::var_os(variable).map(PathBuf::from);
        let installed = || {
            // Several packages of the workspace use this file.
            let package = Path::new(env!("CARGO_MANIFEST_DIR"));
            let local = package.ancestors().map(|folder| folder.join("target/engines"));
            let path = std::env::var_os("PATH").unwrap_or_default();
            local
                .chain(std::env::split_paths(&path))
                .map(|folder| folder.join(name))
                .find(|program| program.is_file())
        };
        configured.or_else(installed).unwrap_or_else(|| {
            panic!("missing {name}: run tests/run, which gets it, or set {variable} to its path")
        })
    }
}

impl Server {
    /// Starts a server with the default options.
    pub fn start(engine: Engine) -> Self {
        Self::with_options(engine, &[])
    }

    /// Starts a server with further options, as on its command line.
    pub fn with_options(engine: Engine, options: &[&str]) -> Self {
        Self::launched_by(&[], engine, options)
    }

    /// Starts a server by means of this command, whose last argument becomes the server's program. The command must replace itself by
    /// the server (`exec`), as valgrind does.
    pub fn launched_by(launcher: &[&str], engine: Engine, options: &[&str]) -> Self {
        let kind = ["--save", "", "--appendonly", "no"].map(str::to_owned).into();
        Self::of_kind(launcher, engine, kind, options, None)
    }

    /// Starts a Sentinel with this configuration.
    pub fn sentinel(engine: Engine, configuration: &str) -> Self {
        let kind = vec!["sentinel.conf".into(), "--sentinel".into()];
        Self::of_kind(&[], engine, kind, &[], Some(configuration))
    }

    fn of_kind(
        launcher: &[&str],
        engine: Engine,
        kind: Vec<String>,
        options: &[&str],
        configuration: Option<&str>,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a folder for the server");
        if let Some(configuration) = configuration {
            fs::write(directory.path().join("sentinel.conf"), configuration).unwrap();
        }
        let [launcher, options] =
            [launcher, options].map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        let mut server = Self { engine, launcher, kind, options, port: 0, directory, running: None };
        // Another process may take the port before the server does.
        let is_of_cluster = server.options.iter().any(|option| option == "--cluster-enabled");
        for _ in 0..50 {
            server.port = if is_of_cluster { free_cluster_port() } else { free_port() };
            if server.try_start() {
                return server;
            }
        }
        panic!("{:?} does not start: {}", engine, server.log());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns a plain connection, independent of the backend under test.
    pub fn connection(&self) -> Connection {
        let client = Client::open(self.url()).unwrap();
        let connection = client.get_connection().expect("the server of this test answers");
        // No test waits forever, even if the server hangs.
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        connection
    }

    /// Ends the server at once, as a crash would.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Restarts the server on the same port, without the data that was only in its memory.
    pub fn restart(&mut self) {
        self.kill();
        let start = Instant::now();
        while !self.try_start() {
            assert!(start.elapsed() < Duration::from_secs(10), "the server does not restart: {}", self.log());
        }
    }

    /// Adds options for the next start.
    pub fn add_options(&mut self, options: &[&str]) {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
    }

    /// Sends the server a signal, such as `libc::SIGSTOP`.
    pub fn signal(&self, signal: i32) {
        let process = self.running.as_ref().expect("a running server").process;
        // The kill of the shell: a small system has no kill program.
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {process}")]).status().unwrap();
        assert!(sent.success());
    }

    fn try_start(&mut self) -> bool {
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG])
            .args(&self.launcher)
            .arg(self.engine.program())
            .args(&self.kind)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(&self.options)
            .current_dir(self.directory.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut running = Running { watchdog, process: 0 };
        let start = Instant::now();
        // A tool makes the start slower.
        let at_most = Duration::from_secs(if self.launcher.is_empty() { 5 } else { 30 });
        while start.elapsed() < at_most {
            if let Some(process) = self.responding_process() {
                if !self.is_child(process, &running) {
                    return false;
                }
                running.process = process;
                self.running = Some(running);
                return true;
            }
            if self.log().contains("Address already in use") {
                return false;
            }
            sleep(Duration::from_millis(5));
        }
        false
    }

    /// Returns the process id of the server that answers on the port.
    fn responding_process(&self) -> Option<u32> {
        let client = Client::open(self.url()).ok()?;
        let mut connection = client.get_connection_with_timeout(Duration::from_millis(200)).ok()?;
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection).ok()?;
        info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
    }

    /// Returns whether a process is the child of this shell, and not another server on the port.
    fn is_child(&self, process: u32, running: &Running) -> bool {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        parent.and_then(|parent| parent.trim().parse().ok()) == Some(running.watchdog.id())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// The ports that were returned before. A port is returned only once: the replica of a server that has ended still connects to its port, and
/// would replace its data with those of another server there.
static RETURNED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn is_new(port: u16) -> bool {
    RETURNED.lock().unwrap_or_else(PoisonError::into_inner).insert(port)
}

/// Returns a free port.
pub fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().unwrap().port();
        if is_new(port) {
            return port;
        }
    }
}

/// Returns a free port whose cluster bus port, 10,000 above it, is free as well. Both are below the ephemeral ports of the
/// operating system.
pub fn free_cluster_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let random = || 12_000 + (RandomState::new().build_hasher().finish() % 10_000) as u16;
    (0..1_000)
        .map(|_| random())
        .find(|port| is_free(*port) && is_free(*port + 10_000) && is_new(*port))
        .expect("two free ports")
}

mod tests {
    use super::*;

    fn is_alive(process: u32) -> bool {
        // A zombie has ended, but its parent has not collected its status yet.
        fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn every_engine_starts_answers_and_ends() {
        for engine in Engine::ALL {
            let server = Server::start(engine);
            let pong: String = redis::cmd("PING").query(&mut server.connection()).unwrap();
            assert_eq!(pong, "PONG");
            let process = server.running.as_ref().unwrap().process;
            assert!(is_alive(process));
            drop(server);
            assert!(!is_alive(process), "{engine:?} still runs");
        }
    }

    #[test]
    fn restarted_server_keeps_its_port_and_no_data() {
        let mut server = Server::start(Engine::Redis);
        let (port, process) = (server.port(), server.running.as_ref().unwrap().process);
        redis::cmd("SET").arg(&["a", "b"]).exec(&mut server.connection()).unwrap();
        server.restart();
        assert_eq!(server.port(), port);
        assert_ne!(server.running.as_ref().unwrap().process, process);
        let value: Option<String> = redis::cmd("GET").arg("a").query(&mut server.connection()).unwrap();
        assert_eq!(value, None);
    }

    #[test]
    fn stopped_server_can_be_killed() {
        let server = Server::start(Engine::Redis);
        let process = server.running.as_ref().unwrap().process;
        server.signal(libc::SIGSTOP);
        drop(server);
        assert!(!is_alive(process));
    }
}
