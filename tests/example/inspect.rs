//! The operator's example, beside the service that it looks into.

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

/// The line on stderr.
fn complaint(ended: &Ended) -> &str {
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(2), ""), "{ended:?}");
    ended.stderr.strip_suffix('\n').unwrap()
}

#[tokio::test]
async fn it_tells_why_a_key_is_limited_where_that_is_stored_and_forgets_it() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let service = Example::start(Some(&server.url()));
        let [kind, key] = KEY;
        let untouched = inspect(&server, &["peek", kind, key, "0"]);
        assert!(untouched.contains("\nburst: 10 of 10 left\n"), "{engine:?}: {untouched}");
        assert_eq!(service.decided("/search", key).await, 200);
        assert_eq!(service.decided("/search", key).await, 200);
        assert_eq!(service.decided("/search", key).await, 429);

        let told = inspect(&server, &["peek", kind, key]);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[0].starts_with("a request of cost 1 is refused for "), "{engine:?}: {told}");
        assert!(lines[1].starts_with("burst: 0 of 10 left, more in "), "{told}");
        assert!(lines[1].ends_with("; this one refuses"), "{told}");
        assert!(lines[3].starts_with("sustained: 20 of 30 left, more in "), "{told}");
        assert!(lines[3].ends_with(" s") && lines.len() == 5, "{told}");
        // What it names is what there is.
        let mut connection = server.connection();
        let mut stored: Vec<String> = cmd("KEYS").arg("*").query(&mut connection).unwrap();
        stored.retain(|name| !name.contains(":per-address:"));
        stored.sort();
        assert_eq!([lines[2].trim(), lines[4].trim()], *stored, "{engine:?}");

        // Looking charges nothing, and another key is another key.
        assert_eq!(inspect(&server, &["peek", kind, key]).lines().nth(3).unwrap()[..20], lines[3][..20]);
        let other = inspect(&server, &["peek", "peer-ip", key]);
        assert!(
            other.starts_with("a request of cost 1 is admitted, and leaves:\nburst: 9 of 10 left"),
            "{other}"
        );
        let never = inspect(&server, &["peek", kind, key, "11"]);
        assert!(never.starts_with("a request of cost 11 is never admitted"), "{never}");

        let forgotten = inspect(&server, &["reset", kind, key]);
        assert_eq!(forgotten, format!("forgotten: {}\nforgotten: {}\n", stored[0], stored[1]));
        assert_eq!(cmd("DBSIZE").query::<u32>(&mut connection).unwrap(), 0);
        // The service may repeat for a second what was denied before.
        let start = Instant::now();
        while service.decided("/search", key).await != 200 {
            assert!(start.elapsed() < Duration::from_secs(5), "{engine:?}: it is still limited");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let none: [(&str, &str); 0] = [];
    let [kind, key] = KEY;
    for arguments in [&[][..], &["peek"], &["peek", kind], &["forget", kind, key], &["reset", kind, key, "1"]]
    {
        let ended = run_with("inspect", arguments, &none);
        assert!(complaint(&ended).starts_with("error: usage: inspect peek <kind> <key>"), "{ended:?}");
    }
    let ended = run_with("inspect", &["peek", kind, key, "-1"], &none);
    assert_eq!(complaint(&ended), r#"error: cost "-1": it must be 0 to 4294967295"#);
    let ended = run_with("inspect", &["peek", kind, key], &none);
    assert_eq!(complaint(&ended), "error: REDIS_URL: there is none to look at");
    let ended = run_with("inspect", &["peek", kind, key], &[("REDIS_URL", "http://:s3cret@127.0.0.1/")]);
    assert!(
        complaint(&ended).starts_with("error: REDIS_URL: ") && !ended.stderr.contains("s3cret"),
        "{ended:?}"
    );
}
