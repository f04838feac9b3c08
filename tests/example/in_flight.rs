//! The example `in_flight`, in memory and with two processes on Redis.

use super::process::run_example;
use crate::{
    docs::expected_output,
    support::server::{Engine, Server},
};

/// What it prints beyond its expected output if there is a Redis.
const WITH_REDIS: &str = "\
another process runs 3 exports: 2 units are free
it is killed: 2 units are free
within its hold time of 2s, all 5 units are free";

#[test]
fn exports_are_limited_in_memory() {
    let ended = run_example::<&str>("in_flight", &[]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout.trim_end(), expected_output("in_flight").trim_end(), "{ended:?}");
}

#[test]
fn units_of_killed_process_return() {
    let server = Server::start(Engine::Redis);
    let ended = run_example("in_flight", &[("REDIS_URL", &server.url())]);
    assert!(ended.status.success(), "{ended:?}");
    let expected = format!("{}\n{WITH_REDIS}", expected_output("in_flight").trim_end());
    assert_eq!(ended.stdout.trim_end(), expected, "{ended:?}");
}
