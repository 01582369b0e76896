//! `signalbox top`, in a terminal and without one, in front of real router hosts.

use crate::lab;

use lab::signalbox::{binary, write_config};
use lab::terminal::TerminalSession;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};
use nix::sys::signal::Signal;

/// Two clusters of one host each, between which a name's connections are split.
fn body() -> String {
    let cluster = |name, host| config::cluster(name, &[], &[host]);
    let (east, west) = (cluster("east", "east-1"), cluster("west", "west-1"));
    let route = "routes:\n  - { host: app.example.com, clusters: { east: 50, west: 50 } }\n";
    format!("{}clusters:\n{east}{west}{route}", config::WEB_LISTENERS)
}

fn start() -> (Lab, Vec<Router>, Signalbox) {
    let lab = Lab::new();
    let routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let sb = Signalbox::start(&lab, &body());
    sb.wait_healthy(&["east-1", "west-1"]);
    (lab, routers, sb)
}

fn in_terminal(lab: &Lab) -> TerminalSession {
    let mut command = lab.lb.command(binary());
    command.args(["top", "--socket"]).arg(lab.dir().join("admin.sock"));
    TerminalSession::start(command)
}

/// Output of `top --once`, which must succeed.
fn once(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(&[&["top", "--once"], words].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!text.contains('\u{1b}'), "nothing for terminals: {text:?}");
    text
}

#[lab_test]
fn top_once_shows_a_killed_host_unhealthy_and_true_connections() {
    let (lab, mut routers, mut sb) = start();
    for _ in 0..20 {
        assert_eq!(http::ask(&lab, "10.1.0.1:80", "app.example.com").status, 200);
    }
    assert_eq!(sb.metric("signalbox_backend_connections_total"), 20.0);
    for words in [&[][..], &["--url", "http://127.0.0.1:8089"]] {
        let counted = || once(&sb, words).contains(", 20 in all");
        assert!(eventually(SOON, counted), "{}", once(&sb, words));
        let text = once(&sb, words);
        assert!(text.contains("serving; ready, 1 routes"), "{text}");
        assert!(
            text.contains("2 usable, 0 unhealthy") && !text.contains("east/east-1"),
            "{text}"
        );
    }
    routers[0].kill();
    let is_shown = || {
        let text = once(&sb, &[]);
        text.contains("■ east/east-1 is unhealthy") && text.contains("1 usable, 1 unhealthy")
    };
    assert!(eventually(SOON, is_shown), "{}", once(&sb, &[]));
    // Without a terminal the picture is refused, with the fix.
    let refused = sb.cli(&["top"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--once"));
    sb.kill9();
    let gone = sb.cli(&["top", "--once"]);
    assert!(!gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("is it running?"));
}

#[lab_test]
fn a_terminal_shows_the_panes_and_is_as_before_when_they_end() {
    let (lab, mut routers, mut sb) = start();
    let mut top = in_terminal(&lab);
    top.expect("serving; ready");
    top.press("2");
    top.expect_that("both hosts healthy", |shown| shown.matches("● healthy").count() == 2);
    // A host is taken out only after its name, and its flows are no longer new.
    top.press("oeast-1\r");
    top.expect("east/east-1 gets no new flow");
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    top.expect("healthy, out of rotation");
    top.press("oeast\r");
    top.expect("nothing was changed");
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    top.press("oeast-1\r");
    top.expect("east/east-1 is in rotation");
    assert_eq!(sb.host("east-1")["out_of_rotation"], serde_json::Value::Null);
    top.press("3");
    top.expect("app.example.com");
    top.press("e");
    top.expect("route app.example.com");
    top.expect("next: ");
    top.press("x8");
    routers[0].kill();
    top.expect_that("the event of the host's death", |shown| {
        shown.contains("cluster east, healthy false, host east-1")
    });
    top.press("2");
    top.expect("■ unhealthy");
    for (pane, text) in [
        ("4", "There is no flow now"),
        ("5", "There is no layer-4 service"),
        ("6", "Nothing is shielded"),
        ("7", "shares no addresses"),
        ("?", "this help"),
    ] {
        top.press(pane);
        top.expect(text);
    }
    top.press("x1");
    sb.kill9();
    top.expect("stale for");
    drop(sb);
    let sb = Signalbox::start_file(&lab, "again", &lab.dir().join("signalbox.yaml"), &[]);
    sb.wait_healthy(&["west-1"]);
    top.expect_that("fresh figures", |shown| {
        !shown.contains("stale") && shown.contains("serving; ready")
    });
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

#[lab_test]
fn a_signal_ends_the_picture_and_the_terminal_is_as_before() {
    let lab = Lab::new();
    // No process answers, which is shown; `top` can still be ended.
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGINT, 130)] {
        let top = in_terminal(&lab);
        top.expect("no signalbox answers");
        top.signal(signal);
        assert_eq!(top.end(), Some(code));
    }
    let config = write_config(&lab, "signalbox.yaml", &body());
    let mut top = in_terminal(&lab);
    top.expect("no signalbox answers");
    let _sb = Signalbox::start_file(&lab, "signalbox", &config, &[]);
    top.expect("serving");
    top.press("\u{3}");
    assert_eq!(top.end(), Some(0), "Ctrl-C is a key");
}
