//! Errors of the arguments and of the policy file: one line, and exit status 2.

use super::{Files, of_example, replay};

const POLICY: &str = "key = \"address\"\n[[policies]]\nname = \"burst\"\nquota = 20\nwindow = \"1s\"\n";

#[test]
fn policy_file_error_names_line_value_and_range() {
    for (plan, expected) in [
        (
            "key = 7",
            r#"line 1: invalid type: integer `7`, expected the key: a field of the log, such as "address", or a list"#,
        ),
        ("key = []", "line 1: key: an empty list: it must have 1 field or more"),
        ("key = [\"a\", \"a\"]", r#"line 1: key: field "a" occurs twice"#),
        (
            "\nkey = \"a\"\npolicy = 1\n",
            "line 3: unknown field `policy`, expected one of `key`, `policies`, `costs`, `fields`",
        ),
        ("key = \"a\"\n", "line 1: missing field `policies`"),
        (
            &POLICY.replace("20", "0"),
            r#"line 4: policy "burst": quota 0: it must be 1 to 4294967295 quota units"#,
        ),
        (
            &POLICY.replace("1s", "1 year"),
            r#"line 5: policy "burst": window "1 year": months and years differ"#,
        ),
        (
            &POLICY.replace("20", "9_000_000"),
            "cost 1 of all other routes: the quota of 9000000 of policy \"burst\" allows 9000000 charges",
        ),
        (&format!("{POLICY}[costs]\nsearch = 1"), r#"line 7: route "search": it must begin with `/`"#),
        (
            &format!("{POLICY}[costs]\n\"get /a\" = 1"),
            r#"line 7: method "get" of "get /a": it must be an HTTP method, such as "POST""#,
        ),
        (
            &format!("{POLICY}[costs]\n\"/a\" = -1"),
            "line 7: invalid value: integer `-1`, expected a cost of 0 to 4294967295 quota units",
        ),
        (
            &format!("{POLICY}[costs]\n\n\"/a\" = \"1\""),
            r#"line 8: invalid type: string "1", expected a cost of 0 to 4294967295 quota units, or a table of such costs by policy"#,
        ),
        (
            &format!("{POLICY}[costs]\n\"/a\" = 21"),
            r#"line 7: cost 21 of policy "burst": it must be at most the quota of 20 units"#,
        ),
        (
            &format!("{POLICY}[costs]\n\"/a\" = {{ brust = 1 }}"),
            r#"line 7: cost of policy "brust": it must be one of the policies burst"#,
        ),
        (
            &format!("{POLICY}[costs]\n\"/a/{{x}}\" = 1\n\"/a/{{y}}\" = 2"),
            r#"line 8: route "/a/{y}": Insertion failed due to conflict with previously registered route: /a/{x}"#,
        ),
        (
            &format!("{POLICY}[fields]\nzeit = \"ts\""),
            "line 7: unknown field `zeit`, expected one of `time`, `method`, `path`",
        ),
        (
            "key = \"a\"\n[[policies]]\nname = \"stopped\"\nalgorithm = \"gate\"\n",
            r#"policy "stopped": its type has no window: it must be a sliding log, sliding buckets, a sliding counter"#,
        ),
        (
            &POLICY.replace("window = \"1s\"", "algorithm = { token-bucket = { rate = \"7/s\" } }"),
            r#"policy "burst": its type has no window: it must be a sliding log, sliding buckets, a sliding counter"#,
        ),
        (&format!("{POLICY}[costs\n"), "line 6: "),
    ] {
        let error = Files::new(plan, "").error(&[]);
        let expected = format!("policies.toml: {expected}");
        assert!(error.starts_with(&expected), "{plan}\n{error}\n{expected}");
    }
}

#[test]
fn argument_error_names_value_and_range() {
    for (options, expected) in [
        (&["--reorder", "86401"][..], r#"--reorder "86401": it must be 0 to 86400"#),
        (&["--reorder", "1m"], r#"--reorder "1m": it must be 0 to 86400"#),
        (&["--top", "0"], r#"--top "0": it must be 1 to 1000"#),
        (
            &["--smallest-quota", "5"],
            r#"share "5": it must be 0% to 99.999999%, with at most 6 decimals, such as "0.1%""#,
        ),
        (&["--smallest-quota", "100%"], r#"share "100%": it must be 0%"#),
        (&["--smallest-quota", "-1%"], r#"share "-1%": it must be 0%"#),
        (&["--smallest-quota", "1.%"], r#"share "1.%": it must be 0%"#),
        (&["--unknown"], "invalid option '--unknown'"),
        (&["third"], "3 files: it must be <policies.toml> and <access.log>; see --help"),
    ] {
        let error = Files::new(POLICY, "").error(options);
        assert!(error.starts_with(expected), "{options:?}: {error}");
    }
    let missing = replay(&["policies.toml"], None);
    assert_eq!(missing.stderr, "error: 1 files: it must be <policies.toml> and <access.log>; see --help\n");
    let help = replay(&["--help"], None);
    assert!(help.code == Some(0) && help.stdout.starts_with("usage: replay "), "{}", help.stdout);
}

#[test]
fn unreadable_file_is_an_error() {
    let plan = of_example("policies.toml");
    for arguments in [["missing.toml", "missing.log"], [&*plan, "missing.log"], [&*plan, "."]] {
        let replayed = replay(&arguments, None);
        let file = if arguments[0] == plan { arguments[1] } else { arguments[0] };
        assert_eq!(replayed.code, Some(2), "{arguments:?}");
        assert!(replayed.stderr.starts_with(&format!("error: {file}: ")), "{}", replayed.stderr);
    }
    let error = Files::new(POLICY, "").error(&[]);
    assert_eq!(error, "access.log: no request to replay");
    let error = Files::new(POLICY, "").error(&["--denials", "/missing/denials"]);
    assert!(error.starts_with("/missing/denials: "), "{error}");
}
