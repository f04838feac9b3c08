//! The example `outage`, without a Redis server.

use super::process::run_to_end;
use crate::docs::expected_output;

#[test]
fn paths_follow_their_outage_rules() {
    let ended = run_to_end("outage");
    assert!(ended.status.success(), "{ended:?}");
    // Each duration differs, and the expected output omits the rest of a body.
    let shown = |line: &str| line.split(" after ").next().unwrap().split("\",").next().unwrap().to_owned();
    let [printed, expected] =
        [&ended.stdout, &expected_output("outage")].map(|text| text.lines().map(shown).collect::<Vec<_>>());
    assert_eq!(printed, expected);
}
