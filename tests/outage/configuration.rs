//! The configuration of the circuit breaker, the in-flight bound and the local share.

use std::time::Duration;

use tower_sliding_window::{
    outage::{Breaker, Share},
    testing::FakeBackend,
};

use super::{TICK, deferred};

#[test]
fn build_rejects_settings_out_of_range() {
    let builder = || deferred(&FakeBackend::admitting());
    for failures in [0, 1_000_001] {
        let breaker = Breaker::new(failures, Breaker::default().open_for);
        assert_eq!(
            builder().breaker(breaker).build().unwrap_err().to_string(),
            format!(
                "circuit breaker: failures {failures}: it must be 1 to 1000000; `.breaker(None)` disables the breaker"
            ),
            "the error states the value and what is allowed"
        );
    }
    for open_for in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3_601), Duration::MAX] {
        let breaker = Breaker::new(Breaker::default().failures, open_for);
        assert_eq!(
            builder().breaker(breaker).build().unwrap_err().to_string(),
            format!("circuit breaker: open_for {open_for:?}: it must be 1 ms to 1 h"),
            "the error states the value and what is allowed"
        );
    }
    for checks in [0, (1 << 20) + 1] {
        assert_eq!(
            builder().max_checks_in_flight(checks).build().unwrap_err().to_string(),
            format!("max_checks_in_flight {checks}: it must be 1 to 1048576"),
            "the error states the value and what is allowed"
        );
    }
    assert_eq!(
        Share::among(0).unwrap_err().to_string(),
        "share among 0 processes: it must be 1 to 4294967295",
        "the error states the value and what is allowed"
    );
}

#[test]
fn build_accepts_ends_of_every_range() {
    let builder = || deferred(&FakeBackend::admitting());
    for breaker in [Breaker::new(1, TICK), Breaker::new(1_000_000, Duration::from_secs(3_600))] {
        builder().breaker(breaker).build().unwrap();
    }
    builder().max_checks_in_flight(1).breaker(None).build().unwrap();
    builder().max_checks_in_flight(1 << 20).build().unwrap();
    assert_eq!(Share::among(u32::MAX).unwrap().processes(), u32::MAX, "the number of processes is kept");
    assert_eq!(Share::whole().processes(), 1, "a whole share is that of one process");
    assert_eq!(Breaker::default(), Breaker::new(5, Duration::from_millis(250)), "the documented defaults");
}
