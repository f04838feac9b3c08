//! Servers of our own: started on free loopback ports, and ended, exactly these, when a test ends, however it ends.

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::{BuildHasher, Hasher},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use redis::{Client, Connection};
use tempfile::TempDir;

/// A program that speaks the Redis protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// 7.0, as Debian has it.
    Redis,
    /// 6.2.
    Redis6,
    Valkey,
}

/// A server of our own.
pub struct Server {
    engine: Engine,
    /// What makes it the kind of server it is, before its port.
    kind: Vec<String>,
    options: Vec<String>,
    port: u16,
    directory: TempDir,
    running: Option<Running>,
}

/// The shell that watches over the server: it kills it when its standard input closes, which happens at the latest when
/// this process ends, even if that is killed.
struct Running {
    watchdog: Child,
    process: u32,
}

const WATCHDOG: &str = r#"
    # An interrupt ends the tests, and by that this.
    trap '' INT TERM HUP
    "$0" "$@" >>log 2>&1 &
    server=$!
    read -r _
    # Without the shell's word that it was killed.
    { kill -9 $server; wait $server; } 2>/dev/null
"#;

impl Engine {
    pub const ALL: [Self; 3] = [Self::Redis, Self::Redis6, Self::Valkey];

    /// # Panics
    ///
    /// If it is not there, with how to get it: a test that needs it must not pass without.
    fn program(self) -> PathBuf {
        let (variable, name) = match self {
            Self::Redis => ("TEST_REDIS_SERVER", "redis-server"),
            Self::Redis6 => ("TEST_REDIS6_SERVER", "redis6-server"),
            Self::Valkey => ("TEST_VALKEY_SERVER", "valkey-server"),
        };
        let named = std::env::var_os(variable).map(PathBuf::from);
        let installed = || {
            let here = [PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/engines"))];
            let path = std::env::var_os("PATH").unwrap_or_default();
            here.into_iter()
                .chain(std::env::split_paths(&path))
                .map(|folder| folder.join(name))
                .find(|it| it.is_file())
        };
        named.or_else(installed).unwrap_or_else(|| {
            panic!("no {name}: run tests/run, which gets it, or name one in the variable {variable}")
        })
    }
}

impl Server {
    pub fn start(engine: Engine) -> Self {
        Self::with_options(engine, &[])
    }

    /// With further options of the server's configuration, as on its command line.
    pub fn with_options(engine: Engine, options: &[&str]) -> Self {
        let kind = ["--save", "", "--appendonly", "no"].map(str::to_owned).into();
        Self::of_kind(engine, kind, options, None)
    }

    /// A Sentinel with this configuration.
    pub fn sentinel(engine: Engine, configuration: &str) -> Self {
        Self::of_kind(engine, vec!["sentinel.conf".into(), "--sentinel".into()], &[], Some(configuration))
    }

    fn of_kind(engine: Engine, kind: Vec<String>, options: &[&str], configuration: Option<&str>) -> Self {
        let directory = tempfile::tempdir().expect("a folder for the server");
        if let Some(configuration) = configuration {
            fs::write(directory.path().join("sentinel.conf"), configuration).unwrap();
        }
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self { engine, kind, options, port: 0, directory, running: None };
        // Somebody else may take the port before the server does.
        let is_of_cluster = server.options.iter().any(|option| option == "--cluster-enabled");
        for _ in 0..10 {
            server.port = if is_of_cluster { free_port_of_two() } else { free_port() };
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

    /// A plain connection, for looking at the server from outside.
    pub fn connection(&self) -> Connection {
        let client = Client::open(self.url()).unwrap();
        let connection = client.get_connection().expect("the server of this test answers");
        // No test waits for ever, whatever becomes of the server.
        connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        connection
    }

    /// Ends the server at once, as a crash would.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Starts the server again, at the same port. What was only in its memory is gone.
    pub fn restart(&mut self) {
        self.kill();
        let start = Instant::now();
        while !self.try_start() {
            assert!(start.elapsed() < Duration::from_secs(10), "it does not start again: {}", self.log());
        }
    }

    /// Further options for its next start.
    pub fn add_options(&mut self, options: &[&str]) {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
    }

    /// Sends the server a signal, such as `libc::SIGSTOP`.
    pub fn signal(&self, signal: i32) {
        let process = self.running.as_ref().expect("a running server").process;
        // The shell's own: a small system has no other.
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {process}")]).status().unwrap();
        assert!(sent.success());
    }

    fn try_start(&mut self) -> bool {
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG])
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
        while start.elapsed() < Duration::from_secs(5) {
            if let Some(process) = self.process_that_answers() {
                if !self.is_ours(process, &running) {
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

    fn process_that_answers(&self) -> Option<u32> {
        let client = Client::open(self.url()).ok()?;
        let mut connection = client.get_connection_with_timeout(Duration::from_millis(200)).ok()?;
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection).ok()?;
        info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
    }

    /// Whether a process is the child of our shell, and not a server that was there before.
    fn is_ours(&self, process: u32, running: &Running) -> bool {
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

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().unwrap().port()
}

/// A port such that the one 10,000 above it is free, too: there the nodes of a cluster speak with each other. Both are
/// below those that the operating system gives to whoever does not mind.
fn free_port_of_two() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let random = || 12_000 + (RandomState::new().build_hasher().finish() % 10_000) as u16;
    (0..1_000)
        .map(|_| random())
        .find(|port| is_free(*port) && is_free(*port + 10_000))
        .expect("two free ports")
}

mod tests {
    use super::*;

    fn is_alive(process: u32) -> bool {
        // A zombie has ended; nobody has asked how yet.
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
    fn a_restarted_server_has_its_port_and_nothing_else() {
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
    fn a_stopped_server_can_be_ended() {
        let server = Server::start(Engine::Redis);
        let process = server.running.as_ref().unwrap().process;
        server.signal(libc::SIGSTOP);
        drop(server);
        assert!(!is_alive(process));
    }
}
