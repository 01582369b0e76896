//! Interfaces that come while the process runs.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::scene::{DB, Scene, WEB};
use crate::lab::namespace::Ns;
use crate::lab::{SOON, eventually, lab_test};

const DENIED: &str = "10.6.0.2";
const ALLOWED: &str = "10.6.0.3";

/// Calls from an address by one SYN. Returns whether a server has sent anything.
fn hears(from: &str, to: &str, patience: Duration) -> std::io::Result<bool> {
    let (from, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), patience)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(TcpStream::from(socket).read(&mut [0])? == 1)
}

#[lab_test]
fn a_denied_source_is_never_served_at_a_new_interface() {
    let scene = Scene::new("shield: { deny: [10.6.0.2/32] }", "", "");
    for round in 0..4 {
        let ns = Ns::create(&format!("{}late{round}", scene.lab.client.name()));
        let (is_over, calls, served) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            // From before the interface is there, and until it has had its programs for long.
            for port in [WEB[0], DB[0]] {
                let (ns, is_over, calls, served) = (&ns, &is_over, &calls, &served);
                scope.spawn(move || {
                    ns.enter().unwrap();
                    while !is_over.load(Relaxed) {
                        let heard = hears(DENIED, port, Duration::from_millis(5));
                        calls.fetch_add(1, Relaxed);
                        served.fetch_add(u32::from(matches!(heard, Ok(true))), Relaxed);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
            let looked = std::panic::catch_unwind(AssertUnwindSafe(|| look(&scene, &ns)));
            // In any case: the scope waits for the callers.
            is_over.store(true, Relaxed);
            looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        // The end of a namespace takes its link away some time later.
        scene.lab.lb.ip("link del late").unwrap();
        println!("round {round}: {calls:?} calls");
        assert!(calls.load(Relaxed) > 10);
        assert_eq!(served.load(Relaxed), 0, "round {round}");
    }
    let log = scene.sb.proc.log();
    assert!(!log.contains("The kernel does not report new interfaces"), "{log}");
}

/// Joins the namespace to the balancer, and checks which clients are served from there.
fn look(scene: &Scene, ns: &Ns) {
    let theirs = ["10.6.0.2/24", "10.6.0.3/24"];
    scene.lab.lb.cable("late", &["10.6.0.1/24"], ns, &theirs).unwrap();
    ns.ip("route add default via 10.6.0.1").unwrap();
    let hears = |from, port| ns.run(|| hears(from, port, Duration::from_millis(900)));
    // Only the program serves a service, so the interface has it.
    let has_program = eventually(SOON, || matches!(hears(ALLOWED, DB[0]), Ok(true)));
    assert!(has_program, "{}", scene.sb.proc.log());
    let allowed = hears(ALLOWED, WEB[0]);
    assert!(matches!(allowed, Ok(true)), "{allowed:?}");
    // The program gives no answer at all, not even a refusal.
    let denied = hears(DENIED, WEB[0]);
    assert_eq!(denied.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
}
