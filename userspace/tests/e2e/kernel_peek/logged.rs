//! The access log of connections that the kernel routes: each has its line, with name and connect time.

use crate::lab;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{PEEK, exits, start_with};
use crate::connection::access_log::{lines, log_at};
use lab::{Router, SOON, Signalbox, config, eventually, http};

const CONNECTIONS: usize = 2000;

fn body(log: &Path, more: &str) -> String {
    format!(
        "{PEEK}\n{}{}clusters:\n{}routes:\n  - {{ host: \"*.test\", clusters: {{ east: 1 }} }}\n",
        log_at(log, more),
        config::WEB_LISTENERS,
        config::cluster("east", &[], &["east-1"]),
    )
}

fn dropped(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_access_log_dropped_total")
}

#[test]
fn each_connection_of_the_kernel_has_one_line() {
    let Some(lab) = super::lab("each_connection_of_the_kernel_has_one_line") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let file = lab.dir().join("connections.log");
    let sb = start_with(&lab, &body(&file, ", max_per_second: 100000"), 2);
    sb.wait_healthy(&["east-1"]);
    // Each with a name of its own: the line has the name that was asked for, not the wildcard's.
    for number in 0..CONNECTIONS {
        let answer = http::ask(&lab, "10.1.0.1:80", &format!("n{number}.test"));
        assert_eq!(answer.status, 200);
    }
    let delivered = exits(&sb, "delivered");
    assert!(
        delivered >= CONNECTIONS as u64 * 9 / 10,
        "{delivered} were routed in the kernel"
    );
    let mut found = Vec::new();
    let are_there = eventually(SOON, || {
        found = lines(&file);
        found.len() as f64 + dropped(&sb) >= CONNECTIONS as f64
    });
    assert!(are_there, "{} lines, {} lost", found.len(), dropped(&sb));
    assert_eq!(dropped(&sb), 0.0);
    let names: HashSet<_> = found.iter().map(|line| line["name"].to_string()).collect();
    assert_eq!((found.len(), names.len()), (CONNECTIONS, CONNECTIONS));
    for line in &found {
        for (field, value) in [
            ("listener", "http"),
            ("local", "10.1.0.1:80"),
            ("route", "*.test"),
            ("cluster", "east"),
            ("host", "east-1"),
            ("backend", "10.2.0.2:80"),
            ("tier", "cut"),
            ("end", "finished"),
        ] {
            assert_eq!(line[field], value, "{field} of {line}");
        }
        let connect = line["connect_ms"].as_f64().unwrap_or_else(|| panic!("{line}"));
        let duration = line["duration_ms"].as_f64().unwrap();
        assert!((0.0..60_000.0).contains(&connect) && duration >= 0.0, "{line}");
        let (from_client, from_host) = (line["bytes_in"].as_u64(), line["bytes_out"].as_u64());
        assert!(from_client > Some(20) && from_host > Some(20), "{line}");
    }
}

/// An ended flow stays in the table for a moment, where a successor finds it.
#[test]
fn a_takeover_writes_no_second_line() {
    let Some(lab) = super::lab("a_takeover_writes_no_second_line") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let file = lab.dir().join("connections.log");
    let mut sb = start_with(&lab, &body(&file, ", max_per_second: 100000"), 2);
    sb.wait_healthy(&["east-1"]);
    let stop = AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let asked = (0..).take_while(|_| !stop.load(Relaxed));
            asked.inspect(|_| _ = http::ask(&lab, "10.1.0.1:80", "a.test")).count()
        });
        let replaced = catch_unwind(AssertUnwindSafe(|| sb.be_replaced("successor")));
        stop.store(true, Relaxed);
        let count = asking.join().unwrap();
        replaced.unwrap();
        count
    });
    let flows = || sb.metric("signalbox_capacity_used{what=\"cut_flows\"}");
    assert!(eventually(SOON, || flows() == 0.0 && lines(&file).len() >= count));
    let mut by_client = HashMap::<_, Vec<_>>::new();
    // The client of a moment without a program sends its first data again: its first flow had no answer.
    for line in lines(&file).into_iter().filter(|line| line["bytes_out"] != 0) {
        by_client.entry(line["client"].to_string()).or_default().push(line);
    }
    assert_eq!(by_client.len(), count);
    by_client.retain(|_, lines| lines.len() > 1);
    assert!(by_client.is_empty(), "{by_client:?}");
}

#[test]
fn a_log_that_cannot_be_written_counts_its_losses() {
    let Some(lab) = super::lab("a_log_that_cannot_be_written_counts_its_losses") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let sb = start_with(&lab, &body(Path::new("/dev/full"), ""), 2);
    sb.wait_healthy(&["east-1"]);
    for _ in 0..200 {
        assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").status, 200);
    }
    assert!(exits(&sb, "delivered") >= 180);
    assert!(eventually(SOON, || dropped(&sb) == 200.0), "{} lost", dropped(&sb));
}
