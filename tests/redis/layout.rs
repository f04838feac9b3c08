//! The stored layout, written a second time and from its description, for logs too large to fill by checks.

use redis::{Connection, pipe};

use super::{
    look::Look,
    rig::{HOUR, alice, clocked, limiter, policy},
};
use crate::support::server::{Engine, Server};

/// Writes the log that charges of cost 1 at these instants leave, none of them having left.
pub fn write_log(connection: &mut Connection, key: &str, instants: &[u64]) {
    // The oldest record is in the header.
    let record = |(i, at): (usize, &u64)| [&at.to_le_bytes()[..7], &(i as u64).to_le_bytes()[..5]].concat();
    let records: Vec<Vec<u8>> = instants.iter().enumerate().skip(1).map(record).collect();
    let (first, last) = (instants[0].to_le_bytes(), instants[instants.len() - 1].to_le_bytes());
    let header = [
        &first[..7],
        &last[..7],
        // The newest and the oldest record, and what was used before it.
        &last[..7],
        &first[..7],
        &[0; 5],
        // All in all.
        &(instants.len() as u64).to_le_bytes()[..5],
        // No records in front.
        &[0],
        &(instants.len() as u64).to_le_bytes()[..3],
    ];

    let mut entries: Vec<Vec<u8>> = records.chunks(8).map(<[Vec<u8>]>::concat).collect();
    let tail = entries.pop().unwrap_or_default();
    entries.push([header.concat(), tail].concat());
    pipe().del(key).exec(connection).unwrap();
    for some in entries.chunks(4096) {
        pipe().rpush(key, some).exec(connection).unwrap();
    }
    pipe().pexpire(key, 7_200_000).exec(connection).unwrap();
}

#[tokio::test]
async fn a_log_written_from_the_description_is_the_one_that_checks_write() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = clocked(&server).await;
    let limiter = limiter(backend, [policy("hourly", 1_000, HOUR)]);
    let mut look = Look::at(&server);
    let mut instants = Vec::new();
    for _ in 0..30 {
        limiter.check(alice(), 1).await.unwrap();
        instants.push(clock.now_micros());
        clock.advance(std::time::Duration::from_micros(7_654_321));

        let key = look.only_key();
        let written: Vec<Vec<u8>> = look.ask(&["LRANGE", &key, "0", "-1"]);
        write_log(&mut look.0, "copy", &instants);
        let copy: Vec<Vec<u8>> = look.ask(&["LRANGE", "copy", "0", "-1"]);
        assert_eq!(written, copy, "{} records", instants.len());
        look.ask::<()>(&["DEL", "copy"]);
    }
}
