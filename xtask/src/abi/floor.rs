//! Requirements of the programs on a kernel: each helper, map type and instruction beside the version that brought it.
//! Nothing may be newer than the oldest kernel that signalbox promises to run on.
//!
//! Versions are those of the commits that added each thing to Linux (`git describe --contains`): helpers and map types
//! in include/uapi/linux/bpf.h, instructions in kernel/bpf/verifier.c. Vendors' kernels have them earlier, never
//! later.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use aya_obj::generated::bpf_insn;

/// Kernel version: major and minor.
pub(super) type Version = (u32, u32);

/// The oldest kernel with all programs but those of [`OPTIONAL`]; `signalbox::kernel::version::OLDEST_KERNEL` is the same.
const OLDEST: Version = (5, 14);

/// An object that works without some features of newer kernels: which, and the oldest kernel that it must load on.
struct Optional {
    object: &'static str,
    oldest: Version,
    /// Requirements that userspace leaves out where the kernel lacks them.
    left_out: &'static [&'static str],
}

const OPTIONAL: [Optional; 1] = [Optional {
    object: "kernel_peek",
    oldest: (5, 17),
    left_out: &["kernel function bpf_sk_assign_tcp_reqsk"],
}];

/// Functions of the kernel (kfuncs) by their numbers in an object: `KFUNC_ASSIGN_REQUEST` of common/src/peek/abi.rs. The
/// numbers begin after those of all helpers.
const KERNEL_FUNCTIONS: [(i32, &str, Version); 1] = [(0x5b0c_0001, "bpf_sk_assign_tcp_reqsk", (6, 9))];

/// Helpers by number, as in `enum bpf_func_id`.
const HELPERS: [(i32, &str, Version); 40] = [
    (1, "map_lookup_elem", (3, 19)),
    (2, "map_update_elem", (3, 19)),
    (3, "map_delete_elem", (3, 19)),
    (5, "ktime_get_ns", (4, 1)),
    (7, "get_prandom_u32", (4, 1)),
    (8, "get_smp_processor_id", (4, 1)),
    (9, "skb_store_bytes", (4, 1)),
    (11, "l4_csum_replace", (4, 1)),
    (13, "clone_redirect", (4, 2)),
    (18, "skb_vlan_push", (4, 3)),
    (19, "skb_vlan_pop", (4, 3)),
    (23, "redirect", (4, 4)),
    (26, "skb_load_bytes", (4, 5)),
    (28, "csum_diff", (4, 6)),
    (38, "skb_change_tail", (4, 9)),
    (39, "skb_pull_data", (4, 9)),
    (40, "csum_update", (4, 9)),
    (44, "xdp_adjust_head", (4, 10)),
    (46, "get_socket_cookie", (4, 12)),
    (50, "skb_adjust_room", (4, 13)),
    (65, "xdp_adjust_tail", (4, 18)),
    (69, "fib_lookup", (4, 18)),
    (72, "sk_redirect_hash", (4, 18)),
    (85, "sk_lookup_udp", (4, 20)),
    (86, "sk_release", (4, 20)),
    (99, "skc_lookup_tcp", (5, 2)),
    (100, "tcp_check_syncookie", (5, 2)),
    (110, "tcp_gen_syncookie", (5, 3)),
    (118, "jiffies64", (5, 6)),
    // Usable in sk_lookup programs from 5.9 on.
    (124, "sk_assign", (5, 9)),
    (125, "ktime_get_boot_ns", (5, 8)),
    (130, "ringbuf_output", (5, 8)),
    (131, "ringbuf_reserve", (5, 8)),
    (132, "ringbuf_submit", (5, 8)),
    (133, "ringbuf_discard", (5, 8)),
    (137, "skc_to_tcp_sock", (5, 9)),
    (152, "redirect_neigh", (5, 10)),
    (160, "ktime_get_coarse_ns", (5, 11)),
    (163, "check_mtu", (5, 12)),
    (181, "loop", (5, 17)),
];

/// Map types by number, as in `enum bpf_map_type`.
const MAPS: [(u32, Version); 11] = [
    (1, (3, 19)),
    (2, (3, 19)),
    (5, (4, 6)),
    (6, (4, 6)),
    (9, (4, 10)),
    (11, (4, 11)),
    (12, (4, 12)),
    (15, (4, 14)),
    (18, (4, 18)),
    (27, (5, 8)),
    (30, (5, 16)),
];

