//! The pages without a mouse, and in a window that a zoom has left narrow.

use serde_json::{Value, json};

use super::{Browser, PAGES, TOKEN, UI, may_run, start, unlock};

/// Elements that can be reached by Tab, in the order of the document (HTML, 6.6.3).
const REACHABLE: &str = "[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')]\
                         .filter((e) => e.tabIndex >= 0 && !e.disabled && e.checkVisibility())";

fn press(browser: &Browser<'_>, key: &str, code: u32) {
    for kind in ["rawKeyDown", "char", "keyUp"] {
        let text = if kind == "char" && key == "Enter" { "\r" } else { "" };
        if kind == "char" && text.is_empty() {
            continue;
        }
        let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
        browser.devtools("Input.dispatchKeyEvent", &event);
    }
}

/// Goes through the page by Tab; returns elements that are not reached in their order, and those that do not show the
/// focus.
fn faults(browser: &Browser<'_>) -> Value {
    // Lists that change during the walk have other elements by then.
    browser.run(&format!(
        "document.activeElement.blur(); window.scrollTo(0, 0);\n\
         window.wanted = {REACHABLE}; window.reached = []; window.hidden = [];\n\
         window.noting ??= document.addEventListener('focusin', (event) => {{\n\
           window.reached.push(event.target);\n\
           const style = getComputedStyle(event.target);\n\
           if (style.outlineStyle === 'none' || style.outlineWidth === '0px') window.hidden.push(event.target);\n\
         }}) ?? true;\n\
         document.body.tabIndex = -1; document.body.focus(); window.reached = []; window.hidden = [];"
    ));
    let count = browser.run("return window.wanted.length").as_u64().unwrap();
    assert!(count >= 5, "{count} elements");
    for _ in 0..count {
        press(browser, "Tab", 9);
    }
    browser.run(
        "const name = (e) => `${e.tagName} ${(e.innerText || e.getAttribute('aria-label') || e.name || '').trim().slice(0, 40)}`;\n\
         const missed = window.wanted.filter((e) => e.isConnected && !window.reached.includes(e)).map(name);\n\
         const places = window.reached.map((e) => window.wanted.indexOf(e)).filter((i) => i >= 0);\n\
         const backwards = places.filter((p, i) => i > 0 && p < places[i - 1]).map((p) => name(window.wanted[p]));\n\
         const faults = [['missed', missed], ['backwards', backwards], ['no focus shown', window.hidden.map(name)]];\n\
         return faults.filter(([, all]) => all.length > 0).map(([why, all]) => `${why}: ${all.join(', ')}`)",
    )
}

#[test]
fn no_page_is_wider_than_a_window_at_four_times_its_size() {
    if !may_run("no_page_is_wider_than_a_window_at_four_times_its_size") {
        return;
    }
    let (lab, _routers, _sb) = start();
    let browser = Browser::start(&lab);
    browser.open(UI);
    // A window of 1280 at 200 % and at 400 % (WCAG 2.2, 1.4.10).
    for width in [640, 320] {
        let size = json!({ "width": width, "height": 512, "deviceScaleFactor": 1, "mobile": false });
        browser.devtools("Emulation.setDeviceMetricsOverride", &size);
        for (page, heading) in PAGES {
            browser.run(&format!("location.hash = {page:?}"));
            browser.expect(&format!("document.querySelector('h1')?.innerText === {heading:?}"));
            let wider = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
            assert_eq!(browser.run(wider), 0, "{page} is wider than {width}");
        }
    }
}

mod share_6 {
    use super::*;

    #[test]
    fn every_page_is_gone_through_by_keyboard() {
        if !may_run("every_page_is_gone_through_by_keyboard") {
            return;
        }
        let (lab, _routers, _sb) = start();
        let browser = Browser::start(&lab);
        browser.open(UI);
        unlock(&browser, TOKEN);
        let mut all = Vec::new();
        for (page, heading) in PAGES {
            browser.run(&format!("location.hash = {page:?}"));
            browser.expect(&format!("document.querySelector('h1')?.innerText === {heading:?}"));
            let found = faults(&browser);
            let found = found.as_array().unwrap_or_else(|| panic!("{page}: {found}"));
            all.extend(found.iter().map(|fault| format!("{page}: {fault}")));
        }
        assert!(all.is_empty(), "{}", all.join("\n"));
        // A button that has the focus is pressed by Enter.
        browser.run("location.hash = 'routes'");
        let explain = "[...document.querySelectorAll('button')].find((b) => b.innerText.trim() === 'explain')";
        browser.expect(explain);
        browser.run(&format!("{explain}.focus()"));
        press(&browser, "Enter", 13);
        browser.expect("document.querySelector('form input')");
        // An unreachable element would have been noticed.
        browser.run("document.body.insertAdjacentHTML('afterbegin', '<button class=\"x\">x</button>')");
        browser.run("document.querySelector('.x').addEventListener('focus', (event) => event.target.blur())");
        browser.run("document.querySelector('.x').tabIndex = 1");
        assert_ne!(faults(&browser), json!([]));
    }
}
