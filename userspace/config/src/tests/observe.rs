//! Messages of the rules for metrics and for the access log when broken.

use super::{documented, only_mistake, only_mistakes, plus, right};

#[test]
fn metrics() {
    assert_eq!(right(&plus("")).model.metrics.routes, 1000);
    assert_eq!(right(&plus("metrics: { routes: 0 }")).model.metrics.routes, 0);
    only_mistake(
        &plus("metrics: { routes: -1 }"),
        "metrics.routes",
        "`-1` is not a whole number from 0 to 1000000",
    );
    only_mistake(
        &plus("metrics: { route: 5 }"),
        "metrics.route",
        "did you mean `routes`?",
    );
}

#[test]
fn the_log_of_connections() {
    use signalbox_core::model::{END_LABELS, LogTarget};
    let log = |keys: &str| plus(&format!("log: {{ connections: {{ {keys} }} }}"));
    assert_eq!(right(&plus("")).model.access_log, None);
    let all = right(&log("to: stdout")).model.access_log.unwrap();
    assert_eq!(
        (&all.to, all.sample_ppm, all.max_per_second),
        (&LogTarget::Stdout, 1_000_000, 1000)
    );
    assert!((0..END_LABELS.len()).all(|end| all.only.contains(end)));
    assert!(right(&plus(documented("log:"))).model.access_log.is_some());
    let some = right(&log("to: /var/log/c.log, sample: 0.25, only: [refused, host_reset]"));
    let some = some.model.access_log.unwrap();
    assert_eq!(
        (some.to.to_string().as_str(), some.sample_ppm),
        ("/var/log/c.log", 250_000)
    );
    assert_eq!(
        (0..END_LABELS.len())
            .filter(|end| some.only.contains(*end))
            .collect::<Vec<_>>(),
        [2, 7]
    );
    for (sample, ppm) in [("1", 1_000_000), ("1.0", 1_000_000), ("0.000001", 1), ("0.5", 500_000)] {
        let log = right(&log(&format!("to: stdout, sample: {sample}")))
            .model
            .access_log
            .unwrap();
        assert_eq!(log.sample_ppm, ppm, "{sample}");
    }
    for sample in [
        "0",
        "0.0",
        "1.1",
        "2",
        "10%",
        "-0.1",
        ".5",
        "0.0000001",
        "a",
        "99999999999",
    ] {
        only_mistake(
            &log(&format!("to: stdout, sample: {sample}")),
            "log.connections.sample",
            "is not a share of all connections from 0.000001 to 1",
        );
    }
    only_mistake(&log("sample: 1"), "log.connections", "the key `to` is missing");
    let path = "is neither `stdout` nor the absolute path of a file";
    for to in ["stderr", "c.log", "/var/log/"] {
        only_mistake(&log(&format!("to: {to}")), "log.connections.to", path);
    }
    only_mistakes(
        &log,
        r"
            to: stdout, max_per_second: 0 | log.connections.max_per_second | from 1 to 1000000
            to: stdout, only: [refusd]    | log.connections.only[0]        | `refusd` is not a way to end; did you mean `refused`?
            to: stdout, only: []          | log.connections.only           | leave `only` out
        ",
    );
}
