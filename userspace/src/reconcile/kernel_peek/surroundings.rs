//! Packet sockets, routes and interfaces of the machine: they decide where the program may be used.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_common::peek::abi::MAX_ANSWERING;

use super::KernelPeek;
use super::conditions::Conditions;
use super::sysctl::{forwards, is_on};
use crate::kernel::interfaces::{self, Interface};
use crate::kernel::netlink::Netlink;
use crate::kernel::packet_sockets::{self, SharedFamilies};

impl KernelPeek {
    /// Finds the interfaces on which answers to SYNs may leave, among those with the program.
    pub(super) fn look_for_routes(&self) {
        let interfaces = self.cut.attached_interfaces();
        let of_version = |is_v4: bool| {
            // If all of them forward, programs may ask the kernel itself: its many routes are not read here.
            if interfaces.iter().all(|interface| forwards(&interface.name, is_v4)) {
                return Ok([0; MAX_ANSWERING]);
            }
            let ways = Netlink::open()?.ways_out(is_v4)?;
            let mut found = [0; MAX_ANSWERING];
            let leading = interfaces.iter().filter(|interface| ways.leads_back(interface.index));
            for (slot, interface) in found.iter_mut().zip(leading) {
                *slot = interface.index;
            }
            Ok::<_, io::Error>(found)
        };
        match of_version(true).and_then(|v4| Ok([v4, of_version(false)?])) {
            Ok(found) => *self.answering.lock() = found,
            Err(error) => tracing::debug!(%error, "The kernel does not say which routes there are."),
        }
    }

    /// Returns, for IPv4 and for IPv6, 1 where the kernel makes no sockets of passed-up connections: workers make them.
    pub(super) fn repairs(&self) -> [u32; 2] {
        let is_tracked = self.shared.kernel.tracks_connections.load(Relaxed);
        let never = is_tracked || !self.peek.makes_sockets() || !is_on("tcp_syncookies");
        self.is_shared
            .each_ref()
            .map(|is_shared| (never || is_shared.load(Relaxed)).into())
    }

    /// Looks for packet sockets: they keep passed-up packets from getting a socket.
    pub(super) fn look_for_packet_sockets(&self) {
        let found = packet_sockets::shared_families().unwrap_or_else(|error| {
            tracing::debug!(%error, "The kernel does not say which packet sockets there are.");
            SharedFamilies::default()
        });
        self.is_shared[0].store(found.v4, Relaxed);
        self.is_shared[1].store(found.v6, Relaxed);
    }

    /// Looks for virtual addresses, which come from other nodes and go to them.
    pub(super) fn look_for_addresses(&self) {
        let snapshot = self.shared.snapshot.load();
        if snapshot.floating.is_empty() {
            return self.present.lock().clear();
        }
        let mut present = interfaces::addresses();
        present.retain(|address| snapshot.floating.group_of(*address).is_some());
        present.sort_unstable();
        *self.present.lock() = present;
    }

    /// Makes the thread check the machine in its next pass, because interfaces have changed.
    pub fn look_again(&self) {
        self.looks_again.store(true, Relaxed);
    }

    /// Attaches the program. Guarded targets need the shield first: the program does not check who may connect.
    pub(super) fn follow_interfaces(&self) {
        let snapshot = self.shared.snapshot.load();
        let cover = self.shared.kernel.shield_cover.load();
        let waits_for_shield = snapshot
            .model
            .listeners
            .iter()
            .any(|listener| listener.shield.is_some())
            && !cover.is_partial;
        let may_attach = |interface: &Interface| !waits_for_shield || cover.interfaces.contains(&interface.index);
        self.peek
            .follow_interfaces(&self.cut, self.outlives_process(), may_attach);
    }

    /// Returns the conditions, in addition to the snapshot, that decide which listeners are routed in the kernel.
    pub(super) fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::now(&self.shared, &self.cut);
        conditions.has_ports = self.has_ports.load(Relaxed);
        conditions.present.clone_from(&self.present.lock());
        conditions.has_no_answers = self.has_no_answers.load(Relaxed);
        conditions
    }
}
