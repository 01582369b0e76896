//! Reader of the maps and programs in an eBPF object.

use anyhow::{Context, Result, bail};
use aya_obj::generated::bpf_map_type;
use aya_obj::maps::PinningType;
use aya_obj::{Object, ProgramSection};

use super::{
    floor::Needs,
    stack::{self, Chain},
};

pub(super) struct Face {
    pub(super) programs: Vec<Program>,
    pub(super) maps: Vec<Map>,
    pub(super) needs: Needs,
    /// The chain of functions with the most bytes of stack.
    pub(super) stack: Chain,
}

pub(super) struct Program {
    pub(super) name: String,
    pub(super) kind: &'static str,
}

pub(super) struct Map {
    pub(super) name: String,
    /// Name of the type, as in `enum bpf_map_type` of linux/bpf.h.
    pub(super) kind: String,
    pub(super) layout: String,
    /// Whether the loader pins the map under its name.
    pub(super) is_pinned: bool,
}

/// Reads maps and programs, both sorted by name: the linker's order is no promise.
pub(super) fn read(bytes: &[u8]) -> Result<Face> {
    let object = Object::parse(bytes)?;
    let mut needs = Needs::default();
    for function in object.functions.values() {
        needs.read(&function.instructions)?;
    }
    let mut programs = Vec::new();
    for (name, program) in &object.programs {
        let kind = kind(&program.section).with_context(|| format!("the kind of program {name} is new to `abi`"))?;
        programs.push(Program {
            name: name.clone(),
            kind,
        });
    }
    if programs.is_empty() {
        bail!("it holds no program");
    }
    let mut maps = Vec::new();
    // Names of sections (`.rodata`) are maps of constants, which the loader makes.
    for (name, map) in object.maps.iter().filter(|(name, _)| !name.starts_with('.')) {
        let kind = map_type(map.map_type());
        needs.map(map.map_type(), &kind)?;
        let is_pinned = matches!(map.pinning(), PinningType::ByName);
        let pinned = if is_pinned { " pinned" } else { "" };
        let layout = format!(
            "type={kind} key={} value={} max_entries={} flags={:#x}{pinned}",
            map.key_size(),
            map.value_size(),
            map.max_entries(),
            map.map_flags()
        );
        maps.push(Map {
            name: name.clone(),
            kind,
            layout,
            is_pinned,
        });
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    maps.sort_by(|a, b| a.name.cmp(&b.name));
    let stack = stack::deepest(bytes)?;
    Ok(Face {
        programs,
        maps,
        needs,
        stack,
    })
}

fn map_type(number: u32) -> String {
    bpf_map_type::try_from(number).map_or_else(
        |_| number.to_string(),
        |kind| format!("{kind:?}").trim_start_matches("BPF_MAP_TYPE_").to_lowercase(),
    )
}

/// Kind of a program, as its section is named.
const fn kind(section: &ProgramSection) -> Option<&'static str> {
    match section {
        ProgramSection::SchedClassifier => Some("classifier"),
        ProgramSection::SocketFilter => Some("socket"),
        ProgramSection::SkLookup => Some("sk_lookup"),
        ProgramSection::SkSkbStream { .. } => Some("sk_skb/stream_verdict"),
        ProgramSection::Xdp { .. } => Some("xdp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_kernel() {
        for (number, name) in [
            (1, "hash"),
            (15, "sockmap"),
            (18, "sockhash"),
            (27, "ringbuf"),
            (99, "99"),
        ] {
            assert_eq!(map_type(number), name);
        }
    }

    #[test]
    fn a_file_that_is_no_elf_object_is_an_error() {
        assert!(read(b"not an object").is_err());
    }
}
