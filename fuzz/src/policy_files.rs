//! Policy files: what parses is in the documented ranges, and keeps its meaning when it is written and read again.

use std::{collections::HashSet, time::Duration};

use tower_sliding_window::{
    Algorithm, Policy, PolicyTable,
    policy::{Lease, Tier},
};

pub(crate) const DICTIONARY: &[&[u8]] = &[
    b"default",
    b"tiers",
    b"name",
    b"quota",
    b"window",
    b"algorithm",
    b"headroom",
    b"lease",
    b"up-to",
    b"hidden",
    b"shadow",
    b"precision",
    b"sliding-log",
    b"sliding-buckets",
    b"sliding-counter",
    b"fixed-window",
    b"token-bucket",
    b"gate",
    b"in-flight",
    b"hold-time",
    b"retry-after",
    b"calendar-period",
    b"period",
    b"day",
    b"week",
    b"month",
    b"year",
    b"zone",
    b"anchor",
    b"Europe/Berlin",
    b"17 08:00",
    b"rate",
    b"7/s",
    b"4294967295/1us",
    b"1/366d",
    b"unlimited",
    b"true",
    b"4294967295",
    b"366d",
    b"1ms",
    b"1us",
    b"1month",
    b"99%",
    b"[[default]]\n",
    b"[tiers]\n",
    b"\\u0000",
    b"9223372036854775807",
];

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(table) = toml::from_str(text) {
        check(&table);
    }
    if let Ok(table) = serde_json::from_str(text) {
        check(&table);
    }
}

fn check(table: &PolicyTable) {
    let json = serde_json::to_value(table).expect("a table is valid JSON");
    let names: Vec<&str> = json["tiers"].as_object().expect("tiers").keys().map(String::as_str).collect();
    let text = toml::to_string(table).expect("a table is valid TOML");
    let of_toml: PolicyTable = toml::from_str(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let text = serde_json::to_string(table).expect("a table is valid JSON");
    let of_json: PolicyTable = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    for name in names.into_iter().map(Some).chain([None]) {
        let tier = table.pick(name);
        check_ranges(&tier);
        for again in [&of_toml, &of_json] {
            assert!(is_same(&tier, &again.pick(name)), "{name:?}: {tier:?} became {:?}", again.pick(name));
        }
    }
    // Neither file has a tier more.
    assert_eq!(serde_json::to_value(&of_toml).expect("JSON"), json);
    assert_eq!(serde_json::to_value(&of_json).expect("JSON"), json);
}

/// The longest window, and the longest time in which a full capacity returns.
const YEAR: Duration = Duration::from_secs(366 * 86_400);
/// The longest hold time, and the longest wait that a policy in flight states.
const HOUR: Duration = Duration::from_secs(3_600);

fn check_ranges(tier: &Tier) {
    let Some(policies) = tier.policies() else { return };
    let policies = policies.as_slice();
    assert!((1..=8).contains(&policies.len()));
    let names: HashSet<&str> = policies.iter().map(Policy::name).collect();
    assert_eq!(names.len(), policies.len(), "names differ");
    for policy in policies {
        let (name, quota) = (policy.name(), policy.quota());
        assert!((1..=64).contains(&name.len()) && name.bytes().all(|byte| (32..127).contains(&byte)));
        assert!(quota.is_none_or(|quota| quota >= 1));
        assert_eq!(quota.is_none(), policy.algorithm() == Algorithm::Gate);
        let window = policy.window();
        assert!(window.is_none_or(|window| window >= Duration::from_millis(1) && window <= YEAR));
        assert!(window.is_none_or(|window| window.as_nanos() % 1_000 == 0));
        match (policy.algorithm(), window) {
            (Algorithm::SlidingBuckets { precision }, Some(window)) => {
                assert!(precision >= Duration::from_millis(1) && precision <= window);
                assert_eq!(precision.as_nanos() % 1_000, 0);
                assert!(window.as_nanos().div_ceil(precision.as_nanos()) <= 4_096);
            }
            (Algorithm::TokenBucket { rate }, None) => {
                assert_eq!(policy.lease(), None);
                assert!(rate.units() >= 1 && rate.period() > Duration::ZERO && rate.period() <= YEAR);
                let capacity = u128::from(quota.expect("a capacity"));
                let full = rate.period().as_nanos() * capacity / u128::from(rate.units());
                assert!(full <= YEAR.as_nanos(), "a full capacity returns within {full} ns");
            }
            (Algorithm::InFlight { hold_time, retry_after, .. }, None) => {
                assert_eq!(policy.lease(), None);
                assert!(quota.is_some_and(|quota| quota <= 65_536));
                assert!((Duration::from_secs(1)..=HOUR).contains(&hold_time));
                assert!((Duration::from_millis(1)..=HOUR).contains(&retry_after));
            }
            (Algorithm::CalendarPeriod { .. }, None) => assert_eq!(policy.lease(), None),
            (Algorithm::Gate, None) => assert_eq!(policy.lease(), None),
            (Algorithm::SlidingLog | Algorithm::SlidingCounter | Algorithm::FixedWindow, Some(_)) => {
                assert_eq!(policy.lease(), None);
            }
            (algorithm, window) => panic!("{algorithm:?} with the window {window:?}"),
        }
        assert!(policy.lease().is_none_or(|lease| lease != Lease::up_to(0)));
    }
}

/// Compares every property. Two policies are equal even if only one is hidden, a shadow or leased.
fn is_same(a: &Tier, b: &Tier) -> bool {
    let (Some(a), Some(b)) = (a.policies(), b.policies()) else { return a == b };
    let others = |policy: &Policy| (policy.is_hidden(), policy.is_shadow(), policy.lease());
    a == b && a.as_slice().iter().map(others).eq(b.as_slice().iter().map(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that no longer parses would test nothing.
    #[test]
    fn corpus_has_valid_files() {
        let corpus = crate::driver::corpus("policy_files").unwrap();
        let parses = |text: &str| {
            toml::from_str::<PolicyTable>(text).is_ok() || serde_json::from_str::<PolicyTable>(text).is_ok()
        };
        let (valid, invalid): (Vec<_>, Vec<_>) =
            corpus.iter().partition(|(_, input)| str::from_utf8(input).is_ok_and(parses));
        let names = |files: &[&(std::path::PathBuf, Vec<u8>)]| {
            let name = |file: &&(std::path::PathBuf, Vec<u8>)| file.0.file_stem().unwrap().to_owned();
            files.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(&invalid), ["incomplete", "repeated"], "valid: {:?}", names(&valid));
    }
}
