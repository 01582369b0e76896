//! Attaches the programs of layer-4 services to interfaces: in the drivers (XDP), or in TC.

use std::collections::BTreeMap;
use std::path::Path;

use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode, tc};
use signalbox_common::ABI_VERSION;
use signalbox_core::model::services::Hook;

use crate::kernel::cut::earlier::inherit;
use crate::kernel::cut::hooks::{
    PLACES, attach_filter, attach_link, has_tcx, link, remove_other_filters, unpinned, wrong,
};
use crate::kernel::cut::interfaces::{self, Interface};
use crate::kernel::cut::pins::{Kind, Pins};
use crate::kernel::object::{KernelError, program, refused_for_tests};

/// Last of our filters' priorities: before filters of tier `cut`, and of others.
const LAST_PRIORITY: u16 = 40;

/// Priority of this version's filters: see [`PLACES`].
const PRIORITY: u16 = LAST_PRIORITY - (ABI_VERSION as u16) % PLACES;

/// Name of the program for drivers.
const XDP: &str = "l4_xdp";
/// Name of the program for TC.
const TC: &str = "l4_tc";

/// Programs of layer-4 services, and the interfaces that they are attached to.
pub struct Hooks {
    ebpf: Ebpf,
    pins: Pins,
    on: BTreeMap<u32, On>,
    refused: BTreeMap<u32, String>,
    wanted: Option<Hook>,
    /// Parts that the object was loaded with.
    parts: u32,
    /// Reasons why the kernel refuses a program, by its name: tried once.
    programs_refused: BTreeMap<&'static str, String>,
}

/// An interface with one of the programs attached.
#[derive(Clone, Debug, serde::Serialize)]
pub struct On {
    pub interface: String,
    /// `xdp` or `tc`.
    pub hook: &'static str,
    /// Reason for that hook.
    pub why: String,
}

impl Hooks {
    pub(super) fn new(ebpf: Ebpf, pins: Pins, parts: u32, programs_refused: BTreeMap<&'static str, String>) -> Self {
        Self {
            parts,
            programs_refused,
            ebpf,
            pins,
            on: BTreeMap::new(),
            refused: BTreeMap::new(),
            wanted: None,
        }
    }

    /// Forgets what is attached, because somebody else may have replaced the programs: the next [`Self::follow`]
    /// attaches them again.
    pub fn forget(&mut self) {
        self.on.clear();
        self.refused.clear();
        self.wanted = None;
    }

    /// Returns the interfaces that have a program.
    #[must_use]
    pub fn on(&self) -> Vec<On> {
        self.on.values().cloned().collect()
    }

    /// Returns why interfaces that carry packets have no program.
    #[must_use]
    pub fn refused(&self) -> Vec<String> {
        self.refused.values().cloned().collect()
    }

    /// Attaches to interfaces that routes use and that have no program yet, and forgets those that are gone. All get
    /// the same hook: a packet that comes in by XDP cannot leave by an interface whose driver does not have XDP.
    pub fn follow(&mut self, wanted: Hook) {
        let all = interfaces::carrying();
        // An interface whose routes are gone for a moment keeps its program.
        let is_there = |index: &u32| interfaces::exists(*index);
        let gone: Vec<u32> = self.on.keys().copied().filter(|index| !is_there(index)).collect();
        for index in gone {
            self.on.remove(&index);
            for name in [XDP, TC] {
                let _ = std::fs::remove_file(self.pins.path(&link(index, name)));
            }
        }
        self.refused
            .retain(|index, _| all.iter().any(|interface| interface.index == *index));
        let as_wanted = self.wanted == Some(wanted);
        if as_wanted && all.iter().all(|interface| self.on.contains_key(&interface.index)) {
            return;
        }
        // Once one interface is in TC, new ones are too: working programs are not detached because an interface is new.
        let in_tc = self.on.values().find(|on| on.hook == "tc").map(|on| on.why.clone());
        let in_tc = in_tc.filter(|_| as_wanted && wanted == Hook::Auto);
        if !as_wanted {
            self.refused.clear();
        }
        self.wanted = Some(wanted);
        let mut why = match wanted {
            Hook::Tc => Some("configured (`layer4.hook: tc`)".to_owned()),
            Hook::Native => None,
            Hook::Auto => in_tc.or_else(|| all.iter().find_map(costly)),
        };
        if why.is_none() {
            for interface in &all {
                match self.attach_xdp(interface) {
                    Ok(()) => {}
                    Err(error) if wanted == Hook::Native => self.refuse(interface, &error),
                    Err(error) => {
                        let error = crate::error_chain(&error);
                        why = Some(if self.programs_refused.contains_key(XDP) {
                            error
                        } else {
                            format!("{} has no native XDP: {error}", interface.name)
                        });
                        break;
                    }
                }
            }
        }
        let Some(why) = why else { return };
        for interface in &all {
            match self.attach_tc(interface, &why) {
                Ok(()) => {}
                Err(error) => self.refuse(interface, &error),
            }
        }
    }

