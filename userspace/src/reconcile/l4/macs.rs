//! This machine's Ethernet addresses. A program in the driver also sees frames for other machines: flooded by a
//! switch, forwarded by a bridge, or taken by a promiscuous interface. Comparing the destination keeps those
//! connections out.

use std::collections::HashSet;
use std::io;

use signalbox_common::l4::abi::{ALL_MACS, MAX_MACS};

use crate::kernel::l4::L4Kernel as Kernel;
use crate::kernel::netlink::Netlink;

/// Maximum number of addresses written for the programs: half the map, so that new ones fit before old ones go.
const MAX_INTERFACES: usize = MAX_MACS as usize / 2;

/// Addresses that the programs have.
#[derive(Default)]
pub(super) struct Macs {
    written: HashSet<u64>,
    is_complete: bool,
}

impl Macs {
    /// Writes the addresses of all interfaces for the programs. If they are unknown, or too many, the programs treat
    /// every frame as addressed to this machine.
    pub(super) fn refresh(&mut self, kernel: &Kernel) -> io::Result<()> {
        let links = Netlink::open().and_then(|netlink| netlink.links());
        let told = links.and_then(|links| {
            if links.len() < MAX_INTERFACES {
                self.write(kernel, links.values().map(|link| link.mac))
            } else {
                self.set_incomplete(kernel)
            }
        });
        if told.is_err() {
            self.set_incomplete(kernel)?;
        }
        told
    }

    /// Marks the list as incomplete: the programs then treat every frame as addressed to this machine.
    fn set_incomplete(&mut self, kernel: &Kernel) -> io::Result<()> {
        if std::mem::take(&mut self.is_complete) {
            kernel.remove_mac(ALL_MACS)?;
        }
        Ok(())
    }

    fn write(&mut self, kernel: &Kernel, macs: impl Iterator<Item = [u8; 6]>) -> io::Result<()> {
        let macs: HashSet<u64> = macs.map(number).filter(|mac| *mac != ALL_MACS).collect();
        for mac in macs.difference(&self.written) {
            kernel.add_mac(*mac)?;
        }
        if !self.is_complete {
            kernel.add_mac(ALL_MACS)?;
            self.is_complete = true;
        }
        for mac in self.written.difference(&macs) {
            kernel.remove_mac(*mac)?;
        }
        self.written = macs;
        Ok(())
    }
}

/// Packs an address as the programs read it: the first byte is the most significant.
fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
