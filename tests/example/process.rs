//! An example as a process, which ends with the test that has started it, however that ends.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::http::wire::{Answer, request};

/// The example, ready to be asked.
pub struct Example {
    process: Process,
    address: SocketAddr,
    // What it prints later needs somebody who would read it.
    _stdout: BufReader<ChildStdout>,
}

/// A check has missed its deadline, as it may on a machine that is busy with other things. Its charge may stand or not, so
/// of that key nothing is known any more but that it does not get too much.
#[derive(Debug)]
pub struct Outage;

/// What a run that was to end by itself has left.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

struct Process {
    child: Child,
    /// Kills the child when its standard input closes, which happens at the latest when this process ends, even if that is
    /// killed. The child's number cannot be another one's by then: whoever waits for the child ends the watchdog first.
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
        let mut process = Process::spawn(name, &[], [("PORT", "0")].into_iter().chain(redis));
        let mut stdout = BufReader::new(process.child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").and_then(|it| it.parse().ok());
        let Some(address) = address else {
            panic!("it has not started: {line:?} {:?}", process.ended());
        };
        Self { process, address, _stdout: stdout }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// # Errors
    ///
    /// An [`Outage`] if nothing was decided.
    pub async fn get(&self, path: &str, key: &str) -> Result<Answer, Outage> {
        let answer = request(self.address, "GET", path, &[("x-api-key", key)]).await;
        if answer.status == 503 { Err(Outage) } else { Ok(answer) }
    }

    /// The status of a decision: asks again while there is none.
    pub async fn decided(&self, path: &str, key: &str) -> u16 {
        for _ in 0..100 {
            if let Ok(answer) = self.get(path, key).await {
                return answer.status;
            }
        }
        panic!("there is never a decision");
    }

    /// Sends it a signal, such as `TERM`, and waits for its end.
    pub fn stop(mut self, signal: &str) -> Ended {
        // The shell's own: a small system has no other.
        let kill = format!("kill -s {signal} {}", self.process.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        self.process.ended()
    }
}

/// Runs `axum` with these variables, which are to make it end by itself.
pub fn run<V: AsRef<OsStr>>(variables: &[(&str, V)]) -> Ended {
    run_example("axum", variables)
}

/// Runs another example, which ends by itself.
pub fn run_example<V: AsRef<OsStr>>(name: &str, variables: &[(&str, V)]) -> Ended {
    run_with(name, &[], variables)
}

/// The same, with arguments.
pub fn run_with<V: AsRef<OsStr>>(name: &str, arguments: &[&str], variables: &[(&str, V)]) -> Ended {
    Process::spawn(name, arguments, variables.iter().map(|(name, value)| (*name, value))).ended()
}

/// Runs an example that needs nothing and ends by itself.
pub fn run_to_its_end(name: &str) -> Ended {
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

    /// Waits until it has ended, which it is about to.
    fn ended(&mut self) -> Ended {
        let start = Instant::now();
        while is_running(self.child.id()) {
            assert!(start.elapsed() < Duration::from_secs(30), "it does not end");
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

    /// Kills it if it still runs, by way of the watchdog.
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

/// Whether a child of ours still runs. One that has ended and was not waited for is a zombie, and keeps its number.
fn is_running(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The example's program. Cargo has built it along with the tests if it was asked for all of them; if not, it is built
/// here, in the same folder and with the same profile.
fn program(name: &str) -> PathBuf {
    static PROGRAMS: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let programs = programs.get_or_insert_default();
    programs.entry(name.to_owned()).or_insert_with(|| build(name)).clone()
}

fn build(name: &str) -> PathBuf {
    // <target>/<profile>/deps/tests-<hash>, and <target>/tmp.
    let exe = std::env::current_exe().unwrap();
    let folder = exe.ancestors().nth(2).unwrap().file_name().unwrap();
    let profile = if folder == "debug" { OsStr::new("dev") } else { folder };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--example", name, "--all-features", "--message-format=json"])
        .arg("--profile")
        .arg(profile)
        .arg("--target-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap())
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
fn an_example_ends_with_its_test() {
    let example = Example::start(None);
    let (process, watchdog) = (example.process.child.id(), example.process.watchdog.id());
    assert!(is_running(process) && is_running(watchdog));
    drop(example);
    assert!(!is_running(process) && !is_running(watchdog));
}
