//! A restart of the unit: systemd keeps the listening sockets, and clients wait for the next process. The test is systemd.

use nix::sys::signal::Signal;

use crate::lab;
use lab::service_manager::ServiceManager;
use lab::signalbox::write_config;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

const HTTP: &str = "10.1.0.1:80";

fn body() -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    format!(
        "{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    )
}

/// Starts it as a unit's process, whose descriptors the manager passes.
fn spawn(lab: &Lab, manager: &ServiceManager, body: &str, words: &[&str]) -> Signalbox {
    let config = write_config(lab, "signalbox.yaml", body);
    manager.start(|under| Signalbox::spawn_under(lab, "signalbox", &config, words, under))
}

/// Ends it as systemd does for a job of this kind.
fn end(manager: &ServiceManager, kind: &str, sb: &mut Signalbox) {
    manager.begin_job(kind);
    sb.proc.signal(Signal::SIGTERM);
    assert_eq!(sb.proc.exit_code(SOON), 0, "{}", sb.proc.log());
}

fn is_refused(lab: &Lab) -> bool {
    let connected = lab.client.run(|| std::net::TcpStream::connect(HTTP));
    connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// A restart with sockets that are opened with `words`; the unit's next process is started with `words_later`.
fn clients_wait(words: &[&str], words_later: &[&str], descriptors: usize) {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let manager = ServiceManager::new(&lab);
    let mut sb = spawn(&lab, &manager, &body(), words).wait_ready();
    sb.wait_healthy(&["east-1"]);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    assert_eq!(manager.kept(), 0);

    end(&manager, "restart", &mut sb);
    assert_eq!(manager.kept(), descriptors);
    let waiting: Vec<_> = (0..20).map(|_| lab.client.connect(HTTP)).collect();
    let mut sb = spawn(&lab, &manager, &body(), words_later).wait_ready();
    sb.wait_healthy(&["east-1"]);
    for client in &waiting {
        let answer = http::get(client, "a.test", "/").unwrap();
        assert_eq!(answer.status, 200);
    }
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    // The sockets are the process' alone from now on.
    assert!(eventually(SOON, || manager.kept() == 0), "{}", manager.kept());

    drop(waiting);
    end(&manager, "stop", &mut sb);
    assert_eq!(manager.kept(), 0);
    assert!(is_refused(&lab));
}

#[lab_test]
fn clients_wait_for_a_process_that_steers() {
    // A socket of each address family, and the link. More workers share more sockets.
    clients_wait(
        &["--steering", "sk-lookup", "--workers", "2"],
        &["--steering", "sk-lookup", "--workers", "10"],
        3,
    );
}

#[lab_test]
fn clients_wait_for_a_process_that_binds() {
    // Two ports of an address of each address family.
    clients_wait(
        &["--steering", "bind", "--workers", "1"],
        &["--steering", "bind", "--workers", "10"],
        4,
    );
}

#[lab_test]
fn sockets_of_another_way_to_steer_are_closed() {
    for (before, after) in [("bind", "sk-lookup"), ("sk-lookup", "bind")] {
        let lab = Lab::new();
        let _router = Router::start(&lab, "east-1");
        let manager = ServiceManager::new(&lab);
        let mut sb = spawn(&lab, &manager, &body(), &["--steering", before]).wait_ready();
        end(&manager, "restart", &mut sb);
        assert_ne!(manager.kept(), 0);
        let sb = spawn(&lab, &manager, &body(), &["--steering", after]);
        // Before it looks whether addresses are free.
        assert!(eventually(SOON, || manager.kept() == 0), "{}", manager.kept());
        let mut sb = sb.wait_ready();
        sb.wait_healthy(&["east-1"]);
        assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
        end(&manager, "stop", &mut sb);
        assert!(is_refused(&lab), "{before}, {after}");
    }
}

#[lab_test]
fn a_restart_with_a_wrong_file_leaves_nothing_open() {
    let lab = Lab::new();
    let manager = ServiceManager::new(&lab);
    let mut sb = spawn(&lab, &manager, &body(), &[]).wait_ready();
    end(&manager, "restart", &mut sb);
    let client = lab.client.connect(HTTP);
    let mut sb = spawn(&lab, &manager, "listners: 7\n", &[]);
    assert_eq!(sb.proc.exit_code(SOON), 2, "{}", sb.proc.log());
    assert_eq!(manager.kept(), 0);
    assert!(is_refused(&lab));
    assert!(http::get(&client, "a.test", "/").is_err());
}

#[lab_test]
fn without_an_answer_of_systemd_an_end_is_a_stop() {
    let lab = Lab::new();
    let manager = ServiceManager::new(&lab);
    let mut sb = spawn(&lab, &manager, &body(), &[]).wait_ready();
    manager.break_systemctl();
    sb.proc.signal(Signal::SIGTERM);
    assert_eq!(sb.proc.exit_code(SOON), 0, "{}", sb.proc.log());
    let log = sb.proc.log();
    assert!(log.contains("does not say whether this is a restart"), "{log}");
    assert_eq!(manager.kept(), 0);
    assert!(is_refused(&lab));
}

#[lab_test]
fn where_systemd_keeps_too_few_connections_are_refused() {
    let lab = Lab::new();
    let manager = ServiceManager::new(&lab);
    manager.limit(2);
    let mut sb = spawn(&lab, &manager, &body(), &[]).wait_ready();
    end(&manager, "restart", &mut sb);
    let log = sb.proc.log();
    assert!(log.contains("it has 2 of 3: FileDescriptorStoreMax="), "{log}");
    assert!(eventually(SOON, || manager.kept() == 0), "{}", manager.kept());
    assert!(is_refused(&lab));
}

#[lab_test]
fn an_address_may_become_that_of_the_whole_port() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let manager = ServiceManager::new(&lab);
    let words = ["--steering", "bind"];
    let mut sb = spawn(&lab, &manager, &body(), &words).wait_ready();
    end(&manager, "restart", &mut sb);
    let whole = body().replace("10.1.0.1:80", "0.0.0.0:80");
    assert_ne!(whole, body());
    let sb = spawn(&lab, &manager, &whole, &words);
    assert!(eventually(SOON, || manager.kept() == 0), "{}", manager.kept());
    let sb = sb.wait_ready();
    sb.wait_healthy(&["east-1"]);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
}

#[lab_test]
fn the_shield_stands_in_front_of_sockets_that_are_kept() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let manager = ServiceManager::new(&lab);
    let body = format!("shield: {{ deny: [\"10.1.0.2\"] }}\n{}", body());
    let mut sb = spawn(&lab, &manager, &body, &[]).wait_ready();
    let is_denied = || {
        let address = HTTP.parse().unwrap();
        let limit = std::time::Duration::from_secs(1);
        lab.client
            .run(|| std::net::TcpStream::connect_timeout(&address, limit))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
    };
    assert!(is_denied());
    end(&manager, "restart", &mut sb);
    assert_ne!(manager.kept(), 0);
    assert!(is_denied(), "the shield has gone with its process");
    let _sb = spawn(&lab, &manager, &body, &[]).wait_ready();
    assert!(is_denied());
}
