//! The example `playground` in a headless browser, as a user sees it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    browser::Browser,
    contrast::LOW_CONTRAST,
    example::process::{Example, run_example, run_with},
    http::wire::request_with_body,
    support::server::{Engine, Server},
};

/// The page in a browser, and the program that serves it.
pub struct Page {
    pub browser: Browser,
    pub origin: String,
    pub example: Example,
}

impl Page {
    pub fn open(redis_url: Option<&str>, width: u32) -> Self {
        let example = Example::of("playground", redis_url);
        let origin = format!("http://{}/", example.address());
        let mut browser = Browser::open(&origin, width, 900);
        browser.until("document.querySelectorAll('.lane svg').length === 7");
        browser.until("document.querySelector('#backend-name').textContent !== '…'");
        Self { browser, origin, example }
    }

    /// Returns a number of a counter in the comparison: `admitted`, `denied` or `worst`.
    fn number(&mut self, counter: &str, value: &str) -> u32 {
        let text = self.browser.text(&format!("[data-counter='{counter}'] [data-value={value}]"));
        text.parse().unwrap_or_else(|_| panic!("{counter}: {text:?}"))
    }

    /// Chooses a pattern of the comparison, and waits for its result.
    pub fn choose_pattern(&mut self, pattern: &str) {
        self.browser.click(&format!("[name=pattern][value={pattern}]"));
        self.browser
            .until(&format!("document.querySelector('[name=pattern]:checked').value === '{pattern}'"));
        self.browser.until("document.querySelector('#lanes').ariaBusy === 'false'");
    }

    /// Chooses the algorithm of the first policy.
    fn choose_algorithm(&mut self, algorithm: &str) {
        self.browser.eval(&format!(
            "(() => {{ const it = document.querySelector('#policies .algorithm'); it.value = {algorithm:?}; \
               it.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"
        ));
    }

    /// Sets the size of a burst, sends it, and waits for its result. Returns the status line below the buttons.
    pub fn send_burst(&mut self, size: u32) -> String {
        self.browser.fill("#send-form [name=burst]", &size.to_string());
        self.click_and_wait("#send-burst")
    }

    /// Clicks on a button of the traffic, and waits for its status line, which is below the buttons. Returns it.
    pub fn click_and_wait(&mut self, button: &str) -> String {
        self.browser.eval("document.querySelector('#send-status').textContent = ''");
        self.browser.click(button);
        // The browser may handle the click later.
        self.browser.until(&format!(
            "document.querySelector('#send-status').textContent && !document.querySelector('{button}').ariaBusy"
        ));
        self.browser.text("#send-status")
    }

    /// Sends requests, one after another, until the response in view has this text.
    fn send_until_wire_contains(&mut self, text: &str) {
        self.browser.eval(&format!(
            "(async () => {{ for (let i = 0; i < 200; i += 1) {{ \
               document.querySelector('#send-one').click(); \
               await new Promise(done => setTimeout(done, 150)); \
               if (document.querySelector('#wire').textContent.includes({text:?})) return; }} }})()"
        ));
        let wire = self.browser.text("#wire");
        assert!(wire.contains(text), "{wire}");
    }

    pub fn assert_clean(&mut self) {
        self.browser.assert_clean(&self.origin);
    }
}

