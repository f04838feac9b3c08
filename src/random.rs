//! Random numbers and times.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Returns a random number.
pub(crate) fn random() -> u64 {
    // Every `RandomState` has other keys, which come from the operating system.
    RandomState::new().hash_one(0)
}

/// Returns a random time of at most `max`, in whole microseconds.
pub(crate) fn up_to(max: Duration) -> Duration {
    // At most 2^64-1 microseconds, which is far beyond any wait.
    let micros = max.as_micros().min(u128::from(u64::MAX - 1)) as u64;
    Duration::from_micros(random() % (micros + 1))
}

/// Returns a random time, from half of this one to the whole.
pub(crate) fn jittered(time: Duration) -> Duration {
    time / 2 + up_to(time / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn time_lies_between_zero_and_its_maximum() {
        let drawn: Vec<Duration> = (0..1_000).map(|_| up_to(3 * MICRO)).collect();
        for micros in 0..4 {
            let times = drawn.iter().filter(|time| **time == micros * MICRO).count();
            assert!((150..350).contains(&times), "{micros} us: {times} of 1,000");
        }
        assert_eq!(up_to(Duration::ZERO), Duration::ZERO);
        let _ = up_to(Duration::MAX);
    }

    #[test]
    fn jittered_time_lies_between_its_half_and_the_whole() {
        let drawn: Vec<Duration> = (0..1_000).map(|_| jittered(6 * MICRO)).collect();
        let bounds = (drawn.iter().min().copied(), drawn.iter().max().copied());
        assert_eq!(bounds, (Some(3 * MICRO), Some(6 * MICRO)));
    }
}
