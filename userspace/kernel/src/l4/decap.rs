//! Attaches the program that removes tunnel headers (decapsulates), on a host of a service in mode `dsr-ipip`.

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};

use crate::attach::{attach_error, link_name, pin_error};
use crate::error::KernelError;
use crate::object::{DECAP, program};
use crate::pins::{self, PinKind, Pins};

const PROGRAM: &str = "l4_decap";

/// Attaches the program to an interface, where it stays until `signalbox detach`. Returns whether it runs in the
/// driver.
pub fn attach(interface: &str) -> Result<bool, KernelError> {
    let io = |what: &'static str| move |source| KernelError::Io { what, source };
    let index = nix::net::if_::if_nametoindex(interface).map_err(|e| io("finding the interface")(e.into()))?;
    let pins = Pins::lock(PinKind::Layer4, false).map_err(io("opening the directory of pinned programs"))?;
    let mut ebpf = Ebpf::load(DECAP).map_err(|e| KernelError::Load(Box::new(e)))?;
    let decap: &mut Xdp = program(&mut ebpf, PROGRAM)?;
    decap.load().map_err(attach_error(PROGRAM))?;
    let (id, native) = match decap.attach(interface, XdpMode::Driver) {
        Ok(id) => (id, true),
        // Generic XDP: runs in the stack, with any driver.
        Err(_) => (
            decap.attach(interface, XdpMode::Skb).map_err(attach_error(PROGRAM))?,
            false,
        ),
    };
    let made: FdLink = decap
        .take_link(id)
        .map_err(attach_error(PROGRAM))?
        .try_into()
        .map_err(|e: aya::programs::links::LinkError| pin_error(&e))?;
    made.pin(pins.path(&link_name(index, PROGRAM)))
        .map_err(|e| pin_error(&e))?;
    Ok(native)
}

/// Returns whether the program is attached to an interface of this network namespace.
#[must_use]
pub fn is_attached() -> bool {
    let pins = pins::names(PinKind::Layer4).unwrap_or_default();
    pins.iter().any(|name| name.ends_with("-l4_decap"))
}
