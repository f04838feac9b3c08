//! The header fields of a decision.
//!
//! The formats are those of the IETF draft "RateLimit header fields for HTTP", revisions 6, 7 and 11, and of RFC 9110 for
//! `Retry-After`. The legacy fields have no standard.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    mem::discriminant,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use httpdate::parse_http_date;
use sfv::{DictSerializer, KeyRef, List, ListEntry, ListSerializer, Parser, StringRef};
use smallvec::SmallVec;

use crate::{
    decision::{Decision, Status, Wait, whole_seconds},
    lock::Lock,
    policy::{Policy, PolicyText},
    random,
};

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const DRAFT_6: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// What clients of language models prefer to `Retry-After`. It has no standard.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// A line of a list field of several policies. Most lines need no memory of the heap.
type Line = SmallVec<[u8; 128]>;

/// The settings of `Retry-After`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetryAfter {
    /// The largest time that is added to the wait.
    pub(crate) max_jitter: Duration,
    /// Whether `retry-after-ms` states the same wait in milliseconds.
    pub(crate) states_millis: bool,
}

/// Adds `RateLimit-Policy` and `RateLimit`. The members of nested layers are kept.
#[inline]
pub(super) fn add_draft_11(headers: &mut HeaderMap, decision: &Decision) {
    let (policies, limits) = match decision.only_shown() {
        // The usual case. Its members are the whole lines.
        Some(status) => {
            let line = Bytes::from(concatenate(limit(status, &mut Default::default())));
            (Some(text(status.policy()).policy.clone()), HeaderValue::from_maybe_shared(line).ok())
        }
        None => lines(decision),
    };
    // As `add_members`, without a clone of the names, because every response has these fields.
    if let Some(policies) = policies
        && headers.append(RATELIMIT_POLICY, policies)
    {
        join_lines(headers, RATELIMIT_POLICY);
    }
    if let Some(limits) = limits
        && headers.append(RATELIMIT, limits)
    {
        join_lines(headers, RATELIMIT);
    }
}

/// Adds `RateLimit-Policy` of revision 11, and `RateLimit` in the form that the next revision will probably have.
pub(super) fn add_draft_next(headers: &mut HeaderMap, decision: &Decision) {
    let mut list = ListSerializer::new();
    for status in decision.shown_statuses() {
        // This cannot fail: names are printable ASCII, as RFC 9651 requires for a String.
        let Ok(name) = StringRef::from_str(status.policy().name()) else { continue };
        let member = list.bare_item(name).parameter(KeyRef::constant("a"), status.remaining());
        let member = match u32::try_from(whole_seconds(status.next_after())) {
            Ok(seconds) if !status.policy().properties().is_held => {
                member.parameter(KeyRef::constant("w"), seconds)
            }
            _ => member,
        };
        let _ = member.parameter(KeyRef::constant("c"), status.cost());
    }
    add_members(headers, RATELIMIT_POLICY, lines(decision).0);
    add_members(headers, RATELIMIT, list.finish().and_then(|list| HeaderValue::try_from(list).ok()));
}

/// Adds `RateLimit` as a dictionary for the status that limits the client most, and `RateLimit-Policy` of that revision.
pub(super) fn add_draft_7(headers: &mut HeaderMap, decision: &Decision) {
    let remaining = |value: &HeaderValue| {
        value.to_str().ok()?.split(", ").find_map(|member| member.strip_prefix("remaining=")?.parse().ok())
    };
    let current = headers.get(RATELIMIT).and_then(remaining);
    if let Some(status) = most_limiting(decision)
        && current.is_none_or(|current: u32| status.remaining() < current)
    {
        let mut fields = DictSerializer::new();
        let _ = fields.bare_item(KeyRef::constant("limit"), status.policy().quota_units());
        let _ = fields.bare_item(KeyRef::constant("remaining"), status.remaining());
        let reset = whole_seconds(reset(status)).try_into().unwrap_or(u32::MAX);
        let _ = fields.bare_item(KeyRef::constant("reset"), reset);
        if let Some(value) = fields.finish().and_then(|fields| HeaderValue::try_from(fields).ok()) {
            headers.insert(RATELIMIT, value);
        }
    }
    add_quota_policies(headers, decision);
}

/// Adds `RateLimit-Limit`, `-Remaining` and `-Reset` for the status that limits the client most, and `RateLimit-Policy` of that
/// revision.
pub(super) fn add_draft_6(headers: &mut HeaderMap, decision: &Decision) {
    if let Some(status) = most_limiting(decision) {
        add_unless_smaller(headers, DRAFT_6, status, whole_seconds(reset(status)).into());
    }
    add_quota_policies(headers, decision);
}

