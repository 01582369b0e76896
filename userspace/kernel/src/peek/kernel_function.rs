//! Calls of functions of the kernel (kfuncs). aya 0.14 does not relocate them: the object calls a number that no helper
//! has, and the call is completed here (Documentation/bpf/kfuncs.rst).

use aya_obj::btf::{Btf, BtfKind};

use crate::error::KernelError;
use crate::object::refused_for_tests;

/// Bytes of an instruction.
const INSTRUCTION: usize = 8;
/// Operation code of a call (`BPF_JMP | BPF_CALL`, include/uapi/linux/bpf.h).
const CALL: u8 = 0x85;
/// Operation code that sets a register, here the one of results, to a number (`BPF_ALU64 | BPF_MOV | BPF_K`).
const MOVE_TO_R0: u8 = 0xb7;
/// Source register of a call of a kernel function (`BPF_PSEUDO_KFUNC_CALL`), in the upper half of the second byte.
const PSEUDO_KFUNC_CALL: u8 = 2 << 4;

/// Functions of the kernel that programs may call, by its type information.
pub(super) struct KernelFunctions(Btf);

impl KernelFunctions {
    pub(super) fn read() -> Result<Self, KernelError> {
        let types = Btf::from_sys_fs();
        types
            .map(Self)
            .map_err(|error| missing(format!("the kernel's types cannot be read: {error}")))
    }

    /// Number of a function.
    pub(super) fn find(&self, name: &'static str) -> Result<u32, KernelError> {
        refused_for_tests(name, 0)?;
        self.0
            .id_by_type_name_kind(name, BtfKind::Func)
            .map_err(|_| missing(format!("this kernel has no function {name} (6.9)")))
    }
}

fn missing(reason: String) -> KernelError {
    KernelError::Refused {
        name: super::PROGRAM,
        reason,
        error: std::io::Error::from_raw_os_error(libc::EOPNOTSUPP),
    }
}

/// Turns every call of `placeholder` in an object into one of the kernel's function.
pub(super) fn link(object: &mut [u8], placeholder: u32, function: u32) {
    let [f0, f1, f2, f3] = function.to_le_bytes();
    replace(object, placeholder, [CALL, PSEUDO_KFUNC_CALL, 0, 0, f0, f1, f2, f3]);
}

/// Turns every call of `placeholder` in an object into a failure, -1.
pub(super) fn leave_out(object: &mut [u8], placeholder: u32) {
    replace(object, placeholder, [MOVE_TO_R0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
}

fn replace(object: &mut [u8], placeholder: u32, linked: [u8; INSTRUCTION]) {
    let [p0, p1, p2, p3] = placeholder.to_le_bytes();
    let call = [CALL, 0, 0, 0, p0, p1, p2, p3];
    // Sections of instructions are aligned to eight bytes, and so is the object in memory.
    for instruction in object.chunks_exact_mut(INSTRUCTION) {
        if instruction == call {
            instruction.copy_from_slice(&linked);
        }
    }
}
