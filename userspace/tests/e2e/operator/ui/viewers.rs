//! Two viewers at once: each sees everything, and resets only its own view.

use super::{Browser, UI, http, may_run, start};

/// Condition: the totals of all hosts in the page add up to this.
fn totals_are(sum: u32) -> String {
    format!(
        "[...document.querySelectorAll('figure.chart')].filter((f) => f.innerText.includes('Total connections'))\
         .reduce((sum, f) => sum + Number(f.querySelector('.key b').innerText), 0) === {sum}"
    )
}

#[test]
fn viewers_see_the_metrics_totals_and_reset_only_their_own() {
    if !may_run("viewers_see_the_metrics_totals_and_reset_only_their_own") {
        return;
    }
    let (lab, _routers, sb) = start();
    let ask = |times: u32| {
        for _ in 0..times {
            assert_eq!(http::ask(&lab, "10.1.0.1:80", "app.example.com").status, 200);
        }
    };
    let first = Browser::start(&lab);
    let second = first.another(&lab);
    ask(20);
    for viewer in [&first, &second] {
        viewer.open(&format!("{UI}#hosts"));
        viewer.press("All charts");
        viewer.expect(&totals_are(20));
    }
    assert_eq!(sb.metric("signalbox_backend_connections_total"), 20.0);
    first.press("Reset stats");
    first.expect(&totals_are(0));
    ask(6);
    first.expect(&totals_are(6));
    second.expect(&totals_are(26));
    assert_eq!(sb.metric("signalbox_backend_connections_total"), 26.0);
    // The overview has the same sum; the first one's counts from its reset there too.
    second.run("location.hash = 'overview'");
    second.expect("document.body.innerText.includes('26 in all')");
    assert_eq!(sb.metric("signalbox_connections_total"), 26.0);
    first.run("location.hash = 'overview'");
    first.expect("document.body.innerText.includes('6 in all') && !document.body.innerText.includes('26 in all')");
    for viewer in [&first, &second] {
        assert_eq!(viewer.complaints(), Vec::<String>::new());
    }
}
