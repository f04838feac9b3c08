//! What is measured apart from the cells: several policies in one check, a key that was idle, and what a replica is sent.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    fill::charge_all,
    measure::{Wire, key, median, pair, pairs, ratio, undisturbed},
    scripts::{Design, Texts},
    server::{Engine, Server},
};

/// Three policies in one check against one, in the steady state of all windows.
pub fn three_against_one(wire: &mut Wire, texts: &Texts) -> f64 {
    let hash = texts.of(Design::Log).as_bytes();
    let windows = [50_000, 75_000, 100_000];
    let mut run = |policies: usize, calls: usize| {
        let keys: Vec<String> =
            (0..policies).map(|policy| key((0xe << 32) + policies as u64, policy)).collect();
        let arguments = pairs(u32::MAX, 1, windows[..policies].iter().copied(), 0);
        let count = policies.to_string();
        wire.pieces();
        wire.queue_mark();
        for call in 0..calls {
            let mut words = vec![b"EVALSHA", hash, count.as_bytes()];
            words.extend(keys.iter().map(String::as_bytes));
            words.push(&arguments);
            wire.queue(&words);
            if call % 64 == 63 {
                wire.queue_mark();
            }
            wire.send_if_much();
        }
        wire.send(|_| {});
        undisturbed(wire.pieces())
    };
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..9 {
        for (of, policies) in [3, 1].into_iter().enumerate() {
            run(policies, 12_800);
            rounds[of].push(run(policies, 6_400));
        }
    }
    ratio(&rounds[0], &rounds[1])
}

/// Microseconds of a call on a key of buckets that was idle for twelve hours, half of its window, and on a live one.
#[derive(Debug)]
pub struct Idle {
    pub peeked: f64,
    pub admitted: f64,
    pub live_peeked: f64,
    pub live_admitted: f64,
}

impl Idle {
    pub fn measure(wire: &mut Wire, texts: &Texts) -> Self {
        const KEYS: usize = 500;
        let hour = 3_600_000_000;
        let window = 24 * hour;
        let arguments = pair(u32::MAX, 1, window, Design::Buckets.shape(window));
        let mut times = [const { Vec::new() }; 4];
        for round in 0..5 {
            let space = (0xf << 32) + round;
            let now = wire.now_micros();
            for bucket in 0..60 {
                charge_all(wire, texts, space, KEYS, &arguments, now - 36 * hour + bucket * hour * 2 / 5);
            }
            wire.send(|_| {});
            let mut pass = |purpose: &[u8]| {
                wire.pieces();
                wire.queue_mark();
                for number in 0..KEYS {
                    let (hash, key) = (texts.of(Design::Buckets).as_bytes(), key(space, number));
                    wire.queue(&[b"EVALSHA", hash, b"1", key.as_bytes(), &arguments, purpose]);
                    if number % 25 == 24 {
                        wire.queue_mark();
                    }
                    wire.send_if_much();
                }
                wire.send(|_| {});
                undisturbed(wire.pieces())
            };
            for (times, purpose) in times.iter_mut().zip([&b"p"[..], b"", b"p", b""]) {
                times.push(pass(purpose));
            }
        }
        let [peeked, admitted, live_peeked, live_admitted] = times.map(median);
        Self { peeked, admitted, live_peeked, live_admitted }
    }
}

/// Bytes that a thousand denials of every algorithm send to a replica.
pub fn replicated_by_denials() -> u64 {
    // The pings of the primary would count, too. A replica is served at once.
    let options = ["--repl-ping-replica-period", "3600", "--repl-diskless-sync-delay", "0"];
    let server = Server::with_options(Engine::Redis, &options);
    let port = server.port().to_string();
    let replica = Server::with_options(Engine::Redis, &["--replicaof", &format!("127.0.0.1 {port}")]);
    let (mut wire, mut behind) = (Wire::at(&server), Wire::at(&replica));
    let start = Instant::now();
    while !behind.ask(&[b"INFO", b"replication"]).contains("master_link_status:up") {
        assert!(start.elapsed() < Duration::from_secs(20), "the replica does not attach");
        sleep(Duration::from_millis(20));
    }
    let texts = Texts::load(&server, &mut wire);
    let offset = |wire: &mut Wire| -> u64 {
        let info = wire.ask(&[b"INFO", b"replication"]);
        let value = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
        value.expect("an offset").trim().parse().expect("a number")
    };
    let window = crate::fill::long_window(wire.now_micros());
    let mut bytes = 0;
    for design in [Design::Log, Design::Buckets, Design::Counter, Design::Fixed] {
        let arguments = pair(10, 10, window, design.shape(window));
        let key = key(0, design as usize);
        let words = [&b"EVALSHA"[..], texts.of(design).as_bytes(), b"1", key.as_bytes(), &arguments];
        let before = offset(&mut wire);
        wire.ask(&words);
        let charged = offset(&mut wire);
        assert!(charged > before, "a charge is replicated");
        for _ in 0..1_000 {
            wire.queue(&words);
        }
        wire.send(|reply| assert_eq!(reply[8], 1, "a denial"));
        bytes += offset(&mut wire) - charged;
    }
    bytes
}
