//! `signalbox demo`.

use crate::lab;

use std::process::Stdio;

use lab::signalbox::binary;
use lab::{Lab, SOON, eventually, lab_test};

#[lab_test]
fn the_demo_leaves_nothing_and_ends_without_a_warning() {
    let lab = Lab::new();
    let directory = lab.dir().join("demo");
    std::fs::create_dir(&directory).unwrap();
    let demo = |words: &[&str]| {
        let mut command = lab.lb.command(binary());
        command.arg("demo").args(words).env("TMPDIR", &directory);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let running = demo(&["--seconds", "8"]).spawn().unwrap();
    let answers = || {
        let url = "http://127.0.0.1:8089/livez";
        lab.lb.output(&["curl", "--silent", "--fail", url]).status.success()
    };
    assert!(eventually(SOON, answers), "the demo does not answer");

    let second = demo(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("already in use"), "{said}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "that of the first");

    let ended = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && !said.contains("watches"), "{said}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}
