//! What a line of a log means.

use std::fs;

use serde_json::Value;

use super::{Files, logs::Random};

/// Every request is denied except the first one of a key, so the list of denials has each line.
fn plan(key: &str) -> String {
    format!("key = \"{key}\"\n[[policies]]\nname = \"one\"\nquota = 1\nwindow = \"366d\"\n")
}

/// Returns the instant and the value of the key that the example reads in a line. Writes the line twice: the second one is denied.
fn read(line: &str, key: &str) -> (String, String) {
    let files = Files::new(&plan(key), format!("{line}\n{line}\n"));
    let list = files.path("denials.jsonl");
    files.summary(&["--denials", &list]);
    let denial: Value = serde_json::from_str(&fs::read_to_string(list).unwrap()).unwrap();
    (denial["time"].as_str().unwrap().to_owned(), denial["key"][key].as_str().unwrap().to_owned())
}

#[test]
fn combined_log_has_every_field() {
    let line = r#"::1 id ann [01/Jan/2026:00:30:00 +0530] "GET /a?b=c HTTP/1.1" 404 - "http://x/\"y\"" "A \x41\\ é" more"#;
    for (field, value) in [
        ("address", "::"),
        ("identity", "id"),
        ("user", "ann"),
        ("method", "GET"),
        ("path", "/a"),
        ("protocol", "HTTP/1.1"),
        ("status", "404"),
        ("referer", r#"http://x/"y""#),
        ("agent", r"A A\ é"),
    ] {
        assert_eq!(read(line, field), ("2025-12-31T19:00:00Z".to_owned(), value.to_owned()), "{field}");
    }
}

#[test]
fn json_line_has_nested_fields_and_times() {
    for (time, expected) in [
        (r#""2026-01-01T00:00:00.123456789+01:00""#, "2025-12-31T23:00:00.123456Z"),
        (r#""2026-01-01T00:00:00Z""#, "2026-01-01T00:00:00Z"),
        (r#""01/Jan/2026:00:00:00 -0100""#, "2026-01-01T01:00:00Z"),
        ("1767225600", "2026-01-01T00:00:00Z"),
        ("1767225600.000001", "2026-01-01T00:00:00.000001Z"),
        ("1.7672256e9", "2026-01-01T00:00:00Z"),
        (r#""1767225600.5""#, "2026-01-01T00:00:00.5Z"),
        ("1767225600123", "2026-01-01T00:00:00.123Z"),
        ("1767225600123.5", "2026-01-01T00:00:00.1235Z"),
        ("1767225600123456", "2026-01-01T00:00:00.123456Z"),
        ("1767225600123456789", "2026-01-01T00:00:00.123456Z"),
    ] {
        let line = format!(r#"{{"time": {time}, "a": {{"b": 7}}, "a.c": true, "d": "\u0041"}}"#);
        for (field, value) in [("a.b", "7"), ("a.c", "true"), ("d", "A")] {
            let files = read(&line, field);
            assert_eq!(files, (expected.to_owned(), value.to_owned()), "{line}");
        }
    }
}

/// As `peer_ip` does in a service.
#[test]
fn address_in_key_is_grouped_as_in_service() {
    for (given, counted) in [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:7:1:2:3:4", "2001:db8:0:7::"),
        ("2001:DB8:0:7::9", "2001:db8:0:7::"),
        ("fe80::7", "fe80::7"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
    ] {
        let common = format!(r#"{given} - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5"#);
        assert_eq!(read(&common, "address").1, counted);
        let json = format!(r#"{{"time": 1767225600, "request": {{"remote_ip": "{given}"}}}}"#);
        assert_eq!(read(&json, "request.remote_ip").1, counted);
    }
    let line = |host| format!("{{\"time\": 1767225600, \"address\": \"2001:db8::{host:x}\"}}\n");
    let log: String = (1..=300).map(line).collect();
    let summary = Files::new(&plan("address"), log).summary(&[]);
    assert!(
        summary.starts_with("300 requests by 1 key of address") && summary.contains(" 299 "),
        "{summary}"
    );
}

#[test]
fn line_without_key_is_not_limited() {
    let line =
        |user: &str| format!(r#"10.0.0.1 - {user} [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5"#);
    let lines = [line("-"), line("ann"), line("-"), r#"{"time": 1767225600, "user": null}"#.to_owned()];
    let summary = Files::new(&plan("user"), lines.join("\n")).summary(&[]);
    assert!(summary.starts_with("1 request by 1 key of user"), "{summary}");
    assert!(summary.contains("\n3 lines not limited: no key\n  line 1: no value of user\n"), "{summary}");
}

#[test]
fn malformed_lines_are_counted_and_named() {
    let good = r#"10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5"#;
    let long = format!("{}\n", "x".repeat(2 << 20));
    let mut log = format!("{good}\n\n").into_bytes();
    log.extend_from_slice(long.as_bytes());
    log.extend_from_slice(b"\xff\n");
    for line in [
        "nothing",
        r#"80 10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5"#,
        r#"10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 2000 5"#,
        r#"10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1""#,
    ] {
        log.extend_from_slice(format!("{line}\r\n").as_bytes());
    }
    log.extend_from_slice(good.as_bytes());
    let summary = Files::new(&plan("address"), log).summary(&[]);
    let expected = "2 requests by 1 key of address, 2026-01-01T00:00:00Z to 2026-01-01T00:00:00Z
6 lines skipped
  line 3: the line is longer than 1048576 bytes
  line 4: the line is not UTF-8
  line 5: it is neither JSON nor the common log format: no time in brackets
  line 6: \"80 10.0.0.1 - -\" before the time: it must be 3 fields, address, identity and user
  line 7: status \"2000\": it must be 3 digits
  ...
";
    assert!(summary.starts_with(expected), "{summary}");
}

#[test]
fn unreadable_line_states_value_and_range() {
    for (line, reason) in [
        (r#"{"time": "soon"}"#, r#"time "soon": it must be a time with an offset, such as "#),
        (
            r#"{"time": "2026-01-01T00:00:00"}"#,
            r#"time "2026-01-01T00:00:00": it must be a time with an offset"#,
        ),
        (r#"{"time": -1}"#, r#"time "-1": it must be from 1970 to 2041-05-10T11:56:53.685247Z"#),
        (
            r#"{"time": "2042-01-01T00:00:00Z"}"#,
            r#"time "2042-01-01T00:00:00Z": it must be from 1970 to 2041"#,
        ),
        (
            r#"{"time": "1969-12-31T23:59:59Z"}"#,
            r#"time "1969-12-31T23:59:59Z": it must be from 1970 to 2041"#,
        ),
        (r#"{"time": 1e300}"#, r#"time "1e+300": it must be from 1970 to 2041"#),
        (r#"{"time": [1]}"#, r#"field "time": it must be a time, as a string or a number"#),
        (r#"{"user": 1}"#, r#"no field "time": `[fields]` names the time of a line"#),
        (r#"{"time": 1, "user": {}}"#, r#"field "user": it must be a string, a number, true or false"#),
        (r#"{"time": 1"#, "invalid JSON: EOF while parsing an object at line 1 column 10"),
        (
            r#"a - - [01/Jan/2026:00:00:00] "GET / HTTP/1.1" 200 5"#,
            r#"time "01/Jan/2026:00:00:00": it must be"#,
        ),
        (
            r#"a - - [01/Jan/2026:00:00:00 +0000] "GET /" 200 5"#,
            r#"request "GET /": it must be a method, a path"#,
        ),
        (
            r#"a - - [01/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1\" 200 5"#,
            "no request in quotes after the time",
        ),
    ] {
        let error = Files::new(&plan("user"), line).error(&[]);
        assert!(
            error.starts_with(&format!("access.log: no request to replay; line 1: {reason}")),
            "{line}: {error}"
        );
    }
}

#[test]
fn late_line_counts_as_late_as_it_may_be() {
    let line = |after: u64| format!("{{\"time\": {}, \"user\": 1}}\n", 1_767_225_600 + after);
    // Line 2 waits for line 3, and line 4 is more than 10 s late.
    let log = [100, 95, 94, 80].map(line).concat();
    let files = Files::new(&plan("user"), &log);
    let list = files.path("denials.jsonl");
    let summary = files.summary(&["--reorder", "10", "--denials", &list]);
    assert!(
        summary.contains("1 line moved to a later instant: more out of order than --reorder\n  line 4: 2026-01-01T00:01:20Z\n"),
        "{summary}"
    );
    let denials = fs::read_to_string(list).unwrap();
    let denials: Vec<Value> = denials.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines: Vec<_> = denials.iter().map(|denial| denial["line"].as_u64().unwrap()).collect();
    // Line 4 counts at 90 s, and is the first one.
    assert_eq!(lines, [3, 2, 1]);
}

#[test]
fn policy_in_shadow_mode_denies_no_request() {
    let plan = format!("{}shadow = true\n", plan("user"));
    let line = "{\"time\": 1767225600, \"user\": 1}\n";
    let summary = Files::new(&plan, line.repeat(3)).summary(&[]);
    assert!(summary.contains("one (shadow)  1 in 366 d       2  66.67 %"), "{summary}");
    assert!(summary.contains("together                       0   0.00 %     0"), "{summary}");
}

#[test]
fn control_characters_of_client_are_escaped() {
    let line = "{\"time\": 1767225600, \"user\": \"\\u001b[31m\"}\n";
    let summary = Files::new(&plan("user"), line.repeat(2)).summary(&[]);
    assert!(summary.contains(r"\u{1b}[31m") && !summary.contains('\u{1b}'), "{summary}");
}

#[test]
fn random_bytes_never_panic() {
    let plan = format!("{}[costs]\n\"GET /a\" = 0\n", plan("agent"));
    let good = br#"10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET /a HTTP/1.1" 200 5 "-" "\x41\\" {"time": 17672256, "agent": 1, "path": "/", "method": "GET"}"#;
    let mut random = Random::new(5);
    let mut log = Vec::new();
    for index in 0..20_000 {
        // A line, or its second half, which is JSON, with some bytes replaced, removed or repeated.
        let start = if index % 2 == 0 { 0 } else { good.iter().position(|byte| *byte == b'{').unwrap() };
        let mut line = good[start..].to_vec();
        for _ in 0..random.below(4) {
            let place = random.below(line.len() as u64) as usize;
            match random.below(3) {
                0 => line[place] = random.below(256) as u8,
                1 => line.truncate(place + 1),
                _ => line.insert(place, b"\"\\[]{} -x9\xc3"[random.below(11) as usize]),
            }
        }
        log.extend_from_slice(&line);
        log.push(b'\n');
    }
    let summary = Files::new(&plan, log).summary(&[]);
    let (requests, _) = summary.split_once(" requests by ").unwrap();
    assert!(requests.parse::<u32>().unwrap() > 2_000 && summary.contains(" lines skipped\n"), "{summary}");
}
