//! Stack of nested functions: the kernel refuses a program whose deepest chain has more than 512 bytes
//! (`check_max_stack_depth` in kernel/bpf/verifier.c).
//!
//! Linux before 6.10 counts each frame in steps of 32 bytes, newer versions in steps of 16 where a JIT compiler runs.
//! A chain that just fits the machine of a developer is refused by the older one, so this check counts like that one.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionIndex, SectionKind, SymbolKind,
    read::elf::ElfFile64,
};

/// `MAX_BPF_STACK` of include/linux/filter.h.
const MOST_BYTES: u32 = 512;
/// `MAX_CALL_FRAMES` of `include/linux/bpf_verifier.h`.
const MOST_FRAMES: usize = 8;
/// Step in which older kernels count a frame.
const STEP: u32 = 32;

const INSTRUCTION_BYTES: u64 = 8;
const FRAME_POINTER: u8 = 10;
const BPF_CALL: u8 = 0x85;
const BPF_LD_IMM64: u8 = 0x18;
const BPF_MOV64_REG: u8 = 0xbf;
const BPF_ADD64_IMM: u8 = 0x07;
const CLASS: u8 = 0x07;
const BPF_LDX: u8 = 0x01;
const BPF_ST: u8 = 0x02;
const BPF_STX: u8 = 0x03;

/// Place of a function: its section, and its offset there.
type Place = (usize, u64);

struct Function {
    name: String,
    frame: u32,
    calls: Vec<Place>,
}

/// Functions that are on the stack together, from a program to the last one that it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) bytes: u32,
    functions: Vec<String>,
}

impl Chain {
    /// Reason why a kernel refuses the chain, if one does.
    pub(super) fn too_deep(&self) -> Option<String> {
        let is_too_deep = self.bytes > MOST_BYTES || self.functions.len() > MOST_FRAMES;
        is_too_deep.then(|| {
            format!(
                "its functions {} have {} bytes of stack in {} frames, and kernels before 6.10 allow {MOST_BYTES} bytes \
                 in {MOST_FRAMES} frames",
                self.functions.join(" > "),
                self.bytes,
                self.functions.len(),
            )
        })
    }
}

/// Returns the chain of an object with the most bytes of stack.
pub(super) fn deepest(bytes: &[u8]) -> Result<Chain> {
    let functions = functions(bytes)?;
    let mut known = BTreeMap::new();
    for place in functions.keys() {
        chain_from(*place, &functions, &mut known)?;
    }
    let deepest = known.into_values().flatten().max_by_key(|chain: &Chain| chain.bytes);
    deepest.context("it holds no function")
}

/// Chain with the most bytes that begins with a function. `known` has those found already, and nothing for a function
/// that is being looked at.
fn chain_from(
    place: Place,
    functions: &BTreeMap<Place, Function>,
    known: &mut BTreeMap<Place, Option<Chain>>,
) -> Result<Chain> {
    if let Some(known) = known.get(&place) {
        return known.clone().context("a function calls itself");
    }
    let function = functions
        .get(&place)
        .with_context(|| format!("no function begins at {place:?}"))?;
    known.insert(place, None);
    let mut deepest = Chain::default();
    for call in &function.calls {
        let chain = chain_from(*call, functions, known)?;
        if chain.bytes > deepest.bytes {
            deepest = chain;
        }
    }
    let frame = function.frame.max(1).next_multiple_of(STEP);
    deepest.bytes += frame;
    deepest.functions.insert(0, format!("{} ({frame})", function.name));
    known.insert(place, Some(deepest.clone()));
    Ok(deepest)
}

/// Reads all functions of an object.
fn functions(bytes: &[u8]) -> Result<BTreeMap<Place, Function>> {
    let file: ElfFile64<'_> = ElfFile64::parse(bytes)?;
    let mut functions = BTreeMap::new();
    for symbol in file.symbols() {
        let Some(section) = symbol.section_index() else {
            continue;
        };
        if symbol.kind() != SymbolKind::Text {
            continue;
        }
        let data = file.section_by_index(section)?.data()?;
        let code = data.get(symbol.address() as usize..(symbol.address() + symbol.size()) as usize);
        let code = code.context("a function ends outside of its section")?;
        let mut function = Function {
            name: symbol.name()?.to_owned(),
            frame: frame(code)?,
            calls: Vec::new(),
        };
        let targets = targets(&file, section)?;
        for (at, instruction) in instructions(code) {
            function
                .calls
                .extend(called(instruction, (section.0, symbol.address() + at), &targets)?);
        }
        functions.insert((section.0, symbol.address()), function);
    }
    Ok(functions)
}

