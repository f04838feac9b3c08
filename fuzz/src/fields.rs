//! Header fields and bodies of any decisions, against the parsers of `sfv` and `serde_json`.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use http::{HeaderMap, HeaderValue, Request};
use serde_json::{Value, json};
use sfv::{BareItem, ListEntry, Parser};
use tower_sliding_window::{
    Decision, PartitionKey, Policy, Rejection, Status, Wait,
    answer::{Answer, Dialect, ProblemDetails, Reset},
    backend::Pair,
};

/// A member of a list field: its text and its parameters.
type Member = (String, Vec<(String, i64)>);

pub(crate) fn run(data: &[u8]) {
    // Fails only if the input ends too early, which `Unstructured` reports for no value below.
    let _ = check(&mut Unstructured::new(data));
}

fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let statuses = (0..u.int_in_range(1..=8)?).map(|_| status(u)).collect::<Result<Vec<_>>>()?;
    let decision = Decision::new(u.arbitrary()?, statuses);
    let mut headers = HeaderMap::new();
    let (mut policies, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..u.int_in_range(0..=2)? {
        policies.extend(inner(u, &mut headers, "ratelimit-policy", &["q", "w"])?);
        limits.extend(inner(u, &mut headers, "ratelimit", &["r", "t"])?);
    }
    let retry_after = inner_retry_after(u, &mut headers)?;
    Dialect::Draft11.add_fields(&decision, &mut headers);

    let shown: Vec<&Status> = decision
        .statuses()
        .iter()
        .filter(|status| !status.is_shadow() && !status.policy().is_hidden())
        .collect();
    policies.extend(shown.iter().map(|status| policy_member(status.policy())));
    limits.extend(shown.iter().map(|status| limit_member(status)));
    assert_eq!(list(&headers, "ratelimit-policy"), policies);
    assert_eq!(list(&headers, "ratelimit"), limits);
    assert_retry_after(&decision, &headers, retry_after.as_deref());
    if !decision.is_admitted() {
        assert_body(&decision);
    }
    legacy_fields_have_one_value(u, &decision)
}

fn seconds(wait: Duration) -> u128 {
    wait.as_nanos().div_ceil(1_000_000_000)
}

fn name(u: &mut Unstructured<'_>) -> Result<String> {
    let length = u.int_in_range(1..=64)?;
    // Also characters that need an escape.
    let character = |u: &mut Unstructured<'_>| {
        Ok(if u.ratio(1, 3)? { *u.choose(b"\"\\,;= ~-")? } else { u.int_in_range(b' '..=b'~')? })
    };
    (0..length).map(|_| character(u).map(char::from)).collect()
}

fn duration(u: &mut Unstructured<'_>) -> Result<Duration> {
    Ok(match u.int_in_range(0..=4)? {
        0 => Duration::ZERO,
        1 => Duration::from_micros(u.arbitrary()?),
        2 => Duration::from_secs(u64::from(u.arbitrary::<u32>()?)),
        3 => Duration::MAX,
        _ => Duration::from_micros(u.int_in_range(1..=10_000_000)?),
    })
}

fn status(u: &mut Unstructured<'_>) -> Result<Status> {
    let micros = if u.arbitrary()? {
        1_000_000 * u.int_in_range(1..=366 * 86_400)?
    } else {
        u.int_in_range(1_000..=366 * 86_400 * 1_000_000)?
    };
    let quota = if u.arbitrary()? { u.int_in_range(1..=100)? } else { u.arbitrary::<u32>()?.max(1) };
    let policy = Policy::new(&name(u)?, quota, Duration::from_micros(micros)).expect("a valid policy");
    let policy = if u.ratio(1, 8)? { policy.hidden() } else { policy };
    let policy = if u.ratio(1, 8)? { policy.shadow() } else { policy };
    let pair = Pair::new(PartitionKey::new("user", "a"), policy, u.arbitrary()?);
    let retry_after = match u.int_in_range(0..=5)? {
        0..=2 => Wait::ZERO,
        3 => Wait::Never,
        _ => Wait::For(duration(u)?),
    };
    Ok(Status::new(&pair, u.arbitrary()?, retry_after, duration(u)?, duration(u)?))
}

/// Adds a line of an inner layer, and returns its members.
fn inner(
    u: &mut Unstructured<'_>,
    headers: &mut HeaderMap,
    field: &'static str,
    keys: &[&str],
) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        let mut parameters = Vec::new();
        for key in keys {
            if u.arbitrary()? {
                parameters
                    .push(((*key).to_owned(), u.int_in_range(-999_999_999_999_999..=999_999_999_999_999)?));
            }
        }
        members.push((name(u)?, parameters));
    }
    let line: Vec<String> = members.iter().map(text).collect();
    // Any white space that a list may have.
    let separator = *u.choose(&[",", ", ", " ,\t", ",  "])?;
    if !line.is_empty() {
        headers.append(field, HeaderValue::try_from(line.join(separator)).expect("visible ASCII"));
    }
    Ok(members)
}

/// Writes a member by hand.
fn text((name, parameters): &Member) -> String {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    let parameters: String = parameters.iter().map(|(key, value)| format!(";{key}={value}")).collect();
    format!("\"{name}\"{parameters}")
}

fn inner_retry_after(u: &mut Unstructured<'_>, headers: &mut HeaderMap) -> Result<Option<String>> {
    let value = match u.int_in_range(0..=3)? {
        0 => u.arbitrary::<u64>()?.to_string(),
        1 => u.int_in_range(0..=10)?.to_string(),
        2 => name(u)?,
        _ => return Ok(None),
    };
    headers.insert("retry-after", HeaderValue::try_from(&value).expect("visible ASCII"));
    Ok(Some(value))
}

