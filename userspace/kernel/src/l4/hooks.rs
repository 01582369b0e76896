//! Attaches the programs of layer-4 services to interfaces: in the drivers (XDP), or in TC.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode, tc};
use signalbox_common::ABI_VERSION;
use signalbox_core::model::services::Hook;

use crate::attach::{
    PRIORITY_COUNT, attach_error, attach_filter, attach_link, has_tcx, is_attached, link_name, pin_error,
    remove_other_filters,
};
use crate::attached;
use crate::error::KernelError;
use crate::interfaces::{self, Interface};
use crate::object::{program, refused_for_tests};
use crate::pins::other_version::take_over_link;
use crate::pins::{PinKind, Pins};

/// Last of our filters' priorities: before filters of tier `cut`, and of others.
pub(crate) const LAST_PRIORITY: u16 = 40;

/// Priority of this version's filters: see [`PRIORITY_COUNT`].
const PRIORITY: u16 = LAST_PRIORITY - (ABI_VERSION as u16) % PRIORITY_COUNT;

/// Name of the program for drivers.
const XDP_PROGRAM: &str = "l4_xdp";
/// Name of the program for TC.
pub(crate) const TC_PROGRAM: &str = "l4_tc";
/// Name of the shield's program for interfaces without Ethernet, in TC.
const IP_PROGRAM: &str = "l4_tc_ip";

/// Programs of layer-4 services, and the interfaces that they are attached to.
pub struct L4Hooks {
    ebpf: Ebpf,
    pins: Pins,
    attached: BTreeMap<u32, AttachedHook>,
    refused: BTreeMap<u32, String>,
    hook: Option<Hook>,
    /// Parts that the object was loaded with.
    parts: u32,
    /// Reasons why the kernel refuses a program, by its name: tried once.
    programs_refused: BTreeMap<&'static str, String>,
}

/// An interface with one of the programs attached.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AttachedHook {
    pub interface: String,
    /// `xdp`, `tc`, or `tc_ip` for the shield alone at an interface without Ethernet.
    pub hook: &'static str,
    /// Reason for that hook.
    pub why: String,
    /// Index of the interface, which its name may no longer lead to.
    #[serde(skip)]
    pub index: u32,
}

impl L4Hooks {
    pub(super) fn new(ebpf: Ebpf, pins: Pins, parts: u32, programs_refused: BTreeMap<&'static str, String>) -> Self {
        pins.restore();
        Self {
            parts,
            programs_refused,
            ebpf,
            pins,
            attached: BTreeMap::new(),
            refused: BTreeMap::new(),
            hook: None,
        }
    }

    /// Forgets the attached programs, because another process may have replaced them: the next [`Self::reconcile`]
    /// attaches them again.
    pub fn forget_attached(&mut self) {
        self.attached.clear();
        self.refused.clear();
        self.hook = None;
    }

    /// Returns the interfaces that have a program.
    #[must_use]
    pub fn attached(&self) -> Vec<AttachedHook> {
        self.attached.values().cloned().collect()
    }

    /// Returns why interfaces that carry packets have no program.
    #[must_use]
    pub fn refused(&self) -> Vec<String> {
        self.refused.values().cloned().collect()
    }

