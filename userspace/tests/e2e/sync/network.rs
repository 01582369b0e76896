//! The network of the balancers, and their certificates.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;

use super::pair::{NODE_NAMES, node_name};
use crate::lab::Ns;

/// Groups of addresses that move, with the devices that have them.
pub(super) const MOVING: [(&str, [(&str, &str); 4]); 2] = [
    (
        "g1",
        [
            ("10.1.0.10/32", "front"),
            ("fd00:1::10/128", "front"),
            ("10.2.0.10/24", "back"),
            ("fd00:2::10/64", "back"),
        ],
    ),
    (
        "g2",
        [
            ("10.1.0.20/32", "front"),
            ("fd00:1::20/128", "front"),
            ("10.2.0.20/24", "back"),
            ("fd00:2::20/64", "back"),
        ],
    ),
];

/// Last parts of the nodes' own addresses.
pub(super) const LAST: [&str; 8] = ["11", "12", "13", "14", "15", "16", "17", "18"];

/// Rules of nftables that drop adverts of VRRP.
pub(super) const VRRP_IS_DROPPED: &str =
    "table inet cut { chain in { type filter hook input priority -300; meta l4proto 112 drop; }; }\n";

/// Rules of nftables that drop messages between nodes.
pub(super) const SYNC_IS_DROPPED: &str = "table inet cut { chain in { type filter hook input priority -300; tcp dport 8090 drop; tcp sport 8090 drop; }; }\n";

/// Returns the Ethernet address of a device.
pub(super) fn mac(ns: &Ns, device: &str) -> String {
    let shown = ns.must(&["ip", "-j", "link", "show", "dev", device]);
    let links: Value = serde_json::from_str(&shown).unwrap();
    links[0]["address"].as_str().unwrap().to_owned()
}

/// Lays the cables between a client, a host and the nodes.
pub(super) fn wire(client: &Ns, host: &Ns, nodes: &[Ns]) {
    client
        .ip("link add front type bridge forward_delay 0
             addr add 10.1.0.2/24 dev front
             addr add fd00:1::2/64 dev front nodad
             link set front up\n")
        .unwrap();
    host.ip("link add back type bridge forward_delay 0
             addr add 10.2.0.2/24 dev back
             addr add fd00:2::2/64 dev back nodad
             link set back up
             link add direct type bridge forward_delay 0
             link set direct up\n")
        .unwrap();
    for (at, node) in nodes.iter().enumerate() {
        let (name, last) = (node_name(at), LAST[at]);
        for (bridge, network, far) in [("front", 1, client), ("back", 2, host), ("direct", 3, host)] {
            let add = format!(
                "link add {name}-{bridge} type veth peer name {bridge} netns {}
                 link set {name}-{bridge} master {bridge}
                 link set {name}-{bridge} up\n",
                node.name()
            );
            far.ip(&add).unwrap();
            node.ip(&format!(
                "addr add 10.{network}.0.{last}/24 dev {bridge}
                 addr add fd00:{network}::{last}/64 dev {bridge} nodad
                 link set {bridge} up\n"
            ))
            .unwrap();
        }
        node.sysctl(&["net.ipv4.ip_local_port_range=12000 65000"]).unwrap();
    }
}

/// Writes an authority, and for each node a certificate for its name.
pub(super) fn certificates(dir: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    for name in NODE_NAMES {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &authority).unwrap();
        std::fs::write(dir.join(format!("{name}.crt")), signed.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}
