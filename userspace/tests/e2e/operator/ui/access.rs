//! `admin.read: token`: the pages show nothing before the token is entered.

use super::{Browser, TOKEN, UI, may_run, start_with, unlock};

#[test]
fn pages_show_nothing_without_the_token_that_reads_need() {
    if !may_run("pages_show_nothing_without_the_token_that_reads_need") {
        return;
    }
    let (lab, _routers, sb) = start_with("read: token,");
    let code = |path: &str, more: &[&str]| {
        let url = format!("http://127.0.0.1:8089{path}");
        let words = ["curl", "-s", "-o", "/dev/null", "-m", "5", "-w", "%{http_code}", &url];
        lab.lb.must(&[&words[..], more].concat())
    };
    let right = format!("Authorization: Bearer {TOKEN}");
    for path in [
        "/api/v1/status",
        "/api/v1/config",
        "/api/v1/history",
        "/api/v1/openapi.json",
    ] {
        assert_eq!(code(path, &[]), "401", "{path}");
        assert_eq!(
            code(path, &["-H", "Authorization: Bearer a-token-of-another-test"]),
            "401",
            "{path}"
        );
        assert_eq!(code(path, &["-H", &right]), "200", "{path}");
    }
    for open in ["/livez", "/readyz", "/metrics", "/ui/", "/ui/app.js"] {
        assert_eq!(code(open, &[]), "200", "{open}");
    }
    assert!(sb.metric("signalbox_admin_refused_total{limit=\"unauthorized_read\"}") >= 6.0);

    let browser = Browser::start(&lab);
    browser.open(&format!("{UI}#hosts"));
    browser.expect("document.querySelector('.banner')?.innerText.includes('only with its token')");
    assert!(!browser.text().contains("east-1"), "{}", browser.text());
    unlock(&browser, TOKEN);
    browser.expect(&super::row_has("east-1", "● healthy"));
    browser.expect("!document.querySelector('.banner')");
}
