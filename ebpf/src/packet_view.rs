//! The bytes of a packet, read and written in place: at the TC hook and at the XDP hook.

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::{bpf_skb_pull_data, bpf_skb_vlan_pop},
    programs::TcContext,
};
use signalbox_common::net::Buffer;

/// `__sk_buff::protocol`, in network byte order.
pub const IPV4: u32 = 0x0800_u16.to_be() as u32;
pub const IPV6: u32 = 0x86dd_u16.to_be() as u32;

/// The linear part of a packet, read and written in place. Invalid after any helper that may move the packet.
#[derive(Clone, Copy)]
pub struct PacketView {
    data: usize,
    end: usize,
    /// A number that the verifier does not know, for [`Buffer::hide_from_verifier`].
    unknown: u32,
}

impl PacketView {
    /// View of the packet's linear part, which is made to hold at least `headers` bytes, if the packet has them.
    #[inline(always)]
    pub fn new(ctx: &TcContext, headers: u32) -> Self {
        let view = Self::current(ctx);
        let len = ctx.len();
        let want = if len < headers { len } else { headers };
        if ((view.end - view.data) as u32) < want {
            // SAFETY: the context's own packet. A failure leaves it as it is, and reading it fails in turn.
            unsafe { bpf_skb_pull_data(ctx.skb.skb, want) };
            return Self::current(ctx);
        }
        view
    }

    #[inline(always)]
    pub fn current(ctx: &TcContext) -> Self {
        let unknown = context_field(ctx, |skb| unsafe { &raw const (*skb).len });
        Self::from_bounds(ctx.data(), ctx.data_end(), unknown)
    }

    /// View of a packet that lies between `data` and `end`; `unknown` is any number that the verifier does not know.
    #[inline(always)]
    pub const fn from_bounds(data: usize, end: usize, unknown: u32) -> Self {
        Self { data, end, unknown }
    }

    /// Pointer to the `T` at offset `at`, checked in the form that the verifier needs: it must be the pointer that was
    /// compared with the packet's end. The machine may read packets at any alignment, where the kernel says that this
    /// is efficient (x86-64, arm64).
    #[inline(always)]
    fn pointer_at<T>(&self, at: u32) -> Option<*mut T> {
        let start = self.data + (at & 0xff) as usize;
        let mut stop = start + size_of::<T>();
        // SAFETY: does nothing. Without it the compiler would compare `start` with `end - size`. The verifier learns
        // only from a comparison of `start + size` with `end` (`find_good_pkt_pointers`, kernel/bpf/verifier.c).
        unsafe { core::arch::asm!("/* {0} */", inout(reg) stop, options(nomem, nostack, preserves_flags)) };
        if stop > self.end {
            return None;
        }
        Some(start as *mut T)
    }
}

/// Hides a number from compiler and verifier, by means of one that neither knows: see [`Buffer::hide_from_verifier`].
#[inline(always)]
pub fn hide_from_verifier(value: u32, unknown: u32) -> u32 {
    let mut hidden = value ^ unknown;
    // SAFETY: does nothing, except that the compiler must not undo this.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) hidden, options(nomem, nostack, preserves_flags)) };
    hidden ^ unknown
}

/// Hides a number from the compiler alone: see [`Buffer::hide_from_compiler`].
#[inline(always)]
pub fn hide_from_compiler(mut value: u32) -> u32 {
    // SAFETY: does nothing, except that the compiler must not undo this.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

impl Buffer for PacketView {
    type Loop = crate::PacketLoop;

    #[inline(always)]
    fn hide_from_verifier(&self, value: u32) -> u32 {
        hide_from_verifier(value, self.unknown)
    }

    #[inline(always)]
    fn hide_from_compiler(&self, value: u32) -> u32 {
        hide_from_compiler(value)
    }

    #[inline(always)]
    fn u8(&self, at: u32) -> Option<u8> {
        // SAFETY: within the packet, as just checked; also below.
        Some(unsafe { *self.pointer_at::<u8>(at)? })
    }

    #[inline(always)]
    fn u16(&self, at: u32) -> Option<u16> {
        // SAFETY: as above.
        Some(u16::from_be(unsafe { *self.pointer_at::<u16>(at)? }))
    }

    #[inline(always)]
    fn u32(&self, at: u32) -> Option<u32> {
        // SAFETY: as above.
        Some(u32::from_be(unsafe { *self.pointer_at::<u32>(at)? }))
    }

    #[inline(always)]
    fn words<const N: usize>(&self, at: u32) -> Option<[u32; N]> {
        let start = self.pointer_at::<[u32; N]>(at)?.cast::<u32>();
        let mut words = [0; N];
        let mut i = 0;
        while i < N {
            // SAFETY: as above.
            words[i] = u32::from_be(unsafe { *start.add(i) });
            i += 1;
        }
        Some(words)
    }

    #[inline(always)]
    fn set_u8(&mut self, at: u32, value: u8) -> Option<()> {
        // SAFETY: as above.
        unsafe { *self.pointer_at::<u8>(at)? = value };
        Some(())
    }

    #[inline(always)]
    fn set_u16(&mut self, at: u32, value: u16) -> Option<()> {
        // SAFETY: as above.
        unsafe { *self.pointer_at::<u16>(at)? = value.to_be() };
        Some(())
    }

    #[inline(always)]
    fn set_u32(&mut self, at: u32, value: u32) -> Option<()> {
        // SAFETY: as above.
        unsafe { *self.pointer_at::<u32>(at)? = value.to_be() };
        Some(())
    }

    #[inline(always)]
    fn set_words<const N: usize>(&mut self, at: u32, words: [u32; N]) -> Option<()> {
        let start = self.pointer_at::<[u32; N]>(at)?.cast::<u32>();
        let mut i = 0;
        while i < N {
            // SAFETY: as above.
            unsafe { *start.add(i) = words[i].to_be() };
            i += 1;
        }
        Some(())
    }
}

/// Whether a packet has the tag of a VLAN: it arrives again, untagged, at the interface of that VLAN. A tag of VLAN 0
/// names a priority and no VLAN (IEEE 802.1Q, 9.6), and the kernel treats the packet as untagged (`check_vlan_id`,
/// net/core/dev.c). Such a tag is removed here, or it would leave with the packet.
#[inline(always)]
pub fn is_of_vlan(ctx: &TcContext) -> bool {
    if has_priority_tag(ctx) {
        // SAFETY: the context's own packet. A failure leaves the tag, as another tag after it is one.
        unsafe { bpf_skb_vlan_pop(ctx.skb.skb) };
    }
    context_field(ctx, |skb| unsafe { &raw const (*skb).vlan_present }) != 0
}

/// Whether a packet's outer tag is of VLAN 0.
#[inline(always)]
pub fn has_priority_tag(ctx: &TcContext) -> bool {
    const VLAN_ID: u32 = 0xfff;
    context_field(ctx, |skb| unsafe { &raw const (*skb).vlan_present }) != 0
        && context_field(ctx, |skb| unsafe { &raw const (*skb).vlan_tci }) & VLAN_ID == 0
}

/// Reads a field of the context.
#[inline(always)]
pub fn context_field(ctx: &TcContext, get: impl FnOnce(*mut __sk_buff) -> *const u32) -> u32 {
    // SAFETY: the pointer is into the context that the kernel gave for the time of the call. Volatile, so that the
    // compiler keeps it at a constant offset.
    unsafe { get(ctx.skb.skb).read_volatile() }
}
