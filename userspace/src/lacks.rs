//! Checks what this process lacks of what its configuration wants: capabilities, and pins that outlive it.

use signalbox_core::model::{Listener, Model};

use crate::kernel::cut::bpffs;
use crate::kernel::rights::{self, Need};

/// Returns features that are limited, and why.
pub fn of(model: &Model) -> Vec<(&'static str, String)> {
    let wanted = Wanted::of(model);
    let missing: Vec<_> = rights::missing()
        .iter()
        .filter(|right| wanted.takes(right.need))
        .map(|right| format!("{} is missing: {}", right.capability, right.without))
        .collect();
    let capabilities = (!missing.is_empty()).then(|| ("capabilities", missing.join("; ")));
    let private = wanted.flows.then(bpffs::why_private).flatten().map(|why| ("pins", why));
    capabilities.into_iter().chain(private).collect()
}

/// Kernel features that a configuration wants.
struct Wanted {
    /// Flows that need no process: those of tier `cut` and of services.
    flows: bool,
    shield: bool,
    /// A privileged port is listened on.
    low_ports: bool,
}

impl Wanted {
    fn of(model: &Model) -> Self {
        let wants_cut = |listener: &Listener| listener.datapath.cut && listener.datapath.tier.is_none();
        let start = rights::unprivileged_port_start();
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

    const fn takes(&self, need: Need) -> bool {
        match need {
            Need::Programs => true,
            Need::Rewriting => self.flows || self.shield,
            Need::Resets => self.flows,
            Need::LowPorts => self.low_ports,
        }
    }
}

/// Returns a hint for the message where listening fails: the missing capability for privileged ports.
pub fn low_ports_hint(model: &Model) -> Option<String> {
    let missing = rights::missing()
        .into_iter()
        .find(|right| right.need == Need::LowPorts)?;
    Wanted::of(model)
        .low_ports
        .then(|| format!("{} is missing: {}", missing.capability, missing.without))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(listen: &str, tier: &str) -> [bool; 4] {
        let text = format!(
            "version: 1\nlisteners: [{{ name: l, protocol: tcp, listen: [\"{listen}\"], cluster: c, \
             datapath: {{ tier: {tier} }} }}]\nclusters: [{{ name: c, hosts: [{{ name: h, address: 10.0.0.1, tcp: 1 }}] }}]\n"
        );
        let wanted = Wanted::of(&crate::config::parse(&text).unwrap().model);
        [Need::Programs, Need::Rewriting, Need::Resets, Need::LowPorts].map(|need| wanted.takes(need))
    }

    #[test]
    fn only_what_the_configuration_wants_is_missed() {
        let is_low = rights::unprivileged_port_start() > 1;
        assert_eq!(wanted("10.0.0.2:65535", "copy"), [true, false, false, false]);
        assert_eq!(wanted("10.0.0.2:65535", "auto"), [true, true, true, false]);
        assert_eq!(wanted("10.0.0.2:1", "copy"), [true, false, false, is_low]);
    }
}
