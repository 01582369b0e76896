//! Real clients against real servers: gRPC's C core (Python), grpc-go, nghttp and curl.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{BY_REQUEST, TIERS, body};
use crate::lab::Proc;
use crate::lab::cut::{self, expect_none};
use crate::lab::{Lab, Router, SOON, Server, Signalbox, eventually, http, lab_test, servers};

/// Debian's own, whose modules are packages: another `python3` may come before it in the path.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Whether a program is there; reports it if not.
pub(crate) fn is_installed(program: &str, package: &str) -> bool {
    let is = ["/usr/bin", "/usr/sbin", "/usr/local/bin"]
        .iter()
        .any(|dir| Path::new(dir).join(program).exists());
    if !is {
        missing(package);
    }
    is
}

fn missing(package: &str) {
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|value| value == "1");
    assert!(!required, "apt-get install {package}");
    println!("SKIP client: apt-get install {package}");
}

/// Has h2load make `requests` requests for `a.test`, `streams` at a time on each of four connections.
pub(crate) fn h2load(lab: &Lab, url: &str, requests: u32, streams: u32) {
    let (requests, streams) = (requests.to_string(), streams.to_string());
    let words = [
        "timeout",
        "60",
        "h2load",
        "-n",
        &requests,
        "-c",
        "4",
        "-m",
        &streams,
        "-H",
        ":authority: a.test",
        url,
    ];
    let said = lab.client.output(&words);
    let text = String::from_utf8_lossy(&said.stdout);
    let all = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    assert!(text.contains(&all), "{text}");
}

pub(crate) fn has_grpcio() -> bool {
    let found = Command::new(PYTHON).args(["-c", "import grpc"]).output();
    let is = found.is_ok_and(|output| output.status.success());
    if !is {
        missing("python3-grpcio");
    }
    is
}

pub(crate) fn script(lab: &Lab, name: &str, text: &str) -> PathBuf {
    let path = lab.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A gRPC server on east-1, and signalbox in front of it.
fn start(lab: &Lab) -> (Server, Proc, Signalbox) {
    let health = servers::healthy(lab.host("east-1"));
    let mut command = lab.host("east-1").command(PYTHON);
    let path = script(lab, "grpc_server.py", include_str!("grpc_server.py"));
    command.arg(path).args(["[::]:80", "east-1"]);
    let server = Proc::spawn("grpc-server", command, lab.dir());
    assert!(
        eventually(SOON, || server.log().contains("serving")),
        "{}",
        server.log()
    );
    // At listeners with `routing: connection` the setting changes nothing.
    let sb = Signalbox::start(lab, &body("", &["h2c: true"], &["east-1"]));
    sb.wait_healthy(&["east-1"]);
    (health, server, sb)
}

#[lab_test]
fn grpc_calls_and_streams_pass_in_every_tier() {
    if !has_grpcio() {
        return;
    }
    let lab = cut::lab();
    let (_health, _server, sb) = start(&lab);
    let path = script(&lab, "grpc_client.py", include_str!("grpc_client.py"));
    for (at, tier) in TIERS {
        let mut command = lab.client.command(PYTHON);
        command.arg(&path).args([at, "a.test", "and wait"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.spawn().unwrap();
        let mut said = BufReader::new(client.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "all there\n", "{tier}: {}", sb.proc.log());
        let flows = sb.flows("limit=10");
        assert_eq!(flows.len(), 1, "{flows:?}");
        if !cut::lenient() {
            assert_eq!(flows[0]["tier"], tier, "{flows:?}");
        }
        client.stdin.take().unwrap().write_all(b"go on\n").unwrap();
        line.clear();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "and again\n", "{tier}");
        assert!(client.wait().unwrap().success());
        expect_none(&sb);
    }
}

#[lab_test]
fn grpc_for_an_unknown_name_is_unimplemented() {
    if !has_grpcio() {
        return;
    }
    let lab = cut::lab();
    let (_health, _server, sb) = start(&lab);
    let path = script(&lab, "grpc_client.py", include_str!("grpc_client.py"));
    let output = lab
        .client
        .output(&[PYTHON, path.to_str().unwrap(), TIERS[0].0, "nobody.test"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.starts_with("UNIMPLEMENTED"),
        "{said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        sb.metric("signalbox_refused_total{listener=\"cut\",reason=\"no_route\"}"),
        1.0
    );
}

/// Builds a program in Go, of Go's own packages and Debian's. Returns its path.
pub(crate) fn built_go(lab: &Lab, source: &str) -> String {
    let program = lab.dir().join("go-client").display().to_string();
    let mut go = Command::new("go");
    // Debian's libraries are sources under this path.
    go.env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOFLAGS", "");
    go.env("GOCACHE", lab.dir().join("go-cache"))
        .args(["build", "-o", &program])
        .arg(script(lab, "client.go", source));
    let built = go.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

mod share_5 {
    use super::*;

    /// Go's packages are large, and compiling them takes a while.
    #[lab_test]
    fn grpc_go_is_served() {
        if !has_grpcio() || !is_installed("go", "golang-google-grpc-dev golang-go") {
            return;
        }
        let lab = cut::lab();
        let (_health, _server, sb) = start(&lab);
        let program = built_go(&lab, include_str!("client.go"));
        for (at, tier) in TIERS.into_iter().chain([(BY_REQUEST, "request by request")]) {
            let output = lab.client.output(&[&program, at, "a.test"]);
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "all there\n",
                "{tier}: {}",
                sb.proc.log()
            );
        }
    }
}

#[lab_test]
fn nghttp_and_curl_are_served_by_nginx_in_every_tier() {
    if !is_installed("nghttp", "nghttp2-client") {
        return;
    }
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &body("", &[], &["east-1"]));
    sb.wait_healthy(&["east-1"]);
    for (at, tier) in TIERS {
        let words = ["nghttp", "-v", "-H", ":authority: a.test", &format!("http://{at}/")];
        let output = lab.client.output(&words);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains(":status: 200") && said.contains("host=east-1"),
            "{tier}: {said}"
        );
        let url = format!("http://{at}/");
        let answer = http::curl(
            &lab,
            "10.1.0.1",
            &["--http2-prior-knowledge", "-H", "Host: a.test", &url],
        );
        assert_eq!(http::field(&answer.body, "host"), "east-1", "{tier}: {}", answer.trace);
    }
}
