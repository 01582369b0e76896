//! REDbot, a lint for HTTP, asks for a file of nginx with and without the balancer: conditional, partial and compressed
//! answers are just as good through it.

use std::collections::BTreeSet;

use signalbox_lab::router;

use super::program;
use crate::http::request::scene::HTTP;
use crate::lab::{Lab, Proc, SOON, Signalbox, config, eventually, privileged};

const PROGRAM: &str = "SIGNALBOX_REDBOT";

/// Notes of REDbot on an answer.
fn notes(ns: &crate::lab::Ns, program: &std::path::Path, url: &str) -> BTreeSet<String> {
    let output = ns.command(program).args(["-o", "text", url]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("HTTP/1.1 200"), "{url}: {text}");
    // The file's age is another one each time.
    let is_note = |line: &&str| line.trim_start().starts_with("* ") && !line.ends_with(" ago.");
    text.lines()
        .filter(is_note)
        .map(|line| line.trim().to_owned())
        .collect()
}

#[test]
fn redbot_finds_answers_as_good_as_the_hosts_own() {
    const TEST: &str = "redbot_finds_answers_as_good_as_the_hosts_own";
    if !privileged(TEST) {
        return;
    }
    let Some(program) = program(TEST, PROGRAM) else { return };
    let lab = Lab::new();
    let dir = lab.dir();
    std::fs::write(dir.join("page.html"), "<p>A page of some length.</p>\n".repeat(1000)).unwrap();
    let pem = router::certificate(dir, "host", &["a.test"]).unwrap();
    let http = format!(
        "  gzip on;\n  server {{ listen 80; root {}; default_type text/html; add_header Cache-Control max-age=60; \
         add_header Vary Accept-Encoding; }}\n  server {{ listen 1936; return 200; }}\n",
        dir.display()
    );
    std::fs::write(
        dir.join("nginx.conf"),
        router::nginx(dir.display(), "host", pem.display(), &http),
    )
    .unwrap();
    let mut command = lab.host("east-1").command("nginx");
    command.arg("-c").arg(dir.join("nginx.conf"));
    let nginx = Proc::spawn("nginx", command, dir);
    assert!(
        eventually(SOON, || lab.lb.try_connect("10.2.0.2:80").is_ok()),
        "{}",
        nginx.log()
    );
    let clusters = config::cluster("east", &[], &["east-1"]);
    let body = format!(
        "listeners:\n  - {{ name: http, protocol: http, routing: request, listen: [\"{HTTP}\"] }}\n\
         clusters:\n{clusters}unmatched: {{ cluster: east }}\n"
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    let direct = notes(&lab.lb, &program, "http://10.2.0.2/page.html");
    let through = notes(&lab.client, &program, "http://10.1.0.1/page.html");
    assert!(direct.len() > 5, "{direct:?}");
    assert_eq!(through, direct);
}
