//! A cache of responses to denials that repeat, for each thread. Under an attack, most denials of a thread have the same response.
//!
//! It holds the policies of its denials until other denials take their entries, or the thread ends.

use std::cell::RefCell;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use smallvec::SmallVec;

use super::fields::whole_seconds;
use crate::{
    decision::{Decision, Listed, Status, Wait},
    policy::Policy,
};

/// The number of entries: enough for all waits of a policy with a window of one minute.
const ENTRIES: usize = 64;

thread_local! {
    /// Empty until the first denial.
    static RECENT: RefCell<Vec<Option<Entry>>> = const { RefCell::new(Vec::new()) };
}

/// The last denial of those with the same number.
struct Entry {
    text: Text,
    /// `None` until the denial repeats: a response that occurs once is not worth a copy.
    response: Option<(StatusCode, HeaderMap, Bytes)>,
}

/// All of a denial that a response may state. Different denials of the same text have the same response.
struct Text {
    statuses: SmallVec<[StatusText; 1]>,
    /// The policies of a decision that does not have all statuses.
    listed: Vec<Listed>,
}

struct StatusText {
    /// The same object, not an equal one: equal policies may differ in what a response may show.
    policy: Policy,
    is_shadow: bool,
    remaining: u32,
    next_after: u64,
    /// `None` if no wait helps.
    retry_after: Option<u64>,
}

/// Returns the response to a denial: a copy of an earlier one with the same text, or the one that `build` returns.
pub(super) fn response(decision: &Decision, build: impl Fn() -> Response<Bytes>) -> Response<Bytes> {
    // Copies to the place of the response: to return a copy from the closure would move it twice.
    let mut response = Response::new(Bytes::new());
    let is_copied = RECENT.try_with(|entries| {
        let Ok(mut entries) = entries.try_borrow_mut() else { return false };
        if entries.is_empty() {
            entries.resize_with(ENTRIES, || None);
        }
        let Some(entry) = entries.get_mut(number(decision)) else { return false };
        match entry {
            Some(entry) if entry.text.is_of(decision) => {
                entry.copy_to(&mut response, &build);
                true
            }
            _ => {
                *entry = Some(Entry { text: Text::of(decision), response: None });
                false
            }
        }
    });
    if !is_copied.unwrap_or(false) {
        response = build();
    }
    response
}

/// Returns the number of the entry of a denial. Other seconds, and usually other policies, have another one.
fn number(decision: &Decision) -> usize {
    decision.statuses().first().map_or(0, |status| {
        let seconds = whole_seconds(status.next_after());
        // Below `ENTRIES`.
        (seconds.wrapping_add(status.policy().number()) % ENTRIES as u64) as usize
    })
}

impl Entry {
    #[inline]
    fn copy_to(&mut self, response: &mut Response<Bytes>, build: impl Fn() -> Response<Bytes>) {
        let (status, headers, body) = self.response.get_or_insert_with(|| {
            let (parts, body) = build().into_parts();
            (parts.status, parts.headers, body)
        });
        *response.status_mut() = *status;
        *response.headers_mut() = headers.clone();
        *response.body_mut() = body.clone();
    }
}

impl Text {
    #[cold]
    fn of(decision: &Decision) -> Self {
        let statuses = decision.statuses().iter().map(StatusText::of).collect();
        Self { statuses, listed: decision.listed_apart().to_vec() }
    }

    fn is_of(&self, decision: &Decision) -> bool {
        let (statuses, listed) = (decision.statuses(), decision.listed_apart());
        self.statuses.len() == statuses.len()
            && self.listed.len() == listed.len()
            && self.statuses.iter().zip(statuses).all(|(text, status)| text.is_of(status))
            && self.listed.iter().zip(listed).all(|(text, listed)| {
                text.policy.is_same(&listed.policy) && text.is_shadow == listed.is_shadow
            })
    }
}

impl StatusText {
    fn of(status: &Status) -> Self {
        Self {
            policy: status.policy().clone(),
            is_shadow: status.is_shadow(),
            remaining: status.remaining(),
            next_after: whole_seconds(status.next_after()),
            retry_after: retry_after(status),
        }
    }

    fn is_of(&self, status: &Status) -> bool {
        self.policy.is_same(status.policy())
            && self.is_shadow == status.is_shadow()
            && self.remaining == status.remaining()
            && self.next_after == whole_seconds(status.next_after())
            && self.retry_after == retry_after(status)
    }
}