#[test]
fn comparison_counts_units_over_quota() {
    let mut page = Page::open(None, 1280);
    // One burst on each side of the edge of a calendar window.
    page.choose_pattern("edge");
    let worst = [
        ("sliding log", 50),
        ("sliding buckets", 50),
        ("sliding counter", 50),
        ("fixed window", 100),
        // 50, and what returns in 0.88 s.
        ("token bucket", 54),
        ("INCREX", 50),
        // It rounds the share of the previous window down.
        ("two counters", 51),
    ];
    for (counter, units) in worst {
        assert_eq!(page.number(counter, "worst"), units, "{counter}");
    }
    assert!(page.browser.text("#compare-result").contains("fixed window by 50"));
    // The counter of INCREX begins with a request about one window before the edge. The worst window does not contain this one.
    page.choose_pattern("early");
    let of_increx = (page.number("INCREX", "admitted"), page.number("INCREX", "worst"));
    assert_eq!(of_increx, (100, 99));
    assert_eq!(page.number("sliding log", "worst"), 50);
    assert_eq!(page.number("sliding buckets", "worst"), 50);
    // The worst case of the sliding counter, 2 Q - 1.
    page.choose_pattern("apart");
    assert_eq!(page.number("sliding counter", "worst"), 99);
    assert_eq!(page.number("two counters", "worst"), 100);
    // The whole capacity, and what has returned: also 2 Q - 1.
    assert_eq!(page.number("token bucket", "worst"), 99);
    assert_eq!(page.number("sliding log", "worst"), 50);
    page.choose_pattern("steady");
    assert_eq!(page.number("sliding log", "worst"), 50);
    // A cost that does not divide the quota, and an impossible quota.
    page.browser.fill("#compare-form [name=cost]", "7");
    page.browser.until(
        "document.querySelector('[data-counter=\"sliding log\"] [data-value=worst]').textContent === '49'",
    );
    page.browser.fill("#compare-form [name=quota]", "0");
    page.browser.until("document.querySelector('#compare-error').textContent.includes('quota 0')");
    page.assert_clean();
}

#[test]
fn comparison_replays_requests_of_the_page() {
    let mut page = Page::open(None, 1280);
    assert_eq!(page.send_burst(12), "10 of 12 admitted.");
    page.browser.fill("#compare-form [name=quota]", "10");
    page.choose_pattern("live");
    assert_eq!((page.number("sliding log", "admitted"), page.number("sliding log", "denied")), (10, 2));
    page.assert_clean();
}

