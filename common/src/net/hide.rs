//! Numbers that are hidden from the compiler.

/// Hides a number from the compiler, which would drop the mask of an offset that it knows to be small. The verifier
/// does not know that.
#[inline(always)]
pub(crate) fn hidden(at: u32) -> u32 {
    #[cfg(target_arch = "bpf")]
    {
        let mut at = at;
        // SAFETY: does nothing, except that the compiler must not undo this.
        unsafe { core::arch::asm!("/* {0} */", inout(reg) at, options(nomem, nostack, preserves_flags)) };
        at
    }
    #[cfg(not(target_arch = "bpf"))]
    at
}