/// Adds `RateLimit-Policy` of revisions 6 and 7: quotas, each with its window in seconds.
fn add_quota_policies(headers: &mut HeaderMap, decision: &Decision) {
    let mut list = ListSerializer::new();
    for policy in decision.shown_policies() {
        if let Some(seconds) = whole_window(policy) {
            let _ = list.bare_item(policy.quota_units()).parameter(KeyRef::constant("w"), seconds);
        }
    }
    add_members(headers, RATELIMIT_POLICY, list.finish().and_then(|list| HeaderValue::try_from(list).ok()));
}

/// Adds members to a list field. The members of nested layers are kept.
fn add_members(headers: &mut HeaderMap, name: HeaderName, members: Option<HeaderValue>) {
    if let Some(members) = members
        && headers.append(&name, members)
    {
        // Some clients read only one line of a list field.
        join_lines(headers, name);
    }
}

/// Returns the status that limits the client most: of a denial, the one with the longest wait, and otherwise the one with the smallest
/// remaining quota.
fn most_limiting(decision: &Decision) -> Option<&Status> {
    let limits_most =
        |status: &&Status| (status.stated_wait(), Reverse(status.remaining()), status.reset_after());
    decision.shown_statuses().max_by_key(limits_most)
}

/// Returns the time until nothing is used, and of a denial at least its wait: otherwise, a policy in flight would state 0.
fn reset(status: &Status) -> Duration {
    match status.stated_wait() {
        Wait::For(wait) => wait.max(status.reset_after()),
        Wait::Unknown | Wait::Never => status.reset_after(),
    }
}

/// Returns the lines of any decision. A line without members is `None`.
fn lines(decision: &Decision) -> (Option<HeaderValue>, Option<HeaderValue>) {
    let (mut policies, mut limits) = (Line::new(), Line::new());
    decision.shown_policies().for_each(|policy| extend(&mut policies, &[text(policy).policy.as_bytes()]));
    decision.shown_statuses().for_each(|status| extend(&mut limits, &limit(status, &mut Default::default())));
    let value = |line: Line| HeaderValue::from_bytes(&line).ok().filter(|_| !line.is_empty());
    (value(policies), value(limits))
}

/// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset` for the status that limits the client most. `now` is added to the
/// reset.
pub(super) fn add_legacy(headers: &mut HeaderMap, decision: &Decision, now: Duration) {
    if let Some(status) = most_limiting(decision) {
        let reset = whole_seconds(now.saturating_add(reset(status)));
        add_unless_smaller(headers, LEGACY, status, reset.into());
    }
}

/// Adds `x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` for every status, named after its policy.
pub(super) fn add_by_policy(headers: &mut HeaderMap, decision: &Decision) {
    for status in decision.shown_statuses() {
        let name = |part: &str| {
            HeaderName::from_bytes(format!("x-ratelimit-{part}-{}", status.policy().name()).as_bytes())
        };
        let Ok(reset) = HeaderValue::try_from(duration(reset(status))) else { continue };
        if let (Ok(limit), Ok(remaining), Ok(name)) = (name("limit"), name("remaining"), name("reset")) {
            add_unless_smaller(headers, [limit, remaining, name], status, reset);
        }
    }
}

/// Adds `Retry-After` to a denial, unless no wait helps or the field already has a larger value.
pub(super) fn add_retry_after(headers: &mut HeaderMap, decision: &Decision, settings: RetryAfter) {
    let Wait::For(wait) = decision.retry_after() else { return };
    let wait = wait.saturating_add(random::up_to(settings.max_jitter));
    let seconds = whole_seconds(wait);
    let stated = stated_retry_after(headers);
    set_if_larger(headers, RETRY_AFTER, stated, seconds);
    if settings.states_millis {
        // If the response has a longer wait, both fields state it.
        let longer = stated.filter(|stated| *stated > seconds);
        let millis = number(headers, &RETRY_AFTER_MS);
        let is_stated = |seconds| millis.is_some_and(|millis| millis.div_ceil(1_000) >= seconds);
        match longer {
            Some(seconds) if is_stated(seconds) => {}
            Some(seconds) => set_if_larger(headers, RETRY_AFTER_MS, millis, seconds.saturating_mul(1_000)),
            None => set_if_larger(headers, RETRY_AFTER_MS, millis, whole_millis(wait)),
        }
    }
}

