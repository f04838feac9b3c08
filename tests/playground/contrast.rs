//! The contrast of texts, graphics and controls of the example `playground`, in light and dark, as WCAG 2.2 defines it.

use serde_json::json;

use crate::page::Page;

/// Returns the visible texts, graphics and controls whose contrast to their background is too low, except those of disabled
/// controls. A text needs 4.5, and the rest 3. Each graphic of the style sheet counts, also if it is not in the page now.
pub const LOW_CONTRAST: &str = r#"(() => {
  const channels = (color) => { const [r, g, b, alpha = 1] = color.match(/[\d.]+/g).map(Number); return { rgb: [r, g, b], alpha }; };
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = (rgb) => rgb.reduce((sum, c, i) => sum + linear(c) * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (one, other) => {
    const [a, b] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
  };
  const background = (element) => {
    for (let it = element; it; it = it.parentElement) {
      const { rgb, alpha } = channels(getComputedStyle(it).backgroundColor);
      if (alpha > 0) return rgb;
    }
    return [255, 255, 255];
  };
  const opacity = (element) => (element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1);
  const low = [];
  let checked = 0;
  /** Checks a colour of an element on a background. */
  const check = (name, element, color, behind, wanted) => {
    if (color === "none") return;
    const { rgb, alpha } = channels(color);
    const share = alpha * opacity(element);
    if (share === 0) return;
    const mixed = rgb.map((c, i) => c * share + behind[i] * (1 - share));
    checked += 1;
    if (ratio(mixed, behind) < wanted) low.push(`${name}: ${ratio(mixed, behind).toFixed(2)}`);
  };

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || element.matches(":disabled, title, option") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    check(text, element, element.closest("svg") ? style.fill : style.color, background(element), 4.5);
  }

  // Each class of a graphic in the style sheet, on a panel.
  const rules = (list) => [...list].flatMap((rule) => (rule.cssRules?.length ? rules(rule.cssRules) : [rule]));
  const names = [...document.styleSheets].flatMap((sheet) => rules(sheet.cssRules))
    .flatMap((rule) => rule.selectorText?.match(/\.s-[\w.-]+/g) ?? []);
  const scratch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  document.querySelector('#live-chart').append(scratch);
  for (const name of new Set(names)) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", name.replaceAll(".", " ").trim());
    // The style sheet overrides these attributes.
    path.setAttribute("fill", "none");
    scratch.append(path);
  }
  for (const shape of document.querySelectorAll("svg :is(path, rect, line)")) {
    // A halo has the colour of the background.
    if (shape.matches(".s-halo")) continue;
    const { fill, stroke } = getComputedStyle(shape);
    if (!shape.matches("line")) check(shape.getAttribute("class"), shape, fill, background(shape), 3);
    check(shape.getAttribute("class"), shape, stroke, background(shape), 3);
  }
  scratch.remove();

  for (const it of document.querySelectorAll(".swatch, .meter, .meter i")) {
    const style = getComputedStyle(it);
    const sides = ["Top", "Left"].filter((side) => parseFloat(style[`border${side}Width`]) > 0);
    const colors = sides.length ? sides.map((side) => style[`border${side}Color`]) : [style.backgroundColor];
    for (const color of colors) check(it.className || "meter i", it, color, background(it.parentElement), 3);
  }

  // The border of a control, or its area.
  for (const it of document.querySelectorAll("button, select, input:is([type=number], [type=text]), .choices span")) {
    if (it.matches(":disabled") || !it.checkVisibility()) continue;
    const { borderTopColor, backgroundColor } = getComputedStyle(it);
    const behind = background(it.parentElement);
    const clearest = [borderTopColor, backgroundColor].sort((a, b) => ratio(channels(b).rgb, behind) - ratio(channels(a).rgb, behind))[0];
    check(`control ${it.id || it.name || it.textContent}`, it, clearest, behind, 3);
  }
  const focus = document.querySelector('#restart');
  focus.focus({ focusVisible: true });
  check("focus", focus, getComputedStyle(focus).outlineColor, background(focus.parentElement), 3);
  return checked > 100 && new Set(names).size > 10 ? low : [`only ${checked} colours`];
})()"#;

#[test]
fn graphics_and_texts_have_contrast_in_light_and_dark() {
    let mut page = Page::open(None, 1280);
    page.browser.click("#add-policy");
    page.browser.until("document.querySelectorAll('#meters li').length === 2");
    // An admission, a denial with its wait, and a request of each kind without a decision.
    assert_eq!(page.send_burst(12), "10 of 12 admitted.");
    page.browser.fill("#send-form [name=key]", "bob");
    page.browser.click("#stop");
    page.browser.until("document.querySelector('#mode').textContent === 'refusing'");
    for rule in ["fail-closed", "fail-open", "local-fallback"] {
        page.browser.click(&format!("[name=outage][value={rule}]"));
        page.click_and_wait("#send-one");
    }
    for class in ["usage", "denied", "wait", "unavailable", "unchecked", "local", "line"] {
        page.browser.until(&format!("document.querySelector('#live-chart .s-{class}')"));
    }
    for scheme in ["light", "dark"] {
        page.browser.prefer(scheme);
        assert_eq!(page.browser.eval(LOW_CONTRAST), json!([]), "{scheme}");
    }
    page.assert_clean();
}
