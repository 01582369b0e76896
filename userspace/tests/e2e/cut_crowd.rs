//! A hundred thousand flows at once through one process that could not hold a quarter of them in descriptors.

use crate::lab;

use std::time::{Duration, Instant};

use lab::crowd::{self, Helper};
use lab::{Signalbox, config, cut, eventually, privileged, servers};

/// Helper processes on each side: seven make a hundred thousand connections, each within its descriptor limit.
const HELPERS: usize = 7;
const EACH: usize = 14_300;
const ADDRESSES: [&str; 3] = ["10.1.0.2", "10.1.0.3", "10.1.0.4"];
const AT: &str = "10.1.0.1:3306";

/// Code of the helpers, which are started as this test; no test of its own.
#[test]
fn helper() {
    crowd::help();
}

/// A number of the environment, for machines that have less time or memory.
fn set(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn a_hundred_thousand_flows_idle_and_then_all_answer() {
    if !privileged("a_hundred_thousand_flows_idle_and_then_all_answer") {
        return;
    }
    if lab::signalbox::peeks_in_kernel() {
        // Half of the flow table is for what programs route, and nothing of this is.
        return;
    }
    let each = set("SIGNALBOX_E2E_CROWD", if cut::lenient() { 600 } else { EACH });
    let idle = Duration::from_secs(set("SIGNALBOX_E2E_CROWD_IDLE", 60) as u64);
    let all = each * HELPERS;
    let lab = cut::lab();
    let _health = servers::healthy(lab.host("east-1"));
    // As a machine has it: ports of this range are the kernel's, and 14 300 to one host must fit beside them.
    lab.lb
        .must(&["sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 60999"]);
    let mut servers: Vec<_> = (0..HELPERS)
        .map(|n| Helper::server(lab.host("east-1"), 4000 + n as u16))
        .collect();
    servers.iter_mut().for_each(|server| drop(server.expect("listening")));
    let hosts: Vec<_> = (0..HELPERS)
        .map(|n| format!("{{ name: h{n}, address: \"10.2.0.2\", tcp: {} }}", 4000 + n))
        .collect();
    let [health, ejection] = cut::PATIENT;
    let cluster = config::cluster_of("crowd", &["balance: least-connections", health, ejection], &hosts);
    let body = format!(
        "listeners:\n  - {{ name: crowd, protocol: tcp, listen: [\"{AT}\"], cluster: crowd }}\nclusters:\n{cluster}"
    );
    let mut sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["h0", "h6"]);
    let before = sb.proc.resident();

    let start = Instant::now();
    let mut clients: Vec<_> = (0..HELPERS)
        .map(|n| {
            let port = 12_000 + n / ADDRESSES.len() * EACH;
            let from = format!("{}:{port}", ADDRESSES[n % ADDRESSES.len()]);
            Helper::client(&lab.client, &from, AT, each)
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.expect("open"), each.to_string());
    }
    println!("{all} flows after {:?}", start.elapsed());
    let cut = |sb: &Signalbox| sb.metric("signalbox_connections_active{tier=\"cut\"}") as usize;
    assert!(
        cut::lenient() || eventually(lab::SOON, || cut(&sb) == all),
        "{} of {all} are cut\n{}",
        cut(&sb),
        cut::reasons(&sb)
    );
    assert_eq!(sb.flow_count(), all as u64);
    let descriptors = cut::settled(|| cut::descriptors(&sb));
    println!(
        "{descriptors} descriptors, {} MiB resident more than before",
        (sb.proc.resident() - before) >> 20
    );
    assert!(cut::lenient() || descriptors < 1000, "{descriptors} descriptors");
    let mut sum = 0;
    for n in 0..HELPERS {
        let active = sb.host(&format!("h{n}"))["active_connections"].as_u64().unwrap() as usize;
        // Seven clients at once may each choose by a number that is about to change.
        assert!(active.abs_diff(each) <= 20, "h{n} has {active} of {all}");
        sum += active;
    }

    assert_eq!(sum, all);
    std::thread::sleep(idle);
    let mut ask_all = |what: &str| {
        let start = Instant::now();
        clients.iter_mut().for_each(Helper::ask_all);
        for client in &mut clients {
            assert_eq!(client.expect("all"), "answered", "{what}");
        }
        println!("{what}, all answered in {:?}", start.elapsed());
    };
    ask_all("after a pause");
    if !cut::lenient() {
        sb.kill9();
        ask_all("with nobody there");
        let start = Instant::now();
        sb = Signalbox::start(&lab, &body);
        println!("a successor was ready after {:?}", start.elapsed());
        assert_eq!(cut(&sb), all, "what the successor found");
        ask_all("with a successor");
        assert_eq!(sb.flow_count(), all as u64);
    }
    let start = Instant::now();
    drop(clients);
    let none = eventually(lab::SOON * 3, || sb.flow_count() == 0);
    assert!(none, "{} flows are left", sb.flow_count());
    println!("all were gone after {:?}", start.elapsed());
    for n in 0..HELPERS {
        assert_eq!(sb.host(&format!("h{n}"))["active_connections"], 0);
    }
}
