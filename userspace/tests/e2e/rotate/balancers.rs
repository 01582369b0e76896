//! A set of balancers rotates together.

use crate::lab;

use lab::{Lab, Router, SOON, Signalbox, config, cut, eventually, lab_test};
use serde_json::Value;

use super::{cli, refusal};

/// An authority, and certificates that it has signed, in the lab's directory.
fn certify(lab: &Lab) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=lab -keyout ca.key -out ca.pem \
         -addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign\n\
         sign() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$1 -keyout $1.key -out $1.csr\n\
         echo subjectAltName=IP:10.2.0.4 > $1.ext\n\
         openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $1.ext -out $1.pem; }\n\
         sign second; sign first\n\
         openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=other -keyout other.key -out other.pem";
    let output = std::process::Command::new("sh")
        .args(["-ec", script])
        .current_dir(lab.dir())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[lab_test]
fn a_set_of_balancers_rotates_together_or_says_who_did_not() {
    let lab = cut::lab();
    certify(&lab);
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let dir = lab.dir().display();
    let clusters = format!(
        "clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::cluster("east", &[], &["east-1", "east-2"])
    );
    // The second acts as another machine; a client that may change something there shows a certificate.
    let second = lab.dir().join("second.yaml");
    let text = format!(
        "version: 1\nadmin: {{ listen: \"10.2.0.4:8089\", socket: {dir}/second.sock, read: open, \
         tls: {{ cert: {dir}/second.pem, key: {dir}/second.key, client_ca: {dir}/ca.pem }} }}\n\
         store: {{ path: {dir}/second.redb }}\nlisteners:\n  - {{ name: http, protocol: http, listen: [\"10.2.0.4:8080\"] }}\n{clusters}"
    );
    std::fs::write(&second, text).unwrap();
    let spawn = || {
        let mut command = lab.host("east-3").command(crate::lab::signalbox::binary());
        command.arg("run").arg("-f").arg(&second);
        lab::Proc::spawn("second", command, lab.dir())
    };
    let mut other = spawn();
    let curl = |words: &[&str]| {
        let mut all = vec!["curl", "-s", "--cacert", "ca.pem"];
        all.extend(words);
        let mut command = lab.lb.command(all[0]);
        command.args(&all[1..]).current_dir(lab.dir());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let url = "https://10.2.0.4:8089";
    let hosts = format!("{url}/api/v1/hosts");
    let there = || {
        let hosts: Value = serde_json::from_str(&curl(&[&hosts])).unwrap_or_default();
        lab::signalbox::find(&hosts["hosts"], "name", "east-1")
    };
    assert!(eventually(SOON, || there()["health"] == "healthy"), "{}", other.log());

    let set = format!(
        "balancers:\n  - {{ url: \"{url}\", ca: {dir}/ca.pem, cert: {dir}/first.pem, key: {dir}/first.key }}\n"
    );
    let sb = Signalbox::start(&lab, &format!("{set}{}{clusters}", config::WEB_LISTENERS));
    sb.wait_healthy(&["east-1", "east-2"]);
    let said = cli(&sb, &["rotate", "out", "east-1", "--all-balancers"]);
    assert!(
        said.contains(url) && said.matches("out of rotation: host:east/east-1").count() == 2,
        "{said}"
    );
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    assert_eq!(there()["out_of_rotation"], "host:east/east-1");
    cli(&sb, &["rotate", "in", "east-1", "--all-balancers"]);
    assert_eq!(there()["out_of_rotation"], Value::Null);

    // Without a certificate, and with one that no authority has signed.
    let post = ["-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "-d", "{}"];
    let reload = format!("{url}/api/v1/reload");
    let code = |more: &[&str]| curl(&[&post[..], more, &[&reload]].concat());
    assert_eq!(code(&[]), "403");
    assert_eq!(code(&["--cert", "first.pem", "--key", "first.key"]), "200");
    assert_eq!(
        code(&["--cert", "other.pem", "--key", "other.key"]),
        "000",
        "the handshake fails"
    );

    // A balancer that does not answer is named; the rotation is done here.
    other.kill();
    let why = refusal(&sb, &["rotate", "out", "east-1", "--all-balancers"]);
    assert!(why.contains(url) && why.contains("does not answer"), "{why}");
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    other = spawn();
    assert!(eventually(SOON, || there()["health"] == "healthy"), "{}", other.log());
    assert_eq!(there()["out_of_rotation"], Value::Null);
    cli(&sb, &["rotate", "out", "east-1", "--all-balancers"]);
    assert_eq!(
        there()["out_of_rotation"],
        "host:east/east-1",
        "asked again, all have done it"
    );
    // A balancer that refuses is named, too.
    let why = refusal(&sb, &["rotate", "out", "east-2", "--all-balancers"]);
    assert!(why.contains(url) && why.contains("would be left without"), "{why}");
}
