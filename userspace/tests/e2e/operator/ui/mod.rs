//! The web UI in a real browser, in front of real router hosts.

mod access;
mod axe;
mod keyboard;
mod many_hosts;
mod migrate;
mod phone;
mod pictures;
mod push;
mod viewers;

use crate::lab;

use lab::browser::{self, Browser};
use lab::signalbox::write_config;
use lab::{Lab, Router, Signalbox, available, config, eventually, http, lab_test, privileged};

const UI: &str = "http://127.0.0.1:8089/ui/";
const TOKEN: &str = "a-token-of-this-test";
const PAGES: [(&str, &str); 11] = [
    ("overview", "Overview"),
    ("hosts", "Hosts"),
    ("routes", "Routes"),
    ("flows", "Flows"),
    ("services", "Services"),
    ("shield", "Shield"),
    ("ha", "High availability"),
    ("rotation", "Rotation"),
    ("migrate", "Migrate"),
    ("events", "Events"),
    ("about", "About"),
];

fn may_run(test: &str) -> bool {
    privileged(test) && available(test, &browser::PROGRAMS)
}

/// The lab with a router host in each cluster and a balancer whose API takes changes with [`TOKEN`].
fn start() -> (Lab, Vec<Router>, Signalbox) {
    start_with("")
}

/// The lab of [`start`], with further settings of `admin`.
fn start_with(admin: &str) -> (Lab, Vec<Router>, Signalbox) {
    let lab = Lab::new();
    let routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let token = lab.dir().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let body = config::web(&["{ host: app.example.com, clusters: { east: 50, west: 50 } }"]);
    let config = write_config(&lab, "signalbox.yaml", &body);
    let text = std::fs::read_to_string(&config).unwrap();
    let with_token = format!("admin: {{ {admin} token_file: {},", token.display());
    std::fs::write(&config, text.replace("admin: {", &with_token)).unwrap();
    let sb = Signalbox::start_file(&lab, "signalbox", &config, &[]);
    // Metrics can be read without a token under all settings.
    let healthy = "signalbox_backends{state=\"healthy\"}";
    assert!(
        eventually(lab::SOON, || sb.metric(healthy) >= 2.0),
        "{}",
        sb.metric(healthy)
    );
    (lab, routers, sb)
}

/// Enters a token into the page.
fn unlock(browser: &Browser<'_>, token: &str) {
    browser.press("Unlock changes");
    browser.fill("Token", token);
    browser.press("Unlock");
}

/// Condition: the row of a host has this text.
fn row_has(host: &str, text: &str) -> String {
    format!(
        "[...document.querySelectorAll('tr')].some((r) => r.innerText.includes({host:?}) && r.innerText.includes({text:?}))"
    )
}

#[test]
fn a_stopped_router_host_is_shown_unhealthy_without_a_reload() {
    if !may_run("a_stopped_router_host_is_shown_unhealthy_without_a_reload") {
        return;
    }
    let (lab, mut routers, sb) = start();
    let browser = Browser::start(&lab);
    browser.open(&format!("{UI}#hosts"));
    browser.expect(&row_has("east-1", "● healthy"));
    browser.press("All charts");
    browser.expect("document.querySelectorAll('figure.chart canvas').length >= 8");
    for _ in 0..20 {
        assert_eq!(http::ask(&lab, "10.1.0.1:80", "app.example.com").status, 200);
    }
    // Both hosts' counters in the page are those of the metrics.
    for (cluster, host) in [("east", "east-1"), ("west", "west-1")] {
        let key = format!("signalbox_backend_connections_total{{cluster=\"{cluster}\",host=\"{host}\"}}");
        let count = sb.metric(&key);
        assert!(count >= 10.0, "{key} {count}");
        browser.expect(&format!(
            "[...document.querySelectorAll('figure.chart')].some((f) => f.innerText.includes('Total connections: {cluster}/{host}') \
             && f.querySelector('.key b').innerText === '{count}')"
        ));
    }
    routers[0].kill();
    browser.expect(&row_has("east-1", "■ unhealthy"));
    browser.expect(&row_has("west-1", "● healthy"));
    routers[0].restart();
    browser.expect(&row_has("east-1", "● healthy"));
}

