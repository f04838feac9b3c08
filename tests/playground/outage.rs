//! What the example `playground` shows of requests without a decision of the backend.

use crate::page::Page;

/// Stops the backend, and chooses the outage rule.
fn stop(page: &mut Page, rule: &str) {
    page.browser.click("#stop");
    page.browser.until("document.querySelector('#mode').textContent === 'refusing'");
    choose_rule(page, rule);
}

fn choose_rule(page: &mut Page, rule: &str) {
    page.browser.click(&format!("[name=outage][value={rule}]"));
    page.browser.until(&format!("document.querySelector('[name=outage]:checked').value === '{rule}'"));
}

#[test]
fn units_over_quota_name_their_outage_rule() {
    let mut page = Page::open(None, 1280);
    // All requests are in one window, also on a busy machine.
    page.browser.fill("#policies .window", "600");
    assert_eq!(page.send_burst(10), "10 of 10 admitted.");
    page.browser.until("document.querySelector('#meters').textContent.includes('worst window: 10')");
    assert!(!page.browser.text("#meters").contains("fallback"));
    // Two processes share the quota.
    stop(&mut page, "local-fallback");
    assert_eq!(page.send_burst(8), "5 of 8 admitted.");
    let text = "worst window: 15, 5 over the quota: of these 15, the local fallback admitted 5";
    page.browser.until(&format!("document.querySelector('#meters').textContent.endsWith('{text}')"));
    choose_rule(&mut page, "fail-open");
    assert_eq!(page.send_burst(2), "2 of 2 admitted.");
    let text = "worst window: 17, 7 over the quota: of these 17, the local fallback admitted 5, and fail open admitted 2 unchecked";
    page.browser.until(&format!("document.querySelector('#meters').textContent.endsWith('{text}')"));
    // The reason stays after the outage.
    page.browser.click("#stop");
    page.browser.until("document.querySelector('#mode').textContent === 'running'");
    page.browser.until(
        "document.querySelector('#breaker').textContent === 'closed' || document.querySelector('#send-one').click()",
    );
    assert!(page.browser.text("#meters").ends_with(text));
    page.assert_clean();
}

#[test]
fn rejections_exclude_requests_without_decision() {
    let mut page = Page::open(None, 1280);
    page.browser.fill("#policies .window", "600");
    assert_eq!(page.send_burst(12), "10 of 12 admitted.");
    let shows =
        |tile: &str, text: &str| format!("document.querySelector('#tile-{tile}').textContent === '{text}'");
    page.browser.until(&shows("rejected", "2"));
    // The key of a known denial would be denied in the outage, too.
    page.browser.fill("#send-form [name=key]", "bob");
    stop(&mut page, "fail-closed");
    assert_eq!(page.send_burst(3), "0 of 3 admitted.");
    page.browser.until(&shows("outage", "3"));
    choose_rule(&mut page, "fail-open");
    assert_eq!(page.send_burst(4), "4 of 4 admitted.");
    page.browser.until(&shows("outage", "7"));
    assert_eq!(page.browser.text("#tile-outage-parts"), "4 admitted, 3 rejected with 503");
    // Each of the 19 requests counts once.
    assert_eq!(page.browser.text("#tile-rejected"), "2");
    assert_eq!(page.browser.text("#tile-admitted"), "10");
    page.assert_clean();
}
