//! The decisions of the example against those of the plain model, line by line.

use std::{collections::BTreeMap, fs};

use serde_json::Value;

use super::{
    Files,
    logs::{Format, Generated, PLAN, SECOND, START, generate, policies, rfc3339},
    model::{self, Event, Kind, ModelDenial, ModelPolicy},
};

/// Returns the lines of JSON that the example must write.
fn expected(denials: &[ModelDenial], policies: &[ModelPolicy]) -> Vec<Value> {
    let line = |denial: &ModelDenial| {
        let names = policies.iter().map(|policy| policy.name);
        let cost: BTreeMap<_, _> = names.zip(&denial.costs).collect();
        serde_json::json!({
            "line": denial.line,
            "time": rfc3339(denial.at),
            "key": denial.key,
            "cost": cost,
            "policies": denial.policies,
            "wait_micros": denial.wait,
        })
    };
    denials.iter().map(line).collect()
}

/// Compares a generated log, and returns how many requests each policy denies.
fn compare(seed: u64, format: Format) -> Vec<usize> {
    let Generated { lines, events } = generate(seed, 1_500, format);
    let policies = policies();
    let files = Files::new(PLAN, lines.join("\n"));
    let list = files.path("denials.jsonl");
    let summary = files.summary(&["--denials", &list, "--top", "1000"]);

    let denials = model::denials(&events, &policies);
    let written = fs::read_to_string(list).unwrap();
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = expected(&denials, &policies);
    for (written, expected) in written.iter().zip(&expected) {
        assert_eq!(written, expected, "seed {seed}");
    }
    assert_eq!(written.len(), expected.len(), "seed {seed}");
    let mut all = Vec::new();
    for policy in &policies {
        let denied = denials.iter().filter(|denial| denial.policies.contains(&policy.name)).count();
        all.push(denied);
        // The first column is the name, and the window has a number and a unit.
        let row = rows(&summary).find(|row| row.first() == Some(&policy.name) && row.len() > 6).unwrap();
        assert_eq!(row[5], denied.to_string(), "{row:?}");
    }
    assert_eq!(uses(&summary), model::highest(&events, &policies), "seed {seed}");
    let late = events.iter().zip(1..).filter(|(event, next)| {
        let before = events[..next - 1].iter().map(|event| event.at).max();
        before.is_some_and(|before| event.at + 60 * SECOND < before)
    });
    let late = late.count();
    assert!(late > 0, "seed {seed}: no line is late");
    assert!(summary.contains(&format!("{late} line")), "{late}: {summary}");
    all
}

/// Compares logs, in which each policy must deny something.
fn compare_all(logs: impl Iterator<Item = (u64, Format)>) {
    let denied: Vec<Vec<usize>> = logs.map(|(seed, format)| compare(seed, format)).collect();
    for policy in 0..policies().len() {
        let of_policy = denied.iter().map(|of_log| of_log[policy]).sum::<usize>();
        assert!(of_policy > 5, "the logs are too mild for policy {policy}: {denied:?}");
    }
}

fn rows(summary: &str) -> impl Iterator<Item = Vec<&str>> {
    summary.lines().map(|line| line.split_whitespace().collect())
}

/// Returns the highest use of each policy and key in a summary.
fn uses(summary: &str) -> BTreeMap<(&'static str, String), u64> {
    let (_, part) = summary.split_once("highest use of a key, if no request was denied\n").unwrap();
    let mut uses = BTreeMap::new();
    let mut name = "";
    for line in part.lines() {
        // The quota of the policy is in its first row.
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(' ') {
            name = policies().iter().find(|policy| policy.name == words[0]).unwrap().name;
        }
        let used = words[usize::from(!line.starts_with(' '))].parse().unwrap();
        // The parts of the key are in the order of the file, and those of the model in that of the alphabet.
        let key = format!("{} {}", words[words.len() - 1], words[words.len() - 2]);
        uses.insert((name, key), used);
    }
    uses
}

#[test]
fn denials_of_common_log_equal_plain_model() {
    compare_all((1..=4).map(|seed| (seed, if seed % 2 == 0 { Format::Common } else { Format::Combined })));
}

#[test]
fn denials_of_json_lines_equal_plain_model() {
    compare_all((11..=14).map(|seed| (seed, Format::Json)));
}

const SEARCHED: &str = "
key = \"user\"
[[policies]]
name = \"burst\"
quota = 4
window = \"2s\"
[[policies]]
name = \"sustained\"
quota = 9
window = \"30s\"
";

