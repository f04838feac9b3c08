//! The memory backend is bounded, and forgets.

use std::{sync::Barrier, thread, time::Duration};

use tower_sliding_window::{
    Backend, Check, ConfigError, ManualClock, MemoryBackend, Pair, PartitionKey, Policy, Reason,
};

const WINDOW: Duration = Duration::from_secs(10);

fn policy() -> Policy {
    Policy::new("p", 2, WINDOW).unwrap()
}

/// Whether a check of this key at this cost is admitted.
fn check(backend: &MemoryBackend, key: u32, cost: u32) -> Result<bool, Reason> {
    let pair = Pair::new(PartitionKey::new("key", key.to_le_bytes()), policy(), cost);
    let outcome = backend.check_now(&Check::new([pair]).unwrap()).expect("memory answers at once");
    outcome.map(|decision| decision.is_admitted()).map_err(|error| error.reason())
}

fn bounded(max_keys: usize) -> (MemoryBackend, ManualClock) {
    let clock = ManualClock::new();
    (MemoryBackend::with_max_keys(max_keys).unwrap().with_clock(&clock), clock)
}

#[test]
fn at_the_bound_a_new_key_is_unavailable_and_those_who_are_there_are_served() {
    let (backend, clock) = bounded(100);
    for key in 0..100 {
        assert_eq!(check(&backend, key, 1), Ok(true));
    }
    assert_eq!(check(&backend, 100, 1), Err(Reason::Full));
    assert_eq!(backend.keys(), 100);
    for key in 0..100 {
        assert_eq!((check(&backend, key, 1), check(&backend, key, 1)), (Ok(true), Ok(false)));
    }
    // What is certain without storing anything is still said.
    assert_eq!((check(&backend, 100, 0), check(&backend, 100, 3)), (Ok(true), Ok(false)));
    clock.advance(WINDOW);
    assert_eq!(check(&backend, 100, 1), Ok(true));
}

#[test]
fn idle_keys_go_first_and_all_others_stay() {
    let (backend, clock) = bounded(100);
    for key in 0..50 {
        assert_eq!(check(&backend, key, 1), Ok(true));
    }
    clock.advance(WINDOW / 2);
    for key in 50..100 {
        assert_eq!(check(&backend, key, 2), Ok(true));
    }
    clock.advance(WINDOW / 2);
    // The first fifty are idle now, whichever locks they are under.
    for key in 100..150 {
        assert_eq!(check(&backend, key, 1), Ok(true), "{key}");
    }
    assert_eq!(check(&backend, 150, 1), Err(Reason::Full));
    for key in 50..100 {
        assert_eq!(check(&backend, key, 1), Ok(false));
    }
}

#[test]
fn a_check_of_several_keys_takes_room_for_all_of_them_or_for_none() {
    let (backend, _clock) = bounded(2);
    assert_eq!(check(&backend, 0, 1), Ok(true));
    let pair = |key: &str| Pair::new(PartitionKey::new("other", key), policy(), 1);
    let two = Check::new([pair("a"), pair("b")]).unwrap();
    assert_eq!(backend.check_now(&two).unwrap().unwrap_err().reason(), Reason::Full);
    assert_eq!(backend.keys(), 1);
    assert_eq!(check(&backend, 1, 1), Ok(true));
}

#[test]
fn what_is_denied_or_free_is_not_stored() {
    let (backend, _clock) = bounded(10);
    for key in 0..1_000 {
        assert_eq!((check(&backend, key, 0), check(&backend, key, 3)), (Ok(true), Ok(false)));
    }
    assert_eq!(backend.keys(), 0);
}

#[test]
fn a_million_keys_that_come_and_go_leave_next_to_nothing() {
    let (backend, clock) = bounded(100_000);
    let mut most = 0;
    for key in 0..1_000_000 {
        assert_eq!(check(&backend, key, 1), Ok(true), "{key}");
        most = most.max(backend.keys());
        // A thousand keys are in use at one time.
        clock.advance(WINDOW / 1_000);
    }
    assert!(most < 2_000, "{most} keys at one time");
    clock.advance(WINDOW);
    for key in 0..5_000 {
        check(&backend, key % 1_000, 0).unwrap();
    }
    assert!(backend.keys() < 100, "{} keys left", backend.keys());
}

#[test]
fn a_key_that_is_always_busy_is_never_forgotten() {
    let (backend, clock) = bounded(1_000);
    for _ in 0..100 {
        assert_eq!((check(&backend, 0, 2), check(&backend, 0, 1)), (Ok(true), Ok(false)));
        for other in 1..20 {
            check(&backend, other, 1).unwrap();
        }
        clock.advance(WINDOW);
    }
}

#[test]
fn many_threads_never_pass_the_bound_on_keys() {
    let (backend, _clock) = bounded(1_000);
    let barrier = Barrier::new(4);
    let admitted: usize = thread::scope(|scope| {
        let run = |thread: u32| {
            let (backend, barrier) = (&backend, &barrier);
            scope.spawn(move || {
                barrier.wait();
                (0..1_000).filter(|key| check(backend, thread * 1_000 + key, 1) == Ok(true)).count()
            })
        };
        let threads: Vec<_> = (0..4).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((admitted, backend.keys()), (1_000, 1_000));
}

#[test]
fn a_bound_of_zero_cannot_be_built() {
    let error = MemoryBackend::with_max_keys(0).unwrap_err();
    assert!(matches!(error, ConfigError::MaxKeys { given: 0, .. }));
    assert_eq!(error.to_string(), "at most 0 partition keys: the bound must be 1 to 4294967295");
}

#[test]
fn clones_share_their_state_and_other_backends_do_not() {
    let (backend, _clock) = bounded(10);
    assert_eq!(check(&backend, 0, 2), Ok(true));
    assert_eq!(check(&backend.clone(), 0, 1), Ok(false));
    assert_eq!(check(&MemoryBackend::new(), 0, 1), Ok(true));
}
