//! TC program `impair`: a bad link for tests and labs. Drops, duplicates and reorders TCP packets; signalbox itself
//! never attaches it.
//!
//! A program cannot hold a packet back. A packet that is to be overtaken makes a detour: it leaves by a second veth
//! with a slow queue (`tbf`), whose peer sends it home by [`impair_return`]. A queue sends the first packet after a
//! pause at once, so a copy goes ahead of it and ends at the peer.

use aya_ebpf::{
    bindings::{TC_ACT_OK, TC_ACT_SHOT},
    helpers::{bpf_get_prandom_u32, bpf_redirect},
    macros::{classifier, map},
    maps::Array,
    programs::TcContext,
};

/// Settings and counters of the impairment of a link in tests.
///
/// - Entry: slot -> probability, seed or counter
/// - Writer: tests (userspace/tests/e2e/lab/impair.rs); impair
/// - Reader: impair; tests
/// - Size: 8; not pinned: the object is loaded once for each place that is impaired
#[map]
static IMPAIR: Array<u32> = Array::with_max_entries(8, 0);

/// Slots of `IMPAIR`. The first three are probabilities in 1/65536.
const DROP: u32 = 0;
const DUPLICATE: u32 = 1;
const REORDER: u32 = 2;
/// Interface on which the detour begins.
const DETOUR: u32 = 3;
/// Flags of the redirect that brings a packet home: 0 to the egress, `BPF_F_INGRESS` to the ingress of `HOME`.
const DIRECTION: u32 = 4;
/// Interface that is impaired.
const HOME: u32 = 5;
/// Counters: packets that were impaired, and packets looked at in all.
const IMPAIRED: u32 = 6;
const SEEN: u32 = 7;

/// Mark of a packet that has been decided about. Veth pairs within one namespace keep the mark.
const MARK_DONE: u32 = 0x1bad_0000;
/// Mark of a packet that is dropped at the detour's peer.
const MARK_LOST: u32 = 0x2bad_0000;

const ETH_HEADER: usize = 14;
const ETH_IPV4: u16 = 0x0800;
const ETH_IPV6: u16 = 0x86dd;
const IPPROTO_TCP: u8 = 6;

#[classifier]
pub fn impair(ctx: TcContext) -> i32 {
    // SAFETY: the context is the kernel's, valid for the time of the call.
    let (mark, protocol) = unsafe { ((*ctx.skb.skb).mark, (*ctx.skb.skb).protocol) };
    if mark == MARK_DONE || !is_tcp(&ctx, protocol as u16) {
        return TC_ACT_OK;
    }
    bump(SEEN);
    let detour = setting(DETOUR);
    if is_drawn(DROP) {
        bump(IMPAIRED);
        // Not TC_ACT_SHOT: the sender on this host would see that, and a loss on a wire is silent.
        ctx.set_mark(MARK_LOST);
        // SAFETY: a helper without memory arguments.
        return unsafe { bpf_redirect(detour, 0) as i32 };
    }
    // The copy goes first and the original, unmarked again, may yet take the detour: then the copy overtakes it.
    if is_drawn(DUPLICATE) {
        bump(IMPAIRED);
        ctx.set_mark(MARK_DONE);
        let _ = ctx.clone_redirect(setting(HOME), u64::from(setting(DIRECTION)));
        ctx.set_mark(mark);
    }
    if is_drawn(REORDER) {
        bump(IMPAIRED);
        ctx.set_mark(MARK_LOST);
        let _ = ctx.clone_redirect(detour, 0);
        ctx.set_mark(MARK_DONE);
        // SAFETY: a helper without memory arguments.
        return unsafe { bpf_redirect(detour, 0) as i32 };
    }
    TC_ACT_OK
}

/// Sends packets at the detour's peer home. Lost packets end here, and so does the interface's own traffic.
#[classifier]
pub fn impair_return(ctx: TcContext) -> i32 {
    // SAFETY: the context is the kernel's, valid for the time of the call.
    if unsafe { (*ctx.skb.skb).mark } != MARK_DONE {
        return TC_ACT_SHOT;
    }
    // SAFETY: a helper without memory arguments.
    unsafe { bpf_redirect(setting(HOME), u64::from(setting(DIRECTION))) as i32 }
}

#[inline(always)]
fn is_tcp(ctx: &TcContext, protocol: u16) -> bool {
    let at = match u16::from_be(protocol) {
        ETH_IPV4 => 9,
        ETH_IPV6 => 6,
        _ => return false,
    };
    ctx.load::<u8>(ETH_HEADER + at) == Ok(IPPROTO_TCP)
}

#[inline(always)]
fn is_drawn(slot: u32) -> bool {
    // SAFETY: a helper without arguments.
    let dice = unsafe { bpf_get_prandom_u32() };
    dice & 0xffff < setting(slot)
}

#[inline(always)]
fn setting(slot: u32) -> u32 {
    IMPAIR.get(slot).copied().unwrap_or(0)
}

/// Counts a packet. Two CPUs may lose a count between them; it need not be exact.
#[inline(always)]
fn bump(slot: u32) {
    if let Some(count) = IMPAIR.get_ptr_mut(slot) {
        // SAFETY: a non-null element of the array.
        unsafe { *count = (*count).wrapping_add(1) };
    }
}
