//! Addresses that are moving between nodes by plan: their entries for the programs, and the local routes of a former
//! owner.
//!
//! The kernel has all state, so that all of it outlives the process: a former owner that is killed keeps its routes and
//! answers no ARP requests for them, and its next process finds both.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_common::cut::moving::{MovingAddress, role};
use signalbox_common::net::seq;

use super::Cut;
use super::table::tick;
use crate::address::{from_words, to_words};
use crate::netlink::Netlink;
use crate::sock_diag::SockDiag;

impl Cut {
    /// Returns all addresses that move, and their entries.
    pub fn moving_addresses(&self) -> io::Result<Vec<(IpAddr, MovingAddress)>> {
        let mut all = Vec::new();
        self.chain
            .for_each::<[u32; 4], MovingAddress>(|address, entry| all.push((from_words(*address), *entry)))?;
        Ok(all)
    }

    /// Takes packets to addresses though no interface has them, and answers no ARP requests for them, until a tick.
    /// Nothing is changed if that fails.
    pub fn begin_draining(&self, addresses: &[IpAddr], until: u32) -> io::Result<()> {
        let netlink = Netlink::open()?;
        let note = |address: &IpAddr| {
            let key = to_words(*address);
            let _chain = self.chain_lock.lock();
            // Connections at a former owner stay there, also while it takes the address back.
            let chained = self.chain.get::<[u32; 4], MovingAddress>(&key)?;
            let chained = chained.filter(|entry| entry.has_role(role::NEW_OWNER) && !is_over(entry));
            let mut entry = chained.unwrap_or_default();
            entry.role |= role::FORMER_OWNER;
            entry.until = until;
            self.chain.update(&key, &entry)?;
            self.set_has_moving(true)
        };
        // Silence comes first: the kernel answers for an address that has a route.
        let begin = |address: &IpAddr| note(address).and_then(|()| netlink.add_local_route(*address));
        let begun = addresses.iter().try_for_each(begin);
        if begun.is_err() {
            self.end_draining(addresses)?;
        }
        begun
    }

    /// Takes back what [`Self::begin_draining`] has done.
    pub fn end_draining(&self, addresses: &[IpAddr]) -> io::Result<()> {
        let netlink = Netlink::open()?;
        for address in addresses {
            netlink.remove_local_route(*address)?;
            self.forget_moving(*address, role::FORMER_OWNER)?;
        }
        self.refresh_has_moving()
    }

    /// Ends the connections that are left at addresses with a reset to both of their ends. Returns how many.
    pub fn reset_connections(&self, addresses: &[IpAddr]) -> io::Result<usize> {
        let diag = SockDiag::open()?;
        let left = diag.connections(|local| addresses.contains(&local))?;
        left.iter().try_for_each(|connection| diag.end(connection))?;
        Ok(left.len())
    }

    /// Sends packets to an address that belong to no known connection to its former owner, until a tick.
    pub fn chain_to(&self, address: IpAddr, ifindex: u32, mac: [u8; 6], until: u32) -> io::Result<()> {
        let key = to_words(address);
        let _chain = self.chain_lock.lock();
        // Connections that drain here are served until the address has come back.
        let drained = self.chain.get::<[u32; 4], MovingAddress>(&key)?;
        let drained = drained.filter(|entry| entry.has_role(role::FORMER_OWNER));
        let entry = MovingAddress {
            ifindex,
            until,
            role: role::NEW_OWNER | drained.map_or(0, |_| role::FORMER_OWNER),
            mac,
        };
        self.chain.update(&key, &entry)?;
        self.set_has_moving(true)
    }

    /// Sends an address' former owner nothing more.
    pub fn unchain(&self, address: IpAddr) -> io::Result<()> {
        self.forget_moving(address, role::NEW_OWNER)?;
        self.refresh_has_moving()
    }

    /// Removes local routes that have no entry: those of another version, or of a move back.
    pub fn remove_stray_routes(&self) -> io::Result<usize> {
        let netlink = Netlink::open()?;
        let known = self.moving_addresses()?;
        let is_known = |address: &IpAddr| {
            known
                .iter()
                .any(|(known, entry)| known == address && entry.has_role(role::FORMER_OWNER))
        };
        let stray: Vec<_> = netlink
            .local_routes()?
            .into_iter()
            .filter(|address| !is_known(address))
            .collect();
        stray
            .iter()
            .try_for_each(|address| netlink.remove_local_route(*address))?;
        Ok(stray.len())
    }

    /// Has the programs look into `CUT_CHAIN` if it has entries.
    pub fn refresh_has_moving(&self) -> io::Result<()> {
        let _chain = self.chain_lock.lock();
        self.set_has_moving(!self.chain.keys::<[u32; 4]>()?.is_empty())
    }

    fn set_has_moving(&self, has_moving: bool) -> io::Result<()> {
        if self.has_moving.swap(has_moving, Relaxed) == has_moving {
            return Ok(());
        }
        self.write_config()
    }

    /// Takes a role for an address back, and removes its entry if there is no other one.
    fn forget_moving(&self, address: IpAddr, role: u16) -> io::Result<()> {
        let key = to_words(address);
        let _chain = self.chain_lock.lock();
        let Some(mut entry) = self.chain.get::<[u32; 4], MovingAddress>(&key)? else {
            return Ok(());
        };
        entry.role &= !role;
        if entry.role == 0 {
            self.chain.delete(&key)
        } else {
            self.chain.update(&key, &entry)
        }
    }
}

/// Whether the drain of an address is over.
#[must_use]
pub fn is_over(entry: &MovingAddress) -> bool {
    !seq::after(entry.until, tick())
}

/// Removes all local routes that signalbox has added.
pub(crate) fn remove_routes() -> io::Result<()> {
    let netlink = Netlink::open()?;
    let all = netlink.local_routes()?;
    all.iter().try_for_each(|address| netlink.remove_local_route(*address))
}