#[lab_test]
fn backups_and_names_without_an_address_are_shown() {
    if !available("backups_and_names_without_an_address_are_shown", &browser::PROGRAMS) {
        return;
    }
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    // No name server can be reached from here.
    let hosts = [
        config::host_with("east-1", "backup: true"),
        "{ name: later, address: later.test, http: 80 }".to_owned(),
    ];
    let cluster = config::cluster_of("east", &[], &hosts);
    let sb = Signalbox::start(&lab, &format!("{}clusters:\n{cluster}", config::WEB_LISTENERS));
    sb.wait_healthy(&["east-1"]);
    let browser = Browser::start(&lab);
    browser.open(&format!("{UI}#hosts"));
    browser.expect(&row_has("east-1", "● healthy, backup"));
    browser.expect(&row_has("later", "unresolved"));
    browser.press("All charts");
    browser.expect("document.querySelectorAll('figure.chart canvas').length >= 4");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn all_pages_are_shown_and_nothing_breaks_their_policy() {
    if !may_run("all_pages_are_shown_and_nothing_breaks_their_policy") {
        return;
    }
    let (lab, _routers, sb) = start();
    let browser = Browser::start(&lab);
    browser.open(UI);
    for (page, heading) in PAGES {
        browser.run(&format!("location.hash = {page:?}"));
        browser.expect(&format!("document.querySelector('h1')?.innerText === {heading:?}"));
        browser.expect("!document.querySelector('.trouble[role=alert]')");
    }
    let foreign = "performance.getEntriesByType('resource').filter((r) => !r.name.startsWith(location.origin)).map((r) => r.name)";
    assert_eq!(browser.run(&format!("return {foreign}")), serde_json::json!([]));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // The browser would have reported it.
    browser.run("document.body.appendChild(document.createElement('div')).setAttribute('style', 'color: red')");
    let complaints = browser.complaints().join("\n");
    assert!(complaints.contains("Content Security Policy"), "{complaints}");
    // Explain in the page gives the API's answer.
    browser.run("location.hash = 'routes'");
    browser.press("explain");
    browser.press("Explain");
    browser.expect("document.querySelector('.explain article')?.innerText.includes('the next connection goes to')");
    // A page of another site that has led its reader here by another name learns nothing.
    let code = |name: &str, path: &str, more: &[&str]| {
        let (name, url) = (format!("Host: {name}"), format!("http://127.0.0.1:8089{path}"));
        let words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", &name, &url];
        lab.lb.must(&[&words[..], more].concat())
    };
    assert_eq!(code("evil.example", "/api/v1/status", &[]), "421");
    // Such a page may set any header, and does not know the token.
    let wrong = ["-H", "Authorization: Bearer a-token-of-another-test"];
    assert_eq!(code("evil.example", "/api/v1/status", &wrong), "421");
    let right = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(code("any.example", "/api/v1/status", &["-H", &right]), "200");
    assert_eq!(code("localhost", "/api/v1/status", &[]), "200");
    // Metrics name hosts: they are for names that no other site can have.
    assert_eq!(code("evil.example", "/metrics", &[]), "421");
    assert_eq!(code("evil.example", "/livez", &[]), "200");
    for private in ["signalbox", "signalbox.lb.svc.cluster.local"] {
        assert_eq!(code(private, "/metrics", &[]), "200", "{private}");
        assert_eq!(code(private, "/api/v1/status", &[]), "421", "{private}");
    }
    assert!(sb.metric("signalbox_admin_refused_total{limit=\"unknown_host\"}") >= 1.0);
}

#[test]
fn changes_need_the_token_and_show_their_command() {
    if !may_run("changes_need_the_token_and_show_their_command") {
        return;
    }
    let (lab, _routers, sb) = start();
    let browser = Browser::start(&lab);
    browser.open(&format!("{UI}#hosts"));
    browser.expect(&row_has("east-1", "● healthy"));
    assert!(!browser.text().contains("Out of rotation"), "no change without a token");
    unlock(&browser, "a-token-of-another-test");
    browser.expect("document.body.innerText.includes('The token is missing or wrong')");
    assert!(
        !browser.text().contains("Out of rotation"),
        "no change with a wrong token"
    );
    browser.fill("Token", TOKEN);
    browser.press("Unlock");
    browser.press("Out of rotation");
    browser.expect("document.querySelector('code.command')?.innerText.includes('curl --unix-socket')");
    browser.press("Confirm: Out of rotation");
    browser.expect(&row_has("east-1", "▲ out of rotation"));
    assert_ne!(sb.host("east-1")["out_of_rotation"], serde_json::Value::Null);
    browser.press("Into rotation");
    browser.press("Confirm: Into rotation");
    browser.expect(&row_has("east-1", "● healthy"));
    assert_eq!(
        browser.run("return localStorage.length + document.cookie.length"),
        0,
        "the token is kept for the tab only"
    );
}

#[test]
fn pages_say_that_they_are_stale_and_recover_by_themselves() {
    if !may_run("pages_say_that_they_are_stale_and_recover_by_themselves") {
        return;
    }
    let (lab, _routers, mut sb) = start();
    let browser = Browser::start(&lab);
    browser.open(UI);
    browser.expect("document.body.innerText.includes('Serving; ready')");
    browser.run("window.same = true");
    sb.kill9();
    browser.expect("document.querySelector('.banner')?.innerText.includes('Stale since')");
    drop(sb);
    let sb = Signalbox::start_file(&lab, "again", &lab.dir().join("signalbox.yaml"), &[]);
    sb.wait_healthy(&["east-1", "west-1"]);
    browser.expect("!document.querySelector('.banner')");
    browser.expect("document.body.innerText.includes('Serving; ready')");
    assert_eq!(browser.run("return window.same"), true, "without a reload");
    assert!(eventually(lab::SOON, || sb.json("/api/v1/history")["at"]
        .as_array()
        .is_some_and(|at| at.len() > 2)));
}