/// Returns the policies of `SEARCHED` with these quotas, and the events of a log with these costs.
fn searched(events: &[Event], cost: impl Fn(&Event) -> u64) -> ([ModelPolicy; 2], Vec<Event>) {
    let policy = |name, quota, window| ModelPolicy { name, quota, window: window * SECOND, kind: Kind::Log };
    let events = events.iter().map(|event| Event {
        key: BTreeMap::from([("user", event.key["user"].clone())]),
        costs: vec![cost(event); 2],
        ..event.clone()
    });
    ([policy("burst", 4, 2), policy("sustained", 9, 30)], events.collect())
}

/// Returns the found quota of each policy and how many requests it denies, and how many they deny together.
fn found(summary: &str) -> ([(u64, usize); 2], usize) {
    let (_, part) = summary.split_once("smallest quota of each policy alone").unwrap();
    let lines: Vec<Vec<&str>> = rows(part).skip(1).collect();
    let of = |line: &[&str]| (line[1].parse().unwrap(), line[6].parse().unwrap());
    ([of(&lines[0]), of(&lines[1])], lines[2][4].parse().unwrap())
}

fn count(events: &[Event], policies: &[ModelPolicy]) -> usize {
    model::denials(events, policies).len()
}

#[test]
fn smallest_quota_equals_search_of_every_quota() {
    let Generated { lines, events } = generate(21, 600, Format::Json);
    let (policies, events) = searched(&events, |_| 1);
    let plan = format!("{SEARCHED}[fields]\ntime = \"ts\"\n");
    let files = Files::new(&plan, lines.join("\n"));
    for (share, allowed) in [("0%", 0), ("0.5%", 3), ("20%", 120)] {
        let summary = files.summary(&["--smallest-quota", share]);
        assert!(summary.contains(&format!("({allowed} of 600 requests)")), "{summary}");
        let (found, together) = found(&summary);
        for (policy, found) in policies.iter().zip(found) {
            let with = |quota| ModelPolicy { quota, ..policy.clone() };
            let all = (1..).map(|quota| (quota, count(&events, &[with(quota)])));
            let first = all.into_iter().find(|(_, denied)| *denied <= allowed).unwrap();
            assert_eq!(found, first, "{share} of {}", policy.name);
        }
        let both = policies.each_ref().map(|policy| policy.clone());
        let [mut burst, mut sustained] = both;
        (burst.quota, sustained.quota) = (found[0].0, found[1].0);
        assert_eq!(together, count(&events, &[burst, sustained]), "{share}");
    }
}

#[test]
fn one_unit_less_denies_more_than_share() {
    let Generated { lines, events } = generate(22, 600, Format::Json);
    let (policies, events) = searched(&events, |event| if event.costs[0] >= 5 { 3 } else { 1 });
    let plan =
        format!("{SEARCHED}[costs]\n\"/search\" = 3\n[fields]\ntime = \"ts\"\npath = \"request.uri\"\n");
    let files = Files::new(&plan, lines.join("\n"));
    let (found, _) = found(&files.summary(&["--smallest-quota", "2%"]));
    for (policy, (quota, denied)) in policies.iter().zip(found) {
        let with = |quota| [ModelPolicy { quota, ..policy.clone() }];
        assert_eq!(denied, count(&events, &with(quota)), "{}", policy.name);
        // 2 % of 600.
        assert!(denied <= 12 && count(&events, &with(quota - 1)) > 12, "{}: {quota}", policy.name);
    }
}

/// The model and the example must agree about the definition of a boundary, not only on generated logs.
#[test]
fn charge_counts_until_one_window_has_passed() {
    let plan = "key = \"user\"\n[[policies]]\nname = \"one\"\nquota = 1\nwindow = \"1s\"\n";
    let line = |after: u64| format!("{{\"user\": 1, \"time\": {}}}\n", START + after);
    let times = [0, 999_999, 1_000_000, 1_000_000, 1_999_999];
    let files = Files::new(plan, times.map(line).concat());
    let list = files.path("denials.jsonl");
    files.summary(&["--denials", &list]);
    let denials = fs::read_to_string(list).unwrap();
    let denials: Vec<Value> = denials.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let denials: Vec<_> = denials.iter().map(|denial| (&denial["line"], &denial["wait_micros"])).collect();
    let expected =
        [(2, 1), (4, 1_000_000), (5, 1)].map(|(line, wait)| (Value::from(line), Value::from(wait)));
    assert_eq!(denials, expected.iter().map(|(line, wait)| (line, wait)).collect::<Vec<_>>());
}
