//! Whether a packet filter of this machine may decide on connections: base chains of nftables (which iptables-nft
//! writes too), and tables of the older iptables.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN`, and the answer's type (include/uapi/linux/netfilter).
const GET_CHAIN: u16 = 10 << 8 | 4;
const NEW_CHAIN: u16 = 10 << 8 | 3;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// Flag of an answer that was changed while it was given.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Where the module is shown once it is loaded.
const NFTABLES_MODULE: &str = "/sys/module/nf_tables";
/// Bytes of `struct nlmsghdr` and of `struct nfgenmsg`.
const HEADER: usize = 16;
const GENERIC: usize = 4;

const NFPROTO_ARP: u8 = 3;
const NFPROTO_BRIDGE: u8 = 7;
const NFPROTO_NETDEV: u8 = 5;
/// Hook of packets that pass through (`NF_INET_FORWARD`).
const FORWARD: u32 = 2;

/// Attributes of a chain (`enum nft_chain_attributes`), and of its hook.
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_USE: u16 = 6;
const HOOK_NUMBER: u16 = 1;
/// Verdict of a policy (`NF_DROP`).
const DROP: u32 = 0;

/// Whether the kernel has nftables, as far as it is known.
#[derive(Debug, Default)]
pub struct PacketFilter {
    /// The kernel has reported that it has none: if that changes, a module was loaded.
    lacks_nftables: bool,
}

impl PacketFilter {
    /// Returns whether rules apply to packets that this machine receives or sends for itself: forwarded packets do not
    /// count. Needs CAP_NET_ADMIN, and fails for an ordinary user where the older iptables is loaded: the names of its
    /// tables are root's.
    pub fn has_rules(&mut self) -> io::Result<bool> {
        for path in ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"] {
            match std::fs::read_to_string(path) {
                Ok(names) if names.trim().is_empty() => {}
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // Asking for nftables where it is not loaded has the kernel start modprobe.
        if !has_netfilter_sockets() || self.lacks_nftables && !std::path::Path::new(NFTABLES_MODULE).exists() {
            return Ok(false);
        }
        match has_chains() {
            // This kernel has no nftables.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EINVAL)) => {
                self.lacks_nftables = true;
                Ok(false)
            }
            other => other,
        }
    }
}

/// Whether the kernel has its side of netfilter's netlink protocol: without it there is no nftables.
fn has_netfilter_sockets() -> bool {
    let Ok(sockets) = std::fs::read_to_string("/proc/self/net/netlink") else {
        return true;
    };
    let protocol = |line: &str| line.split_whitespace().nth(1)?.parse::<isize>().ok();
    sockets.lines().any(|line| protocol(line) == Some(NETLINK_NETFILTER))
}

/// Returns whether a base chain of nftables is in the way.
fn has_chains() -> io::Result<bool> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = Vec::new();
    request.extend(((HEADER + GENERIC) as u32).to_ne_bytes());
    request.extend(GET_CHAIN.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    // Sequence number, port; then any family, version, resource.
    request.extend([0; 12]);
    socket.send(&request, 0)?;
    let mut found = false;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = &answer[..];
        while let Some((kind, flags, message, behind)) = first_message(rest) {
            rest = behind;
            if flags & NLM_F_DUMP_INTR != 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match kind {
                NLMSG_DONE if error_of(message).raw_os_error() == Some(0) => return Ok(found),
                NLMSG_DONE => return Err(error_of(message)),
                NLMSG_ERROR => return Err(error_of(message)),
                NEW_CHAIN => found |= is_in_the_way(message),
                _ => {}
            }
        }
    }
}

/// Splits the first netlink message off: its type, its flags, its content, and the remaining bytes.
fn first_message(bytes: &[u8]) -> Option<(u16, u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let flags = u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?);
    let message = bytes.get(HEADER..length)?;
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((kind, flags, message, &bytes[next..]))
}

fn error_of(message: &[u8]) -> io::Error {
    let number = message.get(..4).and_then(|bytes| bytes.try_into().ok());
    io::Error::from_raw_os_error(-i32::from_ne_bytes(number.unwrap_or_default()))
}

/// Whether a chain is at a hook, has rules or drops without any, and sees packets that this machine sends or receives.
fn is_in_the_way(message: &[u8]) -> bool {
    let (Some(&family), Some(attributes)) = (message.first(), message.get(GENERIC..)) else {
        return false;
    };
    let Some(hook) = attribute(attributes, CHAIN_HOOK) else {
        return false;
    };
    let at = number(attribute(hook, HOOK_NUMBER));
    let is_other = matches!(family, NFPROTO_ARP | NFPROTO_BRIDGE) || at == Some(FORWARD) && family != NFPROTO_NETDEV;
    let has_rules = number(attribute(attributes, CHAIN_USE)).is_some_and(|rules| rules > 0);
    let drops = number(attribute(attributes, CHAIN_POLICY)) == Some(DROP);
    !is_other && (has_rules || drops)
}

/// Returns the content of an attribute (`struct nlattr`).
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    /// Bits of the type that are flags (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
    const FLAGS: u16 = 0xc000;
    loop {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !FLAGS;
        let content = bytes.get(4..length)?;
        if kind == wanted {
            return Some(content);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// Reads a number; those of nftables are in network byte order.
fn number(content: Option<&[u8]>) -> Option<u32> {
    Some(u32::from_be_bytes(content?.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute_of(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = (content.len() + 4) as u16;
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn chain(family: u8, hook: Option<u32>, policy: u32, rules: u32) -> Vec<u8> {
        let mut message = vec![family, 0, 0, 0];
        message.extend(attribute_of(1, b"table\0"));
        if let Some(hook) = hook {
            message.extend(attribute_of(
                CHAIN_HOOK | 0x8000,
                &attribute_of(HOOK_NUMBER, &hook.to_be_bytes()),
            ));
            message.extend(attribute_of(CHAIN_POLICY, &policy.to_be_bytes()));
        }
        message.extend(attribute_of(CHAIN_USE, &rules.to_be_bytes()));
        message
    }

    #[test]
    fn chains_that_see_packets_of_this_machine_are_in_the_way_if_they_do_anything() {
        const INET: u8 = 1;
        const ACCEPT: u32 = 1;
        let cases = [
            (chain(INET, Some(1), ACCEPT, 1), true),
            (chain(INET, Some(1), ACCEPT, 0), false),
            (chain(INET, Some(0), DROP, 0), true),
            (chain(INET, Some(FORWARD), DROP, 7), false),
            (chain(INET, None, ACCEPT, 9), false),
            (chain(NFPROTO_ARP, Some(1), DROP, 9), false),
            (chain(NFPROTO_NETDEV, Some(0), ACCEPT, 1), true),
        ];
        for (message, expected) in cases {
            assert_eq!(is_in_the_way(&message), expected, "{message:?}");
            for end in 0..message.len() {
                let _ = is_in_the_way(&message[..end]);
            }
        }
    }
}