/// Returns the wait that `Retry-After` states, in seconds: a number, or the time until an HTTP date, rounded up.
fn stated_retry_after(headers: &HeaderMap) -> Option<u64> {
    let stated = headers.get(RETRY_AFTER)?.to_str().ok()?;
    stated.parse().ok().or_else(|| {
        let date = parse_http_date(stated).ok()?;
        Some(whole_seconds(date.duration_since(SystemTime::now()).unwrap_or_default()))
    })
}

fn set_if_larger(headers: &mut HeaderMap, name: HeaderName, current: Option<u64>, value: u64) {
    // One allocation. `HeaderValue::from(u64)` needs two.
    if current.is_none_or(|current| current < value)
        && let Ok(value) = HeaderValue::from_str(itoa::Buffer::new().format(value))
    {
        headers.insert(name, value);
    }
}

/// Sets the fields of a limit, its remaining quota and its reset, unless the response has the fields of a smaller remaining quota.
fn add_unless_smaller(headers: &mut HeaderMap, names: [HeaderName; 3], status: &Status, reset: HeaderValue) {
    let [limit, remaining, reset_name] = names;
    if number(headers, &remaining).is_none_or(|current| u64::from(status.remaining()) < current) {
        headers.insert(limit, status.policy().quota_units().into());
        headers.insert(remaining, status.remaining().into());
        headers.insert(reset_name, reset);
    }
}

/// Returns the value of a header that is a number.
fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Formats a duration such as `7s`, `6m0s` or `1h0m30s`: in whole seconds, rounded up, without leading units of 0.
fn duration(wait: Duration) -> String {
    let seconds = whole_seconds(wait);
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Returns `"burst";q=10;w=1`, `"burst";r=` and `"burst"`. `w` is omitted if the window is not a whole number of seconds. A policy in
/// flight has the unit `qu="concurrent-requests"`.
pub(super) fn text(policy: &Policy) -> &PolicyText {
    policy.text(|| {
        let (mut list, mut name_only) = (ListSerializer::new(), ListSerializer::new());
        // This cannot fail: names are printable ASCII, as RFC 9651 requires for a String.
        if let Ok(name) = StringRef::from_str(policy.name()) {
            let member = list.bare_item(name).parameter(KeyRef::constant("q"), policy.quota_units());
            if let Some(seconds) = whole_window(policy) {
                let _ = member.parameter(KeyRef::constant("w"), seconds);
            } else if policy.properties().is_held {
                let _ = member.parameter(KeyRef::constant("qu"), StringRef::constant("concurrent-requests"));
            }
            let _ = name_only.bare_item(name);
        }
        let member = list.finish().and_then(repeated);
        let name = name_only.finish().unwrap_or_default();
        PolicyText {
            policy: member.unwrap_or(HeaderValue::from_static("")),
            limit_start: [name.as_bytes(), b";r="].concat().into(),
            json_name: serde_json::to_vec(policy.name()).unwrap_or_default().into(),
        }
    })
}

/// Returns a value that many responses repeat. The first values of a process are kept until its end: their clones share no counter, which
/// threads would change in turn.
fn repeated(line: String) -> Option<HeaderValue> {
    /// The values of most services. A service that invents policies has more.
    const MAX_KEPT: usize = 256;
    static KEPT: Lock<BTreeSet<&'static str>> = Lock::new(BTreeSet::new());
    static IS_FULL: AtomicBool = AtomicBool::new(false);
    if IS_FULL.load(Ordering::Relaxed) {
        return HeaderValue::try_from(line).ok();
    }
    let mut kept = KEPT.lock();
    let line = kept.get(line.as_str()).copied().unwrap_or_else(|| line.leak());
    kept.insert(line);
    IS_FULL.store(kept.len() >= MAX_KEPT, Ordering::Relaxed);
    HeaderValue::from_maybe_shared(Bytes::from_static(line.as_bytes())).ok()
}

/// Returns the window in seconds, if it is a whole number of them.
fn whole_window(policy: &Policy) -> Option<u32> {
    // At most 366 days.
    policy.window().filter(|window| window.subsec_nanos() == 0).map(|window| window.as_secs() as u32)
}

/// Returns the parts of `"burst";r=7;t=1`: within `t` seconds, the client can use no more than `r`.
#[inline]
fn limit<'a>(status: &'a Status, digits: &'a mut [itoa::Buffer; 2]) -> [&'a [u8]; 4] {
    let start = &text(status.policy()).limit_start;
    let [remaining, seconds] = digits;
    let remaining = remaining.format(status.remaining()).as_bytes();
    match u32::try_from(whole_seconds(status.next_after())) {
        // Units in flight may return at any time.
        Ok(next) if !status.policy().properties().is_held => {
            [start, remaining, b";t=", seconds.format(next).as_bytes()]
        }
        _ => [start, remaining, b"", b""],
    }
}

