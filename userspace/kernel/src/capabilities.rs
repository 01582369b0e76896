//! Capabilities of this process: those that signalbox uses, tested by use where that is possible, and the effect of
//! each that is missing.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Socket, Type};

/// A capability, and its use in signalbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    pub name: &'static str,
    /// Bit of the capability (`include/uapi/linux/capability.h`).
    pub bit: u32,
    pub purpose: CapabilityUse,
    /// Effect where the capability is missing.
    pub without: &'static str,
}

/// Purpose of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapabilityUse {
    /// Loading and attaching any eBPF program.
    Programs,
    /// Loading the programs of tier `cut`, of services and of the shield, which do arithmetic on pointers.
    Rewriting,
    /// Sending resets to both ends of a flow that has no sockets.
    Resets,
    /// Listening on privileged ports.
    LowPorts,
}

/// Bit of `CAP_SYS_ADMIN`, which includes `CAP_BPF` and `CAP_PERFMON`, as before 5.8.
const SYS_ADMIN_BIT: u32 = 21;

/// Capabilities that signalbox uses; root has all of them.
pub const ALL: [Capability; 5] = [
    Capability {
        name: "CAP_BPF",
        bit: 39,
        purpose: CapabilityUse::Programs,
        without: "no eBPF program can be loaded: addresses are bound one by one, flows go by splice and copy, and there are no services and no shield",
    },
    Capability {
        name: "CAP_NET_ADMIN",
        bit: 12,
        purpose: CapabilityUse::Programs,
        without: "no eBPF program can be attached: addresses are bound one by one, flows go by splice and copy, and there are no services and no shield",
    },
    Capability {
        name: "CAP_PERFMON",
        bit: 38,
        purpose: CapabilityUse::Rewriting,
        without: "the kernel refuses the programs of cut-through, of services and of the shield",
    },
    Capability {
        name: "CAP_NET_RAW",
        bit: 13,
        purpose: CapabilityUse::Resets,
        without: "flows of cut-through and of services that are ended (idle, drained, rotated out by force) end silently: client and host are not reset",
    },
    Capability {
        name: "CAP_NET_BIND_SERVICE",
        bit: 10,
        purpose: CapabilityUse::LowPorts,
        without: "ports below net.ipv4.ip_unprivileged_port_start cannot be listened on",
    },
];

impl Capability {
    /// Returns whether this process has the capability. Tested by use where possible: a sysctl or a security module may
    /// allow or forbid it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self.purpose {
            CapabilityUse::Resets => raw_socket(Domain::IPV4).is_ok(),
            CapabilityUse::LowPorts => low_port().is_ok(),
            CapabilityUse::Programs if self.bit == 12 => has(self.bit),
            CapabilityUse::Programs | CapabilityUse::Rewriting => has(self.bit) || has(SYS_ADMIN_BIT),
        }
    }
}

/// Returns the capabilities that this process lacks.
#[must_use]
pub fn missing() -> Vec<Capability> {
    ALL.into_iter().filter(|right| !right.is_held()).collect()
}

/// Returns the first capability of a need that this process lacks.
pub fn missing_for(need: CapabilityUse) -> Option<&'static str> {
    let lacking = ALL.iter().find(|right| right.purpose == need && !right.is_held());
    lacking.map(|right| right.name)
}

/// Words the capabilities that are missing for a need, for the message of a failed load: ` without CAP_BPF`, or
/// nothing.
pub(super) fn missing_text(need: CapabilityUse) -> String {
    let lacking = ALL.iter().filter(|right| right.purpose == need && !right.is_held());
    let names: Vec<_> = lacking.map(|right| right.name).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" without {}", names.join(" and "))
    }
}

/// Opens a socket for packets whose IP headers we write ourselves: `IPPROTO_RAW`.
pub(super) fn raw_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::RAW, Some(socket2::Protocol::from(255)))
}

/// Returns the first port that needs no capability to listen on.
#[must_use]
pub fn unprivileged_port_start() -> u16 {
    let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    start.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// Binds the highest port that needs the capability, without listening. Succeeds where there is no such port.
fn low_port() -> io::Result<()> {
    let Some(port) = unprivileged_port_start().checked_sub(1).filter(|port| *port > 0) else {
        return Ok(());
    };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    match socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into()) {
        // AddrInUse: another socket has the port. The kernel checks the capability first, so we have it.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()),
        outcome => outcome,
    }
}

fn has(bit: u32) -> bool {
    // A thread's own, as all capabilities are.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    effective(&status) & (1 << bit) != 0
}

fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000000c000003400\n"), 0xc0_0000_3400);
        // The documented list of capabilities, exactly.
        let all = ALL.iter().fold(0, |mask, right| mask | 1u64 << right.bit);
        assert_eq!(all, 0xc0_0000_3400);
        assert_eq!(effective(""), 0);
    }

    #[test]
    fn the_documents_name_them_all() {
        for document in [
            include_str!("../../../README.md"),
            include_str!("../../../docs/install.md"),
        ] {
            for right in ALL {
                assert!(document.contains(right.name), "{}", right.name);
            }
        }
        let unit = ALL.map(|right| right.name).join(" ");
        let install = include_str!("../../../docs/install.md");
        assert!(install.contains(&format!("AmbientCapabilities={unit}")));
    }
}
