//! Reader of the maps and programs in an eBPF object.

use anyhow::{Context, Result, bail};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use super::floor::Needs;

/// Length of `bpf_map_def` as libbpf before 1.0 and aya read it: seven words.
const MAP_DEF: usize = 7 * 4;

pub(super) struct Face {
    pub(super) programs: Vec<Program>,
    pub(super) maps: Vec<Map>,
    pub(super) needs: Needs,
}

pub(super) struct Program {
    pub(super) name: String,
    /// Name of the section, from which the loader takes the program's type.
    pub(super) kind: String,
}

pub(super) struct Map {
    pub(super) name: String,
    pub(super) layout: String,
}

/// Reads maps and programs, both sorted by name: the linker's order is no promise.
pub(super) fn read(bytes: &[u8]) -> Result<Face> {
    let file = object::File::parse(bytes)?;
    let mut face = Face {
        programs: Vec::new(),
        maps: Vec::new(),
        needs: Needs::default(),
    };
    for section in file.sections() {
        if section.kind() == object::SectionKind::Text {
            face.needs.read(section.data()?)?;
        }
    }
    for symbol in file.symbols() {
        let Some(section) = symbol
            .section_index()
            .and_then(|index| file.section_by_index(index).ok())
        else {
            continue;
        };
        let (name, section_name) = (symbol.name()?.to_owned(), section.name()?);
        match section_name {
            "maps" if symbol.kind() == SymbolKind::Data => {
                let start = usize::try_from(symbol.address())?;
                let words = section.data()?.get(start..start + MAP_DEF);
                let words = words.with_context(|| format!("the definition of map {name} is cut short"))?;
                let kind = u32::from_le_bytes(words[..4].try_into()?);
                face.needs.map(kind, &map_type(kind))?;
                face.maps.push(Map {
                    layout: layout(words)?,
                    name,
                });
            }
            // Only the map's type in BTF describes it; the loader's own dump is the place to read that.
            ".maps" if symbol.kind() == SymbolKind::Data => {
                face.maps.push(Map {
                    layout: format!("btf size={}", symbol.size()),
                    name,
                });
            }
            // Functions that programs call stand in `.text`; they have no type.
            ".text" => {}
            _ if symbol.kind() == SymbolKind::Text && symbol.is_global() => {
                face.programs.push(Program {
                    name,
                    kind: section_name.to_owned(),
                });
            }
            _ => {}
        }
    }
    if face.programs.is_empty() {
        bail!("it holds no program");
    }
    face.programs.sort_by(|a, b| a.name.cmp(&b.name));
    face.maps.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(face)
}

fn layout(def: &[u8]) -> Result<String> {
    let mut words = [0; 7];
    for (word, bytes) in words.iter_mut().zip(def.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into()?);
    }
    let [kind, key, value, max_entries, flags, _id, pinning] = words;
    let pinned = if pinning == 0 {
        String::new()
    } else {
        format!(" pinning={pinning}")
    };
    let kind = map_type(kind);
    Ok(format!(
        "type={kind} key={key} value={value} max_entries={max_entries} flags={flags:#x}{pinned}"
    ))
}

/// Name of a map type, as in `enum bpf_map_type` of linux/bpf.h.
fn map_type(number: u32) -> String {
    const NAMES: [&str; 34] = [
        "unspec",
        "hash",
        "array",
        "prog_array",
        "perf_event_array",
        "percpu_hash",
        "percpu_array",
        "stack_trace",
        "cgroup_array",
        "lru_hash",
        "lru_percpu_hash",
        "lpm_trie",
        "array_of_maps",
        "hash_of_maps",
        "devmap",
        "sockmap",
        "cpumap",
        "xskmap",
        "sockhash",
        "cgroup_storage",
        "reuseport_sockarray",
        "percpu_cgroup_storage",
        "queue",
        "stack",
        "sk_storage",
        "devmap_hash",
        "struct_ops",
        "ringbuf",
        "inode_storage",
        "task_storage",
        "bloom_filter",
        "user_ringbuf",
        "cgrp_storage",
        "arena",
    ];
    let name = usize::try_from(number).ok().and_then(|number| NAMES.get(number));
    name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_read_word_by_word() {
        let words: [u32; 7] = [11, 24, 8, 4096, 1, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(
            layout(&bytes).unwrap(),
            "type=lpm_trie key=24 value=8 max_entries=4096 flags=0x1"
        );
    }

    #[test]
    fn names_follow_the_numbers_of_the_kernel() {
        for (number, name) in [
            (1, "hash"),
            (15, "sockmap"),
            (18, "sockhash"),
            (27, "ringbuf"),
            (33, "arena"),
            (99, "99"),
        ] {
            assert_eq!(map_type(number), name);
        }
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        assert!(read(b"not an object").is_err());
    }
}
