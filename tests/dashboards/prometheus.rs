//! A Prometheus that a test starts on a free loopback port. It ends when the test ends, even if it is killed.

use std::{
    env, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tempfile::TempDir;

use crate::{expressions::path, support::server::free_port};

/// Kills Prometheus when its standard input closes.
const WATCHDOG: &str = r#"
    trap '' INT TERM HUP
    "$0" "$@" >>log 2>&1 &
    server=$!
    read -r _
    { kill -9 $server; wait $server; } 2>/dev/null
"#;

pub struct Prometheus {
    port: u16,
    watchdog: Child,
    directory: TempDir,
}

/// Returns the path of an installed program, or that in the variable.
pub fn program(name: &str, variable: &str) -> PathBuf {
    if let Some(path) = env::var_os(variable) {
        return path.into();
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut programs = env::split_paths(&folders).map(|folder| folder.join(name));
    programs.find(|program| program.is_file()).unwrap_or_else(|| {
        panic!("missing {name}: run tests/run, which installs it, or set {variable} to its path")
    })
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these jobs each second, and evaluates the rules of the crate.
    pub fn scraping(jobs: &[(&str, SocketAddr)]) -> Self {
        // Another process may take the port before Prometheus does.
        for _ in 0..10 {
            let prometheus = Self::launch(jobs);
            if prometheus.is_ready(jobs) {
                return prometheus;
            }
            let log = prometheus.log();
            assert!(log.contains("address already in use"), "Prometheus does not start: {log}");
        }
        panic!("no free port");
    }

    fn launch(jobs: &[(&str, SocketAddr)]) -> Self {
        let directory = tempfile::tempdir().expect("a folder for Prometheus");
        let rules = path("rules.yml").canonicalize().unwrap();
        let mut text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\nrule_files: [{:?}]\nscrape_configs:\n",
            rules.to_str().unwrap(),
        );
        for (job, address) in jobs {
            text += &format!("  - {{ job_name: {job}, static_configs: [{{ targets: [\"{address}\"] }}] }}\n");
        }
        fs::write(directory.path().join("prometheus.yml"), text).unwrap();
        let port = free_port();
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG])
            .arg(program("prometheus", "TEST_PROMETHEUS"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"])
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(directory.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        Self { port, watchdog, directory }
    }

    fn is_ready(&self, jobs: &[(&str, SocketAddr)]) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if self.log().contains("address already in use") {
                return false;
            }
            if self.get("/-/ready").is_ok_and(|(status, _)| status == 200) {
                // Another Prometheus on the port scrapes other services.
                let configuration = self.api("status/config").to_string();
                return jobs.iter().all(|(_, address)| configuration.contains(&address.to_string()));
            }
            sleep(Duration::from_millis(50));
        }
        false
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the status and the body of a page.
    fn get(&self, page: &str) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        // The answer to a client of HTTP/1.0 has no chunks.
        write!(stream, "GET {page} HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Ok((status, text.split_once("\r\n\r\n").unwrap_or_default().1.to_owned()))
    }

    /// Returns the data of a page of the HTTP API.
    pub fn api(&self, page: &str) -> Value {
        let (status, body) = self.get(&format!("/api/v1/{page}")).expect("Prometheus answers");
        assert_eq!(status, 200, "{page}: {body}");
        let mut answer: Value = serde_json::from_str(&body).unwrap();
        answer["data"].take()
    }

    /// Returns the samples of an expression at this moment.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        self.result("query", expression, "")
    }

    /// Returns the series of an expression between two instants, in seconds of the Unix epoch.
    pub fn range(&self, expression: &str, [begin, end]: [f64; 2], step: f64) -> Vec<Value> {
        self.result("query_range", expression, &format!("&start={begin}&end={end}&step={step}"))
    }

    fn result(&self, page: &str, expression: &str, arguments: &str) -> Vec<Value> {
        let expression = utf8_percent_encode(expression, NON_ALPHANUMERIC);
        let mut data = self.api(&format!("{page}?query={expression}{arguments}"));
        serde_json::from_value(data["result"].take()).unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}
