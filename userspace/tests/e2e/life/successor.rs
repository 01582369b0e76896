//! A successor that the running process starts, as a unit of systemd has it: the test is the service manager.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab;
use crate::life::lifecycle::status_pid;
use lab::service_manager::ServiceManager;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

const HTTP: &str = "10.1.0.1:80";

/// Flows that end with their process.
const HELD: &str = "datapath: { cut: off }\n";

fn body() -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    format!(
        "{HELD}{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    )
}

/// A process that is no child of the test's: it ends with the test.
struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.cast_signed()), Signal::SIGKILL);
    }
}

fn serving_pid(sb: &Signalbox) -> Option<u32> {
    u32::try_from(status_pid(sb)?).ok()
}

fn start(lab: &Lab, manager: &ServiceManager) -> Signalbox {
    manager.start(|under| Signalbox::start_under(lab, &body(), under))
}

#[lab_test]
fn a_running_process_starts_its_successor_and_refuses_no_client() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let manager = ServiceManager::new(&lab);
    let mut old = start(&lab, &manager);
    old.wait_healthy(&["east-1"]);
    let long = lab.client.connect(HTTP);
    let ask_long = || http::get(&long, "a.test", "/").is_ok_and(|r| r.status == 200);
    assert!(ask_long());
    let first = old.proc.pid();
    let (calling, calls) = (AtomicBool::new(true), AtomicUsize::new(0));
    let (second, failures) = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            lab.client.run(|| {
                let mut failures = Vec::new();
                while calling.load(Ordering::SeqCst) || calls.load(Ordering::SeqCst) < 200 {
                    failures.extend(http::ask_here(HTTP, "a.test").err());
                    calls.fetch_add(1, Ordering::SeqCst);
                }
                failures
            })
        });
        old.proc.signal(Signal::SIGUSR2);
        let mut second = None;
        let is_replaced = eventually(4 * SOON, || {
            second = serving_pid(&old).filter(|pid| *pid != first);
            second.is_some()
        });
        calling.store(false, Ordering::SeqCst);
        let failures: Vec<_> = caller.join().unwrap();
        assert!(is_replaced, "no successor: {}", old.proc.log());
        (second.unwrap(), failures)
    });
    let _second = Orphan(second);
    // systemd waits only for its own children.
    let status = std::fs::read_to_string(format!("/proc/{second}/status")).unwrap();
    let is_child = status.lines().any(|line| line == format!("PPid:\t{first}"));
    assert!(!is_child, "{status}");
    assert!(
        failures.is_empty(),
        "{} failed, the first: {}",
        failures.len(),
        failures[0]
    );
    let wanted = format!("MAINPID={second}");
    assert!(
        eventually(SOON, || manager.heard().contains(&wanted)),
        "{:?}",
        manager.heard()
    );
    assert!(
        !manager.heard().iter().any(|line| line == "STOPPING=1"),
        "{:?}",
        manager.heard()
    );
    // The manager listens to the main process alone: the watchdog's messages are the successor's.
    let before = manager.heard().iter().filter(|line| *line == "WATCHDOG=1").count();
    let goes_on = eventually(SOON, || {
        manager.heard().iter().filter(|line| *line == "WATCHDOG=1").count() > before + 2
    });
    assert!(goes_on, "{:?}", manager.heard());
    assert!(ask_long(), "the old process stays for its flow");
    drop(long);
    assert_eq!(old.proc.exit_code(SOON), 0, "and ends with it");
    let before = manager.heard().iter().filter(|line| *line == "WATCHDOG=1").count();
    let goes_on = eventually(SOON, || {
        manager.heard().iter().filter(|line| *line == "WATCHDOG=1").count() > before + 2
    });
    assert!(goes_on, "the watchdog is the successor's: {:?}", manager.heard());
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
}

#[lab_test]
fn a_successor_that_cannot_start_changes_nothing() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let manager = ServiceManager::new(&lab);
    let old = start(&lab, &manager);
    old.wait_healthy(&["east-1"]);
    let config = lab.dir().join("signalbox.yaml");
    std::fs::write(&config, "version: 1\nlisteners: 7\n").unwrap();
    for times in 1..3 {
        old.proc.signal(Signal::SIGUSR2);
        let said = || {
            old.proc
                .log()
                .matches("The successor ended before it was serving")
                .count()
                == times
        };
        assert!(eventually(SOON, said), "{}", old.proc.log());
        assert_eq!(serving_pid(&old), Some(old.proc.pid()));
        assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    }
    assert!(
        !manager.heard().iter().any(|line| line.starts_with("MAINPID=")),
        "{:?}",
        manager.heard()
    );
}