/// Places that the relocations of a section refer to, if these are functions; and whether the instruction's own number
/// is added to them.
fn targets(file: &ElfFile64<'_>, section: SectionIndex) -> Result<BTreeMap<u64, (Place, bool)>> {
    let mut targets = BTreeMap::new();
    for (at, relocation) in file.section_by_index(section)?.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else {
            continue;
        };
        let symbol = file.symbol_by_index(symbol)?;
        let Some(target) = symbol.section_index() else {
            continue;
        };
        let is_section = symbol.kind() == SymbolKind::Section;
        if file.section_by_index(target)?.kind() == SectionKind::Text {
            targets.insert(at, ((target.0, symbol.address()), is_section));
        }
    }
    Ok(targets)
}

/// Function that an instruction calls, or whose address it takes: a helper calls that one back.
fn called(code: &[u8; 8], (section, at): Place, targets: &BTreeMap<u64, (Place, bool)>) -> Result<Option<Place>> {
    let number = i32::from_le_bytes([code[4], code[5], code[6], code[7]]);
    let is_call = code[0] == BPF_CALL && code[1] >> 4 == 1;
    let relocated = targets.get(&at).copied();
    Ok(match (code[0], relocated) {
        (BPF_CALL, Some(((section, address), true))) => Some((section, offset(address, i64::from(number) + 1)?)),
        (BPF_LD_IMM64, Some(((section, address), true))) => Some((
            section,
            address
                .checked_add_signed(number.into())
                .context("a function lies before its section")?,
        )),
        (BPF_CALL | BPF_LD_IMM64, Some((place, false))) => Some(place),
        (BPF_CALL, None) if is_call => Some((section, offset(at, i64::from(number) + 1)?)),
        _ => None,
    })
}

/// Offset of the instruction that comes a number of instructions after another one.
fn offset(from: u64, instructions: i64) -> Result<u64> {
    let bytes = instructions.checked_mul(INSTRUCTION_BYTES as i64);
    let to = bytes.and_then(|bytes| from.checked_add_signed(bytes));
    to.context("a call leaves its section")
}

/// Instructions of a function, with their offsets. The second half of a 64-bit constant is left out.
fn instructions(code: &[u8]) -> impl Iterator<Item = (u64, &[u8; 8])> {
    let (all, _) = code.as_chunks::<8>();
    let mut is_second_half = false;
    all.iter().enumerate().filter_map(move |(i, instruction)| {
        let is_skipped = is_second_half;
        is_second_half = !is_skipped && instruction[0] == BPF_LD_IMM64;
        (!is_skipped).then_some((i as u64 * INSTRUCTION_BYTES, instruction))
    })
}

