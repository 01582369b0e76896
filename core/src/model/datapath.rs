//! Tiers that carry established flows, and the place where connections are peeked at.

use serde::Serialize;

/// Tier: what carries an established flow's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Buffers in userspace.
    Copy,
    /// Pipes with `splice(2)`.
    Splice,
    /// Sockets joined in the kernel (sockmap).
    Sockmap,
    /// Packets rewritten and forwarded by TC programs, without sockets.
    Cut,
}

impl Tier {
    /// All tiers, slowest first.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Splice, Self::Sockmap, Self::Cut];

    /// Name of the tier.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Splice => "splice",
            Self::Sockmap => "sockmap",
            Self::Cut => "cut",
        }
    }
}

/// Tiers that flows may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Datapath {
    /// Forced tier, used as soon as it is available; `None`: the tier is chosen per flow by its traffic.
    pub tier: Option<Tier>,
    /// Whether flows that are fit for tier `cut` are cut through. A forced tier rules cutting out.
    pub cut: bool,
    /// Whether requests that are routed one by one are cut through, where one is its connection's last.
    #[serde(rename = "last_requests")]
    pub cuts_last_requests: bool,
    /// Whether the rest of a long answer to a request is cut through.
    #[serde(rename = "long_answers")]
    pub cuts_long_answers: bool,
    /// Place where connections are peeked at.
    pub peek: PeekPlace,
    /// Whether the kernel continues to route connections when the process has died. The same for all listeners.
    pub serves_orphaned: bool,
}

/// Place where a connection's first data is read, and its host chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeekPlace {
    /// In the kernel where that can decide as userspace would, and no rule of a packet filter would be passed by.
    Auto,
    /// In the kernel where that can decide as userspace would.
    Kernel,
    /// In userspace, with a socket.
    Userspace,
}
