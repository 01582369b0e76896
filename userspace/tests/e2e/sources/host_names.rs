//! Hosts that are given by hostnames: a real name server whose answers change, and that dies.

use crate::lab;

use std::fmt::Write as _;
use std::net::TcpStream;

use lab::services::{Answerer, echo, greeter, greeting};
use lab::{Lab, Proc, SOON, Server, Signalbox, available, eventually, privileged};
use nix::sys::signal::Signal;

const BODY: &str = r#"listeners:
  - { name: db, protocol: tcp, listen: ["10.1.0.1:3306"], cluster: east }
clusters:
  - name: east
    balance: round-robin
    resolve: 2s
    health: { tcp: { port: 3306 }, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }
    hosts:
      - { name: db, address: db.test, tcp: 3306 }
      - { name: later, address: later.test, tcp: 3306 }
"#;

/// A name server at 10.3.0.3 that has its names from a file.
struct NameServer {
    lab: Lab,
    proc: Proc,
}

impl NameServer {
    fn start(names: &str) -> Self {
        let lab = Lab::new();
        std::fs::write(lab.dir().join("names"), names).unwrap();
        let proc = spawn(&lab);
        Self { lab, proc }
    }

    /// Gives other answers.
    fn change(&self, names: &str) {
        std::fs::write(self.lab.dir().join("names"), names).unwrap();
        self.proc.signal(Signal::SIGHUP);
    }

    fn signalbox(&self, body: &str) -> Signalbox {
        signalbox(&self.lab, body, 1)
    }

    fn greeters(&self) -> [Server; 3] {
        ["east-1", "east-2", "east-3"].map(|name| greeter(self.lab.host(name), "[::]:3306", name))
    }

    fn connect(&self) -> (TcpStream, String) {
        let stream = self.lab.client.connect("10.1.0.1:3306");
        let name = greeting(&stream);
        (stream, name)
    }

