//! The readers of the kernel peek beside userspace's: the same name, or none.

use signalbox_common::peek::KernelPeek;
use signalbox_common::peek::abi::{HEAD_ROOM, MAX_PAYLOAD_BYTES, PAYLOAD_ROOM, PeekName, PeekPayload, protocol};
use signalbox_common::peek::hello::{self, HelloReader};
use signalbox_common::peek::request::{self, RequestReader};
use signalbox_core::wire::hostname::Hostname;

/// Name that the kernel's reader finds, if it is one that a route may have.
fn found(protocol: u8, bytes: &[u8]) -> Option<Hostname> {
    let mut payload = PeekPayload {
        generation: 1,
        length: bytes.len() as u32,
        _pad: [0; 2],
        head: [0; HEAD_ROOM],
        data: [b'x'; PAYLOAD_ROOM],
    };
    payload.data[..bytes.len()].copy_from_slice(bytes);
    let mut name = PeekName::empty(protocol);
    let (mut request, mut hello) = (RequestReader::new(), HelloReader::new());
    for _ in 0..request::MAX_STEPS.max(hello::MAX_STEPS) {
        if protocol == protocol::HTTP && request.outcome() == KernelPeek::Open as u32 {
            request.step(&payload, &mut name);
        } else if protocol == protocol::TLS && hello.outcome() == KernelPeek::Open as u32 {
            hello.step(&payload, &mut name);
        }
    }
    let outcome = if protocol == protocol::HTTP {
        request.outcome()
    } else {
        hello.outcome()
    };
    let text = &name.text[..usize::from(name.length)];
    (outcome == KernelPeek::Found as u32).then(|| Hostname::parse(text).ok())?
}

/// Panics where the kernel would route a name that is not the one that userspace has found.
pub fn agree(protocol: u8, bytes: &[u8], theirs: impl FnOnce() -> Option<Hostname>) {
    if bytes.is_empty() || bytes.len() > MAX_PAYLOAD_BYTES as usize {
        return;
    }
    if let Some(name) = found(protocol, bytes) {
        assert_eq!(Some(name), theirs());
    }
}
