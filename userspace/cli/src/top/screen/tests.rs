//! Replies and requests, and the terminal after a panic in a part of the view.

use std::process::{Command, Stdio};

use serde_json::json;

use super::*;

/// Runs in a separate process and terminal, started by the test below.
#[test]
#[ignore = "it panics on purpose, for another test"]
fn panics_in_a_picture() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ended = runtime.block_on(in_terminal(async |terminal| {
        terminal.draw(|frame| frame.render_widget("figures", frame.area()))?;
        panic!("a mistake on purpose");
    }));
    unreachable!("{:?}", ended.map(|_: ()| ()));
}

#[test]
fn a_panic_restores_the_terminal_before_it_is_reported() {
    let program = std::env::current_exe().unwrap();
    let child = "top::screen::tests::panics_in_a_picture";
    let words = format!(
        "stty rows 24 cols 80; '{}' --ignored --exact --nocapture {child}; stty -a",
        program.display()
    );
    // `script` (in every Debian) provides the terminal.
    let output = Command::new("script")
        .args(["-qec", &words, "/dev/null"])
        .stdin(Stdio::null())
        .env("TERM", "xterm-256color")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what:?} is missing: {text}"));
    assert!(text.contains("\u{1b}[?1049h"), "there was a picture: {text}");
    let (picture, left, report) = (at("figures"), at("\u{1b}[?1049l"), at("a mistake on purpose"));
    assert!(
        picture < left && left < report,
        "the report is behind the picture: {text}"
    );
    let (hidden, shown) = (at("\u{1b}[?25l"), at("\u{1b}[?25h"));
    assert!(hidden < shown, "the cursor is back: {text}");
    // The terminal handles lines and their echo itself again.
    let settings = &text[report..];
    assert!(
        settings.contains(" icanon") && settings.contains(" echo "),
        "{settings}"
    );
}

#[test]
fn a_panic_while_the_balancer_is_asked_ends_the_picture() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ended = runtime.block_on(async {
        let mut asked = JoinSet::new();
        asked.spawn(async { panic!("a mistake in a question") });
        next_end(&mut asked).await
    });
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("this is a bug in signalbox"), "{error}");
}

#[test]
fn a_reply_does_not_interrupt_who_types() {
    let mut state = TopState::new();
    show_reply(&mut state, Reply::Text("Explain a".into(), "route a".into()));
    assert!(matches!(state.mode, Mode::Reading { .. }));
    state.mode = Mode::Filter;
    show_reply(&mut state, Reply::Text("Explain b".into(), "route b".into()));
    assert_eq!(state.mode, Mode::Filter);
}

#[test]
fn a_host_is_rotated_by_its_whole_name() {
    let rotation = HostRotation {
        cluster: "east".into(),
        host: "east-1".into(),
        is_out: true,
    };
    let body = json!({ "action": "out", "names": ["host:east/east-1"] });
    assert_eq!(serde_json::to_value(rotation_body(&rotation)).unwrap(), body);
}
