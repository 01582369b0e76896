//! Reading of first data: the name that it asks for.

use signalbox_common::{
    net::bounded_loop::{BoundedLoop as _, Round},
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
#[inline(always)]
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
    let mut steps = RequestRounds { payload, reading };
    KernelLoop::repeat(request::MAX_STEPS, &mut steps);
    steps.reading.request.outcome()
}

struct RequestRounds<'a> {
    payload: &'a PeekPayload,
    reading: &'a mut PeekReading,
}

impl Round for RequestRounds<'_> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let reading = &mut *self.reading;
        reading.request.step(self.payload, &mut reading.name);
        forget(reading);
        reading.request.outcome() == KernelPeek::Open as u32
    }
}

#[inline(never)]
fn read_hello(payload: &PeekPayload, reading: &mut PeekReading) -> u32 {
    reading.hello = HelloReader::new();
    let mut steps = HelloRounds { payload, reading };
    KernelLoop::repeat(hello::MAX_STEPS, &mut steps);
    steps.reading.hello.outcome()
}

struct HelloRounds<'a> {
    payload: &'a PeekPayload,
    reading: &'a mut PeekReading,
}

impl Round for HelloRounds<'_> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let reading = &mut *self.reading;
        reading.hello.step(self.payload, &mut reading.name);
        forget(reading);
        reading.hello.outcome() == KernelPeek::Open as u32
    }
}
