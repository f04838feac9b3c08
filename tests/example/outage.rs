//! The example `outage`, without a Redis server.

use super::process::run_to_end;

#[test]
fn paths_follow_their_outage_rules() {
    let ended = run_to_end("outage");
    assert!(ended.status.success(), "{ended:?}");
    let answers = ended.stdout.lines().filter(|line| line.starts_with('/'));
    let answers: Vec<_> = answers.map(|line| line.split_once(" after").unwrap().0).collect();
    let expected =
        ["/        200", "/export  503", "/login   200", "/login   200", "/login   503", "/        200"];
    assert_eq!(answers, expected);
    assert!(ended.stdout.contains("admitted unchecked"), "{ended:?}");
    assert!(ended.stdout.contains("0 units left in the local fallback"), "{ended:?}");
    // The circuit breaker is open at the last request.
    assert!(ended.stdout.contains("circuit breaker is open"), "{ended:?}");
}
