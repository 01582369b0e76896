//! The Migrate page: a migration is tried, begun, paused, resumed and aborted by buttons.

use super::{Browser, TOKEN, UI, eventually, lab, may_run, start, unlock};

const APP: &str = "app.example.com";

#[test]
fn a_migration_is_begun_paused_resumed_and_aborted_by_buttons() {
    if !may_run("a_migration_is_begun_paused_resumed_and_aborted_by_buttons") {
        return;
    }
    let (lab, _routers, sb) = start();
    // All of the name is in one cluster, as before a migration.
    let set = sb.cli(&["weight", APP, "east=100", "west=0"]);
    assert!(set.status.success(), "{set:?}");
    let browser = Browser::start(&lab);
    browser.open(&format!("{UI}#migrate"));
    browser.expect("document.body.innerText.includes('There has been no migration')");
    assert!(!browser.text().contains("Begin migration"), "no change without a token");
    unlock(&browser, TOKEN);
    for (label, text) in [
        ("Names", APP),
        ("From", "east"),
        ("To", "west"),
        ("Testers", "10.9.0.0/16"),
        ("Steps", "25,100"),
        ("Seconds", "3600"),
    ] {
        browser.fill(label, text);
    }
    let confirm = |label: &str| {
        browser.press(label);
        browser.press(&format!("Confirm: {label}"));
    };
    confirm("Try");
    browser.expect("document.body.innerText.includes('Would move app.example.com in steps of testers, 25 %, 100 %')");
    assert_eq!(sb.json("/api/v1/migrations")["migrations"], serde_json::json!([]));

    confirm("Begin migration");
    let article = "document.querySelector('article.migration')?.innerText";
    let shows = |text: &str| browser.expect(&format!("{article}?.includes({text:?})"));
    shows("● running");
    shows("east → west");
    browser.expect("document.querySelector('.steps li[aria-current=step]')?.innerText === 'testers'");
    let newest = || sb.json("/api/v1/migrations")["migrations"][0].clone();
    for (button, state, shown) in [
        ("Pause migration", "paused", "▲ paused"),
        ("Resume migration", "running", "● running"),
        ("Abort migration", "aborted", "○ aborted"),
    ] {
        confirm(button);
        shows(shown);
        assert!(eventually(lab::SOON, || newest()["state"] == state), "{}", newest());
    }
    browser.run("document.querySelector('article.migration summary').click()");
    shows("Outcome: **aborted**");
    shows("Testers: 10.9.0.0/16");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
