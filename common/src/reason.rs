//! Why a BPF program let a packet or connection go the way it did. Every exit of every program counts one.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $program:literal, $label:literal;)*) => {
        /// An exit of a BPF program. The number is the index into `COUNTERS`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Reason { $($(#[$doc])* $name = $id,)* }

        impl Reason {
            /// All of them, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The program that counts it.
            #[must_use]
            pub const fn program(self) -> &'static str { match self { $(Self::$name => $program,)* } }

            /// Its metric label.
            #[must_use]
            pub const fn label(self) -> &'static str { match self { $(Self::$name => $label,)* } }
        }
    };
}

reasons! {
    /// A connection to one of our bindings was given to a listening socket.
    SteerAssigned = 0, "steer", "assigned";
    /// Not one of our bindings: the kernel's ordinary lookup goes on.
    SteerMiss = 1, "steer", "miss";
    /// Not TCP: the kernel's ordinary lookup goes on.
    SteerNotTcp = 2, "steer", "not_tcp";
    /// Ours, but no listening socket stands in the slot: dropped, so that no other process gets it.
    SteerNoSocket = 3, "steer", "no_socket";
    /// Ours, but the kernel refused the socket (`bpf_sk_assign`): dropped, as above.
    SteerAssignFailed = 4, "steer", "assign_failed";
    /// Bytes were moved to the other leg.
    RelayRedirected = 5, "relay", "redirected";
    /// A segment without bytes (FIN), which TCP has acted on already: dropped.
    RelayEmpty = 6, "relay", "empty";
    /// The socket has no gate: left to the socket.
    RelayNoGate = 7, "relay", "no_gate";
    /// The gate has just closed: bytes go to userspace.
    RelayClosed = 8, "relay", "closed";
    /// The gate is closed: bytes go to userspace.
    RelayPassed = 9, "relay", "passed";
    /// The peer's socket is gone from the map: bytes go to userspace.
    RelayNoPeer = 10, "relay", "no_peer";
    /// A packet of a cut flow was rewritten and sent on.
    CutForwarded = 11, "cut_in", "forwarded";
    /// No cut flow's packet: the kernel's business.
    CutMiss = 12, "cut_in", "miss";
    /// Neither TCP nor an ICMP error over IP: the kernel's business.
    CutNotTcp = 13, "cut_in", "not_tcp";
    /// A client's SYN to one of our bindings was remembered, and passed to the listening socket.
    CutOpening = 14, "cut_in", "opening";
    /// A host's SYN-ACK completed a flow: it is cut from now on.
    CutPaired = 15, "cut_in", "paired";
    /// A host's SYN-ACK showed that the legs differ: the flow is not cut.
    CutUnfit = 16, "cut_in", "unfit";
    /// A packet was forwarded, and what it means for leg B's socket, which is not drained yet, given to that too.
    CutShared = 17, "cut_in", "shared";
    /// A host repeated its SYN-ACK: given to leg B's socket.
    CutToSocket = 18, "cut_in", "to_socket";
    /// A packet of a flow that userspace is closing: dropped.
    CutClosing = 19, "cut_in", "closing";
    /// A packet of a cut flow that could not be understood: dropped, for the kernel would answer with a reset.
    CutMalformed = 20, "cut_in", "malformed";
    /// The first fragment of a cut flow's packet: dropped.
    CutFragment = 21, "cut_in", "fragment";
    /// A cut flow's packet with IPv4 options or IPv6 extension headers: dropped.
    CutExtended = 22, "cut_in", "extended";
    /// A cut flow's packet had no hops left: dropped.
    CutHops = 23, "cut_in", "hop_limit";
    /// A SYN on the addresses and ports of a flow that has ended: the entry is freed for the new connection.
    CutSuperseded = 24, "cut_in", "superseded";
    /// A SYN from a host on a live flow: dropped.
    CutStray = 25, "cut_in", "stray";
    /// An ICMP error about a forwarded packet was rewritten and sent on, or the sender of a packet that its next link does not
    /// take was told.
    CutIcmp = 26, "cut_in", "icmp";
    /// A packet that was forwarded leaves.
    CutLeaves = 27, "cut_out", "forwarded";
    /// It showed the next hop's address anew.
    CutLearnt = 28, "cut_out", "learnt";
    /// A packet of this machine's own that has to do with no cut flow.
    CutOutMiss = 29, "cut_out", "miss";
    /// Our answer to a client's SYN was remembered.
    CutAnswered = 30, "cut_out", "answered";
    /// Leg B's SYN was made to offer what leg A has.
    CutOffered = 31, "cut_out", "offered";
    /// Leg B's SYN cannot lead to a cut flow.
    CutRefused = 32, "cut_out", "refused";
    /// Leg B's socket delivers what it owes.
    CutDrains = 33, "cut_out", "drains";
    /// What a socket without a duty still says: dropped.
    CutSilenced = 34, "cut_out", "silenced";
    /// A reset that ends a cut flow, ours or that of a process that died before the flow was drained.
    CutReset = 35, "cut_out", "reset";
    /// A SYN on the addresses and ports of a flow that seems to live: passed to the listening socket; the flow stays
    /// until the client confirms.
    CutDoubted = 36, "cut_in", "doubted";
    /// A SYN on the addresses and ports of a flow that has just ended, and whose socket is not closed yet: it comes again
    /// after a reset that closes the socket.
    CutUnseated = 37, "cut_in", "unseated";
    /// A client's packet of a layer-4 service went to its host.
    L4Forwarded = 38, "l4", "forwarded";
    /// The first packet of a flow went to the host of its slot.
    L4Opened = 39, "l4", "opened";
    /// A host's answer went to its client.
    L4Replied = 40, "l4", "replied";
    /// An ICMP error about a packet of a service was rewritten and sent on.
    L4Icmp = 41, "l4", "icmp";
    /// No service's packet: the kernel's business.
    L4Miss = 42, "l4", "miss";
    /// Headers that are not whole or not possible: the kernel's business, which drops them.
    L4Malformed = 43, "l4", "malformed";
    /// More IPv6 extension headers than are gone through: the kernel's business.
    L4Extended = 44, "l4", "extended";
    /// No host of the service may get a new flow: dropped.
    L4NoHost = 45, "l4", "no_host";
    /// The host's Ethernet address is not known yet: dropped.
    L4NoNeighbour = 46, "l4", "no_neighbour";
    /// No source port is free with this host: dropped.
    L4NoPort = 47, "l4", "no_port";
    /// A packet of a service had no hops left: dropped.
    L4Hops = 48, "l4", "hop_limit";
    /// A packet of a service is larger than what gets to its host: its sender is told.
    L4TooBig = 49, "l4", "too_big";
    /// The kernel had no memory for the new flow, or the packet could not be changed: dropped.
    L4Failed = 50, "l4", "failed";
    /// A tunnel's header was taken off, on a host: the packet goes on to the host's own sockets.
    L4Unwrapped = 51, "l4_decap", "unwrapped";
    /// A packet to a guarded port that is not possible: dropped.
    ShieldMalformed = 52, "shield", "malformed";
    /// A packet from a denied prefix: dropped.
    ShieldDenied = 53, "shield", "denied";
    /// Its source has sent too many packets: dropped.
    ShieldPackets = 54, "shield", "packets";
    /// Its source has sent too many bytes: dropped.
    ShieldBytes = 55, "shield", "bytes";
    /// Its source has begun too many connections: dropped.
    ShieldConnections = 56, "shield", "connections";
    /// Its source has too many connections: dropped.
    ShieldConcurrent = 57, "shield", "concurrent";
    /// A SYN to a listener whose backlog is full was answered with a cookie.
    ShieldCookie = 58, "shield", "cookie";
    /// A guarded packet of no service's: it goes on to the listener.
    ShieldPassed = 59, "shield", "passed";
}

/// How many there are: the size of `COUNTERS`.
pub const REASONS: u32 = Reason::ALL.len() as u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_so_that_they_index_the_counter_array() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
    }
}
