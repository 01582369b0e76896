//! Addresses that are moving between nodes by plan: for the time of a drain the former owner serves the connections that
//! cannot move along, and the new owner sends it their packets.

/// Roles of this machine for an address that moves: bits of [`MovingAddress::role`]. A machine has both while an
/// address leaves whose former owner still drains.
pub mod role {
    /// The address has left, or is leaving; its connections drain here.
    pub const FORMER_OWNER: u16 = 1;
    /// The address comes, or has come. Packets of connections that are not known here go to its former owner.
    pub const NEW_OWNER: u16 = 2;
}

/// Size of `CUT_CHAIN`: most addresses that move at once.
pub const MAX_MOVING_ADDRESSES: u32 = 4096;

/// Address that moves: value of `CUT_CHAIN`, by the address' four words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MovingAddress {
    /// Interface on the segment where the former owner is.
    pub ifindex: u32,
    /// Tick at which the drain ends.
    pub until: u32,
    /// Bits of [`role`].
    pub role: u16,
    /// Ethernet address of the former owner, for [`role::NEW_OWNER`].
    pub mac: [u8; 6],
}

impl MovingAddress {
    /// Whether this machine has a role.
    #[inline(always)]
    #[must_use]
    pub const fn has_role(&self, role: u16) -> bool {
        self.role & role != 0
    }
}

const _: () = assert!(size_of::<MovingAddress>() == 16);

crate::layout!(MovingAddress {
    ifindex,
    until,
    role,
    mac
});

#[cfg(feature = "user")]
// SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
unsafe impl aya::Pod for MovingAddress {}