const CLASS: u8 = 0x07;
const BPF_ST: u8 = 0x02;
const BPF_STX: u8 = 0x03;
const BPF_JMP32: u8 = 0x06;
const BPF_ALU: u8 = 0x04;
const BPF_ALU64: u8 = 0x07;
const BPF_LDX: u8 = 0x01;
const MODE: u8 = 0xe0;
const BPF_MEM: u8 = 0x60;
const BPF_ATOMIC: u8 = 0xc0;
const BPF_LD_IMM64: u8 = 0x18;
const BPF_CALL: u8 = 0x85;
const BPF_NEG: u8 = 0x80;
const BPF_END: u8 = 0xd0;
const BPF_ADD: i32 = 0;

/// Reason why an instruction is refused although old kernels have it.
const NEGATION: &str = "a negation, of whose register verifiers before 6.17 know nothing afterwards: \
                        count up, and hide the counter from the compiler by `hide_from_compiler`";

/// Requirements of an object, each with the version that kernels have it since.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs(BTreeMap<String, Version>);

impl Needs {
    /// Adds the requirements of one function's code.
    pub(super) fn read(&mut self, code: &[bpf_insn]) -> Result<()> {
        let mut is_second_half = false;
        for instruction in code {
            let opcode = instruction.code;
            if !is_second_half
                && let Some((name, version)) = need(opcode, instruction.src_reg(), instruction.off, instruction.imm)?
            {
                self.0.insert(name, version);
            }
            is_second_half = !is_second_half && opcode == BPF_LD_IMM64;
        }
        Ok(())
    }

    /// Adds the requirement of a map's type.
    pub(super) fn map(&mut self, number: u32, name: &str) -> Result<()> {
        let Some((_, version)) = MAPS.iter().find(|(known, _)| *known == number) else {
            bail!("map type {name} is not in xtask/src/abi/floor.rs: add it with the kernel version that brought it");
        };
        self.0.insert(format!("map type {name}"), *version);
        Ok(())
    }

    /// Returns all requirements, with their versions.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, Version)> {
        self.0.iter().map(|(name, version)| (name.as_str(), *version))
    }

    /// Lines about requirements that a kernel lacks.
    pub(super) fn too_new(&self, object: &str) -> Vec<String> {
        let optional = OPTIONAL.iter().find(|optional| optional.object == object);
        let (oldest, left_out) = optional.map_or((OLDEST, &[][..]), |optional| (optional.oldest, optional.left_out));
        let newer = self.all().filter(|(_, version)| *version > oldest);
        newer
            .filter(|(name, _)| !left_out.contains(name))
            .map(|(name, (major, minor))| format!("{name} needs Linux {major}.{minor}"))
            .collect()
    }
}

