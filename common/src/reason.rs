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
