//! Loops of the kernel (`bpf_iter_num`, kernel/bpf/bpf_iter.c, kernel 6.4): the verifier walks one round, and not each.
//!
//! The verifier stops there if a round leaves everything as the round before it did. A number that a round changes must
//! be hidden from the verifier, or stored in a map.

use core::mem::MaybeUninit;

use signalbox_common::{
    net::BoundedLoop,
    peek::abi::{KFUNC_LOOP_DESTROY, KFUNC_LOOP_NEW, KFUNC_LOOP_NEXT},
};

/// `struct bpf_iter_num` (include/uapi/linux/bpf.h).
pub struct KernelLoop(MaybeUninit<u64>);

impl BoundedLoop for KernelLoop {
    const NEW: Self = Self(MaybeUninit::uninit());

    #[inline(always)]
    fn begin(&mut self, rounds: u32) {
        // SAFETY: the number becomes the operand of a call instruction, which userspace completes; also below. The verifier
        // refuses a program whose loops are not begun, gone through and ended in this order.
        unsafe {
            let new: unsafe extern "C" fn(*mut u64, i32, i32) -> i32 = core::mem::transmute(KFUNC_LOOP_NEW as usize);
            new(self.0.as_mut_ptr(), 0, rounds as i32);
        }
    }

    #[inline(always)]
    fn next(&mut self) -> bool {
        // SAFETY: as above.
        unsafe {
            let next: unsafe extern "C" fn(*mut u64) -> *mut i32 = core::mem::transmute(KFUNC_LOOP_NEXT as usize);
            !next(self.0.as_mut_ptr()).is_null()
        }
    }

    #[inline(always)]
    fn end(&mut self) {
        // SAFETY: as above.
        unsafe {
            let destroy: unsafe extern "C" fn(*mut u64) = core::mem::transmute(KFUNC_LOOP_DESTROY as usize);
            destroy(self.0.as_mut_ptr());
        }
    }
}
