//! The SNI of a ClientHello: no panic, and the same outcome however the bytes arrive.
#![no_main]

mod prefixes;

use libfuzzer_sys::fuzz_target;
use signalbox_core::peek::{Peek, tls};

fuzz_target!(|bytes: &[u8]| prefixes::agree(bytes, tls::peek, &Peek::Incomplete));
