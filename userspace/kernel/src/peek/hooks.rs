//! Keeps the program of the kernel peek on the interfaces that have those of tier `cut`: by tcx links, or by
//! [filters](super::filters) where the kernel has none.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::links::{FdLink, LinkError, LinkOrder};
use aya::programs::{SchedClassifier, TcAttachType};

use super::PROGRAM;
use super::filters::PeekFilters;
use super::orphan::{self, detach_orphans, retire_orphans};
use crate::attach::{attach_after, attach_error, link_name, pin_error};
use crate::error::KernelError;
use crate::interfaces::Interface;
use crate::object::program;
use crate::pins::Pins;

/// Link of the program to an interface. Dropped, it detaches, unless it is pinned.
struct PeekLink {
    interface: Interface,
    link: FdLink,
    is_pinned: bool,
}

/// Program of the kernel peek, and the interfaces that it is attached to.
pub(super) struct PeekHooks {
    /// `None` until the kernel has checked the program.
    pub(super) ebpf: Option<Ebpf>,
    pins: Pins,
    links: BTreeMap<u32, PeekLink>,
    /// In place of links, where the kernel has none.
    filters: Option<PeekFilters>,
    /// Whether this process may pin links and maps: once those of earlier processes are gone, which have the same names.
    may_pin: bool,
    /// Whether the process ends: nothing is attached or pinned any more.
    is_over: bool,
}

impl PeekHooks {
    pub(super) fn new(pins: Pins) -> Self {
        Self {
            ebpf: None,
            pins,
            links: BTreeMap::new(),
            filters: PeekFilters::new(),
            may_pin: false,
            is_over: false,
        }
    }

    pub(super) fn is_attached(&self, index: u32) -> bool {
        self.links.contains_key(&index) || self.filters.as_ref().is_some_and(|filters| filters.is_attached(index))
    }

    /// Attaches to the interfaces in `wanted`, and to no other. `outlives`: links are pinned, as soon as they may be.
    pub(super) fn reconcile(&mut self, wanted: &[Interface], outlives: bool) {
        if self.is_over {
            return;
        }
        if let (Some(filters), Some(ebpf)) = (&mut self.filters, &mut self.ebpf) {
            match program(ebpf, PROGRAM) {
                Ok(program) => filters.reconcile(program, wanted),
                Err(error) => tracing::warn!(%error, "The kernel peek cannot be attached."),
            }
        } else {
            self.reconcile_links(wanted);
        }
        self.follow_pins(outlives);
    }

    fn reconcile_links(&mut self, wanted: &[Interface]) {
        let unwanted: Vec<u32> = self
            .links
            .iter()
            .filter(|(_, link)| !wanted.contains(&link.interface))
            .map(|(index, _)| *index)
            .collect();
        for index in unwanted {
            self.unpin(index);
            self.links.remove(&index);
        }
        for interface in wanted {
            if self.links.contains_key(&interface.index) {
                continue;
            }
            match self.attach(interface) {
                Ok(link) => {
                    note_attached(interface);
                    self.links.insert(interface.index, link);
                }
                Err(error) => note_refused(interface, &error),
            }
        }
    }

    /// Detaches the programs of earlier processes, and pins this one's links in their place, if it `outlives` its process.
    /// `predecessor` is the pid of one that drains. Returns how many were detached.
    pub(super) fn replace_orphans(&mut self, outlives: bool, predecessor: Option<u32>) -> io::Result<usize> {
        if let Err(error) = retire_orphans(&self.pins) {
            tracing::warn!(%error, "A program that an earlier process has left took new clients until it was detached.");
        }
        let detached = match &mut self.filters {
            Some(filters) => filters.replace_others(predecessor),
            None => detach_orphans(true)?,
        };
        self.remove_map_pins();
        self.may_pin = true;
        self.follow_pins(outlives);
        Ok(detached)
    }

    /// The program stays as long as the process, which ends. Pins are left to a successor.
    pub(super) fn end(&mut self, has_successor: bool) {
        if !has_successor {
            self.follow_pins(false);
        }
        if !has_successor && self.may_pin {
            self.remove_map_pins();
        }
        self.may_pin = false;
        self.is_over = true;
    }

