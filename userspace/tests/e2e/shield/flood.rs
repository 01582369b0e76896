//! A flood of SYNs from senders that do not exist, and a client beside it that does.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::lab::flood::{self, Source};
use crate::lab::load::{self, Busy};
use crate::lab::signalbox::PEEK_IN_USERSPACE;
use crate::lab::visitor::{Visits, exchange, mirror};
use crate::lab::{Lab, SOON, Server, Signalbox, config, eventually, lab_test, servers};

const AT: &str = "10.1.0.1:80";
const HOST: &str = "a.test";
/// Length of each part of the test.
const PART: Duration = Duration::from_secs(4);
/// Requests that a listening socket of signalbox may hold. Each worker has one for each family.
const BACKLOG: usize = 4096;

/// A listener whose SYNs the shield may answer: those of the kernel peek are answered by it.
fn body(shield: &str) -> String {
    format!(
        "{PEEK_IN_USERSPACE}\n{shield}\nlisteners:\n  - {{ name: web, protocol: http, listen: [\"{AT}\"] }}\nclusters:\n{}\
         routes:\n  - {{ host: {HOST}, clusters: {{ east: 1 }} }}\n",
        config::cluster("east", &[], &["east-1"])
    )
}

struct Scene {
    source: Source,
    sb: Signalbox,
    _servers: [Server; 2],
    lab: Lab,
}

impl Scene {
    fn new() -> Self {
        let lab = Lab::new();
        // The requests that the kernel held itself, before the flood was noticed, should end while the test looks.
        lab.lb.must(&["sysctl", "-qw", "net.ipv4.tcp_synack_retries=2"]);
        let host = lab.host("east-1");
        let servers = [servers::healthy(host), mirror(host, "[::]:80")];
        let source = Source::new(&lab);
        let sb = Signalbox::start(&lab, &body(""));
        sb.wait_healthy(&["east-1"]);
        Self {
            source,
            sb,
            _servers: servers,
            lab,
        }
    }

    /// A client's visits for a while, from another CPU than the flood's or from the same.
    fn visits(&self, beside: bool) -> Visits {
        let end = Instant::now() + PART;
        Visits::pay(&self.lab, AT, HOST, "who are you?", |_| {
            if beside {
                flood::stay_on_last_cpu();
            }
            Instant::now() < end
        })
    }

    /// Visits during a flood, whose figures are printed.
    fn flooded(&self, name: &str, beside: bool) -> Visits {
        let flood = self.source.flood(AT.parse().unwrap());
        assert!(eventually(SOON, || flood.sent() > 50_000), "{} SYNs", flood.sent());
        let (busy, begin, before) = (Busy::now(), Instant::now(), flood.sent());
        let visits = self.visits(beside);
        let rate = (flood.sent() - before) as f64 / begin.elapsed().as_secs_f64();
        let place = if beside { "on the flood's CPU" } else { "on any CPU" };
        println!("{name}, a client {place}: {visits}");
        println!(
            "    {rate:.0} SYNs/s; {busy}; {} half open",
            load::half_open(&self.lab.lb)
        );
        visits
    }

    fn cookies(&self) -> u64 {
        super::verdicts::decided(&self.sb, "web", "cookie")
    }
}

