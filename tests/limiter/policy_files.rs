//! Policies in TOML and JSON: what a file may contain, and the texts of its errors.

use std::{collections::HashMap, time::Duration};

use serde_json::json;
use tower_sliding_window::{
    Algorithm, Policies, Policy, PolicyTable,
    policy::{Anchor, Lease, Period, Rate, Tier, Zone},
};

/// One example of everything that a file may contain.
const TOML: &str = r#"
[[default]]
name = "requests"
quota = 10
window = "1m"

[[default]]
name = "daily"
quota = 1_000_000
window = "1d"
algorithm = { sliding-buckets = { precision = "1m" } }
hidden = true
headroom = "5%"

[tiers]
internal = "unlimited"
bronze = { name = "requests", quota = 1, window = "1500ms", algorithm = "fixed-window" }

[[tiers.gold]]
name = "requests"
quota = 1000
window = "1h 30m"
algorithm = "sliding-counter"
shadow = true
"#;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn requests(quota: u32, window: Duration) -> Policy {
    Policy::new("requests", quota, window).unwrap()
}

fn tiers_of(table: &PolicyTable) -> [Tier; 4] {
    [None, Some("internal"), Some("bronze"), Some("gold")].map(|name| table.pick(name))
}

fn toml_error(text: &str) -> String {
    toml::from_str::<PolicyTable>(text).unwrap_err().to_string()
}

fn json_error(text: &str) -> String {
    serde_json::from_str::<PolicyTable>(text).unwrap_err().to_string()
}

/// Returns the error of a TOML file with this line in its second policy: the line, the column and the text.
fn error_of_line(line: &str) -> (usize, usize, String) {
    let key = line.split(' ').next().unwrap();
    let fields = ["name = \"requests\"", "quota = 10", "window = \"1m\""];
    let fields = fields.map(|field| if field.starts_with(key) { line } else { field });
    let last = if fields.contains(&line) { "" } else { line };
    let first = "[[default]]\nname = \"daily\"\nquota = 1\nwindow = \"1d\"\n";
    let error = toml_error(&format!("{first}[[default]]\n{}\n{last}\n", fields.join("\n")));
    let at = error.strip_prefix("TOML parse error at line ").expect("a line").split_once('\n').unwrap().0;
    let (line, column) = at.split_once(", column ").unwrap();
    (line.parse().unwrap(), column.parse().unwrap(), error.trim_end().lines().last().unwrap().to_owned())
}

#[test]
fn file_contains_all_kinds_of_tiers() {
    let table: PolicyTable = toml::from_str(TOML).unwrap();
    let daily = Policy::new("daily", 950_000, seconds(86_400)).unwrap();
    let daily = daily.with_algorithm(Algorithm::SlidingBuckets { precision: seconds(60) }).unwrap().hidden();
    let default = Policies::new([requests(10, seconds(60)), daily]).unwrap();
    let bronze = requests(1, Duration::from_millis(1500)).with_algorithm(Algorithm::FixedWindow).unwrap();
    let gold = requests(1_000, seconds(5_400)).with_algorithm(Algorithm::SlidingCounter).unwrap();
    assert_eq!(tiers_of(&table), [default.into(), Tier::Unlimited, bronze.into(), gold.into()]);
    let Tier::Limited(default) = table.pick(None) else { panic!("limited") };
    assert_eq!(default.as_slice().iter().map(Policy::is_hidden).collect::<Vec<_>>(), [false, true]);
    let Tier::Limited(gold) = table.pick("gold") else { panic!("limited") };
    assert!(gold.as_slice()[0].is_shadow() && !default.as_slice()[0].is_shadow());
}