    /// Names of the hosts that answer eight connections, in order.
    fn answering(&self) -> Vec<String> {
        let mut names: Vec<_> = (0..8).map(|_| self.connect().1).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Starts signalbox on a machine that has the name server at 10.3.0.3, and tries it so many times in a round.
fn signalbox(lab: &Lab, body: &str, times: usize) -> Signalbox {
    let conf = lab.dir().join("resolv.conf");
    std::fs::write(&conf, "nameserver 10.3.0.3\n".repeat(times)).unwrap();
    let mount = format!("mount --bind {} /etc/resolv.conf && exec \"$0\" \"$@\"", conf.display());
    Signalbox::start_under(lab, body, &["unshare", "--mount", "sh", "-c", &mount])
}

fn spawn(lab: &Lab) -> Proc {
    let mut command = lab.host("west-2").command("dnsmasq");
    command.args(["--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null"]);
    command.args(["--user=root", "--pid-file=", "--no-resolv", "--no-hosts"]);
    command.args(["--local=/test/", "--local-ttl=1"]);
    command.arg(format!("--addn-hosts={}", lab.dir().join("names").display()));
    Proc::spawn("dnsmasq", command, lab.dir())
}

fn is_ready(test: &str) -> bool {
    privileged(test) && available(test, &[("dnsmasq", "dnsmasq-base")])
}

fn expect_names(sb: &Signalbox, wanted: &[&str]) {
    let names = || {
        let answer = sb.json("/api/v1/hosts");
        let hosts = answer["hosts"].as_array().cloned().unwrap_or_default();
        let here = hosts.iter().filter(|host| host["draining"] == false);
        let mut names: Vec<_> = here.map(|host| host["name"].as_str().unwrap().to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert!(
        eventually(SOON, || names() == wanted),
        "{:?}\n{}",
        names(),
        sb.proc.log()
    );
}

#[test]
fn hosts_follow_their_hostname_and_stay_when_it_dies() {
    if !is_ready("hosts_follow_their_hostname_and_stay_when_it_dies") {
        return;
    }
    let mut dns = NameServer::start("10.2.0.2 db.test\n10.2.0.3 db.test\n");
    let _greeters = dns.greeters();
    let sb = dns.signalbox(BODY);
    expect_names(&sb, &["db-10.2.0.2", "db-10.2.0.3", "later"]);
    sb.wait_healthy(&["db-10.2.0.2", "db-10.2.0.3"]);
    assert_eq!(dns.answering(), ["east-1", "east-2"]);
    let no_name = || sb.host("later")["last_check"]["detail"] == "10.3.0.3 says that there is no such name";
    assert!(eventually(SOON, no_name), "{}", sb.host("later"));
    let table = String::from_utf8(sb.cli(&["hosts"]).stdout).unwrap();
    assert!(table.contains("later.test") && table.contains("unresolved"), "{table}");
    let top = || String::from_utf8(sb.cli(&["top", "--once"]).stdout).unwrap();
    let reason = "east/later is unresolved (10.3.0.3 says that there is no such name)";
    assert!(eventually(SOON, || top().contains(reason)), "{}", top());

    // One address goes, another comes: the host of the third stays as it was, and keeps its connections.
    let kept = std::iter::repeat_with(|| dns.connect());
    let (kept, _) = kept.take(8).find(|(_, name)| name == "east-1").unwrap();
    let stays = sb.host("db-10.2.0.3")["total_connections"].as_u64().unwrap();
    assert!(stays > 0);
    dns.change("10.2.0.3 db.test\n10.2.0.4 db.test\n");
    expect_names(&sb, &["db-10.2.0.3", "db-10.2.0.4", "later"]);
    sb.wait_healthy(&["db-10.2.0.3", "db-10.2.0.4"]);
    assert_eq!(dns.answering(), ["east-2", "east-3"]);
    assert!(sb.host("db-10.2.0.3")["total_connections"].as_u64().unwrap() > stays);
    echo(&kept, b"goes on").unwrap();

    // The name goes, then the server: the addresses stay.
    dns.change("");
    let not_resolved = |why: &[&str]| {
        let said = || {
            sb.host("db-10.2.0.4")["not_resolved"]
                .as_str()
                .is_some_and(|said| why.iter().any(|why| said.contains(why)))
        };
        assert!(eventually(SOON, said), "{}\n{}", sb.host("db-10.2.0.4"), sb.proc.log());
    };
    not_resolved(&["no such name"]);
    dns.proc.kill();
    // A question that was under way when the server died is not refused.
    not_resolved(&["10.3.0.3: Connection refused", "10.3.0.3 does not answer"]);
    assert_eq!(dns.answering(), ["east-2", "east-3"]);
    let table = String::from_utf8(sb.cli(&["hosts"]).stdout).unwrap();
    assert!(table.contains("healthy, name not resolved"), "{table}");
    assert!(sb.metric("signalbox_source_failures_total{source=\"dns:east/db.test\"}") >= 2.0);
    let logged = sb.proc.log().matches("Hostname of hosts is not resolved").count();
    assert_eq!(logged, 2, "once for each name\n{}", sb.proc.log());

    // A process that starts in between has them from the one before.
    let is_on_disk = || {
        let state = std::fs::read(dns.lab.dir().join("state.redb")).unwrap_or_default();
        state.windows(8).any(|bytes| bytes == b"10.2.0.4")
    };
    assert!(eventually(SOON, is_on_disk), "{}", sb.proc.log());
    drop(sb);
    let sb = dns.signalbox(BODY);
    sb.wait_healthy(&["db-10.2.0.3", "db-10.2.0.4"]);
    assert_eq!(dns.answering(), ["east-2", "east-3"]);

    // The server comes back, with another answer.
    std::fs::write(dns.lab.dir().join("names"), "10.2.0.2 db.test later.test\n").unwrap();
    dns.proc = spawn(&dns.lab);
    expect_names(&sb, &["db-10.2.0.2", "later-10.2.0.2"]);
    assert!(eventually(SOON, || dns.answering() == ["east-1"]));
}

#[test]
fn an_answer_too_large_for_a_datagram_comes_by_tcp() {
    if !is_ready("an_answer_too_large_for_a_datagram_comes_by_tcp") {
        return;
    }
    let mut names = String::new();
    for last in 1..=60 {
        let _ = writeln!(names, "10.9.9.{last} db.test\nfd00:9::{last} db.test");
    }
    let dns = NameServer::start(&names);
    let sb = dns.signalbox(BODY);
    let count = || sb.json("/api/v1/hosts")["hosts"].as_array().map_or(0, Vec::len);
    assert!(eventually(SOON, || count() == 121), "{}\n{}", count(), sb.proc.log());
    assert_eq!(sb.host("db-fd00-9--60")["address"], "fd00:9::60");
}

#[test]
fn addresses_of_one_kind_do_not_wait_for_the_other() {
    if !privileged("addresses_of_one_kind_do_not_wait_for_the_other") {
        return;
    }
    let lab = Lab::new();
    let _dns = Answerer::with(lab.host("west-2"), "10.3.0.3:53", |question| {
        let asked = question.get(12..)?;
        let head = [&question[..2], &[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]].concat();
        let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 10, 2, 0, 2];
        let is_v4 = asked.ends_with(&[0, 1, 0, 1]);
        is_v4.then(|| [&head, asked, &record[..]].concat())
    });
    // The questions for AAAA have failed after 40 seconds.
    let sb = signalbox(&lab, BODY, 10);
    expect_names(&sb, &["db-10.2.0.2", "later-10.2.0.2"]);
}
