//! The example `playground` when a user makes a mistake, or when its program or its Redis goes away.

use std::{
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::json;

use crate::{
    browser::Browser,
    example::process::Example,
    page::{Page, post},
    support::server::{Engine, Server},
};

#[test]
fn page_keeps_policies_in_force_after_invalid_input() {
    let mut page = Page::open(None, 1280);
    page.click_and_wait("#send-one");
    for window in ["", "0", "-1"] {
        page.browser.fill("#policies .window", window);
        page.browser.until("document.querySelector('#limits-error').textContent !== ''");
        let status = page.click_and_wait("#send-one");
        assert!(status.starts_with("The policies of this page are not in force"), "{window:?}: {status}");
        assert!(page.browser.text("#meters").contains("9 of 10 left"), "{window:?}");
    }
    page.browser.fill("#policies .window", "10");
    assert_eq!(page.click_and_wait("#send-one"), "Admitted.");
    page.assert_clean();
}

#[test]
fn errors_of_page_state_value_and_range() {
    let mut page = Page::open(None, 1280);
    page.browser.click("[name=pattern][value=edge]");
    for (form, field, value, error) in [
        ("compare", "[name=quota]", "0", "quota 0: enter a whole number from 1 to 2000."),
        ("compare", "[name=quota]", "1.5", "quota 1.5: enter a whole number from 1 to 2000."),
        ("compare", "[name=quota]", "", "quota has no value: enter a whole number from 1 to 2000."),
        ("compare", "[name=window]", "172800", "window 172800: enter a number from 0.1 to 86400."),
        ("compare", "[name=cost]", "-1", "cost -1: enter a whole number from 1 to 2000."),
        ("compare", "[name=precision]", "20", "precision 20: enter a number from 0.003 to 10."),
        (
            "limits",
            ".quota",
            "5000000000",
            "policy \"burst\": quota 5000000000: enter a whole number from 1 to 4294967295.",
        ),
        (
            "limits",
            ".window",
            "0",
            "policy \"burst\": window in seconds 0: enter a number from 0.001 to 31622400.",
        ),
        ("limits", ".name", "\u{e9}", "name \"\u{e9}\": enter 1 to 64 printable ASCII characters."),
        ("limits", "[name=processes]", "1.5", "processes 1.5: enter a whole number from 1 to 1000."),
    ] {
        let input = format!("#{form}-form {field}");
        let valid = page.browser.eval(&format!("document.querySelector({input:?}).value"));
        page.browser.fill(&input, value);
        page.browser.until(&format!("document.querySelector('#{form}-error').textContent !== ''"));
        assert_eq!(page.browser.text(&format!("#{form}-error")), error, "{input}");
        page.browser.fill(&input, valid.as_str().unwrap());
        page.browser.until(&format!("document.querySelector('#{form}-error').textContent === ''"));
    }
    page.assert_clean();
}

#[test]
fn errors_of_program_have_no_internals() {
    let example = Example::of("playground", None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let limits = |change: &str, value: &str| {
        let mut body = json!({
            "policies": [{ "name": "burst", "quota": 10, "window": "10s" }],
            "outage": "fail-closed", "processes": 2, "restart": false, "page": "",
        });
        let value = serde_json::from_str(value).unwrap();
        *body.pointer_mut(change).unwrap() = value;
        ("/api/limits", body.to_string())
    };
    let comparison = |change: &str, value: &str| {
        let mut body = json!({
            "policy": { "name": "compare", "quota": 5, "window": "10s" }, "precision_ms": 1_000, "trace": [[0, 1]],
        });
        *body.pointer_mut(change).unwrap() = serde_json::from_str(value).unwrap();
        ("/api/compare", body.to_string())
    };
    // The value, and a part of what is allowed.
    for ((path, body), value, allowed) in [
        (limits("/processes", "1.5"), "processes 1.5", "from 1 to 1000"),
        (limits("/processes", "0"), "processes 0", "from 1 to 1000"),
        (limits("/policies/0/quota", "0"), "quota 0", "1 to 4294967295"),
        (limits("/policies/0/quota", "1.5"), "1.5", "1 to 4294967295"),
        (limits("/outage", "\"x\""), "`x`", "`fail-closed`, `fail-open`, `local-fallback`"),
        (limits("", "1"), "1", "the policies and the outage rule"),
        (comparison("/precision_ms", "null"), "null", "a whole number from 1"),
        (comparison("/trace/0/1", "1.5"), "cost 1.5", "from 0 to 4294967295"),
        (comparison("/trace/0/1", "-1"), "cost -1", "from 0 to 4294967295"),
        (comparison("/trace/0/0", "604800000001"), "604800000001", "within seven days"),
        (comparison("/trace/0/0", "0.5"), "0.5", "a whole number"),
        (comparison("/policy/window", "\"2d\""), "172800 s", "at most one day"),
        (comparison("", "1"), "1", "the policy, the precision and the trace"),
        (("/api/backend", json!({ "mode": "x" }).to_string()), "`x`", "`running`, `refusing`, `hanging`"),
        (("/api/backend", "{".to_owned()), "not JSON", "send JSON"),
    ] {
        let (status, error) = post(&runtime, &example, path, &body);
        assert_eq!(status, 400, "{body}: {error}");
        assert!(error.contains(value) && error.contains(allowed), "{body}: {error}");
        for internal in
            ["u32", "u64", "i64", "f64", "struct", "enum", "variant", "deserialize", "column", "::", "{"]
        {
            assert!(!error.contains(internal), "{internal}: {error}");
        }
    }
}

#[test]
fn page_sends_nothing_for_invalid_traffic() {
    let mut page = Page::open(None, 1280);
    // Neither an empty value nor another script can be a header.
    for key in ["", "   ", "\u{65e5}\u{672c}"] {
        page.browser.fill("#send-form [name=key]", key);
        page.browser.click("#send-one");
    }
    page.browser.fill("#send-form [name=key]", "alice");
    // A stream pauses while the cost is invalid.
    page.browser.fill("#send-form [name=rate]", "50");
    page.browser.click("#send-stream");
    page.browser.until("Number(document.querySelector('#tile-admitted').textContent) > 0");
    page.browser.fill("#send-form [name=cost]", "-1");
    sleep(Duration::from_millis(300));
    let sent = "Number(document.querySelector('#tile-admitted').textContent) + \
                Number(document.querySelector('#tile-rejected').textContent)";
    let before = page.browser.eval(sent);
    sleep(Duration::from_millis(300));
    assert_eq!(page.browser.eval(sent), before);
    assert!(page.browser.text("#wire").contains("?cost=1 "));
    assert_eq!(page.browser.text("#tile-outage"), "0");
    page.assert_clean();
}

#[test]
fn page_does_not_wait_for_distant_edge() {
    let mut page = Page::open(None, 1280);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let window = [31_622_400, 20_000_000].into_iter().find(|window| window - now % window > 1_000).unwrap();
    page.browser.fill("#policies .window", &window.to_string());
    let status = page.click_and_wait("#send-edge");
    assert!(status.ends_with("Choose a window of at most 60 s."), "{status}");
    assert_eq!(page.browser.text("#tile-admitted"), "0");
    page.assert_clean();
}

#[test]
fn page_reports_policies_of_another_page() {
    let mut page = Page::open(None, 1280);
    page.click_and_wait("#send-one");
    let warning = "document.querySelector('#limits-notice').textContent.includes('another page')";
    assert_eq!(page.browser.eval(warning), false);
    let mut other = Browser::open(&page.origin, 1280, 900);
    other.until("document.querySelector('#backend-name').textContent !== '…'");
    page.browser.until(&format!("(document.querySelector('#send-one').click(), {warning})"));
    assert_eq!(other.eval(warning), false);
    // Each change here applies the policies of this page again.
    page.browser.click("#restart");
    page.browser.until(&format!("!{warning}"));
    page.assert_clean();
}

#[test]
fn page_reports_policies_of_another_page_that_opens_at_once() {
    let mut page = Page::open(None, 1280);
    // The first answer about the policies in force arrives when those of the other page are.
    let hold = "const send = fetch; window.isHeld = true; \
                window.fetch = (url, options) => \
                    window.isHeld && url.startsWith('api/state') ? new Promise(() => {}) : send(url, options);";
    page.browser.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": hold }));
    page.browser.call("Page.navigate", json!({ "url": page.origin }));
    page.browser.until("window.isHeld && document.querySelectorAll('.lane svg').length === 7");
    page.click_and_wait("#send-one");
    assert_eq!(page.browser.text("#backend-name"), "…", "the page has an answer");
    let mut other = Browser::open(&page.origin, 1280, 900);
    // Its policies are in force when it has sent a request.
    other.until("(document.querySelector('#send-one').click(), document.querySelector('#tile-admitted').textContent !== '0')");
    page.browser.eval("window.isHeld = false; document.querySelector('#send-one').click()");
    page.browser.until("document.querySelector('#limits-notice').textContent.includes('another page')");
    page.assert_clean();
}

#[test]
fn page_reports_stopped_program() {
    let Page { mut browser, origin, example } = Page::open(None, 1280);
    browser.click("#send-one");
    browser.until("document.querySelector('#tile-admitted').textContent === '1'");
    drop(example);
    for button in ["#send-one", "#send-burst", "#send-edge"] {
        browser.eval("document.querySelector('#send-status').textContent = ''");
        browser.click(button);
        browser.until(
            "document.querySelector('#send-status').textContent.startsWith('The program does not answer')",
        );
        browser.until(&format!("!document.querySelector('{button}').ariaBusy"));
        let status = browser.text("#send-status");
        assert_eq!(status, "The program does not answer. Start it again.", "{button} of {origin}");
    }
}

#[test]
fn page_shows_outage_and_recovery_of_redis() {
    let mut server = Server::start(Engine::Redis);
    let mut page = Page::open(Some(&server.url()), 1280);
    let log = |text| format!("document.querySelector('#log').textContent.includes('{text}')");
    page.browser.fill("#send-form [name=rate]", "20");
    page.browser.click("#send-stream");
    page.browser.until("document.querySelector('#tile-admitted').textContent === '10'");
    server.kill();
    page.browser.until(&log("Requests are rejected with 503."));
    page.browser.until("document.querySelector('#breaker').textContent !== 'closed'");
    server.restart();
    page.browser.until(&log("The backend decides again."));
    page.browser.until("document.querySelector('#breaker').textContent === 'closed'");
    page.browser.until("Number(document.querySelector('#tile-admitted').textContent) > 10");
    page.browser.click("#send-stream");
    page.assert_clean();
}