/// Requirement of an instruction, beyond what every kernel with eBPF has.
fn need(opcode: u8, source: u8, offset: i16, immediate: i32) -> Result<Option<(String, Version)>> {
    let instruction = |name: &str, version| Ok(Some((format!("instruction {name}"), version)));
    let class = opcode & CLASS;
    match opcode {
        BPF_CALL => match source {
            0 if immediate >= KERNEL_FUNCTIONS[0].0 => {
                let known = KERNEL_FUNCTIONS.iter().find(|(number, ..)| *number == immediate);
                let Some((_, name, version)) = known else {
                    bail!("kernel function {immediate:#x} is not in xtask/src/abi/floor.rs");
                };
                Ok(Some((format!("kernel function {name}"), *version)))
            }
            0 => {
                let Some((_, name, version)) = HELPERS.iter().find(|(number, ..)| *number == immediate) else {
                    bail!(
                        "helper {immediate} is not in xtask/src/abi/floor.rs: add it with the kernel version that brought it"
                    );
                };
                Ok(Some((format!("helper {name}"), *version)))
            }
            1 => instruction("call of a function", (4, 16)),
            _ => instruction("call of a kernel function", (5, 13)),
        },
        BPF_LD_IMM64 if source == 2 => instruction("address of a constant", (5, 2)),
        _ if class == BPF_STX && opcode & MODE == BPF_ATOMIC => {
            if immediate == BPF_ADD {
                instruction("atomic add", (3, 18))
            } else {
                instruction("atomic or, and, exchange", (5, 12))
            }
        }
        _ if class == BPF_JMP32 && opcode & 0xf0 == 0 => instruction("long jump", (6, 6)),
        _ if class == BPF_JMP32 => instruction("32-bit jump", (5, 1)),
        _ if matches!(class, BPF_ALU | BPF_ALU64) && opcode & 0xf0 == BPF_NEG => bail!("the object has {NEGATION}"),
        _ if class == BPF_ALU64 && opcode & 0xf0 == BPF_END => instruction("byte swap", (6, 6)),
        _ if matches!(class, BPF_ALU | BPF_ALU64) && offset != 0 => instruction("signed division or move", (6, 6)),
        _ if class == BPF_LDX && opcode & MODE != BPF_MEM => instruction("signed load", (6, 6)),
        _ if class == BPF_ST && opcode & MODE != BPF_MEM => instruction("store of an unknown kind", (u32::MAX, 0)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(instructions: &[(u8, u8, i16, i32)]) -> Vec<bpf_insn> {
        let one = |(opcode, registers, offset, immediate): &(u8, u8, i16, i32)| {
            let mut bytes = vec![*opcode, *registers];
            bytes.extend(offset.to_le_bytes());
            bytes.extend(immediate.to_le_bytes());
            bytes
        };
        aya_obj::copy_instructions(&instructions.iter().flat_map(one).collect::<Vec<_>>()).unwrap()
    }

    fn needs(instructions: &[(u8, u8, i16, i32)]) -> Result<Needs> {
        let mut needs = Needs::default();
        needs.read(&code(instructions)).map(|()| needs)
    }

    #[test]
    fn requirements_the_oldest_kernel_meets_are_listed_and_allowed() {
        let needs = needs(&[
            (BPF_CALL, 0, 0, 160),
            (0xc3, 0x21, 0, 0x40),
            (0xdb, 0x21, 0, 0),
            (0x95, 0, 0, 0),
        ])
        .unwrap();
        let all: Vec<_> = needs.all().collect();
        assert_eq!(
            all,
            [
                ("helper ktime_get_coarse_ns", (5, 11)),
                ("instruction atomic add", (3, 18)),
                ("instruction atomic or, and, exchange", (5, 12)),
            ]
        );
        assert_eq!(needs.too_new("cut_through"), [""; 0]);
    }

    #[test]
    fn a_kernel_function_is_for_the_objects_that_may_lack_it() {
        let needs = needs(&[(BPF_CALL, 0, 0, 0x5b0c_0001)]).unwrap();
        assert_eq!(needs.too_new("kernel_peek"), [""; 0]);
        assert_eq!(
            needs.too_new("cut_through"),
            ["kernel function bpf_sk_assign_tcp_reqsk needs Linux 6.9"]
        );
    }

    #[test]
    fn newer_instructions_are_violations() {
        for (instruction, name) in [
            ((0xd7, 0, 0, 16), "byte swap"),
            ((0x81, 0x21, 0, 0), "signed load"),
            ((0x3f, 0x21, 1, 0), "signed division"),
            ((0x06, 0, 0, 4), "long jump"),
        ] {
            let new = needs(&[instruction]).unwrap().too_new("cut_through");
            assert!(
                new.len() == 1 && new[0].contains(name) && new[0].contains("6.6"),
                "{name}: {new:?}"
            );
        }
        let mut needs = Needs::default();
        needs.map(30, "bloom_filter").unwrap();
        assert_eq!(needs.too_new("cut_through"), ["map type bloom_filter needs Linux 5.16"]);
    }

    #[test]
    fn negations_and_what_nobody_has_looked_up_are_refused() {
        for negation in [0x84, 0x87] {
            assert!(needs(&[(negation, 1, 0, 0)]).unwrap_err().to_string().contains("6.17"));
        }
        assert!(
            needs(&[(BPF_CALL, 0, 0, 999)])
                .unwrap_err()
                .to_string()
                .contains("helper 999")
        );
        assert!(Needs::default().map(99, "99").is_err());
        // The second half of a 64-bit constant is no instruction, with any first byte.
        assert!(needs(&[(BPF_LD_IMM64, 0, 0, 1), (0x87, 0, 0, 0)]).is_ok());
    }
}
