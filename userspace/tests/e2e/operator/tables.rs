//! Tables of the command line: in a terminal, piped, alone and again.

use crate::lab;

use lab::signalbox::binary;
use lab::terminal::TerminalSession;
use lab::{Lab, Router, Signalbox, config, lab_test};
use nix::sys::signal::Signal;

fn start() -> (Lab, Vec<Router>, Signalbox) {
    let lab = Lab::new();
    let routers = Router::start_all(&lab, &["east-1"]);
    let body = format!(
        "{}clusters:\n{}",
        config::WEB_LISTENERS,
        config::cluster("east", &[], &["east-1"])
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    (lab, routers, sb)
}

/// A command in a terminal of 80 x 24.
fn in_terminal(lab: &Lab, words: &[&str]) -> TerminalSession {
    let mut command = lab.lb.command(binary());
    command.args(words).arg("--socket").arg(lab.dir().join("admin.sock"));
    command.env_remove("COLUMNS").env_remove("LINES");
    TerminalSession::start(command)
}

/// Standard output of a command that must succeed.
fn output(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[lab_test]
fn a_table_fits_a_terminal_and_is_whole_in_a_pipe() {
    let (lab, _routers, sb) = start();
    let terminal = in_terminal(&lab, &["hosts"]);
    terminal.expect("no room for ");
    let shown = terminal.text();
    assert_eq!(shown.lines().count(), 3, "titles, a host and a note:\n{shown}");

    let piped = output(&sb, &["hosts"]);
    assert!(piped.contains("CHECKED BY") && !piped.contains("no room"), "{piped}");
    assert!(piped.lines().all(|line| line == line.trim_end()), "{piped:?}");
    let alone = output(&sb, &["hosts", "--no-headers"]);
    assert_eq!(alone.lines().count(), 1, "{alone}");
    assert_eq!(alone.split_whitespace().take(2).collect::<Vec<_>>(), ["east", "east-1"]);
}

#[lab_test]
fn a_watched_table_shows_a_host_that_goes_out_of_rotation() {
    let (lab, _routers, sb) = start();
    let terminal = in_terminal(&lab, &["rotate", "list", "--watch", "0.2"]);
    terminal.expect("every 0.2 s");
    terminal.expect("OUT OF ROTATION");
    output(&sb, &["rotate", "out", "east-1", "--force", "--reason", "disk"]);
    terminal.expect("host:east/east-1");
    output(&sb, &["rotate", "in", "east-1"]);
    terminal.expect_that("nothing is out", |shown| !shown.contains("host:east/east-1"));
    terminal.signal(Signal::SIGINT);
    assert_eq!(terminal.end(), None, "Ctrl-C ends it");

    let refused = sb.cli(&["hosts", "--watch", "-o", "json"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("--watch repeats tables"),
        "{said}"
    );
}
