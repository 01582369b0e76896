//! The kernel peek: connections that are routed by their first data in the kernel, and those that are left to userspace.
//! The tests of tier `cut` run on this path too, with `SIGNALBOX_E2E_PEEK=kernel`.

mod balance;
mod chosen;
mod clients;
mod clsact;
mod exact;
mod firewall;
mod firewall_truth;
mod foreign;
mod guesses;
mod hosts;
mod left_out;
mod life;
mod limits;
mod lists;
mod logged;
mod orphan;
mod parts;
mod proxied;
mod repaired;
mod repeats;
mod routing;
mod soak;
mod start;
mod syn_timer;
mod two_cpus;
mod verdicts;
mod waiting;
mod wildcards;

use crate::lab;

use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use lab::cut::{self, CutLab, Door, Hosts};
use lab::{Ns, SOON, Server, Signalbox, eventually, hello, privileged};

/// Switches it on.
pub(crate) const PEEK: &str = "datapath: { peek: kernel }";

/// The lab, where connections can be routed in the kernel.
fn lab(test: &str) -> Option<CutLab> {
    (privileged(test) && !cut::lenient()).then(cut::lab)
}

/// Doors whose clients first send the name that they want, in one segment.
pub(crate) fn doors() -> Vec<Door> {
    let mut doors = cut::doors();
    doors.retain(|door| !door.first.is_empty());
    for door in &mut doors {
        let name = if door.cluster == "east" { "a.test" } else { "b.test" };
        if door.port == 443 {
            door.first = hello::records(&hello::short_client_hello(name), 1);
        }
    }
    doors
}

/// How often the program ended so.
pub(crate) fn exits(sb: &Signalbox, reason: &str) -> u64 {
    sb.metric(&format!(
        "signalbox_bpf_exits_total{{program=\"peek_in\",reason=\"{reason}\"}}"
    )) as u64
}

/// Starts signalbox with a configuration, and waits until `routes` names are routed in the kernel.
fn start_with(lab: &CutLab, body: &str, routes: u32) -> Signalbox {
    let sb = Signalbox::start(lab, body);
    expect_routes(&sb, routes);
    sb
}

fn expect_routes(sb: &Signalbox, routes: u32) {
    let in_kernel = || sb.metric("signalbox_kernel_peek_routes");
    assert!(
        eventually(SOON, || in_kernel() == f64::from(routes)),
        "{} names are routed in the kernel\n{}",
        in_kernel(),
        sb.get("/metrics").1
    );
}

/// Starts signalbox in front of hosts that the test serves: `a.test` and `b.test`, by HTTP and TLS.
fn start(lab: &CutLab) -> (Vec<Server>, Hosts, Signalbox) {
    let hosts = Hosts::start(lab);
    let (health, sb) = cut::start(lab, PEEK);
    expect_routes(&sb, 4);
    (health, hosts, sb)
}

/// Connections of the balancer's that have sockets at these local ports.
fn sockets(lab: &CutLab) -> String {
    let filter = "( sport = :80 or sport = :443 or dport = :80 or dport = :443 )";
    lab.lb.must(&["ss", "-Htn", "state", "established", filter])
}

/// Has a packet filter drop packets on a hook.
fn filter(ns: &Ns, family: &str, hook: &str, packets: &str) {
    for words in [
        format!("add table {family} lost"),
        format!("add chain {family} lost it {{ type filter {hook} priority 0 ; }}"),
        format!("add rule {family} lost it {packets}"),
    ] {
        ns.must(&["nft", &words]);
    }
}

/// Has the packets of this thread arrive at one CPU, as a network card does with those of a connection: another one's
/// are repeated.
fn stay_on_this_cpu() {
    let mut cpus = CpuSet::new();
    cpus.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
}
