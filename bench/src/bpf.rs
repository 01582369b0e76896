//! Cost of BPF programs' runs, as the kernel counts it when asked to. Counting costs time itself: not for use during a
//! measurement.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use serde::Serialize;
use signalbox_lab::field;

/// Object with program `bare_tx`, which others are compared with: it only sends packets back.
pub(crate) static TESTING: &[u8] = aya::include_bytes_aligned!("../../ebpf/prebuilt/testing.bpf.o");

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
    /// Starts counting. Needs Linux 5.8 or later, and root.
    pub(crate) fn start() -> Result<Self> {
        let fd = enable_stats(Stats::RunTime).context("the cost of BPF programs cannot be measured")?;
        Ok(Self { _fd: fd })
    }
}

/// BPF programs that these processes hold, as programs or as links.
pub(crate) fn programs_of(pids: &[u32]) -> Vec<Program> {
    let held: Vec<_> = pids.iter().flat_map(|&pid| held_by(pid)).collect();
    let programs = loaded_programs().flatten().filter(|info| held.contains(&info.id()));
    let mut programs: Vec<_> = programs
        .map(|info| Program {
            id: info.id(),
            name: String::from_utf8_lossy(info.name()).into_owned(),
            runs: info.run_count(),
            nanos: info.run_time().as_nanos() as u64,
        })
        .collect();
    programs.sort_by_key(|program| program.id);
    programs
}

fn held_by(pid: u32) -> Vec<u32> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let texts = files.into_iter().flatten().flatten();
    let texts = texts.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let ids = texts.map(|text| field(&text, "prog_id:") as u32);
    ids.filter(|&id| id != 0).collect()
}
