//! The example `inspect`, beside the service whose usage it reads.

use std::time::{Duration, Instant};

use redis::cmd;
use tokio::time::sleep;

use super::process::{Ended, Example, run_with};
use crate::support::server::{Engine, Server};

const KEY: [&str; 2] = ["header:x-api-key", "alice"];

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
        let [kind, key] = KEY;
        let untouched = inspect(&server, &["peek", kind, key, "0"]);
        assert!(untouched.contains("\nburst: 10 of 10 left\n"), "{engine:?}: {untouched}");
        assert_eq!(service.decided_status("/search", key).await, 200);
        assert_eq!(service.decided_status("/search", key).await, 200);
        assert_eq!(service.decided_status("/search", key).await, 429);

        let report = inspect(&server, &["peek", kind, key]);
        let lines: Vec<&str> = report.lines().collect();
        assert!(lines[0].starts_with("a request of cost 1 is denied for "), "{engine:?}: {report}");
        assert!(lines[1].starts_with("burst: 0 of 10 left, more in "), "{report}");
        assert!(lines[1].ends_with("; this policy denies it"), "{report}");
        assert!(lines[3].starts_with("sustained: 20 of 30 left, more in "), "{report}");
        assert!(lines[3].ends_with(" s") && lines.len() == 5, "{report}");
        // The report names exactly the stored keys.
        let mut connection = server.connection();
        let mut stored: Vec<String> = cmd("KEYS").arg("*").query(&mut connection).unwrap();
        stored.retain(|name| !name.ends_with("per-address"));
        stored.sort();
        assert_eq!([lines[2].trim(), lines[4].trim()], *stored, "{engine:?}");

        // A peek charges nothing, and another key has its own usage.
        assert_eq!(inspect(&server, &["peek", kind, key]).lines().nth(3).unwrap()[..20], lines[3][..20]);
        let other = inspect(&server, &["peek", "peer-ip", key]);
        assert!(
            other.starts_with("a request of cost 1 is admitted, and leaves:\nburst: 9 of 10 left"),
            "{other}"
        );
        let never = inspect(&server, &["peek", kind, key, "11"]);
        assert!(never.starts_with("a request of cost 11 is never admitted"), "{never}");

        let reset = inspect(&server, &["reset", kind, key]);
        assert_eq!(reset, format!("reset: {}\nreset: {}\n", stored[0], stored[1]));
        // The address keeps its usage.
        let left: Vec<String> = cmd("KEYS").arg("*").query(&mut connection).unwrap();
        assert!(left.len() == 1 && left[0].ends_with("per-address"), "{engine:?}: {left:?}");
        // The deny cache of the service may hold an earlier denial for a second.
        let start = Instant::now();
        while service.decided_status("/search", key).await != 200 {
            assert!(start.elapsed() < Duration::from_secs(5), "{engine:?}: the service still denies");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[test]
fn inspect_reports_error_in_one_line() {
    let none: [(&str, &str); 0] = [];
    let [kind, key] = KEY;
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
