//! The pages in a window of a phone.

use serde_json::json;

use super::{Browser, PAGES, TOKEN, UI, may_run, start, unlock};

/// Why a page does not fit: names of elements outside the window.
const OUTSIDE: &str = "const seen = (e) => {
  const box = e.getBoundingClientRect();
  return box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;
};
const faults = [...document.querySelectorAll('nav a')].filter((link) => !seen(link)).map((link) => link.innerText);
const chosen = document.querySelector('nav a[aria-current=page]');
if (!chosen || !seen(chosen)) faults.push('the chosen page');
const wide = document.documentElement.scrollWidth - innerWidth;
if (wide > 0) faults.push(`${wide} px too wide`);
return faults;";

#[test]
fn each_page_and_its_place_in_the_bar_fit_a_phone() {
    if !may_run("each_page_and_its_place_in_the_bar_fit_a_phone") {
        return;
    }
    let (lab, _routers, sb) = start();
    let browser = Browser::start(&lab);
    let size = json!({ "width": 390, "height": 844, "deviceScaleFactor": 3, "mobile": true });
    browser.devtools("Emulation.setDeviceMetricsOverride", &size);
    browser.open(UI);
    unlock(&browser, TOKEN);
    for (page, heading) in PAGES {
        // A reader chooses a page at the end of another.
        browser.run("scrollTo(0, document.documentElement.scrollHeight)");
        browser.run(&format!("location.hash = {page:?}"));
        browser.expect(&format!("document.querySelector('h1')?.innerText === {heading:?}"));
        browser.expect("scrollY === 0");
        assert_eq!(browser.run(OUTSIDE), json!([]), "{page}");
    }
    // Dates are written as ISO 8601 does, in any language of the browser.
    assert!(sb.cli(&["rotate", "out", "east-1", "--no-wait"]).status.success());
    browser.run("location.hash = 'rotation'");
    browser
        .expect("/\\b20\\d\\d-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\b/.test(document.querySelector('table')?.innerText)");
}
