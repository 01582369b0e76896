//! Ways to the clients of connections that another node has reported. A client's packet shows the way back, but a host
//! that speaks first after the addresses have moved must not wait for one.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use signalbox_common::l4::L4Flow;
use signalbox_common::l4::decide::reverse_key;
use signalbox_common::net::Key;

use crate::kernel::address::from_words;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::kernel::netlink::Netlink;

/// Maximum number of flows whose clients one sweep looks up.
pub(super) const MAX_LOOKUPS: usize = 4096;

/// Way to a client, in the form that flows have.
#[derive(Clone, Copy)]
struct ClientHop {
    macs: [u32; 3],
    ifindex: u32,
    vlan: u16,
}

/// Writes the ways to the clients of flows; `replies` are the flows' directions from the hosts. Unknown ways are
/// requested, and the next sweep finds them.
pub(super) fn find(kernel: &Kernel, replies: &[(Key, L4Flow)]) -> io::Result<()> {
    if replies.is_empty() {
        return Ok(());
    }
    let netlink = Netlink::open()?;
    let (links, neighbours) = (netlink.links()?, netlink.neighbours()?);
    let is_xdp = kernel.hooks().attached().iter().any(|hook| hook.hook == "xdp");
    let look_up = |client: IpAddr| -> Option<ClientHop> {
        let way = netlink.route_get(client).ok()?.filter(|way| !way.is_local)?;
        let Some((mac, _)) = neighbours.get(&(way.ifindex, way.address)) else {
            let _ = netlink.resolve(way.ifindex, way.address);
            return None;
        };
        let link = links.get(&way.ifindex)?;
        // A driver sees the tag and the interface below. TC sees the VLAN's own interface.
        let (ifindex, vlan) = link.vlan.filter(|_| is_xdp).unwrap_or((way.ifindex, 0));
        Some(ClientHop {
            macs: header(*mac, link.mac),
            ifindex,
            vlan,
        })
    };
    let mut hops: HashMap<IpAddr, Option<ClientHop>> = HashMap::new();
    for (reply_key, reply) in replies {
        let client = from_words(reply.destination);
        let Some(hop) = *hops.entry(client).or_insert_with(|| look_up(client)) else {
            continue;
        };
        for key in [*reply_key, reverse_key(reply, reply_key.protocol)] {
            // A packet may have shown the way in the meantime.
            if let Some(flow) = kernel.established.get::<Key, L4Flow>(&key)?
                && flow.ifindex == 0
            {
                let ClientHop { macs, ifindex, vlan } = hop;
                let known = L4Flow {
                    macs,
                    ifindex,
                    vlan,
                    ..flow
                };
                kernel.established.update(&key, &known)?;
            }
        }
    }
    Ok(())
}

/// Ethernet addresses in the order of a frame's header: destination, then source.
fn header(destination: [u8; 6], source: [u8; 6]) -> [u32; 3] {
    let [d0, d1, d2, d3, d4, d5] = destination;
    let [s0, s1, s2, s3, s4, s5] = source;
    [
        u32::from_be_bytes([d0, d1, d2, d3]),
        u32::from_be_bytes([d4, d5, s0, s1]),
        u32::from_be_bytes([s2, s3, s4, s5]),
    ]
}
