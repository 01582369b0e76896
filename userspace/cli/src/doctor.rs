//! Examines what this machine can do: each feature is fine, degraded with its consequences, or missing with a fix. Uses
//! the same code as `run`, so that the two cannot disagree.

mod availability;
mod fast_path;
mod programs;
mod rights;

use std::fs;
use std::process::ExitCode;

use serde::Serialize;
use signalbox_api::ha::HaAnswer;
use signalbox_api::services::ServicesAnswer;
use signalbox_api::status::StatusAnswer;

use crate::OutputFormat;
use signalbox_kernel::sockmap::kernel_is_sound;
use signalbox_kernel::verifier::ProgramVerdict;
use signalbox_kernel::version::Version;

/// Status of a checked feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Ok,
    /// The feature works, but less well than it could.
    Degraded,
    /// Something needed is missing.
    Missing,
}

/// Result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    standing: CheckStatus,
    found: String,
    /// Consequence, and how to fix it.
    advice: Option<String>,
}

fn ok(what: &'static str, found: impl Into<String>) -> Finding {
    Finding {
        what,
        standing: CheckStatus::Ok,
        found: found.into(),
        advice: None,
    }
}

fn degraded(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding {
        what,
        standing: CheckStatus::Degraded,
        found: found.into(),
        advice: Some(advice.into()),
    }
}

/// Answers of a running signalbox.
pub(super) struct Running {
    pub(super) status: anyhow::Result<StatusAnswer>,
    pub(super) ha: anyhow::Result<HaAnswer>,
    pub(super) services: anyhow::Result<ServicesAnswer>,
}

/// Prints the findings. The exit code is that of the worst finding.
pub(super) fn run(output: OutputFormat, verbose: bool, running: Option<Running>) -> anyhow::Result<ExitCode> {
    let (mut findings, verdicts) = examine();
    let node = running.as_ref().and_then(|running| running.ha.as_ref().ok());
    let of_ha = availability::examine(node);
    if let Some(running) = running {
        findings.extend(
            running
                .status
                .as_ref()
                .ok()
                .map(|status| fast_path::examine(&status.fast_path)),
        );
        findings.push(rights::running_capabilities(running.status));
        findings.extend(of_ha);
        findings.push(services(running.services));
    } else {
        findings.extend(of_ha);
    }
    let worst = findings.iter().map(|f| f.standing).max().unwrap_or(CheckStatus::Ok);
    if output == OutputFormat::Table {
        for finding in &findings {
            let standing = format!("{:?}", finding.standing).to_lowercase();
            println!("{standing:<9} {:<26} {}", finding.what, finding.found);
            if let Some(advice) = &finding.advice {
                println!("{:<9} {:<26} -> {advice}", "", "");
            }
        }
        if verbose {
            programs::print(&verdicts);
        }
    } else {
        crate::emit(
            &serde_json::json!({
                "apiVersion": "v1",
                "version": env!("CARGO_PKG_VERSION"),
                "kernel": Version::running().to_string(),
                "worst": worst,
                "findings": findings,
                "programs": verdicts,
            }),
            output,
        )?;
    }
    Ok(ExitCode::from(worst as u8))
}

fn examine() -> (Vec<Finding>, Vec<ProgramVerdict>) {
    let mut all = vec![kernel_version(), rights::capabilities(), rights::pins(), btf(), jit()];
    let (of_programs, verdicts) = programs::examine();
    all.extend(of_programs);
    all.extend([
        descriptors(),
        backlog(),
        ports(),
        timewait(),
        pipes(),
        socket_memory(),
        conntrack(),
        ipv6(),
    ]);
    all.extend(direct_return());
    (all, verdicts)
}

fn kernel_version() -> Finding {
    let version = Version::running();
    if kernel_is_sound(&version) {
        ok("kernel", version.to_string())
    } else {
        degraded(
            "kernel",
            version.to_string(),
            "its socket maps have known bugs: tier sockmap is used only where a listener demands it. Fixed in 6.1.191, \
             6.12.104 and 6.18",
        )
    }
}