#[test]
fn page_rejects_comparison_out_of_range() {
    let example = Example::of("playground", None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let policy = |window| json!({ "name": "compare", "quota": 5, "window": window });
    for (policy, trace, error) in [
        (policy("2d"), json!([]), "at most one day"),
        (policy("1s"), json!(vec![(0, 1); 5_001]), "at most 5000"),
        (policy("1s"), json!([[604_800_000_001_u64, 1]]), "within seven days"),
    ] {
        let body = json!({ "policy": policy, "precision_ms": 100, "trace": trace }).to_string();
        let answer = post(&runtime, &example, "/api/compare", &body);
        assert_eq!(answer.0, 400);
        assert!(answer.1.contains(error), "{answer:?}");
    }
    // A page of another host cannot set its content type.
    let headers = [("content-type", "text/plain")];
    let answer =
        runtime.block_on(request_with_body(example.address(), "POST", "/api/backend", &headers, "{}"));
    assert_eq!(answer.status, 415);
}

pub fn post(runtime: &tokio::runtime::Runtime, example: &Example, path: &str, body: &str) -> (u16, String) {
    let headers = [("content-type", "application/json")];
    let answer = runtime.block_on(request_with_body(example.address(), "POST", path, &headers, body));
    (answer.status, answer.body)
}

#[test]
fn page_shows_response_and_rejecting_policy() {
    let mut page = Page::open(None, 1280);
    page.browser.click("#add-policy");
    page.browser.until("document.querySelectorAll('#policies li').length === 2");
    // The second policy denies first.
    page.browser.fill("#policies li:nth-child(2) .quota", "4");
    assert_eq!(page.send_burst(6), "4 of 6 admitted.");
    page.browser
        .until("document.querySelector('#meters li:nth-child(2)').textContent.includes('has rejected 2')");
    assert!(!page.browser.text("#meters li:nth-child(1)").contains("rejected"));
    page.browser
        .until("document.querySelector('#meters li:nth-child(2)').textContent.includes('0 of 4 left')");
    page.browser.until("document.querySelector('#tile-rejected').textContent === '2'");
    page.browser.until("/^[1-9]\\d* s$/.test(document.querySelector('#tile-wait').textContent)");
    assert_eq!(page.browser.text("#tile-admitted"), "4");
    // The fields in view are those of the response.
    page.browser.click("[name=wire][value=rejected]");
    page.browser.until("document.querySelector('#wire').textContent.includes('429 Too Many Requests')");
    let wire = page.browser.text("#wire");
    for part in [
        "GET /limited?cost=1 HTTP/1.1\nx-api-key: alice",
        r#"ratelimit-policy: "burst";q=10;w=10, "sustained";q=4;w=60"#,
        r#""sustained";r=0;t="#,
        "retry-after: ",
        r#""violated-policies":["sustained"]"#,
    ] {
        assert!(wire.contains(part), "{part}: {wire}");
    }
    // The error of the crate, at the form.
    page.browser.fill("#policies li:nth-child(2) .name", "burst");
    page.browser.until("document.querySelector('#limits-error').textContent.includes('burst')");
    page.assert_clean();
}

/// Holds the responses of which the expression is true, until they are released.
fn hold(page: &mut Page, expression: &str) {
    page.browser.eval(&format!(
        "(() => {{ window.held = []; const send = window.fetch; window.fetch = async (path, options) => {{ \
           const response = await send(path, options); \
           if (window.held && path.startsWith('/limited') && {expression}) await new Promise(done => window.held.push(done)); \
           return response; }}; }})()"
    ));
}

fn release(page: &mut Page) {
    page.browser.eval("(() => { window.held.forEach(done => done()); window.held = null; })()");
}

/// The responses of a burst arrive in any order: here, those of the admissions are late.
#[test]
fn page_shows_state_after_latest_decision() {
    let mut page = Page::open(None, 1280);
    hold(&mut page, "response.ok");
    page.browser.fill("#send-form [name=burst]", "12");
    page.browser.click("#send-burst");
    page.browser
        .until("document.querySelector('#tile-rejected').textContent === '2' && window.held.length === 10");
    release(&mut page);
    page.browser.until("document.querySelector('#tile-admitted').textContent === '10'");
    page.browser.until("document.querySelector('#wire').textContent.includes('429 Too Many Requests')");
    assert!(page.browser.text("#meters").contains("0 of 10 left"));
    assert!(page.browser.text("#tile-wait").ends_with(" s"));
    page.assert_clean();
}

#[test]
fn status_line_is_that_of_its_own_request() {
    let mut page = Page::open(None, 1280);
    assert_eq!(page.send_burst(10), "10 of 10 admitted.");
    hold(&mut page, "options.headers['x-api-key'] === 'alice'");
    page.browser.click("#send-one");
    page.browser.until("window.held.length === 1");
    page.browser.fill("#send-form [name=key]", "bob");
    assert_eq!(page.click_and_wait("#send-burst"), "10 of 10 admitted.");
    release(&mut page);
    page.browser.until("document.querySelector('#send-status').textContent === 'Rejected with status 429.'");
    page.assert_clean();
}

#[test]
fn worst_window_is_that_of_one_key() {
    let mut page = Page::open(None, 1280);
    page.browser.fill("#policies .window", "600");
    assert_eq!(page.send_burst(10), "10 of 10 admitted.");
    page.browser.fill("#send-form [name=key]", "bob");
    assert_eq!(page.send_burst(10), "10 of 10 admitted.");
    page.browser.until("document.querySelector('#tile-admitted').textContent === '20'");
    assert!(page.browser.text("#meters").ends_with("worst window: 10"), "{}", page.browser.text("#meters"));
    page.assert_clean();
}

#[test]
fn late_response_does_not_count_after_restart() {
    let mut page = Page::open(None, 1280);
    page.browser.fill("#send-form [name=cost]", "10");
    hold(&mut page, "options.headers['x-api-key'] === 'alice'");
    page.browser.click("#send-one");
    page.browser.until("window.held.length === 1");
    page.browser.fill("#send-form [name=key]", "bob");
    page.browser.fill("#send-form [name=cost]", "1");
    assert_eq!(page.send_burst(1), "1 of 1 admitted.");
    page.browser.click("#restart");
    page.browser.until("document.querySelector('#tile-admitted').textContent === '0'");
    release(&mut page);
    page.browser.until("!document.querySelector('#send-one').ariaBusy");
    assert_eq!(page.send_burst(2), "2 of 2 admitted.");
    // The responses arrive in any order, and the page draws once in each frame.
    page.browser.until("document.querySelector('#tile-admitted').textContent === '2'");
    page.browser.until("document.querySelector('#meters').textContent.includes('8 of 10 left')");
    assert!(page.browser.text("#meters").contains("worst window: 2"));
    page.assert_clean();
}

#[test]
fn page_limits_by_token_bucket() {
    let mut page = Page::open(None, 1280);
    // A unit returns in 100 s.
    page.browser.fill("#policies .window", "1000");
    page.choose_algorithm("token-bucket");
    page.browser.click("#restart");
    assert_eq!(page.send_burst(12), "10 of 12 admitted.");
    page.browser.until("document.querySelector('#meters').textContent.includes('0 of 10 left')");
    // The wait of one unit, and a policy without a window.
    page.browser.click("#send-one");
    page.browser.until("document.querySelector('#wire').textContent.includes('429')");
    let wire = page.browser.text("#wire").to_lowercase();
    assert!(wire.contains("\"burst\";q=10") && !wire.contains(";w="), "{wire}");
    let (_, wait) = wire.split_once("retry-after: ").expect("a wait");
    let wait: u32 = wait.split_whitespace().next().unwrap().parse().unwrap();
    assert!((1..=100).contains(&wait), "{wire}");
    page.assert_clean();
}

#[test]
fn page_shows_units_in_flight() {
    let mut page = Page::open(None, 1280);
    page.browser.fill("#policies .quota", "3");
    page.choose_algorithm("in-flight");
    page.browser.fill("#send-form [name=duration]", "3");
    assert_eq!(page.send_burst(5), "3 of 5 admitted.");
    page.browser.until("document.querySelector('#meters .numbers').textContent.includes('3 of 3 held')");
    // The page shows the response that came last, which may be an admission. While three are held, a further request is denied.
    page.send_until_wire_contains("retry-after");
    // Their work ends, without a further request.
    page.browser.until("document.querySelector('#meters .numbers').textContent.includes('0 of 3 held')");
    assert_eq!(page.send_burst(5), "3 of 5 admitted.");
    page.assert_clean();
}

#[test]
fn page_sends_bursts_across_edge() {
    let mut page = Page::open(None, 1280);
    page.browser.fill("#policies .window", "3");
    page.browser.fill("#send-form [name=burst]", "10");
    for (algorithm, after) in [("fixed-window", 10), ("sliding-log", 0)] {
        page.choose_algorithm(algorithm);
        // On a busy machine, the first burst may miss the edge.
        let mut result = String::new();
        for _ in 0..10 {
            page.browser.click("#restart");
            result = page.click_and_wait("#send-edge");
            if !result.contains("try again") {
                break;
            }
        }
        let expected = format!("Before the edge: 10 of 10 admitted. After the edge: {after} of 10 admitted.");
        assert_eq!(result, expected, "{algorithm}");
        let worst = format!("worst window: {}", 10 + after);
        page.browser.until(&format!("document.querySelector('#meters').textContent.includes('{worst}')"));
    }
    page.assert_clean();
}

#[test]
fn page_shows_each_outage_rule_and_recovery() {
    let mut page = Page::open(None, 1280);
    page.send_until_wire_contains("\"admitted_by\":\"backend\"");
    page.browser.click("#stop");
    page.browser.until("document.querySelector('#mode').textContent === 'refusing'");
    page.send_until_wire_contains("503 Service Unavailable");
    assert!(!page.browser.text("#wire").contains("ratelimit"));
    page.browser.until("document.querySelector('#log').textContent.includes('rejected with 503')");
    // The rule takes effect without a restart.
    page.browser.click("[name=outage][value=fail-open]");
    page.send_until_wire_contains("\"admitted_by\":\"fail open\"");
    page.browser.until("document.querySelector('#log').textContent.includes('admitted unchecked')");
    page.browser.click("[name=outage][value=local-fallback]");
    page.send_until_wire_contains("\"admitted_by\":\"local fallback\"");
    // Two processes share the quota of 10. One request of 5 units uses the share of this process.
    page.browser.fill("#send-form [name=cost]", "5");
    page.send_until_wire_contains("\"remaining\":0");
    page.browser.until("document.querySelector('#log').textContent.includes('the share of this process')");
    page.send_until_wire_contains("503 Service Unavailable");
    page.browser.until("document.querySelector('#breaker').textContent === 'open'");
    page.browser.click("#hang");
    page.browser.until("document.querySelector('#mode').textContent === 'hanging'");
    page.browser.click("#stop");
    page.browser.until("document.querySelector('#mode').textContent === 'running'");
    page.send_until_wire_contains("\"admitted_by\":\"backend\"");
    page.browser.until("document.querySelector('#breaker').textContent === 'closed'");
    page.browser
        .until("document.querySelector('#log').textContent.includes('The circuit breaker is closed.')");
    page.assert_clean();
}

#[test]
fn page_limits_on_redis_and_hides_password() {
    // The default user of this server accepts any password.
    let server = Server::start(Engine::Redis);
    let url = format!("redis://default:s3cret@127.0.0.1:{}/", server.port());
    let mut page = Page::open(Some(&url), 1280);
    let name = page.browser.text("#backend-name");
    assert!(name.contains(&server.port().to_string()) && !name.contains("s3cret"), "{name}");
    assert_eq!(page.send_burst(12), "10 of 12 admitted.");
    page.assert_clean();
}

#[test]
fn page_works_by_keyboard() {
    let mut page = Page::open(None, 1280);
    let control = "(() => { const it = document.activeElement; \
        return it === document.body ? '' : it.id || (it.name ? `${it.form?.id} ${it.name}` : it.getAttribute('href') ?? it.className); })()";
    let mut reached = Vec::new();
    loop {
        page.browser.press("Tab");
        let name = page.browser.eval(control).as_str().unwrap_or_default().to_owned();
        if name.is_empty() || reached.len() > 100 {
            break;
        }
        let has_outline = page.browser.eval(
            "(() => { const it = document.activeElement; const ring = it.type === 'radio' ? it.nextElementSibling : it; \
               return getComputedStyle(ring).outlineStyle !== 'none'; })()",
        );
        assert_eq!(has_outline, true, "the focus is not visible: {name}");
        reached.push(name);
    }
    assert!(reached.len() < 100, "the focus does not leave the page: {reached:?}");
    for name in [
        "#compare",
        "compare-form pattern",
        "compare-form quota",
        "send-one",
        "send-edge",
        "wire",
        "stop",
        "hang",
    ] {
        assert!(reached.iter().any(|it| it == name), "{name}: {reached:?}");
    }
    // Arrow keys choose a pattern. The space bar and Enter press buttons.
    page.choose_pattern("edge");
    page.browser.eval("document.querySelector('[name=pattern]:checked').focus()");
    page.browser.press("ArrowRight");
    page.browser
        .until("document.querySelector('[data-counter=INCREX] [data-value=worst]').textContent === '99'");
    page.browser.eval("document.querySelector('#send-one').focus()");
    page.browser.press("Enter");
    page.browser.press(" ");
    page.browser.until("document.querySelector('#tile-admitted').textContent === '2'");
    // Every control has a name for a screen reader.
    page.browser.call("Accessibility.enable", json!({}));
    let tree = page.browser.call("Accessibility.getFullAXTree", json!({}));
    let roles = ["button", "checkbox", "combobox", "image", "link", "radio", "spinbutton", "textbox"];
    let nodes = tree["nodes"].as_array().unwrap().iter();
    let controls: Vec<&Value> =
        nodes.filter(|node| roles.iter().any(|role| node["role"]["value"] == *role)).collect();
    assert!(controls.len() > 30, "{}", controls.len());
    for control in controls {
        assert!(control["name"]["value"].as_str().is_some_and(|name| !name.is_empty()), "{control}");
    }
    page.assert_clean();
}

#[test]
fn page_is_readable_on_phone_in_light_and_dark() {
    let mut page = Page::open(None, 360);
    page.send_burst(12);
    page.browser.click("#stop");
    page.browser.until("document.querySelector('#mode').textContent === 'refusing'");
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        page.browser.prefer(scheme);
        backgrounds.push(page.browser.eval("getComputedStyle(document.body).backgroundColor"));
        assert_eq!(page.browser.eval(LOW_CONTRAST), json!([]), "{scheme}");
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    for width in [360, 768, 1280] {
        page.browser.resize(width, 740);
        let scrolled = page.browser.eval("document.documentElement.scrollWidth");
        assert!(scrolled.as_u64().unwrap() <= u64::from(width), "{width} px: {scrolled}");
    }
    page.assert_clean();
}

/// Takes the pictures of the README. `tests/pictures` sets the variable `PICTURES` to their folder.
#[test]
fn pictures_show_comparison_and_outage() {
    let other = tempfile::tempdir().unwrap();
    let folder = std::env::var_os("PICTURES").map(PathBuf::from);
    let phase = Duration::from_millis(if folder.is_some() { 3_000 } else { 100 });
    let folder = folder.unwrap_or_else(|| other.path().to_owned());
    let mut page = Page::open(None, 1120);
    page.browser.prefer("light");
    page.browser.picture(&folder.join("comparison.png"), "header", "#lanes");
    page.browser.click("#add-policy");
    page.browser.fill("#send-form [name=rate]", "6");
    page.browser.click("#send-stream");
    sleep(2 * phase);
    page.browser.click("#stop");
    for rule in ["fail-closed", "fail-open", "local-fallback"] {
        page.browser.click(&format!("[name=outage][value={rule}]"));
        sleep(phase);
    }
    page.browser.click("#stop");
    page.browser.until("document.querySelector('#mode').textContent === 'running'");
    sleep(phase);
    page.browser.prefer("dark");
    page.browser.picture(&folder.join("outage.png"), "#send-title", "#meters");
    for name in ["comparison.png", "outage.png"] {
        let picture = std::fs::read(folder.join(name)).unwrap();
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000, "{name}: {}", picture.len());
    }
    page.assert_clean();
}

