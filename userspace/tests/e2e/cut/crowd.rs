//! A hundred thousand flows at once through one process that could not hold a quarter of them in descriptors.

use crate::{kernel_peek, lab};

use std::time::{Duration, Instant};

use lab::crowd::{self, Helper};
use lab::{Signalbox, config, cut, eventually, lab_test, privileged, servers};

const ADDRESSES: [&str; 3] = ["10.1.0.2", "10.1.0.3", "10.1.0.4"];

/// A hundred thousand connections, and the processes that make them.
struct Crowd {
    /// Helper processes on each side, each within its descriptor limit.
    helpers: usize,
    /// Connections of each.
    each: usize,
    /// Protocol of the listener and of its hosts.
    protocol: &'static str,
    at: &'static str,
    /// Configuration without the cluster.
    body: &'static str,
    /// Connections that a host may have more or less than another: clients that connect at once may each choose by a number
    /// that is about to change.
    apart: usize,
    /// Ports that the kernel assigns on its own, if others than the lab's.
    kernel_ports: Option<&'static str>,
}

/// A machine's usual range of ports is the kernel's: 14 300 to one host must fit beside them.
const CUT: Crowd = Crowd {
    helpers: 7,
    each: 14_300,
    protocol: "tcp",
    at: "10.1.0.1:3306",
    // Half of the flow table would be for flows that the kernel peek routes, and there are none here.
    body: "datapath: { peek: userspace }\n\
           listeners:\n  - { name: crowd, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: crowd }\n",
    apart: 20,
    kernel_ports: Some("32768 60999"),
};

/// Half of the flow table is for flows that programs route, and each CPU has a share of the ports to each host.
const PEEKED: Crowd = Crowd {
    helpers: 12,
    each: 8400,
    protocol: "http",
    at: "10.1.0.1:80",
    body: "datapath: { peek: kernel }\n\
           limits: { cut_flows: 262144 }\n\
           listeners:\n  - { name: crowd, protocol: http, listen: [\"10.1.0.1:80\"] }\n\
           routes:\n  - { host: a.test, clusters: { crowd: 1 } }\n",
    apart: 84,
    kernel_ports: None,
};

/// Code of the helpers, which are started as this test; it tests nothing itself.
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

mod share_4 {
    use super::*;

    #[lab_test]
    fn a_hundred_thousand_flows_idle_and_then_all_answer() {
        idle_and_answer(&CUT, |_, _| ());
    }

    /// Some find no free port, and userspace connects them.
    #[test]
    fn a_hundred_thousand_kernel_routed_flows_idle_and_then_answer() {
        if privileged("a_hundred_thousand_kernel_routed_flows_idle_and_then_answer") && !cut::lenient() {
            idle_and_answer(&PEEKED, |sb, all| {
                let delivered = kernel_peek::exits(sb, "delivered") as usize;
                println!("{delivered} of {all} were routed in the kernel");
                assert!(delivered * 100 >= all * 95, "{}", sb.get("/metrics").1);
            });
        }
    }
}

/// Opens the connections, and uses them all again: after a pause, while no process runs, with a successor.
fn idle_and_answer(crowd: &Crowd, expect: impl Fn(&Signalbox, usize)) {
    let helpers = crowd.helpers;
    let each = set("SIGNALBOX_E2E_CROWD", if cut::lenient() { 600 } else { crowd.each });
    let idle = Duration::from_secs(set("SIGNALBOX_E2E_CROWD_IDLE", 60) as u64);
    let all = each * helpers;
    let lab = cut::lab();
    let _health = servers::healthy(lab.host("east-1"));
    if let Some(ports) = crowd.kernel_ports {
        let setting = format!("net.ipv4.ip_local_port_range={ports}");
        lab.lb.must(&["sysctl", "-qw", &setting]);
    }
    let mut servers: Vec<_> = (0..helpers)
        .map(|n| Helper::server(lab.host("east-1"), 4000 + n as u16))
        .collect();
    servers.iter_mut().for_each(|server| drop(server.expect("listening")));
    let hosts: Vec<_> = (0..helpers)
        .map(|n| {
            let protocol = crowd.protocol;
            format!("{{ name: h{n}, address: \"10.2.0.2\", {protocol}: {} }}", 4000 + n)
        })
        .collect();
    let [health, ejection] = cut::PATIENT;
    let cluster = config::cluster_of("crowd", &["balance: least-connections", health, ejection], &hosts);
    let body = format!("{}clusters:\n{cluster}", crowd.body);
    let mut sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["h0", "h6"]);
    let before = sb.proc.resident();

    let start = Instant::now();
    let mut clients: Vec<_> = (0..helpers)
        .map(|n| {
            let port = 12_000 + n / ADDRESSES.len() * crowd.each;
            let from = format!("{}:{port}", ADDRESSES[n % ADDRESSES.len()]);
            Helper::client(&lab.client, &from, crowd.at, each)
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
    expect(&sb, all);
    let descriptors = cut::settled(|| cut::descriptors(&sb));
    println!(
        "{descriptors} descriptors, {} MiB resident more than before",
        (sb.proc.resident() - before) >> 20
    );
    assert!(cut::lenient() || descriptors < 1000, "{descriptors} descriptors");
    let mut sum = 0;
    for n in 0..helpers {
        let active = sb.host(&format!("h{n}"))["active_connections"].as_u64().unwrap() as usize;
        assert!(active.abs_diff(each) <= crowd.apart, "h{n} has {active} of {all}");
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
    for n in 0..helpers {
        assert_eq!(sb.host(&format!("h{n}"))["active_connections"], 0);
    }
}
