//! A configuration file: any text is either a configuration or a list of errors, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = signalbox_config::parse(text);
});
