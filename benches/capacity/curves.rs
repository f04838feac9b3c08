//! What one more policy, unit, record, process and key costs.

use std::time::Duration;

use tower_sliding_window::{Algorithm, Limiter, redis::Merging};

use crate::{
    load::{self, ALGORITHMS, HOUR, UNREACHED},
    server::{Engine, Server},
};

/// The parts of a load.
#[derive(Clone, Copy)]
struct Size {
    policies: u32,
    /// The cost of a check.
    units: u32,
    /// The charges of each key before the load.
    records: u64,
    processes: u64,
    keys: u64,
}

/// The load from which each curve begins.
const FIRST: Size = Size { policies: 1, units: 1, records: 2, processes: 1, keys: 10_000 };
const CHECKS: u64 = 10_000;
/// The records of all keys in the curve of records: the load adds at most a tenth.
const RECORDS: u64 = 100_000;
const IN_FLIGHT: u64 = 64;
/// A busy machine makes a round longer, never shorter, so the shortest one counts.
const ROUNDS: usize = 5;

type Curve = (&'static str, [u64; 4], fn(u64) -> Size);

const CURVES: [Curve; 5] = [
    ("policy", [1, 2, 4, 8], |policies| Size { policies: policies as u32, ..FIRST }),
    ("unit", [1, 10, 100, 1_000], |units| Size { units: units as u32, ..FIRST }),
    ("record", [2, 20, 200, 2_000], |records| Size {
        records,
        keys: (RECORDS / records).min(FIRST.keys),
        ..FIRST
    }),
    ("process", [1, 2, 4, 8], |processes| Size { processes, ..FIRST }),
    ("key", [100, 1_000, 10_000, 100_000], |keys| Size { keys, ..FIRST }),
];

/// Prints a table for each algorithm.
pub async fn print() {
    println!(
        "Curves: {CHECKS} checks, {IN_FLIGHT} in flight, not merged, the shortest of {ROUNDS} rounds; microseconds of the server for each check\n"
    );
    println!("| algorithm | one more | sizes | server us per check | one more costs ns | bytes of a key |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let server = Server::start(Engine::Redis);
    for (name, algorithm) in ALGORITHMS {
        for (of, sizes, size) in CURVES {
            let (mut micros, mut bytes) = ([f64::INFINITY; 4], 0.0);
            for _ in 0..ROUNDS {
                for (shortest, number) in micros.iter_mut().zip(sizes) {
                    let round;
                    (round, bytes) = measure(&server, algorithm, size(number)).await;
                    *shortest = shortest.min(round);
                }
            }
            let one_more = (micros[3] - micros[0]) / (sizes[3] - sizes[0]) as f64 * 1e3;
            let list = |texts: Vec<String>| texts.join(", ");
            println!(
                "| {name} | {of} | {} | {} | {one_more:.2} | {bytes:.0} |",
                list(sizes.map(|size| size.to_string()).into()),
                list(micros.iter().map(|micros| format!("{micros:.2}")).collect()),
            );
        }
    }
    println!();
}

/// Returns the microseconds of the server for each check, and the bytes of a key and policy.
async fn measure(server: &Server, algorithm: Algorithm, size: Size) -> (f64, f64) {
    load::flush(server);
    let limiter = || -> Limiter {
        // Different windows, so that each policy has a key of its own.
        let policies = (0..size.policies).map(|i| {
            load::policy(
                &format!("policy {i}"),
                UNREACHED,
                HOUR + Duration::from_secs(u64::from(i)),
                algorithm,
            )
        });
        load::limiter(server, policies, Merging::Off)
    };
    let limiters: Vec<Limiter> = (0..size.processes).map(|_| limiter()).collect();
    // The records are there before the load.
    load::run(server, &limiters, size.keys, size.units, size.keys * size.records, IN_FLIGHT).await;
    let bytes = load::bytes_per_key(server);
    (load::run(server, &limiters, size.keys, size.units, CHECKS, IN_FLIGHT).await.server_micros, bytes)
}
