//! The example `boundary`, in memory only. On Redis it waits up to twelve seconds for the edge of a window.

use super::process::{Ended, run_example};
use crate::{
    docs::expected_output,
    support::server::{Engine, Server},
};

fn boundary(variables: &[(&str, &str)]) -> Ended {
    run_example("boundary", variables)
}

#[test]
fn only_fixed_window_admits_bursts_on_both_sides_of_edge() {
    let ended = boundary(&[]);
    assert_eq!((ended.status.code(), &*ended.stderr), (Some(0), ""), "{ended:?}");
    for (algorithm, before, after, most) in [
        ("sliding log", 50, 0, 50),
        ("sliding buckets", 50, 0, 50),
        ("sliding counter", 50, 0, 50),
        ("fixed window", 50, 50, 100),
    ] {
        let mut lines = ended.stdout.lines();
        let line = lines.find(|line| line.starts_with(algorithm)).expect(algorithm);
        // The numbers follow the name and the timeline.
        let numbers: Vec<u32> =
            line.split_whitespace().skip(3).map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers, [before, after, most], "{algorithm}");
    }
    // The clock is manual, so each line is exact.
    assert_eq!(ended.stdout.trim_end(), expected_output("boundary"));
}

#[test]
fn example_reports_redis_url_error_in_one_line() {
    let mut server = Server::start(Engine::Redis);
    server.kill();
    let closed_port = format!("redis://user:s3cret@127.0.0.1:{}/", server.port());
    for (url, expected) in [
        (&*closed_port, format!("error: REDIS_URL: Redis at 127.0.0.1:{}: ", server.port())),
        ("http://:s3cret@127.0.0.1/", "error: REDIS_URL: ".to_owned()),
    ] {
        let ended = boundary(&[("REDIS_URL", url)]);
        assert_eq!((ended.status.code(), &*ended.stdout), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.starts_with(&expected) && ended.stderr.lines().count() == 1, "{ended:?}");
        assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
    }
}
