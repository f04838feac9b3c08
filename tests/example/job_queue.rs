//! The example `job_queue`, in memory and with two processes on Redis.

use super::process::run_example;
use crate::{
    docs::expected_output,
    support::server::{Engine, Server},
};

fn assert_output(variables: &[(&str, &str)]) {
    let ended = run_example("job_queue", variables);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout.trim_end(), expected_output("job_queue").trim_end(), "{ended:?}");
}

#[test]
fn worker_settles_token_once_in_memory() {
    assert_output(&[]);
}

#[test]
fn worker_in_other_process_settles_token_once() {
    let server = Server::start(Engine::Redis);
    for _ in 0..2 {
        assert_output(&[("REDIS_URL", &server.url())]);
    }
}
