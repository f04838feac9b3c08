//! The header fields of a decision: pure, and the only place where a wait is rounded.
//!
//! The formats are those of the IETF draft "RateLimit header fields for HTTP", revision 11, and of RFC 9110 for
//! `Retry-After`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use sfv::{KeyRef, ListSerializer, StringRef};

use crate::{
    decision::{Decision, Wait},
    policy::Policy,
};

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Adds `RateLimit-Policy` and `RateLimit`, and for a denial `Retry-After`. What nested layers have said stays.
pub(super) fn add(headers: &mut HeaderMap, decision: &Decision) {
    append_members(headers, RATELIMIT_POLICY, policies(decision));
    append_members(headers, RATELIMIT, limits(decision));
    if let (false, Wait::For(wait)) = (decision.is_admitted(), decision.retry_after()) {
        let there = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let seconds = whole_seconds(wait);
        if there.is_none_or(|there: u64| there < seconds) {
            headers.insert(RETRY_AFTER, seconds.into());
        }
    }
}

/// `"burst";q=10;w=1`: what is in force. The window is left out where it is not whole seconds.
fn policies(decision: &Decision) -> Option<String> {
    let policies = decision.policies().map(|policy| (policy, policy));
    list(policies, |policy, member| {
        let member = member.parameter(KeyRef::constant("q"), policy.quota());
        let window = policy.window();
        if window.subsec_nanos() == 0 {
            // At most 366 days.
            member.parameter(KeyRef::constant("w"), window.as_secs() as u32);
        }
    })
}

/// `"burst";r=7;t=1`: for `t` seconds no more than `r` can be used.
fn limits(decision: &Decision) -> Option<String> {
    let statuses = decision.statuses().iter().map(|status| (status.policy(), status));
    list(statuses, |status, member| {
        let member = member.parameter(KeyRef::constant("r"), status.remaining());
        if let Ok(seconds) = u32::try_from(whole_seconds(status.next_after())) {
            member.parameter(KeyRef::constant("t"), seconds);
        }
    })
}

/// A member for each of these, named after its policy.
fn list<'a, T>(
    members: impl Iterator<Item = (&'a Policy, T)>,
    parameters: impl Fn(T, sfv::ParameterSerializer<&mut String>),
) -> Option<String> {
    let mut list = ListSerializer::new();
    for (policy, member) in members {
        // Never an error: names are printable ASCII, which is what a String may hold.
        if let Ok(name) = StringRef::from_str(policy.name()) {
            parameters(member, list.bare_item(name));
        }
    }
    list.finish()
}

/// Adds members to a list field. They join the line that is there, for clients that read only one.
fn append_members(headers: &mut HeaderMap, name: HeaderName, members: Option<String>) {
    let Some(members) = members else { return };
    let there = headers.get_all(&name).iter().filter_map(|value| value.to_str().ok());
    let joined = there.chain([members.as_str()]).collect::<Vec<_>>().join(", ");
    if let Ok(value) = HeaderValue::try_from(joined) {
        headers.insert(name, value);
    }
}

/// Whole seconds, rounded up: a client that waits so long has waited long enough. At least 1 unless it is zero.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::Pair, decision::Status, key::PartitionKey};

    fn status(name: &str, window: Duration, remaining: u32, retry: Wait, next: Duration) -> Status {
        let policy = Policy::new(name, 10, window).unwrap();
        let pair = Pair::new(PartitionKey::new("user", "a"), policy, 1);
        Status::new(&pair, remaining, retry, next, next)
    }

    fn fields(decision: &Decision, mut headers: HeaderMap) -> Vec<(String, String)> {
        add(&mut headers, decision);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    const SECOND: Duration = Duration::from_secs(1);
    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn an_admission_tells_policies_and_limits() {
        let decision = Decision::new(
            0,
            [
                status("burst", SECOND, 7, Wait::ZERO, SECOND),
                status("a \"b\\", Duration::from_millis(1500), 0, Wait::ZERO, SECOND + MICRO),
            ],
        );
        assert_eq!(
            fields(&decision, HeaderMap::new()),
            [
                pair("ratelimit-policy", r#""burst";q=10;w=1, "a \"b\\";q=10"#),
                pair("ratelimit", r#""burst";r=7;t=1, "a \"b\\";r=0;t=2"#),
            ]
        );
    }

    #[test]
    fn waits_are_rounded_up_and_never_to_zero() {
        for (wait, seconds) in [(MICRO, "1"), (SECOND, "1"), (SECOND + MICRO, "2"), (7 * SECOND, "7")] {
            let decision = Decision::new(0, [status("p", SECOND, 0, Wait::For(wait), wait)]);
            assert_eq!(
                fields(&decision, HeaderMap::new()),
                [
                    pair("ratelimit-policy", r#""p";q=10;w=1"#),
                    pair("ratelimit", &format!(r#""p";r=0;t={seconds}"#)),
                    pair("retry-after", seconds),
                ]
            );
        }
    }

    #[test]
    fn no_wait_is_told_where_none_helps() {
        let decision = Decision::new(0, [status("p", SECOND, 10, Wait::Never, SECOND)]);
        assert!(fields(&decision, HeaderMap::new()).iter().all(|(name, _)| name != "retry-after"));
    }

    #[test]
    fn what_a_nested_layer_said_stays_and_the_later_retry_after_stands() {
        for (there, stands) in [("3", "7"), ("9", "9"), ("soon", "7")] {
            let mut headers = HeaderMap::new();
            headers.insert("ratelimit", HeaderValue::from_static(r#""inner";r=1;t=1"#));
            headers.insert("retry-after", HeaderValue::from_static(there));
            let decision = Decision::new(0, [status("p", SECOND, 0, Wait::For(7 * SECOND), 7 * SECOND)]);
            let fields = fields(&decision, headers);
            assert!(fields.contains(&pair("ratelimit", r#""inner";r=1;t=1, "p";r=0;t=7"#)), "{fields:?}");
            assert!(fields.contains(&pair("retry-after", stands)), "{fields:?}");
        }
    }
}