fn policy_member(policy: &Policy) -> Member {
    let mut parameters = vec![("q".to_owned(), i64::from(policy.quota().unwrap()))];
    if policy.window().unwrap().as_micros().is_multiple_of(1_000_000) {
        parameters.push(("w".to_owned(), policy.window().unwrap().as_secs() as i64));
    }
    (policy.name().to_owned(), parameters)
}

fn limit_member(status: &Status) -> Member {
    let mut parameters = vec![("r".to_owned(), i64::from(status.remaining()))];
    if let Ok(seconds) = u32::try_from(seconds(status.next_after())) {
        parameters.push(("t".to_owned(), i64::from(seconds)));
    }
    (status.policy().name().to_owned(), parameters)
}

/// Returns the members of a field: all of its lines are one list (RFC 9651).
fn list(headers: &HeaderMap, field: &str) -> Vec<Member> {
    let lines: Vec<&[u8]> = headers.get_all(field).iter().map(HeaderValue::as_bytes).collect();
    let line = lines.join(&b", "[..]);
    let list: sfv::List = Parser::new(&line)
        .parse()
        .unwrap_or_else(|error| panic!("{field}: {}: {error}", line.escape_ascii()));
    let member = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{field}: an inner list") };
        let BareItem::String(name) = item.bare_item else { panic!("{field}: not a string") };
        let parameter = |(key, value): (sfv::Key, BareItem)| match value {
            BareItem::Integer(value) => (String::from(key), i64::from(value)),
            other => panic!("{field}: {other:?}"),
        };
        (String::from(name), item.params.into_iter().map(parameter).collect())
    };
    list.into_iter().map(member).collect()
}

/// A denial has the larger wait of both layers, and an admission the field of the inner layer.
fn assert_retry_after(decision: &Decision, headers: &HeaderMap, inner: Option<&str>) {
    let found = headers.get("retry-after").map(|value| value.to_str().expect("visible ASCII"));
    assert!(headers.get_all("retry-after").iter().count() <= 1);
    let waits = decision.statuses().iter().filter(|status| !status.is_shadow()).map(Status::retry_after);
    let wait = waits.max().unwrap_or(Wait::ZERO);
    assert_eq!(decision.retry_after(), wait);
    match wait {
        Wait::For(wait) if !wait.is_zero() => {
            let own = seconds(wait).min(u128::from(u64::MAX)) as u64;
            let expected =
                inner.and_then(|inner| inner.parse().ok()).map_or(own, |inner: u64| inner.max(own));
            let number: u64 = found.and_then(|found| found.parse().ok()).expect("a number of seconds");
            assert_eq!(number, expected);
            assert!(number > 0);
        }
        _ => assert_eq!(found, inner),
    }
}

fn assert_body(decision: &Decision) {
    let rejection = Rejection::Denied(decision.clone());
    let response = ProblemDetails.reject(&rejection, &(&Request::new(())).into());
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body: Value = serde_json::from_slice(response.body()).expect("JSON");
    let detail = match decision.retry_after() {
        Wait::For(wait) => format!("Try again in {} s.", seconds(wait).min(u128::from(u64::MAX))),
        _ => "This request costs more than the whole quota.".to_owned(),
    };
    let violated = decision.statuses().iter().filter(|status| {
        !status.is_shadow() && !status.policy().is_hidden() && status.retry_after() != Wait::ZERO
    });
    let violated: Vec<&str> = violated.map(|status| status.policy().name()).collect();
    let mut expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": detail,
    });
    if !violated.is_empty() {
        expected["violated-policies"] = violated.into();
    }
    assert_eq!(body, expected);
}

/// The legacy fields of a response are those of one status, and the smaller remaining quota stays.
fn legacy_fields_have_one_value(u: &mut Unstructured<'_>, decision: &Decision) -> Result<()> {
    let mut headers = HeaderMap::new();
    let inner = u.int_in_range(0..=20_u32)?;
    for (field, value) in [("limit", 1_000), ("remaining", inner), ("reset", 77)] {
        headers.insert(
            http::HeaderName::try_from(format!("x-ratelimit-{field}")).expect("a name"),
            value.into(),
        );
    }
    let reset = *u.choose(&[Reset::Seconds, Reset::UnixTime])?;
    Dialect::XRateLimit(reset).add_fields(decision, &mut headers);
    let number = |field: &str| -> u64 {
        assert_eq!(headers.get_all(field).iter().count(), 1);
        headers[field].to_str().expect("visible ASCII").parse().expect("a number")
    };
    let fields = (number("x-ratelimit-limit"), number("x-ratelimit-remaining"));
    let of = |status: &Status| (u64::from(status.quota().unwrap()), u64::from(status.remaining()));
    let is_inner = fields == (1_000, u64::from(inner)) && number("x-ratelimit-reset") == 77;
    let is_shown = |status: &&Status| !status.is_shadow() && !status.policy().is_hidden();
    let mut shown = decision.statuses().iter().filter(is_shown);
    assert!(is_inner || fields.1 < u64::from(inner) && shown.any(|status| of(status) == fields));

    let mut headers = HeaderMap::new();
    Dialect::XRateLimitByPolicy.add_fields(decision, &mut headers);
    for (name, value) in &headers {
        let is_retry_after = name == "retry-after";
        assert!(is_retry_after || name.as_str().starts_with("x-ratelimit-"));
        assert!(value.to_str().is_ok_and(|value| value.starts_with(|c: char| c.is_ascii_digit())));
    }
    let mut headers = HeaderMap::new();
    Dialect::Off.add_fields(decision, &mut headers);
    assert!(headers.keys().all(|name| name == "retry-after"));
    Ok(())
}
