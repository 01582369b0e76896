//! The SNI of a ClientHello: no panic, the same outcome however the bytes arrive, and the same name in the kernel.
#![no_main]

mod kernel_peek;
mod prefixes;

use libfuzzer_sys::fuzz_target;
use signalbox_common::peek::abi::protocol;
use signalbox_core::wire::peek::{Peek, tls};

fuzz_target!(|bytes: &[u8]| {
    prefixes::agree(bytes, tls::peek, &Peek::Incomplete);
    kernel_peek::agree(protocol::TLS, bytes, || match tls::peek(bytes) {
        Peek::Found(hello) => hello.hostname,
        _ => None,
    });
});
