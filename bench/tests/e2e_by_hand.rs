//! `cargo xtask lab` as its user meets it: what it prints is typed, and afterwards nothing of it is left.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod lab;

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use lab::{Lab, command, eventually, privileged, sh};

#[test]
fn printed_lab_commands_work_and_the_lab_cleans_up_fully() {
    if !privileged("printed_lab_commands_work_and_the_lab_cleans_up_fully") {
        return;
    }
    let name = format!("test{}", std::process::id());
    let mut killed = Lab::start(&name);
    killed.end(Signal::SIGKILL);
    assert_ne!(killed.left(), Vec::<String>::new(), "nobody has cleaned up");

    let mut lab = Lab::start(&name);
    let second = command(&name).output().unwrap();
    let why = String::from_utf8_lossy(&second.stderr);
    let pid = lab.pid().to_string();
    assert!(!second.status.success() && why.contains(&pid), "{why}");

    end_tls(&lab);
    choose(&lab);
    let mut download = Command::new("sh")
        .args(["-c", &format!("exec {}", lab.printed(&["--limit-rate"]))])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let flows = lab.printed(&["signalbox flows"]);
    // Client, listener, route, cluster, host, tier.
    let tier = |line: &str| line.split_whitespace().nth(5).map(str::to_owned);
    let is_cut = || sh(&flows).lines().filter_map(tier).any(|tier| tier == "cut");
    assert!(eventually(is_cut), "{}", sh(&flows));
    assert!(sh(&lab.printed(&["doctor"])).contains("cut-through"));

    let pins = lab.pins();
    assert!(pins.is_dir(), "{}", pins.display());
    sh(&lab.printed(&["kill -9", "balancer"]));
    lab.says("signal: 9");
    let before = lab.received();
    assert!(
        eventually(|| lab.received() > before + (10 << 20)),
        "nothing comes through"
    );
    lab.type_enter();
    lab.says("signalbox serves");
    assert!(eventually(is_cut), "{}", sh(&flows));

    assert!(lab.end(Signal::SIGINT).success());
    download.wait().unwrap();
    assert_eq!(lab.left(), Vec::<String>::new());
    assert!(!pins.exists(), "{}", pins.display());
}

/// The commands of the first two paragraphs.
fn choose(lab: &Lab) {
    let http = sh(&lab.printed(&["curlrc http://north"]));
    assert!(http.starts_with("north-") && http.contains("over http\n"), "{http}");
    let tls = sh(&lab.printed(&["curlrc https://south"]));
    assert!(tls.starts_with("south-") && tls.contains("over https\n"), "{tls}");
    let ten = lab.printed(&["uniq -c"]);
    let share = |cluster: &str| -> u32 {
        let counts = sh(&ten);
        let of_cluster = counts.lines().filter(|line| line.contains(cluster));
        of_cluster
            .map(|line| line.split_whitespace().next().unwrap().parse::<u32>().unwrap())
            .sum()
    };
    assert_eq!(share("north-"), 8);
    sh(&lab.printed(&["-X PUT", "50"]));
    assert_eq!(share("north-"), 5);
    sh(&lab.printed(&["-X PUT", "100"]));
    assert_eq!(share("south-"), 10);
}

/// The commands about TLS that ends at the balancer.
fn end_tls(lab: &Lab) {
    let edge = sh(&lab.printed(&["curlrc https://edge"]));
    assert!(edge.starts_with("north-") && edge.contains("over http\n"), "{edge}");
    let anew = sh(&lab.printed(&["curlrc https://reencrypt"]));
    assert!(anew.starts_with("south-") && anew.contains("over https\n"), "{anew}");
    let explained = sh(&lab.printed(&["explain https://edge"]));
    assert!(
        explained.contains("edge") && explained.contains("balancer.pem"),
        "{explained}"
    );
    let certificates = sh(&lab.printed(&["signalbox certificates"]));
    assert!(certificates.contains("reencrypt.lab.example"), "{certificates}");
    let redirected = sh(&lab.printed(&["redirect_url", "http://edge"]));
    assert_eq!(redirected, "302 https://edge.lab.example/\n");
}
