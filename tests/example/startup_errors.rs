//! Startup errors of the example `axum`: one line without the password, and exit status 2.

use std::{
    ffi::{OsStr, OsString},
    io::{Read, Write},
    net::TcpListener,
    os::unix::ffi::{OsStrExt, OsStringExt},
    thread,
};

use super::process::{run, run_example};
use crate::support::server::{Engine, Server};

/// Returns the line on stderr.
fn error_line<V: AsRef<OsStr>>(variables: &[(&str, V)]) -> String {
    let ended = run(variables);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert_eq!(ended.stdout, "");
    assert_eq!(ended.stderr.matches('\n').count(), 1, "{ended:?}");
    let line = ended.stderr.strip_suffix('\n').unwrap();
    assert!(line.starts_with("error: "), "{line}");
    assert!(!line.contains("s3cret"), "{line}");
    line.to_owned()
}

#[test]
fn example_rejects_invalid_redis_url() {
    for url in [
        "",
        "s3cret",
        ":s3cret@127.0.0.1",
        "http://:s3cret@127.0.0.1/",
        "redis://:s3cret@",
        "redis://:s3cret@127.0.0.1:port/",
        "redis://:s3cret@127.0.0.1:65536/",
        "redis://:s3cret@127.0.0.1/database",
        "redis://:s3cret@127.0.0.1/?protocol=s3cret",
        "redis://127.0.0.1:s3cret/",
        "redis://:%ffs3cret@127.0.0.1/",
    ] {
        let line = error_line(&[("PORT", "0"), ("REDIS_URL", url)]);
        assert!(line.starts_with("error: REDIS_URL: "), "{url}: {line}");
        assert!(
            line.ends_with("; a Redis URL looks like redis://[user:password@]host[:port][/database]"),
            "{url}: {line}"
        );
    }
}

#[test]
fn example_rejects_variables_that_are_not_utf8() {
    let broken = |text: &str| OsString::from_vec([text.as_bytes(), b"\xff"].concat());
    let line = error_line(&[("REDIS_URL", broken("redis://:s3cret@127.0.0.1/"))]);
    assert_eq!(line, "error: REDIS_URL: the value is not UTF-8");
    assert!(error_line(&[("PORT", broken("80"))]).starts_with("error: PORT: "));
}

/// Otherwise, an example would run in memory, although a Redis was named.
#[test]
fn every_example_rejects_redis_url_that_is_not_utf8() {
    let url = OsStr::from_bytes(b"redis://:s3cret@127.0.0.1/\xff");
    for name in
        ["boundary", "client_quota", "in_flight", "job_queue", "observability", "playground", "tokens"]
    {
        let ended = run_example(name, &[("PORT", OsStr::new("0")), ("REDIS_URL", url)]);
        assert_eq!(ended.stderr, "error: REDIS_URL: the value is not UTF-8\n", "{name}");
        assert_eq!(ended.status.code(), Some(2), "{name}");
    }
}

#[test]
fn every_server_rejects_invalid_port() {
    for name in ["login", "observability", "playground", "reload", "tokens"] {
        let ended = run_example(name, &[("PORT", "http")]);
        let error = "error: PORT \"http\": it must be a number from 0 to 65535\n";
        assert_eq!((ended.status.code(), &*ended.stderr), (Some(2), error), "{name}");
    }
}

#[test]
fn example_rejects_invalid_port() {
    for port in ["", "http", "-1", "65536", "80 "] {
        assert_eq!(
            error_line(&[("PORT", port)]),
            format!("error: PORT {port:?}: it must be a number from 0 to 65535")
        );
    }
}

#[test]
fn example_rejects_port_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let line = error_line(&[("PORT", port.to_string())]);
    assert!(line.starts_with(&format!("error: PORT {port}: ")), "{line}");
    assert!(line.contains("in use"), "{line}");
}

#[test]
fn every_service_names_port_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for name in ["login", "tokens", "reload", "observability", "playground"] {
        for (given, text) in [
            (port.to_string(), format!("PORT {port}: ")),
            ("http".to_owned(), "it must be a number from 0 to 65535".to_owned()),
        ] {
            let ended = run_example(name, &[("PORT", given)]);
            assert!(!ended.status.success() && ended.stderr.contains(&text), "{name}: {ended:?}");
        }
    }
}

#[test]
fn example_reports_unreachable_redis() {
    let mut server = Server::start(Engine::Redis);
    server.kill();
    let url = format!("redis://user:s3cret@127.0.0.1:{}/", server.port());
    let line = error_line(&[("PORT", "0"), ("REDIS_URL", &url)]);
    let expected = format!("error: REDIS_URL: Redis at 127.0.0.1:{}: ", server.port());
    assert!(line.starts_with(&expected), "{line}");
    assert!(line.contains("refused"), "{line}");
}

#[test]
fn example_reports_wrong_redis_password() {
    let server = Server::start(Engine::Redis);
    let mut connection = server.connection();
    redis::cmd("CONFIG").arg(&["SET", "requirepass", "another"]).exec(&mut connection).unwrap();
    let url = format!("redis://:s3cret@127.0.0.1:{}/", server.port());
    let line = error_line(&[("PORT", "0"), ("REDIS_URL", &url)]);
    assert!(line.starts_with(&format!("error: REDIS_URL: Redis at 127.0.0.1:{}: ", server.port())), "{line}");
    assert!(line.contains("assword") || line.contains("WRONGPASS"), "{line}");
}

#[test]
fn example_rejects_server_without_redis_protocol() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let web = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").unwrap();
        // The read ends when the client closes the connection.
        let _ = client.read_to_end(&mut Vec::new());
    });
    let line = error_line(&[("PORT", "0"), ("REDIS_URL", &*url)]);
    assert!(line.ends_with(": invalid reply: the server does not speak the Redis protocol"), "{line}");
    web.join().unwrap();
}
