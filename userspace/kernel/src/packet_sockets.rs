//! Packet sockets that take packets of one address family: with them, a TC program's choice of a socket is lost.
//!
//! The kernel gives a packet to all handlers of its protocol, to packet sockets after IP itself: to those of an
//! interface, and since some version to all (`__netif_receive_skb_core` and `ptype_head`, net/core/dev.c). Each handler
//! except the last gets a clone (`skb_share_check`), and a clone has no socket. Sockets of all protocols (`ETH_P_ALL`),
//! such as tcpdump's, run before the programs and do no harm.

use std::io;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// Address families whose packets a packet socket takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedFamilies {
    pub v4: bool,
    pub v6: bool,
}

/// Looks for packet sockets in this network namespace.
pub fn shared_families() -> io::Result<SharedFamilies> {
    Ok(parse(&std::fs::read_to_string("/proc/thread-self/net/packet")?))
}

/// Parses /proc/net/packet (`packet_seq_show`, net/packet/af_packet.c): the protocol is the fourth word.
fn parse(text: &str) -> SharedFamilies {
    let protocol = |line: &str| u16::from_str_radix(line.split_whitespace().nth(3)?, 16).ok();
    let all = text.lines().skip(1).filter_map(protocol);
    all.fold(SharedFamilies::default(), |found, protocol| SharedFamilies {
        v4: found.v4 || protocol == ETH_P_IP,
        v6: found.v6 || protocol == ETH_P_IPV6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_version_count() {
        let head = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n";
        let of = |lines: &str| {
            let found = parse(&format!("{head}{lines}"));
            (found.v4, found.v6)
        };
        assert_eq!(of(""), (false, false));
        assert_eq!(
            of("0000000000000000 3      3    0003   2     1 0      0      20791\n"),
            (false, false)
        );
        let bound = "0000000000000000 3      3    86dd   2     1 0      0      20791\n";
        assert_eq!(of(bound), (false, true));
        assert_eq!(
            of(&format!(
                "{bound}0000000000000000 3      2    0800   7     1 0      0      1\n"
            )),
            (true, true)
        );
    }
}
