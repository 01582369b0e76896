//! Many WebSockets at once, every byte of which is checked, while links are bad and the process is killed.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::scene::{DOORS, Scene, upgrade};
use crate::lab::cut::{self, expect_none};
use crate::lab::impair::{Impaired, Odds};
use crate::lab::{Lab, SOON, eventually, exchange};

/// Half a hundredth of the packets is lost.
const SOME_LOSS: Odds = Odds {
    drop: 0.005,
    ..Odds::GOOD
};

const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(90);

/// Does the work for each number below `count`, for 50 at a time.
fn for_each(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n >= count {
                        return;
                    }
                    work(n);
                }
            });
        }
    });
}

/// Opens `count` WebSockets.
fn open(lab: &Lab, count: usize) -> Vec<TcpStream> {
    let streams = Mutex::new(Vec::new());
    for_each(count, |n| {
        let (at, name, _) = DOORS[n % 2];
        let client = lab.client.connect(at);
        client.set_read_timeout(Some(EXCHANGE_TIMEOUT)).unwrap();
        client.set_write_timeout(Some(EXCHANGE_TIMEOUT)).unwrap();
        upgrade(&client, name).unwrap_or_else(|e| panic!("WebSocket {n}: {e}"));
        streams.lock().unwrap().push(client);
    });
    streams.into_inner().unwrap()
}

/// Exchanges bytes in all of them; returns the failures.
fn exchange_all(streams: &[TcpStream], most: u64) -> Vec<String> {
    let wrong = Mutex::new(Vec::new());
    for_each(streams.len(), |n| {
        let mut sizes = exchange::Noise::new(n as u64 + 1);
        let (up, down) = (sizes.up_to(most), sizes.up_to(most));
        if let Err(error) = exchange::client(&streams[n], n as u64, up, down) {
            let from = streams[n].local_addr();
            let case = format!("{n} ({from:?}), {up} up, {down} down: {error}");
            wrong.lock().unwrap().push(case);
        }
    });
    wrong.into_inner().unwrap()
}

/// Killed when all WebSockets are cut: no WebSocket and no byte is lost.
#[test]
fn none_of_a_thousand_websockets_is_lost_when_the_process_dies() {
    const COUNT: usize = 1000;
    let test = "none_of_a_thousand_websockets_is_lost_when_the_process_dies";
    let Some(mut scene) = Scene::begin_exchanging(test) else {
        return;
    };
    let links = [
        Impaired::client_link(&scene.lab, SOME_LOSS),
        Impaired::host_link(&scene.lab, "east-1", SOME_LOSS),
        Impaired::host_link(&scene.lab, "west-1", SOME_LOSS),
    ];
    let streams = open(&scene.lab, COUNT);
    let are_cut = eventually(2 * SOON, || scene.counted("cut") as usize == COUNT);
    let (cut, reasons) = (scene.counted("cut"), cut::reasons(&scene.sb));
    assert!(are_cut, "{cut} of {COUNT} are cut\n{reasons}");
    scene.sb.kill9();
    let wrong = exchange_all(&streams, 60_000);
    assert!(wrong.is_empty(), "{} of {COUNT}:\n{}", wrong.len(), wrong.join("\n"));
    drop(links);
    scene.restart();
    expect_none(&scene.sb);
}

/// Tunnels whose ends never stop sending are cut whenever there is a moment; no byte is lost by that.
#[test]
fn tunnels_are_cut_in_the_middle_of_what_they_carry() {
    let Some(scene) = Scene::begin_exchanging("tunnels_are_cut_in_the_middle_of_what_they_carry") else {
        return;
    };
    for most in [3, 2000, 300_000] {
        let streams = open(&scene.lab, 100);
        let wrong = exchange_all(&streams, most);
        assert!(wrong.is_empty(), "{} of 100:\n{}", wrong.len(), wrong.join("\n"));
    }
    println!("{} of 300 were cut", scene.counted("cut"));
    expect_none(&scene.sb);
    for (_, _, host) in DOORS {
        assert_eq!(scene.sb.host(host)["active_connections"], 0);
    }
}
