//! First data that is repeated with other content, before its host has answered: by a client that lies, or one that has
//! forgotten.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use lab::impair::{Impaired, Odds};
use lab::raw::{ACK, Segment};
use lab::{SOON, config, cut, eventually, servers};

use super::life::from_port;
use super::{PEEK, exits, filter, start_with};

const AT: &str = "10.1.0.1:80";
const PORT: u16 = 20_003;
/// Longer than the program waits before it asks a host again.
const REPETITION_INTERVAL: Duration = Duration::from_millis(250);

/// Numbers of a connection's next bytes: those that it sends, and those that it receives.
struct Numbers {
    seq: u32,
    ack: u32,
}

/// Takes a connection out of the kernel: its socket is closed, and neither end is told.
fn take_out(socket: TcpStream) -> Numbers {
    let set = |option: i32, value: i32| {
        // SAFETY: the option's value is a number of its size.
        let outcome = unsafe {
            let (at, size) = ((&raw const value).cast(), size_of::<i32>() as u32);
            libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, at, size)
        };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    };
    let number_of = |queue: i32| {
        set(libc::TCP_REPAIR_QUEUE, queue);
        let (mut number, mut size) = (0u32, size_of::<u32>() as u32);
        // SAFETY: as above.
        let outcome = unsafe {
            let (to, size) = ((&raw mut number).cast(), &raw mut size);
            libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, to, size)
        };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
        number
    };
    /// Queues of a socket (include/uapi/linux/tcp.h).
    const RECEIVE: i32 = 1;
    const SEND: i32 = 2;
    set(libc::TCP_REPAIR, 1);
    Numbers {
        seq: number_of(SEND),
        ack: number_of(RECEIVE),
    }
}

fn request(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// The bytes of the first name never reach the host of the second one, nor the other way round.
#[test]
fn first_data_repeated_with_a_new_name_goes_to_that_names_host() {
    let name = "first_data_repeated_with_a_new_name_goes_to_that_names_host";
    let Some(lab) = super::lab(name) else {
        return;
    };
    let hosts = ["east-1", "east-2"].map(|host| servers::hand_over(lab.host(host), "[::]:80"));
    let [health, ejection] = cut::PATIENT;
    let clusters = [("a", "east-1"), ("c", "east-2")]
        .map(|(cluster, host)| config::cluster(cluster, &[health, ejection], &[host]))
        .concat();
    let listener = "listeners:\n  - { name: http, protocol: http, listen: [\"10.1.0.1:80\"] }\n";
    let routes = "routes:\n  - { host: a.test, clusters: { a: 1 } }\n  - { host: c.test, clusters: { c: 1 } }\n";
    let _healthy = ["east-1", "east-2"].map(|host| servers::healthy(lab.host(host)));
    let sb = start_with(&lab, &format!("{PEEK}\n{listener}clusters:\n{clusters}{routes}"), 2);
    sb.wait_healthy(&["east-1", "east-2"]);

    // Segments that are sent by hand have no timestamps, so the SYN must have none either, as with some versions of
    // Windows.
    lab.client.must(&[
        "sysctl",
        "-qw",
        "net.ipv4.tcp_timestamps=0",
        "net.ipv4.tcp_window_scaling=0",
    ]);
    let numbers = take_out(lab.client.run(|| from_port(PORT, AT)));
    assert_eq!(exits(&sb, "syn_answered"), 1, "{}", sb.get("/metrics").1);
    // The sockets for these packets are gone.
    filter(&lab.client, "inet", "hook output", "tcp flags & rst == rst drop");
    let say = |host: &str| {
        Segment {
            from: SocketAddr::from(([10, 1, 0, 2], PORT)),
            to: AT.parse().unwrap(),
            seq: numbers.seq,
            ack: numbers.ack,
            flags: ACK,
            payload: request(host).as_bytes(),
        }
        .send(&lab.client);
    };
    let link = Impaired::host_link(&lab, "east-1", Odds::SILENT);
    say("a.test");
    assert!(
        eventually(SOON, || exits(&sb, "routed") == 1),
        "{}",
        sb.get("/metrics").1
    );
    std::thread::sleep(REPETITION_INTERVAL);
    say("c.test");
    assert!(
        eventually(SOON, || exits(&sb, "routed") == 2),
        "{}",
        sb.get("/metrics").1
    );
    let host = hosts[1].1.recv_timeout(SOON).unwrap();
    let mut received = vec![0; request("c.test").len()];
    (&*host).read_exact(&mut received).unwrap();
    assert_eq!(String::from_utf8_lossy(&received), request("c.test"));
    drop(link);
    (&*host).write_all(b"answer").unwrap();
    // The first host may have got a SYN, but has nothing to read.
    if let Ok(first) = hosts[0].1.recv_timeout(REPETITION_INTERVAL) {
        first.set_read_timeout(Some(REPETITION_INTERVAL)).unwrap();
        let read = (&*first).read(&mut [0; 1]);
        assert!(!matches!(read, Ok(1)), "{read:?}");
    }
    assert_eq!(exits(&sb, "delivered"), 1, "{}", sb.get("/metrics").1);
}
