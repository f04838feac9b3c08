//! The instants of admissions, and how many of them are in one window.

use std::time::Duration;

/// The admissions of all processes. Each has happened between two instants of the server's clock, in microseconds.
pub struct Grants(Vec<(u64, u64)>);

/// The largest number of admissions in a half-open window.
pub struct Most {
    /// If each admission happened at its later instant.
    pub estimated: usize,
    /// Regardless of when each admission happened between its instants: a lower bound.
    pub certain: usize,
}

impl Grants {
    pub fn new(grants: &[(u64, u64)]) -> Self {
        Self(grants.to_vec())
    }

    pub fn most_in_window(&self, window: Duration) -> Most {
        let window = window.as_micros() as u64;
        // A window that begins with the earlier instant of an admission.
        let most = |grants: Vec<(u64, u64)>| {
            let mut starts: Vec<u64> = grants.iter().map(|(from, _)| *from).collect();
            starts.sort_unstable();
            starts.dedup();
            let mut by_start = grants;
            by_start.sort_unstable();
            let inside = |start: u64| {
                let first = by_start.partition_point(|(from, _)| *from < start);
                let candidates = by_start[first..].iter().take_while(|(from, _)| *from < start + window);
                candidates.filter(|(_, to)| *to < start + window).count()
            };
            starts.into_iter().map(inside).max().unwrap_or_default()
        };
        Most {
            estimated: most(self.0.iter().map(|(_, to)| (*to, *to)).collect()),
            certain: most(self.0.clone()),
        }
    }
}
