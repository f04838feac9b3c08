//! What one core of Redis decides, for each algorithm.

use tower_sliding_window::redis::Merging;

use crate::{
    load::{self, ALGORITHMS, HOUR, UNREACHED},
    server::{Engine, Server},
};

const KEYS: u64 = 10_000;
const CHECKS: u64 = 60_000;

/// Prints the decisions per second of one core, with 64 checks in flight.
pub async fn print() {
    println!("One core of Redis: {KEYS} keys, one policy, 64 checks in flight\n");
    println!("| algorithm | checks | script us | server us per check | decisions per second of one core |");
    println!("| --- | --- | --- | --- | --- |");
    let server = Server::start(Engine::Redis);
    for (name, algorithm) in ALGORITHMS {
        for (mode, merging) in [("single", Merging::Off), ("merged", Merging::On)] {
            load::flush(&server);
            let limiter =
                load::limiter(&server, [load::policy("measured", UNREACHED, HOUR, algorithm)], merging);
            let cost = load::run(&server, &[limiter], KEYS, 1, CHECKS, 64).await;
            println!(
                "| {name} | {mode} | {:.2} | {:.2} | {:.0} |",
                cost.script_micros,
                cost.server_micros,
                1e6 / cost.server_micros
            );
        }
    }
    println!(
        "\nMultiply by the number of nodes for a cluster, if no key is hot: a check is one call to one slot.\n"
    );
}
