//! Limits of a source: new connections in a second, concurrent connections, packets and bytes.

use std::io::ErrorKind;
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::scene::{BAD, DB, DNS, GOOD, Scene, WEB};
use super::verdicts::decided;
use crate::lab::callers::{call, is_answered, is_greeted, is_served};
use crate::lab::services::{ask, echo, greeting};
use crate::lab::{SOON, eventually, lab_test};

/// The calls of one source that were answered.
fn calls(scene: &Scene, from: &str, to: &str, count: usize) -> Vec<TcpStream> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..count).map(|_| scope.spawn(|| call(&scene.lab, from, to))).collect();
        let results = all.into_iter().map(|thread| thread.join().unwrap());
        let opened = results.filter_map(|result| match result {
            Ok(stream) => Some(stream),
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            Err(error) => panic!("{from} to {to}: {error}"),
        });
        opened.collect()
    })
}

#[lab_test]
fn a_source_gets_its_burst_and_rate_and_others_keep_theirs() {
    const BURST: usize = 5;
    let shield = "shield: { limits: { connections: { rate: 1, burst: 5 }, ipv6_prefix: 128 } }";
    let scene = Scene::new(shield, "", "");
    for (name, ports) in [("web", WEB), ("db", DB)] {
        for family in 0..2 {
            let before = decided(&scene.sb, name, "connections");
            let begin = Instant::now();
            let opened = calls(&scene, BAD[family], ports[family], 4 * BURST).len();
            // The bucket fills while the calls are made.
            let most = BURST + begin.elapsed().as_secs() as usize + 1;
            assert!(
                (BURST..=most).contains(&opened),
                "{}: {opened} of {most}",
                ports[family]
            );
            let refused = decided(&scene.sb, name, "connections") - before;
            assert!(refused as usize >= 4 * BURST - opened, "{}: {refused}", ports[family]);
            // A second source has its own bucket.
            let others = calls(&scene, GOOD[family], ports[family], BURST);
            assert_eq!(others.len(), BURST, "{}", ports[family]);
            for stream in &others {
                assert_eq!(greeting(stream), "east-1");
                echo(stream, b"still here").unwrap();
            }
        }
    }
    // The refused source is let in when the bucket has filled.
    assert!(eventually(SOON, || is_greeted(&scene.lab, BAD[0], WEB[0])));
    assert!(eventually(SOON, || is_greeted(&scene.lab, BAD[0], DB[0])));
}

#[lab_test]
fn a_source_is_held_to_its_concurrent_limit_until_one_ends() {
    const MOST: usize = 3;
    let scene = Scene::new("shield: { limits: { concurrent: 3, ipv6_prefix: 128 } }", "", "");
    for (name, ports) in [("web", WEB), ("db", DB)] {
        for family in 0..2 {
            let (from, to) = (BAD[family], ports[family]);
            let mut held: Vec<TcpStream> = Vec::new();
            for _ in 0..MOST {
                let stream = call(&scene.lab, from, to).unwrap();
                assert_eq!(greeting(&stream), "east-1");
                echo(&stream, b"held").unwrap();
                held.push(stream);
            }
            // A worker refuses one too many at once, and soon it gets no answer at all.
            let before = decided(&scene.sb, name, "concurrent");
            let has_grown = || decided(&scene.sb, name, "concurrent") > before;
            let refused = || !is_served(&scene.lab, from, to) && has_grown();
            assert!(eventually(SOON, refused), "{name}: {to}");
            // A service's are counted again every two seconds: one more may pass in between, and is counted then.
            let three_refused = || (0..3).all(|_| !is_served(&scene.lab, from, to));
            assert!(eventually(SOON, three_refused), "{name}: {to}");
            assert!(
                is_served(&scene.lab, GOOD[family], to),
                "{name}: another source at {to}"
            );
            for stream in &held {
                echo(stream, b"still held").unwrap();
            }
            held.pop();
            assert!(eventually(SOON, || is_served(&scene.lab, from, to)), "{name}: {to}");
            drop(held);
        }
    }
}

#[lab_test]
fn a_prefix_may_be_one_source() {
    let shield = "shield: { limits: { concurrent: 2, ipv4_prefix: 24, ipv6_prefix: 64 } }";
    let scene = Scene::new(shield, "", "");
    for (name, ports) in [("db", DB), ("web", WEB)] {
        for (family, to) in ports.into_iter().enumerate() {
            // Two neighbours hold a connection each: neither may have another.
            let held = [GOOD, BAD].map(|who| call(&scene.lab, who[family], to).unwrap());
            for stream in &held {
                assert_eq!(greeting(stream), "east-1");
                echo(stream, b"held").unwrap();
            }
            let refused = |who: [&str; 2]| !is_served(&scene.lab, who[family], to);
            assert!(eventually(SOON, || refused(GOOD) && refused(BAD)), "{name}: {to}");
            drop(held);
            assert!(eventually(SOON, || !refused(GOOD) && !refused(BAD)), "{name}: {to}");
        }
    }
}

#[lab_test]
fn a_source_that_sends_too_many_packets_is_dropped_and_no_other() {
    let shield = "shield: { limits: { packets: { rate: 1, burst: 20 }, ipv6_prefix: 128 } }";
    let scene = Scene::new(shield, "", "");
    for family in 0..2 {
        let answered = (0..100).take_while(|_| is_answered(&scene.lab, BAD[family], DNS[family]));
        let answered = answered.count();
        assert!((20..100).contains(&answered), "{}: {answered}", DNS[family]);
        assert!(is_answered(&scene.lab, GOOD[family], DNS[family]));
    }
    assert!(decided(&scene.sb, "dns", "packets") >= 2);
    assert_eq!(decided(&scene.sb, "web", "packets"), 0, "guards do not share buckets");
}

#[lab_test]
fn a_source_that_sends_too_many_bytes_is_dropped_and_no_other() {
    // Least burst that the bucket allows, under any configuration.
    const BURST: usize = 65_536;
    const DATAGRAM: usize = 1200;
    let shield = "shield: { limits: { bytes: { rate: 100, burst: 65536 }, ipv6_prefix: 128 } }";
    let scene = Scene::new(shield, "", "");
    for (family, header) in [(0, 28), (1, 48)] {
        let heard = |from: &str| {
            let socket = scene.lab.client.run(|| UdpSocket::bind((from, 0)).unwrap());
            socket.connect(DNS[family]).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            (0..100)
                .take_while(|_| ask(&socket, &[b'x'; DATAGRAM]).is_some())
                .count()
        };
        let most = BURST / (DATAGRAM + header);
        let bad = heard(BAD[family]);
        // A few more, if two CPUs have counted at once, or the bucket has been filled in between.
        assert!((most..most + 5).contains(&bad), "{}: {bad} of {most}", DNS[family]);
        assert!(heard(GOOD[family]) >= most, "{}", DNS[family]);
        // A small packet has room where a large one has none.
        assert!(eventually(SOON, || is_answered(&scene.lab, BAD[family], DNS[family])));
    }
    assert!(decided(&scene.sb, "dns", "bytes") >= 4);
    // A source within its limit loses nothing.
    let stream = call(&scene.lab, GOOD[0], DB[0]).unwrap();
    assert_eq!(greeting(&stream), "east-1");
    echo(&stream, &[b'y'; BURST / 4]).unwrap();
    assert_eq!(decided(&scene.sb, "db", "bytes"), 0);
}
