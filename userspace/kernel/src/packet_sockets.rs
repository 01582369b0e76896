//! Packet sockets that take part of what arrives at an interface: a TC program's choice of a socket is lost there.
//!
//! The kernel gives a packet to the handlers of its protocol, and to those that are bound to the interface last of all
//! (`__netif_receive_skb_core`, net/core/dev.c). Whoever is not the last gets a clone (`skb_share_check`), and a clone has
//! no socket. Sockets of all protocols (`ETH_P_ALL`), such as tcpdump's, stand before the programs and do no harm.

use std::io;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// Versions of IP whose packets a packet socket takes at an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedFamilies {
    pub v4: bool,
    pub v6: bool,
}

/// Looks for packet sockets in this network namespace.
pub fn shared_families() -> io::Result<SharedFamilies> {
    Ok(parse(&std::fs::read_to_string("/proc/thread-self/net/packet")?))
}

/// Parses /proc/net/packet (`packet_seq_show`, net/packet/af_packet.c): the protocol is the fourth word, the interface's
/// index the fifth, 0 for all.
fn parse(text: &str) -> SharedFamilies {
    let bound = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace().skip(3);
        let protocol = u16::from_str_radix(words.next()?, 16).ok()?;
        let interface: u32 = words.next()?.parse().ok()?;
        (interface != 0).then_some(protocol)
    });
    bound.fold(SharedFamilies::default(), |found, protocol| SharedFamilies {
        v4: found.v4 || protocol == ETH_P_IP,
        v6: found.v6 || protocol == ETH_P_IPV6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_interface_and_version_count() {
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
        assert_eq!(
            of("0000000000000000 3      3    86dd   0     1 0      0      20791\n"),
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
