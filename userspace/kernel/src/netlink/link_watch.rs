//! Notices interfaces that come, change or go, by messages that the kernel sends unasked.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::{Netlink, is_of_every_link, outgoing_links};

const GROUPS: libc::c_int = libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE;

/// Room for the messages of one datagram: the kernel makes none larger.
const DATAGRAM_BYTES: usize = 64 << 10;

/// A socket that hears of changes of interfaces, of addresses, and of routes by interfaces that had none.
pub struct LinkWatch {
    socket: Socket,
    /// Interfaces that a route has used. A routing daemon may change thousands of routes: those by such an interface are no
    /// news.
    routed: BTreeSet<u32>,
}

impl LinkWatch {
    /// Opens the socket: from here on it hears of changes.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS as u32))?;
        let routed = Netlink::open()?.routed_links()?;
        Ok(Self { socket, routed })
    }

    /// Waits for a change, and takes those that have come with it.
    pub fn wait(&mut self) -> io::Result<()> {
        let mut is_news = false;
        loop {
            let flags = if is_news { libc::MSG_DONTWAIT } else { 0 };
            match self.receive(flags) {
                Ok(more) => is_news |= more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // Messages are lost: any of them may have been news.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.routed = Netlink::open()?.routed_links()?;
                    is_news = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a datagram. Returns whether it has news.
    fn receive(&mut self, flags: libc::c_int) -> io::Result<bool> {
        let mut bytes = Vec::with_capacity(DATAGRAM_BYTES);
        self.socket.recv(&mut bytes, flags)?;
        let (mut rest, mut is_news) = (bytes.as_slice(), false);
        while !rest.is_empty() {
            // A message that cannot be read may be of an interface.
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
                return Ok(true);
            };
            if let NetlinkPayload::InnerMessage(inner) = message.payload {
                is_news |= self.is_news(&inner);
            }
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(is_news)
    }

    fn is_news(&mut self, message: &RouteNetlinkMessage) -> bool {
        match message {
            RouteNetlinkMessage::NewLink(_)
            | RouteNetlinkMessage::NewAddress(_)
            | RouteNetlinkMessage::DelAddress(_) => true,
            RouteNetlinkMessage::DelLink(link) => {
                self.routed.remove(&link.header.index);
                true
            }
            RouteNetlinkMessage::NewRoute(route) if !is_of_every_link(route) => {
                let before = self.routed.len();
                self.routed.extend(route.attributes.iter().flat_map(outgoing_links));
                self.routed.len() > before
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkMessage;
    use netlink_packet_route::route::{RouteAttribute, RouteMessage};

    use super::*;

    #[test]
    fn routes_are_news_where_their_interface_had_none() {
        let mut watch = LinkWatch {
            socket: Socket::new(NETLINK_ROUTE).unwrap(),
            routed: [2].into(),
        };
        let route = |interface| {
            let mut route = RouteMessage::default();
            route.attributes.push(RouteAttribute::Oif(interface));
            RouteNetlinkMessage::NewRoute(route)
        };
        let mut gone = LinkMessage::default();
        gone.header.index = 3;
        assert!(!watch.is_news(&route(2)));
        assert!(watch.is_news(&route(3)));
        assert!(!watch.is_news(&route(3)));
        assert!(watch.is_news(&RouteNetlinkMessage::DelLink(gone)));
        assert!(watch.is_news(&route(3)), "another interface of the same number");
    }
}
