//! This machine's Ethernet addresses. A program in the driver also sees frames for other machines: flooded by a
//! switch, forwarded by a bridge, or taken by a promiscuous interface. Comparing the destination keeps those
//! connections out.

use std::collections::HashSet;
use std::io;

use signalbox_common::l4::abi::{ALL_MACS, MAX_MACS};

use crate::kernel::l4::Layer4 as Kernel;
use crate::kernel::netlink::Netlink;

/// Most addresses told to the programs: half the map, so that new ones fit in before old ones go.
const MOST: usize = MAX_MACS as usize / 2;

/// Addresses that the programs have been told.
#[derive(Default)]
pub(super) struct Macs {
    told: HashSet<u64>,
    are_all: bool,
}

impl Macs {
    /// Tells the programs the addresses of all interfaces. If they are unknown, or too many, every frame is taken for
    /// ours.
    pub(super) fn look(&mut self, kernel: &Kernel) -> io::Result<()> {
        let links = Netlink::open().and_then(|netlink| netlink.links());
        let told = links.and_then(|links| {
            if links.len() < MOST {
                self.tell(kernel, links.values().map(|link| link.mac))
            } else {
                self.forget(kernel)
            }
        });
        if told.is_err() {
            self.forget(kernel)?;
        }
        told
    }

    /// Withdraws the claim that the list is complete: programs then take every frame for ours.
    fn forget(&mut self, kernel: &Kernel) -> io::Result<()> {
        if std::mem::take(&mut self.are_all) {
            kernel.remove_mac(ALL_MACS)?;
        }
        Ok(())
    }

    fn tell(&mut self, kernel: &Kernel, macs: impl Iterator<Item = [u8; 6]>) -> io::Result<()> {
        let macs: HashSet<u64> = macs.map(number).filter(|mac| *mac != ALL_MACS).collect();
        for mac in macs.difference(&self.told) {
            kernel.add_mac(*mac)?;
        }
        if !self.are_all {
            kernel.add_mac(ALL_MACS)?;
            self.are_all = true;
        }
        for mac in self.told.difference(&macs) {
            kernel.remove_mac(*mac)?;
        }
        self.told = macs;
        Ok(())
    }
}

/// Packs an address as the programs read it: the first byte is the most significant.
fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
