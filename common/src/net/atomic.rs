//! Flags and numbers that packets on several CPUs change at the same time: no change may overwrite another one.
//!
//! A network card keeps the packets of a flow on one CPU; virtual interfaces leave them where their senders run.
//! Minimum kernel: 5.12 (`BPF_ATOMIC`, `include/uapi/linux/bpf.h`).

/// Sets bits of `flags`. Nothing is written where they are set already: that costs as little as a comparison.
#[inline(always)]
pub fn set(flags: &mut u32, bits: u32) {
    if *flags & bits != bits {
        or(flags, bits);
    }
}

/// Clears bits of `flags`. Nothing is written where they are clear already.
#[inline(always)]
pub fn clear(flags: &mut u32, bits: u32) {
    if *flags & bits != 0 {
        and(flags, !bits);
    }
}

/// Replaces `old` by `new`, atomically; false, and nothing is changed, where the number differs.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub fn exchange(number: &mut u32, old: u32, new: u32) -> bool {
    let mut found = old;
    // SAFETY: the address is that of an exclusive reference, aligned; the instruction reads and writes four bytes.
    unsafe {
        core::arch::asm!(
            "w0 = cmpxchg32_32(r1 + 0, w0, w2)",
            inout("r0") found,
            in("r1") number,
            in("r2") new,
            options(nostack, preserves_flags),
        );
    }
    found == old
}

/// Replaces `old` by `new`, atomically; false, and nothing is changed, where the number differs.
#[cfg(not(target_arch = "bpf"))]
pub fn exchange(number: &mut u32, old: u32, new: u32) -> bool {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the address is that of an exclusive reference, aligned, for the time of the call.
    let number = unsafe { AtomicU32::from_ptr(number) };
    number
        .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// Replaces `old` by `new`, atomically; false, and nothing is changed, where the number differs.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub fn exchange_long(number: &mut u64, old: u64, new: u64) -> bool {
    let mut found = old;
    // SAFETY: the address is that of an exclusive reference, aligned; the instruction reads and writes eight bytes.
    unsafe {
        core::arch::asm!(
            "r0 = cmpxchg_64(r1 + 0, r0, r2)",
            inout("r0") found,
            in("r1") number,
            in("r2") new,
            options(nostack, preserves_flags),
        );
    }
    found == old
}

/// Replaces `old` by `new`, atomically; false, and nothing is changed, where the number differs.
#[cfg(not(target_arch = "bpf"))]
pub fn exchange_long(number: &mut u64, old: u64, new: u64) -> bool {
    use core::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: the address is that of an exclusive reference, aligned, for the time of the call.
    let number = unsafe { AtomicU64::from_ptr(number) };
    number
        .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// Adds `more` to a number, atomically.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub fn add(number: &mut u64, more: u64) {
    // SAFETY: the address is that of an exclusive reference, aligned; the instruction writes eight bytes.
    unsafe {
        core::arch::asm!("lock *(u64 *)(r1 + 0) += r2", in("r1") number, in("r2") more, options(nostack, preserves_flags));
    }
}

/// Adds `more` to a number, atomically.
#[cfg(not(target_arch = "bpf"))]
pub fn add(number: &mut u64, more: u64) {
    use core::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: the address is that of an exclusive reference, aligned, for the time of the call.
    unsafe { AtomicU64::from_ptr(number) }.fetch_add(more, Ordering::Relaxed);
}

/// Adds `more` to a number, atomically, and returns what it was before.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub fn fetch_add(number: &mut u64, more: u64) -> u64 {
    let mut before = more;
    // SAFETY: the address is that of an exclusive reference, aligned; the instruction reads and writes eight bytes.
    unsafe {
        core::arch::asm!(
            "r2 = atomic_fetch_add((u64 *)(r1 + 0), r2)",
            in("r1") number,
            inout("r2") before,
            options(nostack, preserves_flags),
        );
    }
    before
}

/// Adds `more` to a number, atomically, and returns what it was before.
#[cfg(not(target_arch = "bpf"))]
pub fn fetch_add(number: &mut u64, more: u64) -> u64 {
    use core::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: the address is that of an exclusive reference, aligned, for the time of the call.
    unsafe { AtomicU64::from_ptr(number) }.fetch_add(more, Ordering::Relaxed)
}

#[cfg(target_arch = "bpf")]
#[inline(always)]
fn or(flags: &mut u32, bits: u32) {
    // SAFETY: the address is that of an exclusive reference, aligned; the instruction writes four bytes.
    unsafe {
        core::arch::asm!("lock *(u32 *)(r1 + 0) |= w2", in("r1") flags, in("r2") bits, options(nostack, preserves_flags));
    }
}

#[cfg(target_arch = "bpf")]
#[inline(always)]
fn and(flags: &mut u32, bits: u32) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("lock *(u32 *)(r1 + 0) &= w2", in("r1") flags, in("r2") bits, options(nostack, preserves_flags));
    }
}

#[cfg(not(target_arch = "bpf"))]
fn or(flags: &mut u32, bits: u32) {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the address is that of an exclusive reference, aligned, for the time of the call.
    unsafe { AtomicU32::from_ptr(flags) }.fetch_or(bits, Ordering::Relaxed);
}

#[cfg(not(target_arch = "bpf"))]
fn and(flags: &mut u32, bits: u32) {
    use core::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(flags) }.fetch_and(bits, Ordering::Relaxed);
}
