//! Debian's Chromium without a window, driven by WebDriver (W3C) in a namespace.

use std::time::Duration;

use serde_json::{Value, json};
use signalbox_lab::{Ns, Proc, eventually};

use super::{Lab, SOON};

/// Programs that a test in the browser needs, with their packages.
pub(crate) const PROGRAMS: [(&str, &str); 2] = [("chromium", "chromium"), ("chromedriver", "chromium-driver")];

const DRIVER: &str = "http://127.0.0.1:9515";

/// A browser in the balancer's namespace.
pub(crate) struct Browser<'a> {
    ns: &'a Ns,
    session: String,
    /// `None` for a browser of another's driver.
    _driver: Option<Proc>,
}

impl<'a> Browser<'a> {
    /// Starts the browser.
    pub(crate) fn start(lab: &'a Lab) -> Self {
        let ns = &lab.lb;
        // Chromium aborts a load when addresses change, as when IPv6 has found that no other machine has them.
        let are_settled = || ns.must(&["ip", "-6", "addr", "show", "tentative"]).trim().is_empty();
        assert!(eventually(SOON, are_settled), "addresses stay tentative");
        let home = lab.dir().join("browser");
        std::fs::create_dir_all(&home).unwrap();
        let mut command = ns.command("chromedriver");
        command.args(["--port=9515", "--silent"]).env("HOME", &home);
        let driver = Proc::spawn("chromedriver", command, lab.dir());
        let browser = Self {
            ns,
            session: String::new(),
            _driver: Some(driver),
        };
        let is_up = eventually(SOON, || browser.call("GET", "/status", &Value::Null)["ready"] == true);
        assert!(is_up, "chromedriver does not answer");
        browser.opened(&home)
    }

    /// Starts another browser of the same driver, which must outlive it: another viewer.
    pub(crate) fn another(&self, lab: &Lab) -> Self {
        let another = Self {
            ns: self.ns,
            session: String::new(),
            _driver: None,
        };
        another.opened(&lab.dir().join("another-browser"))
    }

    fn opened(mut self, home: &std::path::Path) -> Self {
        let words = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1400,1050",
            &format!("--user-data-dir={}", home.display()),
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": words },
        } } });
        let answer = self.call("POST", "/session", &wanted);
        let session = answer["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("no browser: {answer}"));
        self.session = format!("/session/{session}");
        self
    }

    /// Sends a command to the driver; returns its value.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let url = format!("{DRIVER}{}{path}", self.session);
        let mut words = vec!["curl", "-sS", "--max-time", "60", "-X", method, &url];
        if !body.is_null() {
            words.extend(["-H", "Content-Type: application/json", "-d", "@-"]);
        }
        let answer = self.ns.try_must(&words, &body.to_string()).unwrap_or_default();
        serde_json::from_str::<Value>(&answer).map_or(Value::Null, |mut answer| answer["value"].take())
    }

    /// Opens an address.
    pub(crate) fn open(&self, url: &str) {
        let answer = self.call("POST", "/url", &json!({ "url": url }));
        assert!(answer.is_null(), "{url}: {answer}");
    }

    /// Runs the body of a function in the page; returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs the body of a function in the page, whose last argument is called with the result.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        self.call("POST", "/execute/async", &body)
    }

    /// Sends a command of Chromium's DevTools.
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.call("POST", "/goog/cdp/execute", &body)
    }

    /// Text of the page as it is shown.
    pub(crate) fn text(&self) -> String {
        let text = self.run("return document.body.innerText");
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page satisfies a condition in JavaScript: longer than for other things, because a Chromium that has
    /// just started loads its first page for seconds where processors are busy.
    pub(crate) fn expect(&self, condition: &str) {
        self.expect_within(3 * SOON, condition);
    }

    /// Like [`Self::expect`], with another limit.
    pub(crate) fn expect_within(&self, limit: Duration, condition: &str) {
        let script = format!("return Boolean({condition})");
        let holds = eventually(limit, || self.run(&script) == true);
        assert!(holds, "{condition}: the page shows\n{}", self.text());
    }

    /// Presses the first button with this text, as soon as it is there.
    pub(crate) fn press(&self, label: &str) {
        let button = format!("[...document.querySelectorAll('button')].find((b) => b.innerText.trim() === {label:?})");
        self.expect(&button);
        self.run(&format!("{button}.click()"));
    }

    /// Types into the field with this label.
    pub(crate) fn fill(&self, label: &str, text: &str) {
        let field = format!(
            "[...document.querySelectorAll('label')].find((l) => l.innerText.trim().startsWith({label:?}))?.querySelector('input')"
        );
        self.expect(&field);
        let typed =
            format!("const f = {field}; f.value = {text:?}; f.dispatchEvent(new Event('input', {{ bubbles: true }}))");
        self.run(&typed);
    }

    /// Returns the complaints of the browser since the last call: errors of scripts, refused resources.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().cloned().unwrap_or_default();
        lines
            .iter()
            .map(|line| format!("{} {}", line["level"], line["message"]))
            .collect()
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        self.call("DELETE", "", &Value::Null);
    }
}
