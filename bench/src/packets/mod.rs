//! `cargo xtask bench xdp --packets`: small packets of UDP through a service, in a network of namespaces, against the
//! kernel's own forwarding, and nftables that translate addresses.
//!
//! The client sends as fast as it can; packets that arrive at the hosts, translated, count. The whole cost of a packet,
//! from the client's system call to the host's interface, is on the same CPUs, so the rate is the inverse of it.
//! Forwarding shows which part of it is not the balancer's.

mod contender;
mod flows;
mod hosts;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use signalbox_lab::Cpu;

use crate::interrupt;
use crate::lab::Lab;
use crate::machine;
use crate::order::turns;
use crate::packages;
use crate::process;
use crate::product;
use contender::PacketContender;
use flows::Flows;
use hosts::PacketHosts;

/// First port of the service, and of the hosts.
const PORT: u16 = 7000;
/// Number of ports, and below of the client's sockets: each pair of them is a flow.
const PORTS: u16 = 64;
const SOCKETS: u16 = 16;
/// Time that the sender runs before a measurement begins.
const WARM_UP_INTERVAL: Duration = Duration::from_millis(500);

/// Plan of a run.
pub(crate) struct PacketPlan<'a> {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    /// The signalbox to run, instead of one built from this checkout.
    pub(crate) signalbox: Option<&'a Path>,
    pub(crate) may_install: bool,
}

/// Result of one turn of one contender.
struct PacketSample {
    /// Packets that arrived, per second.
    arrived: f64,
    /// Part of the packets sent that did not arrive.
    lost: f64,
    /// CPU time in ns for a packet that arrived: of the sender, in whose softirqs packets go all the way, and of the
    /// kernel's threads for softirqs. Other processes may use the machine at the same time.
    cpu: f64,
    /// Time in ns for a packet that arrived, of all CPUs in softirqs.
    softirq: f64,
}

/// Samples of a contender, by round.
type PacketSeries = Vec<(usize, PacketSample)>;

/// Context of all turns: network and hosts.
struct PacketBench {
    lab: Lab,
    hosts: PacketHosts,
    signalbox: PathBuf,
    length: Duration,
}

pub(crate) fn run(plan: &PacketPlan<'_>) -> Result<()> {
    ensure!(plan.rounds > 0, "--rounds: at least 1");
    packages::ensure_installed(&packages::PACKETS, plan.may_install)?;
    let signalbox = product::signalbox(plan.signalbox, product::MEASURED)?;
    interrupt::install()?;
    let lab = Lab::new()?;
    // A veth takes nothing from XDP at the other end unless it polls, as network cards do. All contenders have it so.
    for ns in lab.hosts.iter().chain([&lab.client]) {
        ns.try_must(&["ethtool", "-K", "eth0", "gro", "on"], "")?;
    }
    let bench = PacketBench {
        hosts: PacketHosts::start(&lab)?,
        lab,
        signalbox,
        length: plan.length,
    };
    let mut series: Vec<PacketSeries> = PacketContender::ALL.iter().map(|_| Vec::new()).collect();
    let mut turn = 0;
    for round in 0..plan.rounds {
        for index in turns(PacketContender::ALL.len(), round) {
            let contender = PacketContender::ALL[index];
            let sample = bench.measure(contender, turn);
            series[index].push((round, sample.with_context(|| contender.name())?));
            turn += 1;
        }
    }
    print!("{}", table::text(&series, plan));
    Ok(())
}

impl PacketBench {
    fn measure(&self, contender: PacketContender, turn: u16) -> Result<PacketSample> {
        let mut running = contender.start(&self.lab, &self.signalbox)?;
        let flows = Flows::open(&self.lab, contender.targets(), turn)?;
        flows.greet(|| running.death())?;
        let counter = self.hosts.count(&self.lab)?;
        let load = flows.load();
        interrupt::sleep_until(Instant::now() + WARM_UP_INTERVAL)?;
        let kernel = softirq_threads();
        let read = || -> Result<_> {
            let (user, system) = process::jiffies(&kernel);
            let busy = load.busy() + machine::time(user + system);
            Ok((
                Instant::now(),
                busy,
                Cpu::now().softirq,
                load.sent(),
                counter.arrived()?,
            ))
        };
        let (began, busy, softirq, sent, arrived) = read()?;
        interrupt::sleep_until(Instant::now() + self.length)?;
        let (ended, busy_after, softirq_after, sent_after, arrived_after) = read()?;
        load.end()?;
        let each = arrived.iter().zip(&arrived_after).map(|(before, after)| after - before);
        let each: Vec<u64> = each.collect();
        ensure!(!each.contains(&0), "a host got nothing: {each:?}");
        let arrived = each.iter().sum::<u64>() as f64;
        let of_each = |time: Duration| time.as_nanos() as f64 / arrived;
        Ok(PacketSample {
            arrived: arrived / (ended - began).as_secs_f64(),
            // The two counts are read a moment apart, so the difference may be negative.
            lost: (1.0 - arrived / (sent_after - sent) as f64).max(0.0),
            cpu: of_each(busy_after.saturating_sub(busy)),
            softirq: of_each(machine::time(softirq_after - softirq)),
        })
    }
}

/// Pids of the kernel's threads that take over where there are too many softirqs.
fn softirq_threads() -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|s| s.starts_with("ksoftirqd/"));
    pids.filter(is_one).collect()
}
