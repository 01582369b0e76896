//! Chains of nftables as the kernel reports them by netlink, and the generation of all rules: quick to ask for, without
//! the rules themselves.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN`, and the answer's type (include/uapi/linux/netfilter).
const GET_CHAIN: u16 = 10 << 8 | 4;
const NEW_CHAIN: u16 = 10 << 8 | 3;
/// `NFT_MSG_GETGEN`, and the answer's type.
const GET_GENERATION: u16 = 10 << 8 | 16;
const NEW_GENERATION: u16 = 10 << 8 | 15;
/// Bytes of `struct nlmsghdr` and of `struct nfgenmsg`.
const HEADER: usize = 16;
const GENERIC: usize = 4;

const NFPROTO_ARP: u8 = 3;
const NFPROTO_BRIDGE: u8 = 7;
const NFPROTO_NETDEV: u8 = 5;
/// Hook of packets that pass through (`NF_INET_FORWARD`).
const FORWARD: u32 = 2;

/// Attributes of a chain (`enum nft_chain_attributes`), and of its hook.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_USE: u16 = 6;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
/// Attribute of a generation (`NFTA_GEN_ID`).
const GENERATION_ID: u16 = 1;
/// Verdict of a policy (`NF_DROP`).
const DROP: u32 = 0;

/// A base chain: its family, table, name, hook and policy.
pub(super) type ChainKey = Vec<u8>;

/// Returns the base chains that are in the way.
pub(super) fn in_the_way() -> io::Result<BTreeSet<ChainKey>> {
    let mut found = BTreeSet::new();
    ask(GET_CHAIN, NLM_F_DUMP, |kind, message| {
        if kind == NEW_CHAIN && is_in_the_way(message) {
            found.insert(key_of(message));
        }
        kind == NEW_CHAIN
    })?;
    Ok(found)
}

/// Returns the generation of all rules: each change has a new one.
pub(super) fn generation() -> io::Result<u32> {
    let mut found = None;
    ask(GET_GENERATION, 0, |kind, message| {
        if kind == NEW_GENERATION {
            found = message
                .get(GENERIC..)
                .and_then(|attributes| number(attribute(attributes, GENERATION_ID)));
        }
        false
    })?;
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Asks the kernel, until `take` wants no more of its messages or it has given all.
fn ask(kind: u16, flags: u16, mut take: impl FnMut(u16, &[u8]) -> bool) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = Vec::new();
    request.extend(((HEADER + GENERIC) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number, port; then any family, version, resource.
    request.extend([0; 12]);
    socket.send(&request, 0)?;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = &answer[..];
        while let Some((kind, flags, message, after)) = first_message(rest) {
            rest = after;
            // The chains have changed while they were listed.
            if flags & NLM_F_DUMP_INTR != 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match kind {
                NLMSG_DONE if error_of(message).raw_os_error() == Some(0) => return Ok(()),
                NLMSG_DONE | NLMSG_ERROR => return Err(error_of(message)),
                kind if !take(kind, message) => return Ok(()),
                _ => {}
            }
        }
    }
}

fn key_of(message: &[u8]) -> ChainKey {
    let attributes = message.get(GENERIC..).unwrap_or_default();
    let parts = [CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY];
    let mut key: ChainKey = message.iter().take(1).copied().collect();
    for part in parts {
        key.extend(attribute(attributes, part).unwrap_or_default());
        key.push(0);
    }
    key
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

/// Whether a chain is at a hook, has rules or does something without any, and sees packets that this machine sends or
/// receives. Chains that translate addresses take sockets of packets, even without rules.
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
    let translates = attribute(attributes, CHAIN_TYPE).is_some_and(|kind| kind.starts_with(b"nat"));
    !is_other && (has_rules || drops || translates)
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
    fn chains_that_act_on_local_packets_count_as_in_the_way() {
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
            (
                [chain(INET, Some(0), ACCEPT, 0), attribute_of(CHAIN_TYPE, b"nat\0")].concat(),
                true,
            ),
            (
                [chain(INET, Some(0), ACCEPT, 0), attribute_of(CHAIN_TYPE, b"filter\0")].concat(),
                false,
            ),
        ];
        for (message, expected) in cases {
            assert_eq!(is_in_the_way(&message), expected, "{message:?}");
            for end in 0..message.len() {
                let _ = is_in_the_way(&message[..end]);
            }
        }
    }
}
