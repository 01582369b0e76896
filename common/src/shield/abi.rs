//! Keys and values of the shield's maps.

use crate::Reason;
use crate::net::Target;

/// Most guards: listeners and services with rules of their own.
pub const MAX_GUARDS: u32 = 2048;
/// Size of `SHIELD_GUARD_PREFIXES`: a table of prefixes for each guard, and the one of [`GRACE_PERIOD_TABLE`].
pub const MAX_PREFIX_TABLES: u32 = MAX_GUARDS + 1;
/// Index of a table that no program reads: writing it waits for all programs that run.
pub const GRACE_PERIOD_TABLE: u32 = MAX_GUARDS;
/// Most addresses and ports that are guarded, each port of a range counted.
pub const MAX_TARGETS: u32 = 131_072;
/// Most prefixes with a port that listeners listen on.
pub const MAX_PREFIX_TARGETS: u32 = 16_384;
/// Sources whose rates are known at once, unless configured otherwise.
pub const DEFAULT_SOURCES: u32 = 262_144;
/// Size of `SHIELD_CONN_COUNT`: pairs of source and guard whose connections are counted at once.
pub const MAX_CONN_COUNTS: u32 = 1 << 17;
/// Samples of one kind that a CPU may take until userspace refills the quota.
pub const SAMPLE_QUOTA: u64 = 10;
/// Bytes of the ring that samples of dropped packets go through.
pub const SAMPLE_RING_BYTES: u32 = 128 * 1024;
/// Guard number that stands for "no guard".
pub const NO_GUARD: u32 = u32::MAX;

/// Bits of [`Guard::flags`].
pub mod flag {
    /// Malformed packets are dropped.
    pub const MALFORMED: u32 = 1;
    /// SYNs are answered with cookies while the listener's backlog is full.
    pub const COOKIES: u32 = 2;
    /// The guard belongs to a layer-4 service, which decides itself which packets begin a flow.
    pub const SERVICE: u32 = 4;
    /// The guard has prefixes of its own.
    pub const PREFIXES: u32 = 8;
    /// The guard limits a rate of packets or bytes.
    pub const RATES: u32 = 16;
}

/// A token bucket, as the time that its tokens need (generic cell rate algorithm, ITU-T I.371).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Time for one unit, in 1/1024 ns.
    pub unit_time: u64,
    /// Time that a full bucket holds, in ns; 0: there is no limit.
    pub burst: u64,
}

impl Limit {
    /// A limit of `per_second` units, with bursts of `burst`.
    #[must_use]
    pub const fn new(per_second: u64, burst: u64) -> Self {
        const SECOND: u128 = 1_000_000_000;
        let each = (SECOND << 10) / if per_second == 0 { 1 } else { per_second as u128 };
        // A bucket that needs more than a century to fill is as good as one that needs exactly that.
        let burst = (each * burst as u128) >> 10;
        Self {
            unit_time: each as u64,
            burst: if burst > 1 << 61 { 1 << 61 } else { burst as u64 },
        }
    }
}

/// Kind of limit: the index into [`Guard::limits`] and [`RateCell::full_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LimitKind {
    /// New connections, and new flows of UDP.
    Connections = 0,
    /// Packets.
    Packets = 1,
    /// Bytes of IP packets.
    Bytes = 2,
}

/// The rules of a listener or a service.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Bits of [`flag`].
    pub flags: u32,
    /// Most concurrent connections of a source; 0 for no limit.
    pub concurrent: u32,
    /// SYNs in a second from which on the listener's backlog is checked.
    pub syn_threshold: u32,
    /// Mask of the bits of an IPv4 address that tell sources apart.
    pub mask_v4: u32,
    /// Mask of the bits of an IPv6 address that tell sources apart.
    pub mask_v6: [u32; 4],
    /// Limits of each source, by [`LimitKind`].
    pub limits: [Limit; 3],
}

/// Token buckets of one source at one guard.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateCell {
    /// Hash of the source and of the guard, under a secret seed.
    pub tag: u64,
    /// Times at which the buckets are full again, by [`LimitKind`]; in ns of the monotonic clock.
    pub full_at: [u64; 3],
}

/// Set of cells that sources hash to: value of `SHIELD_SOURCES`. A source whose buckets are full loses nothing, and
/// makes room first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Cells of the sources in this set.
    pub cells: [RateCell; 4],
}

/// Settings common to all guards: the one element of `SHIELD_SETTINGS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Secret seed of the hash, so that no attacker can aim at another source's cell.
    pub seed: u64,
    /// Number of [`Bucket`]s; 0: rates are not limited.
    pub buckets: u32,
    /// 1: packets with unreadable headers are dropped, whatever their destination: the kernel would drop them, too.
    pub drop_unparsable: u32,
    /// Index in `SHIELD_SHARED_PREFIXES` of the table of prefixes common to all guards; [`NO_TABLE`] for none.
    pub shared_prefixes: u32,
    /// Generation of the guards' targets: a change makes every [`CachedGuard`] stale.
    pub generation: u32,
}

