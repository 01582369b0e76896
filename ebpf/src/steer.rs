//! `sk_lookup`: gives a new connection to a bound address:port or prefix:port to our listening sockets.
//!
//! Runs for SYNs only (`Documentation/bpf/prog_sk_lookup.rst`). What is not bound goes on as if we were not there:
//! the node's sshd must not notice us. What is bound but has no socket is dropped, so that no other process gets it.

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
/// While one signalbox takes over from another, both programs run: the later choice stands.
const BPF_SK_LOOKUP_F_REPLACE: u64 = 1;

#[map]
static BINDINGS: LpmTrie<SteerKey, SteerValue> = LpmTrie::with_max_entries(MAX_BINDINGS, BPF_F_NO_PREALLOC);

#[map]
static LISTENERS: SockMap = SockMap::with_max_entries(MAX_LISTENER_SLOTS, 0);

/// Connections steered, per listener of the running configuration.
#[map]
static STEERED: PerCpuArray<u64> = PerCpuArray::with_max_entries(MAX_LISTENERS, 0);

#[sk_lookup]
pub fn steer(ctx: SkLookupContext) -> u32 {
    let (reason, action) = decide(&ctx);
    count(reason);
    action
}

#[inline(always)]
fn decide(ctx: &SkLookupContext) -> (Reason, u32) {
    // SAFETY: the kernel hands a valid context for the time of the call; each field is read once.
    let (family, protocol, port) = unsafe { ((*ctx.lookup).family, (*ctx.lookup).protocol, (*ctx.lookup).local_port) };
    if protocol != IPPROTO_TCP {
        return (Reason::SteerNotTcp, sk_action::SK_PASS);
    }
    let addr = if family == AF_INET {
        // SAFETY: as above. The field holds network-order bytes.
        SteerKey::mapped(unsafe { (*ctx.lookup).local_ip4 }.to_ne_bytes())
    } else {
        // SAFETY: as above, word by word: the verifier wants aligned 4-byte reads.
        let words = unsafe {
            [
                (*ctx.lookup).local_ip6[0],
                (*ctx.lookup).local_ip6[1],
                (*ctx.lookup).local_ip6[2],
                (*ctx.lookup).local_ip6[3],
            ]
        };
        let mut addr = [0u8; 16];
        let mut i = 0;
        while i < 4 {
            let bytes = words[i].to_ne_bytes();
            addr[i * 4] = bytes[0];
            addr[i * 4 + 1] = bytes[1];
            addr[i * 4 + 2] = bytes[2];
            addr[i * 4 + 3] = bytes[3];
            i += 1;
        }
        addr
    };
    let key = Key::new(STEER_FIXED_BITS + 128, SteerKey::new(port as u16, addr));
    let Some(to) = BINDINGS.get(&key) else {
        return (Reason::SteerMiss, sk_action::SK_PASS);
    };
    let (listener, slot) = (to.listener, to.slot);
    match LISTENERS.redirect_sk_lookup(ctx, slot, BPF_SK_LOOKUP_F_REPLACE) {
        Ok(()) => {
            bump(&STEERED, listener);
            (Reason::SteerAssigned, sk_action::SK_PASS)
        }
        Err(errno) if errno == -ENOENT => (Reason::SteerNoSocket, sk_action::SK_DROP),
        Err(errno) => {
            warn!(ctx, "A steered connection was refused by the kernel: port={} errno={}", port, errno);
            (Reason::SteerAssignFailed, sk_action::SK_DROP)
        }
    }
}