fn btf() -> Finding {
    if fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false) {
        ok("BTF", "/sys/kernel/btf/vmlinux")
    } else {
        degraded(
            "BTF",
            "missing",
            "the programs work without it, but bpftool shows less about them",
        )
    }
}

fn jit() -> Finding {
    match sysctl("net/core/bpf_jit_enable").as_deref() {
        Some("0") => degraded(
            "BPF JIT",
            "off",
            "the programs are interpreted, which is several times slower: sysctl -w net.core.bpf_jit_enable=1",
        ),
        Some(value) => ok("BPF JIT", format!("net.core.bpf_jit_enable = {value}")),
        // Not readable: kernels with CONFIG_BPF_JIT_ALWAYS_ON hide it from containers.
        None => ok("BPF JIT", "not readable here"),
    }
}

/// Checks a backend host of a DSR service; `None` on a machine without a service's address on its loopback.
fn direct_return() -> Option<Finding> {
    let what = "direct return";
    let addresses = nix::ifaddrs::getifaddrs().ok()?;
    let on_loopback: Vec<String> = addresses
        .filter(|one| one.interface_name == "lo")
        .filter_map(|one| one.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| std::net::IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
        })
        .filter(|address| !address.is_loopback())
        .map(|address| address.to_string())
        .collect();
    if on_loopback.is_empty() {
        return None;
    }
    let mut wrong = Vec::new();
    if number("net/ipv4/conf/all/arp_ignore").unwrap_or(0) == 0 {
        wrong.push("it answers ARP for these addresses: set net.ipv4.conf.all.arp_ignore=1 and arp_announce=2");
    }
    if number("net/ipv4/conf/all/rp_filter").unwrap_or(0) == 1 {
        wrong.push("packets from a tunnel are dropped: set net.ipv4.conf.all.rp_filter=0 (dsr-ipip only)");
    }
    if !decapsulates() {
        wrong.push(
            "nothing decapsulates tunnels: add a device of type ipip, or run `signalbox unwrap INTERFACE` (dsr-ipip \
             only)",
        );
    }
    let found = format!(
        "{} on lo, as on a host of a service in mode dsr-l2 or dsr-ipip",
        on_loopback.join(", ")
    );
    Some(if wrong.is_empty() {
        ok(what, found)
    } else {
        Finding {
            what,
            standing: CheckStatus::Ok,
            found,
            advice: Some(format!("if this is such a host: {}", wrong.join("; "))),
        }
    })
}

/// Returns whether tunnel headers are removed, by a tunnel device or by our own program.
fn decapsulates() -> bool {
    // ARPHRD_TUNNEL and ARPHRD_TUNNEL6 (include/uapi/linux/if_arp.h).
    let is_tunnel = |kind: &str| matches!(kind.trim(), "768" | "769");
    let devices = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut kinds = devices.filter_map(|device| fs::read_to_string(device.path().join("type")).ok());
    kinds.any(|kind| is_tunnel(&kind)) || signalbox_kernel::l4::decap::is_attached()
}

fn descriptors() -> Finding {
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
    let connections =
        signalbox_core::limits::descriptors::connection_limit(hard, signalbox_core::model::DEFAULT_ADMIN_CONNECTIONS);
    let found = format!("{hard}: {connections} connections");
    let remedy = "LimitNOFILE=1048576 in the unit, or ulimit -Hn, allows more";
    match hard {
        65_536.. => ok("descriptors", found),
        1024.. => degraded("descriptors", found, remedy),
        _ => Finding {
            what: "descriptors",
            standing: CheckStatus::Missing,
            found,
            advice: Some(remedy.into()),
        },
    }
}

/// Returns the problems of a running signalbox's services and shield.
fn services(answer: anyhow::Result<ServicesAnswer>) -> Finding {
    let troubles = answer.unwrap_or_default().troubles;
    match &troubles[..] {
        [] => ok("services", "as configured"),
        _ => degraded("services", "not as configured", troubles.join("; ")),
    }
}

fn sysctl(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/{name}"))
        .ok()
        .map(|value| value.trim().to_owned())
}

fn number(name: &str) -> Option<u64> {
    sysctl(name)?.split_whitespace().next()?.parse().ok()
}