    /// Removes what would stay when the process has ended.
    pub(super) fn leave(&mut self) {
        self.is_over = true;
        if let Some(filters) = &mut self.filters {
            filters.remove_own();
        }
        // Pins that are not this process' own are a successor's.
        if self.may_pin {
            self.follow_pins(false);
            self.remove_map_pins();
        }
    }

    fn remove_map_pins(&self) {
        for name in orphan::MAPS {
            // There may be none.
            let _ = std::fs::remove_file(self.pins.path(name));
        }
    }

    fn follow_pins(&mut self, outlives: bool) {
        if self.filters.is_some() {
            if !self.may_pin || self.ebpf.is_none() {
                return;
            }
            // A filter outlives the process, whatever is configured.
            if let Err(error) = self.pin_maps() {
                tracing::warn!(
                    error = signalbox_sys::error_chain(&error),
                    "Maps of the kernel peek could not be pinned."
                );
            }
            return;
        }
        if self.may_pin && !outlives {
            self.remove_map_pins();
        }
        let indices: Vec<u32> = self.links.keys().copied().collect();
        for index in indices {
            if !outlives {
                self.unpin(index);
            } else if self.may_pin
                && let Err(error) = self.pin(index)
            {
                self.may_pin = false;
                tracing::warn!(
                    error = signalbox_sys::error_chain(&error),
                    "The kernel peek's program will end with this process: its link could not be pinned."
                );
            }
        }
    }

    /// Pins the maps with which the next process has this program take no new clients.
    fn pin_maps(&self) -> Result<(), KernelError> {
        for name in orphan::MAPS {
            let path = self.pins.path(name);
            let Some(Map::LpmTrie(map) | Map::Array(map)) = self.ebpf.as_ref().and_then(|ebpf| ebpf.map(name)) else {
                return Err(KernelError::NoMap(name));
            };
            if !path.exists() {
                map.pin(&path).map_err(|error| pin_error(&error))?;
            }
        }
        Ok(())
    }

    fn pin(&mut self, index: u32) -> Result<(), KernelError> {
        let Some(link) = self.links.remove(&index) else {
            return Ok(());
        };
        let link = if link.is_pinned && self.path(index).exists() {
            link
        } else {
            // A link that cannot be pinned is dropped; the next pass attaches it again.
            self.pin_maps()?;
            let pinned = link.link.pin(self.path(index)).map_err(|error| pin_error(&error))?;
            PeekLink {
                link: pinned.into(),
                is_pinned: true,
                ..link
            }
        };
        self.links.insert(index, link);
        Ok(())
    }

    fn unpin(&mut self, index: u32) {
        let path = self.path(index);
        let Some(link) = self.links.get_mut(&index).filter(|link| link.is_pinned) else {
            return;
        };
        match std::fs::remove_file(&path) {
            Ok(()) => link.is_pinned = false,
            // Somebody else has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => link.is_pinned = false,
            Err(error) => {
                tracing::warn!(%error, pin = %path.display(), "The kernel peek's program could not be unpinned.");
            }
        }
    }

    fn path(&self, index: u32) -> PathBuf {
        self.pins.path(&link_name(index, PROGRAM))
    }

    fn attach(&mut self, interface: &Interface) -> Result<PeekLink, KernelError> {
        let ebpf = self.ebpf.as_mut().ok_or(KernelError::NoProgram(PROGRAM))?;
        let program: &mut SchedClassifier = program(ebpf, PROGRAM)?;
        // Right after `cut_in`: a foreign program that accepts packets would keep them from this one.
        let cut_in = self.pins.path(&link_name(interface.index, "cut_in"));
        let id = attach_after(
            program,
            interface,
            TcAttachType::Ingress,
            Some(&cut_in),
            LinkOrder::last(),
        )
        .map_err(attach_error(PROGRAM))?;
        let link = program
            .take_link(id)
            .map_err(attach_error(PROGRAM))?
            .try_into()
            .map_err(|error: LinkError| pin_error(&error))?;
        Ok(PeekLink {
            interface: interface.clone(),
            link,
            is_pinned: false,
        })
    }
}

pub(super) fn note_attached(interface: &Interface) {
    tracing::info!(
        interface = interface.name,
        "The kernel peek is attached to an interface."
    );
}

pub(super) fn note_refused(interface: &Interface, error: &KernelError) {
    tracing::warn!(
        interface = interface.name,
        error = signalbox_sys::error_chain(error),
        "The kernel peek cannot be attached to an interface."
    );
}
