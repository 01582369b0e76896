//! Late cut: a WebSocket at a listener that routes requests leaves userspace after its 101, in the middle of its two
//! streams, and outlives the process.

mod load;
mod scene;

use std::time::Duration;

use crate::lab::cut::{self, expect_cut, expect_none, finish};
use crate::lab::load::sockets;
use crate::lab::tiers::ping;
use crate::lab::{SOON, eventually};
pub(crate) use scene::read_head;
use scene::{DOORS, Scene, upgrade};

#[test]
fn a_websocket_is_cut_late_and_outlives_the_process() {
    let Some(mut scene) = Scene::begin("a_websocket_is_cut_late_and_outlives_the_process", "", "") else {
        return;
    };
    let before = sockets(&scene.lab.lb);
    let tunnels = DOORS.map(|door| scene.open(door));
    for (client, host) in &tunnels {
        ping(client, host);
        ping(host, client);
        let flow = expect_cut(&scene.sb, client);
        assert_eq!(flow["tier_reason"], "cut late", "{flow}");
        assert!(
            flow["bytes_in"].as_u64().unwrap() > 100,
            "the request's head counts: {flow}"
        );
        ping(client, host);
        ping(host, client);
    }
    assert_eq!(scene.counted("cut"), 2.0);
    for host in ["east-1", "west-1"] {
        assert_eq!(scene.sb.host(host)["active_connections"], 1);
    }
    // A connection to each host is kept: that of the requests before.
    let has_none = eventually(SOON, || sockets(&scene.lab.lb) <= before + 2);
    assert!(has_none, "{} sockets, {before} before", sockets(&scene.lab.lb));

    scene.sb.kill9();
    for (client, host) in &tunnels {
        ping(client, host);
        ping(host, client);
    }
    scene.restart();
    for (client, host) in &tunnels {
        expect_cut(&scene.sb, client);
        ping(host, client);
        ping(client, host);
        finish(client, host);
    }
    expect_none(&scene.sb);
    for host in ["east-1", "west-1"] {
        assert_eq!(scene.sb.host(host)["active_connections"], 0);
    }
}

#[test]
fn a_tunnel_that_is_cut_late_keeps_its_own_idle_time() {
    let Some(scene) = Scene::begin(
        "a_tunnel_that_is_cut_late_keeps_its_own_idle_time",
        "",
        "timeouts: { tunnel: 3s }",
    ) else {
        return;
    };
    let (client, host) = scene.open(DOORS[0]);
    ping(&client, &host);
    expect_cut(&scene.sb, &client);
    expect_none(&scene.sb);
    let closed = scene
        .sb
        .metric("signalbox_connections_closed_total{reason=\"idle_timeout\"}");
    assert_eq!(closed, 1.0);
    for stream in [&client, &*host] {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let error = std::io::Read::read(&mut &*stream, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_tunnel_that_only_userspace_can_carry_says_why() {
    let cases = [
        ("", "limits: { concurrent: 5 }", "counted_request"),
        ("datapath: { cut: off }", "", "off"),
    ];
    for (top, route, why) in cases {
        let Some(scene) = Scene::begin("a_tunnel_that_only_userspace_can_carry_says_why", top, route) else {
            return;
        };
        let (client, host) = scene.open(DOORS[0]);
        ping(&client, &host);
        scene.expect_counted(why, 1.0);
        let flow = cut::shown(&scene.sb, client.local_addr().unwrap());
        assert_eq!(
            (flow["tier"].as_str(), flow["not_cut"].as_str()),
            (Some("copy"), Some(why))
        );
        ping(&host, &client);
        finish(&client, &host);
    }
}

/// While a byte waits for its reader, nothing is cut; when all has been taken, the tunnel is.
#[test]
fn a_tunnel_with_bytes_under_way_is_cut_when_they_have_arrived() {
    const LENGTH: usize = 16 << 20;
    static BYTES: [u8; LENGTH] = [7; LENGTH];
    let test = "a_tunnel_with_bytes_under_way_is_cut_when_they_have_arrived";
    let Some(scene) = Scene::begin_sending(test, &BYTES) else {
        return;
    };
    for (at, name, _) in DOORS {
        // A client that does not read: its window and the balancer's buffers fill up.
        let client = scene.lab.client.connect(at);
        upgrade(&client, name).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        let shown = cut::shown(&scene.sb, client.local_addr().unwrap());
        assert_ne!(shown["tier"], "cut", "{shown}");
        let mut received = vec![0; LENGTH];
        std::io::Read::read_exact(&mut &client, &mut received).unwrap();
        assert!(received.iter().all(|byte| *byte == 7));
        expect_cut(&scene.sb, &client);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(
            std::io::Read::read(&mut &client, &mut [0]).unwrap(),
            0,
            "the host has heard the end"
        );
    }
}
