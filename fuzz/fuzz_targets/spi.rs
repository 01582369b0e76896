//! Routing events: no panic, whatever comes; what is understood can be folded, kept and read back; a second time it
//! changes nothing; and what is kept of what is not understood has an end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_core::discovered::spi::{
    Application, Applications, MAX_REDACTED_BYTES, endpoint_host_names, parse, redact,
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    assert!(redact(text).len() <= MAX_REDACTED_BYTES + 60);
    let Ok(events) = parse(text) else { return };
    let mut applications = Applications::default();
    applications.apply(&events);
    assert!(!applications.apply(&events), "a replayed text changes nothing");
    for application in applications.iter() {
        let again = Application::from_record(&application.to_record()).expect("a record of ours");
        assert_eq!(again, *application);
        assert_eq!(endpoint_host_names(application).len(), application.endpoints.len());
    }
});
