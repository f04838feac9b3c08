//! The example `client_quota`, in memory and on Redis.

use super::process::{Ended, run_example};
use crate::{
    docs::expected_output,
    support::server::{Engine, Server},
};

fn run(variables: &[(&str, &str)]) -> Ended {
    let ended = run_example("client_quota", variables);
    assert!(ended.status.success(), "{ended:?}");
    ended
}

/// Returns the units and the lines of each of the two runs.
fn runs(ended: &Ended) -> [(u32, Vec<&str>); 2] {
    let runs: Vec<_> = ended.stdout.split_terminator("\n\n").collect();
    let runs: [&str; 2] = runs.try_into().unwrap_or_else(|_| panic!("{ended:?}"));
    runs.map(|run| {
        let lines: Vec<&str> = run.lines().collect();
        let units = lines[5].trim().split_once(' ').unwrap().0.parse().unwrap();
        (units, lines)
    })
}

fn assert_quota_is_shared(ended: &Ended) {
    let [(units, lines), (_, outage)] = runs(ended);
    // The searches and the deletions stop when they do not fit. A read fits until the last unit.
    assert_eq!(units, 10_000, "{ended:?}");
    // On a busy machine, a worker may make all of its calls before the others have used up the quota.
    let (stopped, done): (Vec<&str>, _) =
        lines[1..5].iter().partition(|line| line.contains(r#""daily"; retry after 86"#));
    assert!(stopped.len() >= 2 && done.iter().all(|line| line.ends_with("all calls made")), "{ended:?}");
    // Without the store, the expensive calls fail closed, so that no bug uses up the quota of the day.
    for (line, begin) in outage[1..4].iter().zip(["  clean       0 ", "  index       0 ", "  suggest     0 "])
    {
        assert!(line.starts_with(begin) && line.contains("no rate limit decision"), "{begin}: {ended:?}");
    }
    assert!(outage[4].starts_with("  sync      500 "), "reads of one unit fail open: {ended:?}");
    assert!(outage[4].ends_with("all calls made"), "reads of one unit fail open: {ended:?}");
}

#[test]
fn workers_share_daily_quota_in_memory() {
    let ended = run(&[]);
    assert_quota_is_shared(&ended);
    // The numbers depend on the order of the workers.
    let lines = |text: &str| -> Vec<String> {
        text.trim_end()
            .lines()
            .map(|line| line.split_whitespace().next().unwrap_or("").replace(char::is_numeric, ""))
            .collect()
    };
    assert_eq!(lines(&ended.stdout), lines(&expected_output("client_quota")));
}

#[test]
fn workers_share_daily_quota_on_redis() {
    let server = Server::start(Engine::Redis);
    let url = server.url();
    let ended = run(&[("REDIS_URL", &url)]);
    assert_quota_is_shared(&ended);
    // The next process finds the quota used up.
    let [(before, _), _] = runs(&ended);
    let ended = run(&[("REDIS_URL", &url)]);
    let [(units, _), _] = runs(&ended);
    assert_eq!((before, units), (10_000, 0), "{ended:?}");
}
