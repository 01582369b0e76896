//! From start to end: ports that are taken, stopping, a successor that takes over, and other ways to listen.

use crate::lab;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lab::exchange::Noise;
use lab::tiers::ping;
use lab::{Lab, Proc, Router, SOON, Signalbox, config, eventually, http, lab_test, servers, signalbox};

/// Flows that end with their process: cut ones continue without it (`e2e_cut_life`).
const HELD: &str = "datapath: { cut: off }\n";

const HTTP: &str = "10.1.0.1:80";
const TCP: &str = "10.1.0.1:3306";

/// Makes a route to one host.
fn web() -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    format!(
        "{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    )
}

fn refused(lab: &Lab, at: &str) -> bool {
    lab.client
        .try_connect(at)
        .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

/// The process that answers on the API.
pub(crate) fn status_pid(sb: &Signalbox) -> Option<u64> {
    let response = sb.try_get("/api/v1/status").ok()?;
    let status: serde_json::Value = serde_json::from_str(&response.body).ok()?;
    status["pid"].as_u64()
}

#[lab_test]
fn a_taken_port_stops_the_start_and_the_message_names_its_owner() {
    let lab = Lab::new();
    let file = lab.dir().join("taker.cfg");
    let text = "defaults\n mode http\n timeout client 9s\nfrontend taker\n bind 10.1.0.1:443\n";
    std::fs::write(&file, text).unwrap();
    let mut command = lab.lb.command("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    let taker = Proc::spawn("taker", command, lab.dir());
    assert!(
        eventually(SOON, || lab.client.try_connect("10.1.0.1:443").is_ok()),
        "{}",
        taker.log()
    );

    for steering in ["auto", "bind"] {
        let config = signalbox::write_config(&lab, "signalbox.yaml", &web());
        let name = format!("signalbox-{steering}");
        let mut sb = Signalbox::spawn_file(&lab, &name, &config, &["--steering", steering]);
        assert_ne!(sb.proc.exit_code(SOON), 0);
        let log = sb.proc.log();
        for part in ["10.1.0.1:443", "haproxy", &taker.pid().to_string()] {
            assert!(log.contains(part), "no `{part}` in: {log}");
        }
        assert!(refused(&lab, HTTP), "a start that failed leaves nothing behind");
    }
}

#[lab_test]
fn sigterm_lets_a_slow_transfer_finish_and_takes_nothing_new() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_server, backends) = servers::hand_over(lab.host("east-1"), "[::]:3306");
    let mut sb = Signalbox::start(
        &lab,
        &config::tcp(&format!("{HELD}timeouts: {{ shutdown: 60s }}"), &["east-1"]),
    );
    sb.wait_healthy(&["east-1"]);
    let mut client = lab.client.connect(TCP);
    client.write_all(b"give").unwrap();
    let host = backends.recv_timeout(SOON).unwrap();
    (&*host).read_exact(&mut [0; 4]).unwrap();
    let (mut sent, mut received) = (vec![0; 40 * 100_000], Vec::new());
    Noise::new(1).fill(&mut sent);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (i, part) in sent.chunks(100_000).enumerate() {
                if i == 5 {
                    sb.term();
                }
                (&*host).write_all(part).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
            host.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| client.read_to_end(&mut received).unwrap());
        // While the transfer takes its four seconds:
        assert!(
            eventually(SOON, || sb.try_get("/readyz").is_ok_and(|r| r.status == 503)),
            "readiness fails"
        );
        assert!(eventually(SOON, || refused(&lab, TCP)), "new connections are refused");
        // Connections that came just before are closed again, and so must their hosts' ends be.
        while backends.try_recv().is_ok() {}
        let alone = || {
            let status = sb.json("/api/v1/status");
            status["state"] == "draining" && status["connections"]["active"] == 1
        };
        assert!(
            eventually(Duration::from_secs(2), alone),
            "{}",
            sb.json("/api/v1/status")
        );
    });
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    drop((client, host));
    assert_eq!(sb.proc.exit_code(SOON), 0);
}

