//! The shutdown of the example `axum` by Ctrl-C or SIGTERM.

use std::{io::Write, net::TcpStream};

use super::process::Example;
use crate::support::server::{Engine, Server};

#[tokio::test]
async fn signal_ends_example_with_success() {
    let server = Server::start(Engine::Redis);
    for redis_url in [None, Some(&*server.url())] {
        for signal in ["TERM", "INT"] {
            let example = Example::start(redis_url);
            assert_eq!(example.decided_status("/", "bob").await, 200);
            let ended = example.stop(signal);
            assert_eq!(ended.status.code(), Some(0), "{signal}: {ended:?}");
            assert_eq!(ended.stderr, "", "{signal}");
        }
    }
}

#[test]
fn unfinished_request_does_not_block_shutdown() {
    let example = Example::start(None);
    let mut half = TcpStream::connect(example.address()).unwrap();
    half.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").unwrap();
    let ended = example.stop("TERM");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}
