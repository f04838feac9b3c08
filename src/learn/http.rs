//! The header fields in which an API states its limits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{AGE, AsHeaderName, DATE, RETRY_AFTER},
};
use httpdate::parse_http_date;
use sfv::{BareItem, List, ListEntry, Parameters, Parser};

use super::{Stated, StatedQuota};

/// The smallest `reset` that is an instant in Unix time, and not a length: 10^9 s.
const MIN_UNIX_TIME: Duration = Duration::from_secs(1_000_000_000);

/// The smallest `reset` that is an instant in milliseconds of Unix time: one in the year 2001, and no number of seconds before the year 33,658.
const MIN_UNIX_MILLIS: Duration = Duration::from_secs(1_000_000_000_000);

/// The number of members of a list field that are read. Each limit is compared with each policy.
const MAX_MEMBERS: usize = 64;

impl Stated {
    /// Reads the header fields of a response:
    ///
    /// | fields | of |
    /// | --- | --- |
    /// | `Retry-After`: seconds or an HTTP date; `retry-after-ms` | a 429, a 503 or a 403 |
    /// | `RateLimit` and `RateLimit-Policy` | the IETF drafts 7 to 11 |
    /// | `RateLimit-Limit`, `-Remaining`, `-Reset` | the IETF draft 6 |
    /// | `X-RateLimit-Limit`, `-Remaining`, `-Reset` | GitHub and many others |
    /// | the same, with the name of a policy: `x-ratelimit-remaining-tokens` | OpenAI |
    ///
    /// - **A denial** is a 429, a 503 with a wait, and a 403 with a wait or with a quota of which nothing remains, because GitHub
    ///   answers so. If a 429 or a 403 has no `Retry-After`, its wait is the longest `reset` of the quotas of which nothing remains.
    /// - **Any other status from 500 on** is a [failure](Self::is_failure).
    /// - **`X-RateLimit-Reset`** is a number of seconds, a length such as `6m0s`, or an instant in Unix time: in seconds from 10^9 on, and in
    ///   milliseconds from 10^12 on. It counts from the `Date` of the response.
    /// - **A number of digits that does not fit** is the longest wait.
    /// - **A field that cannot be read** is ignored: a `reset` in ISO 8601, such as `2026-11-25T12:00:00Z`, or a fraction as `remaining`, such as
    ///   `598.0`. So are the members of a list field after the first 64.
    ///
    /// If the response has an `Age` other than 0, an HTTP cache has answered: its quotas are those of an earlier request, and are ignored.
    ///
    /// ```
    /// use http::{Response, StatusCode};
    /// use tower_sliding_window::learn::Stated;
    ///
    /// let response = Response::builder().header("RateLimit", r#""burst";r=7;t=1"#).body(())?;
    /// let stated = Stated::from_http(response.status(), response.headers());
    /// assert_eq!(stated.quotas[0].remaining, 7);
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn from_http(status: StatusCode, headers: &HeaderMap) -> Self {
        let date = text(headers, DATE).and_then(|text| parse_http_date(text).ok());
        let now = date.unwrap_or_else(SystemTime::now);
        let is_cached = text(headers, AGE).is_some_and(|age| age.parse() != Ok(0_u64));
        let quotas = if is_cached { Vec::new() } else { quotas(headers, now) };
        let used_up =
            || quotas.iter().filter(|quota| quota.remaining == 0).filter_map(|quota| quota.reset).max();
        let wait = retry_after(headers, now);
        let (is_denial, wait) = match status {
            StatusCode::TOO_MANY_REQUESTS => (true, wait.or_else(used_up)),
            StatusCode::FORBIDDEN => {
                let is_used_up = quotas.iter().any(|quota| quota.remaining == 0);
                (wait.is_some() || is_used_up, wait.or_else(used_up))
            }
            StatusCode::SERVICE_UNAVAILABLE => (wait.is_some(), wait),
            _ => (false, None),
        };
        let is_failure = !is_denial && status.is_server_error();
        Self { is_denial, is_failure, wait, quotas }
    }
}

fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let millis = |text: &str| text.parse().ok().map(Duration::from_millis).or_else(|| longest(text));
    text(headers, "retry-after-ms").and_then(millis).or_else(|| {
        let text = text(headers, RETRY_AFTER)?;
        length(text).or_else(|| Some(until(parse_http_date(text).ok()?, now)))
    })
}

