//! The example `inspect`, beside the service whose usage it reads.

use std::time::{Duration, Instant};

use redis::cmd;
use tokio::time::sleep;

use super::process::{Ended, Example, Outage, run_with};
use crate::support::server::{Engine, Server};

const KIND: &str = "header:x-api-key";

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
        // The charge of a request that had an outage may stand, so its key is of no use to this test.
        let mut attempt = 0;
        let key = loop {
            let key = format!("alice-{attempt}");
            match use_up_quota(engine, &service, &key).await {
                Ok(()) => break key,
                Err(Outage) => attempt += 1,
            }
            assert!(attempt < 20, "{engine:?}: every attempt had an outage");
        };
        let stored = reports_usage(engine, &server, &key);
        resets_usage(engine, &server, &service, &key, &stored).await;
    }
}

/// Sends two searches, which use up the quota of ten units, and one that is denied.
async fn use_up_quota(engine: Engine, service: &Example, key: &str) -> Result<(), Outage> {
    for status in [200, 200, 429] {
        let answer = service.get("/search", key).await?;
        assert_eq!(answer.status, status, "{engine:?}: a search of this key: {answer:?}");
    }
    Ok(())
}

/// Returns the names of the keys that the report states.
fn reports_usage(engine: Engine, server: &Server, key: &str) -> [String; 2] {
    let report = inspect(server, &["peek", KIND, key]);
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("a request of cost 1 is denied for "), "{engine:?}: {report}");
    assert!(lines[1].starts_with("burst: 0 of 10 left, more in "), "{engine:?}: {report}");
    assert!(lines[1].ends_with("; this policy denies it"), "{engine:?}: {report}");
    assert!(lines[3].starts_with("sustained: 20 of 30 left, more in "), "{engine:?}: {report}");
    assert!(lines[3].ends_with(" s") && lines.len() == 5, "{engine:?}: {report}");
    let names = [lines[2].trim(), lines[4].trim()].map(str::to_owned);
    for name in &names {
        assert!(is_stored(server, name), "{engine:?}: {name} is a key of the server");
    }

    // A peek charges nothing, and another key has its own usage.
    let again = inspect(server, &["peek", KIND, key]);
    assert!(again.contains("\nsustained: 20 of 30 left, "), "{engine:?}: a peek charges nothing: {again}");
    let other = inspect(server, &["peek", "peer-ip", key]);
    assert!(
        other.starts_with("a request of cost 1 is admitted, and leaves:\nburst: 9 of 10 left"),
        "{engine:?}: another kind of key: {other}"
    );
    let never = inspect(server, &["peek", KIND, key, "11"]);
    assert!(never.starts_with("a request of cost 11 is never admitted"), "{engine:?}: {never}");
    names
}

async fn resets_usage(engine: Engine, server: &Server, service: &Example, key: &str, names: &[String; 2]) {
    let reset = inspect(server, &["reset", KIND, key]);
    assert_eq!(reset, format!("reset: {}\nreset: {}\n", names[0], names[1]), "{engine:?}");
    assert!(names.iter().all(|name| !is_stored(server, name)), "{engine:?}: the keys are deleted");
    let mut connection = server.connection();
    let left: Vec<String> = cmd("KEYS").arg("*per-address").query(&mut connection).unwrap();
    assert_eq!(left.len(), 1, "{engine:?}: the address keeps its usage: {left:?}");
    // The deny cache of the service may hold an earlier denial for a second.
    let start = Instant::now();
    while service.decided_status("/search", key).await != 200 {
        assert!(start.elapsed() < Duration::from_secs(5), "{engine:?}: the service still denies");
        sleep(Duration::from_millis(50)).await;
    }
}

fn is_stored(server: &Server, name: &str) -> bool {
    cmd("EXISTS").arg(name).query(&mut server.connection()).unwrap()
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
    let ended = run_with("inspect", &["peek", kind, key], &none);
    assert_eq!(error_line(&ended), "error: REDIS_URL: the variable is not set");
    let ended = run_with("inspect", &["peek", kind, key], &[("REDIS_URL", "http://:s3cret@127.0.0.1/")]);
    assert!(
        error_line(&ended).starts_with("error: REDIS_URL: ") && !ended.stderr.contains("s3cret"),
        "{ended:?}"
    );
}