#[lab_test]
fn a_second_sigterm_or_the_shutdown_timeout_ends_at_once() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_server, backends) = servers::hand_over(lab.host("east-1"), "[::]:3306");
    for (shutdown, twice) in [("600s", true), ("2s", false)] {
        let mut sb = Signalbox::start(
            &lab,
            &config::tcp(&format!("{HELD}timeouts: {{ shutdown: {shutdown} }}"), &["east-1"]),
        );
        sb.wait_healthy(&["east-1"]);
        // Left over from asking whether connections are refused already.
        while backends.try_recv().is_ok() {}
        let client = lab.client.connect(TCP);
        let host = backends.recv_timeout(SOON).unwrap();
        ping(&client, &host);
        sb.term();
        assert!(eventually(SOON, || refused(&lab, TCP)));
        if twice {
            assert!(
                sb.proc.wait_exit(Duration::from_secs(2)).is_none(),
                "it waits for the flow"
            );
            ping(&host, &client);
            sb.term();
        }
        let code = sb.proc.exit_code(SOON);
        assert!(twice || code == 0, "{code}");
    }
}

#[lab_test]
fn a_successor_takes_over_under_load_and_old_flows_finish() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let mut old = Signalbox::start(&lab, &format!("{HELD}{}", web()));
    old.wait_healthy(&["east-1"]);
    let long = lab.client.connect(HTTP);
    let ask_long = || http::get(&long, "a.test", "/").is_ok_and(|r| r.status == 200);
    assert!(ask_long());
    let config = lab.dir().join("signalbox.yaml");
    let (taking, calls) = (AtomicBool::new(true), AtomicUsize::new(0));
    let (new, failures) = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            lab.client.run(|| {
                let mut failures = Vec::new();
                while taking.load(Ordering::SeqCst) || calls.load(Ordering::SeqCst) < 500 {
                    failures.extend(http::ask_here(HTTP, "a.test").err());
                    calls.fetch_add(1, Ordering::SeqCst);
                }
                failures
            })
        });
        let more = |n| {
            let before = calls.load(Ordering::SeqCst);
            assert!(
                eventually(SOON, || calls.load(Ordering::SeqCst) > before + n),
                "the caller is stuck"
            );
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            more(100);
            let new = Signalbox::spawn_file(&lab, "successor", &config, &["--takeover"]);
            let answers = || status_pid(&new) == Some(u64::from(new.proc.pid()));
            assert!(eventually(SOON, answers), "the successor answers: {}", new.proc.log());
            more(200);
            new
        }));
        taking.store(false, Ordering::SeqCst);
        let failures: Vec<_> = caller.join().unwrap();
        (
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            failures,
        )
    });
    let calls = calls.load(Ordering::SeqCst);
    assert!(
        failures.is_empty(),
        "{} of {calls} failed, the first: {}",
        failures.len(),
        failures[0]
    );
    assert!(
        old.proc.wait_exit(Duration::from_secs(1)).is_none(),
        "the old process stays for its flow"
    );
    assert!(ask_long(), "which goes on");
    assert_eq!(new.json("/api/v1/status")["pid"], new.proc.pid());
    assert_eq!(new.get("/readyz").0, 200);
    drop(long);
    assert_eq!(old.proc.exit_code(SOON), 0, "and ends with it");
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200, "its end disturbs nobody");
    assert_eq!(
        new.unix("POST", "/api/v1/reload", "").status,
        200,
        "the admin socket is the successor's"
    );
}

#[lab_test]
fn every_way_of_steering_serves_the_same() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    for (steering, shown) in [("bind", "bind"), ("sk-lookup", "sk_lookup")] {
        for workers in ["1", "2"] {
            let mut sb = Signalbox::start_with(&lab, &web(), &["--steering", steering, "--workers", workers]);
            sb.wait_healthy(&["east-1"]);
            assert_eq!(sb.json("/api/v1/status")["steering"], shown);
            for at in [HTTP, "[fd00:1::1]:80"] {
                for _ in 0..50 {
                    assert_eq!(http::ask(&lab, at, "a.test").field("host"), "east-1");
                }
            }
            let tls = http::curl(&lab, "10.1.0.1", &["https://a.test/"]);
            assert_eq!(tls.code, 0, "{}", tls.trace);
            let looked_up = sb.metric("signalbox_sk_lookup_total{listener=\"http\"}");
            assert_eq!(looked_up >= 100.0, shown == "sk_lookup", "{steering}: {looked_up}");
            sb.term();
            assert_eq!(sb.proc.exit_code(SOON), 0);
            assert!(refused(&lab, HTTP), "{steering} leaves nothing behind");
        }
    }
}