#[lab_test]
fn a_syn_flood_is_answered_in_bpf_and_real_clients_are_served() {
    let scene = Scene::new();
    let (lab, sb) = (&scene.lab, &scene.sb);
    let busy = Busy::now();
    let quiet = scene.visits(false);
    println!("no flood: {quiet}\n    {busy}");
    assert!(quiet.failed.is_empty(), "{:?}", quiet.failed);
    assert_eq!(quiet.by_cookie, 0);
    let sockets = load::sockets(&lab.lb);
    // The result of the kernel alone is only printed, not judged.
    for beside in [false, true] {
        scene.flooded("a flood, no shield", beside);
        assert!(eventually(SOON * 3, || load::half_open(&lab.lb) == 0));
    }

    sb.reload(&body("shield: { syn_cookies: auto }"));
    let flood = scene.source.flood(AT.parse().unwrap());
    assert!(eventually(SOON, || scene.cookies() > 0), "no cookies");
    drop(flood);
    // The kernel answers the SYNs of a CPU that few reach; where the flood is, the program does.
    for beside in [false, true] {
        let visits = scene.flooded("a flood, a shield", beside);
        assert!(visits.failed.is_empty(), "{:?}", visits.failed);
        assert!(visits.count() > 0);
        assert!(visits.by_cookie > 0 || !beside, "{visits}");
    }
    let cookies = scene.cookies();
    assert!(cookies > 10_000, "{cookies} cookies");

    // Half-open connections of forged sources are gone.
    let workers = std::thread::available_parallelism().unwrap().get();
    let waiting = load::half_open(&lab.lb);
    // A CPU may let in one more SYN that was being processed while the backlog filled up.
    assert!(waiting <= workers * (BACKLOG + 1 + workers), "{waiting} half open");
    assert!(eventually(SOON * 3, || load::half_open(&lab.lb) == 0));
    let left = || load::sockets(&lab.lb);
    assert!(eventually(SOON, || left() <= sockets + 5), "{} of {sockets}", left());
    assert_eq!(sb.flow_count(), 0);

    // After the flood the state is as before: no cookies where no backlog is full.
    let busy = Busy::now();
    let before = scene.cookies();
    let after = scene.visits(false);
    println!("after: {after}\n    {busy}");
    assert!(after.failed.is_empty(), "{:?}", after.failed);
    assert_eq!((after.by_cookie, scene.cookies()), (0, before));
}

#[lab_test]
fn a_connection_opened_by_cookie_carries_as_much_as_any_other() {
    let scene = Scene::new();
    scene.sb.reload(&body("shield: { syn_cookies: auto }"));
    let large: String = ('a'..='z').cycle().take(1 << 20).collect();
    let going_on = scene.source.flood(AT.parse().unwrap());
    assert!(eventually(SOON, || scene.cookies() > 1000), "{}", scene.cookies());
    let visits = Visits::pay(&scene.lab, AT, HOST, &large, |count| {
        flood::stay_on_last_cpu();
        count < 20
    });
    drop(going_on);
    println!("a megabyte there and back: {visits}");
    assert!(visits.failed.is_empty(), "{:?}", visits.failed);
    // The backlog has room now and then, when the kernel has dropped a request.
    assert!(visits.by_cookie >= 5, "{visits}");
}

#[lab_test]
fn a_client_with_a_kernel_cookie_accepts_all_that_comes_back() {
    let scene = Scene::new();
    // A cookie for each SYN, as in a flood that has just begun. Its timestamp holds the options, and with them a time
    // that is as much as 63 ms ago: later packets with an earlier time than the kernel's own packets are dropped (RFC
    // 7323, section 5).
    scene.lab.lb.must(&["sysctl", "-qw", "net.ipv4.tcp_syncookies=2"]);
    let visits = Visits::pay(&scene.lab, AT, HOST, "who are you?", |count| count < 50);
    println!("by the kernel's cookies: {visits}");
    assert!(visits.failed.is_empty(), "{:?}", visits.failed);
    assert_eq!(
        load::too_old(&scene.lab.client),
        0,
        "packets that a client did not take"
    );
}

#[lab_test]
fn a_reused_port_that_gets_a_cookie_has_its_own_connection() {
    const PORTS: std::ops::Range<u16> = 11_000..11_005;
    let scene = Scene::new();
    scene.sb.reload(&body("shield: { syn_cookies: auto }"));
    let call = |port: u16| {
        let stream = scene.lab.client.run(|| {
            flood::stay_on_last_cpu();
            connect_from_port(port)
        });
        exchange(&stream, HOST, "again?").map_err(|why| format!("from port {port}: {why}"))
    };
    // The kernel itself sends these clients cookies, as while a flood begins.
    scene.lab.lb.must(&["sysctl", "-qw", "net.ipv4.tcp_syncookies=2"]);
    // Notes about these handshakes must not be taken for notes about the next ones.
    for port in PORTS {
        assert_eq!(call(port), Ok(false));
    }
    let _flood = scene.source.flood(AT.parse().unwrap());
    assert!(eventually(SOON, || scene.cookies() > 1000), "{}", scene.cookies());
    let calls: Vec<_> = PORTS.map(call).collect();
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    assert!(calls.contains(&Ok(true)), "none by cookie");
}

fn connect_from_port(port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([10, 1, 0, 2], port)).into()).unwrap();
    let to: SocketAddr = AT.parse().unwrap();
    socket.connect_timeout(&to.into(), SOON).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.into()
}
