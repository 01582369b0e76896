//! Tier cut over links that this suite's host may not have: VLANs, bonds, links that lose and reorder.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crate::kernel_peek::{PEEK, exits};
use crate::lab::cut::{self, expect_cut};
use crate::lab::{SOON, Server, Signalbox, eventually, exchange, lab_test};

use super::numbered::{Download, serve};
use super::peek::{SINCE, running};

const MIB: u64 = 1 << 20;

/// A `tcp` listener at an address of the link under test, in front of `east-1`.
fn body(at: &str) -> String {
    format!(
        "listeners:\n  - {{ name: link, protocol: tcp, listen: [\"{at}\"], cluster: east }}\nclusters:\n  - name: east\n    \
         health: {{ tcp: {{}}, interval: 2s, timeout: 1s, rise: 1, fall: 100 }}\n    \
         hosts: [{{ name: east-1, address: 10.2.0.2, tcp: 7000 }}]\n"
    )
}

/// A download over a link is cut, continues through a SIGKILL and through `event`, and arrives whole.
fn survives(lab: &cut::CutLab, at: &str, event: impl FnOnce()) {
    let _server = serve(lab.host("east-1"), "[::]:7000");
    let mut sb = Signalbox::start(lab, &body(at));
    sb.wait_healthy(&["east-1"]);
    let mut download = Download::begin(lab.client.connect(at), 32 * MIB).unwrap();
    expect_cut(&sb, download.stream());
    download.read_to(0.2).unwrap();
    event();
    download.read_to(0.5).unwrap();
    sb.kill9();
    download.read_to(0.7).unwrap();
    let sb = Signalbox::start(lab, &body(at));
    download.finish().unwrap();
    cut::expect_none(&sb);
}

/// Puts the client and the balancer into a VLAN.
fn tag(lab: &cut::CutLab) {
    for (ns, device, address) in [(&lab.lb, "client", "10.7.0.1/24"), (&lab.client, "eth0", "10.7.0.2/24")] {
        ns.must(&[
            "ip", "link", "add", "link", device, "name", "tagged", "type", "vlan", "id", "7",
        ]);
        ns.must(&["ip", "addr", "add", address, "dev", "tagged"]);
        ns.must(&["ip", "link", "set", "tagged", "up"]);
    }
}

#[lab_test]
fn a_flow_is_cut_over_a_vlan() {
    let lab = cut::lab();
    tag(&lab);
    survives(&lab, "10.7.0.1:7000", || {});
}

/// The program at the interface of a VLAN sees no tag: connections are routed there as anywhere.
#[lab_test]
fn connections_over_a_vlan_are_routed_in_the_kernel() {
    let lab = cut::lab();
    tag(&lab);
    let _server = Server::start(lab.host("east-1"), "[::]:80", |stream| {
        let _ = (&*stream).read(&mut [0; 1024]);
        let _ = (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    let listener = "listeners:\n  - { name: web, protocol: http, listen: [\"10.7.0.1:80\"] }";
    let host = "hosts: [{ name: east-1, address: 10.2.0.2, http: 80 }]";
    let sb = Signalbox::start(
        &lab,
        &format!(
            "{PEEK}\n{listener}\nclusters:\n  - {{ name: east, health: {{ tcp: {{}} }}, {host} }}\n\
             routes: [{{ host: a.test, clusters: {{ east: 1 }} }}]\n"
        ),
    );
    sb.wait_healthy(&["east-1"]);
    let is_routed = running() >= SINCE;
    if is_routed {
        assert!(eventually(SOON, || sb.metric("signalbox_kernel_peek_routes") == 1.0));
    }
    for _ in 0..20 {
        let mut client = lab.client.connect("10.7.0.1:80");
        client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{answer:?}");
    }
    assert_eq!(
        exits(&sb, "delivered"),
        if is_routed { 20 } else { 0 },
        "{}",
        sb.get("/metrics").1
    );
}

#[lab_test]
fn a_flow_is_cut_over_a_bond_and_outlives_one_of_its_links() {
    let lab = cut::lab();
    let client = lab.client.name().to_owned();
    for n in ["0", "1"] {
        let (ours, theirs) = (format!("leg{n}"), format!("arm{n}"));
        lab.lb.must(&[
            "ip", "link", "add", &ours, "type", "veth", "peer", "name", &theirs, "netns", &client,
        ]);
    }
    for (ns, leg, address) in [(&lab.lb, "leg", "10.7.0.1/24"), (&lab.client, "arm", "10.7.0.2/24")] {
        ns.must(&[
            "ip",
            "link",
            "add",
            "bond7",
            "type",
            "bond",
            "mode",
            "active-backup",
            "miimon",
            "50",
        ]);
        for n in ["0", "1"] {
            let leg = format!("{leg}{n}");
            ns.must(&["ip", "link", "set", &leg, "down"]);
            ns.must(&["ip", "link", "set", &leg, "master", "bond7"]);
            ns.must(&["ip", "link", "set", &leg, "up"]);
        }
        ns.must(&["ip", "addr", "add", address, "dev", "bond7"]);
        ns.must(&["ip", "link", "set", "bond7", "up"]);
    }
    survives(&lab, "10.7.0.1:7000", || {
        lab.lb.must(&["ip", "link", "set", "leg0", "down"]);
        std::thread::sleep(Duration::from_millis(500));
    });
}

#[lab_test]
fn a_cut_flow_is_whole_over_links_that_lose_delay_and_reorder() {
    let lab = cut::lab();
    let netem = "tc qdisc add dev eth0 root netem delay 3ms 1ms loss 1% reorder 10% 25% duplicate 1%";
    for ns in [&lab.client, lab.host("east-1")] {
        ns.must(&netem.split(' ').collect::<Vec<_>>());
    }
    let _server = exchange::server(lab.host("east-1"), "[::]:7000");
    let sb = Signalbox::start(&lab, &body("10.1.0.1:7000"));
    sb.wait_healthy(&["east-1"]);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let lab = &lab;
            scope.spawn(move || {
                let stream = lab.client.connect("10.1.0.1:7000");
                exchange::client(&stream, n, MIB, 2 * MIB).unwrap();
            });
        }
    });
    assert!(cut::opened(&sb) >= 6, "{}", cut::reasons(&sb));
    let lost = lab.client.must(&["tc", "-s", "qdisc", "show", "dev", "eth0"]);
    assert!(!lost.contains("dropped 0,"), "nothing was lost: {lost}");
    cut::expect_none(&sb);
}