#[test]
fn lease_reads_as_it_was_written() {
    let text = "name = \"hot\"\nquota = 10\nwindow = \"1m\"\nlease = { up-to = 50 }\n";
    let text = text.to_owned() + "algorithm = { sliding-buckets = { precision = \"1s\" } }\n";
    let policy: Policy = toml::from_str(&text).unwrap();
    assert_eq!(policy.lease(), Some(Lease::up_to(50)));
    let written = serde_json::to_value(&policy).unwrap();
    assert_eq!(written["lease"], json!({"up-to": 50}));
    assert_eq!(serde_json::from_value::<Policy>(written).unwrap().lease(), Some(Lease::up_to(50)));
    let policy: Policy = toml::from_str(&text.replace("50", "50, ahead = true")).unwrap();
    assert_eq!(policy.lease(), Some(Lease::up_to(50).ahead()));
    let written = serde_json::to_value(&policy).unwrap();
    assert_eq!(written["lease"], json!({"up-to": 50, "ahead": true}));
}

#[test]
fn token_bucket_reads_as_it_was_written() {
    let text = "algorithm = { token-bucket = { rate = \"RATE\" } }\nquota = 20\nname = \"api\"\n";
    for (rate, expected) in [
        ("7/s", Rate::per_second(7)),
        ("100/m", Rate::per_minute(100)),
        ("5/h", Rate::per_hour(5)),
        ("10000/d", Rate::per_day(10_000)),
        ("3/10s", Rate::new(3, seconds(10))),
        ("1/1500ms", Rate::new(1, Duration::from_millis(1_500))),
    ] {
        let policy: Policy = toml::from_str(&text.replace("RATE", rate)).unwrap();
        assert_eq!(policy, Policy::token_bucket("api", 20, expected).unwrap(), "{rate}");
        let written = json!({"name": "api", "quota": 20, "algorithm": {"token-bucket": {"rate": rate}}});
        assert_eq!(serde_json::to_value(&policy).unwrap(), written, "{rate}");
        let reversed = "name = \"api\"\nquota = 20\nalgorithm = { token-bucket = { rate = \"RATE\" } }\n";
        assert_eq!(toml::from_str::<Policy>(&reversed.replace("RATE", rate)).unwrap(), policy, "{rate}");
    }
    let error = |text: &str| toml::from_str::<Policy>(text).unwrap_err().message().to_owned();
    let form = r#"a period is a number and a unit, such as "500ms", "90s", "15m", "1h" or "30d""#;
    for (rate, reason) in [
        ("7", format!(r#"it must be units and a period, such as "7/s" or "3/10s"; {form}"#)),
        ("x/s", format!(r#"it must be units and a period, such as "7/s" or "3/10s"; {form}"#)),
        ("4294967296/s", "it must be 1 to 4294967295 units".to_owned()),
        ("7/.5s", format!("it must be {}", form.strip_prefix("a period is ").unwrap())),
        (
            "7/1 5s",
            r#"white space separates two digits: state the unit of each number, such as "1h 30m""#.to_owned(),
        ),
        ("7/month", r#"months and years differ in length: use days, such as "30d""#.to_owned()),
    ] {
        assert_eq!(error(&text.replace("RATE", rate)), format!("rate {rate:?}: {reason}"));
    }
    assert_eq!(
        error(&text.replace("RATE", "0/s")),
        r#"policy "?": rate 0 units per 1s: it must be 1 to 4294967295 units per 1 us to 366 days"#
            .replace("policy \"?\": ", "policy \"api\": ")
    );
    assert_eq!(
        error(&(text.replace("RATE", "7/s") + "window = \"1s\"\n")),
        r#"policy "api": field `window`: a token bucket has a rate, and no window"#
    );
    assert_eq!(
        error("name = \"api\"\nalgorithm = { token-bucket = { rate = \"7/s\" } }\n"),
        r#"policy "api": missing field `quota`"#
    );
}

#[test]
fn gate_reads_as_it_was_written() {
    for text in ["name = \"stopped\"\nalgorithm = \"gate\"", "algorithm = \"gate\"\nname = \"stopped\""] {
        let policy: Policy = toml::from_str(text).unwrap();
        assert_eq!(policy, Policy::gate("stopped").unwrap());
        assert_eq!(serde_json::to_value(&policy).unwrap(), json!({"name": "stopped", "algorithm": "gate"}));
        for (field, name) in
            [("quota = 5", "quota"), ("window = \"1s\"", "window"), ("headroom = \"5%\"", "headroom")]
        {
            let error = toml::from_str::<Policy>(&format!("{text}\n{field}\n")).unwrap_err();
            let expected = format!(r#"policy "stopped": field `{name}`: a gate has none"#);
            assert_eq!(error.message(), expected);
        }
    }
}

#[test]
fn calendar_period_reads_as_it_was_written() {
    let text = "name = \"api\"\nquota = 20\nalgorithm = { calendar-period = { FIELDS } }\n";
    let read = |fields: &str| toml::from_str::<Policy>(&text.replace("FIELDS", fields));
    for (period, anchor, written, expected) in [
        ("day", "", "1", Anchor::default()),
        ("day", ", anchor = \"08:30\"", "1 08:30", Anchor::default().at(8, 30)),
        ("week", ", anchor = 7", "7", Anchor::day(7)),
        ("month", ", anchor = 17", "17", Anchor::day(17)),
        ("month", ", anchor = \"17 08:00\"", "17 08:00", Anchor::day(17).at(8, 0)),
        ("year", ", anchor = \"04-06\"", "04-06", Anchor::date(4, 6)),
        ("year", ", anchor = \"01-31 23:59\"", "31 23:59", Anchor::date(1, 31).at(23, 59)),
    ] {
        let policy = read(&format!("period = \"{period}\", zone = \"Europe/Berlin\"{anchor}")).unwrap();
        let kind = match period {
            "day" => Period::Day,
            "week" => Period::Week,
            "month" => Period::Month,
            _ => Period::Year,
        };
        let zone = Zone::new("Europe/Berlin").unwrap();
        let same = Policy::calendar_period("api", 20, kind, zone).unwrap().anchored(expected).unwrap();
        assert_eq!(policy, same, "{anchor}");
        let fields = json!({"period": period, "zone": "Europe/Berlin", "anchor": written});
        let json = json!({"name": "api", "quota": 20, "algorithm": {"calendar-period": fields}});
        assert_eq!(serde_json::to_value(&policy).unwrap(), json, "{anchor}");
        assert_eq!(serde_json::from_value::<Policy>(json).unwrap(), policy, "{anchor}");
    }
    let error = |fields: &str| read(fields).unwrap_err().message().to_owned();
    let form = r#"a day, a month and a day, a time, or a day with a time, such as "17", "04-06", "08:00" or "17 08:00""#;
    for (fields, expected) in [
        (
            r#"period = "month", zone = "Europe/Berlim""#,
            r#"time zone "Europe/Berlim": it must be a name of the IANA time zone database, such as "Europe/Berlin""#.to_owned(),
        ),
        (
            r#"period = "month", zone = "UTC", anchor = "17th""#,
            format!(r#"anchor "17th": it must be {form}"#),
        ),
        (
            r#"period = "month", zone = "UTC", anchor = 32"#,
            r#"policy "api": anchor "32": it must be a day of the month, 1 to 31, and a time of day, 00:00 to 23:59"#.to_owned(),
        ),
        (
            r#"period = "week", zone = "UTC", anchor = 0"#,
            r#"policy "api": anchor "0": it must be a day of the week, 1 (Monday) to 7, and a time of day, 00:00 to 23:59"#.to_owned(),
        ),
        (
            r#"period = "day", zone = "UTC", anchor = "2 08:00""#,
            r#"policy "api": anchor "2 08:00": it must be a time of day, 00:00 to 23:59"#.to_owned(),
        ),
        (
            r#"period = "year", zone = "UTC", anchor = "02-30""#,
            r#"policy "api": anchor "02-30": it must be a month and a day, 01-01 to 12-31, and a time of day, 00:00 to 23:59"#.to_owned(),
        ),
        (
            r#"period = "day", zone = "UTC", anchor = "24:00""#,
            r#"policy "api": anchor "1 24:00": it must be a time of day, 00:00 to 23:59"#.to_owned(),
        ),
        (
            r#"period = "hour", zone = "UTC""#,
            "unknown variant `hour`, expected one of `day`, `week`, `month`, `year`".to_owned(),
        ),
        (r#"period = "day""#, "missing field `zone`".to_owned()),
    ] {
        assert_eq!(error(fields), expected);
    }
    let window = text.replace("FIELDS", r#"period = "day", zone = "UTC""#) + "window = \"1d\"\n";
    assert_eq!(
        toml::from_str::<Policy>(&window).unwrap_err().message(),
        r#"policy "api": field `window`: a calendar period has none"#
    );
    let ten = Policy::new("ten", 10, seconds(1)).unwrap();
    assert_eq!(
        ten.anchored(Anchor::day(17)).unwrap_err().to_string(),
        r#"policy "ten": anchor "17": it must be set on a calendar period"#
    );
}

#[test]
fn written_table_reads_as_the_same_table() {
    let table: PolicyTable = toml::from_str(TOML).unwrap();
    let written = serde_json::to_value(&table).unwrap();
    assert_eq!(
        written,
        json!({
            "default": [
                {"name": "requests", "quota": 10, "window": "1m"},
                {
                    "name": "daily",
                    "quota": 950_000,
                    "window": "1d",
                    "algorithm": {"sliding-buckets": {"precision": "1m"}},
                    "hidden": true,
                },
            ],
            "tiers": {
                "internal": "unlimited",
                "bronze": [{"name": "requests", "quota": 1, "window": "1500ms", "algorithm": "fixed-window"}],
                "gold": [{
                    "name": "requests",
                    "quota": 1000,
                    "window": "90m",
                    "algorithm": "sliding-counter",
                    "shadow": true,
                }],
            },
        })
    );
    let of_json: PolicyTable = serde_json::from_str(&written.to_string()).unwrap();
    let of_toml: PolicyTable = toml::from_str(&toml::to_string(&table).unwrap()).unwrap();
    for other in [of_json, of_toml] {
        assert_eq!(tiers_of(&other), tiers_of(&table));
        assert_eq!(serde_json::to_value(&other).unwrap(), written);
    }
}

#[test]
fn every_window_reads_as_it_was_written() {
    let day = 86_400_000_000;
    for micros in [1_000, 1_001, 999_999, 1_000_000, 1_500_000, 60_000_000, 3_600_000_000, day, 366 * day] {
        let policy = requests(1, Duration::from_micros(micros));
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy, "{text}");
    }
}

#[test]
fn toml_error_shows_line_of_value() {
    assert_eq!(
        toml_error("[default]\nname = \"burst\"\nquota = 0\nwindow = \"1s\"\n"),
        "TOML parse error at line 3, column 9\n  |\n3 | quota = 0\n  |         ^\n\
         policy \"burst\": quota 0: it must be 1 to 4294967295 quota units\n"
    );
}

#[test]
fn toml_error_names_field_value_and_range() {
    const LENGTH: &str = r#"a number and a unit, such as "500ms", "90s", "15m", "1h" or "30d""#;
    let of_requests = |text: &str| format!(r#"policy "requests": {text}"#);
    let quota = |given| of_requests(&format!("quota {given}: it must be 1 to 4294967295 quota units"));
    let cases = [
        ("quota = -1", 7, 9, quota("-1")),
        ("quota = 5000000000", 7, 9, quota("5000000000")),
        (
            r#"quota = "10""#,
            7,
            9,
            r#"invalid type: string "10", expected the quota of policy "requests": 1 to 4294967295 quota units"#
                .to_owned(),
        ),
        (
            "window = 60",
            8,
            10,
            format!(r#"invalid type: integer `60`, expected the window of policy "requests": {LENGTH}"#),
        ),
        (r#"window = "60""#, 8, 10, of_requests(&format!(r#"window "60": it must be {LENGTH}"#))),
        (
            r#"window = "1M""#,
            8,
            10,
            of_requests(r#"window "1M": months and years differ in length: use days, such as "30d""#),
        ),
        (
            r#"window = "1 30m""#,
            8,
            10,
            of_requests(
                r#"window "1 30m": white space separates two digits: state the unit of each number, such as "1h 30m""#,
            ),
        ),
        (r#"window = "1h1h""#, 8, 10, of_requests(r#"window "1h1h": unit "h" occurs twice"#)),
        (
            r#"window = "400d""#,
            8,
            10,
            of_requests("window 34560000s: it must be 1 ms to 366 days"),
        ),
        (
            r#"name = "daily""#,
            6,
            8,
            r#"policy "daily" occurs twice: the policies of a limiter need different names"#.to_owned(),
        ),
        (
            r#"name = """#,
            6,
            8,
            r#"policy name "": it must be 1 to 64 printable ASCII characters (space to `~`)"#.to_owned(),
        ),
        (
            "quoat = 3",
            9,
            1,
            of_requests(
                "unknown field `quoat`, expected one of `name`, `quota`, `window`, `algorithm`, `lease`, `headroom`, `hidden`, `shadow`",
            ),
        ),
        (
            r#"algorithm = "sliding""#,
            9,
            13,
            "unknown variant `sliding`, expected one of `sliding-log`, `sliding-buckets`, `sliding-counter`, `fixed-window`, `token-bucket`, `gate`, `in-flight`, `calendar-period`"
                .to_owned(),
        ),
        (
            r#"algorithm = "in-flight""#,
            9,
            13,
            r#"algorithm "in-flight": it must be a table with its fields, such as `{ in-flight = { .. } }`"#.to_owned(),
        ),
        (
            r#"algorithm = { sliding-buckets = { precision = "10" } }"#,
            9,
            47,
            format!(r#"precision "10": it must be {LENGTH}"#),
        ),
        (
            r#"algorithm = { sliding-buckets = { precison = "1s" } }"#,
            9,
            35,
            "unknown field `precison`, expected `precision`".to_owned(),
        ),
        (
            // TOML reads the window after the precision.
            r#"algorithm = { sliding-buckets = { precision = "1us" } }"#,
            8,
            10,
            of_requests(
                "precision 1µs: it must be 1 ms to the window of 60s, in whole microseconds, with at most 4096 buckets in a window",
            ),
        ),
        (
            "headroom = 5",
            9,
            12,
            r#"invalid type: integer `5`, expected the headroom: a whole number of percent, "0%" to "99%""#.to_owned(),
        ),
        (
            r#"headroom = "100%""#,
            9,
            12,
            r#"headroom "100%": it must be a whole number of percent, "0%" to "99%""#.to_owned(),
        ),
        (
            // TOML reads the quota after the headroom.
            r#"headroom = "99%""#,
            7,
            9,
            of_requests("headroom of 99 percent of 10 units: it must be 0 to 99 percent and leave at least one unit"),
        ),
        (
            "lease = 50",
            9,
            9,
            "invalid type: integer `50`, expected the lease: a table, such as `{ up-to = 50 }` or `{ up-to = 50, ahead = true }`".to_owned(),
        ),
        (
            "lease = { units = 50 }",
            9,
            11,
            "unknown field `units`, expected `up-to` or `ahead`".to_owned(),
        ),
        (r#"hidden = "yes""#, 9, 10, r#"invalid type: string "yes", expected the field `hidden`: true or false"#.to_owned()),
        (
            // TOML reads it after the name.
            r#"shadow = "yes""#,
            9,
            10,
            r#"invalid type: string "yes", expected the field `shadow` of policy "requests": true or false"#.to_owned(),
        ),
    ];
    for (line, at, column, text) in cases {
        assert_eq!(error_of_line(line), (at, column, text), "{line}");
    }
}

#[test]
fn lease_needs_sliding_buckets_and_units() {
    let error = |fields: &str| {
        let text = format!("[default]\nname = \"hot\"\nquota = 10\nwindow = \"1m\"\n{fields}\n");
        toml_error(&text).trim_end().lines().last().unwrap().to_owned()
    };
    for units in [-1, 4_294_967_296_i64] {
        let expected = format!("lease of {units} units: it must be 1 to 4294967295 quota units");
        assert_eq!(error(&format!("lease = {{ up-to = {units} }}")), expected);
    }
    let of_units = |units: u32| {
        format!(
            "policy \"hot\": lease of {units} units: it must be 1 to 4294967295 quota units, and the algorithm must be sliding buckets"
        )
    };
    assert_eq!(error("lease = { up-to = 50 }"), of_units(50));
    assert_eq!(error("lease = { up-to = 50 }\nalgorithm = \"fixed-window\""), of_units(50));
    let buckets = "algorithm = { sliding-buckets = { precision = \"1s\" } }";
    assert_eq!(error(&format!("{buckets}\nlease = {{ up-to = 0 }}")), of_units(0));
}

#[test]
fn json_error_shows_line_of_value() {
    // The wrong value is the last one of its policy, so that the next line is another one.
    let error = |field: &str| {
        json_error(&format!(
            "{{\n \"default\": [\n  {{\n   \"name\": \"burst\",\n   \"quota\": 10,\n   \"window\": \"1m\",\n   {field}\n  }}\n ]\n}}"
        ))
    };
    assert_eq!(
        json_error("{\"default\": {\n\"name\": \"burst\", \"window\": \"1s\",\n\"quota\": 0\n}}"),
        r#"policy "burst": quota 0: it must be 1 to 4294967295 quota units at line 3 column 10"#
    );
    assert_eq!(
        json_error("{\"default\": {\n\"name\": \"burst\",\n\"window\": \"0s\"\n}}"),
        r#"policy "burst": window 0ns: it must be 1 ms to 366 days at line 3 column 14"#
    );
    assert_eq!(
        error(r#""algorithm": {"sliding-buckets": {"precision": "1us"}}"#),
        r#"policy "burst": precision 1µs: it must be 1 ms to the window of 60s, in whole microseconds, with at most 4096 buckets in a window at line 7 column 57"#
    );
    assert_eq!(
        error(r#""algorithm": {"sliding-buckets": {"precision": "10"}}"#),
        r#"policy "burst": precision "10": it must be a number and a unit, such as "500ms", "90s", "15m", "1h" or "30d" at line 7 column 54"#
    );
    assert_eq!(
        error(r#""algorithm": {"sliding-buckets": {"precison": "1s"}}"#),
        r#"policy "burst": unknown field `precison`, expected `precision` at line 7 column 47"#
    );
    assert_eq!(
        error(r#""lease": {"units": 50}"#),
        r#"policy "burst": unknown field `units`, expected `up-to` or `ahead` at line 7 column 20"#
    );
    assert_eq!(
        error(r#""headroom": "100%""#),
        r#"policy "burst": headroom "100%": it must be a whole number of percent, "0%" to "99%" at line 7 column 21"#
    );
    assert_eq!(error(r#""quota": 11"#), r#"policy "burst": field `quota` occurs twice at line 7 column 10"#);
    assert_eq!(
        error(r#""shadows": true"#),
        r#"policy "burst": unknown field `shadows`, expected one of `name`, `quota`, `window`, `algorithm`, `lease`, `headroom`, `hidden`, `shadow` at line 7 column 12"#
    );
    assert_eq!(
        error(r#""algorithm": "sliding""#),
        r#"policy "burst": unknown variant `sliding`, expected one of `sliding-log`, `sliding-buckets`, `sliding-counter`, `fixed-window`, `token-bucket`, `gate`, `in-flight`, `calendar-period` at line 7 column 25"#
    );
    // The list that a form without names would be.
    assert_eq!(
        json_error(r#"["unlimited", {}]"#),
        "invalid type: sequence, expected a policy table, with the fields `default` and `tiers` at line 1 column 1"
    );
    // The name of the policy is not known yet.
    assert_eq!(
        json_error(r#"{"default": {"quota": 0}}"#),
        "quota 0: it must be 1 to 4294967295 quota units at line 1 column 23"
    );
}

#[test]
fn error_tells_times_of_policy_in_flight_apart() {
    for (field, name) in [("hold-time", "hold time"), ("retry-after", "retry after")] {
        let read = |value: &str| {
            let algorithm = format!(r#""algorithm": {{"in-flight": {{"{field}": {value}}}}}"#);
            serde_json::from_str::<Policy>(&format!(r#"{{"name": "exports", "quota": 5, {algorithm}}}"#))
        };
        let error = |value: &str| read(value).unwrap_err().to_string();
        let form = r#"a number and a unit, such as "500ms", "90s", "15m", "1h" or "30d""#;
        let expected = format!(r#"policy "exports": {name} "30": it must be {form} at line"#);
        assert!(error(r#""30""#).starts_with(&expected), "{}", error(r#""30""#));
        let expected =
            format!(r#"policy "exports": invalid type: integer `30`, expected the {name}: {form} at line"#);
        assert!(error("30").starts_with(&expected), "{}", error("30"));
        assert!(
            error(r#""2h""#).starts_with(&format!(r#"policy "exports": {name} 7200s: "#)),
            "{}",
            error(r#""2h""#)
        );
        let written = serde_json::to_value(read(r#""2s""#).unwrap()).unwrap();
        assert_eq!(written["algorithm"]["in-flight"][field], "2s");
    }
}

#[test]
fn incomplete_table_is_an_error() {
    let last = |text: &str| toml_error(text).trim_end().lines().last().unwrap().to_owned();
    let kinds = r#"expected "unlimited", a list of policies, or one policy"#;
    assert_eq!(last("[default]\nname = \"a\"\nquota = 1\n"), r#"policy "a": missing field `window`"#);
    assert_eq!(last("default = []\n"), "an empty list: it must have 1 to 8 policies");
    assert_eq!(last("default = \"none\"\n"), format!(r#"invalid value: string "none", {kinds}"#));
    assert_eq!(last("default = 3\n"), format!("invalid type: integer `3`, {kinds}"));
    assert_eq!(last("[tiers]\ngold = \"unlimited\"\n"), "missing field `default`");
    assert_eq!(
        last("default = \"unlimited\"\n[tires]\n"),
        "unknown field `tires`, expected `default` or `tiers`"
    );
    assert_eq!(
        json_error(r#"{"default": "unlimited", "tiers": {"a": "unlimited", "a": "unlimited"}}"#),
        r#"tier "a" occurs twice at line 1 column 56"#
    );
    let nine: Vec<_> = (0..9).map(|i| json!({"name": i.to_string(), "quota": 1, "window": "1s"})).collect();
    let error = serde_json::from_value::<Policies>(json!(nine)).unwrap_err().to_string();
    assert_eq!(error, "9 policies: a limiter needs 1 to 8 policies");
}

/// The fields of a table may be beside other settings.
#[test]
fn table_is_a_flattened_part_of_settings() {
    #[derive(serde::Deserialize)]
    struct Settings {
        port: u16,
        #[serde(flatten)]
        limits: PolicyTable,
        #[serde(flatten)]
        rest: HashMap<String, toml::Value>,
    }
    let settings: Settings = toml::from_str(&format!("port = 80\nhost = \"a\"\n{TOML}")).unwrap();
    assert_eq!((settings.port, settings.rest.contains_key("host")), (80, true));
    assert!(matches!(settings.limits.pick("internal"), Tier::Unlimited));
}
