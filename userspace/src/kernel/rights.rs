//! What this process may do: the capabilities that signalbox uses, tried where they can be tried, and what follows
//! where one is missing.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Socket, Type};

/// A capability, and what signalbox needs it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    pub capability: &'static str,
    /// Its bit (`include/uapi/linux/capability.h`).
    bit: u32,
    pub need: Need,
    /// What follows where it is missing.
    pub without: &'static str,
}

/// What a right is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Any eBPF program.
    Programs,
    /// The programs of cut-through, of services and of the shield, which do arithmetic on pointers.
    Rewriting,
    /// Resets to both ends of a flow that has no sockets.
    Resets,
    /// Listening on low ports.
    LowPorts,
}

/// `CAP_SYS_ADMIN`: in place of `CAP_BPF` and `CAP_PERFMON`, as before 5.8.
const SYS_ADMIN_BIT: u32 = 21;

/// All that signalbox uses; root has them.
pub const ALL: [Right; 5] = [
    Right {
        capability: "CAP_BPF",
        bit: 39,
        need: Need::Programs,
        without: "no eBPF program can be loaded: addresses are bound one by one, flows go by splice and copy, and there are no services and no shield",
    },
    Right {
        capability: "CAP_NET_ADMIN",
        bit: 12,
        need: Need::Programs,
        without: "no eBPF program can be attached: addresses are bound one by one, flows go by splice and copy, and there are no services and no shield",
    },
    Right {
        capability: "CAP_PERFMON",
        bit: 38,
        need: Need::Rewriting,
        without: "the kernel refuses the programs of cut-through, of services and of the shield",
    },
    Right {
        capability: "CAP_NET_RAW",
        bit: 13,
        need: Need::Resets,
        without: "flows of cut-through and of services that are ended (idle, drained, rotated out by force) end without a word: client and host are not reset",
    },
    Right {
        capability: "CAP_NET_BIND_SERVICE",
        bit: 10,
        need: Need::LowPorts,
        without: "ports below net.ipv4.ip_unprivileged_port_start cannot be listened on",
    },
];

impl Right {
    /// Whether this process has it. What can be tried is tried: a sysctl or a security module may allow or forbid it.
    #[must_use]
    pub fn is_there(&self) -> bool {
        match self.need {
            Need::Resets => raw_socket(Domain::IPV4).is_ok(),
            Need::LowPorts => low_port().is_ok(),
            Need::Programs if self.bit == 12 => has(self.bit),
            Need::Programs | Need::Rewriting => has(self.bit) || has(SYS_ADMIN_BIT),
        }
    }
}

/// What of all that this process lacks.
#[must_use]
pub fn missing() -> Vec<Right> {
    ALL.into_iter().filter(|right| !right.is_there()).collect()
}

/// The first capability that this takes and this process lacks.
pub fn missing_for(need: Need) -> Option<&'static str> {
    let lacking = ALL.iter().find(|right| right.need == need && !right.is_there());
    lacking.map(|right| right.capability)
}

/// For the message of a failed load: ` without CAP_BPF`, or nothing.
pub(super) fn lacking(need: Need) -> String {
    let lacking = ALL.iter().filter(|right| right.need == need && !right.is_there());
    let names: Vec<_> = lacking.map(|right| right.capability).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" without {}", names.join(" and "))
    }
}

/// A socket to send packets by whose headers are our own; `IPPROTO_RAW`.
pub(super) fn raw_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::RAW, Some(socket2::Protocol::from(255)))
}

/// The first port that everybody may listen on.
#[must_use]
pub fn unprivileged_port_start() -> u16 {
    let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    start.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// Binds the highest port that takes the right, without listening; nothing where no port does.
fn low_port() -> io::Result<()> {
    let Some(port) = unprivileged_port_start().checked_sub(1).filter(|port| *port > 0) else {
        return Ok(());
    };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    match socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into()) {
        // Somebody else has it: rights are asked for first.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()),
        outcome => outcome,
    }
}

fn has(bit: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
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
        // Exactly the documented list.
        let all = ALL.iter().fold(0, |mask, right| mask | 1u64 << right.bit);
        assert_eq!(all, 0xc0_0000_3400);
        assert_eq!(effective(""), 0);
    }

    #[test]
    fn the_documents_name_them_all() {
        for document in [
            include_str!("../../../README.md"),
            include_str!("../../../docs/operations.md"),
        ] {
            for right in ALL {
                assert!(document.contains(right.capability), "{}", right.capability);
            }
        }
        let unit = ALL.map(|right| right.capability).join(" ");
        let operations = include_str!("../../../docs/operations.md");
        assert!(operations.contains(&format!("AmbientCapabilities={unit}")));
    }
}
