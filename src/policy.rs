//! What is limited: a name, a quota and a window. An impossible policy cannot be built.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::error::ConfigError;

const MIN_WINDOW: Duration = Duration::from_millis(1);
const MAX_WINDOW: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// At most `quota` units in any window of this length: a *quota policy* in the words of the IETF draft
/// "RateLimit header fields for HTTP".
///
/// The usage is an exact sliding log: a charge counts from the instant of its decision until one whole
/// window has passed, whatever the calendar says. No interval of the window's length ever holds more
/// than the quota, and no request is refused that would have fitted.
///
/// Cloning is cheap. Two policies are equal if their names, quotas and windows are.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::Policy;
///
/// let sustained = Policy::new("sustained", 1_000, Duration::from_secs(3600))?;
/// assert_eq!(sustained.quota(), 1_000);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

struct Inner {
    name: Box<str>,
    quota: NonZeroU32,
    window_micros: u64,
    warned: AtomicBool,
}

impl Policy {
    /// A policy of `quota` units in any interval of the length `window`.
    ///
    /// `name` is what clients read in the headers and operators in the store's keys.
    ///
    /// # Errors
    ///
    /// [`ConfigError::PolicyName`] unless the name is 1 to 64 printable ASCII characters,
    /// [`ConfigError::Quota`] unless the quota is 1 to 2^32-1 units, and [`ConfigError::Window`] unless
    /// the window is 1 ms to 366 days in whole microseconds.
    pub fn new(name: &str, quota: u32, window: Duration) -> Result<Self, ConfigError> {
        let printable = name.bytes().all(|b| (b' '..=b'~').contains(&b));
        if !printable || !(1..=64).contains(&name.len()) {
            return Err(ConfigError::PolicyName { name: name.to_owned() });
        }
        let Some(quota) = NonZeroU32::new(quota) else {
            return Err(ConfigError::Quota { name: name.to_owned(), quota });
        };
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&window) || !window.subsec_nanos().is_multiple_of(1_000) {
            return Err(ConfigError::Window { name: name.to_owned(), window });
        }
        Ok(Self(Arc::new(Inner {
            name: name.into(),
            quota,
            // At most 366 days, or 3.2e13 microseconds.
            window_micros: window.as_micros() as u64,
            warned: AtomicBool::new(false),
        })))
    }

    /// The name, 1 to 64 printable ASCII characters.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The quota in quota units, 1 to 2^32-1.
    pub fn quota(&self) -> u32 {
        self.0.quota.get()
    }

    /// The window, 1 ms to 366 days in whole microseconds.
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.0.window_micros)
    }

    /// The window in microseconds.
    pub(crate) fn window_micros(&self) -> u64 {
        self.0.window_micros
    }

    /// True for the first caller, of whichever clone; a warning that is given once asks here.
    pub(crate) fn first_warning(&self) -> bool {
        !self.0.warned.swap(true, Ordering::Relaxed)
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.name() == other.name()
                && self.quota() == other.quota()
                && self.window_micros() == other.window_micros())
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name())
            .field("quota", &self.quota())
            .field("window", &self.window())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_policy_is_an_error_that_names_value_and_range() {
        let second = Duration::from_secs(1);
        let text = |name: &str, quota, window| Policy::new(name, quota, window).unwrap_err().to_string();

        assert_eq!(
            text("", 1, second),
            r#"policy name "": it must be 1 to 64 printable ASCII characters (space to `~`)"#
        );
        assert_eq!(
            text("bürst", 1, second),
            r#"policy name "bürst": it must be 1 to 64 printable ASCII characters (space to `~`)"#
        );
        assert_eq!(
            text("burst", 0, second),
            r#"policy "burst": quota 0: it must be 1 to 4294967295 quota units"#
        );
        for window in [
            Duration::ZERO,
            Duration::from_micros(999),
            Duration::from_nanos(1_000_001),
            Duration::from_secs(366 * 86_400) + Duration::from_micros(1),
            Duration::MAX,
        ] {
            assert_eq!(
                text("burst", 1, window),
                format!(
                    r#"policy "burst": window {window:?}: it must be 1 ms to 366 days, in whole microseconds"#
                )
            );
        }
        Policy::new(&"~ ".repeat(32), u32::MAX, Duration::from_secs(366 * 86_400)).unwrap();
        Policy::new("x", 1, Duration::from_millis(1)).unwrap();
    }
}
