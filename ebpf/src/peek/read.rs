//! Reading of first data: the name that it asks for.

use signalbox_common::{
    net::BoundedLoop as _,
    peek::{
        KernelPeek,
        abi::{PeekPayload, PeekReading, protocol},
        hello::{self, HelloReader},
        request::{self, RequestReader},
    },
};

use super::kernel_loop::KernelLoop;

/// Makes the compiler store the reading and load it again: the verifier knows no bounds of a number from a map.
#[inline(always)]
pub fn forget(reading: &mut PeekReading) {
    // SAFETY: does nothing, but the compiler must assume a change of the memory behind the pointer.
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
    let mut steps = KernelLoop::NEW;
    steps.begin(request::MAX_STEPS);
    while steps.next() {
        if step_request(payload, reading) != KernelPeek::Open as u32 {
            break;
        }
    }
    steps.end();
    reading.request.outcome()
}

/// A step, in a function of its own, as those below. At the end of a loop's round, verifiers before 6.18 compare
/// registers that are not read any more. Those of a function are gone by then.
#[inline(never)]
fn step_request(payload: &PeekPayload, reading: &mut PeekReading) -> u32 {
    reading.request.step(payload, &mut reading.name);
    forget(reading);
    reading.request.outcome()
}

#[inline(never)]
fn read_hello(payload: &PeekPayload, reading: &mut PeekReading) -> u32 {
    reading.hello = HelloReader::new();
    let mut steps = KernelLoop::NEW;
    steps.begin(hello::MAX_STEPS);
    while steps.next() {
        if step_hello(payload, reading) != KernelPeek::Open as u32 {
            break;
        }
    }
    steps.end();
    reading.hello.outcome()
}

#[inline(never)]
fn step_hello(payload: &PeekPayload, reading: &mut PeekReading) -> u32 {
    reading.hello.step(payload, &mut reading.name);
    forget(reading);
    reading.hello.outcome()
}
