//! Measures replication: the bytes that denials send to a replica.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    fill::long_window,
    measure::{Pipeline, key, pair},
    scripts::{Design, Scripts},
    server::{Engine, Server},
};

/// Returns the bytes that 1,000 denials of each algorithm replicate.
pub fn bytes_of_denials() -> u64 {
    // The primary's pings would count. The replica must be served at once.
    let options = ["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"];
    let server = Server::with_options(Engine::Redis, &options);
    let port = server.port().to_string();
    let replica = Server::with_options(Engine::Redis, &["--replicaof", &format!("127.0.0.1 {port}")]);
    let (mut primary, mut secondary) = (Pipeline::connect(&server), Pipeline::connect(&replica));
    let start = Instant::now();
    while !secondary.ask(&[b"INFO", b"replication"]).contains("master_link_status:up") {
        assert!(start.elapsed() < Duration::from_secs(20), "the replica does not connect");
        sleep(Duration::from_millis(20));
    }

    let scripts = Scripts::load(&server, &mut primary);
    let window = long_window(primary.now_micros());
    let mut bytes = 0;
    for design in [Design::Log, Design::Buckets, Design::Counter, Design::Fixed, Design::Tokens] {
        let arguments = pair(10, 10, window, design.typed_parameter(window));
        let key = key(0, design as usize);
        let words = [&b"EVALSHA"[..], scripts.of(design).as_bytes(), b"1", key.as_bytes(), &arguments];
        let before = offset(&mut primary);
        primary.ask(&words);
        let charged = offset(&mut primary);
        assert!(charged > before, "a charge must be replicated");
        for _ in 0..1_000 {
            primary.queue(&words);
        }
        primary.flush(|reply| assert_eq!(reply[8], 1, "a denial"));
        bytes += offset(&mut primary) - charged;
    }
    bytes
}

fn offset(primary: &mut Pipeline) -> u64 {
    let info = primary.ask(&[b"INFO", b"replication"]);
    let value = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
    value.expect("an offset").trim().parse().expect("a number")
}
