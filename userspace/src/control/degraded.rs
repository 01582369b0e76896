//! Checks which capabilities, and pins that outlive it, this process lacks for its configuration.

use signalbox_core::model::{Listener, Model};

use crate::kernel::capabilities::{self, CapabilityUse};
use crate::kernel::pins::bpffs;

/// Returns features that are limited, and why.
pub fn features(model: &Model) -> Vec<(&'static str, String)> {
    let wanted = KernelNeeds::of(model);
    let missing: Vec<_> = capabilities::missing()
        .iter()
        .filter(|right| wanted.includes(right.purpose))
        .map(|right| format!("{} is missing: {}", right.name, right.without))
        .collect();
    let capabilities = (!missing.is_empty()).then(|| ("capabilities", missing.join("; ")));
    let private = wanted
        .flows
        .then(bpffs::private_reason)
        .flatten()
        .map(|why| ("pins", why));
    capabilities.into_iter().chain(private).collect()
}

/// Kernel features that a configuration needs.
struct KernelNeeds {
    /// Flows without a process: those of tier `cut` and of services.
    flows: bool,
    shield: bool,
    /// A privileged port is listened on.
    low_ports: bool,
}

impl KernelNeeds {
    fn of(model: &Model) -> Self {
        let wants_cut = |listener: &Listener| listener.datapath.cut && listener.datapath.tier.is_none();
        let start = capabilities::unprivileged_port_start();
        let of_listeners = model.listeners.iter().flat_map(|listener| &listener.listen);
        let mut ports = of_listeners
            .map(|bind| bind.port)
            .chain(model.admin.listen.map(|addr| addr.port()));
        Self {
            flows: model.listeners.iter().any(wants_cut) || model.has_services(),
            shield: model.listeners.iter().any(|listener| listener.shield.is_some()),
            low_ports: ports.any(|port| port < start),
        }
    }

    const fn includes(&self, need: CapabilityUse) -> bool {
        match need {
            CapabilityUse::Programs => true,
            CapabilityUse::Rewriting => self.flows || self.shield,
            CapabilityUse::Resets => self.flows,
            CapabilityUse::LowPorts => self.low_ports,
        }
    }
}

/// Returns a hint for the error when listening fails: the missing capability for privileged ports.
pub fn low_ports_hint(model: &Model) -> Option<String> {
    let missing = capabilities::missing()
        .into_iter()
        .find(|right| right.purpose == CapabilityUse::LowPorts)?;
    KernelNeeds::of(model)
        .low_ports
        .then(|| format!("{} is missing: {}", missing.name, missing.without))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(listen: &str, tier: &str) -> [bool; 4] {
        let text = format!(
            "version: 1\nlisteners: [{{ name: l, protocol: tcp, listen: [\"{listen}\"], cluster: c, \
             datapath: {{ tier: {tier} }} }}]\nclusters: [{{ name: c, hosts: [{{ name: h, address: 10.0.0.1, tcp: 1 }}] }}]\n"
        );
        let wanted = KernelNeeds::of(&crate::config::parse(&text).unwrap().model);
        [
            CapabilityUse::Programs,
            CapabilityUse::Rewriting,
            CapabilityUse::Resets,
            CapabilityUse::LowPorts,
        ]
        .map(|need| wanted.includes(need))
    }

    #[test]
    fn only_what_the_configuration_wants_is_missed() {
        let is_low = capabilities::unprivileged_port_start() > 1;
        assert_eq!(wanted("10.0.0.2:65535", "copy"), [true, false, false, false]);
        assert_eq!(wanted("10.0.0.2:65535", "auto"), [true, true, true, false]);
        assert_eq!(wanted("10.0.0.2:1", "copy"), [true, false, false, is_low]);
    }
}