/// Value of [`Settings::shared_prefixes`]: no prefixes are common to all guards.
pub const NO_TABLE: u32 = u32::MAX;

/// Cached guard of a destination: most packets of a CPU go to few.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedGuard {
    /// The destination.
    pub target: Target,
    /// [`Settings::generation`] when the guard was looked up; 0: the entry is empty.
    pub generation: u32,
    /// The destination's guard; [`NO_GUARD`] for none.
    pub guard: u32,
    /// IP version, 4 or 6.
    pub version: u32,
}

/// Entries of the cache `SHIELD_GUARD_CACHE`.
pub const GUARD_CACHE_ENTRIES: u32 = 16;

/// Key of `SHIELD_CONN_COUNT`: a source with connections at a guard.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnCountKey {
    /// Masked address of the source.
    pub source: [u32; 4],
    /// The guard.
    pub guard: u32,
}

/// Decision of the shield against a packet: the index of a guard's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Decision {
    /// The packet is malformed.
    Malformed = 0,
    /// A prefix denies the source.
    Denied = 1,
    /// The source has exceeded its packet rate.
    Packets = 2,
    /// The source has exceeded its byte rate.
    Bytes = 3,
    /// The source has exceeded its rate of new connections.
    Connections = 4,
    /// The source has too many concurrent connections.
    Concurrent = 5,
    /// A SYN was answered with a cookie. Not a drop: the client may go on.
    Cookie = 6,
}

impl Decision {
    /// All decisions, by number.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::Denied,
        Self::Packets,
        Self::Bytes,
        Self::Connections,
        Self::Concurrent,
        Self::Cookie,
    ];

    /// The exit of the program for this decision.
    #[inline(always)]
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Malformed => Reason::ShieldMalformed,
            Self::Denied => Reason::ShieldDenied,
            Self::Packets => Reason::ShieldPackets,
            Self::Bytes => Reason::ShieldBytes,
            Self::Connections => Reason::ShieldConnections,
            Self::Concurrent => Reason::ShieldConcurrent,
            Self::Cookie => Reason::ShieldCookie,
        }
    }
}

/// Counters of a guard, one for each CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardStats {
    /// Packets by [`Decision`].
    pub decisions: [u64; 8],
}

/// Rate of SYNs to a guard: value of `SHIELD_SYN_RATES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynRate {
    /// Second of the monotonic clock (2^30 ns) that `syns` counts.
    pub second: u32,
    /// SYNs in that second.
    pub syns: u32,
}

/// Sample of a dropped packet: event to userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedPacket {
    /// Time of the drop, in ns of the monotonic clock.
    pub time: u64,
    /// Source address, IPv4-mapped where it is IPv4, words in host order.
    pub source: [u32; 4],
    /// Destination address.
    pub destination: [u32; 4],
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
    /// Protocol number.
    pub protocol: u32,
    /// The guard; [`NO_GUARD`] where it is unknown.
    pub guard: u32,
    /// The program's decision, a [`Decision`].
    pub decision: u32,
    /// Length of the IP packet.
    pub length: u32,
    /// TCP control bits.
    pub flags: u32,
    /// Interface by which the packet came in.
    pub ifindex: u32,
    /// Always zero.
    pub _pad: u32,
}

const _: () = assert!(size_of::<Limit>() == 16);
const _: () = assert!(size_of::<Guard>() == 80);
// Two lines of a CPU's cache.
const _: () = assert!(size_of::<Bucket>() == 128);
const _: () = assert!(size_of::<Settings>() == 24);
const _: () = assert!(size_of::<CachedGuard>() == 32);
const _: () = assert!(size_of::<ConnCountKey>() == 20);
const _: () = assert!(size_of::<GuardStats>() == 64);
const _: () = assert!(size_of::<SynRate>() == 8);
const _: () = assert!(size_of::<DroppedPacket>() == 72);

macro_rules! pods {
    ($($name:ident)*) => {$(
        // SAFETY: repr(C), no implicit padding (the sizes are asserted above), every bit pattern is a valid value.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    )*};
}
pods!(Guard Bucket Settings CachedGuard ConnCountKey GuardStats SynRate DroppedPacket);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_time_that_its_units_take() {
        assert_eq!(
            Limit::new(100, 200),
            Limit {
                unit_time: 10_000_000 << 10,
                burst: 2_000_000_000
            }
        );
        // A tenth of a gigabyte in a second is ten nanoseconds for each byte.
        assert_eq!(
            Limit::new(100_000_000, 65_536),
            Limit {
                unit_time: 10 << 10,
                burst: 655_360
            }
        );
        assert_eq!(Limit::new(1 << 40, 1 << 40), Limit { unit_time: 0, burst: 0 });
        assert_eq!(Limit::new(1, u64::MAX).burst, 1 << 61);
    }

    #[test]
    fn numbers_are_dense_so_that_they_index_a_guards_counters() {
        for (index, judged) in Decision::ALL.iter().enumerate() {
            assert_eq!(*judged as usize, index);
        }
    }
}