    /// Attaches to interfaces that routes use and that have no program yet, and forgets those that are gone. All get
    /// the same hook: a packet that comes in by XDP cannot leave by an interface whose driver does not have XDP.
    /// `look`: programs that another process has removed are attached again.
    pub fn reconcile(&mut self, wanted: Hook, look: bool) {
        let all = interfaces::routed().unwrap_or_default();
        // An interface whose routes are gone for a moment keeps its program.
        let is_there = |index: &u32| interfaces::exists(*index);
        let gone: Vec<u32> = self.attached.keys().copied().filter(|index| !is_there(index)).collect();
        for index in gone {
            self.attached.remove(&index);
            for name in [XDP_PROGRAM, TC_PROGRAM, IP_PROGRAM] {
                let _ = std::fs::remove_file(self.pins.path(&link_name(index, name)));
            }
        }
        if look {
            self.forget_removed();
        }
        let without_ethernet = interfaces::routed_without_ethernet().unwrap_or_default();
        let routed: BTreeSet<u32> = all.iter().chain(&without_ethernet).map(|one| one.index).collect();
        self.refused.retain(|index, _| routed.contains(index));
        if self.parts & signalbox_common::parts::SHIELD != 0 {
            for interface in &without_ethernet {
                if let Err(error) = self.attach_ip(interface) {
                    self.record_refused(interface, &error);
                }
            }
        }
        let as_wanted = self.hook == Some(wanted);
        if as_wanted && all.iter().all(|interface| self.attached.contains_key(&interface.index)) {
            return;
        }
        // Once one interface is in TC, new ones are too: working programs are not detached because an interface is new.
        let in_tc = self
            .attached
            .values()
            .find(|on| on.hook == "tc")
            .map(|on| on.why.clone());
        let in_tc = in_tc.filter(|_| as_wanted && wanted == Hook::Auto);
        if !as_wanted {
            self.refused.clear();
        }
        self.hook = Some(wanted);
        let mut why = match wanted {
            Hook::Tc => Some("configured (`layer4.hook: tc`)".to_owned()),
            Hook::Native => None,
            Hook::Auto => in_tc.or_else(|| all.iter().find_map(native_xdp_cost)),
        };
        if why.is_none() {
            for interface in &all {
                match self.attach_xdp(interface) {
                    Ok(()) => {}
                    Err(error) if wanted == Hook::Native => self.record_refused(interface, &error),
                    Err(error) => {
                        let error = signalbox_sys::error_chain(&error);
                        why = Some(if self.programs_refused.contains_key(XDP_PROGRAM) {
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
                Err(error) => self.record_refused(interface, &error),
            }
        }
    }

    /// Forgets interfaces whose program is not there any more.
    fn forget_removed(&mut self) {
        self.pins.restore();
        let pins = &self.pins;
        self.attached.retain(|&index, on| {
            let pin = |name| pins.path(&link_name(index, name));
            let is_there = match on.hook {
                "xdp" => attached::by_link(&pin(XDP_PROGRAM), index),
                "tc" => is_attached(index, TcAttachType::Ingress, PRIORITY, &pin(TC_PROGRAM)),
                _ => is_attached(index, TcAttachType::Ingress, PRIORITY, &pin(IP_PROGRAM)),
            };
            if !is_there {
                tracing::warn!(
                    interface = on.interface,
                    hook = on.hook,
                    "A layer-4 program was removed from an interface by another process: it is attached again."
                );
            }
            is_there
        });
    }

    /// Loads a program when the first interface needs it: verifying one takes the kernel some 100 ms.
    fn ensure_loaded(&mut self, name: &'static str) -> Result<(), KernelError> {
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
            self.programs_refused.insert(name, signalbox_sys::error_chain(error));
        }
        loaded
    }

    fn record_refused(&mut self, interface: &Interface, error: &KernelError) {
        let error = format!("{}: {}", interface.name, signalbox_sys::error_chain(error));
        if self.refused.get(&interface.index) != Some(&error) {
            tracing::warn!(error, "Layer-4 programs cannot be attached to an interface.");
            self.refused.insert(interface.index, error);
        }
    }

    fn attach_xdp(&mut self, interface: &Interface) -> Result<(), KernelError> {
        if self.attached.get(&interface.index).is_some_and(|on| on.hook == "xdp") {
            return Ok(());
        }
        self.ensure_loaded(XDP_PROGRAM)?;
        let pin = self.pins.path(&link_name(interface.index, XDP_PROGRAM));
        if !pin.exists()
            && let Err(error) = take_over_link(PinKind::Layer4, &link_name(interface.index, XDP_PROGRAM), &pin)
        {
            tracing::debug!(%error, "A link of another version could not be had.");
        }
        let program: &mut Xdp = program(&mut self.ebpf, XDP_PROGRAM)?;
        if !replace_pinned_link(program, &pin) {
            let id = program
                .attach(&interface.name, XdpMode::Driver)
                .map_err(attach_error(XDP_PROGRAM))?;
            let made: FdLink = program
                .take_link(id)
                .map_err(attach_error(XDP_PROGRAM))?
                .try_into()
                .map_err(|e: aya::programs::links::LinkError| pin_error(&e))?;
            made.pin(&pin).map_err(|e| pin_error(&e))?;
        }
        // TC may still have the program of an earlier process or configuration: a link, or before 6.6 a filter.
        let _ = std::fs::remove_file(self.pins.path(&link_name(interface.index, TC_PROGRAM)));
        let _ = tc::qdisc_detach_program(&interface.name, TcAttachType::Ingress, TC_PROGRAM);
        self.record_attached(interface, "xdp", "the driver has XDP");
        Ok(())
    }

    fn attach_tc(&mut self, interface: &Interface, why: &str) -> Result<(), KernelError> {
        if self.attached.get(&interface.index).is_some_and(|on| on.hook == "tc") {
            return Ok(());
        }
        self.ensure_loaded(TC_PROGRAM)?;
        let pin = self.pins.path(&link_name(interface.index, TC_PROGRAM));
        let program: &mut SchedClassifier = program(&mut self.ebpf, TC_PROGRAM)?;
        if has_tcx() {
            attach_link(TC_PROGRAM, program, interface, TcAttachType::Ingress, &pin, None)?;
        } else {
            attach_filter(TC_PROGRAM, program, interface, TcAttachType::Ingress, PRIORITY)?;
        }
        let _ = std::fs::remove_file(self.pins.path(&link_name(interface.index, XDP_PROGRAM)));
        self.record_attached(interface, "tc", why);
        Ok(())
    }

    /// Attaches the shield to an interface without Ethernet. Services write Ethernet headers, and are not served there.
    fn attach_ip(&mut self, interface: &Interface) -> Result<(), KernelError> {
        if self.attached.contains_key(&interface.index) {
            return Ok(());
        }
        self.ensure_loaded(IP_PROGRAM)?;
        let pin = self.pins.path(&link_name(interface.index, IP_PROGRAM));
        let program: &mut SchedClassifier = program(&mut self.ebpf, IP_PROGRAM)?;
        if has_tcx() {
            attach_link(IP_PROGRAM, program, interface, TcAttachType::Ingress, &pin, None)?;
        } else {
            attach_filter(IP_PROGRAM, program, interface, TcAttachType::Ingress, PRIORITY)?;
        }
        let why = "no Ethernet: the shield alone, services are not served here";
        self.record_attached(interface, "tc_ip", why);
        Ok(())
    }

    fn record_attached(&mut self, interface: &Interface, hook: &'static str, why: &str) {
        tracing::info!(
            interface = interface.name,
            hook,
            why,
            "Layer-4 programs are attached to an interface."
        );
        self.refused.remove(&interface.index);
        let on = AttachedHook {
            interface: interface.name.clone(),
            hook,
            why: why.to_owned(),
            index: interface.index,
        };
        self.attached.insert(interface.index, on);
    }
}

/// Removes the filters of other versions from all interfaces, where programs are attached by filters.
pub(super) fn remove_filters_of_other_versions() {
    let ethernet = interfaces::all();
    remove_other_filters(&ethernet, TC_PROGRAM, TcAttachType::Ingress, LAST_PRIORITY, PRIORITY);
    let others = interfaces::all_without_ethernet();
    remove_other_filters(&others, IP_PROGRAM, TcAttachType::Ingress, LAST_PRIORITY, PRIORITY);
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
        Hook::Auto => interfaces::routed()
            .unwrap_or_default()
            .iter()
            .any(|interface| native_xdp_cost(interface).is_some()),
    };
    if in_tc {
        load_program(ebpf, TC_PROGRAM, parts)?;
        return Ok(refused);
    }
    match load_program(ebpf, XDP_PROGRAM, parts) {
        Err(error) if wanted == Hook::Auto && error.is_permanent() => {
            let error = signalbox_sys::error_chain(&error);
            tracing::warn!(error, "The kernel refuses the XDP program: layer-4 services use TC.");
            refused.insert(XDP_PROGRAM, error);
            load_program(ebpf, TC_PROGRAM, parts)?;
        }
        other => other?,
    }
    Ok(refused)
}

/// Loads a program, unless it is loaded.
fn load_program(ebpf: &mut Ebpf, name: &'static str, parts: u32) -> Result<(), KernelError> {
    refused_for_tests(name, parts)?;
    let loaded = if name == XDP_PROGRAM {
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
fn replace_pinned_link(program: &mut Xdp, pin: &Path) -> bool {
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
fn native_xdp_cost(interface: &Interface) -> Option<String> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    match signalbox_sys::interface_driver(&socket, &interface.name) {
        Ok(driver) if driver == "veth" => Some(format!(
            "{} is a veth: native XDP would take segmentation offload from its peer (`layer4.hook: native` insists)",
            interface.name
        )),
        // A driver that does not report its name may still have XDP: attaching shows it.
        _ => None,
    }
}

/// Describes where the programs would be attached on this machine with `layer4.hook: auto`.
#[must_use]
pub fn planned_hook() -> String {
    let all = interfaces::routed().unwrap_or_default();
    let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
    match all.iter().find_map(native_xdp_cost) {
        Some(why) => format!("in TC on {}, for {why}", names.join(", ")),
        None => format!(
            "in the drivers of {}, if all of them have XDP; in TC otherwise",
            names.join(", ")
        ),
    }
}

/// Describes where the programs would be attached if only TC were possible, for the reason `why`.
#[must_use]
pub fn planned_hook_in_tc(why: &str) -> String {
    let names: Vec<String> = interfaces::routed()
        .unwrap_or_default()
        .into_iter()
        .map(|interface| interface.name)
        .collect();
    format!("in TC on {}, for {why}", names.join(", "))
}

/// Removes our filters from all interfaces, where programs are attached by filters.
pub(super) fn remove_filters() {
    for interface in interfaces::all() {
        // Usually there is no filter: errors are ignored.
        let _ = tc::qdisc_detach_program(&interface.name, TcAttachType::Ingress, TC_PROGRAM);
    }
    for interface in interfaces::all_without_ethernet() {
        let _ = tc::qdisc_detach_program(&interface.name, TcAttachType::Ingress, IP_PROGRAM);
    }
}
