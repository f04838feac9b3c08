//! Bounds on the time of one call on the server: a charge deletes a part of a long log, and large checks are not merged.

use std::time::Duration;

use tower_sliding_window::{
    Policy,
    backend::{Check, Pair},
};

use super::{
    admin::Admin,
    merging::{Decided, decided, merging, outcomes, script_calls, user},
    reference_log::ReferenceLog,
    rig::{HOUR, policy, with_manual_clock},
};
use crate::support::server::{Engine, Server};

/// Most of a log leaves at once, and the first charges after it delete a part each. In between, the log begins with records that have
/// left, and decides as if they were deleted.
#[tokio::test]
async fn partly_deleted_log_decides_exactly() {
    const RECORDS: usize = 200_000;
    const LIVE: u64 = 10_000;
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let start = clock.now_micros();
        // Three charges at each instant, of 2 to 6 units.
        let charges: Vec<_> = (0..RECORDS as u64).map(|i| (start + i / 3 * 1_003, 2 + i % 5)).collect();
        let (used, last) = (charges.iter().map(|(_, units)| units).sum::<u64>(), charges[RECORDS - 1].0);
        let mut log = ReferenceLog::of(&backend, &clock, policy("p", used as u32 + 100, HOUR));
        let mut admin = Admin::at(&server);
        log.write(&mut admin, 7, charges).await;
        // Some records between others hold no units: at the oldest instant that stays, and later.
        let oldest_live = RECORDS - LIVE as usize;
        for index in [oldest_live - 1, oldest_live, oldest_live + 1, oldest_live + 2, RECORDS - 9] {
            let units = log.charges[index].1;
            log.refund(index, units).await;
        }
        let key = admin.only_key();
        clock.set_micros(last - LIVE / 3 * 1_003 + HOUR.as_micros() as u64);
        let mut entries = Vec::new();
        for charge in 0..14 {
            let what = format!("{engine:?}, {charge} charges");
            log.charge(3).await;
            log.assert_matches_server(&what, 20).await;
            let live = log.charges.len();
            log.refund(live / 2 + charge, 1).await;
            log.assert_matches_server(&what, 20).await;
            entries.push(admin.query::<u64>(&["LLEN", &key]));
        }
        let dropped: Vec<u64> = entries.windows(2).map(|pair| pair[0].saturating_sub(pair[1])).collect();
        assert!(entries[0] > LIVE / 8 + 2_049 && entries[13] <= LIVE / 8 + 2, "{engine:?}: {entries:?}");
        assert!(dropped.iter().all(|dropped| *dropped <= 2_049), "{engine:?}: {entries:?}");
    }
}

fn one_unit(backend: &tower_sliding_window::RedisBackend, name: &str, policies: &[Policy]) -> Decided {
    let pairs = policies.iter().map(|policy| Pair::new(user(name), policy.clone(), 1));
    decided(backend, Check::new(pairs.collect::<Vec<_>>()).unwrap())
}

/// A merged call takes at most 2 ms of the server. So the number of its checks depends on the records that their keys can hold, unless
/// the checks are equal.
#[tokio::test]
async fn merged_call_holds_fewer_large_checks() {
    let server = Server::start(Engine::Redis);
    let backend = merging(&server.url()).await;
    let mut admin = Admin::at(&server);
    let name = |i: usize| format!("user {i}");
    let eight: Vec<Policy> = (0..8).map(|i| policy(&format!("p{i}"), u32::MAX, HOUR)).collect();
    for (policies, names, checks_of_call) in [
        (vec![policy("few", 100, HOUR)], 64, 50),
        (vec![policy("some", 1_024, HOUR)], 64, 30),
        (vec![policy("many", 4_096, HOUR)], 64, 22),
        (vec![policy("more", 65_536, HOUR)], 64, 15),
        (vec![policy("all", u32::MAX, HOUR)], 64, 6),
        (eight, 64, 1),
        (vec![policy("one key", u32::MAX, HOUR)], 1, 64),
        (vec![policy("two keys", u32::MAX, Duration::from_secs(60))], 2, 64),
    ] {
        // The server knows the scripts. The first check finds no other one in flight, and has a call of its own.
        for _ in 0..2 {
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);
            let checks = (0..1 + 2 * checks_of_call).map(|i| one_unit(&backend, &name(i % names), &policies));
            for outcome in outcomes(checks.collect()).await {
                assert!(outcome.unwrap().is_admitted(), "{policies:?}: every check fits");
            }
        }
        let what = &policies[0];
        assert_eq!(
            script_calls(&mut admin),
            3,
            "{what:?}: expected {checks_of_call} checks in a merged call"
        );
    }
}
