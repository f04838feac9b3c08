//! The example of a Redis that is not there.

use super::process::run_to_its_end;

#[test]
fn what_is_cheap_goes_on_what_is_dear_does_not_and_a_login_has_its_share() {
    let ended = run_to_its_end("outage");
    assert!(ended.status.success(), "{ended:?}");
    let answers = ended.stdout.lines().filter(|line| line.starts_with('/'));
    let answers: Vec<_> = answers.map(|line| line.split_once(" after").unwrap().0).collect();
    let expected =
        ["/        200", "/export  503", "/login   200", "/login   200", "/login   503", "/        200"];
    assert_eq!(answers, expected);
    assert!(ended.stdout.contains("let through unchecked"), "{ended:?}");
    assert!(ended.stdout.contains("0 left of this process' share"), "{ended:?}");
    // By then the breaker is open.
    assert!(ended.stdout.contains("circuit breaker is open"), "{ended:?}");
}
