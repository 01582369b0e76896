//! Outcomes of connections: the labels of their ends, and of the reasons why flows are not cut.

use signalbox_common::cut::flow::ineligible;
use signalbox_core::routing::last_request::LastRequestObstacle;

/// Direction of bytes in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Bytes from the client to the host.
    In,
    /// Bytes from the host to the client.
    Out,
}

/// Reason why a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnd {
    /// Both directions were finished by their senders.
    Finished,
    /// The client reset the connection.
    ClientReset,
    /// The host reset the connection.
    HostReset,
    /// No bytes were carried for the idle timeout.
    Idle,
    /// An error of this process or of the kernel.
    Failed,
    /// The flow's host, cluster or route was taken out of rotation, and its drain time is over.
    Drained,
    /// The flow's virtual address has moved to another node, which carries the flow now.
    Moved,
}

impl FlowEnd {
    pub const ALL: [Self; 7] = [
        Self::Finished,
        Self::ClientReset,
        Self::HostReset,
        Self::Idle,
        Self::Failed,
        Self::Drained,
        Self::Moved,
    ];

    pub const fn label(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::ClientReset => "client_reset",
            Self::HostReset => "host_reset",
            Self::Idle => "idle_timeout",
            Self::Failed => "failed",
            Self::Drained => "drained",
            Self::Moved => "moved",
        }
    }
}

/// Reason why a connection is not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ineligible {
    Disabled,
    /// The kernel or missing rights rule out tier `cut`: `signalbox doctor` gives the reason.
    NotAvailable,
    FamilyMismatch,
    TakingOver,
    TableFull,
    NoPort,
    NoSourceAddress,
    /// A program found the reason: one of [`ineligible`].
    FoundByProgram(u8),
    /// No program saw leg B's handshake unchanged: the packets used an interface without programs, or NAT rewrote them.
    NoHook,
    /// The source has a connection limit, and is known only from a PROXY header.
    NamedSource,
    /// Requests are routed one by one, and share connections to hosts.
    PerRequest,
    /// TLS ends here.
    Terminated,
    /// The request counts against its route's limit of concurrent requests.
    CountedRequest,
    /// The request is its connection's last, but there is another obstacle to cutting it.
    LastRequest(LastRequestObstacle),
}

impl Ineligible {
    /// Labels of the reasons in metrics and in `signalbox flows`.
    pub const LABELS: [&'static str; 27] = [
        "off",
        "not_available",
        "address_families_differ",
        "taking_over",
        "table_full",
        "no_source_port",
        "no_source_address",
        "host_handshake_not_seen",
        "source_named_by_proxy",
        "client_handshake_not_seen",
        "timestamps_differ",
        "sack_differs",
        "segment_size_differs",
        "handshake_not_understood",
        "window_scales_differ",
        "may_be_fragmented",
        "routed_per_request",
        "tls_terminated",
        "counted_request",
        "body_outstanding",
        "bytes_behind_request",
        "answer_edited",
        "answer_timeout",
        "logged",
        "client_half_closed",
        "http2_host",
        "host_unfit",
    ];

    /// Index of the reason in [`Self::LABELS`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Disabled => 0,
            Self::NotAvailable => 1,
            Self::FamilyMismatch => 2,
            Self::TakingOver => 3,
            Self::TableFull | Self::FoundByProgram(ineligible::TABLE_FULL) => 4,
            Self::NoPort | Self::FoundByProgram(ineligible::PORT_BUSY) => 5,
            Self::NoSourceAddress => 6,
            Self::NoHook => 7,
            Self::NamedSource => 8,
            Self::FoundByProgram(ineligible::NO_HANDSHAKE) => 9,
            Self::FoundByProgram(ineligible::TIMESTAMPS) => 10,
            Self::FoundByProgram(ineligible::SACK) => 11,
            Self::FoundByProgram(ineligible::MSS) => 12,
            Self::FoundByProgram(ineligible::WINDOW_SCALE) => 14,
            Self::FoundByProgram(ineligible::FRAGMENTS) => 15,
            Self::FoundByProgram(_) => 13,
            Self::PerRequest => 16,
            Self::Terminated => 17,
            Self::CountedRequest => 18,
            Self::LastRequest(obstacle) => 19 + obstacle as usize,
        }
    }

    /// Whether the host is the reason, which then applies to other clients too.
    #[must_use]
    pub const fn is_of_host(self) -> bool {
        match self {
            Self::NoHook => true,
            Self::FoundByProgram(reason) => {
                matches!(reason, ineligible::TIMESTAMPS | ineligible::SACK | ineligible::MSS)
            }
            _ => false,
        }
    }

    /// Whether the client's handshake is the reason, which then applies to its other requests too.
    #[must_use]
    pub const fn is_of_client(self) -> bool {
        matches!(
            self,
            Self::FoundByProgram(ineligible::NO_HANDSHAKE | ineligible::FRAGMENTS | ineligible::WINDOW_SCALE)
        )
    }

    #[must_use]
    pub const fn label(self) -> &'static str {
        Self::LABELS[self.index()]
    }
}
