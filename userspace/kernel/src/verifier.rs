//! The verdict of the running kernel's verifier on each program of the object, one by one.
//!
//! Each program is loaded alone onto separate maps of the least size, and dropped at once: nothing is attached or
//! pinned, and no program's refusal hides another's.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use aya_obj::btf::FuncSecInfo;
use aya_obj::generated::{bpf_func_info, bpf_insn};
use aya_obj::maps::Map;
use aya_obj::obj::{EbpfSectionKind, Object, ProgramSection};

use signalbox_common::parts::SYMBOL;

use crate::map::{bpf, lift_memory_limit};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_BTF_LOAD: libc::c_long = 18;
const BPF_MAP_FREEZE: libc::c_long = 22;

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
/// Size of a ring: a multiple of the page size, which some Arm kernels have this large.
const RING_BYTES: u32 = 65_536;
/// `BPF_LOG_LEVEL1`: logs the instructions walked on the path that was refused.
const BPF_LOG_LEVEL1: u32 = 1;
/// `BPF_LOG_STATS` (kernel 5.2): logs one line of figures.
const BPF_LOG_STATS: u32 = 4;
/// Size of the log in bytes; kernels before 6.4 refuse a program whose log does not fit.
const MAX_LOG_BYTES: usize = (u32::MAX >> 8) as usize;

/// Work of the verifier for a program that it accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct VerifierStats {
    /// Instructions walked, of at most a million.
    pub instructions: u32,
    /// States remembered in total.
    pub states: u32,
    /// States remembered at one time.
    pub peak_states: u32,
}

/// Refusal of a program by the kernel.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct VerifierRefusal {
    /// Error of the system call.
    pub error: String,
    /// Reason that the verifier gives, in one line.
    pub reason: String,
    /// End of the verifier's log.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub log: String,
}

/// Verdict of the verifier on one program.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ProgramVerdict {
    pub program: String,
    /// Number of instructions, including those of the functions that the program calls.
    pub size: usize,
    #[serde(flatten)]
    pub outcome: LoadOutcome,
}

/// Acceptance or refusal of a program.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadOutcome {
    Accepted(VerifierStats),
    Refused(VerifierRefusal),
}

/// Loads each program of `object`, with [`signalbox_common::parts`] `parts` where the object has parts. Fails where not
/// even the maps can be made.
pub fn verdicts(object: &[u8], parts: u32) -> io::Result<Vec<ProgramVerdict>> {
    lift_memory_limit();
    let invalid = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let mut object = Object::parse(object).map_err(|e| invalid(&e))?;
    let parts = parts.to_ne_bytes();
    let constants = HashMap::from([(SYMBOL, (&parts[..], false))]);
    object.patch_map_data(constants).map_err(|e| invalid(&e))?;
    let types = load_types(&mut object);
    let names: Vec<String> = object.maps.keys().cloned().collect();
    let mut maps = HashMap::new();
    for name in names {
        let map = &object.maps[&name];
        let fd =
            create_like(&name, map).map_err(|e| io::Error::new(e.kind(), format!("making map {name} failed: {e}")))?;
        maps.insert(name, (fd, map.clone()));
    }
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let fds = maps
        .iter()
        .map(|(name, (fd, map))| (name.as_str(), fd.as_raw_fd(), map));
    object.relocate_maps(fds, &text).map_err(|e| invalid(&e))?;
    object.relocate_calls(&text).map_err(|e| invalid(&e))?;
    let mut programs: Vec<_> = object.programs.iter().collect();
    programs.sort_by_key(|(name, _)| name.as_str());
    let verdict = |(name, program): (&String, &aya_obj::Program)| {
        let function = object
            .functions
            .get(&program.function_key())
            .ok_or_else(|| invalid(&"a program without code"))?;
        let (kind, attach) =
            kind(&program.section).ok_or_else(|| invalid(&format!("{name}: its type is not known")))?;
        let load = ProgramLoad {
            name,
            kind,
            attach,
            instructions: &function.instructions,
            types: types.as_ref().map(|types| (types.as_raw_fd(), &function.func_info)),
            license: program.license.to_bytes_with_nul(),
        };
        Ok(ProgramVerdict {
            program: name.clone(),
            size: function.instructions.len(),
            outcome: load.try_load(),
        })
    };
    programs.into_iter().map(verdict).collect()
}

