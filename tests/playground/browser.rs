//! A headless Chromium that a test drives over the DevTools protocol. It ends with its test, even if the test is killed:
//! Chromium ends when its pipe closes.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The time that a page has for an answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A browser with one page.
pub struct Browser {
    process: Child,
    /// Chromium ends when this closes.
    commands: Option<ChildStdin>,
    messages: Receiver<Value>,
    /// The events that have arrived.
    events: Vec<Value>,
    session: String,
    last_id: u64,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser whose page is as wide as given, in CSS pixels, and opens an address.
    pub fn open(url: &str, width: u32, height: u32) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // Chromium reads commands from the file descriptor 3, and writes answers to 4.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#])
            .arg(program())
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe"])
            // A request to another host fails at once, and the test reports it.
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        let (sender, messages) = channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            while answers.read_until(0, &mut bytes).is_ok_and(|length| length > 0) {
                let message = serde_json::from_slice(bytes.strip_suffix(b"\0").unwrap_or(&bytes));
                bytes.clear();
                if message.is_ok_and(|message| sender.send(message).is_err()) {
                    break;
                }
            }
        });
        let commands = process.stdin.take();
        let (events, session) = (Vec::new(), String::new());
        let mut browser =
            Self { process, commands, messages, events, session, last_id: 0, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width, height);
        browser.call("Page.navigate", json!({ "url": url }));
        browser.until("document.readyState === 'complete' && location.protocol === 'http:'");
        browser
    }

    /// Calls a method of the protocol, and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let commands = self.commands.as_mut().expect("an open pipe");
        write!(commands, "{message}\0").expect("a running browser");
        loop {
            let answer = self.messages.recv_timeout(PATIENCE);
            let answer =
                answer.unwrap_or_else(|error| panic!("{method}: the browser does not answer: {error}"));
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    /// Evaluates an expression of JavaScript in the page. Waits for a promise.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true. Its error, for example of a missing element, counts as false.
    pub fn until(&mut self, expression: &str) {
        let start = Instant::now();
        let attempt =
            format!("(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()");
        while self.eval(&attempt) != true {
            if start.elapsed() > PATIENCE {
                panic!("never true: {expression}; the page shows: {}", self.eval("document.body.innerText"));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Returns the text of an element.
    pub fn text(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({selector:?})?.textContent.trim()"));
        text.as_str().unwrap_or_else(|| panic!("no element {selector}")).to_owned()
    }

    /// Clicks on an element with the mouse. Clicks again if the element moved away below the mouse.
    pub fn click(&mut self, selector: &str) {
        let start = Instant::now();
        while !self.try_to_click(selector) {
            assert!(start.elapsed() < PATIENCE, "no click reaches {selector}");
        }
    }

    /// Returns whether the element has seen the click.
    fn try_to_click(&mut self, selector: &str) -> bool {
        // Two frames without a move: the page has done what the last input began.
        let middle = self.eval(&format!(
            "(async () => {{ const element = document.querySelector({selector:?}); \
               const frame = () => new Promise(done => requestAnimationFrame(done)); \
               const place = () => {{ const {{ x, y, width, height }} = element.getBoundingClientRect(); \
                 return [x + width / 2, y + height / 2]; }}; \
               element.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
               for (let last = ''; last !== String(place()); await frame()) last = String(place()); \
               globalThis.clickSeen = false; \
               element.addEventListener('click', () => globalThis.clickSeen = true, {{ capture: true, once: true }}); \
               return place(); }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({ "type": kind, "x": middle[0], "y": middle[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
        // The browser may handle the click later.
        let start = Instant::now();
        while self.eval("globalThis.clickSeen") != true {
            if start.elapsed() > Duration::from_secs(2) {
                return false;
            }
            sleep(Duration::from_millis(5));
        }
        true
    }

    /// Replaces the text of an input field with the keyboard.
    pub fn fill(&mut self, selector: &str, text: &str) {
        self.eval(&format!(
            "(() => {{ const it = document.querySelector({selector:?}); it.focus(); it.select(); }})()"
        ));
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key: `Tab`, `Enter`, ` ` or `ArrowRight`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            " " => (32, " "),
            "ArrowRight" => (39, ""),
            _ => panic!("an unknown key: {key}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Sets the size of the page, in CSS pixels.
    pub fn resize(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Sets the color scheme that the user prefers: `light` or `dark`.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Writes a picture of the page as PNG: from the top of one element to the bottom of another, and the whole width.
    pub fn picture(&mut self, path: &Path, first: &str, last: &str) {
        let clip = self.eval(&format!(
            "(() => {{ const rect = (selector) => document.querySelector(selector).getBoundingClientRect(); \
               const top = Math.max(rect({first:?}).top + scrollY - 20, 0); \
               const height = rect({last:?}).bottom + scrollY + 20 - top; \
               return {{ x: 0, y: top, width: innerWidth, height, scale: 1 }}; }})()"
        ));
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = self.call("Page.captureScreenshot", params);
        let encoded = picture["data"].as_str().expect("a picture");
        // `base64` decodes it. No dependency of the crate does.
        let mut decoder = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(path).unwrap())
            .spawn()
            .expect("base64");
        decoder.stdin.take().unwrap().write_all(encoded.as_bytes()).unwrap();
        assert!(decoder.wait().unwrap().success());
    }

    /// Asserts that no script has failed, and that all requests went to this origin.
    pub fn assert_clean(&mut self, origin: &str) {
        // All events before this answer have arrived.
        self.eval("0");
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown") => panic!("a script has failed: {params}"),
                Some("Runtime.consoleAPICalled") => panic!("the console is in use: {params}"),
                // Chromium also logs the status of each rejected request.
                Some("Log.entryAdded") if params["entry"]["source"] != "network" => {
                    panic!("a log entry: {params}")
                }
                Some("Network.loadingFailed") if params["canceled"] != true => {
                    panic!("a request has failed: {params}")
                }
                Some("Network.requestWillBeSent") => {
                    let url = params["request"]["url"].as_str().unwrap();
                    assert!(
                        url.starts_with(origin) || url.starts_with("data:"),
                        "a request to another host: {url}"
                    );
                }
                _ => {}
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.commands.take());
        let start = Instant::now();
        // The profile is in use until the process ends.
        while self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            if start.elapsed() > Duration::from_secs(5) {
                let _ = self.process.kill();
            }
            sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the path of Chromium.
///
/// # Panics
///
/// If the program is missing. A test that needs it must not pass without it. The message says how to get it.
fn program() -> PathBuf {
    let configured = std::env::var_os("TEST_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium-headless-shell", "chromium", "google-chrome"];
    let installed = || {
        names.iter().find_map(|name| {
            std::env::split_paths(&path).map(|folder| folder.join(name)).find(|it| it.is_file())
        })
    };
    configured.or_else(installed).unwrap_or_else(|| {
        panic!(
            "missing chromium-headless-shell: run tests/run playground, which gets it, or set TEST_CHROMIUM to its path"
        )
    })
}
