//! Accessibility of each page, dark and light, by axe-core.

use serde_json::{Value, json};

use super::{Browser, PAGES, TOKEN, UI, may_run, start, unlock};

/// Variable with the file of axe-core; `cargo xtask test --only install` has it downloaded.
const AXE: &str = "SIGNALBOX_AXE";

/// Findings of axe-core in the page as it is, each with its elements.
fn findings(browser: &Browser<'_>, axe: &str) -> Vec<String> {
    browser.run(&format!("if (!window.axe) {{ {axe} }}"));
    let answer = browser.run_async(
        "const done = arguments[arguments.length - 1];\n\
         axe.run(document).then((result) => done({ passes: result.passes.length, violations: result.violations.map((v) => \
         ({ id: v.id, impact: v.impact, help: v.help, nodes: v.nodes.slice(0, 3).map((n) => `${n.html} ${n.failureSummary}`) })) }), (error) => done(String(error)))",
    );
    // A page in which nothing could be checked does not count as one without findings.
    assert!(answer["passes"].as_u64() >= Some(5), "{answer}");
    let is_serious = |finding: &&Value| ["serious", "critical"].map(Value::from).contains(&finding["impact"]);
    let all = answer["violations"].as_array().cloned().unwrap_or_default();
    all.iter().filter(is_serious).map(ToString::to_string).collect()
}

mod share_6 {
    use super::*;

    #[test]
    fn no_page_has_a_serious_finding_of_axe() {
        let test = "no_page_has_a_serious_finding_of_axe";
        if !may_run(test) {
            return;
        }
        let Some(axe) = std::env::var_os(AXE) else {
            return super::super::lab::cannot_run(test, "SIGNALBOX_AXE names no axe-core (`cargo xtask suites`)");
        };
        let axe = std::fs::read_to_string(axe).unwrap();
        let (lab, _routers, sb) = start();
        // Pages with content: a migration under way, a host out of rotation, changes.
        let body =
            json!({ "from": "east", "to": "west", "names": ["app.example.com"], "steps": [60, 100], "hold": 3600 });
        let begun = sb.unix("POST", "/api/v1/migrations", &body.to_string());
        assert_eq!(begun.status, 202, "{}", begun.body);
        let browser = Browser::start(&lab);
        browser.open(UI);
        unlock(&browser, TOKEN);
        let mut all = Vec::new();
        for theme in ["dark", "light"] {
            browser.run(&format!("localStorage.setItem('signalbox.theme', {theme:?})"));
            browser.open(UI);
            browser.expect(&format!("document.documentElement.dataset.theme === {theme:?}"));
            for (page, heading) in PAGES {
                browser.run(&format!("location.hash = {page:?}"));
                browser.expect(&format!("document.querySelector('h1')?.innerText === {heading:?}"));
                if page == "hosts" {
                    browser.press("All charts");
                    browser.expect("document.querySelectorAll('figure.chart canvas').length >= 4");
                }
                if page == "migrate" {
                    browser.expect("document.querySelector('.steps li[aria-current=step]')");
                }
                let found = findings(&browser, &axe);
                all.extend(found.into_iter().map(|finding| format!("{page}, {theme}: {finding}")));
            }
        }
        assert!(all.is_empty(), "{}", all.join("\n"));
        // A finding would have been seen.
        browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=\"icon.svg\"><button></button>')");
        assert!(!findings(&browser, &axe).is_empty());
    }
}
