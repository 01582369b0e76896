//! Attaches the program that removes tunnel headers (decapsulates), on a host of a service in mode `dsr-ipip`.

use aya::EbpfLoader;
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};

use super::L4_MAPS;
use crate::kernel::cut::CUT_MAPS;
use crate::kernel::cut::hooks::{attach_error, link_name, pin_error};
use crate::kernel::cut::pins::{PinKind, Pins};
use crate::kernel::object::{KernelError, OBJECT, STEERING_MAPS, program};

/// Attaches the program to an interface, where it stays until `signalbox detach`. Returns whether it runs in the
/// driver.
pub fn attach(interface: &str) -> Result<bool, KernelError> {
    let io = |what: &'static str| move |source| KernelError::Io { what, source };
    let index = nix::net::if_::if_nametoindex(interface).map_err(|e| io("finding the interface")(e.into()))?;
    let pins = Pins::open(PinKind::Layer4, false).map_err(io("opening the directory of pinned programs"))?;
    let mut loader = EbpfLoader::new();
    for name in STEERING_MAPS
        .iter()
        .chain(&CUT_MAPS)
        .chain(&L4_MAPS)
        .chain(&["ID_NAMES"])
    {
        loader.map_max_entries(name, 1);
    }
    let mut ebpf = loader.load(OBJECT).map_err(|e| KernelError::Load(Box::new(e)))?;
    let decap: &mut Xdp = program(&mut ebpf, "l4_decap")?;
    decap.load().map_err(attach_error)?;
    let (id, native) = match decap.attach(interface, XdpMode::Driver) {
        Ok(id) => (id, true),
        // Generic XDP: runs in the stack, behind any driver.
        Err(_) => (decap.attach(interface, XdpMode::Skb).map_err(attach_error)?, false),
    };
    let made: FdLink = decap
        .take_link(id)
        .map_err(attach_error)?
        .try_into()
        .map_err(|e: aya::programs::links::LinkError| pin_error(&e))?;
    made.pin(pins.path(&link_name(index, "l4_decap")))
        .map_err(|e| pin_error(&e))?;
    Ok(native)
}

/// Returns whether the program is attached to an interface of this network namespace.
#[must_use]
pub fn is_attached() -> bool {
    let pins = crate::kernel::cut::pins::names(PinKind::Layer4).unwrap_or_default();
    pins.iter().any(|name| name.ends_with("-l4_decap"))
}