/// Gives the types of an object's functions to the kernel, which calls back only functions of known types. `None` where
/// it takes none.
fn load_types(object: &mut Object) -> Option<OwnedFd> {
    let types = object.fixup_and_sanitize_btf(aya::features().btf()?).ok()??.to_bytes();
    let mut attr = [types.as_ptr() as u64, 0, types.len() as u64, 0];
    let fd = bpf(BPF_BTF_LOAD, &mut attr).ok()?;
    // SAFETY: the kernel has just made it for us.
    Some(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Returns program type and attach type (`include/uapi/linux/bpf.h`).
const fn kind(section: &ProgramSection) -> Option<(u32, u32)> {
    match section {
        ProgramSection::SocketFilter => Some((1, 0)),
        ProgramSection::SchedClassifier => Some((3, 0)),
        ProgramSection::Xdp { .. } => Some((6, 37)),
        ProgramSection::SkSkbStream { .. } => Some((14, 5)),
        ProgramSection::SkLookup => Some((30, 36)),
        _ => None,
    }
}

struct ProgramLoad<'a> {
    name: &'a str,
    kind: u32,
    attach: u32,
    instructions: &'a [bpf_insn],
    /// Descriptor of the object's types, and those of the program's functions.
    types: Option<(RawFd, &'a FuncSecInfo)>,
    license: &'a [u8],
}

/// Part of `union bpf_attr` that loading a program uses.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    _pad: u32,
}

impl ProgramLoad<'_> {
    fn try_load(&self) -> LoadOutcome {
        let (figures, _) = match self.load(BPF_LOG_STATS, 64 * 1024) {
            Ok(log) => return LoadOutcome::Accepted(parse_stats(&log)),
            Err(refused) => refused,
        };
        let (error, log) = match self.load(BPF_LOG_LEVEL1, MAX_LOG_BYTES) {
            // Refused once and accepted now: perhaps memory was short.
            Ok(_) => return LoadOutcome::Accepted(VerifierStats::default()),
            Err((error, log)) => (error, log),
        };
        let error = if error.raw_os_error() == Some(libc::ENOSPC) {
            figures
        } else {
            error
        };
        LoadOutcome::Refused(VerifierRefusal {
            reason: reason(&log).unwrap_or_else(|| error.to_string()),
            error: error.to_string(),
            log: tail(&log),
        })
    }

    /// Loads the program and returns the verifier's log; on refusal the error and the log.
    fn load(&self, level: u32, room: usize) -> Result<String, (io::Error, String)> {
        let mut log = vec![0u8; room];
        let mut attr = LoadAttr {
            prog_type: self.kind,
            insn_cnt: self.instructions.len() as u32,
            insns: self.instructions.as_ptr() as u64,
            license: self.license.as_ptr() as u64,
            log_level: level,
            log_size: room as u32,
            log_buf: log.as_mut_ptr() as u64,
            expected_attach_type: self.attach,
            ..LoadAttr::default()
        };
        let functions = self.types.map(|(fd, functions)| (fd, functions.func_info_bytes()));
        if let (Some((types, records)), Some((_, functions))) = (&functions, self.types) {
            attr.prog_btf_fd = *types as u32;
            attr.func_info_rec_size = size_of::<bpf_func_info>() as u32;
            attr.func_info = records.as_ptr() as u64;
            attr.func_info_cnt = functions.len() as u32;
        }
        for (to, from) in attr.prog_name[..15].iter_mut().zip(self.name.as_bytes()) {
            *to = *from;
        }
        let loaded = bpf(BPF_PROG_LOAD, &mut attr);
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]).into_owned();
        match loaded {
            Ok(fd) => {
                // SAFETY: the kernel has just made it for us.
                drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
                Ok(log)
            }
            Err(error) => Err((error, log)),
        }
    }
}

/// Parses "processed 123 insns (limit 1000000) max_states_per_insn 4 total_states 56 peak_states 56 mark_read 7".
fn parse_stats(log: &str) -> VerifierStats {
    let line = log.lines().rev().find(|line| line.starts_with("processed "));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let behind = |word: &str| {
        let at = words.iter().position(|is| *is == word)?;
        words.get(at + 1)?.parse().ok()
    };
    VerifierStats {
        instructions: behind("processed").unwrap_or_default(),
        states: behind("total_states").unwrap_or_default(),
        peak_states: behind("peak_states").unwrap_or_default(),
    }
}

