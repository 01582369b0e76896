//! Pictures of the pages for the documents: `cargo xtask ui --update` has them made.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::{Browser, UI, eventually, http, may_run, row_has, start};

/// Variable with the directory that pictures go to; without it none is made.
const PICTURES: &str = "SIGNALBOX_UI_PICTURES";

/// Name, page, theme, width and height of each picture.
const ALL: [(&str, &str, &str, u32, u32); 6] = [
    ("overview-dark", "overview", "dark", 1280, 900),
    ("overview-light", "overview", "light", 1280, 900),
    ("hosts-dark", "hosts", "dark", 1280, 900),
    ("routes-light", "routes", "light", 1280, 700),
    ("migrate-light", "migrate", "light", 1280, 900),
    ("hosts-phone", "hosts", "dark", 390, 844),
];

#[test]
fn pages_are_drawn_in_both_themes_and_at_the_width_of_a_phone() {
    if !may_run("pages_are_drawn_in_both_themes_and_at_the_width_of_a_phone") {
        return;
    }
    let (lab, _routers, sb) = start();
    let body =
        json!({ "from": "east", "to": "west", "names": ["app.example.com"], "steps": [60, 80, 100], "hold": 3600 });
    let begun = sb.unix("POST", "/api/v1/migrations", &body.to_string());
    assert_eq!(begun.status, 202, "{}", begun.body);
    let directory = std::env::var_os(PICTURES).map(std::path::PathBuf::from);
    // Pictures for the documents have two minutes in them; a test has some seconds.
    let samples = if directory.is_some() { 120 } else { 3 };
    let asking = || {
        for _ in 0..8 {
            assert_eq!(http::ask(&lab, "10.1.0.1:80", "app.example.com").status, 200);
        }
        let at = sb.json("/api/v1/history")["at"].as_array().map_or(0, Vec::len);
        at >= samples
    };
    assert!(eventually(std::time::Duration::from_secs(200), asking));
    let browser = Browser::start(&lab);
    browser.open(UI);
    for (name, page, theme, width, height) in ALL {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        browser.devtools("Emulation.setDeviceMetricsOverride", &size);
        browser.run(&format!("localStorage.setItem('signalbox.theme', {theme:?})"));
        browser.open(&format!("{UI}?{name}#{page}"));
        match page {
            "hosts" => {
                browser.expect(&row_has("east-1", "● healthy"));
                browser.press("All charts");
                browser.expect("document.querySelectorAll('figure.chart canvas').length >= 4");
            }
            "overview" => browser.expect("document.querySelectorAll('figure.chart canvas').length >= 4"),
            "migrate" => browser.expect("document.querySelector('.steps li[aria-current=step]')"),
            _ => browser.expect(&row_has("app.example.com", "east")),
        }
        let wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(
            browser.run(&format!("return {wider}")),
            0,
            "{name}: the page is wider than its window"
        );
        let back = browser.run("return getComputedStyle(document.body).backgroundColor");
        assert_eq!(back == "rgb(18, 23, 29)", theme == "dark", "{name}: {back}");
        let Some(directory) = &directory else { continue };
        let picture = browser.devtools("Page.captureScreenshot", &json!({ "format": "webp", "quality": 75 }));
        let picture = BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(directory.join(format!("ui-{name}.webp")), picture).unwrap();
    }
}
