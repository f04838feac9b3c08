//! Values of which each thread uses one of its own, so that threads do not change the same memory in turn.

use std::{
    cell::Cell,
    num::NonZero,
    ops::Deref,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// The largest number of values.
const MAX: usize = 16;

/// A value for each thread that runs at the same time, at most 16. If there are more threads, some share a value.
pub(crate) struct PerThread<T>(Box<[Apart<T>]>);

/// A value that shares no memory with others which a processor loads at once: two lines of 64 bytes.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> PerThread<T> {
    pub(crate) fn new(mut value: impl FnMut() -> T) -> Self {
        static COUNT: LazyLock<usize> = LazyLock::new(|| {
            let threads = thread::available_parallelism().map_or(1, NonZero::get);
            // A power of two, so that an index is found without a division.
            threads.min(MAX).next_power_of_two()
        });
        Self((0..*COUNT).map(|_| Apart(value())).collect())
    }

    /// Returns the value of this thread.
    #[inline]
    pub(crate) fn local(&self) -> &T {
        &self.0[thread_index() & (self.0.len() - 1)]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(Deref::deref)
    }
}

impl<T> Deref for Apart<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

/// Returns the number of threads that have called this before the first call of this thread.
#[inline]
fn thread_index() -> usize {
    thread_local! {
        static INDEX: Cell<Option<NonZero<usize>>> = const { Cell::new(None) };
    }
    INDEX
        .get()
        .unwrap_or_else(|| {
            static LAST: AtomicUsize = AtomicUsize::new(0);
            let index = NonZero::<usize>::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed));
            INDEX.set(Some(index));
            index
        })
        .get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_always_uses_the_same_value() {
        let counts = PerThread::<AtomicUsize>::default();
        let add = || {
            for _ in 0..1_000 {
                counts.local().fetch_add(1, Ordering::Relaxed);
            }
            counts.local() as *const _ as usize
        };
        let here = add();
        assert_eq!(add(), here);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4 * MAX).map(|_| scope.spawn(add)).collect();
            let mut used: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            used.sort_unstable();
            used.dedup();
            // Threads in a row use all of them.
            assert_eq!(used.len(), counts.iter().count());
        });
        let all: usize = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        assert_eq!(all, 1_000 * (2 + 4 * MAX));
    }
}
