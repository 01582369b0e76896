//! Entries of connection tracking, made for connections whose handshake netfilter has not seen. With one, their packets
//! count as those of an established connection of the client's: rules about state see no invalid packets, and chains
//! that translate addresses do not take them for new connections of this machine's.
//!
//! By ctnetlink (net/netfilter/nf_conntrack_netlink.c). Needs CAP_NET_ADMIN.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

/// Setting that is there once connection tracking is.
const SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";

/// `NFNL_SUBSYS_CTNETLINK << 8`, with the messages `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_GET`.
const NEW_ENTRY: u16 = 1 << 8;
const GET_ENTRY: u16 = 1 << 8 | 1;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Flag of an attribute that contains others (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;

/// `enum ctattr_type`.
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const TIMEOUT: u16 = 7;
/// `IPS_SEEN_REPLY | IPS_ASSURED`, with the bit that each entry has: `IPS_CONFIRMED`.
const ESTABLISHED_STATUS: u32 = 2 | 4 | 8;
/// `TCP_CONNTRACK_ESTABLISHED`.
const TCP_ESTABLISHED: u8 = 3;
/// `IP_CT_TCP_FLAG_BE_LIBERAL`: windows are not checked, which tracking has not followed from the beginning.
const BE_LIBERAL: u8 = 8;
/// Seconds after which an entry ends that no packet has used. The first one sets the kernel's own time.
const UNUSED_SECONDS: u32 = 60;

/// Requests for an entry that packets of the same connection change at the same time.
const MAX_ATTEMPTS: u32 = 4;

/// Whether a packet has made the entry since the kernel looked for it, or the former one is just being removed.
fn is_overtaken(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EEXIST | libc::EBUSY | libc::EAGAIN | libc::EINTR)
    )
}

/// Returns whether connections of this network namespace may be tracked.
#[must_use]
pub fn is_loaded() -> bool {
    Path::new(SETTING).exists()
}

/// Socket to connection tracking.
pub struct Conntrack(Socket);

impl Conntrack {
    /// Opens the socket.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Makes the entry of an established connection, or changes the one that is there.
    pub fn establish(&mut self, client: SocketAddr, local: SocketAddr) -> io::Result<()> {
        let state = [attribute(1, &[TCP_ESTABLISHED]), liberal_flags()];
        let entry = [
            tuple(TUPLE_ORIGINAL, client, local),
            tuple(TUPLE_REPLY, local, client),
            attribute(STATUS, &ESTABLISHED_STATUS.to_be_bytes()),
            attribute(PROTOCOL_INFO | NESTED, &attribute(1 | NESTED, &state.concat())),
            attribute(TIMEOUT, &UNUSED_SECONDS.to_be_bytes()),
        ];
        let entry = entry.concat();
        for _ in 1..MAX_ATTEMPTS {
            match self.ask(NEW_ENTRY, NLM_F_CREATE, client.ip(), &entry) {
                Err(error) if is_overtaken(&error) => {}
                outcome => return outcome,
            }
        }
        self.ask(NEW_ENTRY, NLM_F_CREATE, client.ip(), &entry)
    }

    /// Has windows and acknowledgements of a connection from this machine not be checked. Fails with `NotFound` if it is not
    /// tracked.
    pub fn loosen(&mut self, local: SocketAddr, host: SocketAddr) -> io::Result<()> {
        let entry = [
            tuple(TUPLE_ORIGINAL, local, host),
            attribute(PROTOCOL_INFO | NESTED, &attribute(1 | NESTED, &liberal_flags())),
        ];
        self.ask(NEW_ENTRY, 0, local.ip(), &entry.concat())
    }

    /// Fails where the kernel makes no entries.
    pub fn check(&mut self) -> io::Result<()> {
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        let entry = tuple(TUPLE_ORIGINAL, nobody, nobody);
        match self.ask(GET_ENTRY, 0, nobody.ip(), &entry) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn ask(&mut self, kind: u16, flags: u16, address: IpAddr, attributes: &[u8]) -> io::Result<()> {
        let family = if address.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        } as u8;
        let generic = [family, 0, 0, 0];
        let length = (HEADER + generic.len() + attributes.len()) as u32;
        let mut request = length.to_ne_bytes().to_vec();
        request.extend(kind.to_ne_bytes());
        request.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        // Sequence number and port.
        request.extend([0; 8]);
        request.extend(generic);
        request.extend(attributes);
        self.0.send(&request, 0)?;
        let (answer, _) = self.0.recv_from_full()?;
        let number = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok());
        match i32::from_ne_bytes(number.ok_or(io::ErrorKind::InvalidData)?) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

/// Flags of both directions (`enum ctattr_protoinfo_tcp`), each with its mask.
fn liberal_flags() -> Vec<u8> {
    [4, 5].map(|kind| attribute(kind, &[BE_LIBERAL; 2])).concat()
}

/// A tuple of addresses and ports (`enum ctattr_tuple`, `ctattr_ip`, `ctattr_l4proto`).
fn tuple(kind: u16, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let address = |at: u16, address: IpAddr| match address {
        IpAddr::V4(v4) => attribute(at, &v4.octets()),
        IpAddr::V6(v6) => attribute(at + 2, &v6.octets()),
    };
    let addresses = [address(1, source.ip()), address(2, destination.ip())].concat();
    let protocol = [
        attribute(1, &[libc::IPPROTO_TCP as u8]),
        attribute(2, &source.port().to_be_bytes()),
        attribute(3, &destination.port().to_be_bytes()),
    ];
    let parts = [
        attribute(1 | NESTED, &addresses),
        attribute(2 | NESTED, &protocol.concat()),
    ];
    attribute(kind | NESTED, &parts.concat())
}

/// An attribute (`struct nlattr`), filled up to a multiple of four bytes.
fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = (4 + content.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_are_laid_out_as_the_kernel_reads_them() {
        let (client, local) = ("192.0.2.7:4660".parse().unwrap(), "198.51.100.1:443".parse().unwrap());
        let bytes = tuple(TUPLE_REPLY, local, client);
        let expected = [
            [52, 0, 2, 0x80].as_slice(),
            &[20, 0, 1, 0x80, 8, 0, 1, 0, 198, 51, 100, 1, 8, 0, 2, 0, 192, 0, 2, 7],
            &[28, 0, 2, 0x80, 5, 0, 1, 0, 6, 0, 0, 0],
            &[6, 0, 2, 0, 1, 187, 0, 0, 6, 0, 3, 0, 0x12, 0x34, 0, 0],
        ]
        .concat();
        assert_eq!(bytes, expected);
        assert_eq!(
            tuple(1, "[::1]:1".parse().unwrap(), "[::2]:2".parse().unwrap()).len(),
            76
        );
    }
}