/// Bytes of a function's frame: the lowest place below the frame pointer that it reads, writes or hands on.
fn frame(code: &[u8]) -> Result<u32> {
    ensure!(
        code.len().is_multiple_of(INSTRUCTION_BYTES as usize),
        "a function ends within an instruction"
    );
    let mut lowest = 0;
    // Registers that are copies of the frame pointer.
    let mut copies = [false; 16];
    for (_, instruction) in instructions(code) {
        let (to, from) = (instruction[1] & 15, instruction[1] >> 4);
        let offset = i32::from(i16::from_le_bytes([instruction[2], instruction[3]]));
        let number = i32::from_le_bytes([instruction[4], instruction[5], instruction[6], instruction[7]]);
        let is_access = match instruction[0] & CLASS {
            BPF_LDX => from == FRAME_POINTER,
            BPF_ST | BPF_STX => to == FRAME_POINTER,
            _ => false,
        };
        if is_access {
            lowest = lowest.min(offset);
        }
        let is_copied = copies[usize::from(to)];
        copies[usize::from(to)] = instruction[0] == BPF_MOV64_REG && from == FRAME_POINTER;
        if is_copied && instruction[0] == BPF_ADD64_IMM {
            lowest = lowest.min(number);
        }
    }
    if lowest < -(MOST_BYTES as i32) {
        bail!("a function has {} bytes of stack", -lowest);
    }
    Ok(lowest.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn instruction(opcode: u8, registers: u8, offset: i16, number: i32) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), number.to_le_bytes());
        [opcode, registers, a, b, c, d, e, f]
    }

    fn function(frame: u32, calls: &[Place]) -> Function {
        Function {
            name: format!("f{frame}"),
            frame,
            calls: calls.to_vec(),
        }
    }

    fn chain(functions: BTreeMap<Place, Function>) -> Result<Chain> {
        chain_from((0, 0), &functions, &mut BTreeMap::new())
    }

    #[test]
    fn frames_end_at_the_lowest_place_that_is_used() {
        let stored = instruction(0x7b, 0x1a, -24, 0);
        let loaded = instruction(0x79, 0xa1, -40, 0);
        // r2 = r10; r2 += -64: the address that a helper gets.
        let handed = [instruction(0xbf, 0xa2, 0, 0), instruction(0x07, 0x02, 0, -64)];
        // r2 += -200 of a register that is no copy, and the second half of a constant that looks like one.
        let others = [
            instruction(0x07, 0x03, 0, -200),
            instruction(0x18, 0x01, 0, 0),
            instruction(0x7b, 0x1a, -200, 0),
        ];
        let of = |code: &[[u8; 8]]| frame(&code.concat()).unwrap();
        assert_eq!(of(&[EXIT]), 0);
        assert_eq!(of(&[stored, EXIT]), 24);
        assert_eq!(of(&[stored, loaded, EXIT]), 40);
        assert_eq!(of(&[stored, handed[0], handed[1], EXIT]), 64);
        assert_eq!(of(&[stored, others[0], others[1], others[2], EXIT]), 24);
        assert!(frame(&instruction(0x7b, 0x1a, -520, 0)).is_err());
        assert!(frame(&EXIT[..7]).is_err());
    }

    #[test]
    fn the_deepest_chain_counts_frames_as_older_kernels_do() {
        let functions = |last: u32| {
            BTreeMap::from([
                ((0, 0), function(0, &[(0, 80), (1, 0)])),
                ((0, 80), function(400, &[])),
                ((1, 0), function(321, &[(1, 80)])),
                ((1, 80), function(last, &[])),
            ])
        };
        let fits = chain(functions(128)).unwrap();
        assert_eq!((fits.bytes, fits.functions.len()), (32 + 352 + 128, 3));
        assert_eq!(fits.too_deep(), None);
        let refused = chain(functions(129)).unwrap().too_deep().unwrap();
        assert!(
            refused.contains("f0 (32) > f321 (352) > f129 (160) have 544 bytes"),
            "{refused}"
        );
    }

    #[test]
    fn nine_small_frames_are_too_many_and_a_loop_is_refused() {
        let row = |last: usize| {
            (0..=last).map(move |i| {
                (
                    (0, i as u64),
                    function(8, if i < last { &PLACES[i + 1..i + 2] } else { &[] }),
                )
            })
        };
        const PLACES: [Place; 9] = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7), (0, 8)];
        assert_eq!(chain(row(7).collect()).unwrap().too_deep(), None);
        assert!(chain(row(8).collect()).unwrap().too_deep().is_some());
        let circle = BTreeMap::from([((0, 0), function(8, &[(0, 8)])), ((0, 8), function(8, &[(0, 0)]))]);
        assert!(chain(circle).is_err());
        assert!(chain(BTreeMap::from([((0, 0), function(8, &[(5, 0)]))])).is_err());
    }

    #[test]
    fn calls_and_addresses_of_functions_lead_to_them() {
        let none = BTreeMap::new();
        let of = |code, targets: &BTreeMap<_, _>| called(&code, (3, 16), targets).unwrap();
        // A helper, a function two instructions on, a function before the first one.
        assert_eq!(of(instruction(BPF_CALL, 0, 0, 1), &none), None);
        assert_eq!(of(instruction(BPF_CALL, 0x10, 0, 2), &none), Some((3, 40)));
        assert!(called(&instruction(BPF_CALL, 0x10, 0, -9), (3, 16), &none).is_err());
        // By a symbol of its own; by its section's symbol and a number.
        let by_name = BTreeMap::from([(16, ((7, 80), false))]);
        let by_section = BTreeMap::from([(16, ((7, 0), true))]);
        assert_eq!(of(instruction(BPF_CALL, 0x10, 0, -1), &by_name), Some((7, 80)));
        assert_eq!(of(instruction(BPF_CALL, 0x10, 0, 9), &by_section), Some((7, 80)));
        assert_eq!(of(instruction(BPF_LD_IMM64, 0x41, 0, 80), &by_section), Some((7, 80)));
    }
}
