//! Calls of functions of the kernel (kfuncs). aya 0.14 does not relocate them: the object calls a number that no helper
//! has, and the call is completed here (Documentation/bpf/kfuncs.rst).

use aya_obj::btf::{Btf, BtfKind};

use crate::object::refused_for_tests;

/// Bytes of an instruction.
const INSTRUCTION: usize = 8;
/// Operation code of a call (`BPF_JMP | BPF_CALL`, include/uapi/linux/bpf.h).
const CALL: u8 = 0x85;
/// Operation code that sets a register, here the one of results, to a number (`BPF_ALU64 | BPF_MOV | BPF_K`).
const MOVE_TO_R0: u8 = 0xb7;
/// Source register of a call of a kernel function (`BPF_PSEUDO_KFUNC_CALL`), in the upper half of the second byte.
const PSEUDO_KFUNC_CALL: u8 = 2 << 4;

/// Turns every call of `placeholder` in an object into one of the kernel's function `name`. Returns whether the kernel
/// has that function: without it, each call becomes a failure, -1.
pub(super) fn link(object: &mut [u8], name: &'static str, placeholder: u32) -> bool {
    let function = find(name);
    let linked = match function.map(u32::to_le_bytes) {
        Some([f0, f1, f2, f3]) => [CALL, PSEUDO_KFUNC_CALL, 0, 0, f0, f1, f2, f3],
        None => [MOVE_TO_R0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
    };
    let [p0, p1, p2, p3] = placeholder.to_le_bytes();
    let call = [CALL, 0, 0, 0, p0, p1, p2, p3];
    // Sections of instructions are aligned to eight bytes, and so is the object in memory.
    for instruction in object.chunks_exact_mut(INSTRUCTION) {
        if instruction == call {
            instruction.copy_from_slice(&linked);
        }
    }
    function.is_some()
}

/// Number of a function that programs may call, by the kernel's type information.
fn find(name: &'static str) -> Option<u32> {
    refused_for_tests(name, 0).ok()?;
    let types = Btf::from_sys_fs().inspect_err(|error| tracing::debug!(%error, "The kernel's types cannot be read."));
    types.ok()?.id_by_type_name_kind(name, BtfKind::Func).ok()
}
