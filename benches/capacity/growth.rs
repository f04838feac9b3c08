//! How time and memory grow with the charges in a window, with the policies and with the cost.

use std::time::Duration;

use tower_sliding_window::{Algorithm, redis::Merging};

use crate::{
    load::{self, ALGORITHMS, HOUR, UNREACHED},
    server::{Engine, Server},
};

const KEYS: u64 = 100;

/// Prints the growth, each row from an empty server.
pub async fn print() {
    println!("Growth: {KEYS} keys, 64 checks in flight, not merged\n");
    println!(
        "| algorithm | charges in the window | policies | cost | server us per check | bytes per key and policy |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let server = Server::start(Engine::Redis);
    for (name, algorithm) in ALGORITHMS {
        for charges in [1, 10, 100, 1_000] {
            row(&server, name, algorithm, charges, 1, 1).await;
        }
        row(&server, name, algorithm, 100, 1, 1_000).await;
        for policies in [2, 4, 8] {
            row(&server, name, algorithm, 100, policies, 1).await;
        }
    }
    println!();
}

async fn row(server: &Server, name: &str, algorithm: Algorithm, charges: u64, policies: u32, cost: u32) {
    load::flush(server);
    // Different windows, so that each policy has a key of its own.
    let policies_of_check = (0..policies).map(|i| {
        load::policy(&format!("policy {i}"), UNREACHED, HOUR + Duration::from_secs(u64::from(i)), algorithm)
    });
    let limiter = load::limiter(server, policies_of_check, Merging::Off);
    let cost_of_check = load::run(server, &limiter, KEYS, cost, KEYS * charges, 64).await;
    println!(
        "| {name} | {charges} | {policies} | {cost} | {:.2} | {:.0} |",
        cost_of_check.server_micros,
        load::bytes_per_key(server)
    );
}
