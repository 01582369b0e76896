//! Signalbox as an ordinary user with the capabilities that README names, and with one too few.

use crate::lab;

use std::io::Read;
use std::net::TcpStream;

use lab::cut::{self, CutLab, Hosts, doors};
use lab::services::{echo, greeter, greeting};
use lab::signalbox::under_command;
use lab::{SOON, Signalbox, eventually, lab_test, servers};
use serde_json::Value;
use signalbox::kernel::capabilities;

const UID: u32 = 65_534;
const SERVICE: &str = "services:\n  - { name: db, protocol: tcp, listen: [\"10.1.0.1:5432\"], cluster: east }\n";

/// Commands of the machine's administrator: here with a separate bpf file system, so that nothing is left, and then the
/// rights of an ordinary user and these capabilities.
const PREPARE: &str = "mount -t bpf bpf /sys/fs/bpf && chmod 0711 /sys/fs/bpf && mkdir /sys/fs/bpf/signalbox && \
                       chown 65534:65534 /sys/fs/bpf/signalbox && caps=$1 && shift && exec setpriv --reuid 65534 \
                       --regid 65534 --clear-groups --inh-caps $caps --ambient-caps $caps --bounding-set $caps \"$@\"";

/// The documented list, less one.
fn capabilities(without: &str) -> String {
    let all = capabilities::ALL.iter().map(|right| right.name);
    let kept = all.filter(|capability| *capability != without);
    let names: Vec<_> = kept
        .map(|capability| format!("+{}", capability.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    format!("-all,{}", names.join(","))
}

fn under(capabilities: &str) -> Vec<&str> {
    vec!["unshare", "-m", "sh", "-c", PREPARE, "sh", capabilities]
}

fn lab() -> CutLab {
    let lab = cut::lab();
    std::os::unix::fs::chown(lab.dir(), Some(UID), Some(UID)).unwrap();
    lab
}

/// Returns the finding of this name that `doctor` reports with these rights, as text.
fn doctor(lab: &CutLab, under: &[&str], what: &str) -> String {
    let output = under_command(lab, under)
        .args(["doctor", "-o", "json"])
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let all = said["findings"].as_array().unwrap();
    all.iter().find(|finding| finding["what"] == what).unwrap().to_string()
}

fn is_reset(mut stream: &TcpStream) -> bool {
    let read = stream.read(&mut [0]);
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

#[lab_test]
fn an_ordinary_user_with_documented_capabilities_has_everything() {
    let lab = lab();
    let hosts = Hosts::start(&lab);
    let _greeter = greeter(lab.host("east-1"), "[::]:5432", "east-1");
    let _health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    let capabilities = capabilities("");
    let under = under(&capabilities);
    for what in [
        "capabilities",
        "pinned maps",
        "eBPF programs",
        "cut-through",
        "services and shield",
    ] {
        let said = doctor(&lab, &under, what);
        // The bpf file system is the test's own, and doctor is right to report it.
        let is_fine = said.contains("\"standing\":\"ok\"") || said.contains("end with the process");
        assert!(is_fine, "{what}: {said}");
    }

    let sb = Signalbox::start_under(&lab, &cut::body(SERVICE), &under);
    sb.wait_healthy(&["east-1", "west-1"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", sb.proc.pid())).unwrap();
    assert!(status.contains(&format!("Uid:\t{UID}\t{UID}")), "{status}");
    let (_, verbose) = sb.get("/readyz?verbose");
    assert!(
        !verbose.contains("capabilities") && !verbose.contains("cut:"),
        "{verbose}"
    );

    // Port 443, cut, and reset by force.
    let doors = doors();
    let door = doors
        .iter()
        .find(|door| door.listener == "https" && door.cluster == "east")
        .unwrap();
    assert!(door.at.ends_with(":443"));
    let (client, host) = door.enter_cut(&lab, &sb, &hosts);
    let service = || {
        let stream = lab.client.try_connect("10.1.0.1:5432").ok()?;
        Some((greeting(&stream), echo(&stream, b"through the service").is_ok()))
    };
    let mut served = None;
    assert!(eventually(SOON, || {
        served = service();
        served.is_some()
    }));
    assert_eq!(served, Some(("east-1".to_owned(), true)));
    let out = r#"{ "action": "out", "names": ["east-1"], "timeout": 0.5, "force": true }"#;
    let answer = sb.unix("POST", "/api/v1/rotations", out);
    assert!(answer.status < 300, "{}", answer.body);
    assert!(
        is_reset(&client) && is_reset(&host),
        "both ends are told:\n{}",
        sb.proc.log()
    );
}

#[lab_test]
fn start_readyz_and_doctor_name_a_missing_capability_and_effect() {
    for (missing, lines) in [
        (
            "CAP_NET_RAW",
            ["[~] capabilities: CAP_NET_RAW is missing", "are not reset"],
        ),
        ("CAP_PERFMON", ["[~] capabilities: CAP_PERFMON is missing", "[~] cut: "]),
    ] {
        let lab = lab();
        let _health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
        let capabilities = capabilities(missing);
        let under = under(&capabilities);
        let sb = Signalbox::start_under(&lab, &cut::body(""), &under);
        let (status, verbose) = sb.get("/readyz?verbose");
        assert_eq!(status, 200);
        for line in lines.iter().chain(&[missing]) {
            assert!(verbose.contains(line), "{line}: {verbose}");
        }
        assert!(
            sb.proc.log().contains(&format!("{missing} is missing")),
            "{}",
            sb.proc.log()
        );
        let said = doctor(&lab, &under, "capabilities");
        assert!(said.contains(&format!("\"found\":\"without {missing}\"")), "{said}");
        if missing == "CAP_PERFMON" {
            let said = doctor(&lab, &under, "cut_in");
            assert!(said.contains("it needs CAP_PERFMON"), "{said}");
        }
    }
    // Without the right to low ports there is no start, and the error says why.
    let lab = lab();
    let capabilities = capabilities("CAP_NET_BIND_SERVICE");
    let config = lab::signalbox::write_config(&lab, "signalbox.yaml", &cut::body(""));
    let mut all = under(&capabilities);
    all.push(lab::signalbox::binary());
    let (first, rest) = all.split_first().unwrap();
    let mut command = lab.lb.command(first);
    let output = command
        .args(rest)
        .args(["run", "--config"])
        .arg(config)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let error = said
        .lines()
        .find(|line| line.starts_with("error: "))
        .unwrap_or_default();
    assert!(
        error.contains("CAP_NET_BIND_SERVICE is missing") && !output.status.success(),
        "{said}"
    );
}

#[lab_test]
fn a_pin_directory_of_another_user_is_reported_with_the_remedy() {
    let lab = lab();
    let _health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    let capabilities = capabilities("");
    let roots = PREPARE.replace("chown 65534:65534", "chown 0:0");
    let under = ["unshare", "-m", "sh", "-c", &roots, "sh", &capabilities];
    let sb = Signalbox::start_under(&lab, &cut::body(""), &under);
    let (_, verbose) = sb.get("/readyz?verbose");
    let cut = verbose
        .lines()
        .find(|line| line.starts_with("[~] cut: "))
        .unwrap_or_default();
    let said = doctor(&lab, &under, "pinned maps");
    for said in [cut, &said] {
        for part in [
            "/sys/fs/bpf/signalbox is of uid 0",
            "chown -R 65534 /sys/fs/bpf/signalbox",
            "CAP_DAC_OVERRIDE",
        ] {
            assert!(said.contains(part), "{part}: {said}\n{verbose}");
        }
    }
}
