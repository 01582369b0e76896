//! Exit reasons of the BPF programs: why a packet or connection was treated in a certain way. Every exit of every
//! program counts one.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $program:literal, $label:literal;)*) => {
        /// An exit of a BPF program. The number is the index into `COUNTERS`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Reason { $($(#[$doc])* $name = $id,)* }

        impl Reason {
            /// All reasons, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Name of the program that counts this reason.
            #[must_use]
            pub const fn program(self) -> &'static str { match self { $(Self::$name => $program,)* } }

            /// Metric label of this reason.
            #[must_use]
            pub const fn label(self) -> &'static str { match self { $(Self::$name => $label,)* } }
        }
    };
}

reasons! {
    /// A connection to one of our bindings was given to a listening socket.
    SteerAssigned = 0, "steer", "assigned";
    /// The destination is not one of our bindings: the kernel's ordinary lookup goes on.
    SteerMiss = 1, "steer", "miss";
    /// The packet is not TCP: the kernel's ordinary lookup goes on.
    SteerNotTcp = 2, "steer", "not_tcp";
    /// Bound destination without a listening socket in its slot: dropped, so that no other process gets the connection.
    SteerNoSocket = 3, "steer", "no_socket";
    /// Bound destination whose socket the kernel refused (`bpf_sk_assign`): dropped, so that no other process gets the
    /// connection.
    SteerAssignFailed = 4, "steer", "assign_failed";
    /// Bytes were redirected to the other leg.
    SockmapRedirected = 5, "sockmap_verdict", "redirected";
    /// A segment without bytes (FIN), which TCP has acted on already: dropped.
    SockmapEmpty = 6, "sockmap_verdict", "empty";
    /// No credit is known for the socket: bytes are left to the socket.
    SockmapNoCredit = 7, "sockmap_verdict", "no_credit";
    /// The credit has just been exhausted: bytes go to userspace.
    SockmapCreditExhausted = 8, "sockmap_verdict", "credit_exhausted";
    /// The credit is exhausted: bytes go to userspace.
    SockmapPassed = 9, "sockmap_verdict", "passed";
    /// The peer's socket is gone from the map: bytes go to userspace.
    SockmapNoPeer = 10, "sockmap_verdict", "no_peer";
    /// A packet of a cut flow was rewritten and sent on.
    CutForwarded = 11, "cut_in", "forwarded";
    /// Packet of no cut flow: passed to the kernel.
    CutMiss = 12, "cut_in", "miss";
    /// Neither TCP nor an ICMP error over IP: passed to the kernel.
    CutNotTcp = 13, "cut_in", "not_tcp";
    /// A client's SYN to one of our bindings was recorded, and passed to the listening socket.
    CutSynRecorded = 14, "cut_in", "syn_recorded";
    /// A host's SYN-ACK completed a flow: it is cut from now on.
    CutPaired = 15, "cut_in", "paired";
    /// A host's SYN-ACK showed that the legs differ: the flow is not cut.
    CutIneligible = 16, "cut_in", "ineligible";
    /// A packet was forwarded to the client while the hand-off on leg B's socket goes on: its acknowledgement, or the
    /// ICMP error, goes to that socket, too.
    CutShared = 17, "cut_in", "shared";
    /// A host repeated its SYN-ACK: given to leg B's socket.
    CutToSocket = 18, "cut_in", "to_socket";
    /// A packet of a flow that userspace is closing: dropped.
    CutClosing = 19, "cut_in", "closing";
    /// A packet of a cut flow that could not be understood: dropped, because the kernel would answer with a reset.
    CutMalformed = 20, "cut_in", "malformed";
    /// The first fragment of a cut flow's packet: dropped.
    CutFragment = 21, "cut_in", "fragment";
    /// A cut flow's packet with IPv4 options or IPv6 extension headers: dropped.
    CutExtended = 22, "cut_in", "extended";
    /// A cut flow's packet had no hops left: dropped.
    CutHops = 23, "cut_in", "hop_limit";
    /// A SYN on the addresses and ports of a flow that has ended: the entry is freed for the new connection.
    CutSuperseded = 24, "cut_in", "superseded";
    /// A SYN from a host on a live flow, or a SYN-ACK that another CPU is handling already: dropped.
    CutStray = 25, "cut_in", "stray";
    /// An ICMP error about a forwarded packet was rewritten and sent on, or the sender of a packet that is too big for
    /// its next link was informed.
    CutIcmp = 26, "cut_in", "icmp";
    /// A forwarded packet leaves.
    CutEgressForwarded = 27, "cut_out", "forwarded";
    /// A forwarded packet leaves, and its Ethernet addresses refreshed the flow's next hop.
    CutNextHopLearned = 28, "cut_out", "next_hop_learned";
    /// Packet of this machine's own sockets that belongs to no cut flow.
    CutEgressMiss = 29, "cut_out", "miss";
    /// The listener's SYN-ACK to a client was recorded.
    CutSynAckRecorded = 30, "cut_out", "syn_ack_recorded";
    /// Leg B's SYN was made to offer what leg A has.
    CutSynRewritten = 31, "cut_out", "syn_rewritten";
    /// Leg B's SYN cannot lead to a cut flow.
    CutRefused = 32, "cut_out", "refused";
    /// Leg B's socket sends bytes that it still has to deliver: passed.
    CutHandoff = 33, "cut_out", "handoff";
    /// Packet of a cut flow's socket that has nothing to deliver: dropped.
    CutSilenced = 34, "cut_out", "silenced";
    /// A reset that ends a cut flow, ours or that of a process that died before the hand-off was done.
    CutReset = 35, "cut_out", "reset";
    /// A SYN on the addresses and ports of a flow that seems to live: passed to the listening socket; the flow stays
    /// until the client confirms.
    CutSynOnLiveFlow = 36, "cut_in", "syn_on_live_flow";
    /// A SYN on the addresses and ports of a flow that has just ended and whose socket is not closed yet: turned into a
    /// reset that closes the socket, and injected again after it.
    CutStaleSocketReset = 37, "cut_in", "stale_socket_reset";
    /// A client's packet of a known flow of a layer-4 service was sent to its host.
    L4Forwarded = 38, "l4", "forwarded";
    /// The first packet of a flow was sent to the host of its slot.
    L4Opened = 39, "l4", "opened";
    /// A host's reply was sent to its client.
    L4Replied = 40, "l4", "replied";
    /// An ICMP error about a packet of a service was rewritten and sent on.
    L4Icmp = 41, "l4", "icmp";
    /// Packet of no service: passed to the kernel.
    L4Miss = 42, "l4", "miss";
    /// Truncated or impossible headers: passed to the kernel, which drops them.
    L4Malformed = 43, "l4", "malformed";
    /// More IPv6 extension headers than the programs walk: passed to the kernel.
    L4Extended = 44, "l4", "extended";
    /// No host of the service may get a new flow: refused by the kernel, or dropped where the address is not its own.
    L4NoHost = 45, "l4", "no_host";
    /// The host's Ethernet address is not known yet: dropped.
    L4NoNeighbour = 46, "l4", "no_neighbour";
    /// No source port is free with this host: refused as for `no_host`.
    L4NoPort = 47, "l4", "no_port";
    /// A packet of a service had no hops left: dropped.
    L4Hops = 48, "l4", "hop_limit";
    /// A packet of a service exceeds the MTU towards its host: its sender is informed (ICMP).
    L4TooBig = 49, "l4", "too_big";
    /// The kernel had no memory for the new flow, or the packet could not be changed: dropped.
    L4Failed = 50, "l4", "failed";
    /// A tunnel's header was removed, on a host: the packet goes on to the host's own sockets.
    L4Decapsulated = 51, "l4_decap", "decapsulated";
    /// A malformed packet to a guarded port: dropped.
    ShieldMalformed = 52, "shield", "malformed";
    /// A packet from a denied prefix: dropped.
    ShieldDenied = 53, "shield", "denied";
    /// The source has exceeded its packet rate: dropped.
    ShieldPackets = 54, "shield", "packets";
    /// The source has exceeded its byte rate: dropped.
    ShieldBytes = 55, "shield", "bytes";
    /// The source has exceeded its rate of new connections: dropped.
    ShieldConnections = 56, "shield", "connections";
    /// The source has too many concurrent connections: dropped.
    ShieldConcurrent = 57, "shield", "concurrent";
    /// A SYN to a listener whose backlog is full was answered with a cookie.
    ShieldCookie = 58, "shield", "cookie";
    /// A packet to a guarded listener was admitted: passed.
    ShieldPassed = 59, "shield", "passed";
    /// A packet of a cut flow exceeds the next link's MTU: its sender was informed, as a router does it.
    CutTooBig = 60, "cut_in", "too_big";
    /// Bytes that the stream has had already could not be removed from a packet: the flow is reset.
    SockmapFailed = 61, "sockmap_verdict", "failed";
    /// A host's SYN-ACK completed a flow that its sockets carry until userspace cuts it.
    CutHeld = 62, "cut_in", "held";
    /// Bytes of a client after its last request, or that request once more: dropped.
    CutBehindRequest = 63, "cut_in", "behind_request";
    /// A packet to an address that has just moved here, of no flow and no socket of this machine: sent to the address'
    /// former owner, which drains.
    CutChained = 64, "cut_in", "chained";
    /// An ARP request for an address that has moved to another node, while its connections drain here: dropped.
    CutArpIgnored = 65, "cut_in", "arp_ignored";
    /// A packet of no listener whose connections are routed in the kernel, or of a connection that has a socket: passed.
    PeekMiss = 66, "peek_in", "miss";
    /// A SYN was answered by a cookie.
    PeekSynAnswered = 67, "peek_in", "syn_answered";
    /// A SYN was left to the kernel: for its options, for a socket that has its addresses and ports, for an answer that
    /// leaves by another interface, or since userspace is not alive.
    PeekSynPassed = 68, "peek_in", "syn_passed";
    /// The acknowledgement of a cookie, without data: dropped.
    PeekAcknowledged = 69, "peek_in", "acknowledged";
    /// First data of a client was routed, and became the SYN to a host.
    PeekRouted = 70, "peek_in", "routed";
    /// First data of a client was given to a socket of the listener.
    PeekPassedUp = 71, "peek_in", "passed_up";
    /// The kernel has made no socket from a cookie: passed, and answered with a reset.
    PeekPassUpFailed = 72, "peek_in", "pass_up_failed";
    /// The client repeated its first data, and the SYN to the host was sent again.
    PeekSynRepeated = 73, "peek_in", "syn_repeated";
    /// Bytes after the first data, while that is not acknowledged, or a SYN of a connection that is carried already:
    /// dropped, the client repeats what it needs.
    PeekEarly = 74, "peek_in", "early";
    /// A host's SYN-ACK became the client's first data.
    PeekDelivered = 75, "peek_in", "delivered";
    /// A host's SYN-ACK came when the client's first data was overwritten: the host is reset, and the client's repetition is
    /// read again.
    PeekOverwritten = 76, "peek_in", "overwritten";
    /// A host refused a connection, or agreed to other options than the client: the client's repetition is passed up.
    PeekRefused = 77, "peek_in", "refused";
    /// A client that has sent nothing yet sent a keep-alive probe, and was answered.
    PeekProbe = 78, "peek_in", "probe";
    /// A packet that could not be changed: dropped.
    PeekFailed = 79, "peek_in", "failed";
    /// A host has an old connection of the same addresses and ports, and sent a challenge (RFC 5961): the old
    /// connection was reset, and the SYN sent again.
    PeekChallenged = 80, "peek_in", "challenged";
    /// The segment after first data that waits for a host was appended to it.
    PeekAppended = 81, "peek_in", "appended";
    /// A client gave up a connection that waited for a host.
    PeekGivenUp = 82, "peek_in", "given_up";
    /// A segment without a socket whose numbers are no cookie's. Without timestamps, also one of a source that has sent
    /// many of these: passed, and answered with a reset.
    PeekCookieWrong = 83, "peek_in", "cookie_wrong";
    /// The first segment of a head or hello that goes on in the next one: kept until that has come.
    PeekKept = 84, "peek_in", "kept";
    /// First data of several segments that userspace routes: they were sent to this machine again.
    PeekReturned = 85, "peek_in", "returned";
    /// First data was repeated before its host had the PROXY header in front of it: both were sent again.
    PeekHeaderRepeated = 86, "peek_in", "header_repeated";
    /// A client repeated its first byte before the host had the PROXY header in front of it: left to the kernel peek. Or it
    /// sent an earlier byte, in the header's place: dropped.
    CutHeaderLost = 87, "cut_in", "header_lost";
    /// A client whose SYN another node has answered sent a request that must not be sent twice (RFC 9110, section 9.2.2),
    /// and that node may have sent it: passed, and answered with a reset.
    PeekNotRepeatable = 88, "peek_in", "not_repeatable";
    /// A client's first data has not come for long, but later data has: passed, and answered with a reset.
    PeekFirstLost = 89, "peek_in", "first_lost";
}

/// Number of reasons: the size of `COUNTERS`.
pub const REASON_COUNT: u32 = Reason::ALL.len() as u32;

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
