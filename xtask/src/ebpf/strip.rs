//! Leaves an object without DWARF and line numbers, which loaders do not need. Types of functions stay: the kernel calls
//! back only functions of known types.

use anyhow::{Context as _, Result};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

/// Sections of debugging, and relocations that loaders do not apply.
const UNUSED: [&str; 4] = [".debug_", ".rel.debug_", ".rel.BTF", ".rel.eh_frame"];

/// Size of a line number's record (`struct bpf_line_info`). The part for line numbers begins with it, also if it is empty.
const LINE_RECORD_BYTES: u32 = 16;

/// Returns the object without them; an object without types as it is.
pub(super) fn strip(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object).context("an object is no ELF file")?;
    let mut has_types = false;
    for section in builder.sections.iter_mut() {
        let name = section.name.to_string();
        section.delete = UNUSED.iter().any(|unused| name.starts_with(unused));
        if name == ".BTF.ext"
            && let SectionData::Data(data) = &mut section.data
        {
            has_types = true;
            *data = without_lines(data).context(".BTF.ext ends early")?.into();
        }
    }
    if !has_types {
        return Ok(object.to_vec());
    }
    builder.delete_orphans();
    // LLVM writes one table for the names of symbols and of sections; this library needs two.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

/// Leaves out the line numbers of a `.BTF.ext` (Documentation/bpf/btf.rst): after a header of `hdr_len` bytes there are
/// parts, whose offsets and lengths are in the header.
fn without_lines(data: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize| Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?));
    let (header, from, length) = (number(4)?, number(8)?, number(12)?);
    let functions = data.get((header + from) as usize..(header + from + length) as usize)?;
    // Magic number, version and flags; then a header without CO-RE relocations.
    let mut shorter = data.get(..4)?.to_vec();
    for word in [24, 0, length, length, size_of_val(&LINE_RECORD_BYTES) as u32] {
        shorter.extend(word.to_le_bytes());
    }
    shorter.extend(functions);
    shorter.extend(LINE_RECORD_BYTES.to_le_bytes());
    Some(shorter)
}