    /// Loads a program when the first interface needs it: verifying one takes the kernel some 100 ms.
    fn ensure(&mut self, name: &'static str) -> Result<(), KernelError> {
        if let Some(why) = self.programs_refused.get(name) {
            return Err(KernelError::Io {
                what: "loading a program",
                source: std::io::Error::other(why.clone()),
            });
        }
        let loaded = load_program(&mut self.ebpf, name, self.parts);
        if let Err(error) = &loaded
            && error.is_permanent()
        {
            self.programs_refused.insert(name, crate::error_chain(error));
        }
        loaded
    }

    fn refuse(&mut self, interface: &Interface, error: &KernelError) {
        let error = format!("{}: {}", interface.name, crate::error_chain(error));
        if self.refused.get(&interface.index) != Some(&error) {
            tracing::warn!(error, "Layer-4 programs cannot be attached to an interface.");
            self.refused.insert(interface.index, error);
        }
    }

    fn attach_xdp(&mut self, interface: &Interface) -> Result<(), KernelError> {
        if self.on.get(&interface.index).is_some_and(|on| on.hook == "xdp") {
            return Ok(());
        }
        self.ensure(XDP)?;
        let pin = self.pins.path(&link(interface.index, XDP));
        if !pin.exists()
            && let Err(error) = inherit(Kind::Layer4, &link(interface.index, XDP), &pin)
        {
            tracing::debug!(%error, "A link of another version could not be had.");
        }
        let program: &mut Xdp = program(&mut self.ebpf, XDP)?;
        if !replaced(program, &pin) {
            let id = program.attach(&interface.name, XdpMode::Driver).map_err(wrong)?;
            let made: FdLink = program
                .take_link(id)
                .map_err(wrong)?
                .try_into()
                .map_err(|e: aya::programs::links::LinkError| unpinned(&e))?;
            made.pin(&pin).map_err(|e| unpinned(&e))?;
        }
        // TC may still have the program of an earlier process or configuration: a link, or before 6.6 a filter.
        let _ = std::fs::remove_file(self.pins.path(&link(interface.index, TC)));
        let _ = tc::qdisc_detach_program(&interface.name, TcAttachType::Ingress, TC);
        self.stands(interface, "xdp", "the driver has XDP");
        Ok(())
    }

    fn attach_tc(&mut self, interface: &Interface, why: &str) -> Result<(), KernelError> {
        if self.on.get(&interface.index).is_some_and(|on| on.hook == "tc") {
            return Ok(());
        }
        self.ensure(TC)?;
        let pin = self.pins.path(&link(interface.index, TC));
        let program: &mut SchedClassifier = program(&mut self.ebpf, TC)?;
        if has_tcx() {
            attach_link(program, interface, TcAttachType::Ingress, &pin)?;
        } else {
            attach_filter(program, interface, TcAttachType::Ingress, PRIORITY)?;
        }
        let _ = std::fs::remove_file(self.pins.path(&link(interface.index, XDP)));
        self.stands(interface, "tc", why);
        Ok(())
    }

    fn stands(&mut self, interface: &Interface, hook: &'static str, why: &str) {
        tracing::info!(
            interface = interface.name,
            hook,
            why,
            "Layer-4 programs are attached to an interface."
        );
        self.refused.remove(&interface.index);
        let on = On {
            interface: interface.name.clone(),
            hook,
            why: why.to_owned(),
        };
        self.on.insert(interface.index, on);
    }
}

