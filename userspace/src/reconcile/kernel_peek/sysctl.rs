//! Settings of the kernel's TCP that decide what the kernel peek may offer clients.

use signalbox_common::cut::flow::{OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS};

/// Whether a setting of the kernel's TCP is not 0.
pub(super) fn is_on(name: &str) -> bool {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
    text.map_or(true, |text| text.trim() != "0")
}

/// Options that this machine's sockets accept (`OFFERED_*`): the kernel makes no socket of a cookie with others.
pub(super) fn kernel_offers() -> u32 {
    let options = [
        ("tcp_window_scaling", OFFERED_SCALE),
        ("tcp_sack", OFFERED_SACK),
        ("tcp_timestamps", OFFERED_TIMESTAMPS),
    ];
    let on = options.iter().filter(|(name, _)| is_on(name));
    on.fold(0, |offers, (_, bit)| offers | u32::from(*bit))
}

/// Whether the kernel forwards packets that arrive on an interface, for one address family.
pub(super) fn forwards(interface: &str, is_v4: bool) -> bool {
    let version = if is_v4 { "ipv4" } else { "ipv6" };
    let text = std::fs::read_to_string(format!("/proc/sys/net/{version}/conf/{interface}/forwarding"));
    text.is_ok_and(|text| text.trim() != "0")
}
