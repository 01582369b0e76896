//! This machine's Ethernet addresses. In a driver nobody has looked yet whom a frame is addressed to: a switch that floods
//! frames for another balancer, a bridge, or a promiscuous interface would have us take on connections of others.

use std::collections::HashSet;
use std::io;

use signalbox_common::l4::abi::{ALL_MACS, MAX_MACS};

use crate::kernel::l4::Layer4 as Kernel;

/// Those that the programs have been told.
#[derive(Default)]
pub(super) struct Macs {
    told: HashSet<u64>,
    are_all: bool,
}

impl Macs {
    /// Tells the programs those of all interfaces. Should there be too many, each frame is taken for ours.
    pub(super) fn tell(&mut self, kernel: &Kernel, macs: impl Iterator<Item = [u8; 6]>) -> io::Result<()> {
        let macs: HashSet<u64> = macs.map(number).filter(|mac| *mac != ALL_MACS).collect();
        // With room for one that comes before another goes.
        let are_all = macs.len() < MAX_MACS as usize / 2;
        if self.are_all && !are_all {
            kernel.remove_mac(ALL_MACS)?;
            self.are_all = false;
        }
        if !are_all {
            return Ok(());
        }
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

/// As the programs read it: the first byte in front.
fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
