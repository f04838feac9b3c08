//! The layout of the example `playground`: what a user sees first, on a wide page and on a phone.

use serde_json::json;

use crate::page::Page;

const WIDE: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (390, 844);

/// Returns the edges of an element in the page: left, top, right and bottom.
fn edges(page: &mut Page, selector: &str) -> [f64; 4] {
    let edges = page.browser.eval(&format!(
        "(() => {{ const it = document.querySelector({selector:?}).getBoundingClientRect(); \
           return [it.left, it.top + scrollY, it.right, it.bottom + scrollY]; }})()"
    ));
    std::array::from_fn(|i| edges[i].as_f64().unwrap())
}

fn open((width, height): (u32, u32)) -> Page {
    let mut page = Page::open(None, width);
    page.browser.resize(width, height);
    page.browser.until(&format!("innerWidth === {width} && innerHeight === {height}"));
    page
}

#[test]
fn first_view_states_units_of_each_counter() {
    for size in [WIDE, PHONE] {
        let mut page = open(size);
        for (counter, most, over) in [
            ("sliding log", 50, "within the quota"),
            ("sliding buckets", 50, "within the quota"),
            ("sliding counter", 50, "within the quota"),
            ("fixed window", 100, "50 over the quota"),
            ("token bucket", 54, "4 over the quota"),
            ("INCREX", 99, "49 over the quota"),
            ("two counters", 51, "1 over the quota"),
        ] {
            let total = format!("[data-total='{counter}']");
            let [left, top, right, bottom] = edges(&mut page, &total);
            assert!(
                left >= 0.0 && top >= 0.0 && right <= f64::from(size.0),
                "{counter}: {left} {top} {right}"
            );
            assert!(bottom <= f64::from(size.1), "{counter} of {size:?}: {bottom}");
            assert_eq!(page.browser.text(&format!("{total} .counter")), counter);
            assert_eq!(page.browser.text(&format!("{total} .most")), most.to_string(), "{counter}");
            assert_eq!(page.browser.text(&format!("{total} .over")), over, "{counter}");
            let of_chart = page.browser.text(&format!("[data-counter='{counter}'] [data-value=worst]"));
            assert_eq!(of_chart, most.to_string(), "{counter}");
        }
        // The numbers are those of the trace that the user has chosen.
        page.choose_pattern("edge");
        assert_eq!(page.browser.text("[data-total=INCREX] .most"), "50");
        page.assert_clean();
    }
}

#[test]
fn stop_button_is_beside_traffic_and_above_chart() {
    for size in [WIDE, PHONE] {
        let mut page = open(size);
        let panel = edges(&mut page, "#send-form");
        let (one, stop) = (edges(&mut page, "#send-one"), edges(&mut page, "#stop"));
        let chart = edges(&mut page, "#live-chart");
        for button in [one, stop] {
            assert!(button[0] >= panel[0] && button[2] <= panel[2], "{button:?} {panel:?}");
            assert!(button[1] >= panel[1] && button[3] <= panel[3], "{button:?} {panel:?}");
        }
        assert!(stop[3] <= chart[1], "{stop:?} {chart:?}");
        // A user of a wide page sees the buttons and the chart at once.
        if size == WIDE {
            assert!(chart[3] - one[1] <= 900.0, "{one:?} {chart:?}");
        }
        page.assert_clean();
    }
}

#[test]
fn send_button_is_before_charts_on_phone() {
    let mut page = open(PHONE);
    let (button, charts) = (edges(&mut page, "#send-one"), edges(&mut page, "#lanes"));
    assert!(button[3] <= charts[1], "{button:?} {charts:?}");
    // Also for a screen reader.
    let follows =
        "document.querySelector('#send-one').compareDocumentPosition(document.querySelector('#lanes')) & 4";
    assert_eq!(page.browser.eval(follows), 4);
    page.browser.click("#send-one");
    page.browser.until("document.querySelector('#tile-admitted').textContent === '1'");
    // On a wide page, the charts are next to their trace.
    page.browser.resize(WIDE.0, WIDE.1);
    page.browser.until(
        "document.querySelector('#lanes').getBoundingClientRect().bottom \
         <= document.querySelector('#send').getBoundingClientRect().top",
    );
    page.assert_clean();
}

/// Returns the visible controls that are smaller than 44 px in a direction. A label is a part of the target of its radio
/// button or checkbox.
const SMALL_TARGETS: &str = r#"(() => {
  const controls = [...document.querySelectorAll("a, button, input, select, [tabindex]")].filter((it) => it.checkVisibility());
  document.querySelector(".skip").focus();
  const sizes = controls.map((it) => {
    const target = it.matches("[type=radio], [type=checkbox]") ? it.closest("label") : it;
    const { width, height } = target.getBoundingClientRect();
    return [target.id || target.name || target.className || target.textContent.trim(), width, height];
  });
  return [controls.length, sizes.filter(([, width, height]) => width < 44 || height < 44)];
})()"#;

#[test]
fn targets_on_phone_have_44_pixels() {
    let mut page = open(PHONE);
    page.browser.click("#add-policy");
    page.browser.until("document.querySelectorAll('#policies li').length === 2");
    let targets = page.browser.eval(SMALL_TARGETS);
    assert!(targets[0].as_u64() > Some(35), "{targets}");
    assert_eq!(targets[1], json!([]));
    page.assert_clean();
}