/// Concatenates parts in a vector of the exact size, so that `Bytes` does not copy them again.
#[inline]
pub(super) fn concatenate<'a>(parts: impl IntoIterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.clone().into_iter().map(<[u8]>::len).sum());
    parts.into_iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// Adds a member of these parts to the line of a list field.
fn extend(line: &mut Line, member: &[&[u8]]) {
    if !line.is_empty() {
        line.extend_from_slice(b", ");
    }
    member.iter().for_each(|part| line.extend_from_slice(part));
}

/// Joins the lines of a list field to one. If this is not a list of items of one type, the last line replaces the others: a client would
/// ignore the whole field (RFC 9651, section 4.2).
fn join_lines(headers: &mut HeaderMap, name: HeaderName) {
    let (mut line, lines) = (Line::new(), headers.get_all(&name));
    lines.iter().for_each(|value| extend(&mut line, &[value.as_bytes()]));
    let joined = HeaderValue::from_bytes(&line).ok().filter(|_| is_list(&line));
    if let Some(value) = joined.or_else(|| lines.iter().next_back().cloned()) {
        headers.insert(name, value);
    }
}

/// Returns whether a line is a list of items of one type: names, or quotas in the drafts 6 and 7.
fn is_list(line: &[u8]) -> bool {
    let are_alike = |pair: &[ListEntry]| match pair {
        [ListEntry::Item(a), ListEntry::Item(b)] => discriminant(&a.bare_item) == discriminant(&b.bare_item),
        _ => false,
    };
    Parser::new(line).parse::<List>().is_ok_and(|list| list.windows(2).all(are_alike))
}

