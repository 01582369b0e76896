//! Debian's Prometheus with the packaged rules scrapes signalbox: alerts are silent while it lives, and one fires when it
//! is killed.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::lab::{Lab, Proc, Router, SOON, Signalbox, available, config, eventually, privileged};

const RULES: [&str; 2] = ["recording.yaml", "alerts.yaml"];
const LISTEN: &str = "127.0.0.1:9090";

/// Prometheus beside signalbox.
struct Prometheus<'l> {
    lab: &'l Lab,
    proc: Proc,
}

impl<'l> Prometheus<'l> {
    fn start(lab: &'l Lab) -> Self {
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/prometheus");
        for file in RULES {
            let text = fs::read_to_string(packaged.join(file)).unwrap();
            // With the alert's real duration, the test would only wait.
            let text = text.replace("for: 1m\n", "for: 1s\n");
            fs::write(lab.dir().join(file), text).unwrap();
        }
        let text = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\nscrape_configs:\n  \
             - {{ job_name: signalbox, static_configs: [{{ targets: [\"127.0.0.1:8089\"] }}] }}\n",
            RULES.join(", ")
        );
        fs::write(lab.dir().join("prometheus.yaml"), text).unwrap();
        let mut command = lab.lb.command("prometheus");
        command.arg(format!("--web.listen-address={LISTEN}"));
        for (option, file) in [("--config.file", "prometheus.yaml"), ("--storage.tsdb.path", "tsdb")] {
            command.arg(format!("{option}={}", lab.dir().join(file).display()));
        }
        let proc = Proc::spawn("prometheus", command, lab.dir());
        Self { lab, proc }
    }

    /// Answer of the API, if there is one.
    fn ask(&self, path: &str) -> Option<Value> {
        let url = format!("http://{LISTEN}{path}");
        let answer = self.lab.lb.output(&["curl", "--silent", "--max-time", "5", &url]);
        let body: Value = serde_json::from_slice(&answer.stdout).ok()?;
        Some(body["data"].clone())
    }

    /// Value of `up` of signalbox, as last scraped.
    fn up(&self) -> Option<String> {
        let data = self.ask("/api/v1/query?query=up")?;
        Some(data["result"][0]["value"][1].as_str()?.to_owned())
    }

    /// Whether all rules have been evaluated, none with an error, and of several scrapes.
    fn is_evaluated(&self) -> bool {
        let rate = self.ask("/api/v1/query?query=signalbox:connections:rate5m");
        if rate.is_none_or(|data| data["result"].as_array().is_none_or(Vec::is_empty)) {
            return false;
        }
        let Some(data) = self.ask("/api/v1/rules") else {
            return false;
        };
        let groups = data["groups"].as_array().into_iter().flatten();
        let rules: Vec<_> = groups
            .flat_map(|group| group["rules"].as_array().into_iter().flatten())
            .collect();
        rules.len() > 20 && rules.iter().all(|rule| rule["health"] == "ok")
    }

    /// Alerts that fire or are about to; `None`: Prometheus does not say.
    fn alerts(&self) -> Option<Vec<String>> {
        let data = self.ask("/api/v1/alerts")?;
        let alerts = data["alerts"].as_array()?.iter();
        Some(
            alerts
                .map(|alert| format!("{} {}", alert["labels"]["alertname"], alert["state"]))
                .collect(),
        )
    }
}

#[test]
fn alerts_are_silent_until_one_fires_when_signalbox_is_killed() {
    let name = "alerts_are_silent_until_one_fires_when_signalbox_is_killed";
    if !privileged(name) || !available(name, &[("prometheus", "prometheus")]) {
        return;
    }
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1"]);
    let body = format!(
        "{}clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS,
        config::cluster("east", &[], &["east-1"])
    );
    let mut sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    let prometheus = Prometheus::start(&lab);
    let scraped = eventually(SOON, || {
        prometheus.up().as_deref() == Some("1") && prometheus.is_evaluated()
    });
    assert!(scraped, "{:?}\n{}", prometheus.up(), prometheus.proc.log());
    // Its hosts, cut-through and configuration are well: an alert about any of them would be a false one.
    assert_eq!(prometheus.alerts(), Some(Vec::new()));

    sb.kill9();
    let fires = eventually(SOON, || {
        let alerts = prometheus.alerts().unwrap_or_default();
        alerts.contains(&"\"SignalboxDown\" \"firing\"".to_owned())
    });
    assert!(fires, "{:?}\n{}", prometheus.alerts(), prometheus.proc.log());
}

/// Value of a series without labels.
fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{name}: {metrics}"))
}

#[test]
fn the_process_is_measured_and_old_readers_get_their_format() {
    let name = "the_process_is_measured_and_old_readers_get_their_format";
    if !privileged(name) || !available(name, &[("promtool", "prometheus")]) {
        return;
    }
    let lab = Lab::new();
    let body = config::tcp("", &["east-1"]);
    let sb = Signalbox::start(&lab, &body);
    let asked = |accept: &str| {
        let accept = format!("Accept: {accept}");
        let url = "http://127.0.0.1:8089/metrics";
        lab.lb
            .must(&["curl", "--silent", "--include", "--header", &accept, url])
    };
    let newer = asked("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5");
    assert!(
        newer.contains("application/openmetrics-text") && newer.trim_end().ends_with("# EOF"),
        "{newer}"
    );
    let classic = asked("text/plain;version=0.0.4");
    let (head, metrics) = classic.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    for part in ["# EOF", "# UNIT"] {
        assert!(!metrics.contains(part), "{part}: {metrics}");
    }
    assert!(
        metrics.contains("# TYPE signalbox_connections_total counter\n"),
        "{metrics}"
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let started = now.as_secs_f64() - value(metrics, "process_start_time_seconds");
    assert!((-2.0..600.0).contains(&started), "{started} s ago");
    let pid = sb.json("/api/v1/status")["pid"].clone();
    let threads = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
        line.unwrap().trim().to_string()
    };
    // Threads begin and end while the balancer starts, so the number counts only while it stands.
    let is_shown = eventually(SOON, || {
        let before = threads();
        let shown = value(&asked("text/plain;version=0.0.4"), "process_threads").to_string();
        before == threads() && shown == before
    });
    assert!(is_shown, "the process has {} threads", threads());
    for name in [
        "virtual_memory_bytes",
        "resident_memory_bytes",
        "open_fds",
        "max_fds",
        "cpu_seconds_total",
    ] {
        assert!(value(metrics, &format!("process_{name}")) > 0.0, "{name}: {metrics}");
    }

    let file = lab.dir().join("metrics.txt");
    fs::write(&file, metrics).unwrap();
    let check = format!("promtool check metrics < {}", file.display());
    let checked = lab.lb.output(&["sh", "-c", &check]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{said}");
}
