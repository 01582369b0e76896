//! `cargo xtask bench xdp`: cost of a layer-4 service's packet, by BPF_PROG_TEST_RUN, against a program that only sends
//! it back; cost of tables; memory of a connection.

mod shield;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use signalbox::kernel::l4::test_run::{ProgramTester, TestProgram};
use signalbox_common::hash;
use signalbox_common::l4::abi::{SLOTS, state};
use signalbox_common::l4::{Host, L4Config, L4Flow, Service, mode};
use signalbox_common::net::{Key, Target};
use signalbox_core::routing::maglev::{self, Candidate};

use crate::bpf::TESTING;
use crate::packets;

/// Arguments of `cargo xtask bench xdp`.
#[derive(clap::Args)]
pub(crate) struct XdpArgs {
    /// Rounds of all measurements, one after the other; medians are shown
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Connections to hold at once
    #[arg(long, default_value_t = 1_000_000)]
    connections: u32,
    /// Packets per second through namespaces instead, beside nftables
    #[arg(long)]
    packets: bool,
    /// Length of a measurement through namespaces
    #[arg(long, value_name = "S", default_value_t = 2.0, requires = "packets")]
    seconds: f64,
    /// The signalbox to run, instead of one built from this checkout
    #[arg(long, value_name = "PATH", requires = "packets")]
    signalbox: Option<PathBuf>,
    /// Do not install missing packages
    #[arg(long, requires = "packets")]
    no_install: bool,
}

/// Runs of one call: a packet loses a hop with each, and has 255 of them.
const RUNS: u32 = 250;
/// Calls of each path in a round.
const CALLS: usize = 40;

const CLIENT: [u32; 4] = [0, 0, 0xffff, 0xc000_0207];
const VIP: [u32; 4] = [0, 0, 0xffff, 0xc633_6401];
const HOST: [u32; 4] = [0, 0, 0xffff, 0x0a00_0009];
const OURS: [u32; 4] = [0, 0, 0xffff, 0x0a00_0001];
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xc];
/// `MACS` the other way round, as words.
const BACK: [u32; 3] = [0x0200_0000, 0x000c_0200, 0x0000_0001];

/// A measurement: its name, the program, the frame, and the value that the program must return.
struct Path {
    name: &'static str,
    which: TestProgram,
    frame: Vec<u8>,
    returns: u32,
    runs: u32,
}

pub(crate) fn run(args: &XdpArgs) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "loading programs needs root");
    if args.packets {
        ensure!((0.2..=3600.0).contains(&args.seconds), "--seconds: from 0.2 to 3600");
        return packets::run(&packets::PacketPlan {
            rounds: args.rounds,
            length: Duration::from_secs_f64(args.seconds),
            signalbox: args.signalbox.as_deref(),
            may_install: !args.no_install,
        });
    }
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).context("a network namespace")?;
    // BPF_PROG_TEST_RUN has frames come in by loopback, and TC looks at none that are for other addresses.
    let named = std::process::Command::new("ip")
        .args(["link", "set", "lo", "address", "02:00:00:00:00:01"])
        .status();
    ensure!(
        named.is_ok_and(|status| status.success()),
        "`ip link set lo address` failed"
    );
    let mut trial = ProgramTester::load(args.connections, TESTING)?;
    let mut paths = prepare(&trial)?;
    let _listener = shield::prepare(&trial, &mut paths)?;
    println!(
        "ns per packet by BPF_PROG_TEST_RUN, 64-byte payload: median and 10th percentile of {} calls of {RUNS} packets each",
        args.rounds * CALLS
    );
    let mut times = vec![Vec::new(); paths.len()];
    for _ in 0..args.rounds * CALLS {
        for (path, times) in paths.iter().zip(&mut times) {
            times.push(measure(&mut trial, path)?);
        }
    }
    // The median is the cost beside everything else that this machine does, the tenth percentile the undisturbed cost.
    let found: Vec<[f64; 2]> = times
        .iter_mut()
        .map(|times| [percentile(times, 50), percentile(times, 10)])
        .collect();
    let bare = found.first().copied().unwrap_or([1.0; 2]);
    for (path, [median, tenth]) in paths.iter().zip(&found) {
        println!(
            "  {:<48} {median:>7.1}   {:>5.1} x bare {tenth:>9.1}   {:>5.1} x bare",
            path.name,
            median / bare[0],
            tenth / bare[1]
        );
    }
    tables(&trial)?;
    connections(&mut trial, args.connections)
}

