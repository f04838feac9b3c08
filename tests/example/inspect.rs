//! The example `inspect`, beside the service whose usage it reads.

use std::time::{Duration, Instant};

use redis::cmd;
use tokio::time::sleep;

use super::process::{Ended, Example, run_with};
use crate::support::server::{Engine, Server};

const KIND: &str = "header:x-api-key";
/// The window of the policy `burst` of the examples.
const BURST_WINDOW: Duration = Duration::from_secs(10);

fn inspect(server: &Server, task: &[&str]) -> String {
    let ended = run_with("inspect", task, &[("REDIS_URL", server.url())]);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    ended.stdout
}

/// Returns the line on stderr.
fn error_line(ended: &Ended) -> &str {
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(2), ""), "{ended:?}");
    ended.stderr.strip_suffix('\n').unwrap()
}

#[tokio::test]
async fn inspect_reports_and_resets_usage_of_key() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let service = Example::start(Some(&server.url()));
        let untouched = inspect(&server, &["peek", KIND, "alice", "0"]);
        assert!(untouched.contains("\nburst: 10 of 10 left\n"), "{engine:?}: {untouched}");
        let mut attempt = 0;
        let (key, reports) = loop {
            let key = format!("alice-{attempt}");
            if let Some(reports) = reports_of_used_key(engine, &server, &service, &key).await {
                break (key, reports);
            }
            attempt += 1;
            assert!(attempt < 20, "{engine:?}: the machine is too busy for every attempt");
        };
        let stored = reports.assert_usage(engine);
        resets_usage(engine, &server, &service, &key, &stored).await;
    }
}

/// What the example prints of a key that has used its burst.
struct Reports {
    usage: String,
    again: String,
    other_kind: String,
    never: String,
    stored: Vec<String>,
}

/// Uses up the burst of a key, and returns its reports. Returns `None` after an outage, because a charge may stand, and if the window
/// of the burst may have ended meanwhile.
async fn reports_of_used_key(
    engine: Engine,
    server: &Server,
    service: &Example,
    key: &str,
) -> Option<Reports> {
    let start = Instant::now();
    for status in [200, 200, 429] {
        let answer = service.get("/search", key).await.ok()?;
        assert_eq!(answer.status, status, "{engine:?}: a search of {key}: {answer:?}");
        if start.elapsed() >= BURST_WINDOW {
            return None;
        }
    }
    let reports = Reports {
        usage: inspect(server, &["peek", KIND, key]),
        again: inspect(server, &["peek", KIND, key]),
        other_kind: inspect(server, &["peek", "user", key]),
        never: inspect(server, &["peek", KIND, key, "11"]),
        stored: stored_keys(server),
    };
    (start.elapsed() < BURST_WINDOW).then_some(reports)
}

impl Reports {
    /// Returns the names of the keys that the report states.
    fn assert_usage(&self, engine: Engine) -> [String; 2] {
        let Self { usage, again, other_kind, never, stored } = self;
        let lines: Vec<&str> = usage.lines().collect();
        assert!(lines[0].starts_with("a request of cost 1 is denied for "), "{engine:?}: {usage}");
        assert!(lines[1].starts_with("burst: 0 of 10 left, more in "), "{engine:?}: {usage}");
        assert!(lines[1].ends_with("; this policy denies it"), "{engine:?}: {usage}");
        assert!(lines[3].starts_with("sustained: 20 of 30 left, more in "), "{engine:?}: {usage}");
        assert!(lines[3].ends_with(" s") && lines.len() == 5, "{engine:?}: {usage}");
        assert!(
            again.contains("\nsustained: 20 of 30 left, "),
            "{engine:?}: a peek charges nothing: {again}"
        );
        assert!(
            other_kind.starts_with("a request of cost 1 is admitted, and leaves:\nburst: 9 of 10 left"),
            "{engine:?}: another kind of key has its own usage: {other_kind}"
        );
        assert!(never.starts_with("a request of cost 11 is never admitted"), "{engine:?}: {never}");
        let names = [lines[2].trim(), lines[4].trim()].map(str::to_owned);
        for name in &names {
            assert!(
                stored.contains(name),
                "{engine:?}: {name} is none of the keys of the server: {stored:?}"
            );
        }
        names
    }
}

async fn resets_usage(engine: Engine, server: &Server, service: &Example, key: &str, names: &[String; 2]) {
    let reset = inspect(server, &["reset", KIND, key]);
    assert_eq!(reset, format!("reset: {}\nreset: {}\n", names[0], names[1]), "{engine:?}");
    let left = stored_keys(server);
    assert!(
        names.iter().all(|name| !left.contains(name)),
        "{engine:?}: the reset keys are deleted: {left:?}"
    );
    let addresses = left.iter().filter(|name| name.ends_with("per-address"));
    assert_eq!(addresses.count(), 1, "{engine:?}: the address keeps its usage: {left:?}");
    // The deny cache of the service may hold an earlier denial for a second.
    let start = Instant::now();
    while service.decided_status("/search", key).await != 200 {
        assert!(start.elapsed() < Duration::from_secs(5), "{engine:?}: the service still denies");
        sleep(Duration::from_millis(50)).await;
    }
}

fn stored_keys(server: &Server) -> Vec<String> {
    cmd("KEYS").arg("*").query(&mut server.connection()).unwrap()
}

#[test]
fn inspect_reports_error_in_one_line() {
    let none: [(&str, &str); 0] = [];
    let (kind, key) = (KIND, "alice");
    for arguments in [&[][..], &["peek"], &["peek", kind], &["forget", kind, key], &["reset", kind, key, "1"]]
    {
        let ended = run_with("inspect", arguments, &none);
        assert!(error_line(&ended).starts_with("error: usage: inspect peek <kind> <key>"), "{ended:?}");
    }
    let ended = run_with("inspect", &["peek", kind, key, "-1"], &none);
    assert_eq!(error_line(&ended), r#"error: cost "-1": it must be 0 to 4294967295"#);
    let ended = run_with("inspect", &["peek", "peer-ip", "localhost"], &none);
    assert_eq!(error_line(&ended), r#"error: peer-ip "localhost": it must be an IP address"#);
    let ended = run_with("inspect", &["peek", kind, key], &none);
    assert_eq!(error_line(&ended), "error: REDIS_URL: the variable is not set");
    let ended = run_with("inspect", &["peek", kind, key], &[("REDIS_URL", "http://:s3cret@127.0.0.1/")]);
    assert!(
        error_line(&ended).starts_with("error: REDIS_URL: ") && !ended.stderr.contains("s3cret"),
        "{ended:?}"
    );
}
