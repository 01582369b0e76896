//! Reading of first data: the name that it asks for.

use core::mem::MaybeUninit;

use signalbox_common::peek::{
    KernelPeek,
    abi::{KFUNC_LOOP_DESTROY, KFUNC_LOOP_NEW, KFUNC_LOOP_NEXT, PeekPayload, PeekReading, protocol},
    hello::{self, HelloReader},
    request::{self, RequestReader},
};

/// A loop of the kernel's (`bpf_iter_num`, kernel/bpf/bpf_iter.c, kernel 6.4): the verifier looks at one turn, and not at
/// each.
pub struct Turns(MaybeUninit<u64>);

impl Turns {
    #[inline(always)]
    pub const fn unused() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Begins.
    ///
    /// # Safety
    ///
    /// The loop must not have begun, and must be ended.
    #[inline(always)]
    pub unsafe fn begin(&mut self, turns: i32) {
        // SAFETY: the number becomes the operand of a call instruction, which userspace completes; also below.
        unsafe {
            let new: unsafe extern "C" fn(*mut u64, i32, i32) -> i32 = core::mem::transmute(KFUNC_LOOP_NEW as usize);
            new(self.0.as_mut_ptr(), 0, turns);
        }
    }

    /// # Safety
    ///
    /// The loop must have begun, and not be ended.
    #[inline(always)]
    pub unsafe fn next(&mut self) -> bool {
        // SAFETY: as above.
        unsafe {
            let next: unsafe extern "C" fn(*mut u64) -> *mut i32 = core::mem::transmute(KFUNC_LOOP_NEXT as usize);
            !next(self.0.as_mut_ptr()).is_null()
        }
    }

    /// # Safety
    ///
    /// The loop must have begun, and not be ended.
    #[inline(always)]
    pub unsafe fn end(&mut self) {
        // SAFETY: as above.
        unsafe {
            let destroy: unsafe extern "C" fn(*mut u64) = core::mem::transmute(KFUNC_LOOP_DESTROY as usize);
            destroy(self.0.as_mut_ptr());
        }
    }
}

/// Has the compiler store the reading and load it again: what the verifier loads from a map is any number to it.
#[inline(always)]
pub fn forget(reading: &mut PeekReading) {
    // SAFETY: does nothing, but the compiler must think that it changes what it points to.
    unsafe { core::arch::asm!("/* {0} */", in(reg) core::ptr::from_mut(reading), options(nostack, preserves_flags)) };
}

/// Reads the name; the outcome is a number of [`KernelPeek`].
#[inline(never)]
pub fn read_name(payload: &PeekPayload, reading: &mut PeekReading) -> u32 {
    if reading.name.protocol == protocol::HTTP {
        read_request(payload, reading)
    } else {
        read_hello(payload, reading)
    }
}

#[inline(never)]
fn read_request(payload: &PeekPayload, reading: &mut PeekReading) -> u32 {
    reading.request = RequestReader::new();
    let mut turns = Turns::unused();
    // SAFETY: begun, and ended once.
    unsafe {
        turns.begin(request::MAX_STEPS as i32);
        while turns.next() {
            reading.request.step(payload, &mut reading.name);
            forget(reading);
            if reading.request.outcome() != KernelPeek::Open as u32 {
                break;
            }
        }
        turns.end();
    }
    reading.request.outcome()
}

#[inline(never)]
fn read_hello(payload: &PeekPayload, reading: &mut PeekReading) -> u32 {
    reading.hello = HelloReader::new();
    let mut turns = Turns::unused();
    // SAFETY: as above.
    unsafe {
        turns.begin(hello::MAX_STEPS as i32);
        while turns.next() {
            reading.hello.step(payload, &mut reading.name);
            forget(reading);
            if reading.hello.outcome() != KernelPeek::Open as u32 {
                break;
            }
        }
        turns.end();
    }
    reading.hello.outcome()
}
