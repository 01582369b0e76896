//! Real clients: each is routed in the kernel, and gets the answer of its name's host.

use crate::lab;

use lab::cut::{self, CutLab};
use lab::{Router, SOON, Signalbox, eventually, http};

use crate::http::h2c::clients::{built_go, is_installed, script};

use super::{PEEK, exits, start_with};

/// How often the program has delivered first data to a host while `work` was done.
fn delivered(sb: &Signalbox, work: impl FnOnce()) -> u64 {
    let before = exits(sb, "delivered");
    work();
    exits(sb, "delivered") - before
}

/// A router host of `a.test`, and signalbox in front of it.
fn begin(lab: &CutLab) -> (Router, Signalbox) {
    let router = Router::start(lab, "east-1");
    let sb = start_with(lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    (router, sb)
}

fn text(output: std::process::Output) -> String {
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn curl_openssl_and_python_are_routed_in_the_kernel() {
    let Some(lab) = super::lab("curl_openssl_and_python_are_routed_in_the_kernel") else {
        return;
    };
    let (_router, sb) = begin(&lab);
    for url in ["http://a.test/", "https://a.test/"] {
        let count = delivered(&sb, || {
            let answer = http::curl(&lab, "10.1.0.1", &["-k", url]);
            assert!(answer.body.contains("host=east-1"), "{url}: {}", answer.trace);
        });
        assert_eq!(count, 1, "{url}");
    }
    let count = delivered(&sb, || {
        let mut command = lab.client.command("openssl");
        command.args(["s_client", "-connect", "10.1.0.1:443", "-servername", "a.test"]);
        let shown = text(command.stdin(std::process::Stdio::null()).output().unwrap());
        assert!(shown.contains("BEGIN CERTIFICATE"), "{shown}");
    });
    assert_eq!(count, 1, "openssl");
    let count = delivered(&sb, || {
        let program = "import socket, ssl, urllib.request as r\n\
                       c, g = ssl._create_unverified_context(), socket.getaddrinfo\n\
                       socket.getaddrinfo = lambda h, *a, **k: g('10.1.0.1', *a, **k)\n\
                       print(r.urlopen('http://a.test/', timeout=20).read())\n\
                       print(r.urlopen('https://a.test/', timeout=20, context=c).read())\n";
        let shown = text(lab.client.command("python3").args(["-c", program]).output().unwrap());
        assert_eq!(shown.matches("host=east-1").count(), 2, "{shown}");
    });
    assert_eq!(count, 2, "python");
}

const URLS: [&str; 2] = ["http://a.test/", "https://a.test/"];

/// Runs a client that asks for both URLs.
fn asks_for_both(lab: &CutLab, sb: &Signalbox, words: &[&str]) {
    let count = delivered(sb, || {
        let shown = text(lab.client.output(&[words, &URLS].concat()));
        assert_eq!(shown.matches("host=east-1").count(), 2, "{shown}");
    });
    assert_eq!(count, 2, "{words:?}");
}

#[test]
fn java_is_routed_in_the_kernel() {
    let Some(lab) = super::lab("java_is_routed_in_the_kernel") else {
        return;
    };
    if !is_installed("java", "default-jre-headless") {
        return;
    }
    let (_router, sb) = begin(&lab);
    let names = script(&lab, "names", "10.1.0.1 a.test\n");
    let source = script(&lab, "Client.java", include_str!("programs/Client.java"));
    // The certificate is also for another name.
    let words = [
        "java",
        &format!("-Djdk.net.hosts.file={}", names.display()),
        "-Djdk.internal.httpclient.disableHostnameVerification=true",
        source.to_str().unwrap(),
    ];
    asks_for_both(&lab, &sb, &words);
}

mod share_5 {
    use super::*;

    /// Compiling Go's packages takes a while.
    #[test]
    fn go_is_routed_in_the_kernel() {
        let Some(lab) = super::super::lab("go_is_routed_in_the_kernel") else {
            return;
        };
        if !is_installed("go", "golang-go") {
            return;
        }
        let program = built_go(&lab, include_str!("programs/client.go"));
        let (_router, sb) = begin(&lab);
        asks_for_both(&lab, &sb, &[&program, "10.1.0.1"]);
    }
}

/// A browser opens connections to spare, and sends hellos with post-quantum keys, in two segments.
#[test]
fn a_browser_is_routed_in_the_kernel() {
    let Some(lab) = super::lab("a_browser_is_routed_in_the_kernel") else {
        return;
    };
    let (_router, sb) = begin(&lab);
    for url in ["http://a.test/", "https://a.test/"] {
        let count = delivered(&sb, || {
            let profile = lab.dir().join("profile");
            let mut command = lab.client.command("chromium");
            command.args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--ignore-certificate-errors",
                "--no-proxy-server",
                "--host-resolver-rules=MAP a.test 10.1.0.1",
                "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
                &format!("--user-data-dir={}", profile.display()),
                "--dump-dom",
                url,
            ]);
            let shown = text(command.output().unwrap());
            assert!(shown.contains("host=east-1"), "{url}: {shown}");
        });
        assert!(count >= 1, "{url}: {}", sb.get("/metrics").1);
    }
    assert!(eventually(SOON, || sb.host("east-1")["active_connections"] == 0));
}
