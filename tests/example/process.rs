//! An example as a child process, which ends with its test, even if the test panics.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::http::wire::{Answer, request};

/// A running example that accepts requests.
pub struct Example {
    process: Process,
    address: SocketAddr,
    stdout: BufReader<ChildStdout>,
}

/// A check that missed its deadline, which can happen on a busy machine.
///
/// Its charge may or may not stand. For its key, the test can then only assert that the service does not exceed the quota.
#[derive(Debug)]
pub struct Outage;

/// The exit status and the output of an example that has ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

struct Process {
    child: Child,
    /// Kills the child when the standard input of the watchdog closes.
    ///
    /// That happens at the latest when this process ends, even by a signal. The process id of the child is still its own
    /// then, because [`Process::wait`] ends the watchdog before it waits for the child.
    watchdog: Child,
}

impl Example {
    /// Starts `axum` on a port that the operating system picks.
    pub fn start(redis_url: Option<&str>) -> Self {
        Self::of("axum", redis_url)
    }

    /// Starts the example of this name on a port that the operating system picks.
    pub fn of(name: &str, redis_url: Option<&str>) -> Self {
        let redis = redis_url.map(|url| ("REDIS_URL", url));
        Self::with(name, redis.as_slice())
    }

    /// Starts the example of this name with these variables, on a port that the operating system picks.
    pub fn with(name: &str, variables: &[(&str, &str)]) -> Self {
        let variables = [("PORT", "0")].into_iter().chain(variables.iter().copied());
        let mut process = Process::spawn(name, &[], variables);
        let mut stdout = BufReader::new(process.child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok());
        let Some(address) = address else {
            panic!("the example has not started: {line:?} {:?}", process.ended());
        };
        Self { process, address, stdout }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// # Errors
    ///
    /// Returns [`Outage`] if the backend made no decision.
    pub async fn get(&self, path: &str, key: &str) -> Result<Answer, Outage> {
        let answer = request(self.address, "GET", path, &[("x-api-key", key)]).await;
        if answer.status == 503 { Err(Outage) } else { Ok(answer) }
    }

    /// Returns the status of a decision. Repeats the request after an outage.
    pub async fn decided_status(&self, path: &str, key: &str) -> u16 {
        for _ in 0..100 {
            if let Ok(answer) = self.get(path, key).await {
                return answer.status;
            }
        }
        panic!("every request had an outage");
    }

    /// Sends the example a signal, such as `TERM`, and waits for its end. Returns the output since the first line.
    pub fn stop(mut self, signal: &str) -> Ended {
        // This is the `kill` of the shell. A small system has no such program.
        let kill = format!("kill -s {signal} {}", self.process.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let mut ended = self.process.ended();
        self.stdout.read_to_string(&mut ended.stdout).unwrap();
        ended
    }
}

/// Runs `axum` with these variables until it ends.
pub fn run<V: AsRef<OsStr>>(variables: &[(&str, V)]) -> Ended {
    run_example("axum", variables)
}

/// Runs an example with these variables until it ends.
pub fn run_example<V: AsRef<OsStr>>(name: &str, variables: &[(&str, V)]) -> Ended {
    run_with(name, &[], variables)
}

/// Runs an example with these arguments and variables until it ends.
pub fn run_with<V: AsRef<OsStr>>(name: &str, arguments: &[&str], variables: &[(&str, V)]) -> Ended {
    Process::spawn(name, arguments, variables.iter().map(|(name, value)| (*name, value))).ended()
}

/// Runs an example without Redis until it ends.
pub fn run_to_end(name: &str) -> Ended {
    run_example(name, &[("PORT", "0")])
}

impl Process {
    fn spawn<'a, V: AsRef<OsStr>>(
        name: &str,
        arguments: &[&str],
        variables: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Self {
        let child = Command::new(program(name))
            .args(arguments)
            .env_remove("PORT")
            .env_remove("REDIS_URL")
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the example");
        let watchdog = Command::new("sh")
            .args(["-c", "read -r _; kill -9 $0"])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        Self { child, watchdog }
    }

    /// Waits until the process has ended.
    fn ended(&mut self) -> Ended {
        let start = Instant::now();
        while is_running(self.child.id()) {
            assert!(start.elapsed() < Duration::from_secs(30), "the example does not end");
            sleep(Duration::from_millis(2));
        }
        let status = self.wait();
        let (mut stdout, mut stderr) = (String::new(), String::new());
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut stdout).unwrap();
        }
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut stderr).unwrap();
        }
        Ended { status, stdout, stderr }
    }

    /// Ends the watchdog, which kills the child if it still runs, and waits for the child.
    fn wait(&mut self) -> ExitStatus {
        drop(self.watchdog.stdin.take());
        self.watchdog.wait().unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Returns whether a child process runs. An ended child is a zombie, and keeps its process id, until its parent waits for it.
fn is_running(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Returns the program of an example.
///
/// Cargo builds the examples only if it tests the whole workspace. Otherwise this function builds the example, in the same folder,
/// with the same profile and the features of the workspace.
pub fn program(name: &str) -> PathBuf {
    static PROGRAMS: Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>> = Mutex::new(BTreeMap::new());
    // A test that starts a program again does not wait until another test has built another one.
    let program =
        PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default().clone();
    program.get_or_init(|| build(name)).clone()
}

fn build(name: &str) -> PathBuf {
    // <target>/<profile>/deps/<test>-<hash>, and <target>/tmp.
    let exe = std::env::current_exe().unwrap();
    let folder = exe.ancestors().nth(2).unwrap().file_name().unwrap();
    let profile = if folder == "debug" { OsStr::new("test") } else { folder };
    let mut cargo = Command::new(env!("CARGO"));
    // `cargo test` sets these variables. A build script that reads one of them, as that of `ring` does, would run again.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    let built = cargo
        .args([
            "build",
            "--quiet",
            "--workspace",
            "--example",
            name,
            "--all-features",
            "--message-format=json",
        ])
        .arg("--profile")
        .arg(profile)
        .arg("--target-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap())
        // Several packages of the workspace use this file.
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(built.status.success(), "the example is not built");
    let messages = String::from_utf8(built.stdout).unwrap();
    let messages = messages.lines().map(|line| serde_json::from_str(line).unwrap());
    let of_example = |message: &serde_json::Value| {
        message["target"]["kind"] == serde_json::json!(["example"]) && message["executable"].is_string()
    };
    let message = messages.into_iter().find(of_example).expect("the example's program");
    message["executable"].as_str().unwrap().into()
}

#[test]
fn dropped_example_ends_process_and_watchdog() {
    let example = Example::start(None);
    let (process, watchdog) = (example.process.child.id(), example.process.watchdog.id());
    assert!(is_running(process) && is_running(watchdog));
    drop(example);
    assert!(!is_running(process) && !is_running(watchdog));
}
