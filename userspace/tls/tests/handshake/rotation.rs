use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::client::{config, connect, is};
use crate::fixtures::Authority;
use crate::server::{Setup, load, source};

const ROTATIONS: usize = 50;

#[test]
fn fifty_rotations_of_a_certificate_under_handshakes_fail_none() {
    let root = Authority::root("root");
    let setup = Setup::new(&[source("0", &root.ecdsa(&["a.test"]))]);
    let server = setup.start();
    let (is_over, handshakes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut client = config(&root);
    client.resumption = rustls::client::Resumption::disabled();
    let client = Arc::new(client);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    connect(&client, server.address, "a.test").unwrap();
                    handshakes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let rotations = scope.spawn(|| {
            for rotation in 0..ROTATIONS {
                let before = handshakes.load(Ordering::Relaxed);
                let new = root.ecdsa(&["a.test"]);
                setup
                    .certificates
                    .store(Arc::new(load(&[source(&rotation.to_string(), &new)])));
                // In force with the very next handshake.
                let seen = connect(&client, server.address, "a.test").unwrap();
                assert!(is(&seen, &new), "rotation {rotation}");
                while handshakes.load(Ordering::Relaxed) == before && !is_over.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
        });
        let rotated = rotations.join();
        is_over.store(true, Ordering::Relaxed);
        rotated.unwrap();
    });
    assert!(handshakes.load(Ordering::Relaxed) >= ROTATIONS);
}