/// Removes the filters of other versions from all interfaces, where programs are attached by filters.
pub(super) fn remove_filters_of_others() {
    remove_other_filters(TC, TcAttachType::Ingress, LAST_PRIORITY, PRIORITY);
}

/// Loads the programs that this machine's interfaces need. Returns those that were refused but have a substitute. A
/// program that no interface needs is not loaded, so that its refusal harms no other.
pub(super) fn load_programs(
    ebpf: &mut Ebpf,
    wanted: Hook,
    parts: u32,
) -> Result<BTreeMap<&'static str, String>, KernelError> {
    let mut refused = BTreeMap::new();
    let in_tc = match wanted {
        Hook::Tc => true,
        Hook::Native => false,
        Hook::Auto => interfaces::carrying()
            .iter()
            .any(|interface| costly(interface).is_some()),
    };
    if in_tc {
        load_program(ebpf, TC, parts)?;
        return Ok(refused);
    }
    match load_program(ebpf, XDP, parts) {
        Err(error) if wanted == Hook::Auto && error.is_permanent() => {
            let error = crate::error_chain(&error);
            tracing::warn!(error, "The kernel refuses the XDP program: layer-4 services use TC.");
            refused.insert(XDP, error);
            load_program(ebpf, TC, parts)?;
        }
        other => other?,
    }
    Ok(refused)
}

/// Loads a program, unless it is loaded.
fn load_program(ebpf: &mut Ebpf, name: &'static str, parts: u32) -> Result<(), KernelError> {
    refused_for_tests(name, parts)?;
    let loaded = if name == XDP {
        program::<Xdp>(ebpf, name)?.load()
    } else {
        program::<SchedClassifier>(ebpf, name)?.load()
    };
    match loaded {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(()),
        Err(error) => Err(KernelError::of_program(name, error)),
    }
}

/// Replaces the program in the pinned link in one step; false if there is no such link.
fn replaced(program: &mut Xdp, pin: &Path) -> bool {
    let Ok(pinned) = PinnedLink::from_pin(pin) else {
        return false;
    };
    let link = XdpLink::try_from(FdLink::from(pinned))
        .ok()
        .and_then(|link| program.attach_to_link(link).ok())
        .and_then(|id| program.take_link(id).ok());
    if link.is_none() {
        // The defunct link of an interface that is gone, and whose index another interface has now.
        let _ = std::fs::remove_file(pin);
    }
    link.is_some()
}

/// Returns why native XDP on an interface would cost more than it gains; `None` if it would not.
fn costly(interface: &Interface) -> Option<String> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    match crate::datapath::sys::driver(&socket, &interface.name) {
        Ok(driver) if driver == "veth" => Some(format!(
            "{} is a veth: native XDP would take segmentation offload from its peer (`layer4.hook: native` insists)",
            interface.name
        )),
        // A driver that does not tell its name may still have XDP: attaching tells.
        _ => None,
    }
}

/// Describes where the programs would be attached on this machine with `layer4.hook: auto`.
#[must_use]
pub fn outlook() -> String {
    let all = interfaces::carrying();
    let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
    match all.iter().find_map(costly) {
        Some(why) => format!("in TC on {}, for {why}", names.join(", ")),
        None => format!(
            "in the drivers of {}, if all of them have XDP; in TC otherwise",
            names.join(", ")
        ),
    }
}

/// Describes where the programs would be attached if only TC were possible, for the reason `why`.
#[must_use]
pub fn outlook_in_tc(why: &str) -> String {
    let names: Vec<String> = interfaces::carrying()
        .into_iter()
        .map(|interface| interface.name)
        .collect();
    format!("in TC on {}, for {why}", names.join(", "))
}

/// Removes our filters from all interfaces, where programs are attached by filters.
pub(super) fn remove_filters() {
    for interface in interfaces::all() {
        // Usually there is no filter: errors are ignored.
        let _ = tc::qdisc_detach_program(&interface.name, TcAttachType::Ingress, TC);
    }
}
