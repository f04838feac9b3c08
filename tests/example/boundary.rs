//! What the experiment at the edge of a window shows. In memory alone: on Redis it waits up to twelve seconds for an edge.

use super::process::{Ended, run_example};
use crate::support::server::{Engine, Server};

fn boundary(variables: &[(&str, &str)]) -> Ended {
    run_example("boundary", variables)
}

#[test]
fn a_fixed_window_admits_two_bursts_around_its_edge_and_nothing_else_does() {
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
        // Behind the name and the time line.
        let numbers: Vec<u32> =
            line.split_whitespace().skip(3).map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers, [before, after, most], "{algorithm}");
    }
    assert!(ended.stdout.contains("The fixed window has admitted 100 requests within 0.78 s."), "{ended:?}");
}

#[test]
fn it_says_in_one_line_what_is_wrong_with_the_url_of_redis() {
    let mut server = Server::start(Engine::Redis);
    server.kill();
    let nobody = format!("redis://user:s3cret@127.0.0.1:{}/", server.port());
    for (url, says) in [
        (&*nobody, format!("error: REDIS_URL: Redis at 127.0.0.1:{}: ", server.port())),
        ("http://:s3cret@127.0.0.1/", "error: REDIS_URL: ".to_owned()),
    ] {
        let ended = boundary(&[("REDIS_URL", url)]);
        assert_eq!((ended.status.code(), &*ended.stdout), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.starts_with(&says) && ended.stderr.lines().count() == 1, "{ended:?}");
        assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
    }
}
