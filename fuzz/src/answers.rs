//! The answers of an API: any status and header fields, which a limiter learns.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tower_sliding_window::{
    Limiter, MemoryBackend, PartitionKey, Policy, Wait,
    learn::{Learning, Stated},
};

const QUOTA: u32 = 100;

pub(crate) const DICTIONARY: &[&[u8]] = &[
    b"\nratelimit: ",
    b"\nratelimit-policy: ",
    b"\nratelimit-remaining: ",
    b"\nx-ratelimit-remaining: ",
    b"\nx-ratelimit-limit: ",
    b"\nx-ratelimit-reset: ",
    b"\nretry-after: ",
    b"\nretry-after-ms: ",
    b"\ndate: ",
    b"-calls",
    b"\"calls\";r=",
    b";t=",
    b";w=",
    b", remaining=",
    b"999999999999999",
    b"18446744073709551615",
    b"1e300",
    b"ms",
    b"403",
    b"429",
    b"503",
];

/// Returns the status in the first line, and the fields in the others.
fn answer(data: &[u8]) -> (StatusCode, HeaderMap) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| StatusCode::from_bytes(line).ok()).unwrap_or_default();
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii()))
        {
            headers.append(name, value);
        }
    }
    (status, headers)
}

pub(crate) fn run(data: &[u8]) {
    let (status, headers) = answer(data);
    let stated = Stated::from_http(status, &headers);
    assert!(stated.wait.is_none() || stated.is_denial);
    assert!([403, 429, 503].contains(&status.as_u16()) || !stated.is_denial);

    let limiter = Limiter::builder(MemoryBackend::new())
        .policy(Policy::new("calls", QUOTA, Duration::from_secs(60)).expect("a valid policy"))
        .policy(Policy::gate("api").expect("a valid policy"))
        .learn(Learning::default())
        .build()
        .expect("a valid limiter");
    let account = || PartitionKey::new("account", "ours");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let admission = limiter.admit(account()).await.expect("an admission");
        let learned = limiter.learn(&admission, &stated).await.expect("an answer that is learned");
        let decision = limiter.peek(account()).await.expect("a decision");
        let [calls, gate] = decision.statuses() else { panic!("two pairs") };
        match learned.blocked_for {
            Some(wait) => assert!(wait <= Learning::DEFAULT_MAX_WAIT),
            None => assert_eq!(gate.retry_after(), Wait::ZERO),
        }
        let charged: u32 = learned.charged.iter().map(|(_, units)| units).sum();
        assert!(charged < QUOTA);
        // By name, whatever else it states.
        let named = stated.quotas.iter().filter(|quota| quota.name.as_deref() == Some("calls"));
        let smallest = named.filter(|quota| quota.reset.is_none()).map(|quota| quota.remaining).min();
        let has_reset = stated.quotas.iter().any(|quota| quota.reset.is_some());
        if let Some(smallest) = smallest.filter(|_| !has_reset) {
            assert!(u64::from(QUOTA - 1 - charged) <= smallest, "{calls:?} {smallest}");
        }
    });
}