fn retry_after(status: &Status) -> Option<u64> {
    match status.retry_after() {
        // 0 only for a pair that does not deny.
        Wait::For(wait) => Some(whole_seconds(wait)),
        Wait::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::header;

    use super::*;
    use crate::{
        answer::{Answer, Dialect, Problem},
        check::{Check, Pair},
        head::Head,
        key::PartitionKey,
        limiter::Rejection,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(name: &str, quota: u32) -> Policy {
        Policy::new(name, quota, Duration::from_secs(60)).unwrap()
    }

    fn pair(policy: &Policy) -> Pair {
        Pair::new(PartitionKey::new("user", "a"), policy.clone(), 1)
    }

    /// Returns the status of a pair; without a wait, one that no wait helps.
    fn status(pair: &Pair, remaining: u32, wait: impl Into<Option<Duration>>, next: Duration) -> Status {
        Status::new(pair, remaining, wait.into().map_or(Wait::Never, Wait::For), next, next)
    }

    /// Compares every response with one that is built for itself: of the first denial of a text, of the second one, which is
    /// kept, and of later ones.
    #[test]
    fn repeated_response_equals_first_one() {
        let (plain, other) = (policy("a", 10), policy("b", 10));
        let hidden = other.clone().hidden();
        let [of_plain, of_other] = [&plain, &other].map(pair);
        let denied = status(&of_plain, 0, SECOND, SECOND);
        let single: Vec<Status> = vec![
            denied.clone(),
            status(&of_plain, 1, SECOND, SECOND),
            status(&of_plain, 0, 17 * SECOND, SECOND),
            status(&of_plain, 0, SECOND, 17 * SECOND),
            status(&of_plain, 0, None, SECOND),
            status(&of_plain, 0, SECOND, Duration::MAX),
            status(&of_other, 0, SECOND, SECOND),
            // Equal to the policy of the last one, and hidden.
            status(&pair(&hidden), 0, SECOND, SECOND),
            status(&pair(&policy("a", 11)), 0, SECOND, SECOND),
        ];
        let admits = status(&of_other, 3, Duration::ZERO, SECOND);
        let in_shadow = status(&of_other.clone().shadow(), 0, SECOND, SECOND);
        let lists = single.into_iter().map(|status| vec![status]).chain([
            vec![denied.clone(), admits.clone()],
            vec![admits, denied.clone()],
            vec![denied.clone(), status(&of_other, 0, SECOND, SECOND)],
            vec![denied.clone(), in_shadow],
        ]);
        let mut decisions: Vec<Decision> = lists.map(|statuses| Decision::new(0, statuses)).collect();
        let check = |second: Pair| Check::new([of_plain.clone(), second]).unwrap();
        let mut known = [false; crate::check::MAX_PAIRS];
        known[0] = true;
        for second in [of_other.clone(), of_other.shadow(), pair(&hidden)] {
            decisions.push(Decision::cached(0, [denied.clone()].into(), &check(second), known));
        }
        let request = http::Request::new(());
        let mut responses = Vec::new();
        // Each text after each other one.
        for (first, second) in decisions.iter().flat_map(|a| decisions.iter().map(move |b| (a, b))) {
            for decision in [first, first, first, second, second] {
                let rejection = Rejection::Denied(decision.clone());
                let response = Problem.response(&rejection, &Head::from(&request));
                let mut built = Problem.reject(&rejection, &Head::from(&request));
                Dialect::Draft11.add_fields(decision, built.headers_mut());
                assert_eq!((response.status(), response.headers()), (built.status(), built.headers()));
                assert_eq!(response.body(), built.body());
                responses.push((response.headers().clone(), response.into_body()));
            }
        }
        // The comparison is of different responses.
        responses.dedup();
        assert!(responses.len() > decisions.len() * decisions.len(), "{}", responses.len());
        assert!(responses.iter().any(|(headers, _)| !headers.contains_key(header::RETRY_AFTER)));
    }

    #[test]
    fn denial_that_repeats_is_built_twice() {
        let pair = pair(&policy("a", 10));
        let built = std::cell::Cell::new(0);
        let build = |micros| {
            // Other microseconds of the same second, and the second after it.
            let wait = Duration::from_micros(micros);
            response(&Decision::new(0, [status(&pair, 0, wait, wait)]), || {
                built.set(built.get() + 1);
                Response::new(Bytes::from(micros.to_string()))
            })
        };
        let bodies = [3, 5, 7, 9, 1_000_001, 1_000_002].map(|micros| build(micros).into_body());
        assert_eq!(bodies, ["3", "5", "5", "5", "1000001", "1000002"]);
        assert_eq!(built.get(), 4);
    }

    /// The waits of many keys under a policy of one minute.
    #[test]
    fn each_wait_of_a_minute_has_its_entry() {
        let pair = pair(&policy("a", 10));
        let built = std::cell::Cell::new(0);
        for n in 0..600 {
            let wait = (n % 60 + 1) * SECOND;
            response(&Decision::new(0, [status(&pair, 0, wait, wait)]), || {
                built.set(built.get() + 1);
                Response::default()
            });
        }
        assert_eq!(built.get(), 120);
    }
}