#[lab_test]
fn a_killed_process_leaves_nothing_that_hinders_its_successor() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    for _ in 0..3 {
        let mut sb = Signalbox::start(&lab, &web());
        sb.wait_healthy(&["east-1"]);
        assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
        sb.kill9();
        assert!(eventually(SOON, || refused(&lab, HTTP)));
    }
}

#[lab_test]
fn a_listener_on_a_prefix_answers_on_every_address_of_it() {
    if std::env::var("SIGNALBOX_E2E_STEERING").is_ok_and(|s| s == "bind") {
        println!("SKIP a_listener_on_a_prefix_answers_on_every_address_of_it: sockets are bound to single addresses");
        return;
    }
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let clusters = config::cluster("east", &[], &["east-1"]) + &config::cluster("west", &[], &["west-1"]);
    let body = format!(
        r#"listeners:
  - {{ name: many, protocol: http, listen: ["10.9.0.0/24:80"], cluster: east }}
  - {{ name: one,  protocol: http, listen: ["10.9.0.7:80"], cluster: west }}
clusters:
{clusters}"#
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "west-1"]);
    for (address, host) in [("10.9.0.1", "east-1"), ("10.9.0.254", "east-1"), ("10.9.0.7", "west-1")] {
        assert_eq!(
            http::ask(&lab, &format!("{address}:80"), "any.test").field("host"),
            host,
            "{address}"
        );
    }
    assert!(refused(&lab, "10.9.0.1:81") && refused(&lab, HTTP));
}

/// A thread of a process that a debugger holds, until dropped.
struct Held(libc::pid_t);

impl Held {
    fn new(thread: libc::pid_t) -> Self {
        // SAFETY: requests without memory arguments; the thread is a child's.
        unsafe {
            assert_eq!(
                libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0),
                0,
                "{}",
                std::io::Error::last_os_error()
            );
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
        }
        Self(thread)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

/// The thread of a process that has this name.
fn thread(pid: u32, name: &str) -> libc::pid_t {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let found = threads.map(|entry| entry.unwrap().path()).find(|path| {
        let named = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        named.trim() == name
    });
    let path = found.unwrap_or_else(|| panic!("no thread {name}"));
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

#[lab_test]
fn connections_never_wait_for_a_busy_worker_if_another_is_free() {
    for steering in ["auto", "bind"] {
        let lab = Lab::new();
        let _router = Router::start(&lab, "east-1");
        let sb = Signalbox::start_with(&lab, &web(), &["--steering", steering, "--workers", "2"]);
        sb.wait_healthy(&["east-1"]);
        for busy in ["worker-0", "worker-1"] {
            let held = Held::new(thread(sb.proc.pid(), busy));
            for n in 0..20 {
                let answer = http::ask(&lab, HTTP, "a.test");
                assert_eq!(answer.status, 200, "{steering}, {busy} held, connection {n}");
            }
            drop(held);
        }
    }
}

/// The first half of the file would be a configuration, too: one without the route.
#[lab_test]
fn a_file_that_is_still_being_written_is_not_applied() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let config = signalbox::write_config(&lab, "signalbox.yaml", &web());
    let sb = Signalbox::start_file(&lab, "signalbox", &config, &[]);
    sb.wait_healthy(&["east-1"]);
    let text = std::fs::read_to_string(&config).unwrap();
    let (head, tail) = text.split_at(text.find("  - { host: a.test").unwrap());
    let reloads = || sb.metric("signalbox_config_reloads_total");
    let before = reloads();
    let mut file = std::fs::File::create(&config).unwrap();
    file.write_all(head.as_bytes()).unwrap();
    // Ten times as long as changes are collected.
    for _ in 0..20 {
        assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(reloads(), before);
    file.write_all(tail.replace("a.test", "b.test").as_bytes()).unwrap();
    drop(file);
    assert!(eventually(SOON, || reloads() == before + 1.0));
    assert_eq!(http::ask(&lab, HTTP, "b.test").status, 200);
}