/// Rounds a wait up to whole milliseconds.
pub(super) fn whole_millis(wait: Duration) -> u64 {
    // At most 2^64-1, which is far beyond any wait.
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::Pair, key::PartitionKey};

    /// More values than are kept.
    #[test]
    fn repeated_value_is_the_same_whether_it_is_kept() {
        for i in (0..1_000).chain(0..1_000) {
            let line = format!("\"policy {i}\";q=1");
            assert_eq!(repeated(line.clone()).unwrap(), line);
        }
        assert_eq!(repeated("\n".to_owned()), None);
    }

    fn status(name: &str, window: Duration, remaining: u32, retry: Wait, next: Duration) -> Status {
        let policy = Policy::new(name, 10, window).unwrap();
        let pair = Pair::new(PartitionKey::new("user", "a"), policy, 1);
        Status::new(&pair, remaining, retry, next, next)
    }

    fn fields(decision: &Decision, mut headers: HeaderMap) -> Vec<(String, String)> {
        add_draft_11(&mut headers, decision);
        if !decision.is_admitted() {
            add_retry_after(&mut headers, decision, RetryAfter::default());
        }
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    const SECOND: Duration = Duration::from_secs(1);
    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn admission_lists_policies_and_limits() {
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
    fn wait_rounds_up_to_at_least_one_second() {
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
    fn retry_after_is_omitted_if_no_wait_helps() {
        let decision = Decision::new(0, [status("p", SECOND, 10, Wait::Never, SECOND)]);
        assert!(fields(&decision, HeaderMap::new()).iter().all(|(name, _)| name != "retry-after"));
    }

    /// A policy in flight states a wait of one second.
    #[test]
    fn fields_of_one_policy_state_longest_wait() {
        let running = Policy::in_flight("running", 5).unwrap();
        let running = Pair::new(PartitionKey::new("user", "a"), running, 1);
        let running = Status::new(&running, 0, Wait::Unknown, Duration::ZERO, Duration::ZERO);
        let daily = status("daily", SECOND, 0, Wait::For(7 * SECOND), 7 * SECOND);
        let statuses = [(vec![daily, running.clone()], 10, "7"), (vec![running], 5, "1")];
        for (statuses, limit, reset) in statuses {
            let decision = Decision::new(0, statuses);
            let mut headers = HeaderMap::new();
            add_draft_7(&mut headers, &decision);
            add_draft_6(&mut headers, &decision);
            add_legacy(&mut headers, &decision, Duration::ZERO);
            let dictionary = format!("limit={limit}, remaining=0, reset={reset}");
            assert_eq!(headers[&RATELIMIT], dictionary);
            assert_eq!([&headers[&DRAFT_6[2]], &headers[&LEGACY[2]]], [reset, reset]);
        }
    }

    #[test]
    fn nested_fields_join_and_later_retry_after_wins() {
        for (current, expected) in [("3", "7"), ("9", "9"), ("soon", "7")] {
            let mut headers = HeaderMap::new();
            headers.insert("ratelimit", HeaderValue::from_static(r#""inner";r=1;t=1"#));
            headers.insert("retry-after", HeaderValue::from_static(current));
            let decision = Decision::new(0, [status("p", SECOND, 0, Wait::For(7 * SECOND), 7 * SECOND)]);
            let fields = fields(&decision, headers);
            assert!(fields.contains(&pair("ratelimit", r#""inner";r=1;t=1, "p";r=0;t=7"#)), "{fields:?}");
            assert!(fields.contains(&pair("retry-after", expected)), "{fields:?}");
        }
    }

    #[test]
    fn later_date_in_retry_after_wins() {
        let date = |seconds| httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds));
        let (past, later) = ("Wed, 25 Nov 2015 12:00:00 GMT".to_owned(), date(3_600));
        for (current, expected) in [(past, "7"), (date(2), "7"), (later.clone(), &*later)] {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", current.parse().unwrap());
            let decision = Decision::new(0, [status("p", SECOND, 0, Wait::For(7 * SECOND), 7 * SECOND)]);
            let settings = RetryAfter { states_millis: true, ..RetryAfter::default() };
            add_retry_after(&mut headers, &decision, settings);
            assert_eq!(headers[&RETRY_AFTER], expected, "{current}");
            // Both fields state the longer wait.
            let millis = number(&headers, &RETRY_AFTER_MS).unwrap();
            assert_eq!(millis >= 3_590_000, expected != "7", "{current}: {millis}");
        }
    }

    /// Any policies, in nested layers, each time from the cache and not from the cache.
    #[test]
    fn fields_equal_those_of_serializer() {
        let names = [r#"";q=9;w=1"#, r#"\";q="#, r"\\", "\"", "a, b;t=3", " ~", &"\"\\".repeat(32)];
        let printable: Vec<String> = (b' '..=b'~').map(|byte| char::from(byte).to_string()).collect();
        let names = names.into_iter().chain(printable.iter().map(String::as_str));
        let windows = [SECOND, MICRO * 1_000, 366 * 86_400 * SECOND];
        let nexts = [Duration::ZERO, MICRO, SECOND, Duration::from_secs(1 << 32), Duration::MAX];
        let statuses: Vec<Status> = names
            .enumerate()
            .map(|(i, name)| {
                let next = nexts[i % nexts.len()];
                status(name, windows[i % windows.len()], [0, 7, u32::MAX][i % 3], Wait::ZERO, next)
            })
            .collect();
        for layer_size in 1..=8 {
            let (mut policies, mut limits) = (ListSerializer::new(), ListSerializer::new());
            let mut headers = HeaderMap::new();
            for layer in statuses.chunks(layer_size) {
                for status in layer {
                    let policy = status.policy();
                    let name = || StringRef::from_str(policy.name()).unwrap();
                    let member = policies.bare_item(name());
                    let member = member.parameter(KeyRef::constant("q"), policy.quota_units());
                    let window = policy.window().unwrap();
                    if window.subsec_nanos() == 0 {
                        let _ = member.parameter(KeyRef::constant("w"), window.as_secs() as u32);
                    }
                    let member = limits.bare_item(name());
                    let member = member.parameter(KeyRef::constant("r"), status.remaining());
                    if let Ok(seconds) = u32::try_from(whole_seconds(status.next_after())) {
                        let _ = member.parameter(KeyRef::constant("t"), seconds);
                    }
                }
                add_draft_11(&mut headers, &Decision::new(0, layer));
            }
            assert_eq!(headers[&RATELIMIT_POLICY], policies.finish().unwrap());
            assert_eq!(headers[&RATELIMIT], limits.finish().unwrap());
        }
    }

    #[test]
    fn duration_has_no_leading_units_of_zero() {
        for (seconds, text) in [
            (0, "0s"),
            (7, "7s"),
            (60, "1m0s"),
            (360, "6m0s"),
            (3_630, "1h0m30s"),
            (86_400 + 61, "24h1m1s"),
            (u64::from(u32::MAX), "1193046h28m15s"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
        assert_eq!(duration(MICRO), "1s");
    }
}
