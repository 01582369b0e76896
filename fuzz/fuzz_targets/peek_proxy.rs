//! A PROXY header, version 1 or 2: no panic, and the same outcome however the bytes arrive.
#![no_main]

mod prefixes;

use libfuzzer_sys::fuzz_target;
use signalbox_core::wire::peek::proxy::{self, ProxyHeader};

fuzz_target!(|bytes: &[u8]| prefixes::agree(bytes, proxy::peek, &ProxyHeader::Incomplete));
