//! The drift between the clocks of two machines.

/// The largest drift between two clocks, as a fraction: 1/2,000, or 500 ppm. A kernel that corrects a clock slews it no faster.
const DRIFT: u64 = 2_000;

/// Returns the shortest time that another clock may count while this one counts `micros`. Both are in microseconds.
#[inline]
pub(crate) fn min_elapsed_elsewhere(micros: u64) -> u64 {
    micros - micros.div_ceil(DRIFT)
}
