//! `sk_lookup`: assigns a new connection to a bound address:port or prefix:port to our listening sockets.
//!
//! The program runs where the kernel looks for a listening socket (`Documentation/bpf/prog_sk_lookup.rst`): for SYNs,
//! and for packets of no connection, such as the last one of a handshake with a cookie. An unbound destination is left
//! to the kernel: the node's sshd must not notice us. A bound one without a socket is dropped, so that no other process
//! gets it.

use aya_ebpf::{
    bindings::sk_action,
    macros::{map, sk_lookup},
    maps::{LpmTrie, PerCpuArray, SockMap, lpm_trie::Key},
    programs::SkLookupContext,
};
use aya_log_ebpf::warn;
use signalbox_common::{
    Reason,
    steer::{MAX_BINDINGS, MAX_LISTENER_SLOTS, MAX_LISTENERS, STEER_FIXED_BITS, SteerKey, SteerValue},
};

use crate::count::{bump, count};

const AF_INET: u32 = 2;
const IPPROTO_TCP: u32 = 6;
const ENOENT: i32 = 2;
const BPF_F_NO_PREALLOC: u32 = 1;
/// While one signalbox takes over from another, both programs run: the later choice wins.
const BPF_SK_LOOKUP_F_REPLACE: u64 = 1;

/// Addresses and prefixes that listeners are bound to.
///
/// - Entry: family, port and address prefix -> listener, slot of `STEER_LISTENERS`
/// - Writer: control/listener_set.rs through kernel/src/steer.rs, with the changes that core::plan computes
/// - Reader: steer
/// - Size: 16384; not pinned: while a process takes over from another, each has its own program and map
#[map]
static STEER_BINDINGS: LpmTrie<SteerKey, SteerValue> = LpmTrie::with_max_entries(MAX_BINDINGS, BPF_F_NO_PREALLOC);

/// Listening sockets that connections are assigned to.
///
/// - Entry: slot -> listening socket
/// - Writer: control/listener_set.rs through kernel/src/steer.rs
/// - Reader: steer
/// - Size: 64; not pinned: a socket of a process that has ended leaves the map by itself
#[map]
static STEER_LISTENERS: SockMap = SockMap::with_max_entries(MAX_LISTENER_SLOTS, 0);

/// Lookups that were given to a listener: SYNs, and the packets that complete a handshake with a cookie.
///
/// - Entry: number of a listener -> count
/// - Writer: steer
/// - Reader: kernel/src/counters.rs for the admin API and /metrics
/// - Size: 256, per CPU; not pinned: numbers mean nothing to another process
#[map]
static STEER_STATS: PerCpuArray<u64> = PerCpuArray::with_max_entries(MAX_LISTENERS, 0);

#[sk_lookup]
pub fn steer(ctx: SkLookupContext) -> u32 {
    let (reason, action) = decide(&ctx);
    count(reason as u32);
    action
}

#[inline(always)]
fn decide(ctx: &SkLookupContext) -> (Reason, u32) {
    // Every field is read up front and volatile, at a constant offset. If a compiler reads "one or the other" by a
    // computed pointer, the verifier refuses it ("dereference of modified ctx ptr").
    let field = |pointer: *const u32| {
        // SAFETY: the kernel hands a valid context for the time of the call; the pointer is into it.
        unsafe { pointer.read_volatile() }
    };
    let lookup = ctx.lookup;
    // SAFETY: only addresses within the context are computed here.
    let (family, protocol, port, v4, v6) = unsafe {
        (
            field(&raw const (*lookup).family),
            field(&raw const (*lookup).protocol),
            field(&raw const (*lookup).local_port),
            field(&raw const (*lookup).local_ip4),
            [
                field(&raw const (*lookup).local_ip6[0]),
                field(&raw const (*lookup).local_ip6[1]),
                field(&raw const (*lookup).local_ip6[2]),
                field(&raw const (*lookup).local_ip6[3]),
            ],
        )
    };
    if protocol != IPPROTO_TCP {
        return (Reason::SteerNotTcp, sk_action::SK_PASS);
    }
    // The fields hold network-order bytes.
    let key = if family == AF_INET {
        SteerKey::new(port as u16, 4, SteerKey::mapped(v4.to_ne_bytes()))
    } else {
        let mut addr = [0u8; 16];
        let mut i = 0;
        while i < 16 {
            addr[i] = v6[i / 4].to_ne_bytes()[i % 4];
            i += 1;
        }
        SteerKey::new(port as u16, 6, addr)
    };
    let key = Key::new(STEER_FIXED_BITS + 128, key);
    let Some(to) = STEER_BINDINGS.get(&key) else {
        return (Reason::SteerMiss, sk_action::SK_PASS);
    };
    let (listener, slot) = (to.listener, to.slot);
    match STEER_LISTENERS.redirect_sk_lookup(ctx, slot, BPF_SK_LOOKUP_F_REPLACE) {
        Ok(()) => {
            bump(&STEER_STATS, listener);
            (Reason::SteerAssigned, sk_action::SK_PASS)
        }
        Err(errno) if errno == -ENOENT => (Reason::SteerNoSocket, sk_action::SK_DROP),
        Err(errno) => {
            warn!(
                ctx,
                "A steered connection was refused by the kernel: port={} errno={}", port, errno
            );
            (Reason::SteerAssignFailed, sk_action::SK_DROP)
        }
    }
}
