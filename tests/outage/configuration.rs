//! What can be configured, and what cannot.

use std::time::Duration;

use tower_sliding_window::{
    outage::{Breaker, Share},
    testing::FakeBackend,
};

use super::{TICK, later};

#[test]
fn what_is_out_of_range_cannot_be_built() {
    let builder = || later(&FakeBackend::admitting());
    for failures in [0, 1_000_001] {
        let breaker = Breaker { failures, ..Breaker::default() };
        assert_eq!(
            builder().breaker(breaker).build().unwrap_err().to_string(),
            format!(
                "a breaker that opens after {failures} failures: it must be 1 to 1000000; `.breaker(None)` goes without one"
            )
        );
    }
    for open_for in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3_601), Duration::MAX] {
        let breaker = Breaker { open_for, ..Breaker::default() };
        assert_eq!(
            builder().breaker(breaker).build().unwrap_err().to_string(),
            format!("a breaker that is open for {open_for:?}: it must be 1 ms to 1 h")
        );
    }
    for checks in [0, (1 << 20) + 1] {
        assert_eq!(
            builder().max_in_flight(checks).build().unwrap_err().to_string(),
            format!("at most {checks} checks under way: the bound must be 1 to 1048576")
        );
    }
    assert_eq!(
        Share::among(0).unwrap_err().to_string(),
        "a share among 0 processes: it must be 1 to 4294967295"
    );
}

#[test]
fn the_ends_of_every_range_can_be_built() {
    let builder = || later(&FakeBackend::admitting());
    for breaker in [
        Breaker { failures: 1, open_for: TICK },
        Breaker { failures: 1_000_000, open_for: Duration::from_secs(3_600) },
    ] {
        builder().breaker(breaker).build().unwrap();
    }
    builder().max_in_flight(1).breaker(None).build().unwrap();
    builder().max_in_flight(1 << 20).build().unwrap();
    assert_eq!(Share::among(u32::MAX).unwrap().processes(), u32::MAX);
    assert_eq!(Share::whole().processes(), 1);
    assert_eq!(Breaker::default(), Breaker { failures: 5, open_for: Duration::from_millis(250) });
}
