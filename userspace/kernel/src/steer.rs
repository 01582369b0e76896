//! Steering: `sk_lookup` in our network namespace, and the map of bindings that it follows.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, FromRawFd as _, OwnedFd, RawFd};

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::programs::{ProgramError, SkLookup};
use aya::sys::SyscallError;
use signalbox_common::steer::{MAX_LISTENER_SLOTS, SteerKey, SteerValue};
use signalbox_core::routing::plan::{self, BindingOp, Bindings};

use crate::error::KernelError;
use crate::map::{MapFd, bpf};
use crate::object::{map_fd, program};

/// The attached program and its maps. Dropping it detaches the program: connections go where they would without us.
pub struct Steering {
    bindings: MapFd,
    listeners: MapFd,
    bindings_now: Bindings,
    /// Link that keeps the program attached: aya's does not give away its descriptor.
    link: OwnedFd,
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
        let program = steer.fd().map_err(wrong)?.as_fd().as_raw_fd();
        let link = attach(program, &netns).map_err(|io_error| {
            wrong(ProgramError::SyscallError(SyscallError {
                call: "bpf_link_create",
                io_error,
            }))
        })?;
        let (bindings, listeners) = (map_fd(ebpf, "STEER_BINDINGS")?, map_fd(ebpf, "STEER_LISTENERS")?);
        Ok(Self {
            bindings,
            listeners,
            bindings_now: Bindings::new(),
            link,
        })
    }

    /// Returns a duplicate of the link: the program steers for as long as any process has it open.
    pub fn link(&self) -> io::Result<OwnedFd> {
        self.link.try_clone()
    }

    /// Puts a listening socket into a slot. Any one socket of a SO_REUSEPORT group represents the whole group.
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

/// Attaches a program of type `sk_lookup` to a network namespace (`BPF_LINK_CREATE`, kernel 5.9).
fn attach(program: RawFd, netns: &File) -> io::Result<OwnedFd> {
    let mut attr = LinkAttr {
        prog_fd: program as u32,
        target_fd: netns.as_raw_fd() as u32,
        attach_type: BPF_SK_LOOKUP,
        flags: 0,
    };
    let fd = bpf(BPF_LINK_CREATE, &mut attr)?;
    // SAFETY: the kernel has just made the descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Command of `bpf(2)`.
const BPF_LINK_CREATE: libc::c_long = 28;
/// `enum bpf_attach_type` of include/uapi/linux/bpf.h.
const BPF_SK_LOOKUP: u32 = 36;

/// Part of `union bpf_attr` that creating a link uses.
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}
