//! The rules, with `promtool` and the tests of `dashboards/rules_test.yml`.

use std::process::Command;

use crate::{expressions::path, prometheus::program};

#[test]
fn promtool_accepts_alerts_and_records() {
    for (command, file) in [("check", "rules.yml"), ("test", "rules_test.yml")] {
        let tool = Command::new(program("promtool", "TEST_PROMTOOL"))
            .args([command, "rules"])
            .arg(path(file))
            .output();
        let tool = tool.expect("promtool");
        let text = [tool.stdout, tool.stderr].concat();
        assert!(tool.status.success(), "{}", String::from_utf8_lossy(&text));
    }
}
