//! The host of an HTTP/1 or HTTP/2 request: no panic, and the same outcome however the bytes arrive.
#![no_main]

mod prefixes;

use libfuzzer_sys::fuzz_target;
use signalbox_core::peek::{Peek, http};

fuzz_target!(|bytes: &[u8]| prefixes::agree(bytes, http::peek, &Peek::Incomplete));