fn sysctl_at_least(what: &'static str, name: &str, wanted: u64, follows: &str) -> Finding {
    let dotted = name.replace('/', ".");
    match number(name) {
        Some(value) if value >= wanted => ok(what, format!("{dotted} = {value}")),
        Some(value) => degraded(
            what,
            format!("{dotted} = {value}"),
            format!("{follows}: sysctl -w {dotted}={wanted}"),
        ),
        None => degraded(what, format!("{dotted} cannot be read"), follows.to_owned()),
    }
}

fn backlog() -> Finding {
    sysctl_at_least(
        "accept queue",
        "net/core/somaxconn",
        4096,
        "bursts of new connections are dropped and retried after a second",
    )
}

fn ports() -> Finding {
    // The kernel puts a tab between the two ports.
    let range = sysctl("net/ipv4/ip_local_port_range").unwrap_or_default();
    let range = range.split_whitespace().collect::<Vec<_>>().join(" to ");
    let mut ends = range.split(' ').filter_map(|end| end.parse::<u64>().ok());
    let count = match (ends.next(), ends.next()) {
        (Some(low), Some(high)) => high.saturating_sub(low) + 1,
        _ => 0,
    };
    if count >= 28_000 {
        ok(
            "source ports",
            format!("{range}: {count} connections to one port of a host"),
        )
    } else {
        degraded(
            "source ports",
            range,
            "only few connections to one port of a host are possible at once: sysctl -w \
             net.ipv4.ip_local_port_range='10240 65535'",
        )
    }
}

fn timewait() -> Finding {
    match number("net/ipv4/tcp_tw_reuse") {
        Some(0) => degraded(
            "TIME_WAIT",
            "net.ipv4.tcp_tw_reuse = 0",
            "source ports run out sooner with many short connections: sysctl -w net.ipv4.tcp_tw_reuse=2 (loopback) or \
             1",
        ),
        Some(value) => ok("TIME_WAIT", format!("net.ipv4.tcp_tw_reuse = {value}")),
        None => ok("TIME_WAIT", "not readable here"),
    }
}

fn pipes() -> Finding {
    sysctl_at_least(
        "pipes",
        "fs/pipe-max-size",
        signalbox_core::limits::descriptors::PIPE_CAPACITY_BYTES as u64,
        "splice moves less at once",
    )
}

fn socket_memory() -> Finding {
    let most = |name: &str| sysctl(name).and_then(|v| v.split_whitespace().nth(2).and_then(|v| v.parse::<u64>().ok()));
    match (most("net/ipv4/tcp_rmem"), most("net/ipv4/tcp_wmem")) {
        (Some(read), Some(write)) => ok(
            "socket buffers",
            format!(
                "up to {} KiB to read and {} KiB to write for each socket",
                read / 1024,
                write / 1024
            ),
        ),
        _ => ok("socket buffers", "not readable here"),
    }
}

fn conntrack() -> Finding {
    match number("net/netfilter/nf_conntrack_max") {
        None => ok("conntrack", "not loaded"),
        Some(max) => {
            let count = number("net/netfilter/nf_conntrack_count").unwrap_or(0);
            let found = format!("{count} of {max} entries");
            if count * 10 > max * 8 {
                degraded(
                    "conntrack",
                    found,
                    "a full table drops new connections: raise net.netfilter.nf_conntrack_max, or exempt \
                     signalbox's ports with a notrack rule",
                )
            } else {
                // Packets of cut flows bypass conntrack, which keeps their entries as long as those of any connection.
                degraded(
                    "conntrack",
                    found,
                    "conntrack keeps entries of cut flows for days (nf_conntrack_tcp_timeout_established): nft add \
                     rule inet raw prerouting tcp dport { 80, 443 } notrack, and the same for the hosts' ports at \
                     output",
                )
            }
        }
    }
}

fn ipv6() -> Finding {
    match sysctl("net/ipv6/conf/all/disable_ipv6").as_deref() {
        Some("0") => ok("IPv6", "on"),
        _ => degraded(
            "IPv6",
            "off",
            "IPv6 listeners and hosts do not work: sysctl -w net.ipv6.conf.all.disable_ipv6=0",
        ),
    }
}
