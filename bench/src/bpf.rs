//! Cost of BPF programs' runs, as the kernel counts it when asked to. Counting costs time itself: not for use during a
//! measurement.

use std::io::Error;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::field;

/// Commands of `bpf(2)`, and the one kind of statistics there is.
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const ENABLE_STATS: libc::c_int = 32;
const STATS_RUN_TIME: u32 = 0;

/// Guard: the kernel counts runs of BPF programs while it exists.
pub(crate) struct Counting {
    _fd: OwnedFd,
}

/// A BPF program, and its runs since it was loaded while the kernel counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Program {
    /// Number of the program in the kernel.
    pub(crate) id: u32,
    /// First 15 letters of the program's name.
    pub(crate) name: String,
    pub(crate) runs: u64,
    pub(crate) nanos: u64,
}

impl Counting {
    /// Starts counting. Takes Linux 5.8 or later, and root.
    pub(crate) fn start() -> Result<Self> {
        let fd = file(
            ENABLE_STATS,
            Attributes {
                what: STATS_RUN_TIME,
                ..Attributes::default()
            },
        )
        .context("count what BPF programs cost")?;
        Ok(Self { _fd: fd })
    }
}

/// BPF programs that these processes hold, as programs or as links.
pub(crate) fn programs_of(pids: &[u32]) -> Vec<Program> {
    let mut ids: Vec<_> = pids.iter().flat_map(|&pid| held_by(pid)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().filter_map(|id| program(id).ok()).collect()
}

fn held_by(pid: u32) -> Vec<u32> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let texts = files.into_iter().flatten().flatten();
    let texts = texts.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let ids = texts.map(|text| field(&text, "prog_id:") as u32);
    ids.filter(|&id| id != 0).collect()
}

fn program(id: u32) -> Result<Program> {
    let fd = file(
        PROG_GET_FD_BY_ID,
        Attributes {
            what: id,
            ..Attributes::default()
        },
    )?;
    let mut info = Info::default();
    let attributes = Attributes {
        what: fd.as_raw_fd().cast_unsigned(),
        length: size_of::<Info>() as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, attributes)?;
    let name = info.name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(Program {
        id,
        name: String::from_utf8_lossy(name).into_owned(),
        runs: info.run_count,
        nanos: info.run_nanos,
    })
}

/// The start of the kernel's `union bpf_attr` for the commands used here: a kind, a number or a file comes first.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    what: u32,
    length: u32,
    info: u64,
}

/// Start of the kernel's `struct bpf_prog_info`: fields that we do not read are only padding.
#[repr(C)]
#[derive(Default)]
struct Info {
    before_name: [u64; 8],
    name: [u8; 16],
    before_run_nanos: [u64; 14],
    run_nanos: u64,
    run_count: u64,
}

const _: () = assert!(std::mem::offset_of!(Info, name) == 64 && std::mem::offset_of!(Info, run_nanos) == 192);

/// Runs a command of `bpf(2)` that returns a file descriptor.
fn file(command: libc::c_int, attributes: Attributes) -> Result<OwnedFd, Error> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel has just made it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a command of `bpf(2)`: one of the constants above.
fn bpf(command: libc::c_int, mut attributes: Attributes) -> Result<libc::c_int, Error> {
    let size = size_of::<Attributes>();
    // SAFETY: the attributes are as long as is said and outlive the call. Where they have a pointer, it is to an `Info`
    // that does too, with its length.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, size) };
    if result < 0 {
        return Err(Error::last_os_error());
    }
    Ok(result as libc::c_int)
}