fn prepare(trial: &ProgramTester) -> Result<Vec<Path>> {
    let service = |number, mode| Service {
        number,
        mode,
        flags: 0,
        table: 0,
        idle_ticks: 3_000_000,
        group: 0,
    };
    let host = Host {
        address: HOST,
        macs: [0x0200_0000, 0x000a_0200, 0x0000_0002],
        ifindex: 1,
        xdp_ifindex: 1,
        mtu: 1500,
        source_count: 64,
        ..Host::default()
    };
    let config = L4Config {
        first_port: 1024,
        port_count: 60_000,
        half_open_ticks: 60_000,
        outer_v4: 0xac10_0000,
        outer_v4_flow_mask: 0xffff,
        outer_v6: [0; 3],
        ..L4Config::default()
    };
    for source in 0..64u32 {
        let address = [0, 0, 0xffff, OURS[3] + (source << 8)];
        trial.sources.update(&source, &address)?;
    }
    trial.serve(&Target::new(VIP, 3306, 6), &service(1, mode::NAT), &host, &config)?;
    trial.serve(&Target::new(VIP, 80, 6), &service(2, mode::DSR_L2), &host, &config)?;
    for port in [3306, 80].into_iter().chain(1024..=61_023) {
        trial.open_port(port)?;
    }
    let flow = |mode| L4Flow {
        host: 0,
        service: 1,
        mode,
        state: state::ANSWERED,
        idle_ticks: u32::MAX / 4,
        macs: BACK,
        ifindex: 1,
        ..L4Flow::default()
    };
    // A flow that is translated into itself, so that the next run finds it again.
    let itself = |source: [u32; 4], destination: [u32; 4], ports: u32, direction: u16| {
        let key = Key {
            source,
            destination,
            ports,
            protocol: 6,
        };
        let flow = L4Flow {
            source,
            destination,
            ports,
            state: direction | state::ANSWERED,
            ..flow(mode::NAT)
        };
        (key, flow)
    };
    for (key, flow) in [
        itself(CLIENT, VIP, 40_000 << 16 | 3306, 0),
        itself(HOST, OURS, 3306 << 16 | 20_000, state::REPLY),
    ] {
        trial.add_established(&key, &flow)?;
    }
    let direct = Key {
        source: CLIENT,
        destination: VIP,
        ports: 40_000 << 16 | 80,
        protocol: 6,
    };
    trial.add_established(&direct, &flow(mode::DSR_L2))?;
    let stranger = frame(CLIENT, [0, 0, 0xffff, 0x0808_0808], 1, 2, 0x10, 0);
    let paths = [
        ("bare XDP_TX", TestProgram::Bare, stranger.clone(), 3, RUNS),
        ("xdp: no service's packet", TestProgram::Xdp, stranger.clone(), 2, RUNS),
        (
            "xdp: established, nat, to the host",
            TestProgram::Xdp,
            frame(CLIENT, VIP, 40_000, 3306, 0x10, 0),
            3,
            RUNS,
        ),
        (
            "xdp: established, nat, to the client",
            TestProgram::Xdp,
            frame(HOST, OURS, 3306, 20_000, 0x10, 0),
            3,
            RUNS,
        ),
        (
            "xdp: established, dsr-l2",
            TestProgram::Xdp,
            frame(CLIENT, VIP, 40_000, 80, 0x10, 0),
            3,
            RUNS,
        ),
        ("tc: no service's packet", TestProgram::Tc, stranger, u32::MAX, RUNS),
        (
            "tc: established, nat, to the host",
            TestProgram::Tc,
            frame(CLIENT, VIP, 40_000, 3306, 0x10, 0),
            7,
            RUNS,
        ),
    ];
    let path = |(name, which, frame, returns, runs)| Path {
        name,
        which,
        frame,
        returns,
        runs,
    };
    Ok(paths.into_iter().map(path).collect())
}

fn measure(trial: &mut ProgramTester, path: &Path) -> Result<f64> {
    let mut total = Duration::ZERO;
    // A path that is measured alone runs again and again: the first run would pay for cache lines that other paths have
    // displaced.
    let calls = if path.runs == 1 { RUNS } else { 1 };
    for _ in 0..calls {
        let (returned, _, time) = trial.run(path.which, &path.frame, path.runs)?;
        ensure!(returned == path.returns, "{}: it returned {returned}", path.name);
        total += time;
    }
    Ok(total.as_nanos() as f64 / f64::from(calls))
}

fn median(times: &mut [f64]) -> f64 {
    percentile(times, 50)
}

