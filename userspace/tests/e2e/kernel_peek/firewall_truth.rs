//! Truth of the judge: rulesets are loaded into a kernel, and what it calls free is tried by real connections there.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use signalbox::kernel::packet_filter::PacketFilter;
use signalbox_core::firewall::{FilterVerdict, HostWay, IpFamily, ListenerFacts, judge};
use signalbox_lab::Sandbox;

use crate::lab;

use lab::topology::KIND;
use lab::{Ns, available, privileged};

/// Rules as one program shows them, of a file with those of several.
fn section<'a>(text: &'a str, of: &str) -> Option<&'a str> {
    let mut sections = text.split("## ");
    sections.find_map(|section| section.strip_prefix(of)?.strip_prefix('\n'))
}

/// Loads a ruleset. Tables of nftables beside those of iptables are left out.
pub(super) fn load(ns: &Ns, text: &str) -> Result<()> {
    if let Some(sets) = section(text, "ipset save") {
        ns.try_must(&["ipset", "restore"], sets)?;
    }
    let mut is_of_iptables = false;
    for program in ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"] {
        if let Some(rules) = section(text, &format!("{program}-save")) {
            is_of_iptables = true;
            ns.try_must(&[&format!("{program}-restore")], rules)?;
        }
    }
    match section(text, "nft --json --handle list ruleset") {
        Some(json) if !is_of_iptables => {
            let json = loadable(json)?;
            ns.try_must(&["nft", "--json", "--file", "-"], &json).map(drop)
        }
        _ => Ok(()),
    }
}

/// Makes a ruleset loadable that `nft` has listed: chains come before the maps that lead to them, and have devices.
fn loadable(json: &str) -> Result<String> {
    let mut listing: Value = serde_json::from_str(json)?;
    let items = listing["nftables"].as_array_mut().context("a listing")?;
    let place = |item: &Value| {
        ["metainfo", "table", "chain"]
            .iter()
            .position(|kind| item.get(kind).is_some())
    };
    items.sort_by_key(|item| place(item).unwrap_or(usize::MAX));
    for chain in items.iter_mut().filter_map(|item| item.get_mut("chain")) {
        if chain["hook"] == "ingress" {
            chain["dev"] = "eth0".into();
        }
    }
    Ok(listing.to_string())
}

const PORTS: [u16; 4] = [80, 443, 8443, 9000];
const HOSTS: [&str; 2] = ["198.51.100.20:6443", "198.51.100.21:6443"];
/// Clients' addresses.
const CLIENTS: [&str; 4] = ["192.0.2.1", "203.0.113.50", "10.4.5.6", "198.51.100.99"];

fn facts(port: u16) -> ListenerFacts {
    let host = |address: &str| HostWay {
        address: address.parse().unwrap(),
        sources: vec!["192.0.2.10".parse().unwrap()],
        interfaces: vec!["eth0".to_owned()],
        has_sole_address: true,
    };
    ListenerFacts {
        binds: vec![format!("192.0.2.10:{port}").parse().unwrap()],
        hosts: HOSTS.map(host).into(),
        interfaces: vec!["eth0".to_owned()],
        has_masters: false,
        own_ports: (16384, 28671),
    }
}

/// Connects from an address. Data goes both ways, and the other end sees the address and port.
fn exchange(from: &Ns, source: &str, to: &Ns, at: &str) -> Result<()> {
    let listener = to.run(|| TcpListener::bind(at))?;
    let opened = from.run(|| -> Result<TcpStream> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        let source: SocketAddr = format!("{source}:0").parse()?;
        socket.bind(&source.into())?;
        let at: SocketAddr = at.parse()?;
        socket.connect_timeout(&at.into(), Duration::from_secs(2))?;
        Ok(socket.into())
    });
    let mut client = opened?;
    let (mut server, seen) = listener.accept()?;
    anyhow::ensure!(seen == client.local_addr()?, "the other end sees {seen}");
    anyhow::ensure!(
        server.local_addr()? == at.parse()?,
        "the other end is {}",
        server.local_addr()?
    );
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    }
    let mut answer = [0; 4];
    client.write_all(b"ping")?;
    server.read_exact(&mut answer)?;
    server.write_all(b"pong")?;
    client.read_exact(&mut answer)?;
    anyhow::ensure!(&answer == b"pong", "{answer:?}");
    Ok(())
}

/// A balancer with its only way out by `eth0`, and everything else in another namespace.
fn network(sandbox: &Sandbox) -> Result<(Ns, Ns)> {
    let (world, lb) = (sandbox.namespace("world")?, sandbox.namespace("lb")?);
    world.cable("c0", &["192.0.2.1/24"], &lb, &["192.0.2.10/24"])?;
    lb.ip("route add default via 192.0.2.1\n")?;
    lb.sysctl(&["net.ipv4.ip_local_port_range=16384 28671"])?;
    let more = HOSTS.iter().map(|host| host.split_once(':').unwrap().0).chain(CLIENTS);
    let added = more.filter(|address| *address != "192.0.2.1");
    world.ip(&added
        .map(|address| format!("addr add {address}/32 dev lo\n"))
        .collect::<String>())?;
    Ok((world, lb))
}

#[test]
fn traffic_judged_free_passes_the_kernel_firewall_unchanged() {
    const TEST: &str = "traffic_judged_free_passes_the_kernel_firewall_unchanged";
    let programs = [("nft", "nftables"), ("iptables-nft", "iptables"), ("ipset", "ipset")];
    if !privileged(TEST) || !available(TEST, &programs) {
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/firewall/rulesets");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (mut free, mut some_left, mut wrong) = (0, 0, String::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let sandbox = Sandbox::new(&KIND).unwrap();
        let (world, lb) = network(&sandbox).unwrap();
        if let Err(error) = load(&lb, &text) {
            println!("{} is not loaded here: {error:#}", file.display());
            continue;
        }
        let rules = lb.run(|| PacketFilter::default().look());
        let rules = rules.unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        for port in PORTS {
            let left = match judge(&rules, &facts(port), IpFamily::V4) {
                FilterVerdict::Free => None,
                FilterVerdict::FreeExcept(left) => Some(left),
                FilterVerdict::Left(_) => continue,
            };
            let is_left = |client: &str| {
                let client = client.parse::<IpAddr>().unwrap();
                left.as_ref().is_some_and(|left| left.reason_for(client).is_some())
            };
            free += 1;
            some_left += usize::from(left.is_some());
            let at = format!("192.0.2.10:{port}");
            let clients = CLIENTS.into_iter().filter(|client| !is_left(client));
            let of_clients = clients.map(|client| exchange(&world, client, &lb, &at));
            let of_hosts = HOSTS.map(|host| exchange(&lb, "192.0.2.10", &world, host));
            for error in of_clients.chain(of_hosts).filter_map(Result::err) {
                wrong += &format!("{} at port {port} is judged free: {error:#}\n", file.display());
            }
        }
    }
    let found = format!("{free} verdicts are free, {some_left} of them with exceptions");
    println!("{found}");
    assert!(wrong.is_empty() && free > 50 && some_left > 5, "{found}\n{wrong}");
}
