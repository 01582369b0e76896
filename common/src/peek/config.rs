//! Settings of the program, and its heartbeat.

/// Interfaces that answer SYNs without a route lookup in the kernel, of each address family.
pub const MAX_ANSWERING: usize = 8;

/// Settings of the program: the one element of `PEEK_CONFIG`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekConfig {
    /// Key of the numbers of connections to hosts.
    pub key: [u64; 2],
    /// Seed of the cells of sources.
    pub seed: u64,
    /// Seed of the connections' ids.
    pub id_seed: u64,
    /// Tick until which SYNs are answered: userspace is alive.
    pub alive_until: u32,
    /// First entry of `CUT_FLOWS` that the program claims, and their number for each CPU.
    pub first_flow: u32,
    /// See `first_flow`.
    pub flows: u32,
    /// First source port that the program claims, and their number for each CPU.
    pub first_port: u32,
    /// See `first_port`.
    pub ports: u32,
    /// Number of CPUs that have a share of flows, ports and payloads: the first ones.
    pub cpus: u32,
    /// `OFFERED_*` bits: options that this machine's own sockets would accept.
    pub offers: u32,
    /// MSS that fits all interfaces of legs and all hosts, over IPv4.
    pub mss: u32,
    /// Number of changes of the tables, odd during a change: routes, clusters and hosts that are read while it changes
    /// do not belong together.
    pub tables: u32,
    /// Number of nodes that divide the source ports of addresses that move, at least 1, and the remainder of this one's.
    pub nodes: u32,
    /// See `nodes`.
    pub slot: u32,
    /// Interfaces that may answer the SYNs that they receive, where the kernel reports no routes to programs because it
    /// does not forward: of IPv4, and of IPv6. 0 for none.
    pub answering: [[u32; MAX_ANSWERING]; 2],
    /// 1: the program goes on when userspace has died.
    pub outlives: u32,
    /// Most connections at once: of a source, and in all; 0: no limit.
    pub of_source: u32,
    /// See `of_source`.
    pub in_all: u32,
    /// Most new connections of a source in a second; 0: no limit.
    pub per_second: u32,
    /// 1: `PEEK_LIMITS` has limits of a listener.
    pub of_listeners: u32,
    /// 1: userspace makes the sockets of connections that are passed up, of IPv4 and of IPv6: the kernel would not.
    pub repairs: [u32; 2],
}

/// Ticks after userspace's last heartbeat from which on it is not alive: three seconds.
pub const LIFE_TICKS: u32 = 2861;
/// Ticks after a heartbeat from which on a program that outlives userspace frees flows by itself: 0.75 s.
pub const ORPHAN_TICKS: u32 = 716;
/// Ticks after the last heartbeat for which a program that outlives userspace goes on: 26 days, half of the range.
pub const MAX_ORPHAN_TICKS: u32 = u32::MAX / 2;

impl PeekConfig {
    /// Value of [`alive_until`](Self::alive_until) after a heartbeat at a tick.
    #[inline(always)]
    #[must_use]
    pub const fn sign_of_life(now: u32, outlives: bool) -> u32 {
        now.wrapping_add(if outlives { MAX_ORPHAN_TICKS } else { LIFE_TICKS })
    }

    /// Whether userspace was alive a moment ago, or the program goes on without it. A filter stays at its interface for
    /// longer than the clock takes to come round.
    #[inline(always)]
    #[must_use]
    pub const fn is_alive(&self, now: u32) -> bool {
        let left = self.alive_until.wrapping_sub(now);
        let most = if self.outlives != 0 {
            MAX_ORPHAN_TICKS
        } else {
            LIFE_TICKS
        };
        left != 0 && left <= most
    }

    /// Whether the program goes on without userspace, which has died or does not run.
    #[inline(always)]
    #[must_use]
    pub const fn is_orphaned(&self, now: u32) -> bool {
        let left = self.alive_until.wrapping_sub(now);
        self.outlives != 0 && left < MAX_ORPHAN_TICKS - ORPHAN_TICKS
    }
}

const _: () = assert!(size_of::<PeekConfig>() == 168);

// SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for PeekConfig {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_heartbeat_orphans_a_program_even_across_clock_wrap() {
        let beaten = u32::MAX - 700;
        let config = |outlives: bool| PeekConfig {
            alive_until: PeekConfig::sign_of_life(beaten, outlives),
            outlives: outlives.into(),
            ..PeekConfig::default()
        };
        let at = |later: u32| config(true).is_orphaned(beaten.wrapping_add(later));
        assert_eq!([0, 500, ORPHAN_TICKS].map(at), [false; 3]);
        assert_eq!(
            [ORPHAN_TICKS + 1, LIFE_TICKS, 1 << 30, MAX_ORPHAN_TICKS].map(at),
            [true; 4]
        );
        let is_alive = |later: u32| config(false).is_alive(beaten.wrapping_add(later));
        assert_eq!([0, LIFE_TICKS - 1].map(is_alive), [true; 2]);
        // Half of the clock's round later, too, at which a comparison of numbers alone would say that it is early.
        let over = [LIFE_TICKS, LIFE_TICKS + 1, 1 << 30, 1 << 31, 3 << 30];
        assert_eq!(over.map(is_alive), [false; 5]);
        let goes_on = |later: u32| config(true).is_alive(beaten.wrapping_add(later));
        assert_eq!([0, LIFE_TICKS, 1 << 30, MAX_ORPHAN_TICKS - 1].map(goes_on), [true; 4]);
        assert_eq!([MAX_ORPHAN_TICKS, 1 << 31].map(goes_on), [false; 2]);
        let never = [0, ORPHAN_TICKS + 1, LIFE_TICKS, LIFE_TICKS + 1, 1 << 30];
        assert!(
            !never
                .iter()
                .any(|later| config(false).is_orphaned(beaten.wrapping_add(*later)))
        );
    }
}
