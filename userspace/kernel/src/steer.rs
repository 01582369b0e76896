//! Steering: `sk_lookup` in our network namespace, and the map of bindings that it follows.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::programs::SkLookup;
use aya::programs::sk_lookup::SkLookupLink;
use signalbox_common::steer::{MAX_LISTENER_SLOTS, SteerKey, SteerValue};
use signalbox_core::plan::{self, BindingOp, Bindings};

use crate::error::KernelError;
use crate::map::MapFd;
use crate::object::{map_fd, program};

/// The attached program and its maps. Dropping it detaches the program: connections go where they would without us.
pub struct Steering {
    bindings: MapFd,
    listeners: MapFd,
    bindings_now: Bindings,
    /// Link that keeps the program attached.
    _link: SkLookupLink,
}

/// Error of writing the bindings.
#[derive(Debug, thiserror::Error)]
#[error("writing the kernel's map of bindings failed after {done} of {of} changes")]
pub struct SteerError {
    pub done: usize,
    pub of: usize,
    #[source]
    pub source: io::Error,
}

impl Steering {
    pub(super) fn attach(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let netns = File::open("/proc/thread-self/ns/net").map_err(|source| KernelError::Io {
            what: "opening /proc/thread-self/ns/net",
            source,
        })?;
        let wrong = |e| KernelError::of_program("steer", e);
        let steer: &mut SkLookup = program(ebpf, "steer")?;
        steer.load().map_err(wrong)?;
        let id = steer.attach(&netns).map_err(wrong)?;
        let link = steer.take_link(id).map_err(wrong)?;
        let (bindings, listeners) = (map_fd(ebpf, "STEER_BINDINGS")?, map_fd(ebpf, "STEER_LISTENERS")?);
        Ok(Self {
            bindings,
            listeners,
            bindings_now: Bindings::new(),
            _link: link,
        })
    }

    /// Puts a listening socket into a slot. Any one socket of a SO_REUSEPORT group stands for the whole group.
    pub fn set_listener(&self, slot: u32, socket: &impl AsRawFd) -> io::Result<()> {
        assert!(slot < MAX_LISTENER_SLOTS, "slot {slot}");
        self.listeners.update(&slot, &(socket.as_raw_fd() as u32))
    }

    /// Changes the kernel's bindings to `wanted`, additions first.
    pub fn apply(&mut self, wanted: Bindings) -> Result<usize, SteerError> {
        let ops = plan::diff(&self.bindings_now, &wanted);
        for (done, op) in ops.iter().enumerate() {
            self.apply_op(*op).map_err(|source| SteerError {
                done,
                of: ops.len(),
                source,
            })?;
        }
        self.bindings_now = wanted;
        Ok(ops.len())
    }

    fn apply_op(&mut self, op: BindingOp) -> io::Result<()> {
        match op {
            BindingOp::Set((bits, key), value) => self
                .bindings
                .update::<Key<SteerKey>, SteerValue>(&Key::new(bits, key), &value)?,
            BindingOp::Remove((bits, key)) => self.bindings.delete(&Key::new(bits, key))?,
        }
        // `bindings_now` is kept in step with the kernel, so that a failure half-way leaves a true state to start from.
        match op {
            BindingOp::Set(key, value) => self.bindings_now.insert(key, (value.listener, value.slot)),
            BindingOp::Remove(key) => self.bindings_now.remove(&key),
        };
        Ok(())
    }
}
