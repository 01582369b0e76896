//! Kernel features that this suite's host may lack: tunnel devices that unwrap for services, and TLS in the kernel.

use std::net::TcpStream;

use nix::sys::socket::{setsockopt, sockopt};

use crate::lab::callers::is_served;
use crate::lab::cut::{self, Hosts, doors, finish};
use crate::lab::services::{echo, greeter, greeting};
use crate::lab::tiers::ping;
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

#[lab_test]
fn a_hosts_tunnel_device_unwraps_what_a_service_sends_it() {
    let lab = Lab::new();
    let host = lab.host("east-1");
    for words in [
        "ip addr add 10.8.0.1/32 dev lo",
        "ip route replace 10.1.0.0/24 via 10.2.0.1",
        // `remote any`: a fallback device takes the tunnels of all senders.
        "ip link add unwrap type ipip local 10.2.0.2 remote any ttl 64",
        "ip link set unwrap up",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0",
        "sysctl -qw net.ipv4.conf.unwrap.rp_filter=0",
    ] {
        host.must(&words.split(' ').collect::<Vec<_>>());
    }
    lab.lb.must(&["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    lab.client
        .must(&["ip", "route", "add", "10.8.0.1", "via", "10.1.0.1", "mtu", "1400"]);
    let _server = greeter(host, "0.0.0.0:3306", "east-1");
    let sb = Signalbox::start(
        &lab,
        "services:\n  - { name: db, protocol: tcp, listen: [\"10.8.0.1:3306\"], cluster: east, mode: dsr-ipip }\n\
         clusters:\n  - name: east\n    health: { tcp: {}, interval: 1s, timeout: 500ms, rise: 1, fall: 1 }\n    \
         hosts: [{ name: east-1, address: 10.2.0.2, tcp: 3306 }]\n",
    );
    sb.wait_healthy(&["east-1"]);
    assert!(
        eventually(SOON, || is_served(&lab, "10.1.0.2", "10.8.0.1:3306")),
        "{}",
        sb.proc.log()
    );
    let stream = lab.client.connect("10.8.0.1:3306");
    assert_eq!(greeting(&stream), "east-1");
    echo(&stream, &vec![b'i'; 100_000]).unwrap();
}

/// Has the kernel encrypt and decrypt what an end sends and receives, both with the same fixed key.
fn encrypt(stream: &TcpStream) -> nix::Result<()> {
    let key = libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: libc::TLS_1_2_VERSION,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [1; 8],
        key: [2; 16],
        salt: [3; 4],
        rec_seq: [0; 8],
    };
    setsockopt(stream, sockopt::TcpUlp::default(), b"tls")?;
    setsockopt(stream, sockopt::TcpTlsTx, &sockopt::TlsCryptoInfo::Aes128Gcm(key))?;
    setsockopt(stream, sockopt::TcpTlsRx, &sockopt::TlsCryptoInfo::Aes128Gcm(key))
}

#[lab_test]
fn ends_that_have_the_kernel_encrypt_stay_cut() {
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for door in doors() {
        let (client, host) = door.enter_cut(&lab, &sb, &hosts);
        encrypt(&client).expect("this machine has kTLS");
        encrypt(&host).unwrap();
        for _ in 0..20 {
            ping(&client, &host);
            ping(&host, &client);
        }
        finish(&client, &host);
    }
    cut::expect_none(&sb);
}
