//! The units of policies in flight that an admission holds.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use http::Extensions;

/// The units that a request holds under policies [in flight](crate::Policy::in_flight). Dropping the last clone releases them.
///
/// A [`Decision`](crate::Decision) contains it, so the units are held until the last clone of the decision or of its hold is dropped. A
/// layer keeps it until the body of the response has ended or was dropped, and inserts it into the extensions of the request. There, nested
/// layers have one hold of all their units. A handler whose work outlives its response, such as that of a WebSocket, takes it along: see
/// [the guide](crate::guide::in_flight). In axum, `Option<Hold>` is an extractor. It is `None` if the request holds no units.
///
/// ```
/// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, hold::Hold};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder(MemoryBackend::new()).policy(Policy::in_flight("exports", 1)?).build()?;
/// let alice = || PartitionKey::new("user", "alice");
/// let first = limiter.check(alice()).await?;
/// let hold: Option<Hold> = first.hold().cloned();
/// drop(first);
/// assert!(!limiter.check(alice()).await?.is_admitted(), "the clone still holds the unit");
/// drop(hold);
/// assert!(limiter.check(alice()).await?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Hold(Arc<dyn UnitsOwner>);

/// Owns units, and releases them when it is dropped.
trait UnitsOwner: Send + Sync {
    /// Returns whether the store may not have held the units all the time.
    fn was_interrupted(&self) -> bool;

    /// Returns the place of what it does after it has released the units. `None` if it does this itself.
    fn after_release(&self) -> Option<&OnceLock<AfterRelease>>;
}

/// Wakes the requests that wait for the units.
type AfterRelease = Box<dyn FnOnce() + Send + Sync>;

/// Calls a function when it is dropped.
struct OnRelease<F: FnOnce()> {
    release: Option<F>,
    /// What it calls then. `None` if `release` wakes the requests that wait for the units.
    then: Option<OnceLock<AfterRelease>>,
}

/// Units that a closure owns.
struct OwnedUnits<F>(F);

impl Hold {
    /// Creates the hold of an admission for a [`Backend`](crate::backend::Backend) of your own: `release` is called once, when the last
    /// clone is dropped. When it returns, the units must be released: the requests of this process that wait for them are woken then.
    pub fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Arc::new(OnRelease { release: Some(release), then: Some(OnceLock::new()) }))
    }

    /// Creates the hold of an admission whose `release` also wakes the requests that wait for the units.
    pub(crate) fn waking(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Arc::new(OnRelease { release: Some(release), then: None }))
    }

    /// Creates the hold of units that a closure owns, whose owner wakes the requests that wait for them. The closure returns whether the
    /// store may not have held them all the time.
    pub(crate) fn from_units(was_interrupted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(OwnedUnits(was_interrupted)))
    }

    /// States what wakes the requests that wait for the units, unless their owner wakes them. The first statement counts.
    pub(crate) fn wake_on_release<W: FnOnce() + Send + Sync + 'static>(&self, wake: impl FnOnce() -> W) {
        if let Some(place) = self.0.after_release() {
            place.get_or_init(|| Box::new(wake()));
        }
    }

    /// Creates one hold of several.
    pub(crate) fn of_all(holds: impl AsRef<[Self]> + Send + Sync + 'static) -> Self {
        Self::from_units(move || holds.as_ref().iter().any(Self::was_interrupted))
    }

    /// Inserts it into the extensions of a request. If an outer layer holds units of this request, the inserted one is of both.
    pub(crate) fn insert_into(&self, extensions: &mut Extensions) {
        if let Some(outer) = extensions.insert(self.clone()) {
            extensions.insert(Self::of_all([outer, self.clone()]));
        }
    }

    /// Returns whether the store may not have held the units all the time: it has lost them or did not answer, or this process was
    /// stopped, for longer than the [hold time](crate::Policy::hold_time). Meanwhile, more requests than the quota may have run. In
    /// memory, it never happens. After the machine was suspended, the next renewal shows it: at most a third of the hold time later.
    ///
    /// A request that writes what only one request may write reads this before it commits.
    pub fn was_interrupted(&self) -> bool {
        self.0.was_interrupted()
    }
}

impl<F: FnOnce() + Send + Sync> UnitsOwner for OnRelease<F> {
    fn was_interrupted(&self) -> bool {
        false
    }

    fn after_release(&self) -> Option<&OnceLock<AfterRelease>> {
        self.then.as_ref()
    }
}

impl<F: FnOnce()> Drop for OnRelease<F> {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
        if let Some(wake) = self.then.take().and_then(OnceLock::into_inner) {
            wake();
        }
    }
}

impl<F: Fn() -> bool + Send + Sync> UnitsOwner for OwnedUnits<F> {
    fn was_interrupted(&self) -> bool {
        (self.0)()
    }

    fn after_release(&self) -> Option<&OnceLock<AfterRelease>> {
        None
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("was_interrupted", &self.was_interrupted()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_of_nested_layers_is_interrupted_if_one_is() {
        for [outer, inner] in [[false, false], [true, false], [false, true]] {
            let mut extensions = Extensions::new();
            for is_interrupted in [outer, inner] {
                Hold::from_units(move || is_interrupted).insert_into(&mut extensions);
            }
            assert_eq!(extensions.get::<Hold>().unwrap().was_interrupted(), outer || inner);
        }
    }
}