/// Extracts the verifier's reason: the last lines of its log after the walk through the program, two at most.
pub(super) fn reason(log: &str) -> Option<String> {
    let mut said = log
        .lines()
        .rev()
        .map(str::trim)
        .skip_while(|line| line.is_empty() || is_walk(line))
        .take_while(|line| !is_walk(line))
        .take(2)
        .collect::<Vec<_>>();
    said.reverse();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Returns whether a refusal's reason is that the kernel is too old: it has no such helper, or no such instruction. A
/// vendor's kernel may have them at a lower version.
#[must_use]
pub fn is_of_old_kernel(reason: &str) -> bool {
    // The last text: Linux before 5.13 does not count functions that it would call back.
    let of_old = [
        "invalid func unknown#",
        "BPF_STX uses reserved fields",
        "number of funcs in func_info",
    ];
    of_old.iter().any(|part| reason.starts_with(part))
}

/// Returns whether a line belongs to the walk (an instruction, the state of registers, figures) and not to the reason.
fn is_walk(line: &str) -> bool {
    const WORDS: [&str; 15] = [
        ";",
        "processed ",
        "verification time",
        "stack depth",
        "mark_precise",
        "last_idx",
        "first_idx",
        "regs=",
        "parent ",
        "from ",
        "caller",
        "callee",
        "frame",
        "returning from",
        "func#",
    ];
    let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let is_instruction = digits(line) > 0 && line[digits(line)..].starts_with(':');
    // "R3=pkt(...)" and "R3_w=pkt(...)" are states; "R3 offset is outside of the packet" is a reason.
    let is_state = line.strip_prefix('R').is_some_and(|rest| {
        let rest = &rest[digits(rest)..];
        rest.starts_with('=') || rest.starts_with('_')
    });
    is_instruction || is_state || WORDS.iter().any(|word| line.starts_with(word))
}

/// Returns the last lines of a log.
fn tail(log: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Part of `union bpf_attr` that creating a map uses.
#[repr(C)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
}

/// Makes a map of the same shape, as small as possible; a map of constants gets its contents.
fn create_like(name: &str, map: &Map) -> io::Result<OwnedFd> {
    if let Some(inner) = crate::map_in_map::inner_shape(name) {
        let inner = create(BPF_MAP_TYPE_ARRAY, 4, inner.0, 1, inner.1, 0)?;
        return create(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 1, 0, inner.as_raw_fd() as u32);
    }
    let entries = if map.map_type() == BPF_MAP_TYPE_RINGBUF {
        RING_BYTES
    } else {
        1
    };
    let is_data = !matches!(map.section_kind(), EbpfSectionKind::Maps | EbpfSectionKind::BtfMaps);
    let fd = create(
        map.map_type(),
        map.key_size(),
        map.value_size(),
        entries,
        map.map_flags(),
        0,
    )?;
    if is_data {
        let key = 0u32;
        let mut element = [
            u64::from(fd.as_raw_fd() as u32),
            (&raw const key) as u64,
            map.data().as_ptr() as u64,
            0,
        ];
        bpf(BPF_MAP_UPDATE_ELEM, &mut element)?;
        // The verifier reads constants only from a frozen map.
        if map.section_kind() == EbpfSectionKind::Rodata {
            bpf(BPF_MAP_FREEZE, &mut u64::from(fd.as_raw_fd() as u32))?;
        }
    }
    Ok(fd)
}

fn create(kind: u32, key: u32, value: u32, entries: u32, flags: u32, inner: u32) -> io::Result<OwnedFd> {
    let mut attr = MapCreateAttr {
        map_type: kind,
        key_size: key,
        value_size: value,
        max_entries: entries,
        map_flags: flags,
        inner_map_fd: inner,
    };
    let fd = bpf(BPF_MAP_CREATE, &mut attr)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_stands_behind_the_walk() {
        let packet = "8221: (5f) r3 &= r1\n8237: (85) call bpf_csum_diff#28\ninvalid access to packet, off=0 size=4, R3(id=301,off=0,r=0)\n\
                      R3 offset is outside of the packet\nprocessed 100 insns (limit 1000000) max_states_per_insn 4 total_states 5 peak_states 5 mark_read 1\n";
        let both = "invalid access to packet, off=0 size=4, R3(id=301,off=0,r=0); R3 offset is outside of the packet";
        assert_eq!(reason(packet).unwrap(), both);
        let states = "; if x\n12: (55) if r4 != 0x0 goto pc-118\nR0=inv(id=0) R3_w=pkt(id=1)\nThe sequence of 8193 jumps is too complex.\n\
                      processed 46000 insns\n";
        assert_eq!(reason(states).unwrap(), "The sequence of 8193 jumps is too complex.");
        assert_eq!(
            reason("BPF_STX uses reserved fields\n").unwrap(),
            "BPF_STX uses reserved fields"
        );
        assert_eq!(reason(""), None);
    }

    #[test]
    fn figures_are_read_from_the_last_line() {
        let log = "verification time 93 usec\nstack depth 0\nprocessed 123 insns (limit 1000000) max_states_per_insn 4 \
                   total_states 56 peak_states 55 mark_read 7\n";
        let figures = parse_stats(log);
        assert_eq!(
            (figures.instructions, figures.states, figures.peak_states),
            (123, 56, 55)
        );
    }
}
