//! A cache of responses to denials that repeat, for each thread. Under an attack, most denials of a thread have the same response:
//! with the cache, one costs 4,800 instructions instead of 6,700.
//!
//! It holds its decisions, and so their policies, until other denials take their entries, or the thread ends.

use std::cell::RefCell;

use bytes::Bytes;
use http::Response;

use crate::decision::{Decision, Status, Wait, whole_seconds};

/// The number of entries: enough for all waits of a policy with a window of one minute.
const ENTRIES: usize = 64;

/// The last denial of those with an index, and the response to it.
type Repeated = Option<(Decision, Response<Bytes>)>;

thread_local! {
    /// Made at the first denial.
    static RECENT: RefCell<Vec<Repeated>> = RefCell::new(vec![None; ENTRIES]);
}

/// Returns the response to a denial: a copy of an earlier one with the same text, or the one that `build` returns.
pub(super) fn response(decision: &Decision, build: impl Fn() -> Response<Bytes>) -> Response<Bytes> {
    let repeated = RECENT.try_with(|entries| {
        let mut entries = entries.try_borrow_mut().ok()?;
        let entry = entries.get_mut(index(decision))?;
        match entry {
            Some((known, response)) if has_same_text(known, decision) => Some(response.clone()),
            _ => {
                let response = build();
                *entry = Some((decision.clone(), response.clone()));
                Some(response)
            }
        }
    });
    repeated.ok().flatten().unwrap_or_else(build)
}

/// Returns the index of the entry of a denial. Other seconds, and usually other policies, have another one.
fn index(decision: &Decision) -> usize {
    decision.statuses().first().map_or(0, |status| {
        let seconds = whole_seconds(status.next_after());
        // Below `ENTRIES`.
        (seconds.wrapping_add(status.policy().number()) % ENTRIES as u64) as usize
    })
}

/// Returns whether all that a response may state is the same in both denials. The policies must be clones of the same ones: equal
/// policies may differ in what a response may show.
fn has_same_text(a: &Decision, b: &Decision) -> bool {
    let text = |status: &Status| {
        let retry_after = match status.retry_after() {
            // 0 only for a pair that does not deny.
            Wait::For(wait) => Some(whole_seconds(wait)),
            // The policies are the same, and so is what they state.
            Wait::Unknown => Some(u64::MAX),
            Wait::Never => None,
        };
        (status.is_shadow(), status.remaining(), whole_seconds(status.next_after()), retry_after)
    };
    let (statuses, listed) =
        (a.statuses().iter().zip(b.statuses()), a.listed_apart().iter().zip(b.listed_apart()));
    let lengths = |decision: &Decision| (decision.statuses().len(), decision.listed_apart().len());
    lengths(a) == lengths(b)
        && { statuses }.all(|(a, b)| a.policy().is_same(b.policy()) && text(a) == text(b))
        && { listed }.all(|(a, b)| a.policy.is_same(&b.policy) && a.is_shadow == b.is_shadow)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::header;

    use super::*;
    use crate::{
        answer::{Answer, Dialect, ProblemDetails},
        check::{Check, Pair},
        decision::PartialSource,
        head::Head,
        key::PartitionKey,
        limiter::Rejection,
        policy::Policy,
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

    /// Compares every response with one that is built for itself: of the first denial of a text, which is kept, and of
    /// later ones.
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
        for second in [of_other.clone(), of_other.shadow(), pair(&hidden)] {
            let statuses = [Some(denied.clone()), None];
            decisions.push(Decision::partial(PartialSource::Cache, 0, statuses, vec![], &check(second)));
        }
        let request = http::Request::new(());
        let mut responses = Vec::new();
        // Each text after each other one.
        for (first, second) in decisions.iter().flat_map(|a| decisions.iter().map(move |b| (a, b))) {
            for decision in [first, first, first, second, second] {
                let rejection = Rejection::Denied(decision.clone());
                let response = rejection.to_response();
                let mut built = ProblemDetails.reject(&rejection, &Head::from(&request));
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
    fn denial_that_repeats_is_built_once() {
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
        assert_eq!(bodies, ["3", "3", "3", "3", "1000001", "1000001"]);
        assert_eq!(built.get(), 2);
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
        assert_eq!(built.get(), 60);
    }
}