#[test]
fn guide_has_picture_of_outage() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let picture = format!("{root}examples/playground/pictures/outage.png");
    let encoded = Command::new("base64").args(["-w", "0", &picture]).output().unwrap();
    let encoded = String::from_utf8(encoded.stdout).unwrap();
    let in_guide = std::fs::read_to_string(format!("{root}src/guide/pictures/outage.txt")).unwrap();
    assert!(in_guide == format!("data:image/png;base64,{encoded}"), "run tests/pictures");
    assert!(encoded.len() < 200_000, "{} characters", encoded.len());
}

#[test]
fn charts_of_guide_are_current() {
    let folder = tempfile::tempdir().unwrap();
    let none: [(&str, &str); 0] = [];
    let ended = run_with("playground", &["charts", folder.path().to_str().unwrap()], &none);
    assert!(ended.status.success(), "{ended:?}");
    let guide = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/guide/pictures"));
    for name in ["bursts.svg", "bursts.txt", "stream.svg", "stream.txt"] {
        let [made, committed] =
            [folder.path(), guide].map(|folder| std::fs::read_to_string(folder.join(name)).unwrap());
        assert!(made == committed, "{name}: cargo run --example playground -- charts src/guide/pictures");
    }
    let chart = std::fs::read_to_string(guide.join("bursts.svg")).unwrap();
    for colours in ["prefers-color-scheme:dark", ">100</text>", ">99</text>", ">57</text>"] {
        assert!(chart.contains(colours), "{colours}");
    }
}

#[test]
fn playground_reports_invalid_redis_url() {
    let ended = run_example("playground", &[("REDIS_URL", "http://:s3cret@127.0.0.1/")]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.starts_with("error: REDIS_URL: ") && !ended.stderr.contains("s3cret"), "{ended:?}");
}