/// Percentile: the value that `percent` of a hundred do not exceed.
fn percentile(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

/// Measures the cost of a change of hosts: a table of a thousand hosts with weights from 1 to 100.
fn tables(trial: &ProgramTester) -> Result<()> {
    let hosts: Vec<Candidate> = (0..1000u16)
        .map(|index| Candidate {
            index,
            weight: 1 + u32::from(index) % 100,
            identity: hash::mix(u64::from(index))
                .to_le_bytes()
                .repeat(2)
                .try_into()
                .unwrap_or_default(),
        })
        .collect();
    let timed = |what: &mut dyn FnMut()| {
        let mut times: Vec<f64> = (0..9)
            .map(|_| {
                let began = Instant::now();
                what();
                began.elapsed().as_secs_f64() * 1000.0
            })
            .collect();
        median(&mut times)
    };
    let base = maglev::build(&hosts);
    let build = timed(&mut || drop(maglev::build(&hosts)));
    let repair = timed(&mut || drop(maglev::repaired(&base, |host| host != 7)));
    let bytes: Vec<u8> = base.iter().flat_map(|slot| slot.to_ne_bytes()).chain([0; 6]).collect();
    let swap = timed(&mut || drop(trial.swap_table(&bytes)));
    println!("table of 1000 hosts, weights 1-100, {SLOTS} slots, ms");
    println!("  built {build:.2}, one host out {repair:.2}, swapped in {swap:.2}");
    let moved = |other: &[u16], gone: u16| {
        let all = base.iter().zip(other);
        all.filter(|(before, after)| before != after && **before != gone)
            .count() as f64
            * 100.0
            / f64::from(SLOTS)
    };
    let without: Vec<Candidate> = hosts.iter().filter(|host| host.index != 7).cloned().collect();
    println!(
        "  slots moved needlessly by a host that goes: {:.2} % rebuilt, {:.2} % repaired",
        moved(&maglev::build(&without), 7),
        moved(&maglev::repaired(&base, |host| host != 7), 7)
    );
    trial.swap_table(&vec![0; bytes.len()])?;
    Ok(())
}

/// Measures the memory of connections, each opened by its SYN, the host's answer and the client's acknowledgement.
fn connections(trial: &mut ProgramTester, wanted: u32) -> Result<()> {
    let before = available()?;
    let began = Instant::now();
    let (mut established, mut refused) = (0u32, 0u32);
    let mut number = 0u32;
    while established < wanted && number < wanted.saturating_mul(2) {
        number += 1;
        let client = [0, 0, 0xffff, 0x1700_0000 + number / 50_000];
        let port = (1024 + number % 50_000) as u16;
        let (returned, sent, _) = trial.run(TestProgram::Xdp, &frame(client, VIP, port, 3306, 0x02, 0), 1)?;
        if returned != 3 {
            refused += 1;
            continue;
        }
        let word = |at: usize| {
            sent.get(at..at + 4)
                .and_then(|b| b.try_into().ok())
                .map_or(0, u32::from_be_bytes)
        };
        let (ours, our_port) = ([0, 0, 0xffff, word(26)], (word(34) >> 16) as u16);
        trial.run(TestProgram::Xdp, &frame(HOST, ours, 3306, our_port, 0x12, 1), 1)?;
        trial.run(TestProgram::Xdp, &frame(client, VIP, port, 3306, 0x10, 1), 1)?;
        established += 1;
    }
    let took = began.elapsed();
    let mut held = 0u64;
    trial.established.for_each::<Key, L4Flow>(|_, _| held += 1)?;
    let used = before.saturating_sub(available()?);
    println!("connections opened one after the other by three packets each, mode nat");
    println!(
        "  {established} in {:.1} s ({refused} found no port), {} entries held, {} bytes of memory for each connection",
        took.as_secs_f64(),
        held,
        used * 1024 / u64::from(established.max(1))
    );
    Ok(())
}

/// Available memory (`MemAvailable`), in KiB.
fn available() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.context("/proc/meminfo has no line MemAvailable")
}

/// Frame of TCP over IPv4 with 64 bytes of payload and right checksums.
fn frame(from: [u32; 4], to: [u32; 4], source: u16, destination: u16, flags: u8, ack: u32) -> Vec<u8> {
    let mut tcp = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    tcp.extend([0; 4]);
    tcp.extend(ack.to_be_bytes());
    tcp.extend([5 << 4, flags, 0x10, 0, 0, 0, 0, 0]);
    if flags & 2 == 0 {
        tcp.extend([0x55; 64]);
    }
    let mut ip = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 255, 6, 0, 0];
    ip.extend(from[3].to_be_bytes());
    ip.extend(to[3].to_be_bytes());
    let length = (ip.len() + tcp.len()) as u16;
    ip.splice(2..4, length.to_be_bytes());
    let sum = checksum(&ip);
    ip.splice(10..12, sum.to_be_bytes());
    let pseudo = [&ip[12..20], &[0, 6], &(tcp.len() as u16).to_be_bytes(), &tcp].concat();
    let sum = checksum(&pseudo);
    tcp.splice(16..18, sum.to_be_bytes());
    [&MACS[..], &[8, 0], &ip, &tcp].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