/// Returns the quotas that all fields state.
fn quotas<'a>(headers: &'a HeaderMap, now: SystemTime) -> Vec<StatedQuota> {
    let policies: Vec<StatedQuota> = members(headers, "ratelimit-policy").map(policy).collect();
    let listed = members(headers, "ratelimit").filter_map(|(item, params)| {
        let (name, number_of) = (Some(string(&item)?), |key| params.get(key).and_then(number));
        // The draft after 11 has other names.
        let remaining = number_of("r").or_else(|| number_of("a"))?;
        let reset = number_of("t").or_else(|| number_of("w")).map(Duration::from_secs);
        let of_policy = policies.iter().find(|policy| policy.name == name).cloned().unwrap_or_default();
        Some(StatedQuota { name, remaining, reset, ..of_policy })
    });
    let mut quotas: Vec<StatedQuota> = listed.collect();
    let mut add = |name: Option<&str>, stated: &dyn Fn(&str) -> Option<&'a str>| {
        let Some(remaining) = stated("remaining").and_then(|text| text.parse().ok()) else { return };
        let limit = stated("limit").and_then(|text| text.parse().ok());
        // Its window is that of the only policy with this quota.
        let mut of_limit = policies.iter().filter(|policy| limit.is_some() && policy.limit == limit);
        let window = of_limit.next().filter(|_| of_limit.next().is_none()).and_then(|policy| policy.window);
        let reset = stated("reset").and_then(|text| reset(text, now));
        quotas.push(StatedQuota { name: name.map(str::to_owned), limit, window, remaining, reset });
    };
    // The draft 7: `limit=100, remaining=50, reset=5`.
    let draft_7 = text(headers, "ratelimit").unwrap_or_default();
    add(None, &|part| {
        draft_7.split(',').find_map(|member| member.trim().strip_prefix(part)?.strip_prefix('='))
    });
    for field in headers.keys() {
        if let Some((prefix @ ("" | "x-"), suffix)) = field.as_str().split_once("ratelimit-remaining")
            && (suffix.is_empty() || suffix.starts_with('-'))
        {
            add(suffix.strip_prefix('-'), &|part| text(headers, format!("{prefix}ratelimit-{part}{suffix}")));
        }
    }
    quotas
}

/// Returns the quota of a member of `RateLimit-Policy`, of which nothing is known to remain.
fn policy((item, params): (BareItem, Parameters)) -> StatedQuota {
    let [limit, window] = ["q", "w"].map(|key| params.get(key).and_then(number));
    let window = window.map(Duration::from_secs);
    StatedQuota { name: string(&item), limit: limit.or_else(|| number(&item)), window, ..Default::default() }
}

/// Returns the time until a stated reset.
fn reset(text: &str, now: SystemTime) -> Option<Duration> {
    let stated = length(text)?;
    if stated < MIN_UNIX_TIME {
        return Some(stated);
    }
    let unix_time = if stated < MIN_UNIX_MILLIS { stated } else { stated / 1_000 };
    Some(UNIX_EPOCH.checked_add(unix_time).map_or(Duration::MAX, |instant| until(instant, now)))
}

/// Returns the length of a number of seconds, or of a text such as `6m0s` or `120ms`.
fn length(text: &str) -> Option<Duration> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.or_else(|| longest(text)).or_else(|| humantime::parse_duration(text).ok())
}

/// Returns the longest time for a number of digits that does not fit. Otherwise, more digits would be no wait.
fn longest(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(Duration::MAX)
}

fn until(instant: SystemTime, now: SystemTime) -> Duration {
    instant.duration_since(now).unwrap_or_default()
}

/// Returns the value of a field, or `None` if it is no text.
fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Returns the first items of a list field, over all of its lines, with their parameters.
fn members(headers: &HeaderMap, name: &str) -> impl Iterator<Item = (BareItem, Parameters)> {
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let list: List = Parser::new(&lines.join(&b", "[..])).parse().unwrap_or_default();
    list.into_iter().take(MAX_MEMBERS).filter_map(|entry| match entry {
        ListEntry::Item(item) => Some((item.bare_item, item.params)),
        ListEntry::InnerList(_) => None,
    })
}

fn number(item: &BareItem) -> Option<u64> {
    item.as_integer().and_then(|number| u64::try_from(number).ok())
}

fn string(item: &BareItem) -> Option<String> {
    item.as_string().map(|text| text.as_str().to_owned())
}
